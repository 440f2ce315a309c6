"""The options of tools/train.py."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from _common import add_common_options, parse_options

SEED = 666  # OpenPCDet's, for the bare --fix_random_seed


def parse(description: str | None, arguments: Sequence[str] | None) -> argparse.Namespace:
    """OpenPCDet's options and ours, checked."""
    parser = argparse.ArgumentParser(description=description)
    add_common_options(parser)
    _add_training(parser)
    _add_checkpoints(parser)
    _add_evaluation(parser)
    _add_openpcdets(parser)
    given = parse_options(parser, arguments, resumes=True)
    if given.early_stop is not None and given.best_metric is None:
        parser.error("--early_stop goes with --best_metric, which tells what should improve")
    return given


def _add_training(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--epochs", type=int, help="epochs to train (default: OPTIMIZATION.NUM_EPOCHS)")
    add("--accumulation_steps", type=int, help="micro-batches to a step (default: OPTIMIZATION.ACCUMULATION_STEPS)")
    add("--use_amp", action="store_true", help="mixed precision: fp16 on a GPU, bf16 on a CPU")
    add("--amp_dtype", choices=["fp16", "bf16"], help="mixed precision in this type")
    add("--sync_bn", action="store_true", help="BatchNorm over all processes, on CPUs too")
    add("--seed", type=int, default=0, help="equal seeds give equal runs")
    fixed = f"this seed ({SEED} if no number is given), and algorithms that give equal bits; names those that do not"
    add("--fix_random_seed", type=int, nargs="?", const=SEED, metavar="N", help=fixed)
    add("--nan_policy", choices=["stop", "skip"], default="stop", help="when a loss or gradient is not finite")
    add("--nan_limit", type=int, default=10, help="with --nan_policy skip: stop after so many steps in a row")


def _add_checkpoints(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    anew = "begin anew; checkpoints of an earlier run are renamed to ckpt_before_N, not deleted"
    add("--no_resume", "--no-resume", "--fresh", action="store_true", help=anew)
    add("--ckpt_save_interval", type=int, default=1, help="epochs from one checkpoint to the next")
    add("--max_ckpt_save_num", type=int, default=30, help="checkpoints kept; the oldest are deleted, the best never")
    add("--ckpt_save_time_interval", type=float, default=300, help="seconds from one latest_model.pth to the next")
    status = "how it ends, for job scripts: finished, stopped (by a signal), lost (the other processes) or failed"
    add("--status_file", type=Path, help=status)
    add("--ckpt_save_steps", type=int, default=0, help="steps from one checkpoint_step_N.pth to the next; 0: none")


def _add_evaluation(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--logger_iter_interval", type=int, default=50, help="steps from one log line to the next")
    profile = "write a profiler trace of N steps and a table of the 15 costliest operators into profile/"
    add("--profile", type=int, default=0, metavar="N", help=profile)
    add("--use_tqdm_to_record", action="store_true", help="a bar instead of log lines (always so on a terminal)")
    add("--num_epochs_to_eval", type=int, default=0, help="evaluate the checkpoints of the last N epochs; 0: the last")
    add("--start_epoch", type=int, help="evaluate checkpoints from this epoch on (default: by --num_epochs_to_eval)")
    every = (
        "evaluate while training, every N epochs (default: OPTIMIZATION.EVAL_INTERVAL, which at first is: at the end)"
    )
    add("--eval_interval", type=int, metavar="N", help=every)
    add("--val_loss", action="store_true", help="the training loss on the validation set, after every evaluated epoch")
    best = "keep best_model.pth by this metric of the report, such as Car_3d/moderate_R40, accuracy/overall or val/loss"
    best += "; of whole clouds it is measured on those held out of training (HOLD_OUT, VAL_AREAS, the list val)"
    add("--best_metric", metavar="NAME", help=best)
    add("--early_stop", type=int, metavar="N", help="stop after N evaluations without a better --best_metric")


def _add_openpcdets(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    accepted = "accepted for OpenPCDet's command lines; "
    add("--merge_all_iters_to_one_epoch", action="store_true", help=accepted + "workers always live through all epochs")
    add("--max_waiting_mins", type=int, default=0, help=accepted + "all checkpoints exist when evaluation begins")
    add("--wo_gpu_stat", action="store_true", help=accepted + "gpustat is never called")


def overrides(given: argparse.Namespace) -> list[str]:
    """Options that are values of the configuration, as ``--set`` would give them."""
    out = []
    if given.epochs is not None:
        out += ["OPTIMIZATION.NUM_EPOCHS", str(given.epochs)]
    if given.accumulation_steps is not None:
        out += ["OPTIMIZATION.ACCUMULATION_STEPS", str(given.accumulation_steps)]
    if given.use_amp or given.amp_dtype:
        out += ["OPTIMIZATION.USE_AMP", "True"]
    if given.amp_dtype:
        out += ["OPTIMIZATION.AMP_DTYPE", given.amp_dtype]
    return out
