"""Detectors: slots in a row, a head that finds boxes and, in two stages, one that refines them."""

import typing
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pcdet.models import wiring
from pcdet.models.assigners.proposal_targets import RoiTargets
from pcdet.models.candidates import Candidates, Proposals
from pcdet.models.grid import require_divisible_grid
from pcdet.models.post_processing import PostProcessing, select_detections
from pcdet.models.registry import MODELS
from pcdet.models.voxelization import with_voxels
from pcdet.structures.batch import Batch
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.structures.detections import Detections, TrainOutput

# The features of points wait for the dense head: with some of them the proposals decide where points are sampled.
RUN_ORDER = ("vfe", "backbone_3d", "map_to_bev_module", "backbone_2d", "dense_head", "pfe", "point_head", "roi_head")


@MODELS.register(name="PointPillar")
@MODELS.register(name="SECONDNet")
@MODELS.register(name="CenterPoint")
@MODELS.register(name="PillarNet")
@MODELS.register(name="SECONDNetIoU")
@MODELS.register(name="PVRCNN")
@MODELS.register(name="PVRCNNPlusPlus")
@MODELS.register(name="VoxelRCNN")
@MODELS.register(name="PartA2Net")
@MODELS.register(name="PointRCNN")
class Detector(nn.Module):
    """Runs its slots and trains or reads its heads.

    Serves every model: which one it is depends on the slots. The dense head, or else a point head that predicts
    boxes, is the first stage. With a RoI head its boxes become proposals right away, which slots after it may read as
    ``rois``, ``roi_scores`` and ``roi_labels``; in training those are the sampled ones.

    In training ``model(batch)`` returns :class:`TrainOutput`, in evaluation one :class:`Detections` a scene. Attribute
    names and ``global_step``, the number of training steps so far, which the engine counts, are those of OpenPCDet's
    checkpoints.
    """

    def __init__(
        self,
        info: DatasetInfo,
        slots: Mapping[str, nn.Module],
        *,
        post_processing: PostProcessing,
    ):
        super().__init__()
        self.first = _first_stage(slots)
        self.two_stage = "roi_head" in slots
        _require_suppression(slots.get("roi_head", slots[self.first]), post_processing)
        self.before, self.after = _steps(info, slots, self.first, self.two_stage)
        require_divisible_grid(info, slots)
        for name, module in slots.items():
            self.add_module(name, module)
        self.info = info
        self.post_processing = post_processing
        self.register_buffer("global_step", torch.zeros(1, dtype=torch.int64))

    def forward(self, batch: Batch) -> TrainOutput | list[Detections]:
        """Losses of a labelled batch in training, detections in evaluation."""
        if self.info.device_voxels is not None:
            batch = with_voxels(batch, self.info, self.training)
        results, values = wiring.run(self, self.before, batch)
        if not self.two_stage:
            rest, values = wiring.run(self, self.after, values)
            if self.training:
                with wiring.full_precision():
                    return self._train(results | rest, values)
            with wiring.full_precision():
                return [self._select(scene) for scene in self._decode_first(results, values)]

        with torch.no_grad(), wiring.full_precision():
            proposals: Proposals = self.roi_head.proposal_layer(self._decode_first(results, values))
        targets = None
        if self.training:
            with wiring.full_precision():
                targets = self.roi_head.assign(proposals, batch["gt_boxes"], self._generator())
            proposals = targets.proposals
        rest, values = wiring.run(self, self.after, values | proposals._asdict())
        if targets is not None:
            with wiring.full_precision():
                return self._train(results | rest, values, targets)
        with wiring.full_precision():
            refined = self.roi_head.decode(rest["roi_head"], proposals)
            columns = zip(refined, proposals.rois, proposals.exist, strict=True)
            return [self._select(scene, rois[exist]) for scene, rois, exist in columns]

    def _decode_first(self, results: Mapping[str, Any], values: Batch) -> list[Candidates] | list[Detections]:
        """The first stage's boxes, one entry a scene."""
        if self.first == "dense_head":
            return self.dense_head.decode(results["dense_head"])
        return self.point_head.decode(results["point_head"], values["point_coords"], values["batch_size"])

    def _select(self, scene: Candidates | Detections, proposals: Tensor | None = None) -> Detections:
        if isinstance(scene, Detections):
            return scene
        found = select_detections(scene, self.post_processing)
        if proposals is None:
            return found
        return Detections(found.boxes, found.scores, found.labels, proposals, scene.boxes)

    def _train(self, results: Mapping[str, Any], values: Batch, roi_targets: RoiTargets | None = None) -> TrainOutput:
        """Losses of all heads. The metrics are OpenPCDet's TensorBoard curves: the terms, and their sums by stage."""
        losses: dict[str, Tensor] = {}
        sums: dict[str, Tensor] = {}
        if "dense_head" in results:
            targets = self.dense_head.assign(values["gt_boxes"], self._generator())
            losses |= self.dense_head.loss(results["dense_head"], targets)
            sums["rpn_loss"] = sum(losses.values())
            if not self.two_stage:
                sums["loss_rpn"] = sums["rpn_loss"]
        if "point_head" in results:
            targets = self.point_head.assign(values["point_coords"], values["gt_boxes"])
            losses |= self.point_head.loss(results["point_head"], targets)
            sums["point_pos_num"] = (targets.labels > 0).sum()
        if roi_targets is not None:
            terms = self.roi_head.loss(results["roi_head"], roi_targets)
            losses |= terms
            sums["rcnn_loss"] = sum(terms.values())
        return TrainOutput(losses, {name: value.detach() for name, value in (losses | sums).items()})

    def _generator(self) -> torch.Generator | None:
        """Draws on the model's device that follow from torch's generator on the CPU; None where nobody draws."""
        if not self.two_stage and not getattr(self.dense_head, "samples_anchors", False):
            return None
        generator = torch.Generator(device=self.global_step.device)
        return generator.manual_seed(int(torch.randint(2**62, ())))


def _first_stage(slots: Mapping[str, nn.Module]) -> str:
    """The slot whose boxes are the first. Raises ``ValueError`` where there is none."""
    if "dense_head" in slots:
        return "dense_head"
    if getattr(slots.get("point_head"), "predicts_boxes", False):
        return "point_head"
    raise ValueError(
        "a detector needs the slot DENSE_HEAD, or a POINT_HEAD that predicts boxes (one with REG_FC); it has "
        f"{list(slots)}"
    )


def _steps(
    info: DatasetInfo, slots: Mapping[str, nn.Module], first: str, two_stage: bool
) -> tuple[tuple[wiring.Step, ...], tuple[wiring.Step, ...]]:
    """The slots up to the first stage, and those after it."""
    order = {name: slots[name] for name in RUN_ORDER if name in slots}
    if len(order) != len(slots):
        raise ValueError(f"a detector has no use for the slots {sorted(slots.keys() - order.keys())}")
    cut = list(order).index(first) + 1
    before, after = dict(list(order.items())[:cut]), dict(list(order.items())[cut:])
    # An encoder that makes voxels of its own does not look at those of the data set, and takes their place.
    replaced = wiring.writes(order["vfe"]) if "vfe" in order else ()
    keys = [key for key in wiring.batch_keys(info) if key not in replaced]
    known = [*keys, *(key for module in before.values() for key in wiring.writes(module))]
    proposed = Proposals._fields if two_stage else ()
    return wiring.plan(before, keys), wiring.plan(after, [*known, *proposed])


def _require_suppression(head: nn.Module, settings: PostProcessing) -> None:
    """Raise ``ValueError`` where boxes are to be suppressed here but nothing says how."""
    if typing.get_type_hints(type(head).decode).get("return") == list[Detections]:
        return  # the head suppresses by itself
    if settings.get("NMS_CONFIG", {}).get("NMS_THRESH") is None:
        raise ValueError("POST_PROCESSING needs NMS_CONFIG with NMS_THRESH, the overlap that suppresses a box")
