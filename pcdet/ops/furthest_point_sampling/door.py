"""Furthest point sampling of equally long clouds and of stacked clouds."""

from collections.abc import Sequence

import torch
from torch import Tensor, library

from pcdet.ops.doors import backend, require_columns


def furthest_point_sample(
    points: Tensor,  # (B, N, 3+)
    num_samples: int,
) -> Tensor:
    """Indices of points that are as far from one another as a greedy choice allows. -> (B, S) int64.

    PointNet++, sec. 3.2 (Eldar et al. 1997): the first sample is point 0, each next one the point whose distance to
    the nearest sample so far is largest; squared distances are float32. Of equally distant points the **lowest
    index** wins, on every device (OpenPCDet's CUDA kernel prefers, through its tree reduction, the smallest
    bit-reversed thread number, so exact ties, as on a regular grid, are broken differently there). Once all distinct
    points are taken the distances are 0 and index 0 repeats. Coordinates must be finite. No gradient flows.

    Works under ``torch.compile``. Raises ``ValueError`` for other shapes and for samples of an empty cloud.
    """
    require_columns("points", points, "(B, N, 3+)", 3)
    if num_samples < 0:
        raise ValueError(f"num_samples must not be negative, not {num_samples}")
    if points.shape[1] == 0 and num_samples > 0 and points.shape[0] > 0:
        raise ValueError(f"{num_samples} samples of clouds without points: leave such clouds out")
    return _sample_batch(points[..., :3].detach().float(), num_samples)


def furthest_point_sample_stack(
    points: Tensor,  # (N, 3+) the scenes' points one after another
    counts: Tensor | Sequence[int],  # (B,) points of each scene
    num_samples: Tensor | Sequence[int] | int,  # (B,), or one number for every scene
) -> Tensor:
    """As :func:`furthest_point_sample` for scenes of different sizes. -> (sum of the samples,) int64.

    The samples of each scene follow one another. The indices are **global**: they refer to rows of ``points``, as in
    OpenPCDet's stacked kernel. A scene may ask for 0 samples, and must where it has no points.

    Raises ``ValueError`` for other shapes, counts that do not add up, and samples of a scene without points.
    """
    require_columns("points", points, "(N, 3+)", 3)
    if isinstance(counts, Tensor) and isinstance(num_samples, Tensor) and counts.shape == num_samples.shape:
        counts, num_samples = torch.stack([counts, num_samples]).tolist()  # together: a GPU is waited for once
    counts = _integers(counts)
    samples = [num_samples] * len(counts) if isinstance(num_samples, int) else _integers(num_samples)
    if len(samples) != len(counts) or min([*counts, *samples], default=0) < 0 or sum(counts) != len(points):
        raise ValueError(
            f"counts {counts} must add up to the {len(points)} points, with as many num_samples ({samples})"
        )
    for scene, (count, wanted) in enumerate(zip(counts, samples, strict=True)):
        if count == 0 and wanted > 0:
            raise ValueError(f"scene {scene} has no points, but {wanted} samples are asked of it")
    return _sample_stack(points[:, :3].detach().float(), counts, samples)


def _integers(values: Tensor | Sequence[int]) -> list[int]:
    return values.tolist() if isinstance(values, Tensor) else list(values)


@library.custom_op("pcdet::furthest_point_sample", mutates_args=())
def _sample_batch(points: Tensor, num_samples: int) -> Tensor:
    return backend("furthest_point_sampling", points.device.type).sample_batch(points, num_samples)


@_sample_batch.register_fake
def _(points: Tensor, num_samples: int) -> Tensor:
    return points.new_empty(points.shape[0], num_samples, dtype=torch.int64)


@library.custom_op("pcdet::furthest_point_sample_stack", mutates_args=())
def _sample_stack(points: Tensor, counts: Sequence[int], samples: Sequence[int]) -> Tensor:
    return backend("furthest_point_sampling", points.device.type).sample_stack(points, counts, samples)


@_sample_stack.register_fake
def _(points: Tensor, counts: Sequence[int], samples: Sequence[int]) -> Tensor:
    return points.new_empty(sum(samples), dtype=torch.int64)
