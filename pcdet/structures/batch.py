"""The keys of a batch: what the datasets write and the models read.

A batch is a plain dict. ``batch_size`` is always there and is never inferred from the data.

================== =========== ============================================================================
key                type        meaning
================== =========== ============================================================================
batch_size         int         B, the number of scenes
frame_id           list[str]   (B,) name of each scene
index              list[int]   (B,) position of each scene in the data set
points             (N, 1 + C)  float32; column 0 is the scene's index in the batch, then x y z ...
voxels             (V, P, C)   float32, zero-padded points of each voxel
voxel_coords       (V, 4)      int32; scene, z, y, x
voxel_num_points   (V,)        int32, points in each voxel, at least 1
gt_boxes           (B, M, 8)   float32; x y z dx dy dz heading label (1-based), padded with zero rows
calib              list        (B,) :class:`pcdet.structures.calibration.Calibration` or None
image_shape        (B, 2)      int32; height, width
point_clouds       (B, N, C)   float32, equally long clouds of a classification or segmentation task
class_labels       (B,)        int64, 0-based classes of a classification task
point_labels       (B, N)      int64, 0-based classes of a segmentation task; -1 where there is none
categories         (B,)        int64, 0-based categories of objects whose parts are told apart
================== =========== ============================================================================
"""

from typing import Any

import torch
from torch import Tensor

Batch = dict[str, Any]


def to_device(batch: Batch, device: torch.device | str) -> Batch:
    """A new batch whose tensors lie on ``device``; everything else is passed on as it is."""
    return {k: v.to(device, non_blocking=True) if isinstance(v, Tensor) else v for k, v in batch.items()}


def scene_counts(scene: Tensor, batch_size: int) -> Tensor:
    """Rows of each scene, from the rows' scenes (N,) in any dtype. -> (B,) int64

    Rows of a scene that the batch does not have count nowhere. ``torch.bincount`` would make the host wait for a GPU.
    """
    return (torch.arange(batch_size, device=scene.device).unsqueeze(1) == scene).sum(dim=1)
