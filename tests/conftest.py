"""Fixtures that every test may use."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def shared_folder() -> Path:
    """The folder of recorded numbers and real frames; it need not exist."""
    return Path(os.environ.get("PCDET_SHARED", ROOT.parent / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recorded numbers and real frames; tests that need it are skipped where it is absent."""
    folder = shared_folder()
    if not folder.is_dir():
        pytest.skip(f"needs recorded data: {folder} is absent (set PCDET_SHARED)")
    return folder


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the checkout."""
    return ROOT
