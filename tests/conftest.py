"""Fixtures that every test may use."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    # Triton reads this when it is first imported. Its kernels then run in an interpreter, on tensors of the CPU.
    os.environ.setdefault("TRITON_INTERPRET", "1")

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


@pytest.fixture(scope="session")
def run_ranks() -> Callable[..., None]:
    """``run_ranks(script, *arguments, world=2)`` runs a script once a rank, as torchrun would, and waits for all."""

    def run(script: Path, *arguments: object, world: int = 2, timeout: float = 120) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        shared = {"WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
        command = [sys.executable, str(script), *map(str, arguments)]
        jobs = []
        for rank in range(world):
            own = {key: str(value) for key, value in {**shared, "RANK": rank, "LOCAL_RANK": rank}.items()}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            jobs.append(subprocess.Popen(command, env={**os.environ, **own}, **pipes))
        try:
            outputs = [job.communicate(timeout=timeout)[0] for job in jobs]
        finally:
            for job in jobs:
                job.kill()
        assert all(job.returncode == 0 for job in jobs), "\n".join(outputs)

    return run
