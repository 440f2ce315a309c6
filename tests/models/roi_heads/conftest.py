"""Options and proposals for the tests of second stages."""

import pytest
import torch

from pcdet.models.candidates import Proposals


@pytest.fixture
def roi_options():
    """``roi_options()``: keyword options that every RoI head takes, as PV-RCNN's configuration has them."""

    def make(**changes) -> dict:
        nms = {"NMS_TYPE": "nms_gpu", "NMS_PRE_MAXSIZE": 64, "NMS_POST_MAXSIZE": 16, "NMS_THRESH": 0.7}
        return {
            "class_agnostic": True,
            "nms_config": {"TRAIN": nms, "TEST": nms},
            "target_config": {
                "ROI_PER_IMAGE": 8,
                "FG_RATIO": 0.5,
                "SAMPLE_ROI_BY_EACH_CLASS": True,
                "CLS_SCORE_TYPE": "roi_iou",
                "CLS_FG_THRESH": 0.75,
                "CLS_BG_THRESH": 0.25,
                "CLS_BG_THRESH_LO": 0.1,
                "HARD_BG_RATIO": 0.8,
                "REG_FG_THRESH": 0.55,
            },
            "loss_config": {"CORNER_LOSS_REGULARIZATION": True},
        } | changes

    return make


@pytest.fixture
def near_proposals():
    """``near_proposals(gt_boxes, rows)``: proposals near labelled boxes (B, M, 8), the rest padding."""

    def make(gt_boxes: torch.Tensor, rows: int) -> Proposals:
        rois = torch.zeros(len(gt_boxes), rows, 7)
        count = min(rows, gt_boxes.shape[1])
        rois[:, :count] = gt_boxes[:, :count, :7] + torch.tensor([0.1, 0.05, 0, 0.1, 0, 0, 0.05])
        labels = torch.ones(len(gt_boxes), rows, dtype=torch.int64)
        labels[:, :count] = gt_boxes[:, :count, 7].long()
        return Proposals(rois, torch.zeros(len(gt_boxes), rows), labels)

    return make
