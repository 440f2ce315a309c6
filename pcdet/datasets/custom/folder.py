"""The files of a folder in OpenPCDet's custom layout."""

from dataclasses import dataclass
from pathlib import Path

from pcdet.datasets.cloud_formats import SUFFIXES
from pcdet.datasets.splits import read_split

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class CustomFolder:
    """A folder with ``points``, ``labels`` and ``ImageSets``."""

    root: Path

    def split_file(self, split: str) -> Path:
        """The list of a split's frames."""
        return self.root / "ImageSets" / f"{split}.txt"

    def frames(self, split: str) -> dict[str, int]:
        """Frame -> line of ``ImageSets/<split>.txt``. Raises as :func:`pcdet.datasets.splits.read_split`."""
        return read_split(self.split_file(split))

    def cloud_path(self, frame_id: str) -> Path:
        """The frame's cloud, whatever its format.

        Raises ``FileNotFoundError`` where there is none and ``ValueError`` where there are two.
        """
        found = [path for suffix in SUFFIXES if (path := self.root / "points" / f"{frame_id}{suffix}").is_file()]
        if len(found) > 1:
            raise ValueError(f"frame {frame_id} has several clouds, {', '.join(map(str, found))}; keep one")
        if not found:
            raise FileNotFoundError(
                f"The cloud of frame {frame_id} is missing: {self.root / 'points' / frame_id} with one of the suffixes "
                + ", ".join(SUFFIXES)
            )
        return found[0]

    def label_path(self, frame_id: str, suffix: str = ".txt") -> Path:
        """The frame's labels; it need not exist."""
        return self.root / "labels" / f"{frame_id}{suffix}"

    def sweeps_path(self, frame_id: str) -> Path:
        """The list of the frame's earlier sweeps; it need not exist."""
        return self.root / "sweeps" / f"{frame_id}.txt"

    def calib_path(self, frame_id: str) -> Path:
        """The frame's calibration in KITTI's format; only labels in a camera's frame need it."""
        return self.root / "calib" / f"{frame_id}.txt"
