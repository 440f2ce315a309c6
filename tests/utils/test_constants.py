"""Numbers of a configuration as tensors."""

import torch

from pcdet.utils.constants import constant


def test_numbers_take_the_type_and_the_device_of_a_tensor():
    like = torch.zeros(2, dtype=torch.float64)
    assert torch.equal(constant([0.1, 2], like), torch.tensor([0.1, 2], dtype=torch.float64))
    assert constant([1, 2], like, torch.int64).dtype is torch.int64


def test_they_are_copied_to_another_device_once():
    like = torch.zeros(2, device="meta")
    first = constant([0.1, 2], like)
    assert constant((0.1, 2), like) is first and first.device.type == "meta" and first.shape == (2,)
    assert constant((0.1, 3), like) is not first
