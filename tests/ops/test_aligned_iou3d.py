"""Overlap of the boxes of each row: the diagonal of the full table."""

import numpy as np
import pytest
import torch
from ops_cases import box, random_boxes

from pcdet.ops.iou3d import boxes_aligned_iou3d, boxes_aligned_overlap_bev, boxes_iou3d, cpu, reference


def near(boxes, seed=1):
    return boxes + 0.5 * (torch.rand(boxes.shape, generator=torch.Generator().manual_seed(seed)) - 0.5)


def test_by_hand():
    a = torch.cat([box(dz=2.0)] * 3)
    b = torch.cat([box(z=1.0, dz=2.0), box(z=2.0, dz=2.0), box(dz=2.0)])
    assert boxes_aligned_iou3d(a, b).tolist() == [pytest.approx(1 / 3), 0.0, pytest.approx(1.0)]


@pytest.mark.parametrize("module", [cpu, reference])
def test_is_the_diagonal(module):
    a = random_boxes(1500, spread=6)
    b = torch.cat([near(a)[:1000], random_boxes(500, seed=2, spread=6)])
    b[:4, 3:6] = 0.0
    b[4, 2] = torch.nan
    found = module.boxes_aligned_iou3d(a, b)
    assert torch.allclose(found, module.boxes_iou3d(a, b).diagonal(), atol=1e-6, rtol=0)
    assert (found > 0.1).sum() > 800 and not found[:5].any()


def test_shared_areas_by_hand_and_in_float64():
    """2 m x 4 m boxes moved by 1 m along x share 3 m x 2 m; a difference that float32 cannot hold stays."""
    a = torch.cat([box(), box(), box()]).double()
    b = torch.cat([box(x=1.0), box(x=9.0), box()]).double()
    b[2, 0] = 1e-9
    np.testing.assert_allclose(boxes_aligned_overlap_bev(a, b), [6.0, 0.0, 8.0 - 2e-9], rtol=0, atol=1e-14)
    with pytest.raises(ValueError, match="there are 3 and 2"):
        boxes_aligned_overlap_bev(a, b[:2])


@pytest.mark.parametrize("module", [cpu, reference])
def test_shared_areas_are_the_diagonal(module):
    a = random_boxes(1500, spread=6)
    b = near(a)
    b[:4, 3:6], b[4, 0] = 0.0, torch.nan
    found = module.boxes_aligned_overlap_bev(a, b)
    assert torch.allclose(found.float(), module.boxes_overlap_bev(a, b).diagonal(), atol=1e-5, rtol=0)
    assert (found > 0.1).sum() > 1400 and not found[:5].any() and found.dtype == torch.float64
    assert torch.allclose(found, reference.boxes_aligned_overlap_bev(a, b), atol=1e-12, rtol=0)
    assert module.boxes_aligned_overlap_bev(a[:0], b[:0]).shape == (0,)


def test_kernel_matches_reference():
    a = random_boxes(400, spread=6)
    assert torch.allclose(cpu.boxes_aligned_iou3d(a, near(a)), reference.boxes_aligned_iou3d(a, near(a)), atol=1e-6)


@pytest.mark.parametrize("column", range(7))
def test_a_nan_in_either_box_gives_0(column):
    broken = box()
    broken[0, column] = torch.nan
    for module in (cpu, reference):
        for a, b in ((broken, box()), (box(), broken), (broken, broken)):
            assert module.boxes_aligned_iou3d(a, b).item() == 0.0 and module.boxes_iou3d(a, b).item() == 0.0


def test_no_boxes_more_columns_and_errors():
    for module in (cpu, reference):
        assert module.boxes_aligned_iou3d(random_boxes(0), random_boxes(0)).shape == (0,)
    a, wide = random_boxes(5), torch.cat([random_boxes(5), torch.ones(5, 2)], dim=1)
    assert torch.allclose(boxes_aligned_iou3d(a, wide), torch.ones(5))
    with pytest.raises(ValueError, match="there are 5 and 4"):
        boxes_aligned_iou3d(a, a[:4])
    with pytest.raises(ValueError, match="boxes_b"):
        boxes_aligned_iou3d(a, a[:, :6])
    assert not boxes_aligned_iou3d(a.requires_grad_(), wide).requires_grad


def test_recorded_overlaps(shared):
    data = np.load(shared / "oracles" / "ops" / "boxes_iou.npz")
    a, b = torch.from_numpy(data["in_boxes_a"])[:58], torch.from_numpy(data["in_boxes_b"])
    error = np.abs(boxes_aligned_iou3d(a, b).numpy() - data["out_paired_iou3d"])
    assert error.max() < 0.006 and (error < 1e-4).mean() > 0.98
    assert torch.equal(boxes_aligned_iou3d(a, b), boxes_iou3d(a, b).diagonal())
