"""PointNet++ for part and semantic segmentation (Qi et al. 2017, sec. 3.4 and supplement sec. B.2, B.3)."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pcdet.layers.cloud_propagation import CloudPropagation
from pcdet.layers.set_abstraction import GlobalAbstraction
from pcdet.models.backbones_3d.multi_scale_levels import MultiScaleConfig, build_levels, split_columns
from pcdet.models.registry import BACKBONES_3D
from pcdet.structures.dataset_info import DatasetInfo


class DensePointFeatures(NamedTuple):
    """One feature a point."""

    dense_point_features: Tensor  # (B, N, C)


@BACKBONES_3D.register
class PointNet2Segmentation(nn.Module):
    """Levels of set abstraction, at the end perhaps one over the whole cloud, then feature propagation back up.

    A level of single-scale grouping is one with one scale.

    Options:
        sa_config: the levels of set abstraction.
        global_mlp: layers of the level over the whole cloud; without it there is no such level.
        fp_mlps: layers of each propagation, the one from the deepest level first; one a level.
        features_first: whether features come before the offset in the first layer of every ball. The published
            single-scale models have the offset first, the multi-scale ones the features.
        coordinates_as_features: whether a point's coordinates are among its features too, before the other columns,
            as in the common PyTorch port.
        last_skip: what the points themselves bring to the last propagation, in this order: ``category`` (one number
            a category of the data set, 1 for the object's own), ``coordinates``, ``features``.

    Raises ``ValueError`` where the lists do not fit together, or the data have no categories.
    """

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        sa_config: MultiScaleConfig,
        fp_mlps: list[list[int]],
        global_mlp: list[int] | None = None,
        features_first: bool = True,
        coordinates_as_features: bool = False,
        last_skip: Sequence[Literal["category", "coordinates", "features"]] = (),
    ):
        super().__init__()
        self.features_first, self.coordinates_as_features = features_first, coordinates_as_features
        self.last_skip = tuple(last_skip)
        self.num_categories = _number_of_categories(info, self.last_skip)
        width = info.num_point_features - (0 if coordinates_as_features else 3)
        self.sa_modules = build_levels(sa_config, width, features_first=features_first)
        sizes = {"category": self.num_categories, "coordinates": 3, "features": width}
        widths = [sum(sizes[part] for part in self.last_skip), *(level.out_channels for level in self.sa_modules)]
        self.global_module = None
        if global_mlp is not None:
            self.global_module = GlobalAbstraction(widths[-1], global_mlp)
            widths.append(global_mlp[-1])
        if len(fp_mlps) != len(widths) - 1:
            raise ValueError(f"FP_MLPS: {len(widths) - 1} levels need as many entries, got {len(fp_mlps)}")
        self.fp_modules = nn.ModuleList()
        known = widths[-1]
        for skip, mlp in zip(widths[-2::-1], fp_mlps, strict=True):
            self.fp_modules.append(CloudPropagation(known, skip, mlp))
            known = mlp[-1]
        self.out_channels = {"dense_point_features": known}

    def forward(
        self,
        point_clouds: Tensor,  # (B, N, 3 + C)
        categories: Tensor | None = None,  # (B,) int64
    ) -> DensePointFeatures:
        points, features = split_columns(point_clouds)
        if self.coordinates_as_features:
            features = point_clouds
        levels = [(points, self._own(point_clouds, features, categories))]
        for level in self.sa_modules:
            points, features = level(points, features)  # (B, S, 3), (B, S, C)
            levels.append((points, features))
        if self.global_module is not None:
            features = self.global_module(points, features)[:, None]  # (B, 1, C)
            levels.append((None, features))
        for (points, skip), (known_points, _), propagate in zip(
            levels[-2::-1], levels[:0:-1], self.fp_modules, strict=True
        ):
            features = propagate(points, skip, known_points, features)
        return DensePointFeatures(features)

    def _own(self, point_clouds: Tensor, features: Tensor | None, categories: Tensor | None) -> Tensor | None:
        """What ``last_skip`` names, (B, N, C)."""
        parts = []
        for name in self.last_skip:
            if name == "category":
                if categories is None:
                    raise ValueError("LAST_SKIP names the category, but the batch has no categories")
                one_hot = F.one_hot(categories, self.num_categories).to(point_clouds.dtype)  # (B, L)
                parts.append(one_hot[:, None].expand(-1, point_clouds.shape[1], -1))
            elif name == "coordinates":
                parts.append(point_clouds[..., :3])
            elif features is not None:
                parts.append(features)
        return torch.cat(parts, dim=-1) if parts else None


def _number_of_categories(info: DatasetInfo, last_skip: Sequence[str]) -> int:
    if "category" in last_skip and not info.category_names:
        raise ValueError("LAST_SKIP names the category, but the data set has none")
    return len(info.category_names or ())
