"""What data sets of single labelled clouds have in common: one item, one batch, one evaluation."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset

from pcdet.datasets.modelnet.augmentation import CloudAugmentation, CloudAugmentor
from pcdet.structures.batch import Batch
from pcdet.structures.dataset_info import DatasetInfo
from pcdet.structures.detections import ClassScores
from pcdet.utils.files import write_json

if TYPE_CHECKING:
    from pcdet.evaluation.report import EvalReport

Item = dict[str, Any]


class CloudDataset(Dataset, ABC):
    """Equally long clouds with one class each. A subclass says how many there are, loads one, and names its columns.

    Item ``i`` of epoch ``e`` draws from ``np.random.default_rng([seed, e, i])``; evaluation draws nothing.
    """

    vectors: slice | None = None  # columns of a loaded cloud that hold directions

    def __init__(
        self,
        *,
        class_names: Sequence[str],
        training: bool,
        seed: int,
        logger: logging.Logger,
        num_points: int,
        point_features: Sequence[str],
        augmentation: CloudAugmentation | None,
    ):
        if num_points < 1:
            raise ValueError(f"NUM_POINTS is {num_points}; a cloud needs at least 1 point")
        self.class_names = tuple(class_names)
        self.training = training
        self.seed = seed
        self.epoch = 0
        self.logger = logger
        self.num_points = num_points
        self.augment = CloudAugmentor(augmentation) if training and augmentation else None
        self.info = DatasetInfo(self.class_names, tuple(point_features))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    @abstractmethod
    def labels(self) -> np.ndarray:
        """(M,) int64, the 0-based class of every cloud."""

    @abstractmethod
    def frame_id(self, index: int) -> str:
        """Name of a cloud."""

    @abstractmethod
    def load_cloud(self, index: int, rng: np.random.Generator) -> np.ndarray:
        """(N, C) float32, normalised, N = NUM_POINTS; ``rng`` is drawn from in training only."""

    def set_epoch(self, epoch: int) -> None:
        """Draw other random numbers from now on. Evaluation draws none."""
        self.epoch = epoch

    def __getitem__(self, index: int) -> Item:
        """One item: ``point_clouds`` (N, C) float32 and ``class_labels`` with the name and index of the cloud."""
        if not 0 <= index < len(self):
            raise IndexError(f"cloud {index} of a data set of {len(self)}")
        rng = np.random.default_rng([self.seed, self.epoch, index])
        cloud = self.load_cloud(index, rng)
        if self.augment is not None:
            cloud = self.augment(cloud, self.vectors, rng)
        return {
            "frame_id": self.frame_id(index),
            "index": index,
            "point_clouds": np.ascontiguousarray(cloud, dtype=np.float32),
            "class_labels": int(self.labels[index]),
        }

    @staticmethod
    def collate(items: Sequence[Item]) -> Batch:
        """Items -> batch (the keys of ``pcdet.structures.batch``)."""
        return {
            "batch_size": len(items),
            "frame_id": [item["frame_id"] for item in items],
            "index": [item["index"] for item in items],
            "point_clouds": torch.from_numpy(np.stack([item["point_clouds"] for item in items])),
            "class_labels": torch.tensor([item["class_labels"] for item in items], dtype=torch.int64),
        }

    def to_results(self, batch: Batch, predictions: ClassScores) -> list[dict[str, Any]]:
        """One result a cloud: name, index, logits (K,) and the most likely class."""
        logits = predictions.logits.detach().float().cpu().numpy()
        return [
            {
                "frame_id": batch["frame_id"][i],
                "index": int(batch["index"][i]),
                "logits": row,
                "name": self.class_names[int(row.argmax())],
            }
            for i, row in enumerate(logits)
        ]

    def evaluate(self, results: Sequence[Mapping[str, Any]]) -> "EvalReport":
        """Overall and mean class accuracy of one result a cloud."""
        from pcdet.evaluation.classification import evaluate

        ordered = sorted(results, key=lambda result: result["index"])
        labels = self.labels[[result["index"] for result in ordered]]
        logits = np.array([result["logits"] for result in ordered]).reshape(-1, len(self.class_names))
        return evaluate(labels, logits, self.class_names)

    def write_results(self, results: Sequence[Mapping[str, Any]], folder: str | Path) -> None:
        """Write ``results.json``: for every cloud its name, true and predicted class, and the logits."""
        ordered = sorted(results, key=lambda result: result["index"])
        truth = [self.class_names[int(self.labels[result["index"]])] for result in ordered]
        rows = [{**result, "truth": name} for result, name in zip(ordered, truth, strict=True)]
        write_json(Path(folder) / "results.json", rows)


def to_unit_sphere(cloud: np.ndarray) -> np.ndarray:
    """Move the centroid of (N, 3 + C) to the origin and divide by the largest distance from it; other columns stay."""
    cloud = cloud.copy()
    cloud[:, :3] -= cloud[:, :3].mean(axis=0)
    radius = np.linalg.norm(cloud[:, :3], axis=1).max()
    if radius > 0:  # a cloud of one repeated point stays at the origin
        cloud[:, :3] /= radius
    return cloud
