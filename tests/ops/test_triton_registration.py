"""The operators with Triton kernels as torch sees them: opcheck, torch.compile, autocast, no waiting for the GPU."""

import ast
from pathlib import Path

import pytest
import torch
from ops_cases import generator
from torch import library

import pcdet.ops
from pcdet.ops.ball_query import ball_query, ball_query_stack
from pcdet.ops.furthest_point_sampling import furthest_point_sample
from pcdet.ops.grouping import group_points, group_rows
from pcdet.ops.row_batch_norm import row_batch_norm
from pcdet.ops.three_nn import three_interpolate, three_nn_stack
from pcdet.ops.vector_pool import voxel_pool
from pcdet.ops.voxel_query import voxel_query

CLOUDS = torch.randn(2, 20, 3, generator=generator())
LENGTHS = torch.tensor([14, 6])
ROWS = torch.randn(8, 5, generator=generator())
INDEX = torch.randint(0, 8, (9, 3), generator=generator())
WEIGHT = torch.rand(9, 3, generator=generator())
CELLS = torch.tensor([[1, 0, 1, 1]]).repeat(7, 1)
SCENES = (CLOUDS.flatten(0, 1), torch.tensor([20, 20]), CLOUDS[:, :4].flatten(0, 1), torch.tensor([4, 4]))
SAMPLES = {
    "furthest_point_sample": (CLOUDS, 4),
    "furthest_point_sample_stack": (CLOUDS[0], [14, 6], [3, 2]),
    "ball_query": (CLOUDS, CLOUDS[:, :5], 0.7, 4),
    "ball_query_stack": (CLOUDS[0], LENGTHS, CLOUDS[1], LENGTHS, 0.7, 4),
    "sum_rows": (ROWS, torch.randint(0, 7, (8,), generator=generator()), 7),
    "three_nn_stack": (CLOUDS[0], LENGTHS, CLOUDS[1], LENGTHS),
    "three_interpolate": (ROWS, INDEX, WEIGHT),
    "three_spread": (ROWS[:1].repeat(9, 1), INDEX, WEIGHT, 12),
    "voxel_query": (CELLS[:1], CLOUDS[0, :1], [2, 2, 2], 2, CLOUDS[0, :7], CELLS, [1, 1, 1], 2.0, 4),
    "vector_pool_three_nn": (*SCENES, CLOUDS[:, :4].flatten(0, 1)[:, None] + 0.1, 0.8, 9, False),
    "vector_pool_members": (*SCENES, [2, 1, 2], 0.8, 5, False, False),
    "row_batch_norm": (ROWS, torch.ones(8), torch.ones(5), torch.zeros(5), 1e-5, True),
    "row_batch_norm_backward": (ROWS, ROWS, torch.ones(8), *[torch.ones(5)] * 4, 1e-5, True),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_opcheck(name, through_triton):
    moved = tuple(x.to(through_triton) if isinstance(x, torch.Tensor) else x for x in SAMPLES[name])
    library.opcheck(getattr(torch.ops.pcdet, name).default, moved, test_utils=("test_schema", "test_faketensor"))


def network(points):
    """Most of the operators, one after another."""
    lengths, d = LENGTHS.to(points.device), points.device
    centres = points.gather(1, furthest_point_sample(points, 6)[..., None].expand(-1, -1, 3))
    index, count = ball_query(points, centres, 0.9, 4)
    stacked, _ = ball_query_stack(points[1], lengths, points[0], lengths, 0.9, 4)
    distance, nearest = three_nn_stack(points[0], lengths, points[1], lengths)
    mixed = three_interpolate(points[1], nearest, 1 / (distance + 1))
    normed = row_batch_norm(group_rows(points[1], stacked).mean(dim=1) + mixed, *torch.ones(2, 3, device=d), 1e-5)[0]
    voxels = voxel_query(CELLS[:1].to(d), points[0, :1], [2, 2, 2], 2, points[0, :7], CELLS.to(d), [1, 1, 1], 2.0, 4)[1]
    return (group_points(points, index) - centres[:, :, None]).square().mean() + normed.pow(3).mean() + voxels.sum()


def test_they_compile_without_a_graph_break_and_train(through_triton, monkeypatch):
    torch._dynamo.reset()
    plain, compiled = (CLOUDS.clone().to(through_triton).requires_grad_() for _ in range(2))
    loss = network(plain)
    fused = torch.compile(network, backend="aot_eager", fullgraph=True)(compiled)
    for value in (loss, fused):
        value.backward()
    assert torch.allclose(loss, fused) and torch.allclose(plain.grad, compiled.grad)
    monkeypatch.undo()  # the CPU's own kernels
    other = CLOUDS.clone().requires_grad_()
    network(other).backward()
    assert torch.allclose(plain.grad.cpu(), other.grad, rtol=1e-3, atol=1e-5) and other.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_leaves_geometry_alone_and_features_in_their_type(through_triton, dtype):
    points = CLOUDS.to(through_triton)
    expected = furthest_point_sample(points, 6), *ball_query(points, points, 0.5, 4)
    with torch.autocast(through_triton, dtype=dtype):
        found = furthest_point_sample(points, 6), *ball_query(points, points, 0.5, 4)
        features = ROWS.to(through_triton, dtype).requires_grad_()
        mixed = three_interpolate(features, INDEX.to(through_triton), WEIGHT.to(through_triton))
        mixed.float().sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert mixed.dtype == features.grad.dtype == dtype
    exact = torch.zeros(8).index_add_(0, INDEX.flatten(), WEIGHT.flatten())[:, None].expand(8, 5)
    assert torch.allclose(features.grad.float().cpu(), exact, rtol=2e-2)


def test_pools_of_neighbours_train(through_triton):
    features = torch.randn(40, 3, generator=generator(1)).to(through_triton).requires_grad_()
    support, counts, centres, centre_counts = (x.to(through_triton) for x in SCENES)
    for method in ("avg", "first"):
        pooled = voxel_pool(support, counts, features, centres, centre_counts, (2, 2, 1), 0.9, method=method)
        pooled.features.square().sum().backward()
    assert features.grad.isfinite().all() and features.grad.abs().sum() > 0


WAITS = {"cpu", "item", "tolist", "numpy", "nonzero", "unique", "unique_consecutive", "masked_select", "argwhere"}
ALLOWED = {"voxelize": 1, "vector_pool": 2, "nms": 1, "roiaware_pool": 1, "points_in_boxes": 0}  # sizes of results


def waits_of(source: str) -> tuple[list[str], int]:
    """Calls that make the host wait for the GPU, and how often a size is read through ``size_on_host``."""
    found, sizes = [], 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if isinstance(node.func, ast.Attribute) and name in WAITS:
                found.append(f"line {node.lineno}: {name}")
            sizes += name == "size_on_host"
    return found, sizes


def test_the_scan_sees_waits():
    assert waits_of("n = x.sum().item()\ny = size_on_host(z)") == (["line 1: item"], 1)


@pytest.mark.parametrize("path", sorted(Path(pcdet.ops.__path__[0]).glob("*/triton.py")), ids=lambda p: p.parent.name)
def test_no_kernel_makes_the_host_wait_except_for_the_size_of_a_result(path):
    found, sizes = waits_of(path.read_text())
    assert found == [] and sizes <= ALLOWED.get(path.parent.name, 0)
