import hashlib
import json

import pytest
import torch
import yaml

from pcdet.models.dense_heads.anchors import anchor_grid
from pcdet.structures.dataset_info import DatasetInfo

KITTI = {
    "pointpillar": ((0, -39.68, -3, 69.12, 39.68, 1), (0.16, 0.16, 4), (432, 496, 1)),
    "second": ((0, -40, -3, 70.4, 40, 1), (0.05, 0.05, 0.1), (1408, 1600, 40)),
}


def info_of(area, size, grid):
    return DatasetInfo(("Car",), ("x", "y", "z"), area, size, grid)


def block(**changes):
    settings = {
        "class_name": "Car",
        "anchor_sizes": [[4.0, 2.0, 1.5]],
        "anchor_rotations": [0, 1.57],
        "anchor_bottom_heights": [-1.0],
        "feature_map_stride": 2,
        "matched_threshold": 0.6,
        "unmatched_threshold": 0.45,
    }
    return settings | changes


def test_anchors_stand_on_the_border_of_the_range():
    anchors = anchor_grid(info_of((0, -4, -3, 8, 4, 1), (1, 1, 4), (8, 8, 1)), block())
    assert anchors.shape == (4, 4, 2, 7)
    torch.testing.assert_close(anchors[0, :, 0, 0], torch.tensor([0, 8 / 3, 16 / 3, 8]))
    torch.testing.assert_close(anchors[:, 0, 0, 1], torch.tensor([-4, -4 / 3, 4 / 3, 4]))
    torch.testing.assert_close(anchors[2, 1, :, 2:], torch.tensor([[-0.25, 4, 2, 1.5, 0], [-0.25, 4, 2, 1.5, 1.57]]))


def test_centred_anchors_stand_in_the_middle_of_the_cells():
    anchors = anchor_grid(info_of((0, -4, -3, 8, 4, 1), (1, 1, 4), (8, 8, 1)), block(align_center=True))
    torch.testing.assert_close(anchors[0, :, 0, 0], torch.tensor([1.0, 3, 5, 7]))


def test_slots_run_over_heights_then_sizes_then_headings():
    settings = block(anchor_sizes=[[4, 2, 1], [6, 3, 2]], anchor_bottom_heights=[-1, 0], anchor_rotations=[0, 1])
    anchors = anchor_grid(info_of((0, 0, 0, 2, 2, 2), (1, 1, 2), (2, 2, 1)), settings)[0, 0]
    assert anchors[:, 2].tolist() == [-0.5, -0.5, 0, 0, 0.5, 0.5, 1, 1]
    assert anchors[:, 3].tolist() == [4, 4, 6, 6, 4, 4, 6, 6]
    assert anchors[:, 6].tolist() == [0, 1] * 4


@pytest.mark.parametrize("cells", [1, 2, 3])
def test_few_cells(cells):
    anchors = anchor_grid(info_of((0, 0, 0, cells, 1, 1), (1, 1, 1), (cells, 1, 1)), block(feature_map_stride=1))
    assert anchors.shape == (1, cells, 2, 7)
    assert anchors[0, 0, 0, 0] == 0


@pytest.mark.parametrize("name", ["pointpillar", "second"])
def test_recorded_anchors_to_the_bit(name, shared, root):
    record = json.loads((shared / "oracles/openpcdet_data/anchors.json").read_text())[name]
    head = yaml.safe_load((root / f"cfgs/kitti_models/{name}.yaml").read_text())["MODEL"]["DENSE_HEAD"]
    for settings, wanted in zip(head["ANCHOR_GENERATOR_CONFIG"], record["sets"], strict=True):
        anchors = anchor_grid(info_of(*KITTI[name]), settings)
        assert list(anchors.shape) == [wanted["shape"][1], wanted["shape"][2], 2, 7]
        digest = hashlib.sha256(anchors.contiguous().numpy().tobytes()).hexdigest()
        assert digest == wanted["sha256_float32_C"]
