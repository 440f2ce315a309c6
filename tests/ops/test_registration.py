"""The operators as torch sees them: opcheck, torch.compile, fake tensors, lazy imports, the note on compiling."""

import ast
import importlib
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from numba.core.dispatcher import Dispatcher
from ops_cases import generator, random_boxes
from torch import library

import pcdet.ops
from pcdet.ops.ball_query import ball_query, ball_query_stack
from pcdet.ops.compile import Kernel
from pcdet.ops.furthest_point_sampling import furthest_point_sample, furthest_point_sample_stack
from pcdet.ops.grouping import group_points, group_rows
from pcdet.ops.iou3d import boxes_iou3d
from pcdet.ops.nms import nms_bev
from pcdet.ops.points_in_boxes import points_in_boxes_index
from pcdet.ops.roiaware_pool import roiaware_pool3d
from pcdet.ops.roipoint_pool import roipoint_pool3d
from pcdet.ops.three_nn import three_interpolate, three_nn_stack
from pcdet.ops.vector_pool import voxel_pool
from pcdet.ops.voxel_query import voxel_query
from pcdet.ops.voxelize import voxelize

DOORS = sorted(f"pcdet.ops.{path.parent.name}" for path in Path(pcdet.ops.__path__[0]).glob("*/door.py"))
for door in DOORS:
    importlib.import_module(door)  # registers its operators
CLOUDS = torch.randn(2, 40, 3, generator=generator())
BOXES = random_boxes(6)
LENGTHS = torch.tensor([30, 10])  # points of the two scenes in which a stack of 40 points is cut
ROWS = torch.randn(12, 5, generator=generator()).requires_grad_()
INDEX = torch.randint(0, 12, (9, 3), generator=generator())
WEIGHT = torch.rand(9, 3, generator=generator()).requires_grad_()
CELLS = torch.tensor([[1, 0, 1, 1]]).repeat(7, 1)
FEATURES = torch.randn(40, 3, generator=generator(1)).requires_grad_()
GROUPS = (torch.tensor([0, 7, 39, 7]), torch.tensor([0, 2, 2, 4]))
SEGMENT = torch.tensor([3, 0, 3, 1])
SCENES = (CLOUDS.flatten(0, 1), torch.tensor([40, 40]), CLOUDS[:, :4].flatten(0, 1), torch.tensor([4, 4]))
SAMPLES = {
    "furthest_point_sample": (CLOUDS, 7),
    "furthest_point_sample_stack": (CLOUDS[0], [30, 10], [3, 2]),
    "ball_query": (CLOUDS, CLOUDS[:, :5], 0.7, 4),
    "ball_query_stack": (CLOUDS[0], LENGTHS, CLOUDS[1], LENGTHS, 0.7, 4),
    "take_rows": (ROWS, INDEX[:, 0]),
    "sum_rows": (ROWS, torch.randint(0, 7, (12,), generator=generator()), 7),
    "three_nn_stack": (CLOUDS[0], LENGTHS, CLOUDS[1], LENGTHS),
    "three_interpolate": (ROWS, INDEX, WEIGHT),
    "three_spread": (ROWS[:9], INDEX, WEIGHT, 12),
    "voxel_query": (CELLS[:1], CLOUDS[0, :1], [2, 2, 2], 2, CLOUDS[0, :7], CELLS, [1, 1, 1], 2.0, 4),
    "boxes_overlap_bev": (BOXES, BOXES[:4]),
    "boxes_iou_bev": (BOXES, BOXES[:4]),
    "boxes_iou3d": (BOXES, BOXES[:4]),
    "nms_bev": (BOXES, 0.3, 5),
    "nms_groups": (BOXES.view(2, 3, 7), torch.tensor([3, 2]), 0.3, 4, True),
    "points_in_boxes_mask": (CLOUDS[0], BOXES, 0.0),
    "points_in_boxes_index": (CLOUDS[0], BOXES, 0.0),
    "points_in_any_box": (CLOUDS[0], BOXES, 0.0),
    "boxes_collide_bev": (BOXES, BOXES[:4]),
    "boxes_aligned_iou3d": (BOXES[:4], BOXES[1:5]),
    "boxes_aligned_overlap_bev": (BOXES[:4], BOXES[1:5]),
    "rows_by_segment": (SEGMENT, 5),
    "pool_rows_max": (FEATURES, *GROUPS),
    "pool_rows_max_backward": (
        FEATURES[:3, :2].detach(),
        torch.tensor([[0, 7], [-1, -1], [39, 7]], dtype=torch.int32),
        *GROUPS,
        40,
    ),
    "pool_rows_mean": (FEATURES, *GROUPS),
    "pool_rows_mean_backward": (FEATURES[:3].detach(), *GROUPS, 40),
    "roiaware_cells": (BOXES, CLOUDS[0], torch.tensor([2, 4]), torch.tensor([30, 10]), [2, 2, 3], 4),
    "roipoint_query": (CLOUDS, BOXES.view(2, 3, 7), 4),
    "vector_pool_three_nn": (*SCENES, CLOUDS[:, :4].flatten(0, 1)[:, None] + 0.1, 0.8, 9, False),
    "vector_pool_members": (*SCENES, [2, 1, 2], 0.8, 5, False, False),
    "voxelize": (CLOUDS[0], [-1.0, -1, -1], [0.5, 0.5, 0.5], [4, 4, 4], 3, 20),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_opcheck(name):
    library.opcheck(getattr(torch.ops.pcdet, name).default, SAMPLES[name])


def test_opcheck_of_the_first_members():
    library.opcheck(torch.ops.pcdet.vector_pool_members.default, (*SCENES, [2, 1, 2], 0.8, -1, True, True))


def set_abstraction(points):
    sample = furthest_point_sample(points, 10)
    centres = points.gather(1, sample[..., None].expand(-1, -1, 3))
    index, count = ball_query(points, centres, 0.9, 6)
    first = furthest_point_sample_stack(points.flatten(0, 1), [points.shape[1]] * len(points), 3)
    return (group_points(points, index) - centres[:, :, None]).square().mean() + first.sum() + count.sum()


def test_the_sampling_operators_compile_without_a_graph_break_and_train():
    torch._dynamo.reset()
    plain, compiled = (CLOUDS.clone().requires_grad_() for _ in range(2))
    loss = set_abstraction(plain)
    fused = torch.compile(set_abstraction, backend="aot_eager", fullgraph=True)(compiled)
    assert torch.allclose(loss, fused)
    for value in (loss, fused):
        value.backward()
    assert torch.allclose(plain.grad, compiled.grad) and plain.grad.abs().sum() > 0


def propagation(points):
    """From the second cloud of 40 to the first, both cut in the same two scenes."""
    index, count = ball_query_stack(points[1], LENGTHS, points[0], LENGTHS, 0.9, 6)
    grouped = group_rows(points[1], index)
    distance, nearest = three_nn_stack(points[0], LENGTHS, points[1], LENGTHS)
    weight = 1 / (distance + 1e-8)
    interpolated = three_interpolate(points[1], nearest, weight / weight.sum(dim=1, keepdim=True))
    voxels = voxel_query(CELLS[:1], points[0, :1], [2, 2, 2], 2, points[0, :7], CELLS, [1, 1, 1], 2.0, 4)[1]
    return (grouped.mean(dim=1) * interpolated).square().mean() + count.sum() + voxels.sum()


def test_the_operators_on_stacked_scenes_compile_without_a_graph_break_and_train():
    torch._dynamo.reset()
    plain, compiled = (CLOUDS.clone().requires_grad_() for _ in range(2))
    loss = propagation(plain)
    fused = torch.compile(propagation, backend="aot_eager", fullgraph=True)(compiled)
    assert torch.allclose(loss, fused)
    for value in (loss, fused):
        value.backward()
    assert torch.allclose(plain.grad, compiled.grad) and plain.grad[1].abs().sum() > 0


def detection(boxes):
    inside = points_in_boxes_index(CLOUDS[0], boxes)
    pillars = voxelize(CLOUDS[0], [-1, -1, -1, 1, 1, 1], [0.5, 0.5, 0.5], [4, 4, 4], 3, 20)
    return (
        boxes_iou3d(boxes, boxes).sum() + inside.sum() + pillars.voxels.sum() + nms_bev(boxes, boxes[:, 2], 0.1).sum()
    )


def test_the_detection_operators_work_inside_a_compiled_function():
    torch._dynamo.reset()
    assert torch.allclose(torch.compile(detection, backend="eager")(BOXES), detection(BOXES))


def second_stage(features):
    boxes = BOXES.view(2, 3, 7)
    cells = roiaware_pool3d(BOXES, CLOUDS[0], features, 2, 9, "max")
    picked = roipoint_pool3d(CLOUDS, features.expand(2, -1, -1), boxes, 1.0, 4)[0]
    stacked = features.repeat(2, 1)
    local = voxel_pool(*SCENES[:2], stacked, *SCENES[2:], (2, 2, 1), 0.9, method="first").features
    return cells.square().sum() + picked.square().sum() + local.square().sum()


def test_the_pooling_operators_work_inside_a_compiled_function_and_train():
    torch._dynamo.reset()
    plain, compiled = (FEATURES.detach().clone().requires_grad_() for _ in range(2))
    loss, fused = second_stage(plain), torch.compile(second_stage, backend="eager")(compiled)
    assert torch.allclose(loss, fused)
    for value in (loss, fused):
        value.backward()
    assert torch.allclose(plain.grad, compiled.grad) and plain.grad.abs().sum() > 0


def test_nothing_differentiable_comes_out_of_an_index_operator():
    points = CLOUDS.clone().requires_grad_()
    index, count = ball_query(points, points[:, :3], 0.5, 4)
    assert not any(x.requires_grad for x in (furthest_point_sample(points, 4), index, count))
    assert not any(x.requires_grad for x in three_nn_stack(points[0], LENGTHS, points[1], LENGTHS))
    assert not any(x.requires_grad for x in voxelize(points[0], [-1.0] * 3 + [1.0] * 3, [0.5] * 3, [4] * 3, 3, 9))


def test_half_precision_scopes_leave_geometry_alone():
    expected = set_abstraction(CLOUDS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(furthest_point_sample(CLOUDS, 10), furthest_point_sample(CLOUDS, 10))
        assert torch.allclose(set_abstraction(CLOUDS), expected)


def test_importing_the_doors_does_not_import_numba():
    code = f"import sys; import {', '.join(DOORS)}, pcdet.ops.threads; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def asked_of_a_room(door: Path) -> set[str]:
    """The functions that a door calls in the module which serves a device."""
    calls = [node.func for node in ast.walk(ast.parse(door.read_text())) if isinstance(node, ast.Call)]
    asked = [call for call in calls if isinstance(call, ast.Attribute)]
    rooms = ("backend", "implementation", "_implementation")  # called, or kept under this name
    return {call.attr for call in asked if ast.unparse(getattr(call.value, "func", call.value)) in rooms}


@pytest.mark.parametrize("path", sorted(Path(pcdet.ops.__path__[0]).glob("*/triton.py")), ids=lambda p: p.parent.name)
def test_a_room_has_all_that_its_door_asks_for(path):
    """A function that is added to the rooms of the CPU alone would be an error on a GPU."""
    nodes = ast.parse(path.read_text()).body
    given = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    given |= {t.id for node in nodes if isinstance(node, ast.Assign) for t in node.targets if isinstance(t, ast.Name)}
    asked = asked_of_a_room(path.with_name("door.py"))
    assert asked - given == set()


@pytest.mark.parametrize("name", sorted({path.parent.name for path in Path(pcdet.ops.__path__[0]).glob("*/cpu.py")}))
def test_kernels_call_only_helpers_of_their_own_file(name):
    """A helper from another file would not renew the compiled kernels in numba's cache when it changes."""
    module = importlib.import_module(f"pcdet.ops.{name}.cpu")
    helpers = [value for value in vars(module).values() if isinstance(value, Dispatcher)]
    assert all(helper.py_func.__module__ == module.__name__ for helper in helpers)


def double(values):
    for i in range(values.shape[0]):
        values[i] *= 2


def test_the_first_compilation_is_announced_once(caplog, monkeypatch, tmp_path):
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    logging.getLogger("pcdet").propagate = True
    caplog.set_level(logging.INFO, logger="pcdet")
    values = torch.ones(3).numpy()
    for kernel in (Kernel(double), Kernel(double)):  # the second one, as in a later run, finds the cache
        kernel(values)
        kernel(values)
    assert values.tolist() == [16.0] * 3
    assert [record.message for record in caplog.records] == [
        f"compiling {__name__}.double for this CPU (once; cached afterwards)"
    ]


def test_kernels_work_where_nothing_can_be_cached():
    """numba refuses to cache what has no file of its own, with the error of a folder that cannot be written."""
    scope = {}
    exec("def triple(values):\n    values *= 3\n", scope)
    scope["triple"].__module__ = __name__
    values = torch.ones(3).numpy()
    Kernel(scope["triple"])(values)
    assert values.tolist() == [3.0] * 3
