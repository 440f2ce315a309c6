"""Run by test_sync_norm.py in several processes: one norm after another over this rank's piece of each case."""

import sys
from pathlib import Path

import torch
from torch import nn

from pcdet.layers.weighted_norm import normalise_rows
from pcdet.train_utils.launch import end_process, start_processes, stop_processes, synchronize_norms
from pcdet.utils import distributed as ranks


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    start_processes("pytorch", 0, "cpu")
    results = []
    for case in torch.load(folder / "cases.pt", weights_only=True):
        piece, pull = case["pieces"][ranks.rank()].requires_grad_(), case["pulls"][ranks.rank()]
        norm = nn.BatchNorm2d(piece.shape[1], momentum=case["momentum"]).to(piece.dtype)
        norm.load_state_dict(case["state"])
        norm = synchronize_norms(norm)
        for _ in range(2):
            out = normalise_rows(piece, case["repeats"][ranks.rank()], norm, relu=case["relu"])
        (out * pull).sum().backward()
        grads = {name: p.grad for name, p in norm.named_parameters()}
        results.append({"out": out.detach(), "grad": piece.grad, "grads": grads, "state": norm.state_dict()})
    torch.save(results, folder / f"rank{ranks.rank()}.pt")
    stop_processes()
    end_process(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
