"""The layout of ``shapenetcore_partanno_segmentation_benchmark_v0_normal`` (Yi et al. 2016)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pcdet.datasets.whole_clouds.packs import Cloud
from pcdet.datasets.whole_clouds.text import read_rows
from pcdet.utils.files import read_text

COLUMNS = ("x", "y", "z", "nx", "ny", "nz", "part")
_CATEGORIES = "synsetoffset2category.txt"


def read_categories(root: Path) -> dict[str, str]:
    """Folder (synset offset) -> category, from ``synsetoffset2category.txt``.

    Raises ``ValueError`` that names the folder and what it holds where that file is absent or damaged.
    """
    path = root / _CATEGORIES
    if not path.is_file():
        found = ", ".join(sorted(p.name for p in root.iterdir())[:12]) or "nothing"
        raise ValueError(f"{root} holds no {_CATEGORIES}, as ShapeNetPart's folder does; it holds {found}")
    out: dict[str, str] = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        fields = line.split()
        if fields and len(fields) != 2:
            raise ValueError(f"{path}:{number}: '{line}' should be a category and its folder")
        if fields:
            out[fields[1]] = fields[0]
    return out


def listed_files(root: Path, split: str, folders: Mapping[str, str], categories: Sequence[str]) -> list[Path]:
    """The text files of a split (``train``, ``val``, ``test``) that belong to wanted categories.

    Raises ``ValueError`` that names the list where it is absent or damaged, or a file that is.
    """
    listing = root / "train_test_split" / f"shuffled_{split}_file_list.json"
    try:
        names = json.loads(listing.read_text(encoding="utf-8"))
        pairs = [tuple(str(name).split("/")[-2:]) for name in names]
    except (OSError, json.JSONDecodeError, TypeError) as error:
        raise ValueError(f"{listing} cannot be read as a list of shapes: {error}") from error
    files = []
    for pair in pairs:
        if len(pair) != 2 or pair[0] not in folders:
            raise ValueError(f"{listing}: {'/'.join(pair)} is in no folder that {_CATEGORIES} names")
        if folders[pair[0]] in categories:
            files.append(root / pair[0] / f"{pair[1]}.txt")
            if not files[-1].is_file():
                raise ValueError(f"{files[-1]} is absent, but {listing} lists it")
    return files


def read_shape(
    path: Path,
    folders: Mapping[str, str],
    categories: Sequence[str],
    part_labels: Mapping[str, Sequence[int]],  # category -> the numbers of its parts in the files
    first_class: Sequence[int],  # class of each category's first part
) -> list[Cloud]:
    """A shape's points with normals, its category, and classes of its points. Raises ``ValueError`` naming the file."""
    rows = read_rows(path, COLUMNS, delimiter=None)
    name = folders[path.parent.name]
    category = categories.index(name)
    parts = np.asarray(part_labels[name])
    labels = rows[:, 6].astype(np.int64)
    known = np.isin(labels, parts)
    if not known.all():
        line = int(known.argmin()) + 1
        raise ValueError(f"{path}:{line}: part {labels[line - 1]}, but {name} has the parts {parts.tolist()} (PARTS)")
    order = np.argsort(parts)
    classes = first_class[category] + order[np.searchsorted(parts, labels, sorter=order)]
    return [Cloud(f"{path.parent.name}/{path.stem}", rows[:, :6], category, classes)]
