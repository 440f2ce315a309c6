"""Simulated frames as own data."""

import numpy as np
import pytest

from pcdet.datasets.custom.folder import CustomFolder
from pcdet.datasets.custom.label_formats import read_openpcdet
from pcdet.datasets.synthetic import simulate_custom


def test_layout_splits_and_points_in_boxes(tmp_path):
    out = simulate_custom(tmp_path / "own", 3, seed=2, val_fraction=0.34)
    assert (out / "ImageSets/train.txt").read_text().split() == ["000000", "000001"]
    assert (out / "ImageSets/val.txt").read_text().split() == ["000002"]
    seen = set()
    for i in range(3):
        points = np.load(out / "points" / f"{i:06d}.npy")
        assert points.dtype == np.float32 and points.shape[1] == 4
        ground = points[np.hypot(points[:, 0], points[:, 1]) < 8, 2]
        assert abs(np.quantile(ground, 0.2)) < 0.5, "the ground is near z = 0"
        rows, faults = read_openpcdet(CustomFolder(out), f"{i:06d}")
        assert not faults
        seen |= {row.name for row in rows}
        for row in rows:
            x, y, z, dx, dy, dz, heading = row.box
            offset = points[:, :3] - [x, y, z]
            cos, sin = np.cos(heading), np.sin(heading)
            local = np.stack([offset[:, 0] * cos + offset[:, 1] * sin, offset[:, 1] * cos - offset[:, 0] * sin], 1)
            inside = (np.abs(local) <= np.array([dx, dy]) / 2 + 0.05).all(axis=1) & (
                np.abs(offset[:, 2]) < dz / 2 + 0.05
            )
            assert inside.sum() >= 4, row
    assert "Vehicle" in seen and seen <= {"Vehicle", "Pedestrian", "Cyclist"}


def test_the_same_seed_gives_the_same_files_and_another_is_refused(tmp_path):
    one, two = (simulate_custom(tmp_path / name, 1, seed=5) for name in "ab")
    for name in ("points/000000.npy", "labels/000000.txt"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    with pytest.raises(ValueError, match="holds frames of other settings"):
        simulate_custom(one, 1, seed=6)
    (tmp_path / "mine" / "points").mkdir(parents=True)
    with pytest.raises(ValueError, match="was not simulated"):
        simulate_custom(tmp_path / "mine", 1)
