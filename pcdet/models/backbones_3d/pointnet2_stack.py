"""PointNet++ with multi-scale grouping (Qi et al. 2017) over scenes of any size."""

from torch import Tensor, nn

from pcdet.layers.msg_set_abstraction import MSGSetAbstraction
from pcdet.models.backbones_3d.pointnet2_msg import (
    LEVEL_KEYS,
    PointBackboneFeatures,
    SceneScaleConfig,
    propagate,
    propagation_levels,
    require_levels,
)
from pcdet.models.registry import BACKBONES_3D
from pcdet.structures.batch import scene_counts
from pcdet.structures.dataset_info import DatasetInfo


@BACKBONES_3D.register
class PointNet2Backbone(nn.Module):
    """As PointNet2MSG, for scenes that differ in their number of points.

    A scene with fewer points than NPOINTS keeps them all as centres. The last propagation reads a point's x y z beside
    its other channels. (OpenPCDet keeps a class of this name but refuses to build it; the parameters are the same.)
    Raises ``ValueError`` where the lists of SA_CONFIG and FP_MLPS do not fit together.
    """

    def __init__(
        self, info: DatasetInfo, channels: dict[str, int], *, sa_config: SceneScaleConfig, fp_mlps: list[list[int]]
    ):
        super().__init__()
        require_levels(sa_config, fp_mlps)
        self.npoints = sa_config["NPOINTS"]
        width = channels["points"] - 3
        widths = [channels["points"]]
        self.SA_modules = nn.ModuleList()
        for scales in zip(*(sa_config[key] for key in LEVEL_KEYS[1:]), strict=True):
            self.SA_modules.append(MSGSetAbstraction(width, *scales, use_xyz=sa_config.get("USE_XYZ", True)))
            width = self.SA_modules[-1].out_channels
            widths.append(width)
        for layer in self.SA_modules.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight)
        self.FP_modules = propagation_levels(widths, fp_mlps)
        self.out_channels = {"point_features": fp_mlps[0][-1]}

    def forward(
        self,
        points: Tensor,  # (N, 1 + 3 + C) scene, x, y, z, ...
        batch_size: int,
    ) -> PointBackboneFeatures:
        counts = scene_counts(points[:, 0], batch_size)  # (B,)
        xyz, sizes, features = [points[:, 1:4].contiguous()], [counts], [points[:, 1:]]
        values = points[:, 4:] if points.shape[1] > 4 else None
        for level, wanted in zip(self.SA_modules, self.npoints, strict=True):
            samples = sizes[-1].clamp(max=wanted)  # (B,)
            centres, values = level(xyz[-1], sizes[-1], values, samples)  # (M, 3), (M, C)
            xyz.append(centres)
            sizes.append(samples)
            features.append(values)
        rows = propagate(self.FP_modules, xyz, sizes, features)
        return PointBackboneFeatures(rows, points[:, :4].contiguous())
