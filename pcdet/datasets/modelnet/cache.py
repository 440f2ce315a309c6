"""Clouds that were read once, kept in binary form beside the data."""

import hashlib
import logging
from pathlib import Path

import numpy as np

from pcdet.datasets.modelnet.readers import Clouds, Split, read_split
from pcdet.utils.files import atomic_open

FOLDER = ".pcdet_cache"
_VERSION = 1


def cached_split(split: Split, num_points: int, root: Path, logger: logging.Logger, progress: bool) -> Clouds:
    """The clouds of a split, from the cache where the files are still the same.

    The cache's name holds a hash of every file's path, size and modification time. Where the folder cannot be
    written to, the clouds are read every time and a warning says so.
    """
    path = root / FOLDER / f"{_key(split, num_points, root)}.npz"
    if path.is_file():
        with np.load(path) as stored:
            return Clouds(stored["points"], stored["labels"], tuple(stored["ids"].tolist()))
    logger.info("reading %d files of %s (the next start reads a cache)", len(split.files), root)
    clouds = read_split(split, num_points, progress)
    try:
        with atomic_open(path) as file:
            np.savez(file, points=clouds.points, labels=clouds.labels, ids=np.array(clouds.ids))
    except OSError as error:
        logger.warning("the cache %s cannot be written (%s): every start will read all files", path, error)
    return clouds


def _key(split: Split, num_points: int, root: Path) -> str:
    digest = hashlib.sha256(repr((_VERSION, num_points, split.layout, split.class_names)).encode())
    for file in split.files:
        state = file.stat()
        digest.update(repr((str(file.relative_to(root)), state.st_size, state.st_mtime_ns)).encode())
    return digest.hexdigest()[:24]
