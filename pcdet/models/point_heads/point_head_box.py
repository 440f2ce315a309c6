"""A class and a box from every point (Shi et al., "PointRCNN", sec. 3.2)."""

from typing import NamedTuple

from torch import Tensor

from pcdet.models.point_heads.base import PointHead, PointLossConfig, PointTargetConfig, class_scores
from pcdet.models.registry import POINT_HEADS
from pcdet.structures.dataset_info import DatasetInfo


class PointBoxPreds(NamedTuple):
    """What the head says of each point."""

    point_cls_preds: Tensor  # (N, K) logits
    point_cls_scores: Tensor  # (N,) of the best class, in [0, 1]
    point_box_preds: Tensor  # (N, 8) codes of the box that holds the point


@POINT_HEADS.register
class PointHeadBox(PointHead):
    """Classifies points and predicts their boxes by fully connected layers of widths ``cls_fc`` and ``reg_fc``."""

    ignored_keys = ("USE_POINT_FEATURES_BEFORE_FUSION",)  # only PointHeadSimple heeds it in OpenPCDet

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        cls_fc: list[int],
        reg_fc: list[int],
        class_agnostic: bool,
        target_config: PointTargetConfig,
        loss_config: PointLossConfig,
    ):
        width = channels["point_features"]
        super().__init__(
            info,
            width,
            cls_fc=cls_fc,
            class_agnostic=class_agnostic,
            target_config=target_config,
            loss_config=loss_config,
        )
        self._add_box_layers(info, width, reg_fc, target_config)

    def forward(
        self,
        point_features: Tensor,  # (N, C)
    ) -> PointBoxPreds:
        preds = self.cls_layers(point_features)  # (N, K)
        return PointBoxPreds(preds, class_scores(preds), self.box_layers(point_features))
