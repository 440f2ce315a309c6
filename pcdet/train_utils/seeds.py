"""Generators that everybody may draw from, seeded by what is drawn for.

Ours draw from generators of their own. A data set or a model that somebody adds may draw from the global ones of torch,
NumPy or Python: then its draws, too, are a function of the place in the run.
"""

import random

import numpy as np
import torch
from torch.utils.data import get_worker_info


def seed_everything(seed: int, *stream: int) -> None:
    """Seed the generators of torch, NumPy and Python for one stream of draws, such as (rank, epoch, step)."""
    torch.manual_seed(seed_host(seed, *stream))


def seed_host(seed: int, *stream: int) -> int:
    """Seed the generators of NumPy and Python alone. Returns what torch's would be seeded with, 63 bits."""
    words = np.random.SeedSequence([seed, *stream]).generate_state(2, np.uint32)
    np.random.seed(words)
    whole = int(words.view(np.uint64)[0] >> np.uint64(1))
    random.seed(whole)
    return whole


def seed_item(seed: int, epoch: int, index: int) -> None:
    """Seed for one item of a data set, by whichever process makes it.

    Torch's generators only in a loading process: where there is none, a thread of the training's process may make the
    item while a step draws from them.
    """
    whole = seed_host(seed, epoch, index)
    if get_worker_info() is not None:
        torch.manual_seed(whole)
