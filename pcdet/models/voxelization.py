"""Points into voxels on the model's device, where the data set leaves that to it (``DEVICE: True``)."""

import torch

from pcdet.ops.voxelize import voxelize
from pcdet.structures.batch import Batch, scene_counts
from pcdet.structures.dataset_info import DatasetInfo


def with_voxels(batch: Batch, info: DatasetInfo, training: bool) -> Batch:
    """The batch with ``voxels``, ``voxel_coords`` and ``voxel_num_points``, made of its ``points``.

    They are what the processor ``transform_points_to_voxels`` would have written: same voxels in the same order, the
    limit of training or of testing for each scene. The host waits for the number of points of each scene, and for the
    number of voxels of each.
    """
    points = batch["points"]
    most = info.device_voxels[0 if training else 1]
    counts = scene_counts(points[:, 0], batch["batch_size"]).tolist()
    grid = (info.point_cloud_range, info.voxel_size, info.grid_size, info.max_points_per_voxel, most)
    scenes = [voxelize(rows[:, 1:], *grid) for rows in points.split(counts)]
    coords = [torch.cat([s.coords.new_full((len(s.coords), 1), i), s.coords], dim=1) for i, s in enumerate(scenes)]
    return {
        **batch,
        "voxels": torch.cat([s.voxels for s in scenes]),
        "voxel_coords": torch.cat(coords),
        "voxel_num_points": torch.cat([s.num_points for s in scenes]),
    }
