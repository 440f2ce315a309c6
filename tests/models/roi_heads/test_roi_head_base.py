"""What all second stages share: proposals, losses, refined boxes."""

import math

import pytest
import torch
from torch import Tensor, nn

from pcdet.models.candidates import Candidates
from pcdet.models.roi_heads.base import RoiHead, RoiPreds
from pcdet.models.roi_heads.proposals import ProposalLayer
from pcdet.structures.detections import Detections

GT = torch.tensor([[[10.0, 2, 0, 4, 2, 1.5, 0.5, 1], [20, -3, 0, 4, 2, 1.5, -2.0, 2]]])


class Head(RoiHead):
    """Predicts the same of every proposal."""

    def __init__(self, info, **options):
        super().__init__(info, **options)
        self.cls = nn.Parameter(torch.zeros(1))
        self.reg = nn.Parameter(torch.zeros(7))

    def forward(self, rois: Tensor) -> RoiPreds:
        rows = rois.shape[0] * rois.shape[1]
        return RoiPreds(self.cls.expand(rows, 1), self.reg.expand(rows, 7))


@pytest.fixture
def head(kitti_info, roi_options):
    return Head(kitti_info("second"), **roi_options())


def scene(count=5, seed=0):
    draw = torch.Generator().manual_seed(seed)
    boxes = torch.tensor([[0.0, 0, 0, 4, 2, 1.5, 0]]).repeat(count, 1)
    boxes[:, 0] = torch.arange(count) * 10.0
    return Candidates(boxes, torch.randn(count, 3, generator=draw))


def test_proposals_are_ranked_and_padded(roi_options):
    layer = ProposalLayer(roi_options()["nms_config"])
    found = scene()
    proposals = layer([found, scene(0)])
    assert proposals.rois.shape == (2, 16, 7)
    assert proposals.exist.sum(1).tolist() == [5, 0]
    best, label = found.logits.max(1)
    order = best.argsort(descending=True)
    assert torch.equal(proposals.rois[0, :5], found.boxes[order])
    assert torch.equal(proposals.roi_labels[0, :5], label[order] + 1)
    assert proposals.roi_labels[1].tolist() == [1] * 16
    assert proposals.roi_scores[0, :5].tolist() == best[order].tolist()


def test_detections_become_proposals_as_they_are(roi_options):
    layer = ProposalLayer(roi_options()["nms_config"])
    boxes = scene(3).boxes
    found = Detections(boxes, torch.tensor([0.5, 0.9, 0.1]), torch.tensor([3, 1, 2]))
    proposals = layer([found, Detections.empty()])
    assert proposals.rois.shape == (2, 3, 7)
    assert torch.equal(proposals.rois[0], boxes)
    assert proposals.roi_labels.tolist() == [[3, 1, 2], [0, 0, 0]]
    assert layer([Detections.empty(), Detections.empty()]).rois.shape == (2, 1, 7)


def test_zero_codes_leave_proposals_where_they_are(head, near_proposals):
    proposals = near_proposals(GT, 4)
    found = head.decode(head(proposals.rois), proposals)[0]
    assert len(found.boxes) == 2  # rows that only pad are left out
    torch.testing.assert_close(found.boxes, proposals.rois[0, :2])
    assert found.labels.tolist() == [1, 2]


def test_codes_are_relative_to_the_proposal(head, near_proposals):
    """One diagonal forward in a proposal's own frame, and turned."""
    proposals = near_proposals(GT, 2)
    roi = proposals.rois[0, 0]
    head.reg.data = torch.tensor([1.0, 0, 0, 0, math.log(2), 0, 0.2])
    box = head.decode(head(proposals.rois), proposals)[0].boxes[0].detach()
    diagonal = math.hypot(float(roi[3]), float(roi[4]))
    assert float(box[0] - roi[0]) == pytest.approx(diagonal * math.cos(float(roi[6])), rel=1e-5)
    assert float(box[1] - roi[1]) == pytest.approx(diagonal * math.sin(float(roi[6])), rel=1e-5)
    assert float(box[4]) == pytest.approx(2 * float(roi[4]), rel=1e-5)
    assert float(box[6]) == pytest.approx(float(roi[6]) + 0.2, rel=1e-5)


def test_the_wanted_codes_cost_nothing(head, near_proposals):
    proposals = near_proposals(GT, 2)
    targets = head.assign(proposals, GT, torch.Generator().manual_seed(0))
    assert targets.reg_valid_mask.all()
    rois = targets.rois.view(-1, 7)
    codes = head.coder.encode(
        targets.gt_of_rois[0, :, :7], torch.cat([torch.zeros(8, 3), rois[:, 3:6], torch.zeros(8, 1)], dim=1)
    )
    losses = head.loss(RoiPreds(torch.zeros(8, 1), codes), targets)
    assert losses["rcnn_loss_reg"].item() == pytest.approx(0, abs=1e-6)
    assert losses["rcnn_loss_corner"].item() == pytest.approx(0, abs=1e-5)
    assert losses["rcnn_loss_cls"].item() == pytest.approx(math.log(2), rel=1e-5)  # logits of 0


def test_without_anything_to_refine_the_losses_are_zero_and_connected(head, near_proposals):
    proposals = near_proposals(GT, 2)
    targets = head.assign(proposals, torch.zeros(1, 0, 8), torch.Generator().manual_seed(0))
    losses = head.loss(head(targets.rois), targets)
    assert losses["rcnn_loss_reg"].item() == losses["rcnn_loss_corner"].item() == 0
    sum(losses.values()).backward()
    assert head.reg.grad.tolist() == [0] * 7
    assert head.cls.grad.isfinite().all()


def test_a_label_of_minus_one_is_not_judged(kitti_info, roi_options, near_proposals):
    """Quirk of OpenPCDet: -1 goes into its cross entropy, which current torch refuses."""
    options = roi_options()
    options["target_config"] |= {"CLS_SCORE_TYPE": "cls", "CLS_FG_THRESH": 0.99, "CLS_BG_THRESH": 0.01}
    head = Head(kitti_info("second"), **options)
    targets = head.assign(near_proposals(GT, 2), GT, torch.Generator().manual_seed(0))
    assert (targets.rcnn_cls_labels == -1).all()
    assert head.loss(head(targets.rois), targets)["rcnn_loss_cls"].item() == 0


def test_options_that_do_not_fit(kitti_info, roi_options):
    info = kitti_info("second")
    with pytest.raises(ValueError, match="CLASS_AGNOSTIC must be True"):
        Head(info, **roi_options(class_agnostic=False))
    with pytest.raises(ValueError, match="CrossEntropy compares classes, but there is one confidence"):
        Head(info, **roi_options(loss_config={"CLS_LOSS": "CrossEntropy"}))
    with pytest.raises(ValueError, match="GRID_3D_IOU_LOSS"):
        Head(info, **roi_options(loss_config={"GRID_3D_IOU_LOSS": True}))
    with pytest.raises(ValueError, match="code_weights has 2 numbers"):
        Head(info, **roi_options(loss_config={"LOSS_WEIGHTS": {"code_weights": [1.0, 1.0]}}))
    with pytest.raises(ValueError, match="TARGET_CONFIG needs FG_RATIO"):
        Head(
            info,
            **roi_options(target_config={k: v for k, v in roi_options()["target_config"].items() if k != "FG_RATIO"}),
        )
    with pytest.raises(ValueError, match=r"NMS_CONFIG\.TEST of the RoI head needs NMS_POST_MAXSIZE"):
        nms = roi_options()["nms_config"]["TRAIN"]
        Head(info, **roi_options(nms_config={"TRAIN": nms, "TEST": {k: v for k, v in nms.items() if "POST" not in k}}))
