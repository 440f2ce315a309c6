"""PointNet++ with multi-scale grouping (Qi et al. 2017), as in PointRCNN (Shi et al. 2019, sec. 3.1)."""

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from pcdet.layers.msg_set_abstraction import FeaturePropagation, MSGSetAbstraction
from pcdet.models.registry import BACKBONES_3D
from pcdet.structures.dataset_info import DatasetInfo


class _MultiScaleConfig(TypedDict):
    NPOINTS: list[int]  # centres
    RADIUS: list[list[float]]  # metres, a scale each
    NSAMPLE: list[list[int]]  # neighbours of a centre
    MLPS: list[list[list[int]]]


class MultiScaleConfig(_MultiScaleConfig, total=False):
    """The block SA_CONFIG: one entry a level, with one entry a scale inside."""

    USE_XYZ: bool  # whether a neighbour's offset is a feature (true)


class PointBackboneFeatures(NamedTuple):
    """What a point backbone adds to the batch."""

    point_features: Tensor  # (N, C)
    point_coords: Tensor  # (N, 4) scene, x, y, z


@BACKBONES_3D.register
class PointNet2MSG(nn.Module):
    """Levels of set abstraction with fewer and fewer points, then the features carried back to all of them.

    The first level reads the point channels beyond x y z. All scenes have the same number of points, as the data
    processor ``sample_points`` sees to; one without any has no features. Raises ``ValueError`` where they differ, and
    where the lists of SA_CONFIG and FP_MLPS do not fit together.
    """

    def __init__(self, info: DatasetInfo, channels: dict[str, int], *, sa_config: MultiScaleConfig, fp_mlps: list[list[int]]):
        super().__init__()
        require_levels(sa_config, fp_mlps)
        width = channels["points"] - 3
        self.SA_modules = nn.ModuleList()
        for level in zip(*(sa_config[key] for key in LEVEL_KEYS), strict=True):
            self.SA_modules.append(MSGSetAbstraction(width, *level, use_xyz=sa_config.get("USE_XYZ", True)))
            width = self.SA_modules[-1].out_channels
        widths = [channels["points"] - 3, *(level.out_channels for level in self.SA_modules)]
        self.FP_modules = propagation_levels(widths, fp_mlps)
        self.out_channels = {"point_features": fp_mlps[0][-1]}

    def forward(
        self,
        points: Tensor,  # (N, 1 + 3 + C) scene, x, y, z, ...
        batch_size: int,
    ) -> PointBackboneFeatures:
        counts = torch.bincount(points[:, 0].long(), minlength=batch_size)  # (B,)
        clouds = _equal_clouds(points[:, 1:], counts)  # (F, n, 3 + C) of the scenes that have points
        cloud, values = clouds[..., :3].contiguous(), clouds[..., 3:] if clouds.shape[-1] > 3 else None
        xyz, features = [cloud], [values]
        for level in self.SA_modules:
            cloud, values = level(cloud, values)  # (F, S, 3), (F, S, C)
            xyz.append(cloud)
            features.append(values)
        rows = propagate(
            self.FP_modules,
            [cloud.flatten(0, 1) for cloud in xyz],
            [counts.new_full((len(cloud),), cloud.shape[1]) for cloud in xyz],
            [None if values is None else values.flatten(0, 1) for values in features],
        )
        return PointBackboneFeatures(rows, points[:, :4].contiguous())


LEVEL_KEYS = ("NPOINTS", "RADIUS", "NSAMPLE", "MLPS")


def require_levels(config: MultiScaleConfig, fp_mlps: list[list[int]]) -> None:
    """Raise ``ValueError`` unless SA_CONFIG and FP_MLPS describe the same levels, and each level's lists its scales."""
    levels = {key: len(config[key]) for key in LEVEL_KEYS} | {"FP_MLPS": len(fp_mlps)}
    if len(set(levels.values())) != 1:
        raise ValueError(f"SA_CONFIG's lists and FP_MLPS need one entry a level, but have {levels} entries")
    for i, scales in enumerate(zip(*(config[key] for key in LEVEL_KEYS[1:]), strict=True)):
        if len({len(part) for part in scales}) != 1:
            raise ValueError(f"SA_CONFIG: RADIUS, NSAMPLE and MLPS of level {i} need one entry a scale each: {scales}")


def propagation_levels(widths: Sequence[int], fp_mlps: Sequence[Sequence[int]]) -> nn.ModuleList:
    """A :class:`FeaturePropagation` a level; ``widths`` are the channels of the points and of each level's centres."""
    known = [*(mlp[-1] for mlp in fp_mlps[1:]), widths[-1]]
    return nn.ModuleList(map(FeaturePropagation, known, widths, fp_mlps))


def propagate(
    levels: nn.ModuleList,
    xyz: Sequence[Tensor],  # (N, 3) of each level, the points first
    counts: Sequence[Tensor],  # (B,) of each level
    features: Sequence[Tensor | None],  # (N, C) of each level
) -> Tensor:
    """Carry the features of the last level back to the points. (N, C)"""
    rows = features[-1]
    for i in reversed(range(len(levels))):
        rows = levels[i](xyz[i], counts[i], features[i], xyz[i + 1], counts[i + 1], rows)
    return rows


def _equal_clouds(
    rows: Tensor,  # (N, C)
    counts: Tensor,  # (B,)
) -> Tensor:
    """(F, n, C), F being the scenes that have points. Raises ``ValueError`` where these differ in size."""
    sizes = counts[counts > 0].tolist()
    if len(set(sizes)) > 1:
        raise ValueError(
            f"PointNet2MSG needs equally many points in every scene, but these have {counts.tolist()}: give "
            "DATA_PROCESSOR a 'sample_points'"
        )
    return rows.reshape(len(sizes), sizes[0] if sizes else 0, rows.shape[1])
