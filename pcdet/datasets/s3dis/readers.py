"""The layout of ``Stanford3dDataset_v1.2_Aligned_Version`` (Armeni et al. 2016)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pcdet.datasets.whole_clouds.packs import Cloud
from pcdet.datasets.whole_clouds.text import read_rows

COLUMNS = ("x", "y", "z", "r", "g", "b")


def find_rooms(root: Path, areas: Sequence[int]) -> list[Path]:
    """The folders ``Area_<n>/<room>`` that hold ``Annotations``.

    Raises ``ValueError`` that names the folder and what it holds where an area is absent or empty.
    """
    rooms = []
    for area in areas:
        folder = root / f"Area_{area}"
        found = sorted(p.parent for p in folder.glob("*/Annotations")) if folder.is_dir() else []
        if not found:
            there = ", ".join(sorted(p.name for p in root.iterdir())[:12]) or "nothing"
            raise ValueError(f"{folder} holds no <room>/Annotations; {root} holds {there}")
        rooms += found
    return rooms


def annotations(room: Path) -> list[Path]:
    """The text files of a room, one an object. Raises ``ValueError`` where there is none."""
    files = sorted((room / "Annotations").glob("*.txt"))
    if not files:
        raise ValueError(f"{room / 'Annotations'} holds no text file")
    return files


def read_room(path: Path, class_names: Sequence[str]) -> list[Cloud]:
    """A room from its first file of annotations; an object of another class counts as the last of CLASS_NAMES.

    Points are (N, 6): x y z in metres, colour in [0, 1].
    """
    room = path.parent.parent
    points, labels = [], []
    for file in annotations(room):
        rows = read_rows(file, COLUMNS, delimiter=None)
        name = file.stem.rsplit("_", 1)[0]
        label = class_names.index(name) if name in class_names else len(class_names) - 1
        points.append(rows)
        labels.append(np.full(len(rows), label))
    cloud = np.concatenate(points)
    cloud[:, 3:] /= 255
    return [Cloud(f"{room.parent.name}_{room.name}", cloud, 0, np.concatenate(labels))]
