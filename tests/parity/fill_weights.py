"""Weights made from parameter names, so that a recorded run needs no weight file."""

import re
import zlib

import numpy as np
import torch
from torch import nn

# Name, gain on the scale of an output layer's weight, shift of its bias. The first match counts, and only for layers
# with fewer than 64 outputs that are no norm.
OUTPUT_RULES = [
    (r"^roi_head\..*(cls|iou)", 1.0, -0.5),
    (r"^point_head\.cls_layers\.", 0.5, -0.5),
    (r"conv_cls\.|\.cls_layers\.|\.hm\.", 0.5, -3.5),
    (r"conv_box\.|\.box_layers\.|\.reg_layers\.|reg_pred_layer|\.(center|center_z|dim|rot)\.", 0.1, 0.0),
]


def fill_weights(model: nn.Module) -> None:
    """Set every floating-point entry of the state dict, in place; counters keep their values."""
    state = model.state_dict()
    with torch.no_grad():
        for name, value in state.items():
            if value.is_floating_point():
                norm = name.rpartition(".")[0] + ".running_mean" in state
                value.copy_(torch.from_numpy(made_value(name, tuple(value.shape), norm)))


def made_value(name: str, shape: tuple[int, ...], norm: bool) -> np.ndarray:
    """The value of one entry, from its name and shape alone."""
    noise = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(int(np.prod(shape))).reshape(shape)
    gain, shift = (1.0, 0.0) if norm or shape[0] >= 64 else _output_rule(name)
    leaf = name.rpartition(".")[2]
    if leaf == "running_mean":
        value = 0.1 * noise
    elif leaf == "running_var":
        value = 1 + 0.1 * np.abs(noise)
    elif leaf == "weight" and len(shape) == 1:
        value = 1 + 0.1 * noise
    elif len(shape) >= 2:
        value = gain * np.sqrt(2 / _fan_in(shape)) * noise
    else:
        value = 0.01 * noise + shift
    return value.astype(np.float32)


def _output_rule(name: str) -> tuple[float, float]:
    return next(((gain, shift) for pattern, gain, shift in OUTPUT_RULES if re.search(pattern, name)), (1.0, 0.0))


def _fan_in(shape: tuple[int, ...]) -> float:
    """Inputs of an output; sparse kernels (outputs first, inputs last) see only few of theirs."""
    inputs = np.prod(shape) / shape[0]
    if len(shape) == 5:
        return inputs / 2
    if len(shape) == 4 and shape[1] == shape[2] == 3 != shape[3]:
        return inputs / 1.2
    return inputs
