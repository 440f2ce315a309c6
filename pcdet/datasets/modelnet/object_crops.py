"""Labelled clouds of varying size in one NPZ file: the format for your own objects.

The file holds

========== ============= =====================================================================================
key        shape         meaning
========== ============= =====================================================================================
points     (N, 3 + C)    float32, the points of all clouds one after another: x y z in metres, then C features
offsets    (M + 1,)      int64, cloud i is ``points[offsets[i]:offsets[i + 1]]``; at least 1 point each
label      (M,)          integers, index into ``classes``
classes    (L,)          text, names of the classes
is_train   (M,)          bool, which clouds are trained on; the others are tested on
========== ============= =====================================================================================

Other keys are ignored. ``numpy.savez(path, points=..., offsets=..., ...)`` writes it.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pcdet.datasets import DATASETS
from pcdet.datasets.dataset import find_data_path
from pcdet.datasets.whole_clouds.augmentation import CloudAugmentation
from pcdet.datasets.whole_clouds.classified import ClassifiedClouds
from pcdet.datasets.whole_clouds.cloud_dataset import to_unit_sphere
from pcdet.datasets.whole_clouds.selection import EvalSplit, choose_points, part_of_training, source_split
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.utils.registry import nearest

_KEYS = ("points", "offsets", "label", "classes", "is_train")


@DATASETS.register
class ObjectCropsDataset(ClassifiedClouds):
    """Objects cut out of LiDAR scans, resampled to equally many points.

    In training NUM_POINTS points are drawn at random, without repetition where there are enough; in evaluation they
    are spread evenly over the file's order, and repeated in turn where there are too few.

    Options:
        data_path: the NPZ file.
        num_points: points of a cloud.
        features: how many of the columns after x y z are kept, such as 1 for intensity.
        normalize: ``unit_sphere`` makes all clouds equally large; ``metres`` centres them and divides by ``scale``,
            so that their size can be learned.
        scale: metres that become 1 with ``normalize: metres``.
        hold_out: share of every class of the training set that is not trained on, to choose an epoch by.
        eval_split: what is evaluated: ``test``, ``val`` (what is held out) or ``train``.
        augmentation: what is done in training.

    Raises:
        FileNotFoundError: if the file does not exist; the message lists the places tried.
        ValueError: if it is not such a file, holds no cloud of a wanted class, or has too few columns.
    """

    def __init__(
        self,
        *,
        class_names: Sequence[str],
        training: bool,
        seed: int,
        logger: logging.Logger,
        dataset: str = "ObjectCropsDataset",
        data_path: str,
        num_points: int = 256,
        features: int = 0,
        normalize: Literal["unit_sphere", "metres"] = "metres",
        scale: float = 2.0,
        hold_out: float = 0.0,
        eval_split: EvalSplit = "test",
        augmentation: CloudAugmentation | None = None,
    ):
        path = find_data_path(data_path, file=True)
        data = read_crops(path)
        columns = data["points"].shape[1]
        if not 0 <= features <= columns - 3:
            raise ValueError(f"FEATURES is {features}, but {path} has {columns - 3} columns after x y z")
        if scale <= 0:
            raise ValueError(f"SCALE is {scale} metres; it must be above 0")
        super().__init__(
            info=self.describe(class_names, {"FEATURES": features}),
            training=training,
            seed=seed,
            logger=logger,
            num_points=num_points,
            augmentation=augmentation,
        )
        self.normalize, self.scale = normalize, scale
        self._points = data["points"][:, : 3 + features].astype(np.float32)
        self._offsets = data["offsets"]
        source = source_split(training, eval_split)
        self._rows, self._labels = self._select(data, path, source)
        if source == "train":
            part = part_of_training(self._labels, hold_out, training=training, split=eval_split)
            self._rows, self._labels = self._rows[part], self._labels[part]
        logger.info("%s %s: %d clouds", dataset, "train" if training else eval_split, len(self))

    @staticmethod
    def describe(class_names: Sequence[str], settings: dict[str, Any]) -> DatasetInfo:
        """What a model is told, from the DATA_CONFIG alone."""
        features = tuple(f"feature_{i}" for i in range(settings.get("FEATURES", 0)))
        return DatasetInfo(tuple(class_names), ("x", "y", "z", *features))

    def _select(self, data: Mapping[str, np.ndarray], path: Path, source: str) -> tuple[np.ndarray, np.ndarray]:
        """(M,) which clouds of the file belong to a split and a wanted class, and (M,) their labels."""
        names = [str(name) for name in data["classes"]]
        for name in self.class_names:
            if name not in names:
                raise ValueError(f"CLASS_NAMES: {path} has no class '{name}'.{nearest(name, names)}")
        wanted = {name: i for i, name in enumerate(self.class_names)}
        labels = np.array([wanted.get(name, -1) for name in names])[data["label"].astype(np.int64)]
        rows = np.flatnonzero((labels >= 0) & (data["is_train"].astype(bool) == (source == "train")))
        if len(rows) == 0:
            raise ValueError(f"{path} holds 0 {source} clouds of {list(self.class_names)} (see is_train)")
        return rows, labels[rows]

    @property
    def labels(self) -> np.ndarray:
        return self._labels

    def frame_id(self, index: int) -> str:
        return f"{self._rows[index]:06d}"

    def load_cloud(self, index: int, rng: np.random.Generator) -> np.ndarray:
        """The cloud with NUM_POINTS points, normalised."""
        row = self._rows[index]
        cloud = self._points[self._offsets[row] : self._offsets[row + 1]]
        cloud = cloud[choose_points(len(cloud), self.num_points, rng if self.training else None)]
        if self.normalize == "unit_sphere":
            return to_unit_sphere(cloud)
        cloud[:, :3] = (cloud[:, :3] - cloud[:, :3].mean(axis=0)) / self.scale
        return cloud


def read_crops(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file of labelled clouds. Raises ``ValueError`` that names the file and what is wrong in it."""
    try:
        with np.load(path) as stored:
            data = {key: stored[key] for key in _KEYS}
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"{path} is not an NPZ file with the keys {', '.join(_KEYS)}: {error}") from error
    points, offsets, label = data["points"], data["offsets"], data["label"]
    clouds = len(label)
    if points.ndim != 2 or points.shape[1] < 3:
        raise ValueError(f"{path}: points should be (N, 3 + C), not {points.shape}")
    if offsets.shape != (clouds + 1,) or data["is_train"].shape != (clouds,):
        raise ValueError(f"{path}: {clouds} labels need {clouds + 1} offsets and {clouds} is_train")
    if offsets[0] != 0 or offsets[-1] != len(points) or (np.diff(offsets) < 1).any():
        raise ValueError(f"{path}: offsets should rise from 0 to {len(points)}, with at least 1 point a cloud")
    if clouds and (label.min() < 0 or label.max() >= len(data["classes"])):
        raise ValueError(f"{path}: label holds {label.max()}, but there are {len(data['classes'])} classes")
    finite = np.isfinite(points).all(axis=1)
    if not finite.all():
        cloud = int(np.searchsorted(offsets, finite.argmin(), side="right")) - 1
        raise ValueError(f"{path}: cloud {cloud} has a NaN or infinite number")
    return data
