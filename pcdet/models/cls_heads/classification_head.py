"""The classifier's head: fully connected layers on one feature a cloud."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from pcdet.layers.row_norm import RowBatchNorm
from pcdet.models.registry import CLS_HEADS
from pcdet.structures.dataset_info import DatasetInfo


class ClassPreds(NamedTuple):
    """Scores before the softmax."""

    logits: Tensor  # (B, K)


@CLS_HEADS.register
class ClassificationHead(nn.Module):
    """Hidden layers with batch norm, ReLU and dropout, then one score a class (PointNet++, supplement sec. B.1).

    Options:
        hidden: width of each hidden layer.
        dropout: probability that a hidden value is dropped in training.
        label_smoothing: share of the target that is spread over all classes.
    """

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        hidden: Sequence[int] = (512, 256),
        dropout: float = 0.5,
        label_smoothing: float = 0.0,
    ):
        super().__init__()
        self.label_smoothing = label_smoothing
        widths = [channels["global_features"], *hidden]
        layers: list[nn.Module] = []
        for before, after in zip(widths[:-1], widths[1:], strict=True):
            layers += [nn.Linear(before, after), RowBatchNorm(after), nn.ReLU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], info.num_class))
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(
        self,
        global_features: Tensor,  # (B, C)
    ) -> ClassPreds:
        return ClassPreds(self.layers(global_features))

    def loss(
        self,
        preds: ClassPreds,
        labels: Tensor,  # (B,) int64
    ) -> dict[str, Tensor]:
        """Mean cross entropy."""
        return {"loss_cls": F.cross_entropy(preds.logits.float(), labels, label_smoothing=self.label_smoothing)}
