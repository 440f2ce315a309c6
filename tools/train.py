"""Train a detector or a classifier from a YAML, and evaluate what was trained."""

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import (
    add_common_options,
    on_terminal,
    output_folder,
    parse_options,
    read_config,
    recall_options,
    run,
    split_name,
    start,
    stop,
)

if TYPE_CHECKING:
    from pcdet.config import Config
    from pcdet.train_utils.engine import Trainer


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """OpenPCDet's options and a few of ours (--device, --seed, --no_resume, --accumulation_steps, --print_config)."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_options(parser)
    add = parser.add_argument
    add("--epochs", type=int, help="epochs to train (default: OPTIMIZATION.NUM_EPOCHS)")
    add("--accumulation_steps", type=int, help="micro-batches to a step (default: OPTIMIZATION.ACCUMULATION_STEPS)")
    add("--use_amp", action="store_true", help="mixed precision: float16 on a GPU, bfloat16 on a CPU")
    add("--sync_bn", action="store_true", help="BatchNorm over all GPUs")
    add("--seed", type=int, default=0, help="equal seeds give equal runs")
    add("--fix_random_seed", action="store_true", help="seed 666 and deterministic cuDNN")
    add("--no_resume", action="store_true", help="begin anew; checkpoints of an earlier run are renamed, not deleted")
    add("--ckpt_save_interval", type=int, default=1, help="epochs from one checkpoint to the next")
    add("--max_ckpt_save_num", type=int, default=30, help="checkpoints kept; the oldest are deleted")
    add("--ckpt_save_time_interval", type=float, default=300, help="seconds from one latest_model.pth to the next")
    add("--logger_iter_interval", type=int, default=50, help="steps from one log line to the next")
    add("--use_tqdm_to_record", action="store_true", help="a bar instead of log lines (always so on a terminal)")
    add("--num_epochs_to_eval", type=int, default=0, help="evaluate the checkpoints of the last N epochs; 0: the last")
    add("--start_epoch", type=int, help="evaluate checkpoints from this epoch on (default: by --num_epochs_to_eval)")
    accepted = "accepted for OpenPCDet's command lines; "
    add("--merge_all_iters_to_one_epoch", action="store_true", help=accepted + "workers always live through all epochs")
    add("--max_waiting_mins", type=int, default=0, help=accepted + "all checkpoints exist when evaluation begins")
    add("--wo_gpu_stat", action="store_true", help=accepted + "gpustat is never called")
    return parse_options(parser, arguments)


def overrides(given: argparse.Namespace) -> list[str]:
    """Options that are values of the configuration, as ``--set`` would give them."""
    out = []
    if given.epochs is not None:
        out += ["OPTIMIZATION.NUM_EPOCHS", str(given.epochs)]
    if given.accumulation_steps is not None:
        out += ["OPTIMIZATION.ACCUMULATION_STEPS", str(given.accumulation_steps)]
    if given.use_amp:
        out += ["OPTIMIZATION.USE_AMP", "True"]
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, build, train, evaluate."""
    given = parse(arguments)
    config = read_config(given, overrides(given))
    if config is None:
        return 0
    device = start(given)
    folder = output_folder(given, config)
    logger = open_log(given, config, folder)
    found = find_checkpoint(given, folder)
    finished = found is not None and is_finished(found[1], config, logger)
    if finished and not files_to_evaluate(given, config, folder, again=False):
        return 0
    trainer, test_set = build(given, config, folder, device, found)
    if finished:
        logger.info("Its evaluation was not: that is done now")
    else:
        logger.info("Start training %s/%s(%s)", config.exp_group_path, config.tag, given.extra_tag)
        trainer.fit()
        logger.info("End training %s/%s(%s)", config.exp_group_path, config.tag, given.extra_tag)
    files = files_to_evaluate(given, config, folder, again=not finished)
    evaluate_checkpoints(files, given, config, folder, trainer, test_set)
    stop()
    return 0


def open_log(given: argparse.Namespace, config: "Config", folder: Path) -> Any:
    """Begin the log file and write the resolved configuration beside it."""
    from pcdet.utils import distributed as ranks
    from pcdet.utils.files import write_text
    from pcdet.utils.logging import setup_logger

    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    logger = setup_logger(folder / f"train_{stamp}.log", ranks.rank())
    logger.info("**********************Start logging**********************")
    for name, value in vars(given).items():
        logger.info("%-16s %s", name, value)
    for line in config.describe().splitlines():
        logger.info("cfg.%s", line)
    if ranks.is_main():
        write_text(folder / f"{config.tag}.yaml", config.dump())
    return logger


def find_checkpoint(given: argparse.Namespace, folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The checkpoint to continue from: --ckpt, else the newest of the output folder unless --no_resume."""
    from pcdet.train_utils.checkpoint import find_newest, load_checkpoint, set_aside
    from pcdet.utils import distributed as ranks
    from pcdet.utils.logging import get_logger

    if given.no_resume:
        for part in (folder / "ckpt", folder / "tensorboard", eval_folder(folder)) if ranks.is_main() else ():
            if moved := set_aside(part):
                get_logger().info("Beginning anew: %s of the earlier run is now %s", part.name, moved.name)
        ranks.barrier()
    if given.ckpt is not None:
        return given.ckpt, load_checkpoint(given.ckpt)
    found = find_newest(folder / "ckpt")
    ranks.barrier()
    return found


def is_finished(checkpoint: dict[str, Any], config: "Config", logger: Any) -> bool:
    """Was the last epoch trained before? Says so, and how to go on."""
    from pcdet.train_utils.resume import config_changes
    from pcdet.train_utils.settings import Optimization

    epochs = Optimization.from_settings(config.settings.OPTIMIZATION).num_epochs
    if checkpoint.get("epoch", 0) < epochs:
        return False
    changes = config_changes(checkpoint.get("config", ""), config.dump())
    if changes:
        logger.warning("The configuration changed since then:\n%s", "\n".join(changes))
    logger.info(
        "Finished already (%d/%d epochs). Train longer with --epochs, anew with --no_resume, or beside it with "
        "another --extra_tag; evaluate with tools/test.py", checkpoint["epoch"], epochs,
    )  # fmt: skip
    return True


def build(
    given: argparse.Namespace, config: "Config", folder: Path, device: Any, found: tuple[Path, dict[str, Any]] | None
) -> "tuple[Trainer, Any]":
    """Data sets, model and trainer, at the place where the checkpoint ends; also the data set for evaluation.

    The latter is built before training, so that what it lacks is known before and not after.
    """
    from pcdet.datasets import build_dataset
    from pcdet.models.build import build_model
    from pcdet.train_utils.checkpoint import load_checkpoint
    from pcdet.train_utils.engine import Trainer
    from pcdet.train_utils.launch import be_deterministic, seed_everything
    from pcdet.train_utils.settings import Optimization
    from pcdet.train_utils.weights import load_pretrained

    settings = config.settings
    seed = 666 if given.fix_random_seed else given.seed
    if found:
        seed = int(found[1].get("seed", seed))
    if given.fix_random_seed:
        be_deterministic()
    training_set = build_dataset(settings.DATA_CONFIG, settings.CLASS_NAMES, training=True, seed=seed)
    test_set = build_dataset(settings.DATA_CONFIG, settings.CLASS_NAMES, training=False, seed=seed)
    seed_everything(seed)
    model = build_model(settings.MODEL, training_set.info)
    if given.pretrained_model and not found:
        file = given.pretrained_model
        load_pretrained(model, load_checkpoint(file), file, partial=given.partial)
    optimization = Optimization.from_settings(settings.OPTIMIZATION)
    trainer = Trainer(model, training_set, optimization, run_options(given, config, folder, device, seed))
    if found:
        trainer.resume(found[1], found[0])
    return trainer, test_set


def run_options(given: argparse.Namespace, config: "Config", folder: Path, device: Any, seed: int) -> Any:
    """The options of the command line that the engine takes."""
    from pcdet.train_utils.engine import RunOptions

    return RunOptions(
        folder=folder,
        device=device,
        seed=seed,
        workers=given.workers,
        sync_bn=given.sync_bn,
        checkpoint_epochs=given.ckpt_save_interval,
        max_checkpoints=given.max_ckpt_save_num,
        latest_seconds=given.ckpt_save_time_interval,
        log_interval=given.logger_iter_interval,
        bar=given.use_tqdm_to_record or on_terminal(),
        config_text=config.dump(),
    )


def eval_folder(folder: Path) -> Path:
    """Where checkpoints are evaluated that were trained here."""
    return folder / "eval" / "eval_with_train"


def files_to_evaluate(given: argparse.Namespace, config: "Config", folder: Path, *, again: bool) -> list[Path]:
    """The checkpoints of the last epochs; those evaluated before are left out unless ``again``."""
    from pcdet.train_utils.checkpoint import epoch_files, epoch_of
    from pcdet.train_utils.evaluate import evaluated_epochs
    from pcdet.train_utils.settings import Optimization

    epochs = Optimization.from_settings(config.settings.OPTIMIZATION).num_epochs
    first = max(epochs - given.num_epochs_to_eval, 0) if given.start_epoch is None else given.start_epoch
    done = set() if again else evaluated_epochs(eval_folder(folder), split_name(config.settings))
    return [f for f in epoch_files(folder / "ckpt") if int(epoch_of(f)) >= first and epoch_of(f) not in done]


def evaluate_checkpoints(
    files: list[Path], given: argparse.Namespace, config: "Config", folder: Path, trainer: "Trainer", test_set: Any
) -> None:
    """Evaluate the checkpoints one by one."""
    from pcdet.train_utils.evaluate import Evaluator, evaluate_files

    evaluator = Evaluator(
        trainer.model,
        test_set,
        trainer.device,
        batch_size=trainer.settings.batch_size_per_gpu,
        workers=given.workers,
        save_to_file=given.save_to_file,
        bar=on_terminal(),
        options=recall_options(config.settings),
    )
    evaluate_files(evaluator, files, eval_folder(folder), split_name(config.settings))


if __name__ == "__main__":
    run(main)
