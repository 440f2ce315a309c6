"""Training items made in the plain order of work: everything anew for each item, in NumPy, a pass a step.

This is the alternative that ``data_pipeline.py`` measures. It reads the whole sweep, the calibration, the road plane
and a file for each pasted object; projects every point into the image; tests every point against every box; and turns,
scales, masks and shuffles in separate passes. Where the usual code calls compiled functions (rotated overlap,
voxelization), pcdet's kernels stand in for them, so those parts count as equally fast.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pcdet.datasets.kitti.folder import KittiFolder
from pcdet.datasets.kitti.labels import camera_boxes, without_dont_care
from pcdet.ops.iou3d import boxes_iou_bev
from pcdet.ops.voxelize import voxelize
from pcdet.structures.boxes import boxes_from_kitti_camera, wrap_angle
from pcdet.utils.files import read_pickle

Arrays = dict[str, Any]
FAR = 40.0  # metres


def in_image(points: np.ndarray, calib: Any, shape: Sequence[int]) -> np.ndarray:
    ones = np.ones((len(points), 1), dtype=np.float32)
    camera = np.hstack([points[:, :3], ones]) @ (calib.V2C.T @ calib.R0.T)
    projected = np.hstack([camera, ones]) @ calib.P2.T
    with np.errstate(divide="ignore", invalid="ignore"):
        u, v = (projected[:, :2].T / camera[:, 2]).astype(np.float32)
    depth = projected[:, 2] - calib.P2[2, 3]
    return (u >= 0) & (u < shape[1]) & (v >= 0) & (v < shape[0]) & (depth >= 0)


def in_box(points: np.ndarray, box: np.ndarray) -> np.ndarray:
    x, y, z = (points[:, :3] - box[:3]).T
    cos, sin = np.cos(box[6]), np.sin(box[6])
    along, across = x * cos + y * sin, y * cos - x * sin
    return (np.abs(along) <= box[3] / 2) & (np.abs(across) <= box[4] / 2) & (np.abs(z) <= box[5] / 2)


class PlainItems:
    """Items of a KITTI folder with infos, for the augmentors and processors of KITTI's usual configurations."""

    def __init__(self, root: Path, settings: Mapping[str, Any], class_names: Sequence[str], seed: int = 0):
        self.folder = KittiFolder(root)
        self.infos = read_pickle(root / settings["INFO_PATH"]["train"][0])
        self.class_names = list(class_names)
        self.range = np.array(settings["POINT_CLOUD_RANGE"], dtype=np.float32)
        self.augmentors = {block["NAME"]: block for block in settings["DATA_AUGMENTOR"]["AUG_CONFIG_LIST"]}
        self.processors = settings["DATA_PROCESSOR"]
        self.rng = np.random.default_rng(seed)
        self.database = self.read_database(root)

    def __len__(self) -> int:
        return len(self.infos)

    def read_database(self, root: Path) -> dict[str, list[dict]]:
        block = self.augmentors["gt_sampling"]
        rows = read_pickle(root / block["DB_INFO_PATH"][0])
        least = dict(entry.split(":") for entry in block["PREPARE"]["filter_by_min_points"])
        return {
            name: [
                row
                for row in rows.get(name, [])
                if row["num_points_in_gt"] >= int(least.get(name, 0))
                and row["difficulty"] not in block["PREPARE"]["filter_by_difficulty"]
            ]
            for name in self.class_names
        }

    def __getitem__(self, index: int) -> Arrays:
        item = self.load(self.infos[index])
        self.paste(item)
        self.move(item)
        wanted = np.isin(item["names"], self.class_names)
        labels = np.array([self.class_names.index(n) + 1 for n in item["names"][wanted]], dtype=np.float32)
        item["gt_boxes"] = np.hstack([item["gt_boxes"][wanted], labels[:, None]])
        for block in self.processors:
            getattr(self, block["NAME"])(item, block)
        return item

    def load(self, info: Mapping[str, Any]) -> Arrays:
        frame = info["point_cloud"]["lidar_idx"]
        points = np.fromfile(self.folder.cloud_path("train", frame), dtype=np.float32).reshape(-1, 4)
        calib = self.folder.calib("train", frame)
        points = points[in_image(points, calib, info["image"]["image_shape"])]
        annos = without_dont_care(info["annos"])
        boxes = boxes_from_kitti_camera(camera_boxes(annos), calib).astype(np.float32)
        boxes[:, 6] = wrap_angle(boxes[:, 6])
        plane = self.folder.road_plane("train", frame)
        return {"points": points, "gt_boxes": boxes, "names": annos["name"], "calib": calib, "plane": plane}

    def paste(self, item: Arrays) -> None:
        chosen = []
        boxes = item["gt_boxes"]
        for entry in self.augmentors["gt_sampling"]["SAMPLE_GROUPS"]:
            name, number = entry.split(":")
            number = int(number) - int(np.sum(item["names"] == name))
            pool = self.database.get(name, [])
            if number <= 0 or not pool:
                continue
            rows = [pool[i] for i in self.rng.permutation(len(pool))[:number]]
            new = np.stack([row["box3d_lidar"] for row in rows]).astype(np.float32)
            drawn = torch.from_numpy(new)
            with_others = boxes_iou_bev(drawn, torch.from_numpy(boxes)).numpy()
            with_drawn = boxes_iou_bev(drawn, drawn).fill_diagonal_(0).numpy()
            free = np.flatnonzero(with_others.max(axis=1, initial=0) + with_drawn.max(axis=1, initial=0) == 0)
            boxes = np.concatenate([boxes, new[free]])
            chosen += [rows[i] for i in free]
        if chosen:
            self.add(item, boxes, chosen)

    def add(self, item: Arrays, boxes: np.ndarray, chosen: list[dict]) -> None:
        new = boxes[len(item["gt_boxes"]) :]
        if item["plane"] is not None:
            a, b, c, d = item["plane"]
            camera = item["calib"].lidar_to_rect(new[:, :3])
            camera[:, 1] = (-d - a * camera[:, 0] - c * camera[:, 2]) / b
            new[:, 2] = item["calib"].rect_to_lidar(camera)[:, 2] + new[:, 5] / 2
        clouds = []
        for row, box in zip(chosen, new, strict=True):
            cloud = np.fromfile(self.folder.root / row["path"], dtype=np.float32).reshape(-1, 4)
            cloud[:, :3] += box[:3]
            clouds.append(cloud)
        covered = np.zeros(len(item["points"]), dtype=bool)
        for box in new:
            covered |= in_box(item["points"], box)
        item["points"] = np.concatenate([*clouds, item["points"][~covered]])
        item["gt_boxes"] = boxes
        item["names"] = np.concatenate([item["names"], [row["name"] for row in chosen]])

    def move(self, item: Arrays) -> None:
        points, boxes = item["points"], item["gt_boxes"]
        if self.rng.random() < 0.5:
            points[:, 1] = -points[:, 1]
            boxes[:, 1], boxes[:, 6] = -boxes[:, 1], -boxes[:, 6]
        angle = self.rng.uniform(*self.augmentors["random_world_rotation"]["WORLD_ROT_ANGLE"])
        cos, sin = np.cos(angle), np.sin(angle)
        turn = np.array([[cos, sin, 0], [-sin, cos, 0], [0, 0, 1]], dtype=np.float32)
        points = np.hstack([points[:, :3] @ turn, points[:, 3:]])
        boxes[:, :3] = boxes[:, :3] @ turn
        boxes[:, 6] += angle
        factor = self.rng.uniform(*self.augmentors["random_world_scaling"]["WORLD_SCALE_RANGE"])
        points[:, :3] *= factor
        boxes[:, :6] *= factor
        boxes[:, 6] = wrap_angle(boxes[:, 6])
        item["points"], item["gt_boxes"] = points, boxes

    def mask_points_and_boxes_outside_range(self, item: Arrays, _block: Mapping[str, Any]) -> None:
        xy, low, high = item["points"][:, :2], self.range[:3], self.range[3:]
        item["points"] = item["points"][((xy >= low[:2]) & (xy <= high[:2])).all(axis=1)]
        centres = item["gt_boxes"][:, :3]
        item["gt_boxes"] = item["gt_boxes"][((centres >= low) & (centres <= high)).all(axis=1)]

    def shuffle_points(self, item: Arrays, _block: Mapping[str, Any]) -> None:
        item["points"] = item["points"][self.rng.permutation(len(item["points"]))]

    def sample_points(self, item: Arrays, block: Mapping[str, Any]) -> None:
        points, number = item["points"], block["NUM_POINTS"]["train"]
        if number < len(points):
            far = np.linalg.norm(points[:, :3], axis=1) >= FAR
            places, near = np.flatnonzero(far), np.flatnonzero(~far)
            if len(places) < number:
                choice = np.concatenate([places, self.rng.choice(near, number - len(places), replace=False)])
            else:
                choice = self.rng.choice(len(points), number, replace=False)
        else:
            every = np.arange(len(points))
            choice = np.concatenate([every, self.rng.choice(every, number - len(points), replace=False)])
        item["points"] = points[self.rng.permutation(choice)]

    def transform_points_to_voxels(self, item: Arrays, block: Mapping[str, Any]) -> None:
        size = block["VOXEL_SIZE"]
        cells = np.round((self.range[3:] - self.range[:3]) / np.array(size)).astype(int).tolist()
        limits = block["MAX_POINTS_PER_VOXEL"], block["MAX_NUMBER_OF_VOXELS"]["train"]
        found = voxelize(item["points"], self.range.tolist(), size, cells, *limits)
        item["voxels"], item["voxel_coords"], item["voxel_num_points"] = found

    def collate(self, items: Sequence[Arrays]) -> Arrays:
        batch: Arrays = {"batch_size": len(items)}
        for key in ("points", "voxel_coords"):
            if key in items[0]:
                rows = [np.pad(item[key], ((0, 0), (1, 0)), constant_values=i) for i, item in enumerate(items)]
                batch[key] = torch.from_numpy(np.concatenate(rows))
        for key in ("voxels", "voxel_num_points"):
            if key in items[0]:
                batch[key] = torch.from_numpy(np.concatenate([item[key] for item in items]))
        boxes = np.zeros((len(items), max(len(item["gt_boxes"]) for item in items), 8), dtype=np.float32)
        for i, item in enumerate(items):
            boxes[i, : len(item["gt_boxes"])] = item["gt_boxes"]
        batch["gt_boxes"] = torch.from_numpy(boxes)
        return batch
