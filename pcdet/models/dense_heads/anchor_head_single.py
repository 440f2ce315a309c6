"""One shared head over anchors of every class (SECOND, sec. 3.2-3.3; PointPillars, sec. 2.3 and 3.2)."""

from typing import NamedTuple

from torch import Tensor, nn

from pcdet.models.dense_heads.anchor_head import (
    PRIOR_LOGIT,
    AnchorHead,
    AnchorLossConfig,
    ClassLogits,
    DirectionBins,
    FlatPreds,
    TargetAssignerConfig,
    pointwise,
)
from pcdet.models.dense_heads.anchors import AnchorClass
from pcdet.models.registry import DENSE_HEADS
from pcdet.structures.dataset_info import DatasetInfo


class AnchorPreds(NamedTuple):
    """Raw predictions at every cell, for its A anchors."""

    cls_preds: Tensor  # (B, Y, X, A * K) logits
    box_preds: Tensor  # (B, Y, X, A * code)
    dir_cls_preds: Tensor | None  # (B, Y, X, A * bins) logits


@DENSE_HEADS.register
class AnchorHeadSingle(AnchorHead):
    """Predicts class, box and facing of every anchor by 1 x 1 convolutions.

    ``anchor_generator_config`` has one block a class, ``class_agnostic`` predicts only object or not.
    A heading is learned up to half a turn, and with ``use_direction_classifier`` one of ``num_dir_bins`` bins, which
    start at ``dir_offset``, says which way it faces; ``dir_limit_offset`` shifts the wrapping of the decoded angle.
    Targets and losses are those of :class:`AnchorHead`.
    """

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        anchor_generator_config: list[AnchorClass],
        target_assigner_config: TargetAssignerConfig,
        loss_config: AnchorLossConfig,
        class_agnostic: bool = False,
        use_direction_classifier: bool = False,
        dir_offset: float = 0.0,
        dir_limit_offset: float = 0.0,
        num_dir_bins: int = 2,
    ):
        direction = DirectionBins(num_dir_bins if use_direction_classifier else 0, dir_offset, dir_limit_offset)
        super().__init__(info, anchor_generator_config, target_assigner_config, loss_config, direction, class_agnostic)
        width, per_cell = channels["spatial_features_2d"], self.anchors.shape[2]
        self.conv_cls = nn.Conv2d(width, per_cell * self.num_class, 1)
        self.conv_box = nn.Conv2d(width, per_cell * self.coder.code_size, 1)
        self.conv_dir_cls = nn.Conv2d(width, per_cell * num_dir_bins, 1) if use_direction_classifier else None
        nn.init.constant_(self.conv_cls.bias, PRIOR_LOGIT)
        nn.init.normal_(self.conv_box.weight, mean=0, std=0.001)

    def forward(
        self,
        spatial_features_2d: Tensor,  # (B, C, Y, X)
    ) -> AnchorPreds:
        self.require_map(spatial_features_2d)
        layers = [layer for layer in (self.conv_cls, self.conv_box, self.conv_dir_cls) if layer is not None]
        parts = pointwise(layers, spatial_features_2d)
        return AnchorPreds(parts[0], parts[1], parts[2] if len(parts) > 2 else None)

    def flatten(self, preds: AnchorPreds) -> FlatPreds:
        scenes = len(preds.cls_preds)
        logits = preds.cls_preds.float().reshape(scenes, -1, self.num_class)  # (B, A, K)
        codes = preds.box_preds.float().reshape(scenes, -1, self.coder.code_size)  # (B, A, code)
        directions = None
        if preds.dir_cls_preds is not None:
            directions = preds.dir_cls_preds.float().reshape(scenes, -1, self.direction.count)  # (B, A, bins)
        return FlatPreds([ClassLogits(logits, self.class_labels)], codes, directions)
