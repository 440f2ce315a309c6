"""The operators as torch sees them: opcheck, torch.compile, fake tensors, lazy imports, the note on compiling."""

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
from pcdet.ops.ball_query import ball_query
from pcdet.ops.compile import Kernel
from pcdet.ops.furthest_point_sampling import furthest_point_sample, furthest_point_sample_stack
from pcdet.ops.grouping import group_points
from pcdet.ops.iou3d import boxes_iou3d
from pcdet.ops.nms import nms_bev
from pcdet.ops.points_in_boxes import points_in_boxes_index
from pcdet.ops.voxelize import voxelize

CLOUDS = torch.randn(2, 40, 3, generator=generator())
BOXES = random_boxes(6)
SAMPLES = {
    "furthest_point_sample": (CLOUDS, 7),
    "furthest_point_sample_stack": (CLOUDS[0], [30, 10], [3, 2]),
    "ball_query": (CLOUDS, CLOUDS[:, :5], 0.7, 4),
    "boxes_overlap_bev": (BOXES, BOXES[:4]),
    "boxes_iou_bev": (BOXES, BOXES[:4]),
    "boxes_iou3d": (BOXES, BOXES[:4]),
    "nms_bev": (BOXES, 0.3, 5),
    "points_in_boxes_mask": (CLOUDS[0], BOXES, 0.0),
    "points_in_boxes_index": (CLOUDS[0], BOXES, 0.0),
    "voxelize": (CLOUDS[0], [-1.0, -1, -1], [0.5, 0.5, 0.5], [4, 4, 4], 3, 20),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_opcheck(name):
    library.opcheck(getattr(torch.ops.pcdet, name).default, SAMPLES[name])


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


def detection(boxes):
    inside = points_in_boxes_index(CLOUDS[0], boxes)
    pillars = voxelize(CLOUDS[0], [-1, -1, -1, 1, 1, 1], [0.5, 0.5, 0.5], [4, 4, 4], 3, 20)
    return (
        boxes_iou3d(boxes, boxes).sum() + inside.sum() + pillars.voxels.sum() + nms_bev(boxes, boxes[:, 2], 0.1).sum()
    )


def test_the_detection_operators_work_inside_a_compiled_function():
    torch._dynamo.reset()
    assert torch.allclose(torch.compile(detection, backend="eager")(BOXES), detection(BOXES))


def test_nothing_differentiable_comes_out_of_an_index_operator():
    points = CLOUDS.clone().requires_grad_()
    index, count = ball_query(points, points[:, :3], 0.5, 4)
    assert not any(x.requires_grad for x in (furthest_point_sample(points, 4), index, count))
    assert not any(x.requires_grad for x in voxelize(points[0], [-1.0] * 3 + [1.0] * 3, [0.5] * 3, [4] * 3, 3, 9))


def test_half_precision_scopes_leave_geometry_alone():
    expected = set_abstraction(CLOUDS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(furthest_point_sample(CLOUDS, 10), furthest_point_sample(CLOUDS, 10))
        assert torch.allclose(set_abstraction(CLOUDS), expected)


def test_importing_the_doors_does_not_import_numba():
    code = (
        "import sys; import pcdet.ops.nms, pcdet.ops.voxelize, pcdet.ops.ball_query, pcdet.ops.grouping;"
        "import pcdet.ops.points_in_boxes, pcdet.ops.furthest_point_sampling, pcdet.ops.iou3d, pcdet.ops.threads;"
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


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
