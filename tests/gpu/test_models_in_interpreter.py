"""Whole models through the GPU's kernels without a GPU: in Triton's interpreter, against the CPU's kernels."""

import copy
import dataclasses
import importlib.util
import os

import pytest
import torch
import zoo

from pcdet.ops import doors

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run on the GPU itself here"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1"),
]
# The interpreter takes a thousand times as long as a CPU kernel.
NAMES = [
    "pointpillar",
    "second",
    pytest.param("pointrcnn", marks=pytest.mark.slow),
    pytest.param("PartA2", marks=pytest.mark.slow),
    pytest.param("pv_rcnn", marks=pytest.mark.slow),
    pytest.param("pv_rcnn_plusplus_reproduced_by_community", marks=pytest.mark.slow),
]


def thinned(index):
    scene = zoo.simulated_scene(index)
    return dataclasses.replace(scene, points=scene.points[::8])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(1200)
def test_a_step_and_detections_are_those_of_the_cpu_kernels(name, monkeypatch):
    model = copy.deepcopy(zoo.small_model(f"kitti_models/{name}"))
    batch = zoo.batch_of(zoo.small_dataset(f"kitti_models/{name}", [thinned(0), thinned(1)]))
    wanted, wanted_gradient, wanted_found = run(copy.deepcopy(model), batch)
    monkeypatch.setitem(doors.MODULES, "cpu", "triton")
    losses, gradient, found = run(model, batch)
    assert losses == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    # Rounding decides maxima, signs and places: weights that differ by 1e-7 change SECOND's gradient by 1.6e-4, and of
    # two stages more (test_gpu_models.py).
    assert (gradient - wanted_gradient).norm() <= (5e-2 if model.two_stage else 1e-3) * wanted_gradient.norm()
    for ours, theirs in zip(found, wanted_found, strict=True):
        torch.testing.assert_close(ours.boxes, theirs.boxes, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours.scores, theirs.scores, rtol=1e-4, atol=1e-5)
        assert torch.equal(ours.labels, theirs.labels)


def run(model, batch):
    """Losses and gradient of a training step, then the detections."""
    torch.manual_seed(0)
    model.eval()
    with torch.no_grad():
        found = model(batch)
    losses = model.train()(batch).losses
    torch.stack(list(losses.values())).sum().backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    return {name: value.item() for name, value in losses.items()}, gradient, found
