"""Voxel set abstraction: few keypoints gather features from all levels (PV-RCNN, Shi et al. 2020, sec. 3.2)."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from pcdet.layers.row_norm import RowNorm
from pcdet.layers.sparse import SparseConvTensor
from pcdet.models.pfe.bev_interpolation import interpolate_bev
from pcdet.models.pfe.keypoints import furthest_keypoints, near_proposals, proposal_centric_keypoints
from pcdet.models.pfe.local_aggregation import LocalAggregation, build_local_aggregation
from pcdet.models.registry import PFES
from pcdet.models.voxel_centres import voxel_centres
from pcdet.structures.batch import scene_counts
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.utils.constants import constant


class SpcSampling(TypedDict, total=False):
    """The block SPC_SAMPLING: sectorized proposal-centric sampling (PV-RCNN++, sec. 4.1)."""

    NUM_SECTORS: int  # around the sensor
    SAMPLE_RADIUS_WITH_ROI: float  # metres beyond half the diagonal of a proposal
    NUM_POINTS_OF_EACH_SAMPLE_PART: int  # without effect: distances are bounded in memory here anyway


class FeatureSource(LocalAggregation, total=False):
    """A block of SA_LAYER: how the surroundings are described, and which points or voxels of them count."""

    DOWNSAMPLE_FACTOR: int  # of the voxels' grid
    INPUT_CHANNELS: int  # of the voxels' features; must be what the backbone gives
    FILTER_NEIGHBOR_WITH_ROI: bool
    RADIUS_OF_NEIGHBOR_WITH_ROI: float  # metres beyond half the diagonal of a proposal


class Keypoints(NamedTuple):
    """What the encoder adds to the batch; keypoints scene after scene."""

    point_features_before_fusion: Tensor  # (N, C) all sources side by side
    point_features: Tensor  # (N, C')
    point_coords: Tensor  # (N, 4) scene, x, y, z


class Stack(NamedTuple):
    """Points of all scenes, one scene after another."""

    xyz: Tensor  # (N, 3)
    counts: Tensor  # (B,) int64
    features: Tensor | None  # (N, C)


@PFES.register
class VoxelSetAbstraction(nn.Module):
    """Keypoints, and at each of them features of the map seen from above, of raw points and of sparse voxels.

    ``sample_method`` FPS takes ``num_keypoints`` of every scene's points, SPC about so many near proposals, and then
    reads ``rois``. ``features_source`` names the sources, in the order of their layers; their features stand as: map,
    raw points, voxels. ``sa_layer`` has a block for each but the map.

    Points and voxels must come scene after scene, as data sets collate them. A scene without points has no keypoints.
    Raises ``ValueError`` for a source that has no block or that no slot before writes, and for missing options.
    """

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        point_source: Literal["raw_points", "voxel_centers"] = "raw_points",
        num_keypoints: int,
        num_output_features: int,
        sample_method: Literal["FPS", "SPC"] = "FPS",
        spc_sampling: SpcSampling | None = None,
        features_source: Sequence[Literal["bev", "x_conv1", "x_conv2", "x_conv3", "x_conv4", "raw_points"]],
        sa_layer: dict[str, FeatureSource],
    ):
        super().__init__()
        self.info, self.sa_config = info, sa_layer
        self.point_source, self.num_keypoints, self.spc_sampling = point_source, num_keypoints, None
        if sample_method == "SPC":
            self.spc_sampling = _checked_sampling(spc_sampling)
        self.reads_bev, self.reads_points = "bev" in features_source, "raw_points" in features_source
        self.voxel_sources = [name for name in features_source if name not in ("bev", "raw_points")]
        for name in [name for name in features_source if name != "bev"]:
            _require_source(name, sa_layer)

        self.SA_layers = nn.ModuleList(self._voxel_layer(name, channels) for name in self.voxel_sources)
        width = sum(layer.out_channels for layer in self.SA_layers)
        if self.reads_bev:
            width += channels["spatial_features"]
        if self.reads_points:
            where = "SA_LAYER.raw_points"
            self.SA_rawpoints = build_local_aggregation(channels["points"] - 3, sa_layer["raw_points"], where)
            width += self.SA_rawpoints.out_channels
        self.vsa_point_feature_fusion = nn.Sequential(
            nn.Linear(width, num_output_features, bias=False), RowNorm(num_output_features), nn.ReLU()
        )
        self.out_channels = {"point_features": num_output_features, "point_features_before_fusion": width}

    def _voxel_layer(self, name: str, channels: Mapping[str, int]) -> nn.Module:
        wanted = self.sa_config[name].get("INPUT_CHANNELS", channels[name])
        if wanted != channels[name]:
            raise ValueError(
                f"SA_LAYER.{name}: INPUT_CHANNELS is {wanted}, but the backbone gives {channels[name]}; leave it out"
            )
        return build_local_aggregation(channels[name], self.sa_config[name], f"SA_LAYER.{name}")

    def forward(
        self,
        points: Tensor,  # (N, 1 + C) scene, x, y, z, features
        batch_size: int,
        voxel_coords: Tensor | None = None,  # (V, 4) scene, z, y, x
        spatial_features: Tensor | None = None,  # (B, C, Y, X)
        spatial_features_stride: int | None = None,
        multi_scale_3d_features: dict[str, SparseConvTensor] | None = None,
        rois: Tensor | None = None,  # (B, R, 7)
    ) -> Keypoints:
        features = points[:, 4:] if points.shape[1] > 4 else None
        cloud = Stack(points[:, 1:4].contiguous(), scene_counts(points[:, 0], batch_size), features)
        if self.point_source == "raw_points":
            source = cloud
        else:
            cells = scene_counts(voxel_coords[:, 0], batch_size)
            source = Stack(voxel_centres(voxel_coords[:, 1:], self.info), cells, None)
        keypoints = self._sample(source, rois)

        columns = []
        if self.reads_bev:
            columns.append(self._look_up(spatial_features, spatial_features_stride, keypoints))
        if self.reads_points:
            columns.append(self._aggregate("raw_points", self.SA_rawpoints, cloud, keypoints, rois))
        for name, layer in zip(self.voxel_sources, self.SA_layers, strict=True):
            voxels = self._voxels(name, multi_scale_3d_features[name])
            columns.append(self._aggregate(name, layer, voxels, keypoints, rois))
        before = torch.cat(columns, dim=1)  # (K, C)
        scene = _scenes(keypoints)  # (K,)
        coords = torch.cat([scene.unsqueeze(1).to(keypoints.xyz.dtype), keypoints.xyz], dim=1)  # (K, 4)
        return Keypoints(before, self.vsa_point_feature_fusion(before), coords)

    def _sample(self, source: Stack, rois: Tensor | None) -> Stack:
        counts = source.counts.tolist()
        if self.spc_sampling is None:
            rows = furthest_keypoints(source.xyz, counts, self.num_keypoints)
        else:
            rows = proposal_centric_keypoints(
                source.xyz,
                counts,
                _required(rois, "SAMPLE_METHOD SPC"),
                num_keypoints=self.num_keypoints,
                num_sectors=self.spc_sampling["NUM_SECTORS"],
                radius=self.spc_sampling["SAMPLE_RADIUS_WITH_ROI"],
            )
        lengths = constant([len(some) for some in rows], source.counts)
        return Stack(source.xyz[torch.cat(rows)], lengths, None)

    def _look_up(self, bev: Tensor, stride: int, keypoints: Stack) -> Tensor:
        """The map (B, C, Y, X) at the keypoints, (K, C)."""
        low = constant(self.info.point_cloud_range[:2], keypoints.xyz)
        size = constant(self.info.voxel_size[:2], keypoints.xyz)
        x, y = ((keypoints.xyz[:, :2] - low) / size / stride).unbind(dim=1)
        return interpolate_bev(bev, _scenes(keypoints), x, y)

    def _voxels(self, name: str, level: SparseConvTensor) -> Stack:
        centres = voxel_centres(level.indices[:, 1:], self.info, self.sa_config[name]["DOWNSAMPLE_FACTOR"])
        return Stack(centres, scene_counts(level.indices[:, 0], level.batch_size), level.features)

    def _aggregate(self, name: str, layer: nn.Module, source: Stack, keypoints: Stack, rois: Tensor | None) -> Tensor:
        """What ``layer`` makes of the surroundings of every keypoint, (K, C)."""
        config = self.sa_config[name]
        if config.get("FILTER_NEIGHBOR_WITH_ROI", False):
            rois = _required(rois, f"SA_LAYER.{name}.FILTER_NEIGHBOR_WITH_ROI")
            source = _near_rois(source, rois, config["RADIUS_OF_NEIGHBOR_WITH_ROI"])
        return layer(source.xyz, source.counts, keypoints.xyz, keypoints.counts, source.features)


def _scenes(stack: Stack) -> Tensor:
    """The scene of each point. (N,) int64"""
    scenes = torch.arange(len(stack.counts), device=stack.counts.device)
    return scenes.repeat_interleave(stack.counts, output_size=len(stack.xyz))


def _near_rois(source: Stack, rois: Tensor, margin: float) -> Stack:
    """The points of every scene that are near one of its proposals."""
    scenes = zip(source.xyz.split(source.counts.tolist()), rois, strict=True)
    near = [near_proposals(xyz, boxes, margin) for xyz, boxes in scenes]
    keep = torch.cat(near)  # (N,)
    counts = torch.stack([some.sum() for some in near])
    return Stack(source.xyz[keep], counts, None if source.features is None else source.features[keep])


def _required(rois: Tensor | None, who: str) -> Tensor:
    if rois is None:
        raise ValueError(
            f"VoxelSetAbstraction: {who} needs proposals, which a model with a dense head and a RoI head has"
        )
    return rois


def _checked_sampling(options: Mapping[str, Any] | None) -> Mapping[str, Any]:
    missing = {"NUM_SECTORS", "SAMPLE_RADIUS_WITH_ROI"} - (options or {}).keys()
    if options is None or missing:
        raise ValueError(f"VoxelSetAbstraction: SAMPLE_METHOD SPC needs SPC_SAMPLING with {', '.join(sorted(missing))}")
    return options


def _require_source(name: str, sa_layer: Mapping[str, Any]) -> None:
    if name not in sa_layer:
        raise ValueError(f"VoxelSetAbstraction: FEATURES_SOURCE names {name}, but SA_LAYER has no block for it")
    needed = {"DOWNSAMPLE_FACTOR"} if name != "raw_points" else set()
    if sa_layer[name].get("FILTER_NEIGHBOR_WITH_ROI", False):
        needed.add("RADIUS_OF_NEIGHBOR_WITH_ROI")
    missing = needed - sa_layer[name].keys()
    if missing:
        raise ValueError(f"SA_LAYER.{name} needs {', '.join(sorted(missing))}")
