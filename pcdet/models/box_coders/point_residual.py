"""Boxes as residuals to points inside them (Shi et al., "PointRCNN", sec. 3.2; "Part-A2 Net", sec. 3.2)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pcdet.models.box_coders.residual import SMALLEST, offset_scale


class PointResidualCoder(nn.Module):
    """Codes of a box relative to a point: offset of the centre, logarithms of the sizes, cosine and sine of heading.

    With ``use_mean_size`` a point has the size of its class, ``mean_size`` (K, 3) in metres: sizes are relative to it,
    offsets to the diagonal of its base along x and y and to its height along z. Without it both are in metres.

    Raises ``ValueError`` where ``use_mean_size`` lacks sizes, or where they are not (K, 3) and positive.
    """

    code_size = 8

    def __init__(self, *, use_mean_size: bool = True, mean_size: Sequence[Sequence[float]] | None = None):
        super().__init__()
        self.use_mean_size = use_mean_size
        sizes = torch.tensor(mean_size if use_mean_size and mean_size else [], dtype=torch.float32)
        if use_mean_size and (sizes.ndim != 2 or sizes.shape[1] != 3 or not bool((sizes > 0).all())):
            raise ValueError(
                f"PointResidualCoder: use_mean_size needs mean_size, for each class three positive lengths in metres, "
                f"not {mean_size}"
            )
        self.register_buffer("mean_size", sizes, persistent=False)  # (K, 3)

    def encode(
        self,
        boxes: Tensor,  # (N, 7+)
        points: Tensor,  # (N, 3)
        classes: Tensor,  # (N,) int64, 1-based
    ) -> Tensor:
        """-> (N, 8) codes. Sizes below 1e-5 m count as that."""
        size, scale = self._sizes(points, classes)
        offset = (boxes[:, :3] - points) / scale
        sizes = (boxes[:, 3:6].clamp(min=SMALLEST) / size).log()
        return torch.cat([offset, sizes, boxes[:, 6:7].cos(), boxes[:, 6:7].sin()], dim=1)

    def decode(
        self,
        codes: Tensor,  # (N, 8)
        points: Tensor,  # (N, 3)
        classes: Tensor,  # (N,) int64, 1-based
    ) -> Tensor:
        """-> (N, 7) boxes; the inverse of :meth:`encode` with headings in [-pi, pi]."""
        size, scale = self._sizes(points, classes)
        heading = torch.atan2(codes[:, 7:8], codes[:, 6:7])
        return torch.cat([codes[:, :3] * scale + points, codes[:, 3:6].exp() * size, heading], dim=1)

    def _sizes(self, points: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """What sizes and what offsets are measured in, both (N, 3)."""
        if not self.use_mean_size:
            return torch.ones_like(points), torch.ones_like(points)
        size = self.mean_size[classes - 1]
        return size, offset_scale(size)
