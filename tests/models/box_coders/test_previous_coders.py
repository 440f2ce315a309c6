import math

import numpy as np
import pytest
import torch

from pcdet.models.box_coders.choice import anchor_coder
from pcdet.models.box_coders.previous import PreviousResidualDecoder, PreviousResidualRoIDecoder
from pcdet.models.box_coders.residual import ResidualCoder


def test_codes_by_hand():
    anchor = torch.tensor([[10.0, 5.0, -1.0, 3.0, 4.0, 2.0, 0.5]])  # diagonal 5
    box = torch.tensor([[12.5, 4.0, 0.0, 6.0, 4.0, 1.0, 0.8]])
    codes = torch.tensor([[0.5, -0.2, 0.5, 0, math.log(2), -math.log(2), 0.3]])  # dy before dx
    torch.testing.assert_close(PreviousResidualDecoder().encode(box, anchor), codes)
    torch.testing.assert_close(PreviousResidualDecoder().decode(codes, anchor), box)
    codes[:, 6] = -0.3
    torch.testing.assert_close(PreviousResidualRoIDecoder().encode(box, anchor), codes)
    torch.testing.assert_close(PreviousResidualRoIDecoder().decode(codes, anchor), box)


@pytest.mark.parametrize("name", ["ResidualCoder", "PreviousResidualDecoder", "PreviousResidualRoIDecoder"])
def test_coders_by_name_undo_their_encoding(name):
    coder = anchor_coder({"BOX_CODER": name})
    assert type(coder).__name__ == name
    assert coder.code_size == 7
    draw = torch.Generator().manual_seed(0)
    boxes, anchors = (torch.rand(2, 5, 9, generator=draw) + 0.1 for _ in range(2))
    codes = coder.encode(boxes, anchors)
    assert codes.shape == boxes.shape
    torch.testing.assert_close(coder.decode(codes, anchors), boxes)


def test_options_of_a_coder():
    assert anchor_coder({}) == ResidualCoder()
    assert anchor_coder({"BOX_CODER_CONFIG": {"encode_angle_by_sincos": True}}).code_size == 8
    config = {"BOX_CODER": "PreviousResidualDecoder", "BOX_CODER_CONFIG": {"encode_angle_by_sincos": True}}
    with pytest.raises(ValueError, match="PreviousResidualDecoder takes no options, not encode_angle_by_sincos"):
        anchor_coder(config)


@pytest.mark.parametrize("coder", [PreviousResidualDecoder(), PreviousResidualRoIDecoder()])
def test_recorded_boxes(coder, shared):
    record = np.load(shared / "oracles/openpcdet_data/coders_geometry.npz")
    codes, anchors = torch.from_numpy(record["encodings"]), torch.from_numpy(record["anchors"])
    wanted = torch.from_numpy(record[f"{type(coder).__name__}_decode"])
    torch.testing.assert_close(coder.decode(codes, anchors), wanted, rtol=1e-5, atol=1e-5)
