"""PointNet++ for classification, multi-scale grouping (Qi et al. 2017, supplement sec. B.1)."""

from torch import Tensor, nn

from pcdet.layers.set_abstraction import GlobalAbstraction
from pcdet.models.backbones_3d.multi_scale_levels import MultiScaleConfig, build_levels, split_columns
from pcdet.models.backbones_3d.pointnet2_ssg import GlobalFeatures
from pcdet.models.registry import BACKBONES_3D
from pcdet.structures.dataset_info import DatasetInfo


@BACKBONES_3D.register
class PointNet2MultiScale(nn.Module):
    """Levels of set abstraction with several radii, then one over the whole cloud.

    Point features beyond x y z (normals, intensity) enter the first level as they come from the data set.

    Options:
        sa_config: the levels.
        global_mlp: layers of the level over the whole cloud.
        features_first: whether features come before the offset in the first layer of every ball, as in the published
            model; both orders describe the same functions, with permuted weights.
    """

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        sa_config: MultiScaleConfig,
        global_mlp: list[int],
        features_first: bool = True,
    ):
        super().__init__()
        self.features_first = features_first
        self.sa_modules = build_levels(sa_config, info.num_point_features - 3, features_first=features_first)
        self.global_module = GlobalAbstraction(self.sa_modules[-1].out_channels, global_mlp)
        self.out_channels = {"global_features": self.global_module.out_channels}

    def forward(
        self,
        point_clouds: Tensor,  # (B, N, 3 + C)
    ) -> GlobalFeatures:
        points, features = split_columns(point_clouds)
        for level in self.sa_modules:
            points, features = level(points, features)  # (B, S, 3), (B, S, C)
        return GlobalFeatures(self.global_module(points, features))
