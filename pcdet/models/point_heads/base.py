"""What all heads over points share: class scores, targets, losses, and boxes."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pcdet.layers.fc import linear_stack
from pcdet.models.assigners.point_targets import match_points, part_locations
from pcdet.models.box_coders.point_residual import PointResidualCoder
from pcdet.models.candidates import Candidates
from pcdet.models.losses.normalizer import normalizer
from pcdet.models.losses.pointwise import sigmoid_focal_loss, smooth_l1_loss
from pcdet.structures.dataset_info import DatasetInfo

BETAS = {"smooth-l1": 1.0, "l1": 0.0, "WeightedSmoothL1Loss": 1 / 9}


class PointCoderConfig(TypedDict, total=False):
    """Options of the box coder, see :class:`PointResidualCoder`; the sizes are those of the classes in their order."""

    use_mean_size: bool
    mean_size: list[list[float]]


class PointTargetConfig(TypedDict, total=False):
    """The block TARGET_CONFIG of a point head. GT_EXTRA_WIDTH: metres around a box whose points are not judged."""

    GT_EXTRA_WIDTH: list[float]
    BOX_CODER: Literal["PointResidualCoder"]
    BOX_CODER_CONFIG: PointCoderConfig


class PointLossWeights(TypedDict, total=False):
    """Factors of the loss terms, 1 where not given, and of the codes of a box."""

    point_cls_weight: float
    point_part_weight: float
    point_box_weight: float
    code_weights: list[float]


class PointLossConfig(TypedDict, total=False):
    """The block LOSS_CONFIG of a point head. LOSS_REG is the loss of the codes of a box."""

    LOSS_REG: Literal["smooth-l1", "l1", "WeightedSmoothL1Loss"]
    LOSS_WEIGHTS: PointLossWeights


class PointTargets(NamedTuple):
    """What the predictions should be. P of the N points lie on objects."""

    labels: Tensor  # (N,) int64: 1-based class (1 where the head is class-agnostic), 0 background, -1 not judged
    positives: Tensor  # (P,) rows of the labels above 0
    parts: Tensor  # (P, 3) where in its object each lies, in [0, 1]
    codes: Tensor | None  # (P, 8) its object relative to it; None where the head predicts no boxes


class PointHead(nn.Module):
    """Base of the heads that judge points: which of them lie on objects, and on objects of which class.

    A head adds ``forward``, whose NamedTuple holds ``point_cls_preds`` (N, K) and, where the head predicts them,
    ``point_part_preds`` (N, 3) and ``point_box_preds`` (N, 8). The steps around it are the same for all.
    """

    def __init__(
        self,
        info: DatasetInfo,
        in_channels: int,
        *,
        cls_fc: Sequence[int],
        class_agnostic: bool,
        target_config: PointTargetConfig,
        loss_config: PointLossConfig,
    ):
        super().__init__()
        self.num_class = 1 if class_agnostic else info.num_class
        self.extra_width = target_config.get("GT_EXTRA_WIDTH", [0.0, 0.0, 0.0])
        self.loss_weights = loss_config.get("LOSS_WEIGHTS", {})
        loss_name = loss_config.get("LOSS_REG", "smooth-l1")
        if loss_name not in BETAS:
            raise ValueError(f"{type(self).__name__}: LOSS_REG may be {', '.join(BETAS)}, not '{loss_name}'")
        self.beta = BETAS[loss_name]
        self.box_coder: PointResidualCoder | None = None
        self.cls_layers = linear_stack(in_channels, cls_fc, self.num_class)

    @property
    def predicts_boxes(self) -> bool:
        """Whether the head can be a first stage: :meth:`decode` needs it."""
        return self.box_coder is not None

    def _add_box_layers(
        self, info: DatasetInfo, in_channels: int, reg_fc: Sequence[int], target_config: PointTargetConfig
    ) -> None:
        coder = PointResidualCoder(**target_config.get("BOX_CODER_CONFIG", {}))
        name, size = type(self).__name__, coder.code_size
        if coder.use_mean_size and len(coder.mean_size) < info.num_class:
            raise ValueError(f"{name}: mean_size has {len(coder.mean_size)} rows for {info.num_class} classes")
        weights = self.loss_weights.get("code_weights", [1.0] * size)
        if len(weights) != size:
            raise ValueError(f"{name}: code_weights has {len(weights)} numbers, the box coder {size}")
        self.register_buffer("code_weights", torch.tensor(weights, dtype=torch.float32), persistent=False)
        self.box_coder = coder
        self.box_layers = linear_stack(in_channels, reg_fc, size)

    def assign(
        self,
        point_coords: Tensor,  # (N, 4) scene, x, y, z
        gt_boxes: Tensor,  # (B, M, 8) padded with zero rows
    ) -> PointTargets:
        """What the points are to predict."""
        matching = match_points(point_coords, gt_boxes, self.extra_width)
        labels = matching.labels.clamp(max=1) if self.num_class == 1 else matching.labels
        points, boxes = point_coords[matching.positives, 1:4], matching.boxes
        codes = self.box_coder.encode(boxes[:, :7], points, boxes[:, 7].long()) if self.predicts_boxes else None
        return PointTargets(labels, matching.positives, part_locations(points, boxes), codes)

    def loss(self, preds: NamedTuple, targets: PointTargets) -> dict[str, Tensor]:
        """Scalars, means over the points on objects: ``point_loss_cls`` and, where predicted, ``point_loss_part`` and
        ``point_loss_box``. Without such points the last two are 0 and still connected to the predictions.
        """
        losses = {"point_loss_cls": self._class_loss(preds.point_cls_preds.float(), targets)}
        if hasattr(preds, "point_part_preds"):
            losses["point_loss_part"] = self._part_loss(preds.point_part_preds.float(), targets)
        if self.predicts_boxes:
            losses["point_loss_box"] = self._box_loss(preds.point_box_preds.float(), targets)
        return losses

    def _class_loss(self, logits: Tensor, targets: PointTargets) -> Tensor:
        wanted = torch.zeros_like(logits)  # (N, K)
        wanted[targets.positives, targets.labels[targets.positives] - 1] = 1
        judged = (targets.labels >= 0).unsqueeze(1)
        total = torch.where(judged, sigmoid_focal_loss(logits, wanted), 0).sum()
        return total / normalizer(len(targets.positives)) * self.loss_weights.get("point_cls_weight", 1.0)

    def _part_loss(self, logits: Tensor, targets: PointTargets) -> Tensor:
        chosen = logits[targets.positives]  # (P, 3)
        total = F.binary_cross_entropy_with_logits(chosen, targets.parts.float(), reduction="sum")
        return total / (3 * normalizer(len(chosen))) * self.loss_weights.get("point_part_weight", 1.0)

    def _box_loss(self, codes: Tensor, targets: PointTargets) -> Tensor:
        chosen = codes[targets.positives]  # (P, 8)
        total = smooth_l1_loss(chosen, targets.codes, self.code_weights, self.beta).sum()
        return total / normalizer(len(chosen)) * self.loss_weights.get("point_box_weight", 1.0)

    def decode(self, preds: NamedTuple, point_coords: Tensor, batch_size: int) -> list[Candidates]:
        """The box that each point predicts, scene by scene; for heads with ``predicts_boxes``.

        A box has the size and the code of its point's best class.
        """
        logits = preds.point_cls_preds.float()  # (N, K)
        classes = logits.argmax(dim=1) + 1
        boxes = self.box_coder.decode(preds.point_box_preds.float(), point_coords[:, 1:4], classes)  # (N, 7)
        scenes = [point_coords[:, 0] == scene for scene in range(batch_size)]
        return [Candidates(boxes[own], logits[own]) for own in scenes]


def class_scores(logits: Tensor) -> Tensor:
    """How sure a head is that each point lies on an object of any class. (N, K) logits -> (N,) in [0, 1]"""
    return logits.sigmoid().max(dim=1).values
