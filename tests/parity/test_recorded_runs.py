"""Whole models against recorded runs on real frames: inputs, weights, slots, detections, losses, gradients."""

import pytest
from compare import read_configs
from harness import compare_run
from inputs import merged_config


@pytest.mark.parametrize("run", ["pointpillar.A", "pointpillar.B", "second.A", "second.B", "centerpoint_kitti.A"])
def test_recorded_run(run, shared):
    name = f"kitti_models/{run.split('.')[0]}.yaml"
    record = shared / "oracles" / "openpcdet_models" / f"{run}.json"
    rows = list(compare_run(record, shared / "data" / "kitti", merged_config(read_configs(name), name)))
    assert len(rows) > 20
    assert [row for row in rows if not row.passed] == []
