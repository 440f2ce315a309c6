"""PointNet++: two processes (Gloo) with synchronised batch norms equal one process with the whole batch.

The single process computes each level in one piece, the two ranks layer by layer with statistics of both.
"""

from pathlib import Path

import pytest
import torch
from pointnet2_rank_job import outcome

from pcdet.train_utils import tracking


@pytest.fixture(scope="module")
def found(run_ranks, tmp_path_factory):
    """What each rank found with 4 of 8 clouds, and what one process did with all 8."""
    folder = tmp_path_factory.mktemp("pointnet2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracking, "draw_history", lambda history, folder: None)  # pictures are tested elsewhere
        alone = outcome(folder / "alone", 8)
    run_ranks(Path(__file__).with_name("pointnet2_rank_job.py"), folder, timeout=200)
    return [torch.load(folder / f"rank{r}.pth", weights_only=True) for r in (0, 1)], alone


def test_ranks_agree_to_the_bit(found):
    (zero, one), _ = found
    for key in zero:
        assert torch.equal(zero[key], one[key]), key


# Gradients after some steps: the weights differ by rounding then, and what is near zero changes sides of a ReLU.
LIMITS = {"losses": 1e-5, "first": 2e-4, "last": 2e-3, "weights": 1e-4, "statistics": 1e-4, "logits": 1e-4}


@pytest.mark.parametrize("key", LIMITS)
def test_two_ranks_equal_one(found, key):
    (zero, _), alone = found
    distance = (zero[key] - alone[key]).abs().max() / alone[key].abs().max()
    assert distance < LIMITS[key]


def test_they_learned(found):
    """So that the weights that are compared are not those of the beginning."""
    losses = found[1]["losses"]
    assert losses[-1] < 0.8 * losses[0]
