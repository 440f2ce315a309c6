"""Data sets of clouds with a class for every point."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pcdet.datasets.whole_clouds.cloud_dataset import CloudDataset
from pcdet.structures.batch import Batch
from pcdet.structures.detections import PointScores


class SegmentedClouds(CloudDataset):
    """Equally long clouds whose points have a class each; ``point_labels`` below 0 are neither learned nor counted.

    A result holds, for every point of a cloud, its class (``labels``) and the one it was given (``called``), int16.
    """

    turned_votes = False  # rooms and aligned objects have a front: votes differ in the order of the points

    @abstractmethod
    def allowed(self, index: int) -> np.ndarray:
        """(L,) the classes that a point of cloud ``index`` may have."""

    def to_results(self, batch: Batch, predictions: PointScores) -> list[dict[str, Any]]:
        """One result a cloud. With ``vote`` set it keeps the ``scores`` (N, L) of the allowed classes too."""
        logits = predictions.logits.detach().float().cpu().numpy()
        labels = batch["point_labels"].cpu().numpy().astype(np.int16)
        return [
            self._result(batch["frame_id"][i], int(batch["index"][i]), labels[i], logits[i])
            for i in range(batch["batch_size"])
        ]

    def _result(self, frame_id: str, index: int, labels: np.ndarray, logits: np.ndarray) -> dict[str, Any]:
        classes = self.allowed(index)
        scores = logits[:, classes]  # (N, L)
        kept = {}
        if self.vote is not None:  # back into the file's order
            places = np.argsort(self.vote_order(index))
            labels, scores = labels[places], scores[places]
            kept = {"scores": scores}
        called = classes[scores.argmax(axis=1)].astype(np.int16)
        return {"frame_id": frame_id, "index": index, "labels": labels, "called": called, **kept}

    def add_votes(self, votes: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
        """Results of several votes -> one result a cloud by the sum of the scores."""
        out = []
        for same in zip(*votes, strict=True):
            scores = np.sum([result["scores"] for result in same], axis=0)
            called = self.allowed(same[0]["index"])[scores.argmax(axis=1)].astype(np.int16)
            rest = {key: value for key, value in same[0].items() if key != "scores"}
            out.append({**rest, "called": called})
        return out

    def confusion(self, results: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """(K, K) true classes of points in rows."""
        from pcdet.evaluation.segmentation import count_points

        return count_points(results, len(self.class_names))

    def write_results(self, results: Sequence[Mapping[str, Any]], folder: str | Path) -> None:
        """Write ``<cloud>.txt`` each: a line ``label called`` for every point, as numbers of CLASS_NAMES."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for result in results:
            name = str(result["frame_id"]).replace("/", "_")
            np.savetxt(folder / f"{name}.txt", np.stack([result["labels"], result["called"]], axis=1), fmt="%d")
