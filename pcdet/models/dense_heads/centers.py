"""Parts of :class:`pcdet.models.dense_heads.center_head.CenterHead`: its options, branches, and boxes from maps."""

from collections.abc import Mapping
from functools import partial
from typing import Literal, NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from pcdet.models.assigners.heatmap import MapGrid

BRANCHES = {"center": 2, "center_z": 1, "dim": 3, "rot": 2, "vel": 2, "iou": 1}  # channels of each
BY_CLASS = ("class_specific_nms", "multi_class_nms")  # types of suppression of each class by itself
HEATMAP_BIAS = -2.19  # sigmoid of it is 0.1: what an untrained head says of every cell (Objects as Points, sec. 4.1)


class BranchConfig(TypedDict):
    """One quantity: its channels, and the convolutions that predict it."""

    out_channels: int
    num_conv: int


class SeparateHeadConfig(TypedDict):
    """What a head predicts beside the heatmap. HEAD_ORDER lists what makes a box, HEAD_DICT describes every branch."""

    HEAD_ORDER: list[str]
    HEAD_DICT: dict[str, BranchConfig]


class _Stride(TypedDict):
    FEATURE_MAP_STRIDE: int


class CenterTargetConfig(_Stride, total=False):
    """How peaks are drawn; see :func:`pcdet.models.assigners.heatmap.peak_targets`. DENSE_REG has no effect."""

    NUM_MAX_OBJS: int
    GAUSSIAN_OVERLAP: float
    MIN_RADIUS: int
    DENSE_REG: int


class CenterLossWeights(TypedDict):
    """Factors of the loss terms, and of the codes of a box."""

    cls_weight: float
    loc_weight: float
    code_weights: list[float]


class CenterLossConfig(TypedDict):
    """Loss terms of the head."""

    LOSS_WEIGHTS: CenterLossWeights


class CenterNms(TypedDict, total=False):
    """How boxes of a head suppress one another; see :class:`~pcdet.models.dense_heads.center_head.CenterHead`."""

    NMS_TYPE: Literal["nms_gpu", "nms_normal_gpu", "class_specific_nms", "multi_class_nms", "circle_nms"]
    NMS_THRESH: float | list[float]
    NMS_PRE_MAXSIZE: int | list[int]
    NMS_POST_MAXSIZE: int | list[int]
    SCORE_THRESH: float | list[float]


class CenterPostProcessing(TypedDict, total=False):
    """Which peaks become boxes."""

    SCORE_THRESH: float
    POST_CENTER_LIMIT_RANGE: list[float]
    MAX_OBJ_PER_SAMPLE: int
    USE_IOU_TO_RECTIFY_SCORE: bool
    IOU_RECTIFIER: list[float]
    NMS_CONFIG: CenterNms


class Peaks(NamedTuple):
    """The best cells of a heatmap."""

    scores: Tensor  # (B, N) descending
    cells: Tensor  # (B, N) int64; y * X + x
    classes: Tensor  # (B, N) int64, from 0


class SeparateHead(nn.ModuleDict):
    """One stack of 3 x 3 convolutions for every quantity (Yin et al., sec. 4.1), on a shared map."""

    def __init__(self, width: int, branches: Mapping[str, BranchConfig], bias: bool, norm: partial):
        super().__init__({name: _branch(width, block, bias, norm) for name, block in branches.items()})
        nn.init.constant_(self["hm"][-1].bias, HEATMAP_BIAS)
        for name, branch in self.items():
            if name != "hm":
                _init(branch)

    def forward(self, x: Tensor) -> dict[str, Tensor]:  # (B, C, Y, X) -> (B, channels, Y, X) each
        return {name: branch(x) for name, branch in self.items()}


def _branch(width: int, block: BranchConfig, bias: bool, norm: partial) -> nn.Sequential:
    conv = partial(nn.Conv2d, width, kernel_size=3, padding=1)
    hidden = [nn.Sequential(conv(width, bias=bias), norm(width), nn.ReLU()) for _ in range(block["num_conv"] - 1)]
    return nn.Sequential(*hidden, conv(block["out_channels"]))


def _init(branch: nn.Sequential) -> None:
    for layer in branch.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def require_branches(config: SeparateHeadConfig) -> None:
    """Raise ``ValueError`` where the branches are not those of a box, or have other channels."""
    order, blocks = list(config["HEAD_ORDER"]), config["HEAD_DICT"]
    boxes = ["center", "center_z", "dim", "rot"]
    if order not in (boxes, [*boxes, "vel"]):
        raise ValueError(f"CenterHead: HEAD_ORDER is {order}; it must be {boxes}, and may end with vel")
    missing, extra = set(order) - blocks.keys(), blocks.keys() - {*order, "iou"}
    if missing or extra:
        raise ValueError(
            f"CenterHead: HEAD_DICT needs a block for each of HEAD_ORDER and may have iou; "
            f"missing {sorted(missing)}, without use {sorted(extra)}"
        )
    for name, block in blocks.items():
        if block["out_channels"] != BRANCHES[name] or block["num_conv"] < 1:
            raise ValueError(
                f"CenterHead: HEAD_DICT.{name} needs out_channels {BRANCHES[name]} and num_conv of at least 1, "
                f"not {dict(block)}"
            )


def require_post_processing(options: CenterPostProcessing, has_iou: bool, num_class: int) -> None:
    """Raise ``ValueError`` where options are missing or do not fit together."""
    where = "CenterHead: POST_PROCESSING"
    missing = {"SCORE_THRESH", "POST_CENTER_LIMIT_RANGE", "MAX_OBJ_PER_SAMPLE", "NMS_CONFIG"} - options.keys()
    if missing:
        raise ValueError(f"{where} needs {', '.join(sorted(missing))}")
    if len(options["POST_CENTER_LIMIT_RANGE"]) != 6:
        raise ValueError(f"{where}.POST_CENTER_LIMIT_RANGE needs x y z of the lowest and of the highest centre")
    if options.get("USE_IOU_TO_RECTIFY_SCORE", False):
        if not has_iou or len(options.get("IOU_RECTIFIER", ())) != num_class:
            raise ValueError(
                f"{where}: USE_IOU_TO_RECTIFY_SCORE needs the branch iou, and IOU_RECTIFIER for each class"
            )
    nms = options["NMS_CONFIG"]
    if "NMS_THRESH" not in nms:
        raise ValueError(f"{where}.NMS_CONFIG needs NMS_THRESH")
    by_class = nms.get("NMS_TYPE") in BY_CLASS
    for key, value in nms.items():
        if isinstance(value, list | tuple) and not (by_class and len(value) == num_class):
            raise ValueError(
                f"{where}.NMS_CONFIG.{key} is {value}; it needs {'one for each class' if by_class else 'one number'}"
            )


def best_peaks(heatmap: Tensor, count: int) -> Peaks:
    """The ``count`` highest values of a scene's maps (B, K, Y, X), first within each class and then over all."""
    flat = heatmap.flatten(2)  # (B, K, Y * X)
    per_class = min(count, flat.shape[2])
    scores, cells = flat.topk(per_class, dim=2)  # (B, K, n)
    scores, best = scores.flatten(1).topk(min(count, scores.shape[1] * per_class), dim=1)  # (B, N)
    return Peaks(scores, cells.flatten(1).gather(1, best), best // per_class)


def rows_at(maps: Tensor, cell: Tensor) -> Tensor:
    """Values of maps (B, C, Y, X) at cells of each scene: (B, T) -> (B, T, C) float32."""
    flat = maps.flatten(2)  # (B, C, Y * X)
    return flat.gather(2, cell.unsqueeze(1).expand(-1, flat.shape[1], -1)).transpose(1, 2).float()


def boxes_at(
    maps: Mapping[str, Tensor],  # (B, channels, Y, X) of each branch
    cell: Tensor,  # (B, T) int64; y * X + x
    grid: MapGrid,
) -> Tensor:
    """Boxes that a head predicts at the given cells. -> (B, T, 7), or (B, T, 9) with velocity"""
    return boxes_from({name: rows_at(maps[name], cell) for name in BRANCHES if name in maps}, cell, grid)


def boxes_from(at: Mapping[str, Tensor], cell: Tensor, grid: MapGrid) -> Tensor:
    """The same from the values (B, T, channels) of each branch at the cells (B, T)."""
    width = grid.shape[1]
    corner = torch.stack([cell % width, cell // width], dim=-1)  # (..., 2) x, y
    heading = torch.atan2(at["rot"][..., 1:], at["rot"][..., :1])
    parts = [grid.to_metres(corner + at["center"]), at["center_z"], at["dim"].exp(), heading]
    return torch.cat([*parts, at["vel"]] if "vel" in at else parts, dim=-1)
