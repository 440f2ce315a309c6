"""Which points lie on objects (Shi et al., "PV-RCNN", sec. 3.2: predicted keypoint weighting)."""

from typing import NamedTuple

from torch import Tensor

from pcdet.models.point_heads.base import PointHead, PointLossConfig, PointTargetConfig, class_scores
from pcdet.models.registry import POINT_HEADS
from pcdet.structures.dataset_info import DatasetInfo


class PointScores(NamedTuple):
    """What the head says of each point."""

    point_cls_preds: Tensor  # (N, K) logits
    point_cls_scores: Tensor  # (N,) of the best class, in [0, 1]


@POINT_HEADS.register
class PointHeadSimple(PointHead):
    """Classifies points by fully connected layers.

    ``cls_fc`` are the widths of the hidden layers. ``use_point_features_before_fusion`` classifies the features as
    they were gathered, before the layer that makes them narrow for the second stage.
    """

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        cls_fc: list[int],
        class_agnostic: bool,
        target_config: PointTargetConfig,
        loss_config: PointLossConfig,
        use_point_features_before_fusion: bool = False,
    ):
        super().__init__(
            info,
            channels["point_features_before_fusion" if use_point_features_before_fusion else "point_features"],
            cls_fc=cls_fc,
            class_agnostic=class_agnostic,
            target_config=target_config,
            loss_config=loss_config,
        )
        self.before_fusion = use_point_features_before_fusion

    def forward(
        self,
        point_features: Tensor,  # (N, C)
        point_features_before_fusion: Tensor | None = None,  # (N, C')
    ) -> PointScores:
        preds = self.cls_layers(point_features_before_fusion if self.before_fusion else point_features)  # (N, K)
        return PointScores(preds, class_scores(preds))
