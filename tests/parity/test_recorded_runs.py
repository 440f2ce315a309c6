"""Whole models against recorded runs on real frames: inputs, weights, slots, detections, losses, gradients."""

import pytest
from harness import compare_run
from inputs import CONFIGS, read_config

RUNS = ["pointpillar.A", "second.A", "pv_rcnn.A", "voxel_rcnn_car.A", "pointrcnn.A", "centerpoint_kitti.A"]
MORE = [
    "pointpillar.B",
    "second.B",
    "second_iou.A",
    "second_multihead.A",
    "second_multihead.B",
    "PartA2.A",
    "pillarnet.A",
    "pillarnet.B",
    "pointrcnn.B",
    "voxel_rcnn_car.B",
    "centerpoint_kitti.B",
    "pv_rcnn_plusplus_reproduced_by_community.A",
]


@pytest.mark.parametrize("run", [*RUNS, *(pytest.param(run, marks=pytest.mark.slow) for run in MORE)])
def test_recorded_run(run, shared):
    config = read_config(CONFIGS / "kitti_models" / f"{run.split('.')[0]}.yaml")
    record = shared / "oracles" / "openpcdet_models" / f"{run}.json"
    rows = list(compare_run(record, shared / "data" / "kitti", config))
    assert len(rows) > 20
    assert [row for row in rows if not (row.passed and row.compared)] == []
