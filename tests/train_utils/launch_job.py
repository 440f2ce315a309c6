"""Run by test_launch_processes.py: join the others, talk to them, and let rank 1 fail in a chosen way."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import _common  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser()
    _common.add_common_options(parser)
    parser.add_argument("--failure", choices=["none", "killed", "stuck", "error"], default="none")
    given = parser.parse_args()
    device = _common.start(given)
    total = torch.full((1,), float(dist.get_rank() + 1), device=device)
    dist.all_reduce(total)
    sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()} ({dist.get_backend()}): {total.item():g}\n")
    sys.stdout.flush()
    if dist.get_rank() == 1:
        fail(given.failure)
    dist.all_reduce(total)
    _common.stop()
    return 0


def fail(how: str) -> None:
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "stuck":
        time.sleep(60)
    elif how == "error":
        raise ValueError("000123.txt has no labels")


if __name__ == "__main__":
    _common.run(main)
