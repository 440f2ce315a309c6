"""Synchronised batch norm: pieces on two ranks against torch's batch norm of the whole, in float64."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from pcdet.layers.sync_norm import SyncBatchNorm
from pcdet.layers.weighted_norm import normalise_rows

JOB = Path(__file__).with_name("sync_norm_job.py")
# Shapes of the two ranks' pieces; the second rank of some has no row, the ranks of others only one together.
SHAPES = {
    "rows": [(7, 3), (4, 3)],
    "ragged": [(200, 3), (1, 3)],
    "an empty rank": [(0, 3), (9, 3)],
    "one row in all": [(1, 3), (0, 3)],
    "no row in all": [(0, 3), (0, 3)],
    "one row each": [(1, 3), (1, 3)],
    "sequences": [(2, 3, 5), (3, 3, 5)],
    "images": [(2, 3, 4, 5), (1, 3, 4, 5)],
    "rows that repeat": [(6, 3), (9, 3)],
    "rows that repeat and an empty rank": [(0, 3), (9, 3)],
}
VARIANTS = {"plain": {}, "ReLU": {"relu": True}, "cumulative": {"momentum": None}, "float32": {"dtype": torch.float32}}


def made_case(shapes, repeats, *, relu=False, momentum=0.1, dtype=torch.float64):
    draw = torch.Generator().manual_seed(0)
    norm = nn.BatchNorm1d(3)
    nn.init.uniform_(norm.weight, 0.5, 1.5, generator=draw)
    nn.init.normal_(norm.bias, generator=draw)
    nn.init.normal_(norm.running_mean, generator=draw)
    pieces, pulls = ([torch.randn(s, generator=draw, dtype=dtype) * k + k for s in shapes] for k in (2, 1))
    times = [torch.randint(1, 5, (s[0],), generator=draw) if repeats else None for s in shapes]
    state = {k: v.to(dtype) if v.is_floating_point() else v for k, v in norm.state_dict().items()}
    return {"pieces": pieces, "pulls": pulls, "repeats": times, "state": state, "relu": relu, "momentum": momentum}


@pytest.fixture(scope="module")
def results(run_ranks, tmp_path_factory):
    """Every case with what the two ranks made of it."""
    folder = tmp_path_factory.mktemp("ranks")
    keys = [(shape, variant) for shape in SHAPES for variant in VARIANTS]
    cases = [made_case(SHAPES[shape], "repeat" in shape, **VARIANTS[variant]) for shape, variant in keys]
    torch.save(cases, folder / "cases.pt")
    run_ranks(JOB, folder)
    found = [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
    return dict(zip(keys, zip(cases, *found, strict=True), strict=True))


def whole(case):
    """torch's own batch norm of all pieces, with repeated rows written out; in float64."""
    dtype = torch.float64
    x = torch.cat(case["pieces"]).detach().to(dtype).requires_grad_()
    pull = torch.cat(case["pulls"]).to(dtype)
    norm = nn.BatchNorm2d(3, momentum=case["momentum"])
    norm._check_input_dim = lambda x: None
    norm.load_state_dict(case["state"])
    norm.to(dtype)
    times = torch.ones(len(x), dtype=torch.int64) if case["repeats"][0] is None else torch.cat(case["repeats"])
    first = times.cumsum(0) - times
    norm.train(int(times.sum()) * x[:1].numel() >= 2 * 3)
    for _ in range(2):
        out = norm(x.repeat_interleave(times, dim=0))[first]
    out = out.relu() if case["relu"] else out
    (out * pull).sum().backward()
    return {"out": out.detach(), "grad": x.grad, "norm": norm}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_two_ranks_equal_the_whole(results, shape, variant):
    case, *found = results[shape, variant]
    expected = whole(case)
    close = {"rtol": 1e-11, "atol": 1e-11} if variant != "float32" else {"rtol": 1e-4, "atol": 2e-5}
    for name in ("out", "grad"):
        torch.testing.assert_close(torch.cat([rank[name] for rank in found]).double(), expected[name], **close)
    for name, parameter in expected["norm"].named_parameters():
        total = sum(rank["grads"][name] for rank in found)
        torch.testing.assert_close(total.double(), parameter.grad, **close)
    for name, value in expected["norm"].state_dict().items():
        torch.testing.assert_close(found[0]["state"][name].to(value.dtype), value, **close)
        assert torch.equal(found[0]["state"][name], found[1]["state"][name])


def test_by_hand(results):
    """A row on each rank: their mean, the square of half their distance, and the unbiased variance is twice that."""
    case, *found = results["one row each", "cumulative"]
    a, b = (piece.detach()[0] for piece in case["pieces"])
    half = (a - b) / 2
    unit = half / (half.square() + 1e-5).sqrt()
    torch.testing.assert_close(found[0]["out"][0], unit * case["state"]["weight"] + case["state"]["bias"])
    torch.testing.assert_close(found[0]["state"]["running_mean"], (a + b) / 2)
    torch.testing.assert_close(found[0]["state"]["running_var"], 2 * half.square())
    assert found[0]["state"]["num_batches_tracked"] == 2


def norm_of(**options):
    torch.manual_seed(0)
    norm = SyncBatchNorm(3, **options).double()
    if norm.affine:
        nn.init.uniform_(norm.weight, 0.5, 1.5)
    return norm


@pytest.mark.parametrize("repeats", [None, [1, 3, 2, 1]])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("count", [1, 4])
def test_gradients_equal_numerical_ones(affine, count, repeats):
    norm = norm_of(affine=affine)
    weight = None if repeats is None else torch.tensor(repeats[:count])

    def run(x, *parameters):
        norm.running_mean.zero_(), norm.running_var.fill_(1)
        return norm(x.repeat_interleave(weight, 0) if weight is not None else x)

    x = torch.randn(count, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(run, (x, *norm.parameters()))


def test_large_numbers_keep_their_digits():
    """Half a million float32 values a thousand deviations away from 0."""
    x = torch.randn(500_000, 3, generator=torch.Generator().manual_seed(0)) + 1000
    norm = SyncBatchNorm(3, momentum=1.0)
    norm(x)
    torch.testing.assert_close(norm.running_mean.double(), x.double().mean(0), rtol=1e-7, atol=0)
    torch.testing.assert_close(norm.running_var.double(), x.double().var(0), rtol=1e-6, atol=0)


def test_half_precision_goes_through_float32():
    x = (torch.randn(4000, 3) + 100).bfloat16()
    norm = SyncBatchNorm(3, momentum=1.0)
    assert norm(x).dtype == torch.bfloat16
    torch.testing.assert_close(norm.running_var, x.float().var(0), rtol=1e-5, atol=0)


def test_in_evaluation_it_is_batch_norm():
    norm, plain = norm_of().eval(), nn.BatchNorm1d(3).double().eval()
    plain.load_state_dict(norm.state_dict())
    x = torch.randn(5, 3, dtype=torch.float64)
    assert torch.equal(norm(x), plain(x))
    norm, plain = (k(3, track_running_stats=False).eval() for k in (SyncBatchNorm, nn.BatchNorm1d))
    torch.testing.assert_close(norm(x.float()), plain(x.float()))


def test_a_relu_in_place_may_follow():
    norm, x = norm_of(), torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    normalise_rows(x, None, norm, relu=True).sum().backward()
    assert x.grad.isfinite().all()


def test_conversion_keeps_names_parameters_and_sharing():
    shared = nn.BatchNorm2d(4, eps=0.1, momentum=0.3)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), shared, nn.Sequential(shared, nn.BatchNorm1d(2, affine=False))).eval()
    before, parameters = model.state_dict(), list(model.parameters())
    made = SyncBatchNorm.convert_sync_batchnorm(model)
    assert list(made.state_dict()) == list(before)
    assert all(a is b for a, b in zip(made.parameters(), parameters, strict=True))
    assert made[1] is made[2][0] and made[1].eps == 0.1 and made[1].momentum == 0.3 and not made[1].training
    assert isinstance(SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(2)), SyncBatchNorm)
    assert copy.deepcopy(made)[1].running_mean is not made[1].running_mean


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"takes \(N, 3, ...\), not \(5, 4\)"):
        norm_of()(torch.randn(5, 4))
