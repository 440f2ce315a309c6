"""Batch normalisation of rows that survives a batch of one."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pcdet.utils.logging import get_logger


class RowBatchNorm(nn.BatchNorm1d):
    """``nn.BatchNorm1d`` of (rows, C), except that a single row is normalised with the running statistics.

    One row has no variance; the last batch of an epoch may be one. Such a step leaves the running statistics as they
    are, and the first one is logged.
    """

    _warned = False

    def forward(self, rows: Tensor) -> Tensor:  # (rows, C) -> (rows, C)
        if not (self.training and rows.shape[0] == 1):
            return super().forward(rows)
        self._warn()
        return F.batch_norm(rows, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)

    @torch.compiler.disable
    def _warn(self) -> None:
        if not RowBatchNorm._warned:
            RowBatchNorm._warned = True
            get_logger().warning(
                "a training batch of one cloud has no batch statistics: the classifier's batch norms use their running "
                "statistics for it. Choose a batch size that leaves no remainder of one to avoid this"
            )
