"""The sparse convolution of a GPU without a library, on CPU tensors, against the CPU kernels; when the host waits."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pcdet.layers.sparse import SparseConv2d, SparseConv3d, SubMConv2d, SubMConv3d, cpu, device
from pcdet.layers.sparse.rulebook import Rulebook
from pcdet.layers.sparse.sites import Sites

WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_consecutive", "bincount", "equal"}


class Waits(TorchDispatchMode):
    """Lists the calls for which the host would wait if the tensors were on a GPU."""

    def __init__(self):
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        masks = name == "index" and any(t is not None and t.dtype == torch.bool for t in args[1])
        if name in WAITS or masks:
            self.calls.append(name)
        return func(*args, **(kwargs or {}))


GEOMETRIES = {
    "centred": SubMConv3d(1, 1, 3).geometry,
    "centred and spread": SubMConv3d(1, 1, 3, dilation=2).geometry,
    "strided": SparseConv3d(1, 1, 3, 2, 1).geometry,
    "along z": SparseConv3d(1, 1, (3, 1, 1), (2, 1, 1), 0).geometry,
    "one": SparseConv3d(1, 1, 1).geometry,
    "flat": SparseConv2d(1, 1, 3, 2, 1).geometry,
    "flat and centred": SubMConv2d(1, 1, 5).geometry,
}


def sites(geometry, count: int = 300) -> Sites:
    shape = (9, 14, 11)[3 - len(geometry.kernel) :]
    cells = torch.randperm(2 * torch.Size(shape).numel(), generator=torch.Generator().manual_seed(0))[:count]
    return Sites.checked(torch.stack(torch.unravel_index(cells, (2, *shape)), dim=1), shape, 2)


def rulebooks(geometry, inputs: Sites) -> tuple[Rulebook, Rulebook]:
    """That of the CPU kernels and that of the GPU."""
    outputs = inputs if geometry.subm else cpu.output_sites(inputs, geometry)
    tables = (module.neighbour_table(inputs, outputs, geometry) for module in (cpu, device))
    return tuple(Rulebook(geometry, inputs, outputs, table) for table in tables)


@pytest.mark.parametrize("count", [0, 1, 230])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_sites_and_tables(name, count):
    geometry, inputs = GEOMETRIES[name], sites(GEOMETRIES[name], count)
    if not geometry.subm:
        expected, found = (module.output_sites(inputs, geometry) for module in (cpu, device))
        assert torch.equal(found.indices, expected.indices) and found.spatial_shape == expected.spatial_shape
        assert found.indices.dtype == expected.indices.dtype
    ours, theirs = rulebooks(geometry, inputs)
    assert torch.equal(theirs.table, ours.table) and theirs.table.dtype == ours.table.dtype
    reverse = device.reverse_table(theirs.table, len(inputs))
    assert torch.equal(reverse, cpu.reverse_table(ours.table, len(inputs))) and reverse.dtype == ours.table.dtype


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("name", ["centred", "strided", "flat"])
@pytest.mark.parametrize("channels", [(1, 1), (5, 3), (16, 32)])
def test_products_and_gradients(monkeypatch, name, channels, inverse):
    ours, theirs = rulebooks(GEOMETRIES[name], sites(GEOMETRIES[name], 150))
    monkeypatch.setattr(device, "GATHERED", 27 * channels[0] * 40)  # several parts
    given, made = (ours.outputs, ours.inputs) if inverse else (ours.inputs, ours.outputs)
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(len(given), channels[0], generator=generator)
    weight = torch.randn(ours.geometry.volume, *channels, generator=generator)
    grad = torch.randn(len(made), channels[1], generator=generator)
    found = device.product(features, weight, theirs, inverse)
    torch.testing.assert_close(found, cpu.product(features, weight, ours, inverse), rtol=1e-4, atol=1e-4)
    slope = device.product_gradient(features, grad, theirs, inverse)
    torch.testing.assert_close(slope, cpu.product_gradient(features, grad, ours, inverse), rtol=1e-4, atol=1e-4)
    assert torch.equal(found, device.product(features, weight, theirs, inverse))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_its_type(dtype):
    _, book = rulebooks(GEOMETRIES["centred"], sites(GEOMETRIES["centred"], 50))
    features, weight = torch.randn(50, 8).to(dtype), torch.randn(27, 8, 4).to(dtype)
    assert device.product(features, weight, book, False).dtype == dtype
    assert device.product_gradient(features, torch.randn(50, 4).to(dtype), book, False).dtype == dtype


def waits_of(call) -> list[str]:
    with Waits() as waits:
        call()
    return waits.calls


def on_a_gpu(inputs: Sites) -> Sites:
    """The sites with what a tensor on a GPU would have: sorted keys, made without asking whether they are in order."""
    made = Sites(inputs.indices, inputs.spatial_shape, inputs.batch_size)
    made.__dict__["ordered"] = torch.sort(made.keys, stable=True)
    return made


@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_host_waits_once_for_the_sites_of_a_strided_layer_and_for_nothing_else(name):
    geometry = GEOMETRIES[name]
    inputs = on_a_gpu(sites(geometry))
    found: list[Sites] = [inputs]
    if not geometry.subm:
        assert waits_of(lambda: found.append(device.output_sites(inputs, geometry))) == ["_local_scalar_dense"]
    book: list[Tensor] = []
    assert waits_of(lambda: book.append(device.neighbour_table(inputs, found[-1], geometry))) == []
    table = book[0]
    assert waits_of(lambda: device.reverse_table(table, len(inputs))) == []
    features, weight = torch.randn(len(inputs), 4), torch.randn(geometry.volume, 4, 5)
    assert waits_of(lambda: device.gather_multiply(features, weight, table)) == []
    assert waits_of(lambda: device.weight_gradient(features, torch.randn(table.shape[1], 5), table)) == []
