"""Run by test_gpu_engine.py once a rank: synchronised batch norm against one that sees all rows."""

import sys

import torch
from torch import nn

from pcdet.train_utils.launch import choose_device, end_process, start_processes, stop_processes, synchronize_norms
from pcdet.utils import distributed as ranks

SIZES = (5, 7)  # rows of each rank


def main() -> None:
    start_processes("pytorch", 0, sys.argv[1])
    device, rank = choose_device(sys.argv[1]), ranks.rank()
    generator = torch.Generator().manual_seed(0)
    rows, weights = (torch.randn(sum(SIZES), 4, generator=generator).to(device) for _ in range(2))
    whole, own = rows.clone().requires_grad_(), rows.split(SIZES)[rank].clone().requires_grad_()
    plain = nn.BatchNorm1d(4).to(device)
    together = synchronize_norms(nn.Sequential(nn.BatchNorm1d(4))).to(device)
    wanted, found = plain(whole), together(own)
    (wanted * weights).sum().backward()
    (found * weights.split(SIZES)[rank]).sum().backward()
    torch.testing.assert_close(found, wanted.split(SIZES)[rank])
    torch.testing.assert_close(own.grad, whole.grad.split(SIZES)[rank])
    torch.testing.assert_close(together[0].running_var, plain.running_var)
    stop_processes()
    end_process(0)


if __name__ == "__main__":
    main()
