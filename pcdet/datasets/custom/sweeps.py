"""Several sweeps as one cloud: earlier ones are moved into the frame's own coordinates."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from pcdet.utils.files import read_text

TIME = "timestamp"  # the feature that tells a point's age in seconds; 0 in the frame's own sweep


class Sweep(NamedTuple):
    """An earlier sweep."""

    cloud: Path
    age: float  # seconds before the frame
    motion: np.ndarray  # (3, 4) float64: its coordinates -> the frame's


def read_sweeps(path: Path, root: Path) -> list[Sweep]:
    """Lines ``cloud seconds`` and perhaps 12 numbers, the rows of a (3, 4) matrix; without them nothing moved.

    ``cloud`` is a path below ``root``, such as ``points/000041.pcd``. Without a file there are no earlier sweeps, as at
    the beginning of a drive. Raises ``ValueError`` naming file and line of another form, or of an absent cloud.
    """
    if not path.is_file():
        return []
    sweeps = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        fields, place = line.split(), f"{path}:{number}"
        if not fields:
            continue
        try:
            values = [float(v) for v in fields[1:]]
        except ValueError as error:
            raise ValueError(f"{place}: {error}; numbers follow the cloud's name") from error
        if len(values) not in (1, 13) or not np.isfinite(values).all():
            raise ValueError(
                f"{place}: a sweep is 'cloud seconds' or 'cloud seconds' and the 12 numbers of a 3 x 4 matrix, all "
                f"finite; this line has {len(fields)} fields"
            )
        cloud = root / fields[0]
        if not cloud.is_file():
            raise ValueError(f"{place}: there is no cloud {cloud}")
        motion = np.array(values[1:]).reshape(3, 4) if len(values) == 13 else np.eye(3, 4)
        sweeps.append(Sweep(cloud, values[0], motion))
    return sweeps


def moved(points: np.ndarray, motion: np.ndarray) -> np.ndarray:
    """(N, C) points of an earlier sweep -> the frame's coordinates; the further columns are kept."""
    out = points.copy()
    out[:, :3] = points[:, :3] @ motion[:, :3].T + motion[:, 3]
    return out
