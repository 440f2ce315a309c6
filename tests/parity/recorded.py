"""Recorded tensors are kept as statistics and 64 samples; this compares a tensor with such a record."""

from typing import Any, NamedTuple

import numpy as np

SAMPLES = 64


class Tolerance(NamedTuple):
    """What may differ."""

    rtol: float = 1e-3  # of a sampled value
    atol: float = 1e-4
    total: float = 1e-4  # of the sum and the checksum, relative to the sum of magnitudes
    share: float = 1.0  # part of the samples that must agree
    gradient: float = 3e-2  # of the norm of a parameter's gradient


STRICT = Tolerance()
# A second stage: a tiny shift of a box moves some of its points across a radius, which changes neighbours at once.
SECOND_STAGE = Tolerance(rtol=1e-2, total=1e-3, share=0.95, gradient=0.15)


class Row(NamedTuple):
    """One comparison: the deviation in units of what is tolerated."""

    what: str
    deviation: float  # at most 1 passes
    note: str = ""
    compared: bool = True  # False where the model has nothing to compare the record with

    @property
    def passed(self) -> bool:
        return self.deviation <= 1


def checksum(values: np.ndarray) -> float:
    """A sum that sees the order of the values."""
    place = np.arange(values.size, dtype=np.uint64) * np.uint64(2654435761)
    return float((values * ((place % np.uint64(1 << 32)).astype(np.float64) / 2**32 - 0.5)).sum())


def compare_tensor(what: str, array: Any, record: dict[str, Any], tolerance: Tolerance = STRICT) -> Row:
    """Samples, sum of magnitudes and checksum."""
    array = np.asarray(array)
    if list(array.shape) != record["shape"]:
        return Row(what, float("inf"), f"shape {list(array.shape)}, recorded {record['shape']}")
    if array.size == 0:
        return Row(what, 0.0)
    flat = np.ascontiguousarray(array).reshape(-1).astype(np.float64)
    place = (np.arange(min(SAMPLES, flat.size)) * flat.size) // min(SAMPLES, flat.size)
    wanted = np.asarray(record["values"], dtype=np.float64)
    samples = np.abs(flat[place] - wanted) / (tolerance.atol + tolerance.rtol * np.abs(wanted))
    judged = np.sort(samples)[: max(1, int(np.ceil(len(samples) * tolerance.share)))].max()  # NaN is sorted last
    scale = max(record["abs_sum"], 1e-6) * tolerance.total
    total = abs(np.abs(flat).sum() - record["abs_sum"]) / scale
    order = abs(checksum(flat) - record["checksum"]) / scale
    worst = np.max([judged, total, order])  # unlike max(), it does not lose a NaN
    return Row(what, float(np.nan_to_num(worst, nan=np.inf)), f"{list(array.shape)}")


def compare_number(what: str, value: float, wanted: float, rtol: float) -> Row:
    """A relative comparison; for numbers near 0 an absolute one."""
    return Row(what, abs(value - wanted) / max(abs(wanted) * rtol, 1e-9), f"{value:.6g}, recorded {wanted:.6g}")


def match_detections(found: tuple, wanted: tuple, tolerance: float = 2e-3) -> float:
    """Share of the wanted (boxes, scores, labels) that were found, whatever their order, over the longer list.

    The tolerance grows with numbers above 20: made weights make boxes of kilometres, as exponentials of predictions.
    """
    boxes, scores, labels = (np.asarray(part) for part in found)
    if len(wanted[0]) == 0 or len(boxes) == 0:
        return float(len(wanted[0]) == len(boxes))
    hits = 0
    for box, score, label in zip(*wanted, strict=True):
        apart = np.abs(boxes - box) / np.maximum(1, np.abs(box) / 20)
        distance = apart.max(axis=1) + np.abs(scores - score) + 10.0 * (labels != label)
        hits += distance.min() < tolerance
    return hits / max(len(boxes), len(wanted[0]))
