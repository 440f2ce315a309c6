"""The flow of a detection item: load, augment, process, collate."""

import abc
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from pcdet.datasets.augment import AUGMENTS, AugmentContext
from pcdet.datasets.augment.world import augmented
from pcdet.datasets.cloud_formats import CloudLayout
from pcdet.datasets.process import PROCESSORS, ProcessContext
from pcdet.datasets.transforms import Transform, build_transforms, select_boxes
from pcdet.structures.batch import Batch
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.structures.scene import Scene

ROOT = Path(__file__).resolve().parents[2]
Item = dict[str, Any]

# Arrays of an item that are joined along their first dimension, each row with its scene's index in front or not.
_INDEXED = ("points", "voxel_coords")
_JOINED = ("voxels", "voxel_num_points")


def find_data_path(data_path: str | Path, *, file: bool = False) -> Path:
    """A data set's folder, or its ``file``: tried below the working directory, the repository's root and its ``tools``.

    Raises ``FileNotFoundError`` that lists the places tried.
    """
    path = Path(data_path).expanduser()
    tried = [path] if path.is_absolute() else [place / path for place in (Path.cwd(), ROOT, ROOT / "tools")]
    for place in tried:
        if place.is_file() if file else place.is_dir():
            return place.resolve()
    places = "".join(f"\n  {place}" for place in dict.fromkeys(map(os.path.normpath, tried)))
    raise FileNotFoundError(
        f"The data {'file' if file else 'folder'} '{data_path}' (DATA_PATH) is not found. Tried:{places}\n"
        "Put or link it to one of these places, or name another one"
    )


class SceneDataset(Dataset, abc.ABC):
    """A data set of labelled point clouds. A subclass says how many scenes there are and loads one.

    Item ``i`` of epoch ``e`` draws from ``np.random.default_rng([seed, e, i])``, so that an item depends on neither
    the loader's workers nor the ranks.
    """

    def __init__(
        self,
        class_names: Sequence[str],
        training: bool,
        seed: int,
        logger: logging.Logger,
        *,
        root: Path,
        point_cloud_range: Sequence[float],
        point_feature_encoding: Mapping[str, Any],
        data_augmentor: Mapping[str, Any] | None,
        data_processor: Sequence[Mapping[str, Any]],
    ):
        self.class_names = tuple(class_names)
        self.training = training
        self.seed = seed
        self.epoch = 0
        self.logger = logger
        self.root = root
        self.point_cloud_range = checked_range(point_cloud_range)
        self.source_features, self.used_features = feature_names(point_feature_encoding)
        self.augmentors = self.build_augmentors(data_augmentor) if training and data_augmentor else []
        context = ProcessContext(training, self.point_cloud_range, self.used_features)
        self.processors: list[Transform] = build_transforms(PROCESSORS, data_processor, context, "DATA_PROCESSOR")
        self.info = self.describe(point_cloud_range)

    def build_augmentors(self, settings: Mapping[str, Any]) -> list[Transform]:
        """The augmentors of AUG_CONFIG_LIST that DISABLE_AUG_LIST does not name."""
        disabled = set(settings.get("DISABLE_AUG_LIST") or ())
        blocks = [b for b in settings.get("AUG_CONFIG_LIST") or () if b.get("NAME") not in disabled]
        context = AugmentContext(self.root, self.class_names, len(self.source_features), self.logger)
        return build_transforms(AUGMENTS, blocks, context, "DATA_AUGMENTOR.AUG_CONFIG_LIST")

    def describe(self, point_cloud_range: Sequence[float]) -> DatasetInfo:
        """What a model is told; the grid is the one of the last processor that lays one."""
        grid = next((p for p in reversed(self.processors) if hasattr(p, "grid_size")), None)
        if getattr(grid, "device_voxels", None) and self.processors[-1] is not grid:
            raise ValueError(
                "DATA_PROCESSOR: with DEVICE transform_points_to_voxels is done after all others, so it must stand last"
            )
        return DatasetInfo(
            class_names=self.class_names,
            point_features=self.used_features,
            point_cloud_range=tuple(float(v) for v in point_cloud_range),
            voxel_size=getattr(grid, "voxel_size", None),
            grid_size=getattr(grid, "grid_size", None),
            max_points_per_voxel=getattr(grid, "max_points_per_voxel", None),
            device_voxels=getattr(grid, "device_voxels", None),
        )

    def set_epoch(self, epoch: int) -> None:
        """Draw other random numbers from now on. In evaluation the draws stay those of epoch 0."""
        self.epoch = epoch if self.training else 0

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def load_scene(self, index: int) -> Scene:
        """Scene ``index`` as it is on disk, with the labels that can be learned from."""

    def allows_empty(self) -> bool:
        """May a training scene be without wanted boxes? Otherwise another one takes its place."""
        return False

    def __getitem__(self, index: int) -> Item:
        """One item: NumPy arrays and plain values, with the keys of a batch.

        A training scene whose boxes were all lost is replaced by one drawn without repetition from the others. Raises
        ``ValueError`` when no scene of the data set is left.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"scene {index} of a data set of {len(self)}")
        rng = np.random.default_rng([self.seed, self.epoch, index])
        item = self.prepare(index, rng)
        if self.is_usable(item):
            return item
        for other in rng.permutation(len(self)):
            item = self.prepare(int(other), rng)
            if self.is_usable(item):
                return item
        raise ValueError(
            f"0 usable objects: none of the {len(self)} scenes holds a box of {list(self.class_names)} within "
            f"POINT_CLOUD_RANGE {self.point_cloud_range.tolist()} after augmentation"
        )

    def is_usable(self, item: Item) -> bool:
        """Can this item be trained on? In evaluation every item is used."""
        if not self.training or self.allows_empty():
            return True
        return len(item["gt_boxes"]) > 0 and len(item["points"]) > 0

    def prepare(self, index: int, rng: np.random.Generator) -> Item:
        """Load, augment and process one scene."""
        return {**self.process(self.load_scene(index), rng), "index": index}

    def process(self, scene: Scene, rng: np.random.Generator) -> Item:
        """Augment and process a loaded scene."""
        scene = augmented(scene, self.augmentors, rng)
        if scene.gt_boxes is not None:
            scene = select_boxes(scene, np.array([name in self.class_names for name in scene.gt_names], dtype=bool))
        scene = self.encode(scene)
        for process in self.processors:
            scene = process(scene, rng)
        return self.to_item(scene)

    def encode(self, scene: Scene) -> Scene:
        """Keep the point columns of ``used_feature_list``, in its order."""
        if self.used_features == self.source_features:
            return scene
        columns = [self.source_features.index(name) for name in self.used_features]
        return scene.with_(points=scene.points[:, columns])

    def to_item(self, scene: Scene) -> Item:
        """A processed scene as an item; labels become the eighth column of ``gt_boxes``, counted from 1."""
        item: Item = {"frame_id": scene.frame_id, "points": scene.points.astype(np.float32, copy=False)}
        if scene.gt_boxes is not None:
            labels = np.array([self.class_names.index(n) + 1 for n in scene.gt_names], dtype=np.float32)
            item["gt_boxes"] = np.concatenate([scene.gt_boxes.astype(np.float32), labels[:, None]], axis=1)
        if scene.image_shape is not None:
            item["image_shape"] = scene.image_shape
        item["calib"] = scene.calib
        return item | scene.extras

    @staticmethod
    def collate(items: Sequence[Item]) -> Batch:
        """Items -> batch (the keys of ``pcdet.structures.batch``). A scene without points keeps its place."""
        batch: Batch = {"batch_size": len(items)}
        for key in items[0]:
            values = [item[key] for item in items]
            if key in _INDEXED:
                batch[key] = torch.from_numpy(with_index(values))
            elif key in _JOINED:
                batch[key] = torch.from_numpy(np.concatenate(values))
            elif key == "gt_boxes":
                batch[key] = pad_boxes(values)
            elif isinstance(values[0], np.ndarray):
                batch[key] = torch.from_numpy(np.stack(values))
            else:
                batch[key] = values
        return batch


def with_index(scenes: Sequence[np.ndarray]) -> np.ndarray:
    """B arrays (N_i, C) of one type -> (N, 1 + C) with the scene's index in front."""
    out = np.empty((sum(len(rows) for rows in scenes), 1 + scenes[0].shape[1]), dtype=scenes[0].dtype)
    start = 0
    for i, rows in enumerate(scenes):
        out[start : start + len(rows), 0] = i
        out[start : start + len(rows), 1:] = rows
        start += len(rows)
    return out


def pad_boxes(boxes: Sequence[np.ndarray]) -> torch.Tensor:
    """B arrays (M_i, 8) -> (B, max M_i, 8), padded with rows of zeros."""
    out = torch.zeros(len(boxes), max(len(b) for b in boxes), boxes[0].shape[1])
    for i, b in enumerate(boxes):
        out[i, : len(b)] = torch.from_numpy(b)
    return out


def checked_range(point_cloud_range: Sequence[float]) -> np.ndarray:
    """(6,) float32. Raises ``ValueError`` unless each minimum is below its maximum."""
    limits = np.array(point_cloud_range, dtype=np.float32)
    if limits.shape != (6,) or (limits[:3] >= limits[3:]).any():
        raise ValueError(
            f"POINT_CLOUD_RANGE should be [x_min, y_min, z_min, x_max, y_max, z_max], got {list(point_cloud_range)}"
        )
    return limits


def feature_names(encoding: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns of the file and the columns that are used, of a POINT_FEATURE_ENCODING.

    Raises ``ValueError`` for an unknown encoding, a column that the file lacks, or used columns not led by x y z.
    """
    kind = encoding.get("encoding_type", "absolute_coordinates_encoding")
    if kind != "absolute_coordinates_encoding":
        raise ValueError(
            f"POINT_FEATURE_ENCODING.encoding_type '{kind}' is not known: absolute_coordinates_encoding is"
        )
    source, used = tuple(encoding["src_feature_list"]), tuple(encoding["used_feature_list"])
    missing = [name for name in used if name not in source]
    if missing:
        raise ValueError(f"POINT_FEATURE_ENCODING: used_feature_list names {missing}, src_feature_list has {source}")
    for names in (source, used):
        if names[:3] != ("x", "y", "z"):
            raise ValueError(f"POINT_FEATURE_ENCODING: the first features are x, y, z, got {list(names)}")
    return source, used


def cloud_layout(encoding: Mapping[str, Any]) -> CloudLayout:
    """How the source features of a POINT_FEATURE_ENCODING are found in a file. Raises as :func:`feature_names`."""
    source, _ = feature_names(encoding)
    return CloudLayout(source, encoding.get("field_names") or {}, encoding.get("missing_values") or {})
