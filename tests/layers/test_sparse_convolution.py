"""Sparse convolution layers against arithmetic by hand and against dense convolution."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pcdet.layers.sparse import (
    SparseConv2d,
    SparseConv3d,
    SparseConvTensor,
    SparseInverseConv2d,
    SparseInverseConv3d,
    SparseSequential,
    SubMConv2d,
    SubMConv3d,
    device,
    reference,
    rulebook,
)
from pcdet.layers.sparse import convolve as convolve_module
from pcdet.layers.sparse.convolve import convolve

SHAPES = {2: (9, 11), 3: (6, 7, 8)}


def random_sites(ndim: int, count: int, batch_size: int = 2, seed: int = 0) -> Tensor:
    shape = (batch_size, *SHAPES[ndim])
    cells = torch.randperm(torch.Size(shape).numel(), generator=torch.Generator().manual_seed(seed))[:count]
    return torch.stack(torch.unravel_index(cells, shape), dim=1).int()


def random_tensor(ndim: int, channels: int, count: int = 70, batch_size: int = 2, seed: int = 0) -> SparseConvTensor:
    features = torch.randn(count, channels, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return SparseConvTensor(features, random_sites(ndim, count, batch_size, seed), SHAPES[ndim], batch_size)


def at_sites(grid: Tensor, x: SparseConvTensor) -> Tensor:
    """Values of a dense (B, C, ...) grid at the sites of ``x``. (N, C)"""
    scene, *cell = x.indices.long().unbind(dim=1)
    return grid.movedim(1, -1)[(scene, *cell)]


def dense_convolution(x: SparseConvTensor, layer: nn.Module) -> Tensor:
    g = layer.geometry
    weight = layer.weight.movedim(-1, 1)  # (O, I, *kernel)
    call = F.conv3d if x.sites.ndim == 3 else F.conv2d
    return call(x.dense(), weight, layer.bias, g.stride, g.padding, g.dilation)


def gradients(values: Tensor, x: SparseConvTensor, layer: nn.Module) -> list[Tensor]:
    loss = (values * values.detach().cos()).sum()
    return torch.autograd.grad(loss, [x.features, *layer.parameters()], retain_graph=True)


def test_one_site_spreads_by_the_kernel():
    """A site of value 2 at x = 1 is seen by outputs x = 0, 1, 2 through the offsets 2, 1, 0."""
    layer = SparseConv2d(1, 1, (1, 3), padding=(0, 1), bias=False)
    layer.weight.data = torch.tensor([10.0, 20.0, 30.0]).view(1, 1, 3, 1)
    out = layer(SparseConvTensor(torch.tensor([[2.0]]), torch.tensor([[0, 0, 1]]), (1, 4), 1))
    assert out.indices.tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2]]
    assert out.features.tolist() == [[60.0], [40.0], [20.0]]


def test_submanifold_keeps_sites_and_their_order():
    layer = SubMConv2d(1, 1, 3, bias=False)
    layer.weight.data = torch.arange(9.0).view(1, 3, 3, 1)
    x = SparseConvTensor(torch.tensor([[1.0], [10.0]]), torch.tensor([[0, 2, 2], [0, 1, 1]]), (4, 4), 1)
    out = layer(x)
    assert out.indices.tolist() == [[0, 2, 2], [0, 1, 1]]
    assert out.features.tolist() == [[4.0 * 1 + 0.0 * 10], [4.0 * 10 + 8.0 * 1]]


@pytest.mark.parametrize("kernel, dilation", [(3, 1), (5, 1), (3, 2)])
@pytest.mark.parametrize("kind", [SubMConv2d, SubMConv3d])
def test_submanifold_equals_dense_at_its_sites(kind, kernel, dilation):
    x = random_tensor(kind.ndim, 5)
    x.features.requires_grad_()
    layer = kind(5, 7, kernel, dilation=dilation).double()
    out, dense = layer(x).features, at_sites(dense_convolution(x, layer), x)
    torch.testing.assert_close(out, dense)
    torch.testing.assert_close(gradients(out, x, layer), gradients(dense, x, layer))


STRIDED = [
    (SparseConv3d, 3, 2, 1, 1),
    (SparseConv3d, 3, 2, (0, 1, 1), 1),
    (SparseConv3d, (3, 1, 1), (2, 1, 1), 0, 1),
    (SparseConv3d, 3, 1, 1, 1),
    (SparseConv3d, 2, 2, 0, 1),
    (SparseConv3d, 3, (1, 3, 2), 2, 2),
    (SparseConv2d, 3, 2, 1, 1),
    (SparseConv2d, (1, 4), (3, 1), (0, 2), 1),
]


@pytest.mark.parametrize("kind, kernel, stride, padding, dilation", STRIDED)
def test_strided_equals_dense(kind, kernel, stride, padding, dilation):
    x = random_tensor(kind.ndim, 4, count=40)
    x.features.requires_grad_()
    layer = kind(4, 6, kernel, stride, padding, dilation, bias=False).double()
    out, dense = layer(x), dense_convolution(x, layer)
    torch.testing.assert_close(out.dense(), dense)
    torch.testing.assert_close(gradients(out.features, x, layer), gradients(dense, x, layer))


@pytest.mark.parametrize("kind, kernel, stride, padding, dilation", STRIDED)
def test_strided_sites_are_all_that_see_an_input(kind, kernel, stride, padding, dilation):
    x = random_tensor(kind.ndim, 1, count=15)
    layer = kind(1, 1, kernel, stride, padding, dilation, bias=False).double()
    nn.init.ones_(layer.weight)
    seen = dense_convolution(x.replace_feature(torch.ones_like(x.features)), layer).squeeze(1)
    assert layer(x).indices.tolist() == (seen > 0).nonzero().tolist()


@pytest.mark.parametrize("kinds", [(SparseConv2d, SparseInverseConv2d), (SparseConv3d, SparseInverseConv3d)])
def test_inverse_restores_the_sites_and_is_the_transpose(kinds):
    down, up = kinds
    x = random_tensor(down.ndim, 3)
    x.features.requires_grad_()
    first = down(3, 4, 3, 2, 1, indice_key="down").double()
    second = up(4, 5, 3, "down", bias=False).double()
    middle = first(x)
    out = second(middle)
    assert out.sites is x.sites
    call = F.conv_transpose3d if down.ndim == 3 else F.conv_transpose2d
    weight = second.weight.movedim(-1, 0)  # (I, O, *kernel)
    extra = [(size + 1) % 2 for size in SHAPES[down.ndim]]
    dense = at_sites(call(middle.dense(), weight, stride=2, padding=1, output_padding=extra), x)
    torch.testing.assert_close(out.features, dense)
    torch.testing.assert_close(gradients(out.features, x, second), gradients(dense, x, second))


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("kind", [SparseConv2d, SparseConv3d])
def test_gradcheck(kind, inverse):
    x = random_tensor(kind.ndim, 3, count=8)
    layer = kind(3, 2, 3, 2, 1, indice_key="k").double()
    out = layer(x)
    rows = len(out.features) if inverse else len(x.features)
    features = torch.randn(rows, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    arguments = (features.requires_grad_(), layer.weight, x.rulebooks["k"], inverse)
    assert torch.autograd.gradcheck(convolve, arguments)


@pytest.mark.parametrize("channels", [(1, 1), (3, 5), (4, 16), (33, 17)])
def test_single_precision_at_every_channel_count(channels):
    x = random_tensor(3, channels[0], count=300)
    layer = SubMConv3d(*channels, 3).double()
    expected = layer(x).features
    got = layer.float()(x.replace_feature(x.features.float())).features
    torch.testing.assert_close(got, expected.float(), rtol=1e-4, atol=1e-5)


def network() -> SparseSequential:
    return SparseSequential(
        SubMConv3d(3, 6, 3, indice_key="subm1"),
        nn.Tanh(),
        SparseConv3d(6, 8, 3, 2, 1, indice_key="down"),
        nn.Tanh(),
        SubMConv3d(8, 8, 3, indice_key="subm2"),
        SparseInverseConv3d(8, 4, 3, "down"),
        SubMConv3d(4, 4, 3, indice_key="subm1"),
    ).double()


def test_a_batch_of_two_equals_two_of_one():
    net, both = network(), random_tensor(3, 3)
    out = net(both).features
    for scene in (0, 1):
        mask = both.indices[:, 0] == scene
        alone = both.indices[mask].clone()
        alone[:, 0] = 0
        x = SparseConvTensor(both.features[mask], alone, both.spatial_shape, 1)
        torch.testing.assert_close(net(x).features, out[mask])


def test_permuted_rows_give_permuted_rows():
    net, x = network(), random_tensor(3, 3)
    order = torch.randperm(len(x.features), generator=torch.Generator().manual_seed(2))
    permuted = SparseConvTensor(x.features[order], x.indices[order], x.spatial_shape, x.batch_size)
    torch.testing.assert_close(net(permuted).features, net(x).features[order])


def loss_and_gradients(net: nn.Module, x: SparseConvTensor) -> list[Tensor]:
    features = net(x).features
    return [features, *torch.autograd.grad(features.square().sum(), list(net.parameters()))]


@pytest.mark.parametrize("other", [reference, device])
def test_the_plain_torch_backends_give_the_same_network(monkeypatch, other):
    net = network()
    expected = loss_and_gradients(net, random_tensor(3, 3))
    for module in (rulebook, convolve_module):
        monkeypatch.setattr(module, "backend", lambda tensor: other)
    torch.testing.assert_close(loss_and_gradients(net, random_tensor(3, 3)), expected)


def test_a_compiled_network_gives_the_same():
    net = network()
    compiled = torch.compile(net, backend="eager")
    torch.testing.assert_close(
        loss_and_gradients(compiled, random_tensor(3, 3)), loss_and_gradients(net, random_tensor(3, 3))
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_network():
    net, x = network().float(), random_tensor(3, 3)
    on_cpu = loss_and_gradients(net, x.replace_feature(x.features.float()))
    x = SparseConvTensor(x.features.float().cuda(), x.indices.cuda(), x.spatial_shape, x.batch_size)
    on_gpu = [t.cpu() for t in loss_and_gradients(net.to("cuda"), x)]
    torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-2, atol=1e-3)  # a library may multiply in TF32


def test_the_thread_count_changes_no_bit():
    def run(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        generator = torch.Generator().manual_seed(5)
        cells = torch.randperm(2 * 40**3, generator=generator)[:20000]
        indices = torch.stack(torch.unravel_index(cells, (2, 40, 40, 40)), dim=1)
        features = torch.randn(20000, 16, generator=generator).requires_grad_()
        torch.manual_seed(0)
        net = SparseSequential(SubMConv3d(16, 32, 3), SparseConv3d(32, 24, 3, 2, 1))
        out = net(SparseConvTensor(features, indices, (40, 40, 40), 2)).features
        out.square().sum().backward()
        return [out.detach(), features.grad, *(p.grad for p in net.parameters() if p.ndim > 1)]

    before = torch.get_num_threads()
    try:
        for one, many in zip(run(1), run(3), strict=True):
            assert torch.equal(one, many)
    finally:
        torch.set_num_threads(before)


def test_short_floats_are_computed_in_float32_on_a_cpu():
    x = random_tensor(3, 4)
    layer = SubMConv3d(4, 4, 3)
    expected = layer(x.replace_feature(x.features.bfloat16().float())).features
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x.replace_feature(x.features.bfloat16())).features
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("kind, shape", [(SubMConv3d, (3, 3, 3)), (SparseConv2d, (3, 3))])
def test_a_checkpoint_of_spconv_1_is_converted(kind, shape):
    layer = kind(4, 6, 3)
    old = torch.arange(layer.weight.numel(), dtype=torch.float32).view(*shape, 4, 6)  # (*kernel, in, out)
    state = nn.ModuleDict({"conv": layer}).state_dict() | {"conv.weight": old}
    nn.ModuleDict({"conv": layer}).load_state_dict(state)
    assert layer.weight[5, 2, 0, ..., 3].flatten()[-1] == old[2, 0, ..., 3, 5].flatten()[-1]
    assert layer.weight.shape == (6, *shape, 4)
    assert state["conv.weight"] is old, "the caller's dict must stay as it is"


def test_an_ambiguous_checkpoint_is_taken_as_spconv_2():
    layer, weight = SubMConv3d(3, 3, 3), torch.randn(3, 3, 3, 3, 3)
    layer.load_state_dict({"weight": weight, "bias": torch.zeros(3)})
    assert torch.equal(layer.weight, weight)


def test_a_wrong_checkpoint_is_refused():
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        SubMConv3d(4, 6, 3, bias=False).load_state_dict({"weight": torch.zeros(3, 3, 3, 6, 4)})


def test_the_initial_weights_have_the_bound_of_dense_layers():
    layer = SparseConv3d(8, 16, 3)
    assert 0.9 / (8 * 27) ** 0.5 < layer.weight.abs().max() <= 1 / (8 * 27) ** 0.5


def test_no_sites_give_no_sites_and_zero_gradients():
    empty = SparseConvTensor(torch.zeros(0, 3, dtype=torch.float64), torch.zeros(0, 4).int(), SHAPES[3], 2)
    net = network()
    net.append(nn.BatchNorm1d(4).double())
    net[-1].running_mean += 3
    out = net(empty)
    assert out.features.shape == (0, 4) and out.dense().shape == (2, 4, *SHAPES[3])
    out.dense().sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in net.parameters())
    assert net[-1].running_mean.tolist() == [3.0] * 4
    down = SparseConv3d(3, 5, 3, 2, 1).double()(empty)
    assert down.features.shape == (0, 5) and down.spatial_shape == (3, 4, 4)


def test_a_key_shared_by_layers_that_differ_is_an_error():
    x = random_tensor(3, 3)
    wide = SubMConv3d(3, 3, 5, indice_key="a").double()
    SubMConv3d(3, 3, 3, indice_key="a").double()(x)
    with pytest.raises(ValueError, match="indice_key 'a'"):
        wide(x)
    down = SparseConv3d(3, 3, 3, 2, 1, indice_key="b").double()(x)
    with pytest.raises(ValueError, match="indice_key 'a'"):
        SubMConv3d(3, 3, 3, indice_key="a").double()(down)


def test_an_inverse_without_its_convolution_is_an_error():
    with pytest.raises(ValueError, match="same indice_key"):
        SparseInverseConv3d(3, 3, 3, "missing").double()(random_tensor(3, 3))


def test_wrong_inputs_of_a_layer_are_named():
    with pytest.raises(ValueError, match="cannot take 3 channels"):
        SubMConv3d(4, 4, 3).double()(random_tensor(3, 3))
    with pytest.raises(ValueError, match="kernel sizes must be odd"):
        SubMConv3d(4, 4, 2)
    with pytest.raises(ValueError, match="one number or 3"):
        SparseConv3d(4, 4, (3, 3))
    with pytest.raises(ValueError, match="does not fit a grid"):
        SparseConv3d(3, 4, 7).double()(random_tensor(3, 3))
    with pytest.raises(ValueError, match="is on (meta|cpu)"):
        SubMConv3d(3, 4, 3, bias=False).to("meta")(random_tensor(3, 3))
