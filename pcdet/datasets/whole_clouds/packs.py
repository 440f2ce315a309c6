"""Clouds in binary form: files are read once, then mapped into memory.

A pack is a folder with ``points.f32`` (and ``point_labels.i16``), the rows of all clouds one after another, and
``index.npz``, which says where each begins, what it is called and to which class it belongs.
"""

import hashlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from pcdet.datasets.cache_folder import cache_places
from pcdet.ops.furthest_point_sampling import furthest_point_sample

_VERSION = 2
_POINTS, _POINT_LABELS, _INDEX = "points.f32", "point_labels.i16", "index.npz"


class Cloud(NamedTuple):
    """One cloud as a reader returns it."""

    name: str
    points: np.ndarray  # (N, C) float32
    label: int  # class, category or room: what it is held out by
    point_labels: np.ndarray | None = None  # (N,) integers from -1 to 32767


@dataclass(frozen=True)
class Pack:
    """Clouds of a split, in the memory's pages as far as they were read."""

    points: np.ndarray  # (R, C) float32, mapped
    offsets: np.ndarray  # (M + 1,) int64
    labels: np.ndarray  # (M,) int64
    names: tuple[str, ...]  # (M,)
    point_labels: np.ndarray | None = None  # (R,) int16, mapped
    folder: Path | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def cloud(self, index: int) -> np.ndarray:
        """(N, C) of cloud ``index``, mapped and not to be written to."""
        return self.points[self.offsets[index] : self.offsets[index + 1]]

    def labels_of_points(self, index: int) -> np.ndarray:
        """(N,) int16 of cloud ``index``."""
        return self.point_labels[self.offsets[index] : self.offsets[index + 1]]

    def __reduce__(self) -> tuple:
        """Another process is told the folder, which it maps as well; only clouds without one travel themselves."""
        if self.folder is not None:
            return _open, (self.folder,)
        return Pack, tuple(getattr(self, f.name) for f in fields(self))

    def furthest(self, count: int) -> np.ndarray:
        """(M, count) int32: the points that furthest point sampling chooses, beginning with the first of each cloud.

        Chosen once and kept with the pack.
        """
        path = self.folder / f"furthest_{count}.i32"
        if not path.is_file():
            bar = tqdm(range(len(self)), desc=f"choose {count} points", unit="cloud", disable=not sys.stderr.isatty())
            rows = np.stack([_furthest(self.cloud(i), count) for i in bar]).astype(np.int32)
            with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
                rows.tofile(file)
            os.replace(file.name, path)
        return np.memmap(path, np.int32, "r", shape=(len(self), count))


def _furthest(cloud: np.ndarray, count: int) -> np.ndarray:
    xyz = torch.from_numpy(np.array(cloud[:, :3]))[None]
    return furthest_point_sample(xyz, count)[0].numpy()


def packed(
    name: str,
    files: Sequence[Path],
    read: Callable[[Path], Iterable[Cloud]],
    root: Path,
    logger: logging.Logger,
    facts: Sequence[object] = (),
) -> Pack:
    """The clouds of ``files``, from the pack where the files are still the same, else read with ``read`` and packed.

    The pack lies in ``root``'s folder ``.pcdet_cache`` or, where that cannot be written to, in ``~/.cache/pcdet``. Its
    name holds a hash of every file's path, size and modification time and of ``facts``, what else its content follows
    from. A pack of the same name made from files that have changed since is deleted.

    Raises what ``read`` raises, and ``OSError`` where neither folder can be written to.
    """
    key = f"{name}-{_key(files, root, facts)}"
    places = cache_places(root)
    for place in places:
        if (place / key / _INDEX).is_file():
            return _open(place / key)
    logger.info("reading %d files of %s (the next start reads a binary copy)", len(files), root)
    for place in places:
        try:
            place.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(dir=place, prefix=f".{key}."))
        except OSError as error:
            logger.warning("%s cannot be written to: %s", place, error)
            continue
        try:
            _write(temporary, files, read)
            _publish(temporary, place / key)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        _forget_others(place, name, key)
        return _open(place / key)
    raise OSError(f"the binary copy of {root} can be written to none of {', '.join(map(str, places))}")


def _key(files: Sequence[Path], root: Path, facts: Sequence[object]) -> str:
    digest = hashlib.sha256(repr((_VERSION, *facts)).encode())
    for file in files:
        state = file.stat()
        digest.update(repr((os.path.relpath(file, root), state.st_size, state.st_mtime_ns)).encode())
    return digest.hexdigest()[:24]


def _write(folder: Path, files: Sequence[Path], read: Callable[[Path], Iterable[Cloud]]) -> None:
    lengths, labels, names, columns, with_labels = [], [], [], 0, False
    with open(folder / _POINTS, "wb") as points, open(folder / _POINT_LABELS, "wb") as point_labels:
        for file in tqdm(files, desc="read clouds", unit="file", disable=not sys.stderr.isatty()):
            for cloud in read(file):
                np.ascontiguousarray(cloud.points, dtype=np.float32).tofile(points)
                if cloud.point_labels is not None:
                    with_labels = True
                    np.asarray(cloud.point_labels, dtype=np.int16).tofile(point_labels)
                lengths.append(len(cloud.points))
                labels.append(cloud.label)
                names.append(cloud.name)
                columns = cloud.points.shape[1]
        for part in (points, point_labels):
            _sync(part)
    if not with_labels:
        (folder / _POINT_LABELS).unlink()
    with open(folder / _INDEX, "wb") as index:
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        np.savez(index, offsets=offsets, labels=np.array(labels, np.int64), names=np.array(names), columns=columns)
        _sync(index)


def _sync(file: IO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _publish(temporary: Path, folder: Path) -> None:
    """Rename; another process may have been faster, and its pack is the same."""
    os.chmod(temporary, 0o755)
    try:
        os.rename(temporary, folder)
    except OSError:
        if not (folder / _INDEX).is_file():
            raise


def _forget_others(place: Path, name: str, key: str) -> None:
    for other in place.glob(f"{name}-*"):
        if other.name != key:
            shutil.rmtree(other, ignore_errors=True)


def _open(folder: Path) -> Pack:
    with np.load(folder / _INDEX) as index:
        offsets, labels, names = index["offsets"], index["labels"], tuple(index["names"].tolist())
        columns = int(index["columns"])
    rows = int(offsets[-1])
    if rows == 0:  # nothing that could be mapped
        return Pack(np.zeros((0, columns), np.float32), offsets, labels, names, np.zeros(0, np.int16), folder)
    points = np.memmap(folder / _POINTS, np.float32, "r", shape=(rows, columns))
    path = folder / _POINT_LABELS
    point_labels = np.memmap(path, np.int16, "r", shape=(rows,)) if path.is_file() else None
    return Pack(points, offsets, labels, names, point_labels, folder)
