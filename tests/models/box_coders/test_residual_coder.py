import math

import numpy as np
import pytest
import torch

from pcdet.models.box_coders.residual import ResidualCoder


def test_codes_by_hand():
    anchor = torch.tensor([[10.0, 5.0, -1.0, 3.0, 4.0, 2.0, 0.5]])  # diagonal 5
    box = torch.tensor([[12.5, 4.0, 0.0, 6.0, 4.0, 1.0, 0.8]])
    wanted = torch.tensor([[0.5, -0.2, 0.5, math.log(2), 0, -math.log(2), 0.3]])
    torch.testing.assert_close(ResidualCoder().encode(box, anchor), wanted)
    turned = torch.tensor([math.cos(0.8) - math.cos(0.5), math.sin(0.8) - math.sin(0.5)])
    codes = ResidualCoder(encode_angle_by_sincos=True).encode(box, anchor)
    torch.testing.assert_close(codes, torch.cat([wanted[:, :6], turned[None]], dim=1))


@pytest.mark.parametrize("sincos", [False, True])
@pytest.mark.parametrize("extras", [0, 2])
def test_decoding_undoes_encoding(sincos, extras):
    draw = torch.Generator().manual_seed(0)
    boxes, anchors = (torch.rand(2, 5, 7 + extras, generator=draw) * 3 + 0.1 for _ in range(2))
    coder = ResidualCoder(encode_angle_by_sincos=sincos)
    codes = coder.encode(boxes, anchors)
    assert codes.shape == (2, 5, coder.code_size + extras)
    back = coder.decode(codes, anchors)
    torch.testing.assert_close(back[..., 6].sin(), boxes[..., 6].sin(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(back[..., :6], boxes[..., :6], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(back[..., 7:], boxes[..., 7:], rtol=1e-4, atol=1e-5)


def test_inputs_stay_as_they_are_and_codes_finite():
    flat = torch.tensor([[0.0, 0, 0, 0, 1, 1, 0]])
    before = flat.clone()
    assert ResidualCoder().encode(flat, flat).isfinite().all()
    assert torch.equal(flat, before)


def test_no_boxes():
    assert ResidualCoder().encode(torch.zeros(0, 7), torch.zeros(0, 7)).shape == (0, 7)
    assert ResidualCoder(True).decode(torch.zeros(0, 8), torch.zeros(0, 7)).shape == (0, 7)


def test_recorded_codes(shared):
    record = {k: torch.from_numpy(v) for k, v in np.load(shared / "oracles/ops/box_coders.npz").items()}
    boxes, anchors = record["in_gt"], record["in_anchors"]
    plain, sincos = ResidualCoder(), ResidualCoder(encode_angle_by_sincos=True)
    for found, wanted in (
        (plain.encode(boxes, anchors), "out_residual_enc"),
        (plain.decode(record["in_enc7"], anchors), "out_residual_dec"),
        (sincos.encode(boxes, anchors), "out_sincos_enc"),
        (sincos.decode(record["in_enc8"], anchors), "out_sincos_dec"),
    ):
        torch.testing.assert_close(found, record[wanted], rtol=1e-5, atol=1e-5)
