"""Which points lie on objects, and where in them (Shi et al., "From Points to Parts", sec. 3.1)."""

from typing import NamedTuple

from torch import Tensor

from pcdet.layers.fc import linear_stack
from pcdet.models.point_heads.base import PointHead, PointLossConfig, PointTargetConfig, class_scores
from pcdet.models.registry import POINT_HEADS
from pcdet.structures.dataset_info import DatasetInfo


class PointPartPreds(NamedTuple):
    """What the head says of each point."""

    point_cls_preds: Tensor  # (N, K) logits
    point_cls_scores: Tensor  # (N,) of the best class, in [0, 1]
    point_part_preds: Tensor  # (N, 3) logits
    point_part_offset: Tensor  # (N, 3) where in its object the point lies: 0 to 1 along each side
    point_box_preds: Tensor | None  # (N, 8) codes of the box that holds the point


@POINT_HEADS.register
class PointIntraPartOffsetHead(PointHead):
    """Classifies points and predicts where in their objects they lie; with a BOX_CODER also the objects' boxes.

    ``cls_fc``, ``part_fc`` and ``reg_fc`` are the widths of the hidden layers.
    """

    ignored_keys = ("USE_POINT_FEATURES_BEFORE_FUSION",)  # only PointHeadSimple heeds it in OpenPCDet

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        cls_fc: list[int],
        part_fc: list[int],
        class_agnostic: bool,
        target_config: PointTargetConfig,
        loss_config: PointLossConfig,
        reg_fc: list[int] | None = None,
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
        self.part_reg_layers = linear_stack(width, part_fc, 3)
        self.out_channels = {"point_part_offset": 3}
        if "BOX_CODER" in target_config:
            self._add_box_layers(info, width, reg_fc or [], target_config)

    def forward(
        self,
        point_features: Tensor,  # (N, C)
    ) -> PointPartPreds:
        preds, parts = self.cls_layers(point_features), self.part_reg_layers(point_features)  # (N, K), (N, 3)
        boxes = self.box_layers(point_features) if self.predicts_boxes else None  # (N, 8)
        return PointPartPreds(preds, class_scores(preds), parts, parts.sigmoid(), boxes)
