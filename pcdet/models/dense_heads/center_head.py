"""Objects as peaks of a heatmap (Yin et al., "Center-based 3D Object Detection and Tracking", sec. 4)."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pcdet.models.assigners.heatmap import MapGrid, PeakTargets, peak_targets
from pcdet.models.dense_heads.centers import (
    BRANCHES,
    CenterLossConfig,
    CenterNms,
    CenterPostProcessing,
    CenterTargetConfig,
    SeparateHead,
    SeparateHeadConfig,
    best_peaks,
    boxes_at,
    boxes_from,
    require_branches,
    require_post_processing,
    rows_at,
)
from pcdet.models.losses.heatmap import heatmap_focal_loss, mean_code_error
from pcdet.models.losses.normalizer import normalizer
from pcdet.models.losses.overlap import distance_iou
from pcdet.models.post_processing import suppress
from pcdet.models.registry import DENSE_HEADS
from pcdet.ops.iou3d import boxes_aligned_iou3d
from pcdet.ops.nms import nms_circle
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.structures.detections import Detections
from pcdet.utils.constants import constant

LEAST_PROBABILITY = 1e-4  # the loss takes no logarithm of less


class CenterPreds(NamedTuple):
    """Raw predictions at every cell."""

    # one a head: hm (B, K, Y, X) logits, center (x, y within the cell), center_z (m), dim (log m), rot (cosine, sine),
    # and vel (m/s), iou ([-1, 1] for [0, 1]) where there are such branches
    pred_dicts: list[dict[str, Tensor]]


class CenterTargets(NamedTuple):
    """What the heads should predict, one entry a head; :class:`pcdet.models.assigners.heatmap.PeakTargets`."""

    heatmaps: list[Tensor]  # (B, K, Y, X)
    target_boxes: list[Tensor]  # (B, T, 8+) codes
    inds: list[Tensor]  # (B, T)
    masks: list[Tensor]  # (B, T)
    target_boxes_src: list[Tensor]  # (B, T, 8+) boxes


@DENSE_HEADS.register
class CenterHead(nn.Module):
    """Every object is the peak of its class's heatmap, with its box read off at that cell.

    Three pure steps: ``forward`` predicts, ``loss`` compares with what ``assign`` made of the labels, ``decode`` makes
    detections. ``class_names_each_head`` groups the classes; each group has a head of its own, which draws and
    suppresses only its own boxes. ``separate_head_cfg`` may have a branch ``iou``, which learns how well the box of a
    cell fits, and with ``iou_reg_loss`` the boxes also learn from their overlap with the labels.

    ``post_processing``: of the MAX_OBJ_PER_SAMPLE highest cells of a head those above SCORE_THRESH with a centre in
    POST_CENTER_LIMIT_RANGE remain. USE_IOU_TO_RECTIFY_SCORE makes a score s ``s^(1-a) * iou^a`` with one ``a`` a class
    in IOU_RECTIFIER. NMS_TYPE ``nms_gpu`` and ``nms_normal_gpu`` suppress all boxes of a head together;
    ``class_specific_nms`` (or ``multi_class_nms``) every class by itself, where the numbers may be lists with one entry
    a class, and a SCORE_THRESH of its own is applied first; ``circle_nms`` all centres of a head of which a better one
    is not farther than the root of NMS_THRESH in metres, as ``min_radius`` in CenterPoint's own code.
    """

    ignored_keys = ("CLASS_AGNOSTIC",)

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        class_names_each_head: list[list[str]],
        shared_conv_channel: int,
        num_hm_conv: int,
        separate_head_cfg: SeparateHeadConfig,
        target_assigner_config: CenterTargetConfig,
        loss_config: CenterLossConfig,
        post_processing: CenterPostProcessing,
        use_bias_before_norm: bool = False,
        bn_eps: float = 1e-5,
        bn_mom: float = 0.1,
        iou_reg_loss: bool = False,
    ):
        super().__init__()
        require_branches(separate_head_cfg)
        names = _names_of_heads(info, class_names_each_head)
        self.head_order = list(separate_head_cfg["HEAD_ORDER"])
        branches = dict(separate_head_cfg["HEAD_DICT"])
        self.assigner = target_assigner_config
        self.feature_map_stride = target_assigner_config["FEATURE_MAP_STRIDE"]
        self.grid = MapGrid.of(info, self.feature_map_stride)
        self.loss_weights = loss_config["LOSS_WEIGHTS"]
        self.iou_reg_loss = iou_reg_loss
        self.post_processing = post_processing
        require_post_processing(post_processing, "iou" in branches, info.num_class)
        self._register_tables(info, names)

        norm = partial(nn.BatchNorm2d, eps=bn_eps, momentum=bn_mom)
        width = channels["spatial_features_2d"]
        self.shared_conv = nn.Sequential(
            nn.Conv2d(width, shared_conv_channel, 3, padding=1, bias=use_bias_before_norm),
            norm(shared_conv_channel),
            nn.ReLU(),
        )
        heatmaps = [{"hm": {"out_channels": len(group), "num_conv": num_hm_conv}} for group in names]
        self.heads_list = nn.ModuleList(
            SeparateHead(shared_conv_channel, branches | heatmap, use_bias_before_norm, norm) for heatmap in heatmaps
        )

    def _register_tables(self, info: DatasetInfo, names: list[list[str]]) -> None:
        """Which classes are whose, and the factors of the codes."""
        codes = sum(BRANCHES[name] for name in self.head_order)
        weights = torch.tensor(self.loss_weights["code_weights"], dtype=torch.float32)
        if len(weights) != codes:
            raise ValueError(f"CenterHead: code_weights has {len(weights)} numbers, HEAD_ORDER makes {codes} codes")
        self.register_buffer("code_weights", weights, persistent=False)
        self.class_ids = [[info.class_names.index(name) for name in group] for group in names]  # from 0, head by head
        local = torch.full((len(names), info.num_class + 1), -1)
        for head, ids in enumerate(self.class_ids):
            local[head, torch.tensor(ids) + 1] = torch.arange(len(ids))
        self.register_buffer("local_class", local, persistent=False)  # (heads, 1 + classes); -1 where not the head's

    def forward(
        self,
        spatial_features_2d: Tensor,  # (B, C, Y, X)
    ) -> CenterPreds:
        if spatial_features_2d.shape[2:] != self.grid.shape:
            raise ValueError(
                f"CenterHead: the feature map has {tuple(spatial_features_2d.shape[2:])} cells along y and x, the grid "
                f"{self.grid.shape}; FEATURE_MAP_STRIDE {self.feature_map_stride} should be the map's stride"
            )
        x = self.shared_conv(spatial_features_2d)  # (B, C', Y, X)
        return CenterPreds([head(x) for head in self.heads_list])

    def assign(
        self,
        gt_boxes: Tensor,  # (B, M, 8+) padded with zero rows
        generator: torch.Generator | None = None,
    ) -> CenterTargets:
        """What the heads are to predict; nothing is drawn. Raises ``ValueError`` where velocities are missing."""
        if gt_boxes.shape[2] != len(self.code_weights):
            raise ValueError(
                f"CenterHead: HEAD_ORDER {self.head_order} needs labels with {len(self.code_weights)} numbers, "
                f"class included, but they have {gt_boxes.shape[2]}"
            )
        draw = partial(
            peak_targets,
            grid=self.grid,
            slots=self.assigner.get("NUM_MAX_OBJS", 500),
            min_overlap=self.assigner.get("GAUSSIAN_OVERLAP", 0.1),
            min_radius=self.assigner.get("MIN_RADIUS", 2),
        )
        labels = gt_boxes[..., -1].long()  # (B, M)
        heads = [
            draw(gt_boxes, table[labels], num_class=len(ids))
            for table, ids in zip(self.local_class, self.class_ids, strict=True)
        ]
        return CenterTargets(*(list(field) for field in zip(*heads, strict=True)))

    def loss(self, preds: CenterPreds, targets: CenterTargets) -> dict[str, Tensor]:
        """Scalars, two a head and up to two more: ``hm_loss_head_0``, ``loc_loss_head_0``, ``iou_loss_head_0``,
        ``iou_reg_loss_head_0``.

        Without objects all but the first are 0 and still connected to the predictions.
        """
        losses: dict[str, Tensor] = {}
        for i, (maps, target) in enumerate(zip(preds.pred_dicts, map(PeakTargets, *targets), strict=True)):
            heat = maps["hm"].float().sigmoid().clamp(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
            losses[f"hm_loss_head_{i}"] = heatmap_focal_loss(heat, target.heatmap) * self.loss_weights["cls_weight"]
            mask = target.mask
            # Empty slots take part with a cell of their own and cost nothing: their number is never asked for, for
            # which the host would wait.
            spare = torch.arange(mask.shape[1], device=mask.device) % (self.grid.shape[0] * self.grid.shape[1])
            cell = torch.where(mask, target.cells, spare)  # (B, T)
            at = {
                name: torch.where(mask.unsqueeze(2), rows_at(maps[name], cell), 0) for name in BRANCHES if name in maps
            }
            codes = torch.cat([at[name] for name in self.head_order], dim=2)  # (B, T, 8+)
            error = mean_code_error(codes, target.codes, mask)  # (8+,)
            losses[f"loc_loss_head_{i}"] = (error * self.code_weights).sum() * self.loss_weights["loc_weight"]
            if "iou" in maps or self.iou_reg_loss:
                boxes, gt_boxes = boxes_from(at, cell, self.grid), target.boxes  # (B, T, 7+)
            if "iou" in maps:
                fit = boxes_aligned_iou3d(boxes[..., :7].flatten(0, 1), gt_boxes[..., :7].flatten(0, 1))  # (B * T,)
                fit = fit.view_as(mask).unsqueeze(2) * 2 - 1
                losses[f"iou_loss_head_{i}"] = mean_code_error(at["iou"], fit, mask).sum()
            if self.iou_reg_loss:
                wanted = torch.where(mask.unsqueeze(2), gt_boxes[..., :7], boxes[..., :7].detach())
                total = (1 - distance_iou(boxes.flatten(0, 1), wanted.flatten(0, 1))).view_as(mask)
                total = torch.where(mask, total, 0).sum() / normalizer(mask.sum())
                losses[f"iou_reg_loss_head_{i}"] = total * self.loss_weights["loc_weight"]
        return losses

    @torch.no_grad()
    def decode(self, preds: CenterPreds) -> list[Detections]:
        """Detections of every scene, head by head; boxes have 7 numbers, or 9 with velocity."""
        scenes: list[list[Detections]] = [[] for _ in range(len(preds.pred_dicts[0]["hm"]))]
        for head, maps in enumerate(preds.pred_dicts):
            for found, detections in zip(scenes, self._decode_head(maps, head), strict=True):
                found.append(detections)
        return [
            Detections(*(torch.cat([getattr(part, key) for part in found]) for key in ("boxes", "scores", "labels")))
            for found in scenes
        ]

    def _decode_head(self, maps: dict[str, Tensor], head: int) -> list[Detections]:
        options = self.post_processing
        peaks = best_peaks(maps["hm"].float().sigmoid(), options["MAX_OBJ_PER_SAMPLE"])
        boxes = boxes_at(maps, peaks.cells, self.grid)  # (B, N, 7+)
        limits = constant(options["POST_CENTER_LIMIT_RANGE"], boxes)
        keep = ((boxes[..., :3] >= limits[:3]) & (boxes[..., :3] <= limits[3:])).all(dim=-1)  # (B, N)
        keep &= peaks.scores > options["SCORE_THRESH"]
        classes = constant(self.class_ids[head], peaks.classes)[peaks.classes]  # (B, N) of the data set, from 0
        scores = peaks.scores
        if options.get("USE_IOU_TO_RECTIFY_SCORE", False):
            fit = ((rows_at(maps["iou"], peaks.cells)[..., 0] + 1) / 2).clamp(0, 1)  # (B, N)
            share = constant(options["IOU_RECTIFIER"], scores)[classes]
            scores = scores.pow(1 - share) * fit.pow(share)
        found = [Detections(boxes[i, mask], scores[i, mask], classes[i, mask] + 1) for i, mask in enumerate(keep)]
        return [scene[_survivors(scene, options["NMS_CONFIG"])] for scene in found]


def _survivors(scene: Detections, nms: CenterNms) -> Tensor:
    """Indices of the detections of a head that no better one suppresses."""
    kind = nms.get("NMS_TYPE", "nms_gpu")
    if kind == "circle_nms":
        return nms_circle(
            scene.boxes[:, :2], scene.scores, nms["NMS_THRESH"], nms.get("NMS_PRE_MAXSIZE"), nms.get("NMS_POST_MAXSIZE")
        )
    if kind in ("nms_gpu", "nms_normal_gpu"):
        return suppress(scene.boxes, scene.scores, nms)
    kept = []
    for label in scene.labels.unique():  # ascending
        own = {key: value[label - 1] if isinstance(value, list | tuple) else value for key, value in nms.items()}
        allowed = scene.labels == label
        if own.get("SCORE_THRESH") is not None:
            allowed &= scene.scores > own["SCORE_THRESH"]
        rows = allowed.nonzero()[:, 0]
        kept.append(rows[suppress(scene.boxes[rows], scene.scores[rows], own)])
    return torch.cat(kept) if kept else scene.labels[:0]


def _names_of_heads(info: DatasetInfo, groups: list[list[str]]) -> list[list[str]]:
    """The classes of each head; names that are not detected here are dropped. Raises ``ValueError``."""
    names = [[name for name in group if name in info.class_names] for group in groups]
    if sorted(sum(names, [])) != sorted(info.class_names) or not all(names):
        raise ValueError(
            f"CenterHead: CLASS_NAMES_EACH_HEAD {[list(group) for group in groups]} should have every class of "
            f"{list(info.class_names)} once, and one of them in every head"
        )
    return names
