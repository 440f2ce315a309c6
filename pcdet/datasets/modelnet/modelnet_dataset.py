"""ModelNet (Wu et al., "3D ShapeNets", 2015) as sampled clouds."""

import logging
import sys
from collections.abc import Sequence

import numpy as np

from pcdet.datasets import DATASETS
from pcdet.datasets.dataset import find_data_path
from pcdet.datasets.modelnet.augmentation import CloudAugmentation
from pcdet.datasets.modelnet.cache import cached_split
from pcdet.datasets.modelnet.cloud_dataset import CloudDataset, to_unit_sphere
from pcdet.datasets.modelnet.readers import NORMAL_COLUMNS, find_split
from pcdet.utils.registry import nearest


@DATASETS.register
class ModelNetDataset(CloudDataset):
    """Clouds of ``modelnet40_normal_resampled`` (text) or ``modelnet40_ply_hdf5_2048`` (HDF5), found by what is there.

    A cloud is the first NUM_POINTS rows of its file, centred and scaled into the unit sphere. Only clouds of the
    classes in CLASS_NAMES are used; a label is the position in that list.

    Options:
        data_path: the folder.
        variant: prefix of the lists, ``modelnet40`` or ``modelnet10``; ``simulated`` for simulated shapes.
        num_points: points of a cloud.
        use_normals: append the normals to the coordinates.
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
        use_normals: bool = False,
        augmentation: CloudAugmentation | None = None,
    ):
        super().__init__(
            class_names=class_names,
            training=training,
            seed=seed,
            logger=logger,
            num_points=num_points,
            point_features=("x", "y", "z", "nx", "ny", "nz")[: 6 if use_normals else 3],
            augmentation=augmentation,
        )
        root = find_data_path(data_path)
        split_name = "train" if training else "test"
        split = find_split(root, variant, split_name)
        for name in self.class_names:
            if name not in split.class_names:
                raise ValueError(f"CLASS_NAMES: {root} has no class '{name}'.{nearest(name, split.class_names)}")
        clouds = cached_split(split, num_points, root, logger, progress=sys.stderr.isatty())
        if use_normals and clouds.points.shape[2] < NORMAL_COLUMNS:
            raise ValueError(f"USE_NORMALS: the files of {root} hold no normals")
        self.use_normals = use_normals
        self.vectors = slice(3, 6) if use_normals else None
        self._keep(clouds.points, clouds.labels, clouds.ids, split.class_names)
        if len(self) == 0:
            raise ValueError(f"{root}: the split '{split_name}' holds no cloud of {list(self.class_names)}")
        logger.info("%s %s: %d clouds of %d classes", dataset, split_name, len(self), len(self.class_names))

    def _keep(self, points: np.ndarray, labels: np.ndarray, ids: Sequence[str], names: Sequence[str]) -> None:
        """Keep the clouds of wanted classes and number their labels by CLASS_NAMES."""
        wanted = {name: i for i, name in enumerate(self.class_names)}
        position = np.array([wanted.get(name, -1) for name in names])[labels]
        columns = NORMAL_COLUMNS if self.use_normals else 3
        kept = np.flatnonzero(position >= 0)
        self._points = points[kept, :, :columns]
        self._labels = position[kept]
        self._ids = [ids[i] for i in kept]

    @property
    def labels(self) -> np.ndarray:
        return self._labels

    def frame_id(self, index: int) -> str:
        return self._ids[index]

    def load_cloud(self, index: int, rng: np.random.Generator) -> np.ndarray:
        """The stored cloud in the unit sphere."""
        return to_unit_sphere(self._points[index])
