"""A few frames of a KITTI folder as a folder of their own, to try a thing on."""

import shutil
from pathlib import Path

from pcdet.datasets.kitti.labels import read_labels
from pcdet.datasets.splits import read_split
from pcdet.utils.files import write_text

FILES = {"velodyne": ".bin", "calib": ".txt", "label_2": ".txt", "image_2": ".png", "planes": ".txt"}


def copy_subset(data_path: Path, out: Path, frames: int, class_name: str | None = None) -> list[str]:
    """Copy the first ``frames`` training frames; they are both ``train`` and ``val`` of the new folder.

    ``class_name`` takes only frames that hold an object of this class. Returns the frames' names. Raises
    ``FileNotFoundError`` if ``data_path`` has no ImageSets/train.txt and ``ValueError`` if it has too few frames.
    """
    names = list(read_split(data_path / "ImageSets" / "train.txt"))
    chosen = [n for n in names if class_name is None or holds(data_path, n, class_name)][:frames]
    if len(chosen) < frames:
        which = f" with a {class_name}" if class_name else ""
        raise ValueError(f"{data_path} has {len(chosen)} training frames{which}, {frames} are asked for")
    for name in chosen:
        for folder, suffix in FILES.items():
            source = data_path / "training" / folder / f"{name}{suffix}"
            if source.is_file():
                target = out / "training" / folder / source.name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
    for split in ("train", "val", "trainval"):
        write_text(out / "ImageSets" / f"{split}.txt", "\n".join(chosen) + "\n")
    return chosen


def holds(data_path: Path, frame: str, class_name: str) -> bool:
    """Does the frame's label file name an object of this class?"""
    objects, _ = read_labels(data_path / "training" / "label_2" / f"{frame}.txt")
    return any(o.name == class_name for o in objects)
