"""Dynamic voxelization: by hand, against a loop over points, as torch sees it."""

import math

import numpy as np
import pytest
import torch
from ops_cases import lidar_cloud
from torch import library
from torch.utils._python_dispatch import TorchDispatchMode

from pcdet.ops.dynamic_voxels import dynamic_voxels, reference

GRID = ([0.0, -40.0, -3.0], [4.0, 4.0, 0.5], [17, 20, 8])


def cloud(n: int = 300) -> torch.Tensor:
    scene = torch.arange(n).remainder(3).sort().values.float().unsqueeze(1)
    return torch.cat([scene, lidar_cloud(n), torch.rand(n, 1)], dim=1)


def test_dynamic_voxels_by_hand():
    points = torch.tensor(
        [[1, 1.5, 0.5], [0, 1.5, 0.5], [0, 9.0, 0.5], [1, 0.5, 0.5], [1, 1.9, 0.1], [0, math.nan, 0.5]]
    )
    points = torch.cat([points, torch.zeros(6, 1)], dim=1)
    found = dynamic_voxels(points, [0.0, 0.0], [1.0, 1.0], [2, 1])
    assert found.kept.tolist() == [0, 1, 3, 4]
    assert found.coords.tolist() == [[0, 1, 0], [1, 0, 0], [1, 1, 0]]
    assert found.cell.tolist() == [2, 0, 1, 2]
    assert found.rows.tolist() == [1, 2, 0, 3] and found.start.tolist() == [0, 1, 2, 4]


@pytest.mark.parametrize("axes", [2, 3])
def test_every_point_is_in_its_cell(axes):
    points, grid = cloud(), [part[:axes] for part in GRID]
    found = dynamic_voxels(points, *grid)
    place = np.floor((points[:, 1 : 1 + axes].numpy() - np.float32(grid[0])) / np.float32(grid[1]))
    inside = ((place >= 0) & (place < grid[2])).all(axis=1)
    assert 0 < inside.sum() < len(points)
    assert found.kept.tolist() == inside.nonzero()[0].tolist()
    expected = np.concatenate([points[:, :1].numpy(), place], axis=1)[inside]
    assert np.array_equal(found.coords[found.cell], expected)
    assert np.array_equal(found.coords, np.unique(expected, axis=0))
    for v, (begin, end) in enumerate(zip(found.start[:-1], found.start[1:], strict=True)):
        assert found.rows[begin:end].tolist() == (found.cell == v).nonzero()[:, 0].tolist()


def test_no_point_in_the_grid():
    for points in (cloud()[:0], cloud() - 500):
        found = dynamic_voxels(points, *GRID)
        assert [len(part) for part in found] == [0, 0, 0, 0, 1] and found.coords.shape == (0, 4)


def test_opcheck_of_dynamic_voxels():
    library.opcheck(torch.ops.pcdet.dynamic_voxels.default, (cloud(20), *GRID))


def test_the_host_waits_once(monkeypatch):
    reads, plain = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: reads.append(tuple(tensor.shape)) or plain(tensor))

    class NoOtherWait(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            waits = ("_local_scalar_dense", "nonzero", "_unique2", "bincount", "unique_consecutive", "masked_select")
            assert func.overloadpacket.__name__ not in waits
            return func(*args, **(kwargs or {}))

    with NoOtherWait():
        reference.dynamic_voxels(cloud(), *GRID)
    assert reads == [(2,)], "the two sizes, in one transfer"


def test_bad_arguments_of_dynamic_voxels():
    with pytest.raises(ValueError, match="2 or 3 numbers each"):
        dynamic_voxels(cloud(), [0.0, 0.0], [1.0, 1.0, 1.0], [2, 2, 2])
    with pytest.raises(ValueError, match=r"points must have the shape \(N, 4\+\)"):
        dynamic_voxels(torch.zeros(5, 3), *GRID)
