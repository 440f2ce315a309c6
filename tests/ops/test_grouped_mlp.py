"""The shared MLP and the maximum of set abstraction in one: by hand, and against plain autograd in double precision."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, library

from pcdet.ops.grouped_mlp import cpu, grouped_mlp, grouped_mlp_known, reference

EPS = 1e-3
WIDTHS = {"two layers": [6, 10], "three": [8, 12, 20], "narrowing, four": [20, 16, 9, 5]}


class Case(NamedTuple):
    """Inputs of the operator; every ball but those that ``found`` says are full repeats its first point."""

    table: Tensor
    shift: Tensor
    index: Tensor
    found: Tensor
    weights: list[Tensor]
    offsets: list[Tensor]
    gains: list[Tensor]
    biases: list[Tensor]

    def leaves(self, dtype: torch.dtype) -> "Case":
        """Copies that take gradients."""

        def leaf(tensors: Any) -> Any:
            if isinstance(tensors, list):
                return [leaf(t) for t in tensors]
            return tensors.detach().to(dtype, copy=True).requires_grad_() if tensors.is_floating_point() else tensors

        return Case(*map(leaf, self))

    def tensors(self) -> list[Tensor]:
        return [self.table, self.shift, *self.weights, *self.offsets, *self.gains, *self.biases]


def case(widths: list[int], batch: int = 3, points: int = 40, groups: int = 15, size: int = 8, seed: int = 0) -> Case:
    g = torch.Generator().manual_seed(seed)
    found = torch.randint(1, size + 1, (batch, groups), generator=g)
    order = torch.rand(batch, groups, points, generator=g).argsort(dim=-1)[..., :size].sort(dim=-1).values
    index = torch.where(torch.arange(size) < found[..., None], order, order[..., :1])
    weights = [torch.randn(b, a, generator=g) / a**0.5 for a, b in zip(widths, widths[1:], strict=False)]
    gains = [torch.randn(w, generator=g) for w in widths]  # some below 0: there the smallest row is the largest
    return Case(
        torch.randn(batch, points, widths[0], generator=g),
        torch.randn(batch, groups, widths[0], generator=g),
        index,
        found,
        weights,
        [torch.randn(w, generator=g) for w in widths[1:]],
        gains,
        [0.3 * torch.randn(w, generator=g) for w in widths],
    )


def plain(given: Case, relu: bool = True, known: list[tuple[Tensor, Tensor]] | None = None):
    """Every place a row, one layer after another. -> maxima, means, variances"""
    cloud = torch.arange(len(given.table))[:, None, None]
    x = (given.table[cloud, given.index] - given.shift[:, :, None]).flatten(0, 2)
    moments = []
    for layer, (gain, bias) in enumerate(zip(given.gains, given.biases, strict=True)):
        if layer > 0:
            x = x.relu() @ given.weights[layer - 1].T + given.offsets[layer - 1]
        moments.append(known[layer] if known else (x.mean(dim=0), x.var(dim=0, correction=0)))
        mean, var = moments[-1]
        x = (x - mean) / (var + EPS).sqrt() * gain + bias
    x = x.relu() if relu else x
    return x.view(*given.index.shape, -1).max(dim=2).values, *map(list, zip(*moments, strict=True))


def near(found: Tensor, wanted: Tensor, share: float = 2e-5) -> None:
    wanted = wanted.detach().double()
    torch.testing.assert_close(found.detach().double(), wanted, rtol=1e-4, atol=share * float(wanted.abs().max()))


def test_by_hand():
    """Rows 0 and 2, the first counted three times: mean 0.5, variance 0.75; then 0 and, of twice that, 4."""
    one = torch.ones(1)
    table, index = torch.tensor([[[1.0], [3.0]]]), torch.tensor([[[0, 1, 0, 0]]])
    given = table, torch.ones(1, 1, 1), index, torch.tensor([[2]]), [torch.tensor([[2.0]])], [one]
    out, means, variances = grouped_mlp(*given, [one, 5 * one], [one, one], 0.0)
    first = 1 + torch.tensor([-0.5, 1.5]) / 0.75**0.5  # 0.42, 2.73: the ReLU takes nothing
    rows = 2 * first + 1
    torch.testing.assert_close(
        torch.stack(means)[:, 0], torch.stack([torch.tensor(0.5), rows @ torch.tensor([0.75, 0.25])])
    )
    torch.testing.assert_close(variances[1], torch.tensor([4.0]))
    torch.testing.assert_close(out, (1 + 5 * (rows[1] - means[1]) / 2).view(1, 1, 1))
    lowest, _, _ = grouped_mlp(*given, [one, -5 * one], [one, one], 0.0)
    torch.testing.assert_close(lowest, (1 - 5 * (rows[0] - means[1]) / 2).view(1, 1, 1))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("tile", [None, 300])  # values: many tiles in each of the parts
def test_equals_plain_layers_in_double_precision(widths, relu, tile, monkeypatch):
    if tile:
        monkeypatch.setattr(cpu, "TILE", tile)
        monkeypatch.setattr(cpu, "STEP", 64)
        monkeypatch.setattr(cpu, "PARTS", 5)
    given = case(WIDTHS[widths])
    mine, exact = given.leaves(torch.float32), given.leaves(torch.float64)
    out, means, variances = grouped_mlp(*mine, EPS, relu=relu)
    wanted, exact_means, exact_variances = plain(exact, relu)
    near(out, wanted)
    for ours, theirs in zip(means + variances, exact_means + exact_variances, strict=True):
        near(ours, theirs)
        assert not ours.requires_grad
    pull = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    pull = torch.where((wanted.abs() < 1e-5) & relu, 0, pull)  # at a kink of the ReLU either side is right
    found = torch.autograd.grad(out, mine.tensors(), pull)
    expected = torch.autograd.grad(wanted, exact.tensors(), pull.double())
    scale = max(float(e.abs().max()) for e in expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-3, atol=1e-5 * scale)


def test_reference_and_kernels_agree_in_every_result():
    given = case(WIDTHS["three"], seed=3)
    shared = (
        given.table,
        given.shift,
        given.index,
        given.found,
        given.weights,
        torch.cat(given.gains),
        torch.cat(given.biases),
    )
    (top, places, kept, mean, var), (other, its_places, none, its_mean, its_var) = (
        module.forward(*shared, EPS) for module in (cpu, reference)
    )
    for ours, theirs in ((top, other), (mean, its_mean), (var, its_var)):
        near(ours, theirs)
    assert torch.equal(places, its_places)
    near(cpu.known(*shared, mean, var, EPS), reference.known(*shared, mean, var, EPS))
    pull = torch.randn(top.shape, generator=torch.Generator().manual_seed(1))
    found = cpu.backward(pull, *shared, top, places, kept, mean, var, EPS)
    wanted = reference.backward(pull, *shared, other, its_places, none, its_mean, its_var, EPS)
    flat = ([*r[:2], *r[2], *r[3:]] for r in (found, wanted))
    for ours, theirs in zip(*flat, strict=True):
        near(ours, theirs)


def test_given_statistics_are_used():
    given = case(WIDTHS["three"])
    known = [(torch.randn(len(g)), torch.rand(len(g)) + 0.5) for g in given.gains]
    means, variances = zip(*known, strict=True)
    for relu in (False, True):
        out = grouped_mlp_known(*given, means, variances, EPS, relu=relu)
        near(out, plain(given, relu, known)[0])


def test_a_column_without_gain_still_learns():
    given = case([4, 6])
    given.gains[1][2], given.biases[1][2] = 0, 1  # so that the ReLU lets it through
    mine, exact = given.leaves(torch.float32), given.leaves(torch.float64)
    with torch.no_grad():
        exact.gains[1][2] = 1e-12  # with no gain at all every row is the largest, and plain torch takes the first
    for leaves, run in ((mine, lambda c: grouped_mlp(*c, EPS)), (exact, plain)):
        run(leaves)[0].square().sum().backward()
    assert mine.gains[1].grad[2] != 0
    near(mine.gains[1].grad, exact.gains[1].grad)


def test_a_bias_before_a_norm_moves_its_mean_and_gets_no_gradient():
    given = case(WIDTHS["three"]).leaves(torch.float32)
    out, means, _ = grouped_mlp(*given, EPS)
    out.sum().backward()
    assert all(torch.equal(o.grad, torch.zeros_like(o)) for o in given.offsets)
    moved = given._replace(offsets=[o + 1 for o in given.offsets])
    same, higher, _ = grouped_mlp(*moved, EPS)
    assert torch.equal(out, same)
    torch.testing.assert_close(higher[1:], [m + 1 for m in means[1:]])


def test_equal_rows_share_the_maximum_in_no_gradient():
    """All points are one: the first of each group alone gets the gradient of the maximum."""
    given = case([4, 6], batch=1)
    given = given._replace(table=given.table[:, :1].expand(-1, 40, -1).contiguous())
    given = given._replace(found=torch.full_like(given.found, 8), index=given.index.clone().sort(-1).values)
    mine, exact = given.leaves(torch.float32), given.leaves(torch.float64)
    for leaves, run in ((mine, lambda c: grouped_mlp(*c, EPS)), (exact, plain)):
        run(leaves)[0].square().sum().backward()
    near(mine.table.grad, exact.table.grad)


@pytest.mark.parametrize("threads", [2, 3])
def test_results_do_not_depend_on_threads(threads, monkeypatch):
    monkeypatch.setattr(cpu, "TILE", 300)
    monkeypatch.setattr(cpu, "STEP", 64)
    before, results = torch.get_num_threads(), []
    try:
        for count in (1, threads):
            torch.set_num_threads(count)
            given = case(WIDTHS["three"]).leaves(torch.float32)
            out, means, variances = grouped_mlp(*given, EPS)
            assert torch.get_num_threads() == count
            results.append([out, *means, *variances, *torch.autograd.grad(out.square().sum(), given.tensors())])
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_registration():
    given = case([4, 6, 5], batch=2, points=10, groups=3, size=4).leaves(torch.float32)
    given = given._replace(found=torch.full_like(given.found, 4))  # elsewhere part of what is kept is never filled
    zeros = torch.zeros(15)
    flat = *given[:4], given.weights, torch.cat(given.gains), torch.cat(given.biases)
    library.opcheck(torch.ops.pcdet.grouped_mlp.default, (*flat, zeros, EPS))
    detached = tuple([w.detach() for w in x] if isinstance(x, list) else x.detach() for x in flat)
    library.opcheck(torch.ops.pcdet.grouped_mlp_known.default, (*detached, zeros, zeros + 1, EPS))


def test_what_does_not_fit_is_refused():
    given = case([4, 6])
    with pytest.raises(ValueError, match=r"shift must be \(3, 15, 4\)"):
        grouped_mlp(*given._replace(shift=given.shift[..., :3]), EPS)
    with pytest.raises(ValueError, match=r"a weight must be \(C, 4\)"):
        grouped_mlp(*given._replace(weights=[given.weights[0].T]), EPS)
    with pytest.raises(ValueError, match="float32"):
        grouped_mlp(*given._replace(table=given.table.double()), EPS)
    with pytest.raises(ValueError, match="at least one place"):
        grouped_mlp(*given._replace(index=given.index[:, :0], found=given.found[:, :0], shift=given.shift[:, :0]), EPS)
    with pytest.raises(ValueError, match="index holds 40, but each cloud has the rows 0 to 39"):
        grouped_mlp(*given._replace(index=given.index + 40 - given.index.max()), EPS)
    with pytest.raises(ValueError, match="10 gains"):
        grouped_mlp(*given._replace(gains=given.gains[:1]), EPS)
