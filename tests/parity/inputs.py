"""The input of a recorded run, rebuilt from raw KITTI files without the data sets: file, view, range, voxels."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from pcdet.config import load_config
from pcdet.ops.voxelize import voxelize
from pcdet.structures.batch import Batch
from pcdet.structures.boxes import boxes_from_kitti_camera
from pcdet.structures.calibration import Calibration
from pcdet.structures.dataset_info import DatasetInfo

CONFIGS = Path(__file__).resolve().parents[2] / "cfgs"


def info_of(config: Mapping[str, Any]) -> DatasetInfo:
    """What the data set of a configuration would tell the model."""
    data = config["DATA_CONFIG"]
    grid = processor(config, "transform_points_to_voxels", "transform_points_to_voxels_placeholder")
    area = np.array(data["POINT_CLOUD_RANGE"], dtype=np.float64)
    info = DatasetInfo(
        class_names=tuple(config["CLASS_NAMES"]),
        point_features=tuple(data["POINT_FEATURE_ENCODING"]["used_feature_list"]),
        point_cloud_range=tuple(area.tolist()),
    )
    if grid is None:
        return info
    size = np.array(grid["VOXEL_SIZE"])
    return replace(
        info,
        voxel_size=tuple(size.tolist()),
        grid_size=tuple(np.round((area[3:] - area[:3]) / size).astype(int).tolist()),
        max_points_per_voxel=None if grid["NAME"].endswith("placeholder") else grid["MAX_POINTS_PER_VOXEL"],
    )


def processor(config: Mapping[str, Any], *names: str) -> Mapping[str, Any] | None:
    """The block of the first DATA_PROCESSOR that has one of these names."""
    return next((block for block in config["DATA_CONFIG"]["DATA_PROCESSOR"] if block["NAME"] in names), None)


def read_config(path: Path) -> Mapping[str, Any]:
    """A configuration in YAML, or in JSON as :func:`completed` takes it."""
    return completed(json.loads(path.read_text())) if path.suffix == ".json" else load_config(path).settings


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a YAML with the base of DATA_CONFIG, which is found in cfgs/dataset_configs by its name.

    As in a YAML, mappings are merged and lists replaced.
    """
    data = dict(config["DATA_CONFIG"])
    base = data.pop("_BASE_CONFIG_", None)
    if base is None:
        return dict(config)
    found = yaml.safe_load((CONFIGS / "dataset_configs" / Path(base).name).read_text())
    return {**config, "DATA_CONFIG": _merged(found, data)}


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    both = {k: _merged(base[k], v) for k, v in own.items() if isinstance(v, dict) and isinstance(base.get(k), dict)}
    return {**base, **own, **both}


def load_batch(
    folder: Path,
    frames: Sequence[str],
    config: Mapping[str, Any],
    info: DatasetInfo,
    image_sizes: Sequence[Sequence[int]] | None = None,
) -> Batch:
    """Frames of a KITTI folder as an evaluation batch.

    ``image_sizes`` are height and width of each frame's image, for folders that lack the images themselves.
    """
    parts: dict[str, list[np.ndarray]] = {"points": []}
    boxes = []
    for i, frame in enumerate(frames):
        calib = Calibration.from_file(folder / "calib" / f"{frame}.txt")
        size = None
        if config["DATA_CONFIG"].get("FOV_POINTS_ONLY", True):
            size = image_sizes[i] if image_sizes else _image_size(folder / "image_2" / f"{frame}.png")
        cloud = _spread(_load_points(folder, frame, calib, info, size), processor(config, "sample_points"))
        parts["points"].append(np.pad(cloud, ((0, 0), (1, 0)), constant_values=i))
        if info.max_points_per_voxel is not None:
            for key, rows in _voxels(cloud, config, info, i).items():
                parts.setdefault(key, []).append(rows)
        boxes.append(_load_boxes(folder, frame, calib, info))
    padded = np.zeros((len(frames), max(map(len, boxes)), 8), dtype=np.float32)
    for row, scene in zip(padded, boxes, strict=True):
        row[: len(scene)] = scene
    tensors = {key: torch.from_numpy(np.concatenate(rows)) for key, rows in parts.items()}
    return {"batch_size": len(frames), "frame_id": frames, "gt_boxes": torch.from_numpy(padded), **tensors}


def _spread(cloud: np.ndarray, sampling: Mapping[str, Any] | None) -> np.ndarray:
    """What the recorded runs took instead of a random sample: points at equal steps, or all again and again."""
    if sampling is None:
        return cloud
    wanted, place = sampling["NUM_POINTS"]["test"], np.arange(sampling["NUM_POINTS"]["test"])
    return cloud[place * len(cloud) // wanted if len(cloud) >= wanted else place % len(cloud)]


def _voxels(cloud: np.ndarray, config: Mapping[str, Any], info: DatasetInfo, scene: int) -> dict[str, np.ndarray]:
    most = processor(config, "transform_points_to_voxels")["MAX_NUMBER_OF_VOXELS"]["test"]
    found = voxelize(cloud, info.point_cloud_range, info.voxel_size, info.grid_size, info.max_points_per_voxel, most)
    coords = np.pad(found.coords, ((0, 0), (1, 0)), constant_values=scene)
    return {"voxels": found.voxels, "voxel_coords": coords, "voxel_num_points": found.num_points}


def _image_size(path: Path) -> tuple[int, int]:
    """Height and width of a PNG."""
    with path.open("rb") as file:
        width, height = struct.unpack(">II", file.read(24)[16:24])
    return height, width


def _load_points(
    folder: Path, frame: str, calib: Calibration, info: DatasetInfo, image_size: Sequence[int] | None
) -> np.ndarray:
    """The points of a frame within the range and, with an ``image_size``, in the camera's view."""
    points = np.fromfile(folder / "velodyne" / f"{frame}.bin", dtype=np.float32).reshape(-1, 4)
    seen = np.ones(len(points), dtype=bool)
    if image_size is not None:
        height, width = image_size
        pixels, depth = calib.lidar_to_image(points)
        seen = (pixels >= 0).all(axis=1) & (pixels < [width, height]).all(axis=1) & (depth >= 0)
    low, high = np.float32(info.point_cloud_range[:2]), np.float32(info.point_cloud_range[3:5])
    return points[seen & (points[:, :2] >= low).all(axis=1) & (points[:, :2] <= high).all(axis=1)]


def _load_boxes(folder: Path, frame: str, calib: Calibration, info: DatasetInfo) -> np.ndarray:
    rows = [line.split() for line in (folder / "label_2" / f"{frame}.txt").read_text().splitlines()]
    rows = [row for row in rows if row[0] in info.class_names]
    numbers = np.array([row[8:15] for row in rows], dtype=np.float64).reshape(-1, 7)
    camera = numbers[:, [3, 4, 5, 2, 0, 1, 6]]  # label order is h w l x y z ry
    labels = np.array([info.class_names.index(row[0]) + 1 for row in rows]).reshape(-1, 1)
    return np.concatenate([boxes_from_kitti_camera(camera, calib), labels], axis=1).astype(np.float32)
