"""Small detectors and batches for the tests of models."""

import copy

import pytest
import torch
import yaml

from pcdet.structures.dataset_info import DatasetInfo

RANGES = {
    "pointpillar": ((0.0, -5.12, -3.0, 10.24, 5.12, 1.0), (0.16, 0.16, 4.0), (64, 64, 1), 8),
    "second": ((0.0, -3.2, -3.0, 6.4, 3.2, 1.0), (0.05, 0.05, 0.1), (128, 128, 40), 5),
}


@pytest.fixture
def kitti_info():
    """``kitti_info("pointpillar")``: classes and channels of KITTI on a small range."""

    def make(name: str) -> DatasetInfo:
        area, size, grid, points = RANGES[name]
        return DatasetInfo(
            ("Car", "Pedestrian", "Cyclist"),
            ("x", "y", "z", "intensity"),
            area,
            size,
            grid,
            max_points_per_voxel=points,
        )

    return make


@pytest.fixture
def model_settings(root):
    """``model_settings("second")``: the MODEL block of a KITTI configuration, with few 2-D filters."""

    def make(name: str) -> dict:
        config = yaml.safe_load((root / f"cfgs/kitti_models/{name}.yaml").read_text())
        block = copy.deepcopy(config["MODEL"])
        block["BACKBONE_2D"] |= {"LAYER_NUMS": [1] * len(block["BACKBONE_2D"]["LAYER_NUMS"])}
        block["BACKBONE_2D"]["NUM_FILTERS"] = [8] * len(block["BACKBONE_2D"]["NUM_FILTERS"])
        block["BACKBONE_2D"]["NUM_UPSAMPLE_FILTERS"] = [8] * len(block["BACKBONE_2D"]["NUM_UPSAMPLE_FILTERS"])
        return block

    return make


@pytest.fixture
def made_batch():
    """``made_batch(info, voxels=[30, 0], boxes=[2, 0])``: random voxels and boxes, scene by scene."""

    def make(info: DatasetInfo, voxels: list[int], boxes: list[int], seed: int = 0) -> dict:
        draw = torch.Generator().manual_seed(seed)
        low, high = torch.tensor(info.point_cloud_range).view(2, 3)
        size, (nx, ny, nz) = torch.tensor(info.voxel_size), info.grid_size
        scenes = []
        for scene, count in enumerate(voxels):
            cell = torch.randperm(nx * ny * nz, generator=draw)[:count]
            zyx = torch.stack([cell // (nx * ny), cell // nx % ny, cell % nx], dim=1)
            number = torch.randint(1, info.max_points_per_voxel + 1, (count,), generator=draw)
            inside = torch.rand(count, info.max_points_per_voxel, 3, generator=draw)
            xyz = low + (zyx.flip(1).unsqueeze(1) + inside) * size
            points = torch.cat([xyz, torch.rand(*xyz.shape[:2], 1, generator=draw)], dim=2)
            points *= (torch.arange(info.max_points_per_voxel) < number.unsqueeze(1)).unsqueeze(2)
            coords = torch.cat([torch.full((count, 1), scene), zyx], dim=1).int()
            scenes.append((points, coords, number.int()))
        gt_boxes = torch.zeros(len(boxes), max(boxes, default=0), 8)
        for row, count in zip(gt_boxes, boxes, strict=True):
            row[:count, :3] = low + torch.rand(count, 3, generator=draw) * (high - low)
            row[:count, 3:6] = torch.tensor([3.9, 1.6, 1.56])
            row[:count, 6] = torch.rand(count, generator=draw) * 6 - 3
            row[:count, 7] = torch.arange(count) % info.num_class + 1
        points, coords, number = (torch.cat(parts) for parts in zip(*scenes, strict=True))
        return {
            "batch_size": len(voxels),
            "voxels": points,
            "voxel_coords": coords,
            "voxel_num_points": number,
            "gt_boxes": gt_boxes,
        }

    return make
