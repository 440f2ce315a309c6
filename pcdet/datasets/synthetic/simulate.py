"""Writing simulated LiDAR scenes in KITTI's layout."""

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from pcdet.datasets.synthetic.cast import cast
from pcdet.datasets.synthetic.labels import IMAGE_SHAPE, Label, make_labels
from pcdet.datasets.synthetic.returns import sample_returns
from pcdet.datasets.synthetic.rig import calibration, calibration_text, plane_text
from pcdet.datasets.synthetic.sensor import scanner
from pcdet.datasets.synthetic.world import World, draw_world
from pcdet.structures.calibration import Calibration
from pcdet.utils.files import atomic_open, write_json, write_text

_VERSION = 1  # raised whenever the same seed gives other frames
_MANIFEST = "simulation.json"
_CHANCES = 1 << 16


class Frame(NamedTuple):
    """One simulated turn of the scanner with what a test may want to know of it."""

    points: np.ndarray  # (N, 4) float32 x y z intensity, LiDAR frame
    labels: list[Label]
    owner: np.ndarray  # (N,) index into the world's objects, -1 for the ground
    world: World
    calib: Calibration


def simulate_frame(seed: int, index: int) -> Frame:
    """Frame ``index`` of the data set of ``seed``; it depends on these two numbers only."""
    rng = np.random.default_rng([seed, index])
    return scan(draw_world(rng), rng)


def scan(world: World, rng: np.random.Generator) -> Frame:
    """Scan a world once and label what the camera sees of it."""
    sensor, calib = scanner(), calibration()
    chance = 1.0 - rng.random(_CHANCES)  # in (0, 1]
    hits, own = cast(sensor, world.ground, world.primitives, chance)
    count = len(world.names)
    own = np.pad(own, (0, count - len(own)))
    visible = np.bincount(hits.owner[hits.owner >= 0], minlength=count)
    points, owner = sample_returns(sensor, hits, rng)
    returned = np.bincount(owner[owner >= 0], minlength=count)
    labels = make_labels(world.names, world.boxes, visible, own, returned, calib)
    return Frame(points, labels, owner, world, calib)


def simulate_kitti(
    out: str | Path,
    frames: int,
    seed: int = 0,
    val_fraction: float = 0.2,
    *,
    workers: int = 1,
    planes: bool = True,
    fov_only: bool = False,
) -> Path:
    """Write simulated frames in KITTI's layout and return the folder.

    Writes ``training/{velodyne,calib,label_2[,planes]}`` and ``ImageSets/{train,val,trainval,test}.txt``; the last
    frames are the validation split, and there is no test split. There are no images. Frames that an earlier run with
    the same settings finished are kept. The result does not depend on ``workers``.

    Args:
        out: the folder, made if it is absent.
        frames: number of frames.
        seed: seed of the data set.
        val_fraction: share of the frames in the validation split.
        workers: processes that simulate.
        planes: write road planes as well.
        fov_only: keep only the points in the camera's view, which makes the files six times smaller.

    Raises:
        ValueError: if a number is out of its range, or ``out`` holds frames of other settings.
    """
    splits = split_frames(frames, val_fraction)
    out = Path(out)
    claim(out, "training", {"version": _VERSION, "seed": seed, "planes": planes, "fov_only": fov_only})
    missing = [i for i in range(frames) if not all(path.is_file() for path in _paths(out, i, planes).values())]
    write = partial(_write_frame, out, seed, planes, fov_only)
    write_frames(write, frames, missing, workers)
    write_splits(out, {**splits, "trainval": [*splits["train"], *splits["val"]], "test": []})
    return out


def write_frames(write: Callable[[int], None], frames: int, missing: list[int], workers: int) -> None:
    """Call ``write`` for the ``missing`` ones of all ``frames``, with a progress bar on a terminal."""
    bar = tqdm(total=frames, initial=frames - len(missing), desc="simulate", unit="frame", disable=not _terminal())
    with bar:
        for _ in _each(write, missing, workers):
            bar.update()


def _terminal() -> bool:
    return sys.stderr.isatty()


def claim(out: Path, clouds: str, settings: dict) -> None:
    """Note the settings in the folder, or make sure that the frames there were made with the same ones.

    ``clouds`` is the folder below ``out`` that frames are written to.
    """
    manifest = out / _MANIFEST
    if manifest.is_file():
        found = json.loads(manifest.read_text())
        if found != settings:
            raise ValueError(
                f"{out} holds frames of other settings ({found}, not {settings}); name another folder or remove it"
            )
    elif (out / clouds).exists():
        raise ValueError(f"{out} holds a data set that was not simulated; name another folder")
    else:
        write_json(manifest, settings)


def _each(write: Callable[[int], None], indices: list[int], workers: int) -> Iterator[None]:
    if workers <= 1 or len(indices) <= 1:
        yield from map(write, indices)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(write, indices, chunksize=4)


def _paths(out: Path, index: int, planes: bool) -> dict[str, Path]:
    folder = out / "training"
    paths = {
        "velodyne": folder / "velodyne" / f"{index:06d}.bin",
        "calib": folder / "calib" / f"{index:06d}.txt",
        "label_2": folder / "label_2" / f"{index:06d}.txt",
    }
    return {**paths, "planes": folder / "planes" / f"{index:06d}.txt"} if planes else paths


def _write_frame(out: Path, seed: int, planes: bool, fov_only: bool, index: int) -> None:
    frame = simulate_frame(seed, index)
    paths = _paths(out, index, planes)
    points = frame.points[in_view(frame.points, frame.calib)] if fov_only else frame.points
    with atomic_open(paths["velodyne"]) as file:
        file.write(points.tobytes())
    write_text(paths["calib"], calibration_text())
    write_text(paths["label_2"], "".join(label.line() + "\n" for label in frame.labels))
    if planes:
        write_text(paths["planes"], plane_text(frame.world.ground, frame.calib))


def in_view(points: np.ndarray, calib: Calibration) -> np.ndarray:
    """(N,) bool: which points the camera's image shows."""
    pixels, depth = calib.lidar_to_image(points[:, :3])
    height, width = IMAGE_SHAPE
    inside = (pixels[:, 0] >= 0) & (pixels[:, 0] < width) & (pixels[:, 1] >= 0) & (pixels[:, 1] < height)
    return inside & (depth >= 0)


def split_frames(frames: int, val_fraction: float) -> dict[str, list[str]]:
    """Names of ``train`` and ``val``, the last frames. Raises ``ValueError`` if a number is out of its range."""
    if frames < 1:
        raise ValueError(f"frames is {frames}; at least 1 is needed")
    if not 0 <= val_fraction < 1:
        raise ValueError(f"val_fraction is {val_fraction}; it must lie in [0, 1)")
    ids = [f"{i:06d}" for i in range(frames)]
    kept = frames - round(frames * val_fraction)
    return {"train": ids[:kept], "val": ids[kept:]}


def write_splits(out: Path, splits: dict[str, list[str]]) -> None:
    """Write ``ImageSets``."""
    for name, members in splits.items():
        write_text(out / "ImageSets" / f"{name}.txt", "".join(f"{i}\n" for i in members))
