"""ScanNet (Dai et al. 2017) as the pickles that PointNet++ was published with."""

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pcdet.datasets import DATASETS
from pcdet.datasets.dataset import find_data_path
from pcdet.datasets.whole_clouds.augmentation import CloudAugmentation
from pcdet.datasets.whole_clouds.blocks import RoomBlocks, class_weights
from pcdet.datasets.whole_clouds.packs import Cloud, Pack, packed
from pcdet.datasets.whole_clouds.selection import EvalSplit, part_of_training, source_split
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.utils.files import read_pickles


@DATASETS.register
class ScanNetDataset(RoomBlocks):
    """Blocks of scans without colour, from ``scannet_train.pickle`` and ``scannet_test.pickle``.

    Each file holds two pickled lists: points (N, 3) of every scan, and labels (N,) from 0 to K, 0 being a point that
    nobody labelled: it is neither learned nor counted. Label 1 is the first of CLASS_NAMES.

    Options:
        data_path: the folder.
        hold_out: share of the training scans that is not trained on, to choose an epoch by.
        eval_split: what is evaluated: ``test``, ``val`` (what is held out) or ``train``.
        num_points: points of a block.
        block_size: metres.
        weigh_classes: whether rare classes weigh more in the loss, ``1 / log(1.2 + share)``.
        augmentation: what is done in training.

    Raises:
        FileNotFoundError: if the folder or a file does not exist.
        ValueError: if a file holds something else, or ``val`` is evaluated and nothing is held out.
    """

    def __init__(
        self,
        *,
        class_names: Sequence[str],
        training: bool,
        seed: int,
        logger: logging.Logger,
        dataset: str = "ScanNetDataset",
        data_path: str,
        hold_out: float = 0.0,
        eval_split: EvalSplit = "test",
        num_points: int = 8192,
        block_size: float = 1.5,
        weigh_classes: bool = True,
        augmentation: CloudAugmentation | None = None,
    ):
        root = find_data_path(data_path)
        source = source_split(training, eval_split)
        file = root / f"scannet_{source}.pickle"
        if not file.is_file():
            found = ", ".join(sorted(p.name for p in root.iterdir())[:12]) or "nothing"
            raise FileNotFoundError(f"{file} is absent; {root} holds {found}")
        read = functools.partial(_read_scans, num_class=len(class_names))
        pack = packed(f"scannet_{source}", [file], read, root, logger, [len(class_names)])
        if source == "train":
            part = part_of_training(pack.labels, hold_out, training=training, split=eval_split)
            pack = _only(pack, part) if len(part) < len(pack) else pack
        weights = class_weights(pack, len(class_names)) if training and weigh_classes else None
        super().__init__(
            info=DatasetInfo(tuple(class_names), ("x", "y", "z"), class_weights=weights),
            pack=pack,
            training=training,
            seed=seed,
            logger=logger,
            num_points=num_points,
            block_size=block_size,
            augmentation=augmentation,
        )
        logger.info("%s %s: %d blocks of %d scans", dataset, source if training else eval_split, len(self), len(pack))

    @staticmethod
    def describe(class_names: Sequence[str], settings: Mapping[str, Any]) -> DatasetInfo:
        """What a model is told, from the DATA_CONFIG alone; the weights of classes follow from the data."""
        return DatasetInfo(tuple(class_names), ("x", "y", "z"))

    def features(self, room: int, rows: np.ndarray) -> np.ndarray:
        """None: (N, 0)."""
        return rows[:, 3:]


def _read_scans(path: Path, num_class: int) -> Iterator[Cloud]:
    lists = read_pickles(path)
    if len(lists) != 2 or len(lists[0]) != len(lists[1]):
        raise ValueError(f"{path} should hold two lists of equal length, points and labels of every scan")
    for i, (points, labels) in enumerate(zip(*lists, strict=True)):
        points, labels = np.asarray(points), np.asarray(labels).astype(np.int64)
        if points.ndim != 2 or points.shape[1] != 3 or labels.shape != points.shape[:1] or len(labels) == 0:
            raise ValueError(f"{path}: scan {i} has points {points.shape} and labels {labels.shape}, not (N, 3), (N,)")
        if not np.isfinite(points).all():
            raise ValueError(f"{path}: scan {i} has a NaN or infinite number")
        if labels.min() < 0 or labels.max() > num_class:
            raise ValueError(f"{path}: scan {i} has the label {labels.max()}, but CLASS_NAMES lists {num_class}")
        yield Cloud(f"scan_{i:04d}", points.astype(np.float32), 0, labels - 1)


def _only(pack: Pack, part: np.ndarray) -> Pack:
    """The pack's clouds ``part``, copied."""
    lengths = np.diff(pack.offsets)[part]
    return Pack(
        np.concatenate([pack.cloud(i) for i in part]),
        np.concatenate([[0], np.cumsum(lengths)]),
        pack.labels[part],
        tuple(pack.names[i] for i in part),
        np.concatenate([pack.labels_of_points(i) for i in part]),
    )
