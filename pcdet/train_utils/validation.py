"""What is measured on the validation set while a model trains, and what follows from it."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from pcdet.structures.batch import Batch, to_device
from pcdet.train_utils.batches import evaluation_loader
from pcdet.train_utils.evaluate import Evaluator, accepted, note_evaluated
from pcdet.train_utils.modes import keeping_modes, lossy_evaluation
from pcdet.train_utils.seeds import seed_everything
from pcdet.utils import distributed as ranks
from pcdet.utils.logging import get_logger
from pcdet.utils.registry import nearest

LOWER_IS_BETTER = ("loss", "error", "distance")


@torch.no_grad()
def validation_loss(model: nn.Module, loader: Iterable[Batch], device: torch.device, seed: int) -> dict[str, float]:
    """The training loss and its terms on other scenes, ``val/loss`` and ``val/<term>``: means over all ranks' scenes.

    The model runs as in training, so that targets are assigned and losses computed, but with BatchNorm's running
    statistics, which stay as they are, and without dropout. Proposals are sampled from ``seed``, equally every time.
    Unlike training it averages over scenes, not over batches. Raises ``ValueError`` if the scenes have no labels.
    """
    sums: dict[str, float] = {}
    scenes = 0
    with keeping_modes(model):
        lossy_evaluation(model)
        for batch in loader:
            seed_everything(seed, int(batch["index"][0]))
            try:
                losses = model(to_device(batch, device)).losses
            except KeyError as error:
                raise ValueError(f"--val_loss: the validation set has no {error}, from which losses follow") from error
            terms = {**losses, "loss": torch.stack([term.float() for term in losses.values()]).sum()}
            for name, value in terms.items():
                sums[name] = sums.get(name, 0.0) + float(value) * batch["batch_size"]
            scenes += batch["batch_size"]
    parts = ranks.gather_objects((sums, scenes))
    total = max(sum(count for _, count in parts), 1)
    names = next((part for part, count in parts if count), {})
    return {f"val/{name}": sum(part.get(name, 0.0) for part, _ in parts) / total for name in names}


@dataclass
class Best:
    """The best value of a metric so far."""

    value: float = math.nan
    epoch: int = 0
    without_gain: int = 0  # evaluations since then


class Verdict(NamedTuple):
    """What follows from an evaluation."""

    metrics: Mapping[str, float]
    improved: bool = False
    stop: bool = False


@dataclass
class Monitor:
    """Evaluates every ``interval`` epochs and after the last one, and remembers the best value of ``metric``.

    What is found goes to ``folder/epoch_N/split``, as that of :func:`~pcdet.train_utils.evaluate.evaluate_files`.

    ``metric`` is a name of the report, such as ``Car_3d/moderate_R40``, or ``val/loss``. One whose name speaks of a
    loss, an error or a distance is better when it is lower, any other when it is higher. With ``patience`` the run
    stops after so many evaluations in a row without a better value.
    """

    evaluator: Evaluator
    folder: Path
    interval: int = 1
    metric: str | None = None
    patience: int | None = None
    with_metrics: bool = True
    with_loss: bool = False
    seed: int = 0
    split: str = "test"
    evaluated: set[str] = field(default_factory=set)  # epochs whose metrics this process has computed

    def __post_init__(self):
        if self.interval < 1 or (self.patience is not None and self.patience < 1):
            raise ValueError("--eval_interval and --early_stop count epochs and evaluations: at least 1")
        self.best = Best()

    def require_metric(self) -> None:
        """Raise ``ValueError``, before anything is trained for it, if no evaluation can give ``metric``.

        The names of losses are known when a batch was tried. All ranks call this together.
        """
        if self.metric is None:
            return
        e = self.evaluator
        if self.metric.startswith("val/"):
            loader = evaluation_loader(e.dataset, e.batch_size, 0, e.device)
            known: Collection[str] = validation_loss(e.model, islice(loader, 1), e.device, self.seed)
        else:
            known = e.dataset.metric_names(**accepted(e.dataset.metric_names, e.options))
        if self.metric not in known:
            hint = nearest(self.metric, known) if known else " There are none: the split has no labels."
            raise ValueError(f"--best_metric: no metric is called {self.metric}.{hint}")

    def is_due(self, epoch: int, is_last: bool) -> bool:
        """Is there an evaluation after ``epoch`` epochs?"""
        return is_last or epoch % self.interval == 0

    def after_epoch(self, epoch: int, is_last: bool) -> Verdict:
        """Evaluate after ``epoch`` epochs if that is due. All ranks call this together and get the same answer."""
        if not self.is_due(epoch, is_last):
            return Verdict({})
        metrics = self._measure(epoch)
        return Verdict(metrics) if self.metric is None else self._judge(epoch, metrics)

    def _measure(self, epoch: int) -> dict[str, float]:
        metrics: dict[str, float] = {}
        e = self.evaluator
        if self.with_metrics:
            report = e(self.folder / f"epoch_{epoch}" / self.split).report
            get_logger().info("*************** Performance of EPOCH %d *****************\n%s", epoch, report.text)
            if ranks.is_main():
                note_evaluated(self.folder, self.split, str(epoch))
            self.evaluated.add(str(epoch))
            metrics |= report.metrics
        if self.with_loss:
            loader = evaluation_loader(e.dataset, e.batch_size, e.workers, e.device)
            terms = validation_loss(e.model, loader, e.device, self.seed)
            listed = ", ".join(f"{name} {value:.4g}" for name, value in terms.items())
            get_logger().info("Validation after epoch %d: %s", epoch, listed)
            metrics |= terms
        return metrics

    def _judge(self, epoch: int, metrics: Mapping[str, float]) -> Verdict:
        value, best = metrics.get(self.metric, math.nan), self.best
        if self.metric not in metrics:
            get_logger().warning(
                "--best_metric %s: nothing stands behind it after epoch %d, no label or no detection",
                self.metric, epoch,
            )  # fmt: skip
        lower = any(word in self.metric.lower() for word in LOWER_IS_BETTER)
        is_first = math.isnan(best.value) and not math.isnan(value)
        if is_first or (value < best.value if lower else value > best.value):
            self.best = Best(value, epoch)
            get_logger().info("%s is %.6g after epoch %d: the best so far", self.metric, value, epoch)
            return Verdict(metrics, improved=True)
        best.without_gain += 1
        stop = self.is_exhausted()
        if stop:
            get_logger().info(
                "Stopping early: %s has not been better than %.6g (epoch %d) in %d evaluations",
                self.metric, best.value, best.epoch, best.without_gain,
            )  # fmt: skip
        return Verdict(metrics, stop=stop)

    def is_exhausted(self) -> bool:
        """Has patience run out?"""
        return stopped_early(self.state_dict(), self.metric, self.patience)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"metric": self.metric, **asdict(self.best)}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue with a saved best value, if it is one of the same metric."""
        if saved.get("metric") == self.metric:
            self.best = Best(saved["value"], saved["epoch"], saved["without_gain"])


def stopped_early(best: Mapping[str, Any], metric: str | None, patience: int | None) -> bool:
    """Has a run whose checkpoint holds ``best`` ended because ``metric`` did not improve?"""
    return patience is not None and best.get("metric") == metric and best.get("without_gain", 0) >= patience
