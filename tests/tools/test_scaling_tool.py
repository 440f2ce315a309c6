"""tools/scaling.py: global batches, and a table of real processes."""

import csv

import pytest

from pcdet.datasets.synthetic import simulate_modelnet

SHAPES = "cfgs/synthetic_models/pointnet_shapes.yaml"


@pytest.mark.parametrize(
    "wanted, least, nproc, expected", [(None, 4, [1, 2], 4), (None, 5, [2, 3], 6), (12, 4, [1, 4], 12)]
)
def test_the_global_batch_is_one_that_all_counts_divide(tools, wanted, least, nproc, expected):
    assert tools("scaling").__globals__["global_batch"](wanted, least, nproc) == expected


def test_a_batch_that_does_not_divide_is_refused(tools):
    with pytest.raises(ValueError, match="--batch_size 6 cannot be divided among 4 processes.*Nearest: 4 or 8"):
        tools("scaling").__globals__["global_batch"](6, 4, [1, 4])


@pytest.mark.slow
def test_one_and_two_processes_train_the_same_steps(tools, tmp_path, capsys):
    simulate_modelnet(tmp_path / "shapes", per_class=3, seed=0)
    given = ["--cfg_file", SHAPES, "--nproc", "2", "1", "--steps", "4", "--workers", "0", "--batch_size", "8"]
    given += ["--device", "cpu", "--output_dir", str(tmp_path / "out")]
    data = ["--set", "DATA_CONFIG.DATA_PATH", str(tmp_path / "shapes"), "DATA_CONFIG.NUM_POINTS", "32"]
    assert tools("scaling")([*given, *data]) == 0
    folder = tmp_path / "out" / "synthetic_models" / "pointnet_shapes" / "scaling" / "default"
    one, two = csv.DictReader((folder / "scaling.csv").read_text().splitlines())
    assert (one["processes"], two["processes"], one["steps"], two["steps"]) == ("1", "2", "4", "4")
    assert one["batch"] == two["batch"] == "8"
    assert float(one["communication_seconds"]) == 0 < float(two["communication_seconds"]) < float(two["step_seconds"])
    assert (folder / "scaling.png").is_file()
    assert (folder / "scaling.md").read_text() in capsys.readouterr().out
