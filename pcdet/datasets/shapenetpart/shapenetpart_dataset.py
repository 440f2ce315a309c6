"""ShapeNetPart (Yi et al., "A scalable active framework for region annotation", 2016)."""

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pcdet.datasets import DATASETS
from pcdet.datasets.dataset import find_data_path
from pcdet.datasets.shapenetpart.readers import COLUMNS, listed_files, read_categories, read_shape
from pcdet.datasets.whole_clouds.augmentation import CloudAugmentation
from pcdet.datasets.whole_clouds.cloud_dataset import Example, to_unit_sphere
from pcdet.datasets.whole_clouds.packs import packed
from pcdet.datasets.whole_clouds.segmented import SegmentedClouds
from pcdet.datasets.whole_clouds.selection import EvalSplit, PointChoice, PointChooser
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.utils.registry import nearest

if TYPE_CHECKING:
    from pcdet.evaluation.report import EvalReport


@DATASETS.register
class ShapeNetPartDataset(SegmentedClouds):
    """Objects of a known category, the parts of which are told apart.

    CLASS_NAMES are the categories. A model's classes are the parts of the first category, then those of the second,
    and so on; in evaluation a point is given one of its category's parts.

    Options:
        data_path: the folder with ``synsetoffset2category.txt``.
        parts: category -> the numbers that its parts have in the files.
        train_lists: which of the lists ``train`` and ``val`` are trained on; the published results use both.
        eval_split: which list is evaluated: ``test``, ``val`` (to choose an epoch by) or ``train``.
        num_points: points of a cloud.
        point_choice: ``random`` (in evaluation evenly spread over the file), ``first`` or ``fps``.
        use_normals: append the normals to the coordinates.
        augmentation: what is done in training.

    Raises:
        FileNotFoundError: if the folder does not exist.
        ValueError: if it holds no such data, a file is damaged, or ``val`` is both trained on and evaluated.
    """

    def __init__(
        self,
        *,
        class_names: Sequence[str],
        training: bool,
        seed: int,
        logger: logging.Logger,
        dataset: str = "ShapeNetPartDataset",
        data_path: str,
        parts: dict[str, Any],
        train_lists: Sequence[Literal["train", "val"]] = ("train",),
        eval_split: EvalSplit = "test",
        num_points: int = 2048,
        point_choice: PointChoice = "random",
        use_normals: bool = True,
        augmentation: CloudAugmentation | None = None,
    ):
        super().__init__(
            info=self.describe(class_names, {"PARTS": parts, "USE_NORMALS": use_normals}),
            training=training,
            seed=seed,
            logger=logger,
            num_points=num_points,
            augmentation=augmentation,
        )
        categories = self.info.category_names
        counts = [len(parts[name]) for name in categories]
        ends = np.cumsum(counts)
        self.parts_of = [np.arange(end - count, end) for end, count in zip(ends, counts, strict=True)]
        root = find_data_path(data_path)
        folders = read_categories(root)
        for name in categories:
            if name not in folders.values():
                raise ValueError(f"CLASS_NAMES: {root} has no category '{name}'.{nearest(name, folders.values())}")
        lists = _lists(training, train_lists, eval_split)
        files = [file for split in lists for file in listed_files(root, split, folders, categories)]
        if not files:
            raise ValueError(f"{root}: the lists {', '.join(lists)} hold no shape of {list(categories)}")
        first_class = [int(part[0]) for part in self.parts_of]
        read = functools.partial(
            read_shape, folders=folders, categories=categories, part_labels=parts, first_class=first_class
        )
        facts = (categories, [list(parts[name]) for name in categories])
        self.pack = packed("_".join(("shapenetpart", *lists)), files, read, root, logger, facts)
        self.choose = PointChooser(self.pack, num_points, point_choice)
        self.columns = self.info.num_point_features
        self.vectors = slice(3, 6) if use_normals else None
        logger.info("%s %s: %d clouds of %d categories", dataset, ", ".join(lists), len(self), len(categories))

    @staticmethod
    def describe(class_names: Sequence[str], settings: Mapping[str, Any]) -> DatasetInfo:
        """What a model is told, from the DATA_CONFIG alone. Raises ``ValueError`` for a category without PARTS."""
        parts = settings["PARTS"]
        for name in class_names:
            if not parts.get(name):
                raise ValueError(f"DATA_CONFIG.PARTS: the parts of '{name}' are not given")
        names = tuple(f"{name} {number}" for name in class_names for number in parts[name])
        columns = COLUMNS[: 6 if settings.get("USE_NORMALS", True) else 3]
        return DatasetInfo(names, columns, category_names=tuple(class_names))

    def __len__(self) -> int:
        return len(self.pack)

    def frame_id(self, index: int) -> str:
        return self.pack.names[index]

    def allowed(self, index: int) -> np.ndarray:
        return self.parts_of[self.pack.labels[index]]

    def load(self, index: int, rng: np.random.Generator) -> Example:
        """The cloud, scaled into the unit sphere as a whole, then its chosen points."""
        rows = self.choose(index, rng if self.training else None)
        cloud = to_unit_sphere(self.pack.cloud(index)[:, : self.columns])[rows]
        labels = np.asarray(self.pack.labels_of_points(index))[rows].astype(np.int64)
        return Example(cloud, {"point_labels": labels, "categories": int(self.pack.labels[index])})

    def evaluate(self, results: Sequence[Mapping[str, Any]]) -> "EvalReport":
        """Instance and class mean IoU."""
        from pcdet.evaluation.segmentation import evaluate_parts

        categories = self.pack.labels[[result["index"] for result in results]]
        names = self.info.category_names
        return evaluate_parts(results, categories, names, self.parts_of, self.class_names)

    def metric_names(self) -> set[str]:
        """Every metric that :meth:`evaluate` may give."""
        from pcdet.evaluation.segmentation import part_names

        return part_names(self.info.category_names)


def _lists(training: bool, train_lists: Sequence[str], split: EvalSplit) -> tuple[str, ...]:
    if training or split == "train":
        return tuple(train_lists)
    if split == "val" and "val" in train_lists:
        raise ValueError("EVAL_SPLIT is val, but TRAIN_LISTS trains on it: leave it out there to choose an epoch by it")
    return (split,)
