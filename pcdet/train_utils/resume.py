"""Where a checkpoint stands in a run, and what has changed since it was written."""

import difflib
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pcdet.train_utils.batches import BatchPlan
from pcdet.utils.logging import get_logger
from pcdet.version import __version__


@dataclass
class Place:
    """Where a run stands."""

    epoch: int = 0  # finished epochs
    step: int = 0  # optimiser steps tried in the unfinished epoch
    it: int = 0  # optimiser steps taken: the schedule's argument
    skipped: int = 0  # steps that overflowed in float16 and were not taken
    non_finite: int = 0  # steps that were not taken because of a number that is not finite
    non_finite_in_row: int = 0


# Fields of a place -> keys of a checkpoint.
PLACE_KEYS = {
    "epoch": "epoch",
    "step": "step",
    "it": "it",
    "skipped": "skipped_steps",
    "non_finite": "non_finite_steps",
    "non_finite_in_row": "non_finite_in_row",
}


def sampler_state(plan: BatchPlan, place: Place) -> dict[str, int]:
    """The place in the order of scenes, in a form that does not depend on how steps are divided."""
    return {
        "scenes": plan.length,
        "seen": plan.seen(place.epoch, place.step),
        "batch_size": plan.batch_size,
        "accumulation_steps": plan.accumulation_steps,
        "world_size": plan.world,
    }


def library_versions() -> dict[str, str]:
    """What computes the numbers of a run."""
    return {
        "pcdet": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "cuda": str(torch.version.cuda),
    }


def place_of(checkpoint: Mapping[str, Any], plan: BatchPlan) -> Place:
    """The place from which a run with ``plan`` continues; the plan is set to go on from there.

    With the batches of before, this is the very next step. With other ones (another number of processes, another batch
    size) the run goes on behind the scenes that were seen, and the schedule at the same fraction of its length. With
    another data set the unfinished epoch begins anew. A checkpoint of OpenPCDet, which does not tell, is taken at its
    word.
    """
    place = Place(**{field: int(checkpoint.get(key, 0)) for field, key in PLACE_KEYS.items()})
    sampler = checkpoint.get("sampler")
    if sampler is None:
        return place
    logger = get_logger()
    if sampler["scenes"] != plan.length:
        logger.warning(
            "The training set had %d scenes and has %d now: epoch %d begins anew",
            sampler["scenes"], plan.length, place.epoch + 1,
        )  # fmt: skip
        place.step = 0
    else:
        place.step = plan.continue_from(place.epoch, sampler["seen"])
    before = checkpoint["steps_per_epoch"]
    if before != plan.steps_per_epoch:
        place.it = round(place.it * plan.steps_per_epoch / before)
        logger.warning(
            "An epoch had %d steps when the checkpoint was written and has %d now: %d of its %d scenes were seen, so "
            "that step %d is the next; the schedule goes on at step %d instead of %d",
            before, plan.steps_per_epoch, plan.seen(place.epoch, place.step), plan.length,
            place.step + 1, place.it, checkpoint["it"],
        )  # fmt: skip
    return place


def announce_changes(checkpoint: Mapping[str, Any], now: Mapping[str, Any], lr: float) -> None:
    """Tell where the run continues, and warn of whatever makes it differ from one that never stopped."""
    logger = get_logger()
    logger.info("Resuming after %d epochs and %d steps of the next", now["epoch"], now["step"])
    _announce_batches(checkpoint.get("sampler", {}), now["sampler"])
    if checkpoint.get("total_steps", now["total_steps"]) != now["total_steps"]:
        old = checkpoint["optimizer_state"]["param_groups"][0]["lr"]
        logger.warning(
            "The run's length changed from %d to %d steps; the learning rate goes from %.4g to %.4g at this point",
            checkpoint["total_steps"], now["total_steps"], old, lr,
        )  # fmt: skip
    if checkpoint.get("seed", now["seed"]) != now["seed"]:
        logger.warning("The seed changed from %d to %d: scenes come in another order", checkpoint["seed"], now["seed"])
    versions = checkpoint.get("versions", now["versions"])
    for name, version in now["versions"].items():
        if versions.get(name) != version:
            logger.warning("%s was %s when the checkpoint was written and is %s now", name, versions.get(name), version)
    changes = config_changes(checkpoint.get("config", ""), now["config"])
    if changes:
        logger.warning("The configuration changed since the checkpoint was written:\n%s", "\n".join(changes))


def _announce_batches(before: Mapping[str, int], now: Mapping[str, int]) -> None:
    """Warn of another number of processes or another batch size."""
    words = {"world_size": "processes", "batch_size": "scenes a micro-batch", "accumulation_steps": "micro-batches"}
    for key, what in words.items():
        if before.get(key, now[key]) != now[key]:
            get_logger().warning("%s: %d when the checkpoint was written, %d now", what, before[key], now[key])


def config_changes(before: str, now: str) -> list[str]:
    """Lines that were removed (-) and added (+) between two resolved configurations."""
    if not before or not now:
        return []
    lines = difflib.unified_diff(before.splitlines(), now.splitlines(), lineterm="", n=0)
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
