"""Training and evaluation mode, module by module."""

import contextlib
from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd


@contextlib.contextmanager
def keeping_modes(model: nn.Module) -> Iterator[None]:
    """Within it, modes may be changed; afterwards every module has its own again, a frozen norm that of evaluation."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def lossy_evaluation(model: nn.Module) -> None:
    """Training mode, so that losses are computed, but with BatchNorm's running statistics and without dropout."""
    model.train()
    for module in model.modules():
        if isinstance(module, _BatchNorm | _DropoutNd):
            module.eval()
