"""A step of every model on a GPU against the CPU: losses, gradients, detections; short floats; compiled maps."""

import copy

import cloud_zoo
import pytest
import torch
import zoo

from pcdet.models import draws
from pcdet.structures.batch import to_device

pytestmark = pytest.mark.gpu
SHORT = {"bf16": torch.bfloat16, "fp16": torch.float16}
MIXED = ["kitti_models/pv_rcnn", "kitti_models/pointpillar", "kitti_models/voxel_rcnn_car", "kitti_models/pointrcnn"]


def detector(name):
    return copy.deepcopy(zoo.small_model(name)), zoo.batch_of(
        zoo.small_dataset(name, [zoo.simulated_scene(0), zoo.simulated_scene(1)])
    )


def cloud_model(name):
    return copy.deepcopy(cloud_zoo.small_model(name)), cloud_zoo.batch_of(name)


def step(model, batch, device):
    """Losses and gradients of one training step, on the CPU."""
    model = model.to(device).train()
    torch.manual_seed(0)
    losses = model(to_device(batch, device)).losses
    torch.stack(list(losses.values())).sum().backward()
    return {k: v.item() for k, v in losses.items()}, {n: p.grad.cpu() for n, p in model.named_parameters()}


def compare_steps(model, batch, device, rtol, gradient_rtol=1e-2):
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # it draws other numbers on another device
    wanted, wanted_gradients = step(copy.deepcopy(model), batch, torch.device("cpu"))
    found, gradients = step(model, batch, device)
    assert found == pytest.approx(wanted, rel=rtol, abs=1e-5)
    whole = torch.cat([g.flatten() for g in wanted_gradients.values()])
    difference = torch.cat([(gradients[n] - g).flatten() for n, g in wanted_gradients.items()])
    assert difference.norm() <= gradient_rtol * whole.norm()


@pytest.fixture
def equal_draws(monkeypatch):
    """Targets are drawn on the CPU: generators of one seed draw other numbers on another device."""
    for name in ("permutation", "integers", "uniform"):
        plain = getattr(draws, name)

        def drawn(*arguments, plain=plain):
            *sizes, generator, device = arguments
            seeded = None if generator is None else torch.Generator().manual_seed(generator.initial_seed())
            return plain(*sizes, seeded, torch.device("cpu")).to(device)

        monkeypatch.setattr(draws, name, drawn)


@pytest.mark.parametrize("name", zoo.NAMES)
def test_a_detectors_step_is_that_of_a_cpu(name, accelerator, equal_draws):
    """With two stages, weights that differ by 1e-6 of their value change losses by up to 2e-4 and the gradient by up
    to 1.4e-2: proposals change places, maxima change their source."""
    model, batch = detector(name)
    compare_steps(model, batch, accelerator, 1e-3, gradient_rtol=5e-2 if model.two_stage else 1e-2)


@pytest.mark.parametrize("name", zoo.NAMES)
def test_detections_are_those_of_a_cpu(name, accelerator):
    model, batch = detector(name)
    model.eval()
    with torch.no_grad():
        wanted = model(batch)
        found = model.to(accelerator)(to_device(batch, accelerator))
    for ours, theirs in zip(found, wanted, strict=True):
        assert abs(len(ours.scores) - len(theirs.scores)) <= 1 + len(theirs.scores) // 20
        best = min(len(ours.scores), len(theirs.scores), 5)
        torch.testing.assert_close(ours.scores[:best].cpu(), theirs.scores[:best], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", cloud_zoo.NAMES)
def test_a_step_on_whole_clouds_is_that_of_a_cpu(name, accelerator):
    model, batch = cloud_model(name)
    compare_steps(model, batch, accelerator, 1e-3)


@pytest.mark.parametrize("precision", SHORT)
@pytest.mark.parametrize("name", MIXED)
def test_mixed_precision(name, precision, accelerator):
    if accelerator.type == "cpu" and precision == "fp16":
        pytest.skip("a CPU has no fast float16")
    model, batch = detector(name)
    model, batch = model.to(accelerator).train(), to_device(batch, accelerator)
    full = torch.stack(list(model(batch).losses.values())).sum().item()
    with torch.autocast(accelerator.type, dtype=SHORT[precision]):
        loss = torch.stack(list(model(batch).losses.values())).sum()
    loss.backward()
    assert loss.item() == pytest.approx(full, rel=0.2)
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ["kitti_models/pointpillar", "kitti_models/second"])
def test_the_compiled_map_is_the_same(name, accelerator):
    model, batch = detector(name)
    model, batch = model.to(accelerator).eval(), to_device(batch, accelerator)
    with torch.no_grad():
        wanted = model(batch)
        model.backbone_2d.compile()
        found = model(batch)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.scores, theirs.scores, rtol=1e-3, atol=1e-4)


def test_voxels_of_the_device_are_those_of_the_loader(accelerator):
    name = "kitti_models/pointpillar"
    scenes = [zoo.simulated_scene(0), zoo.simulated_scene(1)]
    model, batch = detector(name)
    on_device = zoo.small_dataset(name, scenes, DEVICE=True)
    from pcdet.models.voxelization import with_voxels

    found = with_voxels(to_device(zoo.batch_of(on_device), accelerator), on_device.info, True)
    for key in ("voxels", "voxel_coords", "voxel_num_points"):
        assert torch.equal(found[key].cpu(), batch[key])
