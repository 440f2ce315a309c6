"""ModelNet (Wu et al., "3D ShapeNets", 2015) as sampled clouds."""

import functools
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from pcdet.datasets import DATASETS
from pcdet.datasets.dataset import find_data_path
from pcdet.datasets.modelnet.readers import COLUMNS, find_split, read_file
from pcdet.datasets.whole_clouds.augmentation import CloudAugmentation
from pcdet.datasets.whole_clouds.classified import ClassifiedClouds
from pcdet.datasets.whole_clouds.cloud_dataset import to_unit_sphere
from pcdet.datasets.whole_clouds.packs import Pack, packed
from pcdet.datasets.whole_clouds.selection import EvalSplit, PointChoice, PointChooser, part_of_training, source_split
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.utils.registry import nearest


@DATASETS.register
class ModelNetDataset(ClassifiedClouds):
    """Clouds of ``modelnet40_normal_resampled`` (text) or ``modelnet40_ply_hdf5_2048`` (HDF5), found by what is there.

    A cloud is centred and scaled into the unit sphere after its points were chosen. Only clouds of the classes in
    CLASS_NAMES are used; a label is the position in that list.

    Options:
        data_path: the folder.
        variant: prefix of the lists, ``modelnet40`` or ``modelnet10``; ``simulated`` for simulated shapes.
        num_points: points of a cloud.
        point_choice: which points of a file: the ``first`` ones as in the published code, ``random`` ones (in
            evaluation evenly spread over the file), or those of furthest point sampling (``fps``).
        use_normals: append the normals to the coordinates.
        hold_out: share of every class of the training set that is not trained on, to choose an epoch by.
        eval_split: what is evaluated: ``test``, ``val`` (what is held out) or ``train``.
        augmentation: what is done in training.

    Raises:
        FileNotFoundError: if the folder does not exist.
        ValueError: if it holds no such data (the message lists what it holds), or a file is damaged.
    """

    def __init__(
        self,
        *,
        class_names: Sequence[str],
        training: bool,
        seed: int,
        logger: logging.Logger,
        dataset: str = "ModelNetDataset",
        data_path: str,
        variant: str = "modelnet40",
        num_points: int = 1024,
        point_choice: PointChoice = "first",
        use_normals: bool = False,
        hold_out: float = 0.0,
        eval_split: EvalSplit = "test",
        augmentation: CloudAugmentation | None = None,
    ):
        super().__init__(
            info=self.describe(class_names, {"USE_NORMALS": use_normals}),
            training=training,
            seed=seed,
            logger=logger,
            num_points=num_points,
            augmentation=augmentation,
        )
        root = find_data_path(data_path)
        source = source_split(training, eval_split)
        split = find_split(root, variant, source)
        for name in self.class_names:
            if name not in split.class_names:
                raise ValueError(f"CLASS_NAMES: {root} has no class '{name}'.{nearest(name, split.class_names)}")
        read = functools.partial(read_file, split=split)
        self.pack = packed(f"{variant}_{source}", split.files, read, root, logger, split.class_names)
        if use_normals and self.pack.points.shape[1] < len(COLUMNS):
            raise ValueError(f"USE_NORMALS: the files of {root} hold no normals")
        self.use_normals = use_normals
        self.vectors = slice(3, 6) if use_normals else None
        self._labels, self._kept = _wanted(self.pack, split.class_names, self.class_names)
        if source == "train":
            part = part_of_training(self._labels, hold_out, training=training, split=eval_split)
            self._labels, self._kept = self._labels[part], self._kept[part]
        if len(self) == 0:
            raise ValueError(f"{root}: the split '{source}' holds no cloud of {list(self.class_names)}")
        self.choose = PointChooser(self.pack, num_points, point_choice)
        what = "train" if training else eval_split
        logger.info("%s %s: %d clouds of %d classes", dataset, what, len(self), len(self.class_names))

    @staticmethod
    def describe(class_names: Sequence[str], settings: dict[str, Any]) -> DatasetInfo:
        """What a model is told, from the DATA_CONFIG alone."""
        return DatasetInfo(tuple(class_names), COLUMNS[: 6 if settings.get("USE_NORMALS") else 3])

    @property
    def labels(self) -> np.ndarray:
        return self._labels

    def frame_id(self, index: int) -> str:
        return self.pack.names[self._kept[index]]

    def load_cloud(self, index: int, rng: np.random.Generator) -> np.ndarray:
        """The stored cloud in the unit sphere."""
        position = self._kept[index]
        rows = self.choose(position, rng if self.training else None)
        return to_unit_sphere(self.pack.cloud(position)[rows, : 6 if self.use_normals else 3])


def _wanted(pack: Pack, names: Sequence[str], class_names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Labels by ``class_names`` and positions in the pack of the clouds of these classes. -> (M,), (M,)"""
    position = {name: i for i, name in enumerate(class_names)}
    labels = np.array([position.get(name, -1) for name in names])[pack.labels]
    kept = np.flatnonzero(labels >= 0)
    return labels[kept], kept
