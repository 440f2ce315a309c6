"""A data set and a model that are small enough to train in milliseconds, yet have BatchNorm and dropout."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pcdet.evaluation.report import EvalReport
from pcdet.models.losses.normalizer import normalizer
from pcdet.structures.detections import ClassScores, TrainOutput


class FakeScenes:
    """Two-class clouds of four numbers; items draw from (seed, epoch, index) as real data sets do."""

    def __init__(self, length: int = 10, *, seed: int = 0, noise: float = 0.1, bad: Sequence[int] = ()):
        self.length = length
        self.seed = seed
        self.noise = noise
        self.bad = set(bad)
        self.epoch = 0

    def __len__(self) -> int:
        return self.length

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> dict[str, Any]:
        rng = np.random.default_rng([self.seed, self.epoch, index])
        label = index % 2
        x = np.linspace(-1, 1, 4) * (2 * label - 1) + 0.05 * index + self.noise * rng.standard_normal(4)
        if index in self.bad:
            x[0] = np.nan
        return {"frame_id": f"{index:06d}", "index": index, "x": x.astype(np.float32), "label": label}

    @staticmethod
    def collate(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            "batch_size": len(items),
            "frame_id": [i["frame_id"] for i in items],
            "index": [i["index"] for i in items],
            "x": torch.from_numpy(np.stack([i["x"] for i in items])),  # (B, 4)
            "label": torch.tensor([i["label"] for i in items]),  # (B,)
        }

    def to_results(self, batch: dict[str, Any], predictions: ClassScores) -> list[dict[str, Any]]:
        rows = predictions.logits.cpu().numpy()
        found = zip(batch["frame_id"], batch["index"], rows, strict=True)
        return [{"frame_id": name, "index": index, "logits": row} for name, index, row in found]

    def evaluate(self, results: Sequence[dict[str, Any]], *, score_threshold: float = 0.5) -> EvalReport:
        right = [int(r["logits"].argmax()) == r["index"] % 2 for r in results]
        metrics = {"accuracy": float(np.mean(right)), "threshold": score_threshold}
        return EvalReport(metrics, f"accuracy {np.mean(right):.3f}")

    def metric_names(self) -> set[str]:
        return {"accuracy", "threshold"}

    def write_results(self, results: Sequence[dict[str, Any]], folder) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ids.txt").write_text("\n".join(r["frame_id"] for r in results))


class FakeModel(nn.Module):
    """A two-layer classifier; ``dropout`` and ``norm`` can be left out. ``by_positives``: as losses of detectors are,
    the sum over the clouds of class 1, by their number."""

    def __init__(self, *, norm: bool = True, dropout: float = 0.3, by_positives: bool = False):
        super().__init__()
        self.by_positives = by_positives
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.drop = nn.Dropout(dropout)
        self.last = nn.Linear(8, 2)
        self.register_buffer("global_step", torch.zeros(1, dtype=torch.int64))  # as our models do

    def forward(self, batch: dict[str, Any]) -> TrainOutput | ClassScores:
        logits = self.last(self.drop(torch.relu(self.norm(self.first(batch["x"])))))  # (B, 2)
        if not self.training:
            return ClassScores(logits)
        loss = nn.functional.cross_entropy(logits, batch["label"])
        if self.by_positives:
            terms = nn.functional.cross_entropy(logits, batch["label"], reduction="none")
            loss = (terms * batch["label"]).sum() / normalizer(batch["label"].sum())
        accuracy = (logits.argmax(1) == batch["label"]).float().mean()
        return TrainOutput({"cls_loss": loss, "reg_loss": 0.01 * logits.square().mean()}, {"accuracy": accuracy})


def fresh_model(**options: Any) -> FakeModel:
    """Equal weights every time."""
    torch.manual_seed(0)
    return FakeModel(**options)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of everything a model holds."""
    return {k: v.clone() for k, v in model.state_dict().items()}
