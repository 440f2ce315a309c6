"""Saved weights into a model, with a table of what did not fit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from pcdet.utils.logging import get_logger


class LoadReport(NamedTuple):
    """Names of what was loaded and of what was not."""

    loaded: list[str]
    missing: list[str]  # in the model, not in the file
    unexpected: list[str]  # in the file, not in the model
    mismatched: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]  # name -> shape in the file, in the model

    @property
    def is_complete(self) -> bool:
        """Do file and model agree entirely?"""
        return not (self.missing or self.unexpected or self.mismatched)

    def table(self) -> str:
        """One line for each name that was not loaded."""
        rows = [f"  missing in the file     {name}" for name in self.missing]
        rows += [f"  unknown to the model    {name}" for name in self.unexpected]
        rows += [
            f"  other shape             {name}: {theirs} in the file, {ours} in the model"
            for name, (theirs, ours) in self.mismatched.items()
        ]
        return "\n".join(rows)


def model_state_of(checkpoint: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """The weights of a checkpoint, or of a file that holds nothing but weights."""
    state = checkpoint.get("model_state", checkpoint)
    return {name.removeprefix("module."): value for name, value in state.items() if isinstance(value, Tensor)}


def copy_weights(model: nn.Module, state: Mapping[str, Tensor]) -> LoadReport:
    """Load every weight that fits; layers may convert older layouts of their own."""
    mismatched: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    own = model.state_dict()
    try:
        model.load_state_dict(dict(state), strict=False)
    except RuntimeError as error:  # torch has loaded the rest by then and lists the sizes that differ
        message = str(error)
        for name in own.keys() & state.keys():
            if f"size mismatch for {name}:" in message:
                mismatched[name] = (tuple(state[name].shape), tuple(own[name].shape))
        if not mismatched:
            raise
    missing = [name for name in own if name not in state]
    unexpected = [name for name in state if name not in own]
    loaded = [name for name in own if name in state and name not in mismatched]
    return LoadReport(loaded, missing, unexpected, dict(sorted(mismatched.items())))


def load_weights(model: nn.Module, checkpoint: Mapping[str, Any], path: str | Path) -> None:
    """Load all weights of a checkpoint. Raises ``ValueError`` with a table unless file and model agree entirely."""
    report = copy_weights(model, model_state_of(checkpoint))
    if not report.is_complete:
        raise ValueError(
            f"{path} does not fit the model; nothing but a complete fit is taken here.\n{report.table()}\n"
            "Use the configuration it was trained with, or take over what fits with --pretrained_model"
        )
    get_logger().info("==> Done (loaded %d/%d) from %s", len(report.loaded), len(report.loaded), path)


def load_pretrained(model: nn.Module, checkpoint: Mapping[str, Any], path: str | Path) -> LoadReport:
    """Load the weights that fit and list the others. Raises ``ValueError`` if none fits."""
    report = copy_weights(model, model_state_of(checkpoint))
    total = len(report.loaded) + len(report.missing) + len(report.mismatched)
    if not report.loaded:
        raise ValueError(f"{path} holds no weight of this model.\n{report.table()}")
    logger = get_logger()
    state = model.state_dict()
    for name in [*report.missing, *report.mismatched]:
        logger.info("Not updated weight %s: %s", name, tuple(state[name].shape))
    for name in report.unexpected:
        logger.info("Unused weight of the file %s", name)
    logger.info("==> Done (loaded %d/%d) from %s", len(report.loaded), total, path)
    return report
