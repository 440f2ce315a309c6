"""What the tests on a GPU share. Without one they are skipped; PCDET_GPU_TESTS_ON=cpu runs their logic on a CPU."""

import os
import sys
from pathlib import Path

import pytest
import torch

from pcdet.train_utils import engine
from pcdet.train_utils.tracking import Tracker

for folder in ("models", "train_utils"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / folder))


@pytest.fixture(scope="session")
def accelerator() -> torch.device:
    """The device under test; float32 products are computed in full, so that they may be compared with a CPU's."""
    name = os.environ.get("PCDET_GPU_TESTS_ON", "cuda")
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return torch.device(name)


@pytest.fixture(autouse=True)
def no_curves(monkeypatch):
    """Numbers are all that is looked at, and a machine without a package index may lack one for curves."""
    monkeypatch.setattr(engine, "Tracker", lambda folder: Tracker(None))
