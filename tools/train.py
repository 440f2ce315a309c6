"""Train a detector or a classifier from a YAML, and evaluate what was trained."""

import argparse
import contextlib
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import (
    has_whole_clouds,
    on_terminal,
    output_folder,
    read_config,
    recall_options,
    run,
    split_name,
    start,
    stop,
)
from _train_options import overrides, parse

if TYPE_CHECKING:
    from pcdet.config import Config
    from pcdet.train_utils.engine import Trainer
    from pcdet.train_utils.evaluate import Evaluator
    from pcdet.train_utils.validation import Monitor


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, build, train, evaluate."""
    given = parse(__doc__, arguments)
    config = read_config(given, overrides(given), accumulates=True)
    if config is None:
        return 0
    from pcdet.train_utils.launch import has_lost_the_others

    note_status(given, "failed")  # until it is known better
    try:
        device = start(given)
        over = train_and_evaluate(given, config, device)
    except RuntimeError as error:
        if has_lost_the_others(error):
            note_status(given, "lost")
        raise
    note_status(given, "finished" if over else "stopped")
    stop()
    return 0


def note_status(given: argparse.Namespace, status: str) -> None:
    """What --status_file tells whoever has started this machine's processes."""
    from pcdet.utils.distributed import local_rank
    from pcdet.utils.files import write_text

    if given.status_file is not None and local_rank() == 0:
        write_text(given.status_file, f"{status}\n")


def train_and_evaluate(given: argparse.Namespace, config: "Config", device: Any) -> bool:
    """Do what is left to do of the run. Returns whether it is over: not if a signal has ended the training."""
    from pcdet.utils import distributed as ranks
    from pcdet.utils.folder_lock import holding

    folder = output_folder(given, config)
    with holding(folder) if ranks.is_main() else contextlib.nullcontext():
        return in_folder(given, config, folder, device)


def in_folder(given: argparse.Namespace, config: "Config", folder: Path, device: Any) -> bool:
    """The same in a folder that no other run writes to."""
    logger = open_log(given, config, folder)
    found = find_checkpoint(given, folder)
    finished = found is not None and is_finished(found[1], given, config, logger)
    if finished and not files_to_evaluate(given, config, folder, again=False):
        return True
    trainer, test_set = build(given, config, folder, device, found)
    if finished:
        logger.info("Its evaluation was not: that is done now")
    else:
        logger.info("Start training %s/%s(%s)", config.exp_group_path, config.tag, given.extra_tag)
        if not trainer.fit():
            return False
        logger.info("End training %s/%s(%s)", config.exp_group_path, config.tag, given.extra_tag)
    files = files_to_evaluate(given, config, folder, again=not finished)
    evaluate_checkpoints(files, given, config, folder, trainer, test_set)
    return True


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
    """The checkpoint to continue from: --ckpt, else the newest of the output folder unless --no_resume.

    Both options are for the first attempt: workers that torchrun restarts go on from what that has written.
    """
    from pcdet.train_utils.checkpoint import find_newest, load_checkpoint, set_aside
    from pcdet.train_utils.launch import agree_on_checkpoint, is_restart, restarted_since
    from pcdet.utils import distributed as ranks
    from pcdet.utils.logging import get_logger

    if given.no_resume and not is_restart():
        for part in (folder / "ckpt", folder / "tensorboard", eval_folder(folder)) if ranks.is_main() else ():
            if moved := set_aside(part):
                get_logger().info("Beginning anew: %s of the earlier run is now %s", part.name, moved.name)
        ranks.barrier()
    found = None
    if given.ckpt is None or is_restart():
        found = find_newest(folder / "ckpt", since=restarted_since() if given.ckpt else 0.0)
    if found is None and given.ckpt is not None:
        found = given.ckpt, load_checkpoint(given.ckpt)
    agree_on_checkpoint(found, folder)
    return found


def is_finished(checkpoint: dict[str, Any], given: argparse.Namespace, config: "Config", logger: Any) -> bool:
    """Was the last epoch trained before, or the run stopped early? Says so, and how to go on."""
    from pcdet.train_utils.resume import config_changes
    from pcdet.train_utils.settings import Optimization
    from pcdet.train_utils.validation import stopped_early

    epochs, done = Optimization.from_settings(config.settings.OPTIMIZATION).num_epochs, checkpoint.get("epoch", 0)
    early = stopped_early(checkpoint.get("best", {}), given.best_metric, given.early_stop)
    if done < epochs and not early:
        return False
    changes = config_changes(checkpoint.get("config", ""), config.dump())
    if changes:
        logger.warning("The configuration changed since then:\n%s", "\n".join(changes))
    longer = "without --early_stop" if early and done < epochs else "with --epochs"
    logger.info(
        "Finished already (%d/%d epochs). Train longer %s, anew with --fresh, or beside it with another --extra_tag; "
        "evaluate with tools/test.py", done, epochs, longer,
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
    from pcdet.train_utils.determinism import be_deterministic
    from pcdet.train_utils.engine import Trainer
    from pcdet.train_utils.global_batch import require_global_batch
    from pcdet.train_utils.seeds import seed_everything
    from pcdet.train_utils.settings import Optimization
    from pcdet.train_utils.weights import load_pretrained
    from pcdet.utils import distributed as ranks

    settings = config.settings
    optimization = Optimization.from_settings(settings.OPTIMIZATION)
    require_global_batch(given.batch_size, optimization, ranks.world_size())
    seed = given.seed if given.fix_random_seed is None else given.fix_random_seed
    if found:
        seed = seed_of(found[1], seed)
    if given.fix_random_seed is not None:
        be_deterministic()
    training_set = build_dataset(settings.DATA_CONFIG, settings.CLASS_NAMES, training=True, seed=seed)
    test_set = build_dataset(settings.DATA_CONFIG, settings.CLASS_NAMES, training=False, seed=seed)
    seed_everything(seed)
    model = build_model(settings.MODEL, training_set.info)
    if given.pretrained_model and not found:
        file = given.pretrained_model
        load_pretrained(model, load_checkpoint(file), file, partial=given.partial)
    trainer = Trainer(model, training_set, optimization, run_options(given, config, folder, device, seed))
    trainer.monitor = build_monitor(given, config, folder, trainer, monitored(given, settings, test_set, seed))
    if found:
        trainer.resume(found[1], found[0])
    return trainer, test_set


def seed_of(checkpoint: dict[str, Any], asked: int) -> int:
    """The seed that the run began with: going on with another would show some scenes of an epoch twice."""
    from pcdet.utils.logging import get_logger

    seed = int(checkpoint.get("seed", asked))
    if seed != asked:
        get_logger().warning(
            "The run began with seed %d and goes on with it, not with %d; --fresh begins anew", seed, asked
        )
    return seed


def monitored(given: argparse.Namespace, settings: Any, test_set: Any, seed: int) -> Any:
    """The data set that is evaluated while the model trains.

    Of whole clouds the test set chooses nothing: --best_metric looks at those that are held out of training.
    """
    from pcdet.datasets import build_dataset

    if not chooses_on_val(given, settings):
        return test_set
    data = {**settings.DATA_CONFIG, "EVAL_SPLIT": "val"}
    return build_dataset(data, settings.CLASS_NAMES, training=False, seed=seed)


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
        checkpoint_steps=given.ckpt_save_steps,
        latest_seconds=given.ckpt_save_time_interval,
        nan_policy=given.nan_policy,
        nan_limit=given.nan_limit,
        log_interval=given.logger_iter_interval,
        profile_steps=given.profile,
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

    files = epoch_files(folder / "ckpt")
    first = given.start_epoch
    if first is None:
        first = max((int(epoch_of(f)) for f in files), default=0) - given.num_epochs_to_eval
    done = set() if again else evaluated_epochs(eval_folder(folder), split_name(config.settings))
    return [f for f in files if int(epoch_of(f)) >= first and epoch_of(f) not in done]


def build_evaluator(given: argparse.Namespace, config: "Config", trainer: "Trainer", test_set: Any) -> "Evaluator":
    """What evaluates the model, while it trains or afterwards."""
    from pcdet.train_utils.evaluate import Evaluator

    return Evaluator(
        trainer.model,
        test_set,
        trainer.device,
        batch_size=trainer.settings.batch_size_per_gpu,
        workers=given.workers,
        save_to_file=given.save_to_file,
        bar=on_terminal(),
        options=recall_options(config.settings),
    )


def build_monitor(
    given: argparse.Namespace, config: "Config", folder: Path, trainer: "Trainer", validation_set: Any
) -> "Monitor | None":
    """What is evaluated while the model trains, if any option asks for it."""
    from pcdet.train_utils.validation import Monitor

    by_loss = (given.best_metric or "").startswith("val/")
    every = trainer.settings.eval_interval if given.eval_interval is None else given.eval_interval
    if every is None and not given.val_loss and given.best_metric is None:
        return None
    return Monitor(
        build_evaluator(given, config, trainer, validation_set),
        eval_folder(folder),
        interval=1 if every is None else every,
        metric=given.best_metric,
        patience=given.early_stop,
        with_metrics=every is not None or (given.best_metric is not None and not by_loss),
        with_loss=given.val_loss or by_loss,
        seed=trainer.options.seed,
        split="val" if chooses_on_val(given, config.settings) else split_name(config.settings),
    )


def chooses_on_val(given: argparse.Namespace, settings: Any) -> bool:
    """Is what is evaluated while the model trains something else than the test set?"""
    return given.best_metric is not None and has_whole_clouds(settings)


def evaluate_checkpoints(
    files: list[Path], given: argparse.Namespace, config: "Config", folder: Path, trainer: "Trainer", test_set: Any
) -> None:
    """Evaluate the checkpoints one by one, but for those whose epochs were evaluated while the model trained.

    Where held-out clouds chose an epoch, that one is evaluated too, into ``best``.
    """
    from pcdet.train_utils.checkpoint import BEST, epoch_of
    from pcdet.train_utils.evaluate import evaluate_files

    evaluator = build_evaluator(given, config, trainer, test_set)
    split, on_val = split_name(config.settings), chooses_on_val(given, config.settings)
    done = trainer.monitor.evaluated if trainer.monitor is not None and not on_val else set()
    remaining = [f for f in files if epoch_of(f) not in done]
    evaluate_files(evaluator, remaining, eval_folder(folder), split)
    if on_val and (folder / "ckpt" / BEST).is_file():
        evaluator.checkpoint(folder / "ckpt" / BEST, eval_folder(folder) / "best" / split)


if __name__ == "__main__":
    run(main)
