"""Data sets of clouds with one class each."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pcdet.datasets.whole_clouds.cloud_dataset import CloudDataset, Example
from pcdet.structures.batch import Batch
from pcdet.structures.detections import ClassScores
from pcdet.utils.files import write_json

if TYPE_CHECKING:
    from pcdet.evaluation.report import EvalReport


class ClassifiedClouds(CloudDataset):
    """Equally long clouds with one class each. A subclass names the labels and loads a cloud."""

    turned_votes = True  # votes see a cloud from all sides

    @property
    @abstractmethod
    def labels(self) -> np.ndarray:
        """(M,) int64, the 0-based class of every cloud."""

    @abstractmethod
    def load_cloud(self, index: int, rng: np.random.Generator) -> np.ndarray:
        """(N, C) float32, normalised, N = NUM_POINTS; ``rng`` is drawn from in training only."""

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, index: int, rng: np.random.Generator) -> Example:
        """The cloud with ``class_labels``, its class."""
        return Example(self.load_cloud(index, rng), {"class_labels": int(self.labels[index])})

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

    def add_votes(self, votes: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
        """Results of several votes -> one result a cloud with the sum of the logits."""
        out = []
        for same in zip(*votes, strict=True):
            logits = np.sum([result["logits"] for result in same], axis=0)
            out.append({**same[0], "logits": logits, "name": self.class_names[int(logits.argmax())]})
        return out

    def evaluate(self, results: Sequence[Mapping[str, Any]]) -> "EvalReport":
        """Overall and mean class accuracy of one result a cloud."""
        from pcdet.evaluation.classification import evaluate

        ordered = sorted(results, key=lambda result: result["index"])
        labels = self.labels[[result["index"] for result in ordered]]
        logits = np.array([result["logits"] for result in ordered]).reshape(-1, len(self.class_names))
        return evaluate(labels, logits, self.class_names)

    def metric_names(self) -> set[str]:
        """Every metric that :meth:`evaluate` may give."""
        from pcdet.evaluation.classification import metric_names

        return metric_names(self.class_names)

    def confusion(self, results: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """(K, K) true classes in rows."""
        from pcdet.evaluation.classification import confusion_matrix

        called = np.array([np.argmax(result["logits"]) for result in results], dtype=np.int64)
        labels = self.labels[[result["index"] for result in results]]
        return confusion_matrix(labels, called, len(self.class_names))

    def write_results(self, results: Sequence[Mapping[str, Any]], folder: str | Path) -> None:
        """Write ``results.json``: for every cloud its name, true and predicted class, and the logits."""
        ordered = sorted(results, key=lambda result: result["index"])
        truth = [self.class_names[int(self.labels[result["index"]])] for result in ordered]
        rows = [{**result, "truth": name} for result, name in zip(ordered, truth, strict=True)]
        write_json(Path(folder) / "results.json", rows)
