"""Loading processes hand batches over in shared memory, of which a container may have too little."""

import os
from pathlib import Path
from typing import Any

from torch import Tensor

from pcdet.utils.logging import get_logger

FOLDER = Path("/dev/shm")
BATCHES_A_WORKER = 3  # two that wait (torch's prefetch_factor) and one in the making


def check_shared_memory(dataset: Any, batch_size: int, workers: int, folder: Path = FOLDER) -> bool:
    """Warn if the batches of ``workers`` do not fit into shared memory; a full one kills workers with "Bus error".

    A batch is taken to be as large as the first scene times ``batch_size``. Returns whether they fit.
    """
    if not workers or not folder.is_dir():
        return True
    scene = dataset.collate([dataset[0]])
    size = sum(v.numel() * v.element_size() for v in scene.values() if isinstance(v, Tensor))
    needed = size * batch_size * workers * BATCHES_A_WORKER
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    if needed <= free:
        return True
    get_logger().warning(
        "%s has %.0f MiB free, but the batches of %d workers need about %.0f MiB: they may die with a bus error. Give "
        "the container more (docker run --shm-size 8g, or --ipc host), or use fewer --workers",
        folder, free / 2**20, workers, needed / 2**20,
    )  # fmt: skip
    return False
