"""Where a checkpoint stands in a run, and what has changed since it was written."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pcdet.utils.logging import get_logger


@dataclass
class Place:
    """Where a run stands."""

    epoch: int = 0  # finished epochs
    step: int = 0  # optimiser steps tried in the unfinished epoch
    it: int = 0  # optimiser steps taken: the schedule's argument
    skipped: int = 0  # steps that overflowed in float16 and were not taken


def place_of(checkpoint: Mapping[str, Any], steps_per_epoch: int) -> Place:
    """The place from which a run with ``steps_per_epoch`` continues.

    Where an epoch had another number of steps (another batch size or data set), the unfinished epoch begins anew and
    steps are counted as if all finished epochs had had the present number. A checkpoint of OpenPCDet, which does not
    tell, is taken at its word.
    """
    epoch, it = int(checkpoint["epoch"]), int(checkpoint["it"])
    before = checkpoint.get("steps_per_epoch")
    skipped = int(checkpoint.get("skipped_steps", 0))
    if before is None or before == steps_per_epoch:
        return Place(epoch, int(checkpoint.get("step", 0)), it, skipped)
    get_logger().warning(
        "An epoch had %d steps when the checkpoint was written and has %d now: continuing at the beginning of epoch %d",
        before, steps_per_epoch, epoch + 1,
    )  # fmt: skip
    return Place(epoch, 0, epoch * steps_per_epoch, skipped)


def announce_changes(checkpoint: Mapping[str, Any], now: Mapping[str, Any], lr: float) -> None:
    """Tell where the run continues, and warn of whatever makes it differ from one that never stopped."""
    logger = get_logger()
    logger.info("Resuming after %d epochs and %d steps of the next", now["epoch"], now["step"])
    if checkpoint.get("total_steps", now["total_steps"]) != now["total_steps"]:
        old = checkpoint["optimizer_state"]["param_groups"][0]["lr"]
        logger.warning(
            "The run's length changed from %d to %d steps; the learning rate goes from %.4g to %.4g at this point",
            checkpoint["total_steps"], now["total_steps"], old, lr,
        )  # fmt: skip
    if checkpoint.get("seed", now["seed"]) != now["seed"]:
        logger.warning("The seed changed from %d to %d: scenes come in another order", checkpoint["seed"], now["seed"])
    changes = config_changes(checkpoint.get("config", ""), now["config"])
    if changes:
        logger.warning("The configuration changed since the checkpoint was written:\n%s", "\n".join(changes))


def config_changes(before: str, now: str) -> list[str]:
    """Lines that were removed (-) and added (+) between two resolved configurations."""
    if not before or not now:
        return []
    lines = difflib.unified_diff(before.splitlines(), now.splitlines(), lineterm="", n=0)
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
