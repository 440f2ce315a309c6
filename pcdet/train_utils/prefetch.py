"""Batches reach a GPU while it computes the step before."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from pcdet.structures.batch import Batch, to_device


def on_device(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """The batches on ``device``. On a GPU the next one is copied meanwhile, in a stream of its own."""
    if device.type != "cuda":
        return (to_device(batch, device) for batch in batches)
    stream = torch.cuda.Stream(device)

    def copy(batch: Batch) -> tuple[Batch, Any]:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            moved = to_device(batch, device)  # from pinned memory, so that it returns at once
            return moved, stream.record_event()

    return (_when_copied(moved, copied) for moved, copied in ahead(batches, copy))


def _when_copied(batch: Batch, copied: Any) -> Batch:
    """Let the computing stream wait for the copy, and keep the memory from the copying stream until it is used up."""
    computing = torch.cuda.current_stream()
    computing.wait_event(copied)
    for value in batch.values():
        if isinstance(value, Tensor):
            value.record_stream(computing)
    return batch


def ahead(items: Iterable[Any], prepare: Callable[[Any], Any]) -> Iterator[Any]:
    """``prepare(item)`` for each item, done by a thread that is one item ahead. An error is raised where it belongs."""
    iterator = iter(items)

    def take() -> tuple[Any, bool]:
        try:
            item = next(iterator)
        except StopIteration:
            return None, False
        return prepare(item), True

    with ThreadPoolExecutor(1, thread_name_prefix="prefetch") as pool:
        coming = pool.submit(take)
        while True:
            item, exists = coming.result()
            if not exists:
                return
            coming = pool.submit(take)
            yield item
