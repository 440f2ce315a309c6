"""The points of each cloud that the camera sees, cut out once.

Neither the cloud nor the camera changes from epoch to epoch, and four fifths of a KITTI sweep lie outside the image:
reading a copy of what lies inside costs a hundredth of projecting all of it.
"""

import contextlib
import hashlib
import logging
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pcdet.datasets.cache_folder import cache_places
from pcdet.datasets.clouds import read_cloud
from pcdet.datasets.kitti.folder import POINT_FEATURES, in_camera_view
from pcdet.structures.calibration import Calibration
from pcdet.utils.files import atomic_open

FOLDER = "camera_views"
RESERVE = 2 * 2**30  # bytes of the disk that are left to checkpoints: no copy is written into them
_VERSION = 1
_WHOLE = -1  # rows of a copy that holds none, because the camera sees the whole cloud
_HEADER = np.dtype([("key", "V16"), ("dropped", "<i8"), ("rows", "<i8")])


class View(NamedTuple):
    """What the camera sees of a cloud."""

    points: np.ndarray  # (N, 4) float32 x y z intensity
    dropped: int  # points of the whole cloud that are NaN or infinite


def cut_view(path: Path, calib: Calibration, image_shape: np.ndarray) -> tuple[View, bool]:
    """Read a cloud and cut out the view; also whether that is the whole file. Raises as :func:`read_cloud`."""
    points, dropped = read_cloud(path)
    inside = in_camera_view(points, calib, image_shape)
    return View(points[inside], dropped), bool(dropped == 0 and inside.all())


class CameraViews:
    """The views of a folder's clouds, kept in files in one of its :func:`cache_places`.

    A copy counts as long as the cloud's size and modification time, the calibration and the image's size are those it
    was made from. Copies are written whole or not at all, so several processes may share them. Where there is no room
    or no right to write, or with ``keep`` off, each view is cut anew.
    """

    def __init__(self, root: Path, logger: logging.Logger, *, keep: bool = True):
        self.root = root
        self.logger = logger
        self.keep = keep
        self.places = [place / FOLDER for place in cache_places(root)]

    def read(self, path: Path, calib: Calibration, image_shape: np.ndarray) -> View:
        """The view of the cloud ``path``. Raises as :func:`pcdet.datasets.clouds.read_cloud`."""
        if not self.keep or not path.is_file():
            return cut_view(path, calib, image_shape)[0]
        name = f"{os.path.relpath(path, self.root)}.view"
        key = key_of(path, calib, image_shape)
        for place in self.places:
            view = read_copy(place / name, key, path)
            if view is not None:
                return view
        view, whole = cut_view(path, calib, image_shape)
        self.write(name, key, view, whole)
        return view

    def write(self, name: str, key: bytes, view: View, whole: bool) -> None:
        """Keep a view in the first place that takes it; after a failure in all of them keep no more."""
        header = np.array([(key, view.dropped, _WHOLE if whole else len(view.points))], dtype=_HEADER)
        problems = []
        for place in self.places:
            try:
                place.mkdir(parents=True, exist_ok=True)
                if shutil.disk_usage(place).free < RESERVE:
                    problems.append(f"{place} has less than {RESERVE >> 30} GiB free")
                    continue
                with atomic_open(place / name) as file:
                    file.write(header.tobytes())
                    if not whole:
                        file.write(view.points.tobytes())
            except OSError as error:
                problems.append(str(error))
            else:
                return
        self.keep = False
        self.logger.warning(
            "what the camera sees is cut out of each cloud anew, because no copy can be kept: %s", "; ".join(problems)
        )


def key_of(path: Path, calib: Calibration, image_shape: np.ndarray) -> bytes:
    """16 bytes that change with all that a view follows from."""
    state = os.stat(path)
    parts = [matrix.tobytes() for matrix in (calib.P2, calib.R0, calib.V2C, np.asarray(image_shape, np.int64))]
    facts = repr((_VERSION, state.st_size, state.st_mtime_ns)).encode()
    return hashlib.blake2b(b"".join([facts, *parts]), digest_size=16).digest()


def read_copy(copy: Path, key: bytes, cloud: Path) -> View | None:
    """The view in a copy, unless the copy is absent, out of date or damaged."""
    with contextlib.suppress(OSError), open(copy, "rb") as file:
        header = np.fromfile(file, _HEADER, 1)
        if len(header) == 0 or header["key"].tobytes() != key:
            return None
        rows, source = int(header["rows"][0]), file
        if rows == _WHOLE:
            rows, source = os.stat(cloud).st_size // (4 * len(POINT_FEATURES)), cloud
        values = np.fromfile(source, np.float32, rows * len(POINT_FEATURES))
        if len(values) == rows * len(POINT_FEATURES):
            return View(values.reshape(rows, -1), int(header["dropped"][0]))
    return None
