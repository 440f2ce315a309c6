"""Choosing the few points whose surroundings are described (PV-RCNN, sec. 3.2; PV-RCNN++, sec. 4.1)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pcdet.ops.furthest_point_sampling import furthest_point_sample_stack, sector_furthest_point_sample

PAIRS_AT_ONCE = 1 << 24  # bounds the memory of the distances
FAR = 1e6  # metres; nothing is near to it


def furthest_keypoints(points: Tensor, counts: Sequence[int], num_keypoints: int) -> list[Tensor]:
    """Rows of ``points`` (N, 3), ``num_keypoints`` of every scene, by furthest point sampling. -> B times (K,) int64

    A scene with fewer points repeats them all until the number is reached; one without points has no keypoints.
    """
    wanted = [min(count, num_keypoints) for count in counts]
    chosen = furthest_point_sample_stack(points, counts, wanted).split(wanted)
    return [rows.repeat(-(-num_keypoints // max(len(rows), 1)))[:num_keypoints] for rows in chosen]


def proposal_centric_keypoints(
    points: Tensor,  # (N, 3) scene after scene
    counts: Sequence[int],
    rois: Tensor,  # (B, R, 7+)
    *,
    num_keypoints: int,
    num_sectors: int,
    radius: float,
) -> list[Tensor]:
    """Rows of ``points`` near proposals, by furthest point sampling in sectors around the sensor. -> B times (K,)

    K differs: every sector rounds its share up, and few points may be near. Where none is, the scene's first point
    is the only keypoint.
    """
    chosen, start = [], 0
    for scene, boxes in zip(points.split(list(counts)), rois, strict=True):
        rows = near_proposals(scene, boxes, radius).nonzero()[:, 0]
        if len(rows) == 0:
            rows = torch.arange(min(len(scene), 1), device=points.device)
        picked = sector_furthest_point_sample(scene[rows], num_keypoints, num_sectors)
        chosen.append(rows[picked] + start)
        start += len(scene)
    return chosen


def near_proposals(
    points: Tensor,  # (N, 3)
    rois: Tensor,  # (R, 7+)
    margin: float,
) -> Tensor:
    """Is a point at most half the diagonal of the nearest proposal (by its centre) plus ``margin`` metres from it?

    -> (N,) bool. Rows of zeros, which pad a scene to the largest of its batch, are no proposals: what is near then does
    not depend on the other scenes. (In OpenPCDet they are boxes at the sensor.)
    """
    if len(rois) == 0:
        return torch.zeros(len(points), dtype=torch.bool, device=points.device)
    rois = rois.detach().float()
    real = (rois[:, 3:6] != 0).any(dim=1)  # (R,)
    reach = torch.where(real, rois[:, 3:6].norm(dim=1) / 2 + margin, 0)  # (R,)
    centres = torch.where(real.unsqueeze(1), rois[:, :3], FAR)  # (R, 3)
    step = max(1, PAIRS_AT_ONCE // len(rois))
    near = []
    for some in points.float().split(step):
        distance = torch.cdist(some, centres, compute_mode="donot_use_mm_for_euclid_dist")  # (n, R)
        least, box = distance.min(dim=1)
        near.append(least < reach[box])
    return torch.cat(near)
