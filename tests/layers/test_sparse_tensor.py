"""The sparse tensor's door, its dense form, and the compiled rulebook against its plain-torch twin."""

import pytest
import torch

from pcdet.layers.sparse import SparseConvTensor, SubMConv3d, cpu, reference
from pcdet.layers.sparse.rulebook import table_pairs
from pcdet.layers.sparse.sites import Geometry, Sites


def tensor_of(indices: list[list[int]], shape=(8, 8, 8), batch_size=2, dtype=torch.int32) -> SparseConvTensor:
    rows = torch.tensor(indices, dtype=dtype).reshape(-1, 1 + len(shape))
    return SparseConvTensor(torch.ones(len(rows), 2), rows, shape, batch_size)


@pytest.mark.parametrize("bad", [[0, 8, 0, 0], [0, 0, 0, -1], [2, 0, 0, 0], [-1, 0, 0, 0]])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_b12_an_index_outside_the_grid_names_its_row(bad, dtype):
    with pytest.raises(ValueError, match="indices row 1 .*outside the grid"):
        tensor_of([[0, 0, 0, 0], bad, [0, 1, 1, 1]], dtype=dtype)


def test_b12_an_index_beyond_int32_names_its_row():
    with pytest.raises(ValueError, match="indices row 0"):
        tensor_of([[0, 0, 0, 2**32]], dtype=torch.int64)


def test_b12_duplicate_rows_are_named():
    with pytest.raises(ValueError, match=r"rows 1 and 3 are the same site \(scene 1, z 2, y 3, x 4\)"):
        tensor_of([[0, 2, 3, 4], [1, 2, 3, 4], [1, 0, 0, 0], [1, 2, 3, 4]])


def test_b12_int64_indices_are_accepted():
    x = tensor_of([[0, 1, 2, 3], [1, 7, 7, 7]], dtype=torch.int64)
    assert x.indices.dtype == torch.int32
    assert SubMConv3d(2, 3, 3)(x).features.shape == (2, 3)


def test_b12_no_rows_are_a_tensor():
    x = tensor_of([])
    assert x.dense().shape == (2, 2, 8, 8, 8) and not x.dense().any()


def test_b12_data_on_two_devices_are_refused():
    with pytest.raises(ValueError, match="features are on meta but indices on cpu"):
        SparseConvTensor(torch.zeros(1, 2, device="meta"), torch.zeros(1, 4).int(), (8, 8, 8), 1)


@pytest.mark.parametrize(
    "features, indices, shape",
    [
        (torch.zeros(2, 3), torch.zeros(1, 4).int(), (8, 8, 8)),
        (torch.zeros(1, 3).int(), torch.zeros(1, 4).int(), (8, 8, 8)),
        (torch.zeros(1, 3), torch.zeros(1, 3).int(), (8, 8, 8)),
        (torch.zeros(1, 3), torch.zeros(1, 4), (8, 8, 8)),
        (torch.zeros(1, 3), torch.zeros(1, 5).int(), (8, 8, 8, 8)),
        (torch.zeros(1, 3), torch.zeros(1, 4).int(), (2**30, 2**30, 8)),
        (torch.zeros(1, 3), torch.zeros(1, 4).int(), (0, 8, 8)),
    ],
)
def test_other_shapes_and_types_are_refused(features, indices, shape):
    with pytest.raises(ValueError):
        SparseConvTensor(features, indices, shape, 1)


def test_replaced_features_must_fit_the_sites():
    with pytest.raises(ValueError, match="3 rows of features do not fit 1 sites"):
        tensor_of([[0, 0, 0, 0]]).replace_feature(torch.zeros(3, 2))


def test_dense_puts_rows_at_their_cells():
    x = SparseConvTensor(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1, 0, 2], [0, 1, 0]]), (2, 3), 2)
    expected = torch.zeros(2, 2, 2, 3)
    expected[1, :, 0, 2] = torch.tensor([1.0, 2.0])
    expected[0, :, 1, 0] = torch.tensor([3.0, 4.0])
    assert torch.equal(x.dense(), expected)


def test_dense_passes_gradients_back_to_the_rows():
    indices = torch.tensor([[1, 0, 2], [0, 1, 0], [0, 0, 0]])
    features = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda f: SparseConvTensor(f, indices, (2, 3), 2).dense(), features)


def test_cells_are_numbered_and_found_again():
    sites = tensor_of([[1, 2, 3, 4], [0, 0, 0, 7]]).sites
    assert sites.keys.tolist() == [((1 * 8 + 2) * 8 + 3) * 8 + 4, 7]
    keys, rows = sites.ordered
    assert rows.tolist() == [1, 0]
    back = reference.sites_from_keys(keys, sites.spatial_shape, sites.batch_size)
    assert torch.equal(back.indices, sites.indices[rows])


GEOMETRIES = [
    Geometry((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), True),
    Geometry((5, 1, 3), (1, 1, 1), (4, 0, 1), (2, 1, 1), True),
    Geometry((3, 3, 3), (2, 2, 2), (0, 1, 1), (1, 1, 1), False),
    Geometry((2, 3, 1), (1, 3, 2), (0, 2, 0), (1, 2, 1), False),
    Geometry((3, 3), (2, 1), (1, 1), (1, 1), False),
    Geometry((3, 3), (1, 1), (1, 1), (1, 1), True),
]


@pytest.mark.parametrize("count", [0, 1, 200])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_both_rulebooks_are_the_same(geometry, count):
    shape = (9, 10, 11)[-len(geometry.kernel) :]
    cells = torch.randperm(2 * torch.Size(shape).numel(), generator=torch.Generator().manual_seed(3))[:count]
    sites = Sites.checked(torch.stack(torch.unravel_index(cells, (2, *shape)), dim=1), shape, 2)
    outputs = sites if geometry.subm else cpu.output_sites(sites, geometry)
    if not geometry.subm:
        twin = reference.output_sites(sites, geometry)
        assert torch.equal(outputs.indices, twin.indices) and outputs.spatial_shape == twin.spatial_shape
    table = cpu.neighbour_table(sites, outputs, geometry)
    assert torch.equal(table, reference.neighbour_table(sites, outputs, geometry))
    assert torch.equal(cpu.reverse_table(table, count), reference.reverse_table(table, count))


def test_both_products_are_the_same():
    generator = torch.Generator().manual_seed(4)
    table = torch.stack([torch.randperm(90, generator=generator)[:80] for _ in range(5)]).int()
    table[torch.rand(table.shape, generator=generator) < 0.6] = -1
    features = torch.randn(90, 7, generator=generator, dtype=torch.float64)
    weight = torch.randn(5, 7, 10, generator=generator, dtype=torch.float64)
    grad = torch.randn(80, 10, generator=generator, dtype=torch.float64)
    pairs = table_pairs(table)
    product = cpu.gather_multiply(features, weight, table)
    torch.testing.assert_close(product, reference.gather_multiply(features, weight, pairs, 80))
    gradient = cpu.weight_gradient(features, grad, table)
    torch.testing.assert_close(gradient, reference.weight_gradient(features, grad, pairs))
