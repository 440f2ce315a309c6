"""One shared head over anchors of every class (SECOND, sec. 3.2-3.3; PointPillars, sec. 2.3 and 3.2)."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pcdet.models.assigners.axis_aligned import AnchorSet, match_anchors, sample_anchors
from pcdet.models.box_coders.residual import ResidualCoder
from pcdet.models.dense_heads.anchors import AnchorClass, anchor_grid
from pcdet.models.losses.pointwise import sigmoid_focal_loss, sine_difference, smooth_l1_loss
from pcdet.models.registry import DENSE_HEADS
from pcdet.structures.boxes import limit_period
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.utils.registry import nearest

PRIOR = 0.01  # probability of every class that an untrained head predicts (RetinaNet, sec. 4.1)


class BoxCoderConfig(TypedDict, total=False):
    """Options of the box coder."""

    encode_angle_by_sincos: bool


class TargetAssignerConfig(TypedDict, total=False):
    """How anchors are matched to labelled boxes; see :class:`AnchorHeadSingle`."""

    NAME: Literal["AxisAlignedTargetAssigner"]
    POS_FRACTION: float
    SAMPLE_SIZE: int
    NORM_BY_NUM_EXAMPLES: bool
    MATCH_HEIGHT: bool
    BOX_CODER: Literal["ResidualCoder"]
    BOX_CODER_CONFIG: BoxCoderConfig


class AnchorLossWeights(TypedDict, total=False):
    """Factors of the loss terms, 1 where not given, and of the codes of a box."""

    cls_weight: float
    loc_weight: float
    dir_weight: float
    code_weights: list[float]


class AnchorLossConfig(TypedDict, total=False):
    """Loss terms of the head."""

    REG_LOSS_TYPE: Literal["WeightedSmoothL1Loss", "WeightedL1Loss"]
    LOSS_WEIGHTS: AnchorLossWeights


class AnchorPreds(NamedTuple):
    """Raw predictions at every cell, for its A anchors."""

    cls_preds: Tensor  # (B, Y, X, A * K) logits
    box_preds: Tensor  # (B, Y, X, A * code)
    dir_cls_preds: Tensor | None  # (B, Y, X, A * bins) logits


class AnchorTargets(NamedTuple):
    """What the predictions should be. P positives in the whole batch, A anchors a scene."""

    labels: Tensor  # (B, A) int32: 1-based class, 0 background, -1 not judged
    positives: Tensor  # (P,) flat indices into (B, A)
    boxes: Tensor  # (P, 7) the labelled box of each
    codes: Tensor  # (P, code) that box relative to the anchor
    weights: Tensor  # (P,) of its box in the loss


class AnchorBoxes(NamedTuple):
    """Decoded predictions, A anchors a scene."""

    boxes: Tensor  # (B, A, 7)
    logits: Tensor  # (B, A, K)


@DENSE_HEADS.register
class AnchorHeadSingle(nn.Module):
    """Predicts class, box and facing of every anchor by 1 x 1 convolutions.

    Three pure steps: ``forward`` predicts, ``loss`` compares with what ``assign`` made of the labels, ``decode`` makes
    boxes. ``anchor_generator_config`` has one block a class, ``class_agnostic`` predicts only object or not.

    A heading is learned up to half a turn, and with ``use_direction_classifier`` one of ``num_dir_bins`` bins, which
    start at ``dir_offset``, says which way it faces; ``dir_limit_offset`` shifts the wrapping of the decoded angle.

    ``target_assigner_config``: POS_FRACTION of at least 0 judges SAMPLE_SIZE random anchors a scene, that fraction of
    them positive at the most; below 0 every anchor counts. MATCH_HEIGHT matches by volume instead of from above.
    A box's weight in the loss is one over the scene's positives, with NORM_BY_NUM_EXAMPLES over its judged anchors
    (as in SECOND; OpenPCDet reads that option, but its loss does not heed it).
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
        super().__init__()
        self.num_class = 1 if class_agnostic else info.num_class
        self.dir_offset = dir_offset
        self.dir_limit_offset = dir_limit_offset
        self.num_dir_bins = num_dir_bins

        self.assigner = target_assigner_config
        self.samples_anchors = target_assigner_config.get("POS_FRACTION", -1) >= 0
        self.coder = ResidualCoder(**target_assigner_config.get("BOX_CODER_CONFIG", {}))
        self.loss_weights = loss_config.get("LOSS_WEIGHTS", {})
        self.plain_l1 = loss_config.get("REG_LOSS_TYPE") == "WeightedL1Loss"
        weights = self.loss_weights.get("code_weights", [1.0] * self.coder.code_size)
        if len(weights) != self.coder.code_size:
            raise ValueError(
                f"AnchorHeadSingle: code_weights has {len(weights)} numbers, the box coder {self.coder.code_size}"
            )
        self.register_buffer("code_weights", torch.tensor(weights, dtype=torch.float32), persistent=False)

        self.feature_map_stride = _stride(anchor_generator_config)
        grids = [anchor_grid(info, block) for block in anchor_generator_config]  # (Y, X, k, 7) each
        self.anchor_sets = _anchor_sets(info, anchor_generator_config, [grid.shape[2] for grid in grids])
        self.register_buffer("anchors", torch.cat(grids, dim=2), persistent=False)  # (Y, X, A, 7)

        width, per_cell = channels["spatial_features_2d"], self.anchors.shape[2]
        self.conv_cls = nn.Conv2d(width, per_cell * self.num_class, 1)
        self.conv_box = nn.Conv2d(width, per_cell * self.coder.code_size, 1)
        self.conv_dir_cls = nn.Conv2d(width, per_cell * num_dir_bins, 1) if use_direction_classifier else None
        nn.init.constant_(self.conv_cls.bias, -math.log((1 - PRIOR) / PRIOR))
        nn.init.normal_(self.conv_box.weight, mean=0, std=0.001)

    def forward(
        self,
        spatial_features_2d: Tensor,  # (B, C, Y, X)
    ) -> AnchorPreds:
        ny, nx = self.anchors.shape[:2]
        if spatial_features_2d.shape[2:] != (ny, nx):
            raise ValueError(
                f"AnchorHeadSingle: the feature map has {tuple(spatial_features_2d.shape[2:])} cells along y and x, "
                f"the anchors {(ny, nx)}; feature_map_stride {self.feature_map_stride} should be the map's stride"
            )

        # One product for all predictions: three convolutions of the same map take three times as long backward.
        layers = [layer for layer in (self.conv_cls, self.conv_box, self.conv_dir_cls) if layer is not None]
        weight = torch.cat([layer.weight.flatten(1) for layer in layers])
        bias = torch.cat([layer.bias for layer in layers])
        outputs = F.linear(spatial_features_2d.permute(0, 2, 3, 1), weight, bias)  # (B, Y, X, A * (K + code + bins))
        parts = outputs.split([layer.out_channels for layer in layers], dim=-1)
        return AnchorPreds(parts[0], parts[1], parts[2] if len(parts) > 2 else None)

    def assign(
        self,
        gt_boxes: Tensor,  # (B, M, 8) padded with zero rows
        generator: torch.Generator | None = None,
    ) -> AnchorTargets:
        """What the anchors of each scene are to predict; ``generator`` draws where anchors are sampled."""
        options = self.assigner
        matching = match_anchors(self.anchors, self.anchor_sets, gt_boxes, options.get("MATCH_HEIGHT", False))
        if self.samples_anchors:
            size = options.get("SAMPLE_SIZE", 512)
            matching = sample_anchors(matching, options["POS_FRACTION"], size, generator)
        labels, positives, boxes = matching
        scene, anchor = positives // labels.shape[1], positives % labels.shape[1]
        by_examples = options.get("NORM_BY_NUM_EXAMPLES", False)
        count = ((labels >= 0) if by_examples else (labels > 0)).sum(1).clamp(min=1)  # (B,)
        codes = self.coder.encode(boxes, self.anchors.reshape(-1, 7)[anchor])
        return AnchorTargets(labels, positives, boxes, codes, 1 / count[scene])

    def loss(self, preds: AnchorPreds, targets: AnchorTargets) -> dict[str, Tensor]:
        """Scalars, means over the scenes: ``rpn_loss_cls``, ``rpn_loss_loc`` and, where it is used, ``rpn_loss_dir``.

        Without positives the last two are 0 and still connected to the predictions.
        """
        losses = {"rpn_loss_cls": self._class_loss(preds.cls_preds, targets)}
        losses["rpn_loss_loc"] = self._box_loss(preds.box_preds, targets)
        if preds.dir_cls_preds is not None:
            losses["rpn_loss_dir"] = self._direction_loss(preds.dir_cls_preds, targets)
        return losses

    def _class_loss(self, cls_preds: Tensor, targets: AnchorTargets) -> Tensor:
        scenes = len(targets.labels)
        logits = cls_preds.float().reshape(scenes, -1, self.num_class)  # (B, A, K)
        wanted = torch.zeros_like(logits)
        label = targets.labels.view(-1)[targets.positives].long()
        column = label - 1 if self.num_class > 1 else torch.zeros_like(label)
        wanted.view(-1, self.num_class)[targets.positives, column] = 1
        count = (targets.labels > 0).sum(1, keepdim=True).clamp(min=1)  # (B, 1)
        weights = (targets.labels >= 0) / count  # (B, A)
        total = (sigmoid_focal_loss(logits, wanted) * weights.unsqueeze(2)).sum()
        return total / scenes * self.loss_weights.get("cls_weight", 1.0)

    def _box_loss(self, box_preds: Tensor, targets: AnchorTargets) -> Tensor:
        codes = box_preds.float().reshape(-1, self.coder.code_size)[targets.positives]  # (P, code)
        wanted = targets.codes
        if not self.coder.encode_angle_by_sincos:
            codes, wanted = sine_difference(codes, wanted)
        loss = smooth_l1_loss(codes, wanted, self.code_weights, beta=0.0 if self.plain_l1 else 1 / 9)
        total = (loss * targets.weights.unsqueeze(1)).sum()
        return total / len(targets.labels) * self.loss_weights.get("loc_weight", 1.0)

    def _direction_loss(self, dir_cls_preds: Tensor, targets: AnchorTargets) -> Tensor:
        logits = dir_cls_preds.float().reshape(-1, self.num_dir_bins)[targets.positives]  # (P, bins)
        heading = limit_period(targets.boxes[:, 6] - self.dir_offset, 0, 2 * math.pi)
        bins = (heading / (2 * math.pi / self.num_dir_bins)).floor().long().clamp(0, self.num_dir_bins - 1)  # (P,)
        total = (F.cross_entropy(logits, bins, reduction="none") * targets.weights).sum()
        return total / len(targets.labels) * self.loss_weights.get("dir_weight", 1.0)

    def decode(self, preds: AnchorPreds) -> AnchorBoxes:
        """Boxes and class logits of all anchors."""
        scenes = len(preds.cls_preds)
        codes = preds.box_preds.float().reshape(scenes, -1, self.coder.code_size)  # (B, A, code)
        boxes = self.coder.decode(codes, self.anchors.reshape(-1, 7))  # (B, A, 7)
        if preds.dir_cls_preds is not None:
            bins = preds.dir_cls_preds.reshape(scenes, -1, self.num_dir_bins).argmax(-1)  # (B, A)
            period = 2 * math.pi / self.num_dir_bins
            turn = limit_period(boxes[..., 6] - self.dir_offset, self.dir_limit_offset, period)
            heading = turn + self.dir_offset + period * bins
            boxes = torch.cat([boxes[..., :6], heading.unsqueeze(-1), boxes[..., 7:]], dim=-1)
        return AnchorBoxes(boxes, preds.cls_preds.float().reshape(scenes, -1, self.num_class))


def _stride(blocks: Sequence[AnchorClass]) -> int:
    """The one stride of all blocks. Raises ``ValueError`` where there is none or more than one."""
    strides = {block["feature_map_stride"] for block in blocks}
    if len(strides) != 1:
        raise ValueError(
            f"AnchorHeadSingle: ANCHOR_GENERATOR_CONFIG needs one feature_map_stride for all classes, not {strides}"
        )
    return strides.pop()


def _anchor_sets(info: DatasetInfo, blocks: Sequence[AnchorClass], counts: Sequence[int]) -> tuple[AnchorSet, ...]:
    """The slots of a cell that belong to each block. Raises ``ValueError`` for unknown classes and bad thresholds."""
    sets = []
    for i, (block, count) in enumerate(zip(blocks, counts, strict=True)):
        where, name = f"AnchorHeadSingle: ANCHOR_GENERATOR_CONFIG[{i}]", block["class_name"]
        if name not in info.class_names:
            raise ValueError(f"{where}: class_name '{name}' is not in CLASS_NAMES.{nearest(name, info.class_names)}")
        matched, unmatched = block["matched_threshold"], block["unmatched_threshold"]
        if not 0 < unmatched <= matched <= 1:
            raise ValueError(
                f"{where}: unmatched_threshold {unmatched} and matched_threshold {matched} must be above 0, at most 1, "
                "and the second not below the first"
            )
        sets.append(AnchorSet(info.class_names.index(name) + 1, sum(counts[:i]), count, matched, unmatched))
    missing = set(info.class_names) - {block["class_name"] for block in blocks}
    if missing:
        raise ValueError(f"AnchorHeadSingle: ANCHOR_GENERATOR_CONFIG has no block for {sorted(missing)}")
    return tuple(sets)
