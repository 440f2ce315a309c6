"""How long the candidates for sparse convolution take on this device: what the choice between them goes by."""

import statistics
import time
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from pcdet.layers.sparse.modules import SubMConv3d
from pcdet.layers.sparse.tensor import SparseConvTensor

# The second level of PV-RCNN's backbone: of the cells around a site about a third are sites too.
CHANNELS, GRID, BLOCK, BLOCKS = 32, (20, 800, 704), (2, 2, 4), 2500
WARM_UP, TIMED = 3, 5


def milliseconds(peer: ModuleType | None, device: torch.device, blocks: int = BLOCKS) -> float:
    """Median time of two convolutions over the same sites, forward and backward, with the search for neighbours.

    By the library ``peer``, or by this package's own layers where it is ``None``. ``blocks`` of 16 sites each.
    Raises ``RuntimeError`` where the library cannot run here.
    """
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        layers = [SubMConv3d(CHANNELS, CHANNELS, 3, bias=False, indice_key="level").to(device) for _ in range(2)]
        indices = _sites(blocks).to(device)
        features = torch.randn(len(indices), CHANNELS).to(device).requires_grad_()

        def step() -> None:
            x = SparseConvTensor(features, indices, GRID, 1)
            for layer in layers:
                x = layer.computed_by(peer, x)
            x.features.float().sum().backward()

        for _ in range(WARM_UP):
            step()
        times = []
        for _ in range(TIMED):
            began = _now(device)
            step()
            times.append(_now(device) - began)
    return 1000 * statistics.median(times)


def _sites(blocks: int) -> Tensor:
    """(16 * blocks, 4) int32: distinct sites of one scene, in blocks that lie anywhere in the grid."""
    coarse = tuple(size // step for size, step in zip(GRID, BLOCK, strict=True))
    places = torch.randperm(coarse[0] * coarse[1] * coarse[2])[:blocks]
    corners = torch.stack(torch.unravel_index(places, coarse), dim=1) * torch.tensor(BLOCK)  # (blocks, 3)
    inner = torch.cartesian_prod(*(torch.arange(step) for step in BLOCK))  # (16, 3)
    return F.pad((corners.unsqueeze(1) + inner).flatten(0, 1), (1, 0)).int()


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
