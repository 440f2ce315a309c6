"""Writing simulated LiDAR scenes as somebody's own data: OpenPCDet's custom layout, labelled all around."""

from functools import partial
from pathlib import Path

import numpy as np

from pcdet.datasets.synthetic.simulate import Frame, claim, simulate_frame, split_frames, write_frames, write_splits
from pcdet.utils.files import atomic_open, write_text

_VERSION = 1  # raised whenever the same seed gives other frames
SENSOR_HEIGHT = 1.73  # metres; the frame's origin is on the ground below the sensor, as in the custom YAML's range
CLASSES = {"Car": "Vehicle", "Van": "Vehicle", "Pedestrian": "Pedestrian", "Cyclist": "Cyclist"}
MIN_POINTS = 5  # objects with fewer are not labelled


def simulate_custom(
    out: str | Path, frames: int, seed: int = 0, val_fraction: float = 0.2, *, workers: int = 1
) -> Path:
    """Write simulated frames in OpenPCDet's custom layout and return the folder.

    Writes ``points/*.npy`` (N, 4) float32 x y z intensity, ``labels/*.txt`` with ``x y z dx dy dz heading class``, and
    ``ImageSets/{train,val}.txt``. The frame of boxes and points stands on the ground: z is 0 there, 1.73 m below the
    sensor. Frames that an earlier run with the same settings finished are kept. The files do not depend on
    ``workers``. Raises ``ValueError`` if a number is out of its range, or ``out`` holds frames of other settings.
    """
    splits = split_frames(frames, val_fraction)
    out = Path(out)
    claim(out, "points", {"version": _VERSION, "seed": seed, "layout": "custom"})
    missing = [i for i in range(frames) if not all(path.is_file() for path in _paths(out, i))]
    write_frames(partial(_write_frame, out, seed), frames, missing, workers)
    write_splits(out, splits)
    return out


def _paths(out: Path, index: int) -> tuple[Path, Path]:
    return out / "points" / f"{index:06d}.npy", out / "labels" / f"{index:06d}.txt"


def _write_frame(out: Path, seed: int, index: int) -> None:
    frame = simulate_frame(seed, index)
    cloud, label = _paths(out, index)
    points = frame.points.copy()
    points[:, 2] += SENSOR_HEIGHT
    with atomic_open(cloud) as file:
        np.save(file, points)
    write_text(label, label_text(frame))


def label_text(frame: Frame) -> str:
    """A line for each object of a wanted class with enough points, wherever it is."""
    world = frame.world
    returned = np.bincount(frame.owner[frame.owner >= 0], minlength=len(world.names))  # (M,)
    lines = []
    for name, box, count in zip(world.names, world.boxes, returned, strict=True):
        if name in CLASSES and count >= MIN_POINTS:
            x, y, z, *rest = box
            lines.append(" ".join(f"{v:.4f}" for v in (x, y, z + SENSOR_HEIGHT, *rest)) + f" {CLASSES[name]}\n")
    return "".join(lines)
