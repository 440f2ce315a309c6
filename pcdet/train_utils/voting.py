"""Evaluation by the sum of the scores of several views of every cloud."""

from pathlib import Path
from typing import TYPE_CHECKING

from pcdet.train_utils.batches import evaluation_loader
from pcdet.train_utils.evaluate import Evaluator, in_order, predict
from pcdet.utils import distributed as ranks
from pcdet.utils.files import write_json, write_text

if TYPE_CHECKING:
    from pcdet.evaluation.report import EvalReport


def evaluate_votes(evaluator: Evaluator, count: int, folder: Path) -> "EvalReport":
    """Show the model ``count`` views of every cloud and measure what the sums of its scores say.

    The data set makes the views (``set_vote``) and adds up (``add_votes``). Metrics and report go into ``folder``.
    """
    dataset, parts = evaluator.dataset, []
    try:
        for number in range(count):
            dataset.set_vote(number, count)
            loader = evaluation_loader(dataset, evaluator.batch_size, evaluator.workers, evaluator.device)
            mine = predict(evaluator.model, loader, dataset, evaluator.device, bar=evaluator.bar and ranks.is_main())
            parts.append(in_order(ranks.gather_objects(mine), len(dataset)))
    finally:
        dataset.set_vote(None)
    report = dataset.evaluate(dataset.add_votes(parts))
    if ranks.is_main():
        write_json(folder / "metrics.json", report.metrics)
        write_text(folder / "report.txt", report.text + "\n")
    return report
