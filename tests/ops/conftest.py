"""Fixtures of the tests of Triton kernels: on a GPU if there is one, in Triton's interpreter otherwise."""

import importlib
import os
from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from pcdet.ops import doors


@pytest.fixture(scope="session")
def device() -> str:
    """Where Triton kernels can run here. Tests that ask for it are skipped where they cannot run at all."""
    pytest.importorskip("triton", reason="Triton is not installed: its kernels were not tested")
    if torch.cuda.is_available():
        return "cuda"
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton's kernels need a GPU or TRITON_INTERPRET=1")
    return "cpu"


@pytest.fixture
def rooms(device) -> Callable[[str], tuple[ModuleType, ModuleType]]:
    """``rooms("ball_query")``: the operator's Triton module and the reference that it must agree with."""

    def load(operator: str) -> tuple[ModuleType, ModuleType]:
        return tuple(importlib.import_module(f"pcdet.ops.{operator}.{name}") for name in ("triton", "reference"))

    return load


@pytest.fixture
def through_triton(device, monkeypatch) -> str:
    """The doors choose Triton's kernels on the device that is given back, even if that is the CPU."""
    monkeypatch.setitem(doors.MODULES, device, "triton")
    return device
