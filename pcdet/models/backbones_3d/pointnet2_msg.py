"""PointNet++ with multi-scale grouping (Qi et al. 2017), as in PointRCNN (Shi et al. 2019, sec. 3.1)."""

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

from torch import Tensor, nn

from pcdet.layers.msg_set_abstraction import FeaturePropagation, MSGSetAbstraction
from pcdet.models.registry import BACKBONES_3D
from pcdet.structures.batch import scene_counts
from pcdet.structures.dataset_info import DatasetInfo

LEVEL_KEYS = ("NPOINTS", "RADIUS", "NSAMPLE", "MLPS")


class _ScaleLists(TypedDict):
    NPOINTS: list[int]  # centres
    RADIUS: list[list[float]]  # metres, a scale each
    NSAMPLE: list[list[int]]  # neighbours of a centre
    MLPS: list[list[list[int]]]


class SceneScaleConfig(_ScaleLists, total=False):
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
    processor ``sample_points`` sees to; a scene may also have none. Raises ``ValueError`` where they differ, and where
    the lists of SA_CONFIG and FP_MLPS do not fit together.
    """

    def __init__(
        self, info: DatasetInfo, channels: dict[str, int], *, sa_config: SceneScaleConfig, fp_mlps: list[list[int]]
    ):
        super().__init__()
        require_levels(sa_config, fp_mlps)
        self.npoints = sa_config["NPOINTS"]
        width = channels["points"] - 3
        widths = [width]
        self.SA_modules = nn.ModuleList()
        for scales in zip(*(sa_config[key] for key in LEVEL_KEYS[1:]), strict=True):
            self.SA_modules.append(MSGSetAbstraction(widths[-1], *scales, use_xyz=sa_config.get("USE_XYZ", True)))
            widths.append(self.SA_modules[-1].out_channels)
        self.FP_modules = propagation_levels(widths, fp_mlps)
        self.out_channels = {"point_features": fp_mlps[0][-1]}

    def forward(
        self,
        points: Tensor,  # (N, 1 + 3 + C) scene, x, y, z, ...
        batch_size: int,
    ) -> PointBackboneFeatures:
        counts = scene_counts(points[:, 0], batch_size)  # (B,)
        _require_equal(counts)
        xyz, sizes = [points[:, 1:4].contiguous()], [counts]
        features = [points[:, 4:] if points.shape[1] > 4 else None]
        for level, wanted in zip(self.SA_modules, self.npoints, strict=True):
            samples = (counts > 0) * wanted  # (B,); a scene with fewer points than that repeats its first one
            centres, values = level(xyz[-1], sizes[-1], features[-1], samples)  # (M, 3), (M, C)
            xyz.append(centres)
            sizes.append(samples)
            features.append(values)
        rows = propagate(self.FP_modules, xyz, sizes, features)
        return PointBackboneFeatures(rows, points[:, :4].contiguous())


def require_levels(config: SceneScaleConfig, fp_mlps: list[list[int]]) -> None:
    """Raise ``ValueError`` unless SA_CONFIG and FP_MLPS describe the same levels, and each level's lists its scales."""
    levels = {key: len(config[key]) for key in LEVEL_KEYS} | {"FP_MLPS": len(fp_mlps)}
    if len(set(levels.values())) != 1 or not fp_mlps:
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


def _require_equal(counts: Tensor) -> None:
    sizes = counts.tolist()
    if len(set(sizes) - {0}) > 1:
        raise ValueError(
            f"PointNet2MSG needs equally many points in every scene, but these have {sizes}: let DATA_PROCESSOR "
            "contain 'sample_points'"
        )
