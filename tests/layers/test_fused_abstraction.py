"""Set abstraction in one piece equals the layers one by one: values, gradients, statistics; and when it is used."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pcdet.layers import set_abstraction
from pcdet.layers.set_abstraction import GlobalAbstraction, MultiScaleAbstraction, SetAbstraction, SharedMLP
from pcdet.layers.sync_norm import SyncBatchNorm

LEVELS: dict[str, Callable[[], nn.Module]] = {
    "one radius": lambda: SetAbstraction(4, 12, 0.9, 8, [16, 12, 20]),
    "several": lambda: MultiScaleAbstraction(4, 12, [0.5, 1.2], [4, 16], [[8, 10], [16, 12, 20]]),
    "everything": lambda: GlobalAbstraction(4, [16, 24]),
}


def level(name: str) -> nn.Module:
    torch.manual_seed(1)
    module = LEVELS[name]()
    for norm in module.modules():  # as after some training
        if isinstance(norm, nn.BatchNorm1d):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
    return module


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    clouds, features = torch.randn(3, 60, 3, generator=g), torch.randn(3, 60, 4, generator=g)
    return clouds.to(dtype).requires_grad_(), features.to(dtype).requires_grad_()


def features_of(module: nn.Module, clouds: Tensor, features: Tensor) -> Tensor:
    out = module(clouds, features)
    return out if isinstance(out, Tensor) else out[1]


@pytest.fixture
def runs(monkeypatch) -> list[str]:
    """The operators that have run."""
    found = []

    def watched(name: str, run: Callable) -> Callable:
        def noted(*args, **options):
            found.append(name)
            return run(*args, **options)

        return noted

    for name in ("grouped_mlp", "grouped_mlp_known"):
        monkeypatch.setattr(set_abstraction, name, watched(name, getattr(set_abstraction, name)))
    return found


def close(found: Tensor, wanted: Tensor, scale: Tensor | float = 0.0) -> None:
    wanted = wanted.detach().double()
    atol = 1e-5 * max(float(wanted.abs().max()), float(scale))
    torch.testing.assert_close(found.detach().double(), wanted, rtol=1e-3, atol=atol)


@pytest.mark.parametrize("name", LEVELS)
def test_training_equals_layers_in_double_precision(name, runs):
    """In double precision the layers run one by one."""
    fused = level(name)
    exact = copy.deepcopy(fused).double()
    mine, theirs = inputs(), inputs(torch.float64)
    out = features_of(fused, *mine)
    assert set(runs) == {"grouped_mlp"}
    runs.clear()
    wanted = features_of(exact, *theirs)
    assert not runs
    close(out, wanted)
    pull = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)) * (wanted > 1e-5)
    out.backward(pull)
    wanted.backward(pull.double())
    pairs = [*zip(mine, theirs, strict=True), *zip(fused.parameters(), exact.parameters(), strict=True)]
    largest = max(float(b.grad.abs().max()) for _, b in pairs)
    for a, b in pairs:
        close(a.grad, b.grad, largest)
    for a, b in zip(fused.buffers(), exact.buffers(), strict=True):
        close(a, b)


@pytest.mark.parametrize("name", LEVELS)
def test_evaluation_equals_layers_in_double_precision(name, runs):
    fused = level(name).eval()
    with torch.no_grad():
        out = features_of(fused, *inputs())
        assert set(runs) == {"grouped_mlp_known"}
        close(out, features_of(copy.deepcopy(fused).double(), *inputs(torch.float64)))


def test_a_gradient_through_running_statistics_takes_the_layers(runs):
    frozen = level("one radius").eval()
    clouds, features = inputs()
    out = features_of(frozen, clouds, features)
    out.sum().backward()
    assert not runs and features.grad.abs().sum() > 0
    with torch.no_grad():
        close(features_of(frozen, clouds, features), out)
    assert runs == ["grouped_mlp_known"]


def test_mixed_precision_takes_the_layers(runs):
    module = level("one radius")
    twin = copy.deepcopy(module)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = features_of(module, *inputs())
    assert not runs
    exact = features_of(twin, *inputs())
    assert (out - exact).norm() < 0.03 * exact.norm()


def test_norms_of_several_ranks_take_the_layers(runs):
    module = level("several")
    twin = SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(module))
    mine, theirs = inputs(), inputs()
    out, wanted = features_of(module, *mine), features_of(twin, *theirs)
    assert runs == ["grouped_mlp"] * 2
    close(out, wanted)
    for result in (out, wanted):
        result.square().sum().backward()
    close(mine[1].grad, theirs[1].grad)
    for a, b in zip(module.buffers(), twin.buffers(), strict=True):
        close(a, b)


def test_an_mlp_of_one_layer_and_norms_that_differ_take_the_layers(runs):
    mlp = SharedMLP([4, 6, 8])
    mlp.norms[1].eps = 1e-3
    given = torch.randn(2, 5, 6), torch.zeros(2, 3, 6), torch.zeros(2, 3, 4, dtype=torch.long), torch.ones(2, 3).long()
    assert mlp.grouped(*given).shape == (2, 3, 8)
    assert SharedMLP([4, 6]).grouped(*given).shape == (2, 3, 6)
    assert not runs


@pytest.mark.parametrize("training", [False, True])
def test_it_compiles_in_one_piece(training):
    module = level("one radius").train(training)
    twin = copy.deepcopy(module)
    with torch.set_grad_enabled(training):
        compiled = torch.compile(twin, backend="aot_eager", fullgraph=True)
        (out, wanted), given = (features_of(m, *inputs()) for m in (compiled, module)), inputs()
        close(out, wanted)
        if training:
            out, wanted = features_of(compiled, *given), features_of(module, *given)
            found, expected = (torch.autograd.grad(x.square().sum(), given) for x in (out, wanted))
            for a, b in zip(found, expected, strict=True):
                close(a, b)
            for a, b in zip(twin.buffers(), module.buffers(), strict=True):
                close(a, b)
