"""Algorithms that give equal bits, and the names of those that do not."""

import logging
import warnings

import pytest
import torch

from pcdet.train_utils.determinism import be_deterministic, naming_operators
from pcdet.utils.logging import get_logger


@pytest.fixture
def deterministic(monkeypatch):
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark, torch.utils.deterministic.fill_uninitialized_memory
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # is put back, and kept by be_deterministic
    be_deterministic()
    yield
    torch.use_deterministic_algorithms(False)
    cudnn.deterministic, cudnn.benchmark, torch.utils.deterministic.fill_uninitialized_memory = before


def forbidden():
    """One of the operators without a deterministic form on any device."""
    torch.zeros(4).put_(torch.tensor([1, 1]), torch.tensor([1.0, 2.0]))


def test_an_operator_that_forbids_equal_reruns_is_named_once(deterministic, monkeypatch, caplog):
    logger = get_logger()
    monkeypatch.setattr(logger, "propagate", True)
    with caplog.at_level(logging.WARNING, logger=logger.name), naming_operators() as named:
        forbidden()
        forbidden()
    assert named == {"put_"}
    assert [r.message for r in caplog.records] == [
        "--fix_random_seed: put_ has no deterministic implementation on this device; reruns may differ"
    ]


def test_other_warnings_are_shown_as_ever(deterministic):
    with pytest.warns(UserWarning, match="something else"), naming_operators() as named:
        warnings.warn("something else", UserWarning, stacklevel=1)
    assert named == set()


def test_nothing_is_named_when_nothing_was_asked_for():
    with naming_operators() as named:
        forbidden()
    assert named == set()
