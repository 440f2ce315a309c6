"""PointNet++ for classification, single-scale grouping (Qi et al. 2017, supplement sec. B.1)."""

from typing import NamedTuple, TypedDict

from torch import Tensor, nn

from pcdet.layers.set_abstraction import GlobalAbstraction, SetAbstraction
from pcdet.models.backbones_3d.multi_scale_levels import split_columns
from pcdet.models.registry import BACKBONES_3D
from pcdet.structures.dataset_info import DatasetInfo


class SingleScaleConfig(TypedDict):
    """The block SA_CONFIG: one entry a level; the last level, over the whole cloud, has an MLP only."""

    NPOINTS: list[int]  # centres
    RADIUS: list[float]  # in the unit of the coordinates
    NSAMPLE: list[int]  # neighbours of a centre
    MLPS: list[list[int]]  # one more than the others: the last is the global level's


class GlobalFeatures(NamedTuple):
    """One feature a cloud."""

    global_features: Tensor  # (B, C)


@BACKBONES_3D.register
class PointNet2SSG(nn.Module):
    """Levels of set abstraction, then one over the whole cloud.

    Point features beyond x y z (normals, intensity) enter the first level as they come from the data set.
    Raises ``ValueError`` when SA_CONFIG's lists do not fit together.

    Options:
        sa_config: the levels.
        features_first: whether features come before the offset in the first layer of every ball; the published
            single-scale model has the offset first.
    """

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        sa_config: SingleScaleConfig,
        features_first: bool = False,
    ):
        super().__init__()
        self.features_first = features_first
        levels = _levels(sa_config)
        width = info.num_point_features - 3
        self.sa_modules = nn.ModuleList()
        for num_centres, radius, num_neighbours, mlp in levels:
            level = SetAbstraction(width, num_centres, radius, num_neighbours, mlp, features_first=features_first)
            self.sa_modules.append(level)
            width = mlp[-1]
        self.global_module = GlobalAbstraction(width, sa_config["MLPS"][-1])
        self.out_channels = {"global_features": self.global_module.out_channels}

    def forward(
        self,
        point_clouds: Tensor,  # (B, N, 3 + C)
    ) -> GlobalFeatures:
        points, features = split_columns(point_clouds)
        for level in self.sa_modules:
            points, features = level(points, features)  # (B, S, 3), (B, S, C)
        return GlobalFeatures(self.global_module(points, features))


def _levels(config: SingleScaleConfig) -> list[tuple[int, float, int, list[int]]]:
    counts = {key: len(config[key]) for key in ("NPOINTS", "RADIUS", "NSAMPLE")}
    if len(set(counts.values())) != 1 or len(config["MLPS"]) != counts["NPOINTS"] + 1:
        raise ValueError(
            f"SA_CONFIG: NPOINTS, RADIUS and NSAMPLE need one entry a level and MLPS one more, got {counts} and "
            f"{len(config['MLPS'])} MLPS"
        )
    return list(zip(config["NPOINTS"], config["RADIUS"], config["NSAMPLE"], config["MLPS"][:-1], strict=True))
