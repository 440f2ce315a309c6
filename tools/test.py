"""Evaluate checkpoints of a detector, a classifier or a segmenter.

Without --ckpt a classifier or segmenter is evaluated at its last epoch and, where training kept best_model.pth by
--best_metric, at the epoch that the held-out clouds chose. The test set chooses nothing. --seeds 3 evaluates the runs
of tools/train_seeds.py so and tells mean and standard deviation.
"""

import argparse
import copy
import datetime
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import (
    add_common_options,
    add_view_options,
    has_whole_clouds,
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
from _seeds import Metrics, seed_tag, summarise, table, write_summary

if TYPE_CHECKING:
    from pcdet.config import Config
    from pcdet.train_utils.evaluate import Evaluation, Evaluator

POLL_SECONDS = 5.0
VIEWED = 20  # scenes of --html and --rerun where --pictures names no number


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """OpenPCDet's options and ours: --device, --split, --score_thresh, --pictures, --html, --rerun, --analysis ..."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_options(parser)
    add = parser.add_argument
    add("--eval_tag", default="default", help="last folder of the evaluation's path")
    add("--eval_all", action="store_true", help="evaluate every checkpoint of the folder that was not evaluated before")
    add("--ckpt_dir", type=Path, help="folder of checkpoints (default: the run's ckpt)")
    add("--start_epoch", type=int, default=0, help="with --eval_all: leave out earlier epochs")
    add("--max_waiting_mins", type=float, default=0, help="with --eval_all: wait so long for new checkpoints")
    add("--infer_time", action="store_true", help="measure the forward pass, in milliseconds a batch")
    add("--split", choices=["train", "val", "test"], help="evaluate this split without augmentation")
    add("--score_thresh", type=float, default=0.3, help="recall and precision count detections from this score on")
    add("--min_points", type=int, default=0, help="recall counts objects with at least so many points")
    add(
        "--pictures", "--draw", dest="pictures", type=int, default=0, metavar="N",
        help="draw the first N scenes with hits, misses and false alarms (clouds get their confusion matrix anyway)",
    )  # fmt: skip
    votes = "whole clouds: also add up the scores of N views (a classifier's turned about the up axis), printed beside"
    add("--votes", type=int, default=1, metavar="N", help=votes)
    seeds = "evaluate the runs <extra_tag>_seed_0 to _seed_N-1 of tools/train_seeds.py: mean and standard deviation"
    add("--seeds", type=int, metavar="N", help=seeds)
    add(
        "--analysis",
        action="store_true",
        help="measure by distance, points, occlusion, heading and score: text, charts",
    )
    add_view_options(parser, f"the first N scenes of --pictures (default {VIEWED})")
    given = parse_options(parser, arguments, resumes=False)
    if given.seeds is not None:
        if given.seeds < 2:
            parser.error("--seeds needs at least 2: one seed has no deviation")
        for name in ("ckpt", "ckpt_dir", "pretrained_model", "eval_all", "infer_time", "html", "rerun"):
            if getattr(given, name):
                parser.error(f"--seeds evaluates the newest checkpoint of every seed; leave out --{name}")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, build, evaluate."""
    given = parse(arguments)
    config = read_config(given, [])
    if config is None:
        return 0
    settings = on_split(config.settings, given.split)
    if given.votes > 1 and not has_whole_clouds(settings):
        raise ValueError("--votes is for classifiers and segmenters of whole clouds")
    if (given.html or given.rerun) and has_whole_clouds(settings):
        raise ValueError("--html and --rerun show boxes in scenes; a classifier or segmenter has its confusion matrix")
    if given.rerun:
        from pcdet.visual import require_rerun

        require_rerun()
    device = start(given)
    run_folder = output_folder(given, config)
    folder = run_folder / "eval"
    if given.seeds is not None:
        folder = run_folder.with_name(f"{given.extra_tag}_seeds") / split_name(settings) / given.eval_tag
    open_log(given, config, folder)
    evaluator = build(given, settings, device)
    if given.seeds is not None:
        evaluate_seeds(given, evaluator, run_folder, folder, split_name(settings))
        stop()
        return 0
    ckpt_dir = given.ckpt_dir or run_folder / "ckpt"
    if given.infer_time:
        measure(given, evaluator, ckpt_dir)
    if given.eval_all:
        evaluate_all(given, evaluator, ckpt_dir, folder / "eval_all_default" / given.eval_tag, split_name(settings))
    else:
        evaluate_one(given, evaluator, ckpt_dir, folder, split_name(settings))
    stop()
    return 0


def on_split(settings: Any, split: str | None) -> Any:
    """Settings whose test split is another one: its infos are read, and nothing is augmented."""
    if split is None:
        return settings
    settings = copy.deepcopy(settings)
    if has_whole_clouds(settings):
        settings.DATA_CONFIG.EVAL_SPLIT = split
        return settings
    if "INFO_PATH" not in settings.DATA_CONFIG:
        raise ValueError(f"--split: {settings.DATA_CONFIG.DATASET} has no INFO_PATH to choose from; leave it out")
    data = settings.DATA_CONFIG
    known = {data.DATA_SPLIT[mode]: data.INFO_PATH[mode] for mode in ("train", "test")}
    renamed = [name.replace(f"_{data.DATA_SPLIT.test}", f"_{split}") for name in data.INFO_PATH.test]
    data.INFO_PATH.test = known.get(split, renamed)
    data.DATA_SPLIT.test = split
    return settings


def open_log(given: argparse.Namespace, config: "Config", folder: Path) -> None:
    """Begin the log file."""
    from pcdet.utils import distributed as ranks
    from pcdet.utils.logging import setup_logger

    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    logger = setup_logger(folder / f"log_eval_{stamp}.txt", ranks.rank())
    logger.info("**********************Start logging**********************")
    for name, value in vars(given).items():
        logger.info("%-16s %s", name, value)
    for line in config.describe().splitlines():
        logger.info("cfg.%s", line)


def build(given: argparse.Namespace, settings: Any, device: Any) -> "Evaluator":
    """Data set and model, without weights yet unless --pretrained_model gives some."""
    from pcdet.datasets import build_dataset
    from pcdet.models.build import build_model
    from pcdet.train_utils.checkpoint import load_checkpoint
    from pcdet.train_utils.evaluate import Evaluator
    from pcdet.train_utils.settings import Optimization
    from pcdet.train_utils.weights import load_pretrained

    dataset = build_dataset(settings.DATA_CONFIG, settings.CLASS_NAMES, training=False)
    model = build_model(settings.MODEL, dataset.info).to(device)
    if given.pretrained_model:
        file = given.pretrained_model
        load_pretrained(model, load_checkpoint(file), file, partial=given.partial)
    return Evaluator(
        model,
        dataset,
        device,
        batch_size=Optimization.from_settings(settings.OPTIMIZATION).batch_size_per_gpu,
        workers=given.workers,
        save_to_file=given.save_to_file,
        partial=given.partial,
        bar=on_terminal(),
        options={"score_threshold": given.score_thresh, "min_points": given.min_points, **recall_options(settings)},
    )


def chosen_checkpoint(given: argparse.Namespace, ckpt_dir: Path) -> Path | None:
    """--ckpt, else the newest of the folder; ``None`` if the weights of --pretrained_model are meant."""
    from pcdet.train_utils.checkpoint import find_newest

    if given.ckpt is not None:
        return given.ckpt
    if given.pretrained_model is not None:
        return None
    found = find_newest(ckpt_dir)
    if found is None:
        raise FileNotFoundError(f"No checkpoint in {ckpt_dir}. Train one, or name a file with --ckpt")
    return found[0]


def evaluate_seeds(given: argparse.Namespace, evaluator: "Evaluator", run: Path, folder: Path, split: str) -> None:
    """Evaluate the last and the chosen epoch of every seed's run; write what they reached together into ``folder``."""
    from pcdet.utils import distributed as ranks
    from pcdet.utils.logging import get_logger

    found = []
    for seed in range(given.seeds):
        seed_folder = run.with_name(seed_tag(given.extra_tag, seed))
        get_logger().info("Seed %d: %s", seed, seed_folder)
        found.append(evaluate_one(given, evaluator, seed_folder / "ckpt", seed_folder / "eval", split))
    summary = summarise(found)
    if ranks.is_main():
        write_summary(folder / "summary", summary)
    get_logger().info("\n%s\nwritten to %s", table(summary), folder)


def evaluate_one(
    given: argparse.Namespace, evaluator: "Evaluator", ckpt_dir: Path, folder: Path, split: str
) -> dict[str, Metrics]:
    """Evaluate one checkpoint into ``eval/epoch_N/<split>/<eval_tag>``, and the chosen epoch into ``eval/best/...``.

    Returns the metrics of ``last epoch`` and ``chosen epoch``, and of their votes.
    """
    from pcdet.train_utils.checkpoint import BEST, epoch_of
    from pcdet.utils.logging import get_logger

    path = chosen_checkpoint(given, ckpt_dir)
    if path is None:
        folder = folder / "epoch_pretrained" / split / given.eval_tag
        evaluation = evaluator(folder)
        get_logger().info("\n%s", evaluation.report.text)
        return finish(given, evaluator, evaluation, folder, "pretrained")
    place = folder / f"epoch_{epoch_of(path)}" / split / given.eval_tag
    found = finish(given, evaluator, evaluator.checkpoint(path, place), place, "last epoch")
    best = ckpt_dir / BEST
    if given.ckpt is None and best.is_file() and hasattr(evaluator.dataset, "add_votes"):
        get_logger().info("That was the last epoch. Now the one that was chosen on held-out clouds:")
        place = folder / "best" / split / given.eval_tag
        found |= finish(given, evaluator, evaluator.checkpoint(best, place), place, "chosen epoch")
    return found


def finish(
    given: argparse.Namespace, evaluator: "Evaluator", evaluation: "Evaluation", folder: Path, what: str
) -> dict[str, Metrics]:
    """Votes, pictures. Returns the metrics of ``what`` was evaluated, and of the votes beside it."""
    from pcdet.train_utils.voting import evaluate_votes
    from pcdet.utils.logging import get_logger

    found = {what: evaluation.report.metrics}
    if given.votes > 1:
        voted = evaluate_votes(evaluator, given.votes, folder / f"votes_{given.votes}").metrics
        lines = [
            f"{name}: single pass {value:.4f}, {given.votes} votes {voted[name]:.4f}"
            for name, value in evaluation.report.metrics.items()
            if name in voted
        ]
        get_logger().info("Votes beside the single pass:\n%s", "\n".join(lines))
        found[f"{what}, {given.votes} votes"] = voted
    if given.pictures or given.html or given.rerun or hasattr(evaluator.dataset, "confusion"):
        draw(given, evaluator, evaluation, folder)
    if given.analysis:
        analyse(given, evaluator, evaluation, folder)
    return found


def evaluate_all(given: argparse.Namespace, evaluator: "Evaluator", ckpt_dir: Path, folder: Path, split: str) -> None:
    """Evaluate every checkpoint that was not yet, and wait for new ones as long as the options say."""
    from pcdet.train_utils.checkpoint import epoch_files, epoch_of
    from pcdet.train_utils.evaluate import evaluate_files, evaluated_epochs
    from pcdet.utils import distributed as ranks

    deadline = time.monotonic() + 60 * given.max_waiting_mins
    while True:
        done = evaluated_epochs(folder, split)
        files = [f for f in epoch_files(ckpt_dir) if int(epoch_of(f)) >= given.start_epoch and epoch_of(f) not in done]
        files = ranks.gather_objects(files)[0]  # one view of the folder for all ranks
        if files:
            evaluate_files(evaluator, files, folder, split)
            deadline = time.monotonic() + 60 * given.max_waiting_mins
        elif ranks.gather_objects(time.monotonic() >= deadline)[0]:
            return
        else:
            time.sleep(POLL_SECONDS)


def measure(given: argparse.Namespace, evaluator: "Evaluator", ckpt_dir: Path) -> None:
    """Log the time of the forward pass, with the device waited for."""
    from pcdet.train_utils.batches import evaluation_loader
    from pcdet.train_utils.checkpoint import load_checkpoint
    from pcdet.train_utils.evaluate import inference_milliseconds
    from pcdet.utils.logging import get_logger

    path = chosen_checkpoint(given, ckpt_dir)
    if path is not None:
        evaluator.load(load_checkpoint(path), path)
    loader = evaluation_loader(evaluator.dataset, evaluator.batch_size, evaluator.workers, evaluator.device)
    mean = inference_milliseconds(evaluator.model, loader, evaluator.device)
    get_logger().info("Inference: %.2f ms a batch of %d on %s", mean, evaluator.batch_size, evaluator.device)


def draw(given: argparse.Namespace, evaluator: "Evaluator", evaluation: "Evaluation", folder: Path) -> None:
    """Show what was found: the first scenes as --pictures, --html and --rerun say; a classifier's confusion matrix."""
    from _pictures import draw_scene, judged_scenes, show_scenes

    from pcdet.utils import distributed as ranks
    from pcdet.utils.logging import get_logger
    from pcdet.visual import draw_confusion

    dataset, logger, folder = evaluator.dataset, get_logger(), folder / "pictures"
    if not ranks.is_main():
        return
    if hasattr(dataset, "confusion"):
        path = draw_confusion(dataset.confusion(evaluation.results), dataset.class_names, folder / "confusion.png")
        logger.info("the confusion matrix is %s", path)
        return
    scenes = judged_scenes(dataset, evaluation.results[: given.pictures or VIEWED], given.score_thresh)
    drawn = []
    for scene in scenes[: given.pictures]:
        limits = dataset.info.point_cloud_range
        drawn += draw_scene(scene, dataset.class_names, given.score_thresh, folder, limits)
    if drawn:
        logger.info("%d pictures are in %s", len(drawn), folder)
    for line in show_scenes(given, scenes, dataset.class_names):
        logger.info("%s", line)


def analyse(given: argparse.Namespace, evaluator: "Evaluator", evaluation: "Evaluation", folder: Path) -> None:
    """Log the analysis of a detector and write it, with charts, into ``analysis``."""
    from _analysis import write_analysis

    from pcdet.utils import distributed as ranks
    from pcdet.utils.logging import get_logger

    if not hasattr(evaluator.dataset, "analyse"):
        raise ValueError("--analysis is of detectors; a classifier has its confusion matrix")
    if ranks.is_main():
        analysis = evaluator.dataset.analyse(evaluation.results, given.score_thresh)
        write_analysis(analysis, folder / "analysis")
        get_logger().info("%s\nwritten to %s", analysis.text, folder / "analysis")


if __name__ == "__main__":
    run(main)
