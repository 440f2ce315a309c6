"""Saved weights into a model, with a table of what did not fit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from pcdet.layers.sparse.modules import SparseConvolution
from pcdet.utils.logging import get_logger

WRAPPERS = ("module.", "_orig_mod.")  # of DataParallel and of torch.compile, before every name


class LoadReport(NamedTuple):
    """Names of what fits a model and of what does not."""

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


class Layouts(NamedTuple):
    """The sparse kernels of a file by layout."""

    spconv1: list[str]  # (kz, ky, kx, in, out)
    spconv2: list[str]  # (out, kz, ky, kx, in), as ours
    unsure: list[str]  # all sizes are equal


def model_state_of(checkpoint: Mapping[str, Any], path: str | Path = "the checkpoint") -> dict[str, Tensor]:
    """The weights of a checkpoint, or of a file that holds nothing but weights, without a wrapper's prefix.

    Raises ``ValueError`` naming ``path`` where there are none.
    """
    found = checkpoint.get("model_state", checkpoint)
    state = {name: value for name, value in (found or {}).items() if isinstance(value, Tensor)}
    if not state:
        raise ValueError(f"{path} holds no weights: its keys are {', '.join(map(str, checkpoint)) or 'none'}")
    for prefix in WRAPPERS:
        if all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def sparse_layouts(model: nn.Module, state: Mapping[str, Tensor]) -> Layouts:
    """Which of a file's sparse kernels, 3-D or 2-D, have which layout, by their shapes."""
    found = Layouts([], [], [])
    for prefix, module in model.named_modules():
        name = f"{prefix}.weight"
        if not isinstance(module, SparseConvolution) or name not in state:
            continue
        theirs, ours = tuple(state[name].shape), tuple(module.weight.shape)
        is_old, is_new = theirs == (*ours[1:], ours[0]), theirs == ours
        if is_old or is_new:
            (found.unsure if is_old and is_new else found.spconv1 if is_old else found.spconv2).append(name)
    return found


def in_our_layout(model: nn.Module, state: Mapping[str, Tensor], path: str | Path) -> dict[str, Tensor]:
    """The weights with spconv 1's kernels turned into spconv 2's layout, which is ours.

    A kernel whose sizes are all equal has the layout of the file's other kernels; where these do not tell, it is taken
    as spconv 2's. Both is logged.
    """
    layouts, logger = sparse_layouts(model, state), get_logger()
    turned = list(layouts.spconv1)
    if layouts.unsure:
        names = ", ".join(layouts.unsure)
        if bool(layouts.spconv1) != bool(layouts.spconv2):
            version = 1 if layouts.spconv1 else 2
            turned += layouts.unsure if version == 1 else []
            logger.info(
                "%s: %s may have either layout; taken as spconv %d's, as all other kernels", path, names, version
            )
        else:
            logger.warning("%s: nothing tells whether %s has spconv 1's or 2's layout; taken as 2's", path, names)
    if turned:
        logger.info("%s: %d sparse kernels are turned from spconv 1's layout into spconv 2's", path, len(turned))
    return {**state, **{name: state[name].permute(-1, *range(state[name].ndim - 1)).contiguous() for name in turned}}


def compare_weights(model: nn.Module, state: Mapping[str, Tensor]) -> LoadReport:
    """Which weights fit the model; nothing is loaded."""
    own = model.state_dict()
    both = [name for name in own if name in state]
    mismatched = {
        name: (tuple(state[name].shape), tuple(own[name].shape))
        for name in both
        if state[name].shape != own[name].shape
    }
    return LoadReport(
        loaded=[name for name in both if name not in mismatched],
        missing=[name for name in own if name not in state],
        unexpected=[name for name in state if name not in own],
        mismatched=mismatched,
    )


def fitting_state(
    model: nn.Module, checkpoint: Mapping[str, Any], path: str | Path
) -> tuple[dict[str, Tensor], LoadReport]:
    """All weights of a checkpoint in our layout, and which of them fit."""
    state = in_our_layout(model, model_state_of(checkpoint, path), path)
    return state, compare_weights(model, state)


def load_weights(model: nn.Module, checkpoint: Mapping[str, Any], path: str | Path) -> None:
    """Load all weights of a checkpoint, ours or OpenPCDet's, with sparse kernels as spconv 1 or 2 stores them.

    Raises ``ValueError`` with a table unless file and model agree entirely; the model is left as it was then.
    """
    state, report = fitting_state(model, checkpoint, path)
    if not report.is_complete:
        raise ValueError(
            f"{path} does not fit the model; nothing but a complete fit is taken here.\n{report.table()}\n"
            "Use the configuration it was trained with, or take over what fits: with --pretrained_model, or in "
            "tools/test.py with --partial"
        )
    model.load_state_dict(state)
    get_logger().info("==> Done (loaded %d/%d) from %s", len(report.loaded), len(report.loaded), path)


def load_pretrained(
    model: nn.Module, checkpoint: Mapping[str, Any], path: str | Path, *, partial: bool = False
) -> LoadReport:
    """Load the weights that both file and model have, and list the others.

    Raises ``ValueError`` with a table where shapes differ, unless ``partial`` passes over them, and where no weight
    fits.
    """
    state, report = fitting_state(model, checkpoint, path)
    if not report.loaded:
        raise ValueError(f"{path} holds no weight of this model.\n{report.table()}")
    if report.mismatched and not partial:
        raise ValueError(
            f"{path} has weights of other shapes than the model.\n{report.table()}\n"
            "To leave them as they are initialised and take over the rest, add --partial"
        )
    model.load_state_dict({name: state[name] for name in report.loaded}, strict=False)
    logger, own = get_logger(), model.state_dict()
    for name in [*report.missing, *report.mismatched]:
        logger.info("Not updated weight %s: %s", name, tuple(own[name].shape))
    if not report.is_complete:
        logger.warning("%s and the model do not agree entirely:\n%s", path, report.table())
    logger.info("==> Done (loaded %d/%d) from %s", len(report.loaded), len(own), path)
    return report
