"""S3DIS (Armeni et al., "3D semantic parsing of large-scale indoor spaces", 2016) in blocks."""

import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pcdet.datasets import DATASETS
from pcdet.datasets.dataset import find_data_path
from pcdet.datasets.s3dis.readers import annotations, find_rooms, read_room
from pcdet.datasets.whole_clouds.augmentation import CloudAugmentation
from pcdet.datasets.whole_clouds.blocks import RoomBlocks
from pcdet.datasets.whole_clouds.packs import Cloud, packed
from pcdet.datasets.whole_clouds.selection import EvalSplit
from pcdet.structures.dataset_info import DatasetInfo

_COLUMNS = ("x", "y", "z", "r", "g", "b", "x_share", "y_share", "z_share")


@DATASETS.register
class S3DISDataset(RoomBlocks):
    """Blocks of rooms with colour and the place in the room (each coordinate's share of the room's extent).

    An object whose class is not in CLASS_NAMES counts as the last one, clutter.

    Options:
        data_path: the folder with ``Area_1`` to ``Area_6``.
        test_areas: areas that are tested on, usually 5.
        val_areas: areas that are neither trained nor tested on, to choose an epoch by.
        eval_split: what is evaluated: ``test``, ``val`` or ``train``.
        num_points: points of a block.
        block_size: metres.
        augmentation: what is done in training.

    Raises:
        FileNotFoundError: if the folder does not exist.
        ValueError: if an area is absent, a file is damaged, or ``val`` is evaluated without VAL_AREAS.
    """

    def __init__(
        self,
        *,
        class_names: Sequence[str],
        training: bool,
        seed: int,
        logger: logging.Logger,
        dataset: str = "S3DISDataset",
        data_path: str,
        test_areas: Sequence[int] = (5,),
        val_areas: Sequence[int] = (),
        eval_split: EvalSplit = "test",
        num_points: int = 4096,
        block_size: float = 1.0,
        augmentation: CloudAugmentation | None = None,
    ):
        root = find_data_path(data_path)
        split = "train" if training else eval_split
        areas = _areas(root, split, test_areas, val_areas)
        rooms = find_rooms(root, areas)
        pack = packed(
            "_".join(("s3dis", *map(str, areas))),
            [file for room in rooms for file in annotations(room)],
            functools.partial(_read_once, class_names=tuple(class_names)),
            root,
            logger,
            class_names,
        )
        super().__init__(
            info=self.describe(class_names, {}),
            pack=pack,
            training=training,
            seed=seed,
            logger=logger,
            num_points=num_points,
            block_size=block_size,
            augmentation=augmentation,
        )
        logger.info("%s %s: %d blocks of %d rooms", dataset, split, len(self), len(pack))

    @staticmethod
    def describe(class_names: Sequence[str], settings: Mapping[str, Any]) -> DatasetInfo:
        """What a model is told, from the DATA_CONFIG alone."""
        return DatasetInfo(tuple(class_names), _COLUMNS)

    def features(self, room: int, rows: np.ndarray) -> np.ndarray:
        """Colour, and the share of the room's extent along each axis."""
        low, extent = self.lows[room], np.maximum(self.highs[room] - self.lows[room], 1e-6)
        return np.concatenate([rows[:, 3:6], (rows[:, :3] - low) / extent], axis=1)


def _read_once(path: Path, class_names: Sequence[str]) -> Iterable[Cloud]:
    """A room at its first file, nothing at the others: the pack watches all files."""
    return read_room(path, class_names) if path == annotations(path.parent.parent)[0] else []


def _areas(root: Path, split: str, test_areas: Sequence[int], val_areas: Sequence[int]) -> list[int]:
    """The areas of a split, in rising order."""
    if set(test_areas) & set(val_areas):
        raise ValueError(f"VAL_AREAS and TEST_AREAS share {sorted(set(test_areas) & set(val_areas))}")
    if split == "val" and not val_areas:
        raise ValueError("EVAL_SPLIT is val, but VAL_AREAS names no area")
    if split in ("test", "val"):
        return sorted(test_areas if split == "test" else val_areas)
    found = {int(p.name.removeprefix("Area_")) for p in root.glob("Area_*") if p.name.removeprefix("Area_").isdigit()}
    wanted = sorted(found - set(test_areas) - set(val_areas))
    if not wanted:
        raise ValueError(f"{root} holds no area to train on; there are {sorted(found) or 'none'} (folders Area_<n>)")
    return wanted
