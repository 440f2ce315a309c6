"""How slots are fed: a slot's signature says which batch keys it reads and which it writes.

The parameters of a slot's ``forward`` are the keys it reads (a default makes one optional), and the fields of the
NamedTuple it returns are the keys it adds. :func:`plan` checks this once, when the model is built; :func:`run` then
feeds every slot. A slot never sees the batch itself, and a key is written once.
"""

import contextlib
import inspect
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pcdet.structures.batch import Batch
from pcdet.structures.dataset_info import DatasetInfo


def batch_keys(info: DatasetInfo) -> tuple[str, ...]:
    """The keys that a batch of such data starts with (``pcdet/structures/batch.py`` explains them)."""
    keys = ("batch_size", "frame_id", "index")
    if info.point_cloud_range is None:
        return (*keys, "point_clouds", *(("categories",) if info.category_names else ()))
    keys += ("points", "gt_boxes", "calib", "image_shape")
    if info.max_points_per_voxel is None:
        return keys
    return (*keys, "voxels", "voxel_coords", "voxel_num_points")


class Step(NamedTuple):
    """One slot of a model, ready to be fed."""

    slot: str  # attribute of the model, such as "backbone_2d"
    reads: tuple[str, ...]


def reads(module: nn.Module) -> dict[str, bool]:
    """The batch keys that a slot reads; the value says whether it cannot do without."""
    return {p.name: p.default is p.empty for p in inspect.signature(module.forward).parameters.values()}


def writes(module: nn.Module) -> tuple[str, ...]:
    """The batch keys that a slot adds. Raises ``TypeError`` where ``forward`` does not declare a NamedTuple."""
    result = typing.get_type_hints(type(module).forward).get("return")
    if not hasattr(result, "_fields"):
        raise TypeError(f"{type(module).__name__}.forward must declare the NamedTuple that it returns, not {result}")
    return result._fields


def plan(slots: Mapping[str, nn.Module], keys: Collection[str]) -> tuple[Step, ...]:
    """The steps that run ``slots`` in their order on a batch which starts with ``keys``.

    Raises ``ValueError`` where a slot reads a key that nobody before it writes, or writes one that exists.
    """
    known = set(keys)
    steps = []
    for slot, module in slots.items():
        who = f"{slot} ({type(module).__name__})"
        wanted = reads(module)
        for key, required in wanted.items():
            if required and key not in known:
                raise ValueError(f"{who} reads '{key}', nobody before it writes it; there are {sorted(known)} by then")
        again = known.intersection(writes(module))
        if again:
            raise ValueError(f"{who} writes {sorted(again)}, which exist already; a key is written once")
        known.update(writes(module))
        steps.append(Step(slot, tuple(key for key in wanted if key in known)))
    return tuple(steps)


class Run(NamedTuple):
    """What came of feeding slots."""

    results: dict[str, Any]  # of each slot, by its name
    values: Batch  # the batch with every key that they added


def run(model: nn.Module, steps: tuple[Step, ...], batch: Batch) -> Run:
    """Feed the slots of ``model`` one after the other. ``batch`` is left alone.

    An optional key that a batch lacks is left to the slot's default. Raises ``KeyError`` for a required one. In mixed
    precision heads get their features in float32 and compute in it, since boxes need more digits than features.
    """
    values = dict(batch)
    results = {}
    for slot, keys in steps:
        given = {key: values[key] for key in keys if key in values}
        if slot.endswith("_head"):
            with full_precision():
                results[slot] = getattr(model, slot)(**{key: _in_full_precision(v) for key, v in given.items()})
        else:
            results[slot] = getattr(model, slot)(**given)
        values.update(results[slot]._asdict())
    return Run(results, values)


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Within it no autocast is at work: for heads, losses, the coding of boxes, geometry."""
    with contextlib.ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _in_full_precision(value: Any) -> Any:
    """Tensors of short floats as float32, all else as it is."""
    is_short = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if is_short else value
