"""One head for each group of classes (Zhu et al., "Class-balanced Grouping and Sampling for Point Cloud 3D Object
Detection", 2019, sec. 3.4; Yang et al., "Object Detection Challenge of nuScenes", multi-group head)."""

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from pcdet.models.dense_heads.anchor_head import (
    PRIOR_LOGIT,
    AnchorHead,
    AnchorLossWeights,
    ClassLogits,
    DirectionBins,
    FlatPreds,
    RegressionLossConfig,
    TargetAssignerConfig,
    pointwise,
)
from pcdet.models.dense_heads.anchors import AnchorClass
from pcdet.models.registry import DENSE_HEADS
from pcdet.structures.dataset_info import DatasetInfo


class RpnHeadConfig(TypedDict):
    """One block of RPN_HEAD_CFGS."""

    HEAD_CLS_NAME: list[str]


class SeparateRegConfig(TypedDict):
    """Codes of a box that have layers of their own, ``name:channels`` each, behind 3 x 3 convolutions."""

    NUM_MIDDLE_CONV: int
    NUM_MIDDLE_FILTER: int
    REG_LIST: list[str]


class MultiHeadLossWeights(AnchorLossWeights, total=False):
    """Besides: factors of positive and of negative anchors in the class loss."""

    pos_cls_weight: float
    neg_cls_weight: float


class MultiHeadLossConfig(RegressionLossConfig, total=False):
    """Loss terms of the heads."""

    LOSS_WEIGHTS: MultiHeadLossWeights


class MultiHeadPreds(NamedTuple):
    """Raw predictions, head by head, each for its A_h anchors ordered by kind, row and column."""

    cls_preds: list[Tensor]  # (B, A_h, K_h) logits
    box_preds: list[Tensor]  # (B, A_h, code)
    dir_cls_preds: list[Tensor] | None  # (B, A_h, bins) logits


class RpnHead(nn.Module):
    """Predictions for the anchors of some classes.

    ``head_label_indices``, a part of checkpoints, holds the 1-based labels of these classes.
    """

    def __init__(
        self,
        width: int,
        labels: Sequence[int],
        num_kinds: int,
        num_class: int,
        code_size: int,
        num_bins: int,
        separate: SeparateRegConfig | None,
    ):
        super().__init__()
        self.num_kinds, self.separate = num_kinds, separate is not None
        self.register_buffer("head_label_indices", torch.tensor(labels, dtype=torch.int64))
        if separate is None:
            self.conv_cls = nn.Conv2d(width, num_kinds * num_class, 1)
            self.conv_box = nn.Conv2d(width, num_kinds * code_size, 1)
            nn.init.constant_(self.conv_cls.bias, PRIOR_LOGIT)
        else:
            # Before the class layers, in the order of OpenPCDet's parameters.
            self.conv_box = nn.ModuleDict()
            self.conv_cls = _branch(width, num_kinds * num_class, separate)
            nn.init.constant_(self.conv_cls[-1].bias, PRIOR_LOGIT)
            for name, size in _code_parts(separate["REG_LIST"], code_size):
                self.conv_box[f"conv_{name}"] = _branch(width, num_kinds * size, separate)
            for layer in self.conv_box.modules():
                if isinstance(layer, nn.Conv2d):
                    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                    if layer.bias is not None:
                        nn.init.zeros_(layer.bias)
        self.conv_dir_cls = nn.Conv2d(width, num_kinds * num_bins, 1) if num_bins else None

    def pointwise_layers(self) -> list[nn.Conv2d]:
        """The layers with kernel 1, in the order of :class:`MultiHeadPreds`."""
        layers = [] if self.separate else [self.conv_cls, self.conv_box]
        return layers if self.conv_dir_cls is None else [*layers, self.conv_dir_cls]

    def forward(
        self,
        features: Tensor,  # (B, C, Y, X)
        parts: Sequence[Tensor],  # (B, Y, X, A * n) each, what the pointwise layers make of them
    ) -> list[Tensor]:
        """Classes, boxes and, where they are predicted, directions. -> (B, A * Y * X, n) each"""
        if self.separate:
            # The channels of all branches count as one map's: with several anchors a cell, the codes of an anchor are
            # not those of the branches' names. Checkpoints of OpenPCDet are trained like this.
            codes = torch.cat([branch(features) for branch in self.conv_box.values()], dim=1)  # (B, A * code, Y, X)
            parts = [self.conv_cls(features).permute(0, 2, 3, 1), codes.permute(0, 2, 3, 1), *parts]
        return [self._by_kind(part) for part in parts]

    def _by_kind(self, part: Tensor) -> Tensor:
        """(B, Y, X, A * n) -> (B, A * Y * X, n)"""
        scenes, ny, nx, _ = part.shape
        by_cell = part.reshape(scenes, ny * nx, self.num_kinds, -1)
        return by_cell.transpose(1, 2).reshape(scenes, self.num_kinds * ny * nx, by_cell.shape[-1])


def _branch(width: int, channels: int, config: SeparateRegConfig) -> nn.Sequential:
    """3 x 3 convolutions, the last one with ``channels`` outputs."""
    layers: list[nn.Module] = []
    for _ in range(config["NUM_MIDDLE_CONV"]):
        layers += [nn.Conv2d(width, config["NUM_MIDDLE_FILTER"], 3, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(config["NUM_MIDDLE_FILTER"]), nn.ReLU()]
        width = config["NUM_MIDDLE_FILTER"]
    return nn.Sequential(*layers, nn.Conv2d(width, channels, 3, padding=1))


def _code_parts(reg_list: Sequence[str], code_size: int) -> list[tuple[str, int]]:
    """Names and sizes. Raises ``ValueError`` where they do not add up to the box coder's codes."""
    parts = [(name, int(size)) for name, _, size in (entry.partition(":") for entry in reg_list)]
    if sum(size for _, size in parts) != code_size:
        raise ValueError(
            f"AnchorHeadMulti: SEPARATE_REG_CONFIG.REG_LIST {list(reg_list)} has {sum(size for _, size in parts)} "
            f"codes in all, the box coder {code_size}"
        )
    return parts


@DENSE_HEADS.register
class AnchorHeadMulti(AnchorHead):
    """Predicts class, box and facing of anchors, with layers of their own for every group of classes.

    ``rpn_head_cfgs`` divides the classes among the heads. With ``separate_multihead`` a head predicts its own classes
    only, otherwise all. ``shared_conv_num_filter`` puts one 3 x 3 convolution before them, ``separate_reg_config``
    gives parts of a box layers of their own. ``use_multihead`` is OpenPCDet's name for the order of the anchors, head
    after head; it must be true. The other options are those of
    :class:`~pcdet.models.dense_heads.anchor_head_single.AnchorHeadSingle`.
    """

    kinds_first = True

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        anchor_generator_config: list[AnchorClass],
        rpn_head_cfgs: list[RpnHeadConfig],
        target_assigner_config: TargetAssignerConfig,
        loss_config: MultiHeadLossConfig,
        use_multihead: bool = True,
        separate_multihead: bool = False,
        shared_conv_num_filter: int | None = None,
        separate_reg_config: SeparateRegConfig | None = None,
        class_agnostic: bool = False,
        use_direction_classifier: bool = False,
        dir_offset: float = 0.0,
        dir_limit_offset: float = 0.0,
        num_dir_bins: int = 2,
    ):
        if not use_multihead:
            raise ValueError(
                "AnchorHeadMulti: USE_MULTIHEAD must be true; one head for all classes is AnchorHeadSingle"
            )
        direction = DirectionBins(num_dir_bins if use_direction_classifier else 0, dir_offset, dir_limit_offset)
        blocks = _by_head(info, anchor_generator_config, rpn_head_cfgs)
        super().__init__(info, blocks, target_assigner_config, loss_config, direction, class_agnostic)
        self.separate_multihead = separate_multihead and not class_agnostic
        self.positive_weight = self.loss_weights.get("pos_cls_weight", 1.0)
        self.negative_weight = self.loss_weights.get("neg_cls_weight", 1.0)

        width, self.shared_conv = channels["spatial_features_2d"], None
        if shared_conv_num_filter is not None:
            self.shared_conv = _shared_conv(width, shared_conv_num_filter)
            width = shared_conv_num_filter
        self.rpn_heads = nn.ModuleList()
        for config in rpn_head_cfgs:
            labels = [info.class_names.index(name) + 1 for name in config["HEAD_CLS_NAME"]]
            kinds = sum(one.count for one in self.anchor_sets if one.label in labels)
            classes = len(labels) if self.separate_multihead else self.num_class
            sizes = (kinds, classes, self.coder.code_size, direction.count)
            self.rpn_heads.append(RpnHead(width, labels, *sizes, separate_reg_config))

    def forward(
        self,
        spatial_features_2d: Tensor,  # (B, C, Y, X)
    ) -> MultiHeadPreds:
        self.require_map(spatial_features_2d)
        features = spatial_features_2d if self.shared_conv is None else self.shared_conv(spatial_features_2d)
        layers = [head.pointwise_layers() for head in self.rpn_heads]
        parts = iter(pointwise(sum(layers, []), features))
        preds = [head(features, [next(parts) for _ in own]) for head, own in zip(self.rpn_heads, layers, strict=True)]
        logits, codes, *directions = map(list, zip(*preds, strict=True))
        return MultiHeadPreds(logits, codes, directions[0] if directions else None)

    def flatten(self, preds: MultiHeadPreds) -> FlatPreds:
        classes = [
            ClassLogits(logits.float(), head.head_label_indices if self.separate_multihead else self.class_labels)
            for head, logits in zip(self.rpn_heads, preds.cls_preds, strict=True)
        ]
        directions = None if preds.dir_cls_preds is None else torch.cat(preds.dir_cls_preds, dim=1).float()
        return FlatPreds(classes, torch.cat(preds.box_preds, dim=1).float(), directions)


def _shared_conv(width: int, filters: int) -> nn.Sequential:
    norm = nn.BatchNorm2d(filters, eps=1e-3, momentum=0.01)
    return nn.Sequential(nn.Conv2d(width, filters, 3, padding=1, bias=False), norm, nn.ReLU())


def _by_head(info: DatasetInfo, blocks: Sequence[AnchorClass], heads: Sequence[RpnHeadConfig]) -> list[AnchorClass]:
    """The anchor blocks in the order of the heads. Raises ``ValueError`` unless each class has one head."""
    names = [name for head in heads for name in head["HEAD_CLS_NAME"]]
    if sorted(names) != sorted(info.class_names):
        raise ValueError(
            f"AnchorHeadMulti: RPN_HEAD_CFGS must name every class once, {list(info.class_names)}, not {names}"
        )
    return sorted(blocks, key=lambda block: names.index(block["class_name"]) if block["class_name"] in names else -1)
