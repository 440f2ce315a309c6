"""What heads over anchors share: targets, losses, decoding (SECOND, sec. 3.2-3.3; PointPillars, sec. 2.3 and 3.2)."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pcdet.models.assigners.atss import match_anchors_adaptively
from pcdet.models.assigners.axis_aligned import AnchorSet, Matching, match_anchors, sample_anchors
from pcdet.models.box_coders.choice import AnchorCoderConfig, AnchorCoderName, anchor_coder
from pcdet.models.candidates import Candidates
from pcdet.models.dense_heads.anchors import AnchorClass, anchor_grid
from pcdet.models.losses.normalizer import normalizer
from pcdet.models.losses.pointwise import sigmoid_focal_loss, sine_difference, smooth_l1_loss
from pcdet.structures.boxes import limit_period, wrap_angle
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.utils.registry import nearest

PRIOR_LOGIT = -math.log((1 - 0.01) / 0.01)  # an untrained head gives every class 1 % (RetinaNet, sec. 4.1)


class TargetAssignerConfig(TypedDict, total=False):
    """How anchors are matched to labelled boxes; see :class:`AnchorHead`."""

    NAME: Literal["AxisAlignedTargetAssigner", "ATSS"]
    TOPK: int
    POS_FRACTION: float
    SAMPLE_SIZE: int
    NORM_BY_NUM_EXAMPLES: bool
    MATCH_HEIGHT: bool
    BOX_CODER: AnchorCoderName
    BOX_CODER_CONFIG: AnchorCoderConfig


class AnchorLossWeights(TypedDict, total=False):
    """Factors of the loss terms, 1 where not given, and of the codes of a box."""

    cls_weight: float
    loc_weight: float
    dir_weight: float
    code_weights: list[float]


class RegressionLossConfig(TypedDict, total=False):
    """What all heads over anchors can choose in LOSS_CONFIG."""

    REG_LOSS_TYPE: Literal["WeightedSmoothL1Loss", "WeightedL1Loss"]


class AnchorLossConfig(RegressionLossConfig, total=False):
    """Loss terms of the head."""

    LOSS_WEIGHTS: AnchorLossWeights


class DirectionBins(NamedTuple):
    """Headings are learned up to a turn of one bin; a classifier says which of the bins, from ``offset`` on, is meant.

    ``limit_offset`` shifts the wrapping of the decoded angle. Without a classifier ``count`` is 0.
    """

    count: int
    offset: float
    limit_offset: float

    @property
    def period(self) -> float:
        return 2 * math.pi / self.count

    def of(self, heading: Tensor) -> Tensor:
        """The bins that headings lie in, int64."""
        turned = limit_period(heading - self.offset, 0, 2 * math.pi)
        return (turned / self.period).floor().long().clamp(0, self.count - 1)

    def into(self, heading: Tensor, bins: Tensor) -> Tensor:
        """Headings turned into their bins."""
        turn = limit_period(heading - self.offset, self.limit_offset, self.period)
        return turn + self.offset + self.period * bins


class AnchorTargets(NamedTuple):
    """What the predictions should be. P positives in the whole batch, A anchors a scene."""

    labels: Tensor  # (B, A) int32: 1-based class, 0 background, -1 not judged
    positives: Tensor  # (P,) flat indices into (B, A)
    boxes: Tensor  # (P, 7) the labelled box of each, its heading as the box coder counts it
    codes: Tensor  # (P, code) that box relative to the anchor
    weights: Tensor  # (P,) of its box in the loss


class ClassLogits(NamedTuple):
    """Class predictions of neighbouring anchors."""

    logits: Tensor  # (B, A_g, K_g)
    labels: Tensor  # (K_g,) int64, 1-based: the class of each column


class FlatPreds(NamedTuple):
    """Predictions of all anchors in the order of :meth:`AnchorHead.flat_anchors`."""

    classes: list[ClassLogits]  # group after group of anchors, A in all
    codes: Tensor  # (B, A, code)
    directions: Tensor | None  # (B, A, bins) logits


class AnchorHead(nn.Module):
    """Base of heads that predict class, box and facing of anchors; a subclass says how it predicts.

    Three pure steps: the subclass's ``forward`` predicts, ``loss`` compares with what ``assign`` made of the labels,
    ``decode`` makes boxes.

    ``target_assigner_config``: NAME says which anchors find which boxes, those above fixed thresholds or, with ATSS,
    those of the TOPK nearest ones that stand out. MATCH_HEIGHT matches by volume instead of from above. POS_FRACTION
    of at least 0, which ATSS does not heed, judges SAMPLE_SIZE random anchors a scene, that fraction of them positive
    at the most; below 0 every anchor counts. A box's weight in the loss is one over the scene's positives, with
    NORM_BY_NUM_EXAMPLES over its judged anchors (as in SECOND; OpenPCDet reads that option, but its loss does not
    heed it).
    """

    kinds_first = False  # whether the anchors of one kind follow each other, instead of those of one cell
    positive_weight = negative_weight = 1.0  # of anchors in the class loss

    def __init__(
        self,
        info: DatasetInfo,
        blocks: Sequence[AnchorClass],
        assigner: TargetAssignerConfig,
        loss_config: RegressionLossConfig,
        direction: DirectionBins,
        class_agnostic: bool,
    ):
        super().__init__()
        self.class_agnostic = class_agnostic
        self.num_class = 1 if class_agnostic else info.num_class
        self.direction = direction

        self.assigner = assigner
        self.adaptive = assigner.get("NAME") == "ATSS"
        if self.adaptive and assigner.get("TOPK", 0) < 1:
            raise ValueError(f"{self._name}: TARGET_ASSIGNER_CONFIG needs TOPK of at least 1 for ATSS")
        self.samples_anchors = not self.adaptive and assigner.get("POS_FRACTION", -1) >= 0
        self.coder = anchor_coder(assigner)
        self.loss_weights = loss_config.get("LOSS_WEIGHTS", {})
        self.plain_l1 = loss_config.get("REG_LOSS_TYPE") == "WeightedL1Loss"
        weights = self.loss_weights.get("code_weights", [1.0] * self.coder.code_size)
        if len(weights) != self.coder.code_size:
            raise ValueError(
                f"{self._name}: code_weights has {len(weights)} numbers, the box coder {self.coder.code_size}"
            )
        self.register_buffer("code_weights", torch.tensor(weights, dtype=torch.float32), persistent=False)

        self.feature_map_stride = self._stride(blocks)
        grids = [anchor_grid(info, block) for block in blocks]  # (Y, X, k, 7) each
        self.anchor_sets = self._anchor_sets(info, blocks, [grid.shape[2] for grid in grids])
        self.register_buffer("anchors", torch.cat(grids, dim=2), persistent=False)  # (Y, X, A, 7)
        self.register_buffer("class_labels", torch.arange(self.num_class) + 1, persistent=False)

    @property
    def _name(self) -> str:
        return type(self).__name__

    def flatten(self, preds: NamedTuple) -> FlatPreds:
        """The subclass's predictions in one order, in float32."""
        raise TypeError(f"{self._name} does not say how its predictions are ordered")

    def flat_anchors(self) -> Tensor:
        """(A, 7), by row, column and kind or, with ``kinds_first``, by kind, row and column."""
        anchors = self.anchors.permute(2, 0, 1, 3) if self.kinds_first else self.anchors
        return anchors.reshape(-1, 7)

    def require_map(self, spatial_features_2d: Tensor) -> None:
        """Raise ``ValueError`` unless a feature map (B, C, Y, X) has a cell for each of the anchors."""
        ny, nx = self.anchors.shape[:2]
        if spatial_features_2d.shape[2:] != (ny, nx):
            raise ValueError(
                f"{self._name}: the feature map has {tuple(spatial_features_2d.shape[2:])} cells along y and x, "
                f"the anchors {(ny, nx)}; feature_map_stride {self.feature_map_stride} should be the map's stride"
            )

    def assign(
        self,
        gt_boxes: Tensor,  # (B, M, 8) padded with zero rows
        generator: torch.Generator | None = None,
    ) -> AnchorTargets:
        """What the anchors of each scene are to predict; ``generator`` draws where anchors are sampled."""
        matching = self._match(gt_boxes, generator)
        labels, positives, boxes = _kinds_first(matching, self.anchors.shape[2]) if self.kinds_first else matching
        scene, anchor = positives // labels.shape[1], positives % labels.shape[1]
        by_examples = self.assigner.get("NORM_BY_NUM_EXAMPLES", False)
        count = ((labels >= 0) if by_examples else (labels > 0)).sum(1).clamp(min=1)  # (B,)
        boxes = self._turned(boxes)
        codes = self.coder.encode(boxes, self.flat_anchors()[anchor])
        return AnchorTargets(labels, positives, boxes, codes, 1 / count[scene])

    def _turned(self, boxes: Tensor) -> Tensor:
        """Boxes (..., 7+) with headings as the coder counts them, or back again; the same for both."""
        if not self.coder.clockwise:
            return boxes
        heading = wrap_angle(-(boxes[..., 6:7] + math.pi / 2))
        return torch.cat([boxes[..., :6], heading, boxes[..., 7:]], dim=-1)

    def _match(self, gt_boxes: Tensor, generator: torch.Generator | None) -> Matching:
        """Ordered by row, column and kind."""
        options = self.assigner
        match_height = options.get("MATCH_HEIGHT", False)
        if self.adaptive:
            return match_anchors_adaptively(self.anchors, self.anchor_sets, gt_boxes, options["TOPK"], match_height)
        matching = match_anchors(self.anchors, self.anchor_sets, gt_boxes, match_height)
        if self.samples_anchors:
            matching = sample_anchors(matching, options["POS_FRACTION"], options.get("SAMPLE_SIZE", 512), generator)
        return matching

    def loss(self, preds: NamedTuple, targets: AnchorTargets) -> dict[str, Tensor]:
        """Scalars, means over the scenes: ``rpn_loss_cls``, ``rpn_loss_loc`` and, where it is used, ``rpn_loss_dir``.

        Without positives the last two are 0 and still connected to the predictions.
        """
        flat = self.flatten(preds)
        scenes = normalizer(len(targets.labels))
        losses = {"rpn_loss_cls": self._class_loss(flat.classes, targets) / scenes * self._weight("cls")}
        losses["rpn_loss_loc"] = self._box_loss(flat.codes, targets) / scenes * self._weight("loc")
        if flat.directions is not None:
            losses["rpn_loss_dir"] = self._direction_loss(flat.directions, targets) / scenes * self._weight("dir")
        return losses

    def _weight(self, term: str) -> float:
        return self.loss_weights.get(f"{term}_weight", 1.0)

    def _class_loss(self, classes: Sequence[ClassLogits], targets: AnchorTargets) -> Tensor:
        labels = targets.labels  # (B, A)
        count = (labels > 0).sum(1, keepdim=True).clamp(min=1)  # (B, 1)
        weights = ((labels > 0) * self.positive_weight + (labels == 0) * self.negative_weight) / count  # (B, A)
        if self.class_agnostic:
            labels = labels.clamp(max=1)
        sizes = [group.logits.shape[1] for group in classes]
        parts = zip(classes, labels.split(sizes, 1), weights.split(sizes, 1), strict=True)
        return sum((_focal_loss(*group, wanted) * weight.unsqueeze(2)).sum() for group, wanted, weight in parts)

    def _box_loss(self, codes: Tensor, targets: AnchorTargets) -> Tensor:
        codes = codes.flatten(0, 1)[targets.positives]  # (P, code)
        wanted = targets.codes
        if self.direction.count and not self.coder.encode_angle_by_sincos:
            codes, wanted = sine_difference(codes, wanted)
        loss = smooth_l1_loss(codes, wanted, self.code_weights, beta=0.0 if self.plain_l1 else 1 / 9)
        return (loss * targets.weights.unsqueeze(1)).sum()

    def _direction_loss(self, directions: Tensor, targets: AnchorTargets) -> Tensor:
        logits = directions.flatten(0, 1)[targets.positives]  # (P, bins)
        loss = F.cross_entropy(logits, self.direction.of(targets.boxes[:, 6]), reduction="none")  # (P,)
        return (loss * targets.weights).sum()

    def decode(self, preds: NamedTuple) -> list[Candidates]:
        """Boxes and class logits of all anchors, one entry a scene; -inf for a class that an anchor's group lacks."""
        flat = self.flatten(preds)
        boxes = self.coder.decode(flat.codes, self.flat_anchors())  # (B, A, 7)
        if flat.directions is not None:
            heading = self.direction.into(boxes[..., 6], flat.directions.argmax(-1))  # (B, A)
            boxes = torch.cat([boxes[..., :6], heading.unsqueeze(-1), boxes[..., 7:]], dim=-1)
        boxes = self._turned(boxes)
        logits = torch.cat([self._all_classes(group) for group in flat.classes], dim=1)  # (B, A, K)
        return [Candidates(*scene) for scene in zip(boxes, logits, strict=True)]

    def _all_classes(self, group: ClassLogits) -> Tensor:
        """(B, A_g, K)"""
        full = group.logits.new_full((*group.logits.shape[:2], self.num_class), float("-inf"))
        full[..., group.labels - 1] = group.logits
        return full

    def _stride(self, blocks: Sequence[AnchorClass]) -> int:
        """The one stride of all blocks. Raises ``ValueError`` where there is none or more than one."""
        strides = {block["feature_map_stride"] for block in blocks}
        if len(strides) != 1:
            raise ValueError(
                f"{self._name}: ANCHOR_GENERATOR_CONFIG needs one feature_map_stride for all classes, not {strides}"
            )
        return strides.pop()

    def _anchor_sets(
        self, info: DatasetInfo, blocks: Sequence[AnchorClass], counts: Sequence[int]
    ) -> tuple[AnchorSet, ...]:
        """The kinds that belong to each block. Raises ``ValueError`` for unknown classes and bad thresholds."""
        sets = []
        for i, (block, count) in enumerate(zip(blocks, counts, strict=True)):
            where, name = f"{self._name}: ANCHOR_GENERATOR_CONFIG[{i}]", block["class_name"]
            if name not in info.class_names:
                raise ValueError(
                    f"{where}: class_name '{name}' is not in CLASS_NAMES.{nearest(name, info.class_names)}"
                )
            matched, unmatched = block["matched_threshold"], block["unmatched_threshold"]
            if not 0 < unmatched <= matched <= 1:
                raise ValueError(
                    f"{where}: unmatched_threshold {unmatched} and matched_threshold {matched} must be above 0, "
                    "at most 1, and the second not below the first"
                )
            sets.append(AnchorSet(info.class_names.index(name) + 1, sum(counts[:i]), count, matched, unmatched))
        missing = set(info.class_names) - {block["class_name"] for block in blocks}
        if missing:
            raise ValueError(f"{self._name}: ANCHOR_GENERATOR_CONFIG has no block for {sorted(missing)}")
        return tuple(sets)


def pointwise(layers: Sequence[nn.Conv2d], features: Tensor) -> list[Tensor]:
    """Convolutions with kernel 1 of the same map (B, C, Y, X). -> (B, Y, X, O) each

    One product for all of them: several convolutions of one map take several times as long backward.
    """
    if not layers:
        return []
    weight = torch.cat([layer.weight.flatten(1) for layer in layers])  # (sum of O, C)
    bias = torch.cat([layer.bias for layer in layers])
    outputs = F.linear(features.permute(0, 2, 3, 1), weight, bias)
    return list(outputs.split([layer.out_channels for layer in layers], dim=-1))


def _focal_loss(
    logits: Tensor,  # (B, A, K)
    classes: Tensor,  # (K,) of the columns
    labels: Tensor,  # (B, A) int32
) -> Tensor:
    """(B, A, K)"""
    wanted = (labels.unsqueeze(2) == classes.to(labels.dtype)).to(logits.dtype)  # none for labels of 0 and -1
    return sigmoid_focal_loss(logits, wanted)


def _kinds_first(matching: Matching, kinds: int) -> Matching:
    """The same targets, in the order kind, row, column instead of row, column, kind."""
    scenes, total = matching.labels.shape
    labels = matching.labels.view(scenes, -1, kinds).transpose(1, 2).reshape(scenes, total)
    scene, anchor = matching.positives // total, matching.positives % total
    place = scene * total + anchor % kinds * (total // kinds) + anchor // kinds  # (P,)
    order = place.argsort()
    return Matching(labels, place[order], matching.boxes[order])
