"""Batch norms of rows that survive a batch of one."""

import torch
from torch import Tensor, nn

from pcdet.layers.weighted_norm import normalise_rows
from pcdet.utils.logging import get_logger


class RowNorm(nn.BatchNorm1d):
    """Batch norm of rows (R, C); fewer than two rows have no statistics and are normalised with the running ones.

    On a CPU the statistics of training are those of ``row_batch_norm``: torch's own are slow and lose four digits.
    """

    def forward(self, rows: Tensor) -> Tensor:  # (R, C) -> (R, C)
        if self.training and (len(rows) < 2 or (rows.device.type == "cpu" and rows.dtype == torch.float32)):
            return normalise_rows(rows, None, self)
        return super().forward(rows)


class RowBatchNorm(RowNorm):
    """Says in the log when a row stands alone: for a classifier that is a batch of one cloud."""

    _warned = False

    def forward(self, rows: Tensor) -> Tensor:  # (R, C) -> (R, C)
        if self.training and rows.shape[0] == 1:
            self._warn()
        return super().forward(rows)

    @torch.compiler.disable
    def _warn(self) -> None:
        if not RowBatchNorm._warned:
            RowBatchNorm._warned = True
            get_logger().warning(
                "a training batch of one cloud has no batch statistics: the classifier's batch norms use their running "
                "statistics for it. Choose a batch size that leaves no remainder of one to avoid this"
            )
