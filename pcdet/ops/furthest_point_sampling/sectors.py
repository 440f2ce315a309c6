"""Furthest point sampling by sectors of the circle around the sensor, which run in parallel."""

import math

import torch
from torch import Tensor

from pcdet.ops.doors import require_columns
from pcdet.ops.furthest_point_sampling.door import furthest_point_sample_stack


def sector_furthest_point_sample(
    points: Tensor,  # (N, 3+) one scene, the sensor at x = y = 0
    num_samples: int,
    num_sectors: int,
) -> Tensor:
    """Furthest points of each sector, in proportion to its points. -> (S,) int64.

    PV-RCNN++ (Shi et al. 2022, sec. 4.1). Sector k holds the azimuths from ``k * 2 pi / num_sectors - pi`` on; the
    sectors' samples follow one another. A sector with n of the N points gives ``ceil(n / N * num_samples)`` samples,
    but at most n, so that S is a little more than ``num_samples``, as in OpenPCDet. As there, a point exactly on the
    negative x axis (azimuth pi) belongs to no sector; where no other exists, all points are sampled as one sector.
    An empty cloud gives no samples. No gradient flows.

    Raises ``ValueError`` for another shape, negative samples and no sectors.
    """
    require_columns("points", points, "(N, 3+)", 3)
    if num_samples < 0 or num_sectors < 1:
        raise ValueError(f"num_samples ({num_samples}) must not be negative, num_sectors ({num_sectors}) at least 1")
    if len(points) == 0:
        return torch.zeros(0, dtype=torch.int64, device=points.device)
    sector = _sectors(points[:, :2].detach().float(), num_sectors)
    every = torch.arange(num_sectors, device=points.device)
    counts = (sector[:, None] == every).sum(dim=0).tolist()  # on a GPU bincount would wait once more
    if sum(counts) == 0:
        return furthest_point_sample_stack(points, [len(points)], num_samples)
    samples = [min(n, math.ceil(n / len(points) * num_samples)) for n in counts]
    order = sector.argsort(stable=True)[: sum(counts)]
    return order[furthest_point_sample_stack(points[order], counts, samples)]


def _sectors(xy: Tensor, num_sectors: int) -> Tensor:
    """Sector of each point, ``num_sectors`` where the azimuth is pi."""
    azimuth = torch.atan2(xy[:, 1], xy[:, 0]) + math.pi
    return (azimuth / (2 * math.pi / num_sectors)).floor().clamp(0, num_sectors).long()
