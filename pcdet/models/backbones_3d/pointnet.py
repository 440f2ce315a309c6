"""PointNet with its two alignment networks (Qi et al., "PointNet", 2017, sec. 4.2 and supplement sec. C)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pcdet.layers.row_norm import RowBatchNorm
from pcdet.layers.set_abstraction import SharedMLP
from pcdet.models.registry import BACKBONES_3D
from pcdet.structures.dataset_info import DatasetInfo


class PointNetFeatures(NamedTuple):
    """One feature a cloud, and how far its feature transform is from a rotation."""

    global_features: Tensor  # (B, C)
    regularisation: Tensor  # () loss term; 0 without a feature transform


class AlignmentNet(nn.Module):
    """A small PointNet that predicts a (K, K) matrix for a cloud; it begins with the identity.

    Args:
        in_channels: of the rows that it looks at.
        size: K.
        mlp: layers on single points.
        hidden: fully connected layers after the maximum over all points.
    """

    def __init__(self, in_channels: int, size: int, mlp: Sequence[int], hidden: Sequence[int]):
        super().__init__()
        self.size = size
        self.mlp = SharedMLP([in_channels, *mlp])
        widths = [mlp[-1], *hidden]
        layers: list[nn.Module] = []
        for before, after in zip(widths[:-1], widths[1:], strict=True):
            layers += [nn.Linear(before, after), RowBatchNorm(after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], size * size))
        nn.init.zeros_(self.layers[-1].weight)
        nn.init.zeros_(self.layers[-1].bias)

    def forward(
        self,
        rows: Tensor,  # (B, N, C)
    ) -> Tensor:
        """(B, K, K), applied to row vectors from the right."""
        batch, n, channels = rows.shape
        rows = self.mlp.rest(self.mlp.first(rows.reshape(batch * n, channels)))
        pooled = rows.view(batch, n, -1).max(dim=1).values  # (B, C')
        identity = torch.eye(self.size, device=rows.device)
        return self.layers(pooled).float().view(batch, self.size, self.size) + identity


@BACKBONES_3D.register
class PointNet(nn.Module):
    """Layers on single points and a maximum over the cloud; coordinates and features are aligned first.

    Columns beyond x y z (normals) enter beside the aligned coordinates.

    Options:
        mlp_before, mlp_after: layers on single points before and after the feature transform.
        feature_transform: whether to align the features after ``mlp_before``.
        align_mlp, align_hidden: layers of both alignment networks.
        regulariser: weight of the term that keeps the feature transform A near a rotation, ``|I - A A^T|^2``
            (Frobenius norm, mean over the clouds; sec. 4.2, equation 2).
        last_relu: whether a ReLU follows the last norm before the maximum; the common PyTorch port leaves it out.
    """

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        mlp_before: Sequence[int] = (64, 64),
        mlp_after: Sequence[int] = (64, 128, 1024),
        feature_transform: bool = True,
        align_mlp: Sequence[int] = (64, 128, 1024),
        align_hidden: Sequence[int] = (512, 256),
        regulariser: float = 0.001,
        last_relu: bool = True,
    ):
        super().__init__()
        width = info.num_point_features
        self.regulariser = regulariser
        self.align_points = AlignmentNet(width, 3, align_mlp, align_hidden)
        self.before = SharedMLP([width, *mlp_before])
        self.align_features = None
        if feature_transform:
            self.align_features = AlignmentNet(mlp_before[-1], mlp_before[-1], align_mlp, align_hidden)
        self.after = SharedMLP([mlp_before[-1], *mlp_after], last_relu=last_relu)
        self.out_channels = {"global_features": mlp_after[-1]}

    def forward(
        self,
        point_clouds: Tensor,  # (B, N, 3 + C)
    ) -> PointNetFeatures:
        batch, n, _ = point_clouds.shape
        aligned = point_clouds[..., :3] @ self.align_points(point_clouds)  # (B, N, 3)
        rows = torch.cat([aligned, point_clouds[..., 3:]], dim=-1).flatten(0, 1)  # (B * N, 3 + C)
        rows = self.before.rest(self.before.first(rows))
        term = rows.new_zeros((), dtype=torch.float32)
        if self.align_features is not None:
            rows = rows.view(batch, n, -1)
            matrix = self.align_features(rows)  # (B, K, K)
            rows = (rows @ matrix.to(rows.dtype)).flatten(0, 1)
            term = self.regulariser * distance_from_rotation(matrix)
        rows = self.after.rest(self.after.first(rows)).view(batch, n, -1)
        return PointNetFeatures(rows.max(dim=1).values, term)


def distance_from_rotation(matrix: Tensor) -> Tensor:
    """``|I - A A^T|^2`` of each matrix (B, K, K), in the mean over B. -> ()"""
    with torch.autocast(matrix.device.type, enabled=False):
        matrix = matrix.float()
        difference = matrix @ matrix.transpose(1, 2) - torch.eye(matrix.shape[1], device=matrix.device)
        return difference.square().sum(dim=(1, 2)).mean()
