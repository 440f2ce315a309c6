import math

import numpy as np
import pytest
import torch

from pcdet.models.box_coders.point_residual import PointResidualCoder

POINT = torch.tensor([[10.0, 5.0, -1.0]])
BOX = torch.tensor([[12.5, 4.0, 0.0, 6.0, 4.0, 1.0, 0.8]])
ANGLE = [math.cos(0.8), math.sin(0.8)]


def test_codes_by_hand():
    coder = PointResidualCoder(mean_size=[[1.0, 1.0, 1.0], [3.0, 4.0, 2.0]])  # diagonal of class 2: 5
    wanted = torch.tensor([[0.5, -0.2, 0.5, math.log(2), 0, -math.log(2), *ANGLE]])
    torch.testing.assert_close(coder.encode(BOX, POINT, torch.tensor([2])), wanted)
    plain = PointResidualCoder(use_mean_size=False)
    wanted = torch.tensor([[2.5, -1.0, 1.0, math.log(6), math.log(4), 0, *ANGLE]])
    torch.testing.assert_close(plain.encode(BOX, POINT, torch.tensor([2])), wanted)


@pytest.mark.parametrize("use_mean_size", [False, True])
def test_recorded_codes(use_mean_size, shared):
    arrays = np.load(shared / "oracles" / "ops" / "box_coders.npz")
    known = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    coder = PointResidualCoder(use_mean_size=use_mean_size, mean_size=arrays["in_mean_size"].tolist())
    points, classes, suffix = known["in_points"], known["in_classes"].long(), "" if use_mean_size else "_nomean"
    codes = coder.encode(known["in_gt"], points, classes)
    torch.testing.assert_close(codes, known[f"out_point_enc{suffix}"], rtol=1e-5, atol=1e-5)
    boxes = coder.decode(known["in_enc8"], points, classes)
    torch.testing.assert_close(boxes, known[f"out_point_dec{suffix}"], rtol=1e-5, atol=1e-5)


def test_decoding_undoes_encoding():
    coder = PointResidualCoder(mean_size=[[3.9, 1.6, 1.56]])
    one = torch.tensor([1])
    torch.testing.assert_close(coder.decode(coder.encode(BOX, POINT, one), POINT, one), BOX)


def test_flat_and_no_boxes():
    coder = PointResidualCoder(mean_size=[[3.9, 1.6, 1.56]])
    flat = torch.zeros(1, 7)
    assert coder.encode(flat, POINT, torch.tensor([1])).isfinite().all()
    assert torch.equal(flat, torch.zeros(1, 7))
    none = coder.encode(BOX[:0], POINT[:0], torch.zeros(0, dtype=torch.int64))
    assert none.shape == (0, 8)
    assert coder.decode(none, POINT[:0], torch.zeros(0, dtype=torch.int64)).shape == (0, 7)


@pytest.mark.parametrize("sizes", [None, [], [[1.0, 2.0]], [[1.0, 2.0, 0.0]]])
def test_bad_sizes_are_named(sizes):
    with pytest.raises(ValueError, match="mean_size"):
        PointResidualCoder(mean_size=sizes)
