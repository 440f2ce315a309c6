"""Voxel query: a naive scan of all voxels, borders of the grid and of the ball, recorded indices."""

import math

import numpy as np
import pytest
import torch
from ops_cases import generator

from pcdet.ops.voxel_query import cpu, reference, voxel_query

SHAPE, CELL = (5, 9, 14), 0.5  # cells along z, y, x; metres


def sparse_voxels(count, scenes=2, seed=0):
    """Coordinates (V, 4) in random order, centres (V, 3)."""
    g = generator(seed)
    cells = torch.randperm(scenes * math.prod(SHAPE), generator=g)[:count]
    coords = torch.stack(torch.unravel_index(cells, (scenes, *SHAPE)), dim=1)
    return coords, (coords[:, [3, 2, 1]] + 0.5) * CELL


def random_queries(count, scenes=2, seed=1):
    """Places inside and around the grid: (M, 3), and the coordinates of their cells (M, 4)."""
    g = generator(seed)
    at = (torch.rand(count, 3, generator=g) * 1.6 - 0.3) * torch.tensor(SHAPE[::-1]) * CELL
    cells = (at / CELL).floor().long()
    return at, torch.cat([torch.randint(0, scenes, (count, 1), generator=g), cells.flip(1)], dim=1)


def naive(coords, xyz, at, cells, ranges, radius, wanted):
    """The definition: of all voxels in z, y, x order those in range and near, in float32."""
    coords, xyz, indices, counts = coords.numpy(), xyz.numpy(), [], []
    for centre, cell in zip(at.numpy(), cells.numpy(), strict=True):
        d = xyz - centre
        near = d[:, 0] ** 2 + d[:, 1] ** 2 + d[:, 2] ** 2 <= np.float32(radius) ** 2
        near &= (np.abs(coords - cell) <= (0, *ranges)).all(axis=1)
        found = [row for row in np.lexsort(coords.T[::-1]).tolist() if near[row]]
        counts.append(min(len(found), wanted))
        indices.append((found + (found[:1] or [0]) * wanted)[:wanted])
    return indices, counts


def test_by_hand():
    coords = torch.tensor([[0, 1, 1, 2], [0, 1, 1, 1], [0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 0, 3]])
    xyz = (coords[:, [3, 2, 1]] + 0.5).float()
    at, cell = torch.tensor([[1.5, 1.5, 1.5]]), torch.tensor([[0, 1, 1, 1]])
    index, count = voxel_query(coords, xyz, (2, 2, 4), 2, at, cell, (1, 1, 1), 1.0, 4)
    assert index.tolist() == [[2, 1, 0, 2]]  # z before y before x, at exactly the radius, then the first again
    assert count.tolist() == [3]
    assert voxel_query(coords, xyz, (2, 2, 4), 2, at, cell, (0, 1, 2), 9.0, 4)[0].tolist() == [[4, 1, 0, 4]]


def test_places_outside_the_grid_see_what_is_in_range():
    coords, xyz = torch.tensor([[0, 0, 0, 0]]), torch.tensor([[0.5, 0.5, 0.5]])
    cells = torch.tensor([[0, 0, 0, -2], [0, 0, 0, -3], [0, 9000, -9000, 2**40], [0, -(2**40), 0, 0]])
    index, count = voxel_query(coords, xyz, (1, 1, 1), 1, xyz.expand(4, 3), cells, (2, 2, 2), 1.0, 2)
    assert count.tolist() == [1, 0, 0, 0] and not index.any()


@pytest.mark.parametrize("ranges", [(0, 0, 0), (1, 2, 3), (4, 4, 4), (30, 30, 30)])
@pytest.mark.parametrize("radius, wanted", [(0.4, 3), (1.0, 16), (50.0, 7)])
def test_kernel_reference_and_definition_agree_exactly(ranges, radius, wanted):
    (coords, xyz), (at, cells) = sparse_voxels(300), random_queries(60)
    index, count = naive(coords, xyz, at, cells, ranges, radius, wanted)
    for module in (cpu, reference):
        found, found_count = module.query(coords, xyz, (2, *SHAPE), at, cells, ranges, radius, wanted)
        assert found.tolist() == index and found_count.tolist() == count


def test_a_full_grid_and_one_row():
    for shape in ((2, *SHAPE), (1, 1, 1, 900)):
        coords = torch.stack(torch.meshgrid(*map(torch.arange, shape), indexing="ij"), dim=-1).view(-1, 4)
        xyz, cells = coords[:, [3, 2, 1]].float(), coords[:700]
        arguments = (coords, xyz, shape, xyz[:700], cells, (1, 1, 2), 2.0, 40)
        assert all(map(torch.equal, cpu.query(*arguments), reference.query(*arguments)))


@pytest.mark.parametrize("voxels, queries", [(0, 3), (3, 0), (0, 0)])
def test_empty_tensors(voxels, queries):
    (coords, xyz), (at, cells) = sparse_voxels(voxels), random_queries(queries)
    for module in (cpu, reference):
        index, count = module.query(coords, xyz, (2, *SHAPE), at, cells, (1, 1, 1), 1.0, 4)
        assert index.shape == (queries, 4) and count.shape == (queries,)
        assert not index.any() or voxels
    assert voxel_query(coords[:0], xyz[:0], SHAPE, 0, at[:0], cells[:0], (1, 1, 1), 1.0, 4)[0].shape == (0, 4)


def test_any_integers_and_more_columns_do():
    (coords, xyz), (at, cells) = sparse_voxels(200), random_queries(40)
    wide = torch.cat([xyz, xyz], dim=1), torch.cat([at, at], dim=1)
    narrow = voxel_query(coords, xyz, SHAPE, 2, at, cells, (2, 2, 2), 0.9, 4)
    for found, expected in zip(
        voxel_query(coords.int(), wide[0], SHAPE, 2, wide[1], cells.int(), [2, 2, 2], 0.9, 4), narrow, strict=True
    ):
        assert torch.equal(found, expected)


def test_bad_arguments():
    (coords, xyz), (at, cells) = sparse_voxels(20), random_queries(5)
    good = {"voxel_coords": coords, "voxel_centres": xyz, "spatial_shape": SHAPE, "batch_size": 2, "centres": at}
    good |= {"centre_coords": cells, "ranges": (1, 1, 1), "radius": 1.0, "num_samples": 4}
    for bad, message in (
        ({"voxel_coords": coords[:, 1:]}, r"voxel_coords must have the shape \(V, 4\)"),
        ({"voxel_centres": xyz[:3]}, "20 voxel_coords need as many voxel_centres, not 3"),
        ({"centres": at[:3]}, "3 centres as many centre_coords, not 5"),
        ({"ranges": (1, -1, 1)}, "ranges"),
        ({"radius": 0.0}, "radius"),
        ({"num_samples": 0}, "num_samples"),
        ({"batch_size": 1}, "voxel_coords range over"),
        ({"spatial_shape": (5, 9, 3)}, "voxel_coords range over"),
        ({"voxel_coords": coords - 1}, "voxel_coords range over"),
        ({"centre_coords": cells - 2}, "scenes of centre_coords range over"),
        ({"centres": at.to("meta")}, "one device"),
    ):
        with pytest.raises(ValueError, match=message):
            voxel_query(**{**good, **bad})


@pytest.mark.parametrize(
    "ranges, radius, wanted", [((4, 4, 4), 0.8, 16), ((1, 2, 3), 1.6, 5), ((4, 4, 4), 0.1, 16), ((0, 0, 0), 9.0, 4)]
)
def test_recorded_indices(shared, ranges, radius, wanted):
    data = np.load(shared / "oracles" / "ops" / "voxel_query.npz")
    table = torch.from_numpy(data["in_voxel2point"]).long()  # (B, Z, Y, X)
    coords = torch.zeros(len(data["in_xyz"]), 4, dtype=torch.int64)
    coords[table[table >= 0]] = (table >= 0).nonzero()
    at, cells = torch.from_numpy(data["in_new_xyz"]), torch.from_numpy(data["in_new_coords"])
    voxels = coords, torch.from_numpy(data["in_xyz"]), table.shape[1:], len(table)
    index, count = voxel_query(*voxels, at, cells, ranges, radius, wanted)
    key = "_".join(map(str, (*ranges, radius, wanted)))
    empty = data[f"out_empty_{key}"]
    assert np.array_equal(count == 0, empty) and np.array_equal(index[~empty], data[f"out_idx_{key}"][~empty])
