"""The segmenter's head: fully connected layers on the feature of every point."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pcdet.layers.row_norm import RowNorm
from pcdet.models.losses.normalizer import normalizer
from pcdet.models.registry import SEG_HEADS
from pcdet.structures.dataset_info import DatasetInfo


class PointPreds(NamedTuple):
    """Scores before the softmax."""

    logits: Tensor  # (B, N, K)


@SEG_HEADS.register
class SegmentationHead(nn.Module):
    """Hidden layers with batch norm, ReLU and dropout, then one score a class (PointNet++, supplement sec. B.2).

    Options:
        hidden: width of each hidden layer.
        dropout: probability that a hidden value is dropped in training.
        label_smoothing: share of the target that is spread over all classes.
    """

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        hidden: Sequence[int] = (128,),
        dropout: float = 0.5,
        label_smoothing: float = 0.0,
    ):
        super().__init__()
        self.label_smoothing = label_smoothing
        widths = [channels["dense_point_features"], *hidden]
        layers: list[nn.Module] = []
        for before, after in zip(widths[:-1], widths[1:], strict=True):
            layers += [nn.Linear(before, after), RowNorm(after), nn.ReLU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], info.num_class))
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
        weights = None if info.class_weights is None else torch.tensor(info.class_weights)
        self.register_buffer("class_weights", weights, persistent=False)  # (K,)

    def forward(
        self,
        dense_point_features: Tensor,  # (B, N, C)
    ) -> PointPreds:
        logits = self.layers(dense_point_features.flatten(0, 1))  # (B * N, K)
        return PointPreds(logits.view(*dense_point_features.shape[:2], -1))

    def loss(
        self,
        preds: PointPreds,
        labels: Tensor,  # (B, N) int64, below 0 where a point has none
    ) -> dict[str, Tensor]:
        """Cross entropy times the weight of the point's class, in the mean over the labelled points."""
        rows, wanted = preds.logits.float().flatten(0, 1), labels.flatten()
        terms = F.cross_entropy(
            rows,
            wanted.clamp(min=0),
            weight=self.class_weights,
            reduction="none",
            label_smoothing=self.label_smoothing,
        )
        known = wanted >= 0
        return {"loss_seg": (terms * known).sum() / normalizer(known.sum())}
