"""The hand-over of a layer to a GPU library with spconv's interface: with a double, and with spconv's CPU build."""

import importlib
import types

import pytest
import torch
from torch import Tensor, nn

from pcdet.layers import sparse
from pcdet.layers.sparse import SparseConvTensor, library, measure
from pcdet.layers.sparse.modules import SparseConvolution
from pcdet.layers.sparse.rulebook import build_rulebook


class DoubleTensor:
    """spconv's tensor as far as the hand-over uses it."""

    def __init__(self, features: Tensor, indices: Tensor, spatial_shape: list[int], batch_size: int):
        self.features, self.indices = features, indices
        self.spatial_shape, self.batch_size = spatial_shape, batch_size
        self.indice_dict: dict = {}


def double_of(name: str) -> type[nn.Module]:
    """spconv's layer ``name``: ours does the work, and what it remembers travels in a copied ``indice_dict``."""

    class Double(getattr(sparse, name)):
        def forward(self, x: DoubleTensor) -> DoubleTensor:
            given = SparseConvTensor(x.features, x.indices, x.spatial_shape, x.batch_size)
            given.sites = x.indice_dict.get("sites", given.sites)
            given.rulebooks = {key: value for key, value in x.indice_dict.items() if key != "sites"}
            made = super().forward(given)
            out = DoubleTensor(made.features, made.indices, list(made.spatial_shape), x.batch_size)
            out.indice_dict = {**made.rulebooks, "sites": made.sites}
            return out

    return Double


NAMES = ("SubMConv3d", "SparseConv3d", "SparseInverseConv3d")
DOUBLE = types.SimpleNamespace(SparseConvTensor=DoubleTensor, **{name: double_of(name) for name in NAMES})


def network() -> nn.Module:
    torch.manual_seed(0)
    return sparse.SparseSequential(
        sparse.SubMConv3d(3, 6, 3, bias=False, indice_key="subm"),
        nn.Tanh(),
        sparse.SparseConv3d(6, 8, 3, 2, 1, bias=False, indice_key="down"),
        sparse.SparseInverseConv3d(8, 4, 3, "down", bias=False),
        sparse.SubMConv3d(4, 4, 3, bias=False, indice_key="subm"),
    )


def sites(count: int = 60) -> SparseConvTensor:
    generator = torch.Generator().manual_seed(1)
    cells = torch.randperm(2 * 6 * 7 * 8, generator=generator)[:count]
    indices = torch.stack(torch.unravel_index(cells, (2, 6, 7, 8)), dim=1).int()
    return SparseConvTensor(torch.randn(count, 3, generator=generator), indices, (6, 7, 8), 2)


def handed_over(monkeypatch: pytest.MonkeyPatch, peer: object, net: nn.Module, x: SparseConvTensor) -> SparseConvTensor:
    own = SparseConvolution.forward

    def forward(layer: SparseConvolution, x: SparseConvTensor | DoubleTensor) -> SparseConvTensor:
        inside = type(layer).__name__ == "Double"
        return own(layer, x) if inside else library.convolve(peer, layer, x)

    monkeypatch.setattr(SparseConvolution, "forward", forward)
    return net(x)


def test_a_library_gets_our_parameters_and_its_memory_back(monkeypatch):
    net = network()
    expected = net(sites())
    expected.features.square().sum().backward()
    gradients = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    names = list(net.state_dict())

    out = handed_over(monkeypatch, DOUBLE, net, sites())
    out.features.square().sum().backward()
    assert torch.equal(out.features, expected.features) and torch.equal(out.indices, expected.indices)
    assert out.spatial_shape == expected.spatial_shape
    for parameter, gradient in zip(net.parameters(), gradients, strict=True):
        assert torch.equal(parameter.grad, gradient)
    assert list(net.state_dict()) == names, "the library's twins must not appear among the parameters"


@pytest.fixture
def choice(monkeypatch, caplog):
    """``choice(*installed)`` -> the library chosen where these are installed, and what the log says."""
    monkeypatch.setattr(library.get_logger(), "propagate", True)
    monkeypatch.delenv("PCDET_SPARSE", raising=False)
    caplog.set_level("INFO")

    def choose(*installed: str) -> tuple[object, str]:
        library._choose.cache_clear()
        caplog.clear()
        monkeypatch.setattr(library, "_load", lambda name: name if name in installed else None)
        return library.gpu_library(torch.device("cuda", 0)), caplog.text

    yield choose
    library._choose.cache_clear()


def test_without_a_library_a_hint_says_what_to_install(choice):
    chosen, log = choice()
    assert chosen is None and "WARNING" in log and "pcdet[gpu]" in log


@pytest.fixture
def times(monkeypatch):
    """Milliseconds by library, "own" for our layers, in place of measured ones; one that raises cannot run."""
    numbers: dict = {}

    def look_up(peer, device):
        value = numbers[peer or "own"]
        if isinstance(value, Exception):
            raise value
        return value

    monkeypatch.setattr(measure, "milliseconds", look_up)
    return numbers


@pytest.mark.parametrize(
    "numbers, fastest, named",
    [
        ({"spconv": 1.2, "spconv_triton": 1.8, "own": 3.0}, "spconv", "by spconv: "),
        ({"spconv": 1.9, "spconv_triton": 1.8, "own": 3.0}, "spconv_triton", "by spconv-triton: "),
        ({"spconv": 9.9, "spconv_triton": 9.8, "own": 3.0}, None, "by the layers of this package, in torch: "),
    ],
)
def test_the_fastest_of_all_that_are_there_is_chosen_and_the_log_has_the_times(choice, times, numbers, fastest, named):
    times |= numbers
    chosen, log = choice("spconv", "spconv_triton")
    assert chosen == fastest and named in log and "WARNING" not in log
    assert all(f"{ms:.2f} ms" in log for ms in numbers.values())


def test_a_library_that_cannot_run_here_is_named_and_left_out(choice, times):
    times |= {"spconv": RuntimeError("CUDA error: no kernel image is available\nmore"), "own": 3.0}
    chosen, log = choice("spconv")
    assert chosen is None and "spconv is installed but cannot run here: CUDA error: no kernel image is available" in log


@pytest.mark.parametrize("peer", [None, DOUBLE])
def test_a_time_is_measured_and_no_draw_is_taken_from_the_run(peer):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with torch.no_grad():
        assert 0 < measure.milliseconds(peer, torch.device("cpu"), blocks=20) < 60_000
    assert torch.equal(torch.get_rng_state(), before)


def test_a_third_of_the_cells_around_a_measured_site_are_sites():
    indices = measure._sites(200)
    assert len(indices.unique(dim=0)) == len(indices) == 3200
    x = SparseConvTensor(torch.zeros(len(indices), 1), indices, measure.GRID, 1)
    table = build_rulebook(x.sites, sparse.SubMConv3d(1, 1, 3).geometry).table
    assert 0.3 < (table >= 0).float().mean() < 0.45


def test_where_the_same_bits_are_asked_for_spconv_is_passed_over(choice):
    torch.use_deterministic_algorithms(True)
    try:
        assert choice("spconv", "spconv_triton")[0] == "spconv_triton"
        chosen, log = choice("spconv")
        assert chosen is None and "use_deterministic_algorithms" in log
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_environment_overrules_the_choice(choice, monkeypatch):
    monkeypatch.setenv("PCDET_SPARSE", "own")
    chosen, log = choice("spconv")
    assert chosen is None and "PCDET_SPARSE says so" in log
    monkeypatch.setenv("PCDET_SPARSE", "spconv_triton")
    with pytest.raises(ValueError, match="no build for a GPU here"):
        choice("spconv")
    monkeypatch.setenv("PCDET_SPARSE", "minkowski")
    with pytest.raises(ValueError, match="it may be one of spconv, spconv_triton, own"):
        choice("spconv")


def test_a_library_without_its_gpu_part_does_not_count(monkeypatch):
    def load(name: str) -> object:
        if name.startswith("spconv_triton"):
            raise ImportError(name)
        return types.SimpleNamespace(CPU_ONLY_BUILD=True)

    monkeypatch.setattr(importlib, "import_module", load)
    assert library._load("spconv") is None and library._load("spconv_triton") is None


def test_spconv_on_one_thread_agrees(monkeypatch):
    spconv = pytest.importorskip("spconv.pytorch", reason="spconv's CPU build is not installed", exc_type=ImportError)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with more its CPU build computes wrong values
    try:
        net = network()
        expected = net(sites())
        with torch.no_grad():
            out = handed_over(monkeypatch, spconv, net, sites())
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(out.features, expected.features, rtol=1e-4, atol=1e-6)
    assert torch.equal(out.indices, expected.indices)
