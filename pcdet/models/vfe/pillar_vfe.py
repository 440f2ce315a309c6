"""Features of pillars (Lang et al., "PointPillars: Fast Encoders for Object Detection from Point Clouds", sec. 2.1)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pcdet.layers.weighted_norm import normalise_rows
from pcdet.models.registry import VFES
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.utils.constants import constant


class PillarFeatures(NamedTuple):
    """What the encoder adds to the batch."""

    pillar_features: Tensor  # (V, C)


class PillarRows(NamedTuple):
    """The rows that differ: of the equal rows that pad a pillar to P points, the first stands for all.

    Pillars are mostly padding, so that this is several times less work than all V * P rows.
    """

    points: Tensor  # (R, C) pillar by pillar
    pillar: Tensor  # (R,) int64
    weight: Tensor  # (R,) int64; how many rows each stands for, V * P in all
    per_pillar: Tensor  # (V,) int64; rows of each pillar, at least 1


def distinct_rows(voxels: Tensor, voxel_num_points: Tensor) -> PillarRows:
    """(V, P, C) zero-padded points, (V,) -> :class:`PillarRows`."""
    size = voxels.shape[1]
    count = voxel_num_points.long().unsqueeze(1)  # (V, 1)
    place = torch.arange(size, device=voxels.device)  # (P,)
    keep = place <= count  # (V, P) the points, and one row of padding where there is any
    weight = torch.where(place == count, size - count, 1)  # (V, P)
    return PillarRows(voxels[keep], keep.nonzero()[:, 0], weight[keep], keep.sum(1))


class PillarFeatureLayer(nn.Module):
    """The simplified PointNet of a pillar: linear, batch norm, ReLU, and the maximum over the points.

    Any layer but the last appends the maximum to every point's own features, which therefore get half the channels.
    """

    def __init__(self, in_channels: int, out_channels: int, use_norm: bool, last: bool):
        super().__init__()
        self.last = last
        width = out_channels if last else out_channels // 2
        self.linear = nn.Linear(in_channels, width, bias=not use_norm)
        self.norm = nn.BatchNorm1d(width, eps=1e-3, momentum=0.01) if use_norm else None

    def forward(self, rows: PillarRows) -> Tensor:
        """(R, C) points -> (V, C') for the last layer, else (R, C')."""
        x = self.linear(rows.points)  # (R, C')
        if self.norm is not None:
            x = normalise_rows(x, rows.weight, self.norm)
        x = F.relu(x)
        highest = torch.segment_reduce(x.float(), "max", lengths=rows.per_pillar, unsafe=True)  # (V, C')
        if self.last:
            return highest
        return torch.cat([x, highest[rows.pillar]], dim=1)


@VFES.register
class PillarVFE(nn.Module):
    """A pillar's feature from its points and their offsets to the points' mean and to the pillar's centre.

    The rows that pad a pillar to P points go through the layers as zeros, as in the published code: they count in the
    statistics of the batch norm and in the maximum. ``use_abslote_xyz`` (sic) keeps the coordinates themselves beside
    the offsets, ``with_distance`` adds the distance from the sensor, ``num_filters`` are the widths of the layers.
    """

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        num_filters: Sequence[int],
        use_norm: bool = True,
        with_distance: bool = False,
        use_abslote_xyz: bool = True,
    ):
        super().__init__()
        if not num_filters:
            raise ValueError("PillarVFE: NUM_FILTERS is empty; it needs the width of at least one layer")
        self.with_distance = with_distance
        self.use_absolute_xyz = use_abslote_xyz
        size, minimum = info.voxel_size, info.point_cloud_range[:3]
        self.voxel_size = tuple(size)
        self.first_centre = tuple(s / 2 + m for s, m in zip(size, minimum, strict=True))

        width = channels["voxels"] + (6 if use_abslote_xyz else 3) + int(with_distance)
        widths = [width, *num_filters]
        last = len(num_filters) - 1
        self.pfn_layers = nn.ModuleList(
            PillarFeatureLayer(widths[i], widths[i + 1], use_norm, last=i == last) for i in range(len(num_filters))
        )
        self.out_channels = {"pillar_features": num_filters[-1]}

    def forward(
        self,
        voxels: Tensor,  # (V, P, C) zero-padded
        voxel_num_points: Tensor,  # (V,)
        voxel_coords: Tensor,  # (V, 4) scene, z, y, x
    ) -> PillarFeatures:
        mean = voxels[:, :, :3].sum(dim=1) / voxel_num_points.clamp(min=1).unsqueeze(1)  # (V, 3)
        cells = voxel_coords[:, 1:].flip(1).to(voxels.dtype)  # (V, 3) x, y, z
        centre = cells * constant(self.voxel_size, voxels) + constant(self.first_centre, voxels)  # (V, 3)
        rows = distinct_rows(voxels, voxel_num_points)
        place = rows.weight.cumsum(0) - rows.weight  # (R,) of the row among all V * P
        real = place % voxels.shape[1] < voxel_num_points[rows.pillar]  # (R,)
        x = self._decorate(rows.points, mean[rows.pillar], centre[rows.pillar]) * real.unsqueeze(1)  # (R, C')
        for layer in self.pfn_layers:
            x = layer(rows._replace(points=x))
        return PillarFeatures(x)

    def _decorate(self, points: Tensor, mean: Tensor, centre: Tensor) -> Tensor:
        """The points (R, C) with their offsets (sec. 2.1: x_c y_c z_c to the mean, x_p y_p to the centre; and z_p)."""
        xyz = points[:, :3]
        parts = [points if self.use_absolute_xyz else points[:, 3:], xyz - mean, xyz - centre]
        if self.with_distance:
            parts.append(xyz.norm(dim=1, keepdim=True))
        return torch.cat(parts, dim=1)
