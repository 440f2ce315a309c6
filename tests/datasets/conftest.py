"""A small made-up data set in KITTI's layout, and scenes to augment."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pcdet.datasets.augment import AugmentContext
from pcdet.datasets.kitti.infos import create_infos
from pcdet.structures.boxes import boxes_to_kitti_camera, kitti_image_boxes
from pcdet.structures.calibration import Calibration
from pcdet.structures.scene import Scene

CLASSES = ("Car", "Pedestrian", "Cyclist")
CALIB_TEXT = """P0: 721.5377 0 609.5593 0 0 721.5377 172.854 0 0 0 1 0
P2: 721.5377 0 609.5593 0 0 721.5377 172.854 0 0 0 1 0
R0_rect: 1 0 0 0 1 0 0 0 1
Tr_velo_to_cam: 0 -1 0 0 0 0 -1 0 1 0 0 0
"""
DONT_CARE = "DontCare -1 -1 -10 100.00 150.00 140.00 200.00 -1 -1 -1 -1000 -1000 -1000 -10"
SIZES = {"Car": (3.9, 1.6, 1.56), "Pedestrian": (0.8, 0.6, 1.73), "Cyclist": (1.76, 0.6, 1.73), "Van": (5.0, 2.0, 2.2)}


def calibration() -> Calibration:
    p2 = np.array([[721.5377, 0, 609.5593, 0], [0, 721.5377, 172.854, 0], [0, 0, 1, 0]], dtype=np.float32)
    v2c = np.array([[0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 0]], dtype=np.float32)
    return Calibration(p2, np.eye(3, dtype=np.float32), v2c)


def box_of(name: str, x: float, y: float, heading: float) -> np.ndarray:
    """A (7,) box of the class's size that stands on the ground, 1.7 m below the sensor."""
    size = SIZES[name]
    return np.array([x, y, -1.7 + size[2] / 2, *size, heading])


def label_line(name: str, box: np.ndarray) -> str:
    """The KITTI label of a (7,) LiDAR box."""
    calib = calibration()
    camera = boxes_to_kitti_camera(box[None], calib)
    x1, y1, x2, y2 = kitti_image_boxes(camera, calib, (375, 1242))[0]
    x, y, z, length, height, width, turn = camera[0]
    alpha = turn - np.arctan2(x, z)
    return (
        f"{name} 0.00 0 {alpha:.6f} {x1:.2f} {y1:.2f} {x2:.2f} {y2:.2f} "
        f"{height:.6f} {width:.6f} {length:.6f} {x:.6f} {y:.6f} {z:.6f} {turn:.6f}"
    )


def points_within(box: np.ndarray, count: int, rng: np.random.Generator, fill: float = 0.98) -> np.ndarray:
    """(count, 4) float32 points evenly inside a box shrunk by ``fill``."""
    local = rng.uniform(-0.5, 0.5, (count, 3)) * box[3:6] * fill
    cos, sin = np.cos(box[6]), np.sin(box[6])
    x, y = local[:, 0] * cos - local[:, 1] * sin, local[:, 0] * sin + local[:, 1] * cos
    xyz = np.stack([x, y, local[:, 2]], axis=1) + box[:3]
    return np.concatenate([xyz, rng.random((count, 1))], axis=1).astype(np.float32)


def ground(rng: np.random.Generator, count: int = 3000) -> np.ndarray:
    """(count, 4) float32 points of a flat ground in front of the sensor."""
    xy = rng.uniform([2, -20], [60, 20], (count, 2))
    return np.concatenate([xy, np.full((count, 1), -1.75), rng.random((count, 1))], axis=1).astype(np.float32)


class KittiTree:
    """Writes frames into a folder in KITTI's layout."""

    def __init__(self, root: Path):
        self.root = root
        self.rng = np.random.default_rng(0)

    def part(self, split: str) -> Path:
        return self.root / ("testing" if split == "test" else "training")

    def add(
        self,
        split: str,
        frame_id: str,
        objects: list[tuple[str, np.ndarray]],
        lines: list[str] | None = None,
        plane: bool = False,
    ) -> None:
        """One frame with 60 points in each object; ``lines`` replaces the label file's lines."""
        part = self.part(split)
        for name in ("velodyne", "calib", "label_2", "planes"):
            (part / name).mkdir(parents=True, exist_ok=True)
        clouds = [points_within(box, 60, self.rng) for _, box in objects]
        np.concatenate([ground(self.rng), *clouds]).tofile(part / "velodyne" / f"{frame_id}.bin")
        (part / "calib" / f"{frame_id}.txt").write_text(CALIB_TEXT)
        if split != "test":
            text = lines if lines is not None else [label_line(name, box) for name, box in objects]
            (part / "label_2" / f"{frame_id}.txt").write_text("".join(f"{line}\n" for line in text))
        if plane:
            (part / "planes" / f"{frame_id}.txt").write_text("# Matrix\nWIDTH 4\nHEIGHT 1\n0 -1 0 1.7\n")
        self.list_frame(split, frame_id)

    def list_frame(self, split: str, frame_id: str) -> None:
        path = self.root / "ImageSets" / f"{split}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a") as file:
            file.write(f"{frame_id}\n")


def fill(tree: KittiTree) -> None:
    """Three training frames, two for validation, one for testing."""
    tree.add("train", "000001", [("Car", box_of("Car", 12, 1, 0.3)), ("Van", box_of("Van", 25, -6, 1.2))], plane=True)
    tree.add("train", "000003", [("Pedestrian", box_of("Pedestrian", 9, -2, -2.0))], plane=True)
    both = [("Car", box_of("Car", 20, 5, 2.9)), ("Cyclist", box_of("Cyclist", 15, -4, 0.7))]
    tree.add("train", "000004", both)
    tree.add("val", "000002", [("Car", box_of("Car", 16, 0, -0.4))])
    tree.add("val", "000005", [], lines=[DONT_CARE])
    tree.add("test", "000000", [("Car", box_of("Car", 12, 1, 0.3))])


@pytest.fixture
def kitti_tree(tmp_path: Path) -> KittiTree:
    """An empty tree to add frames to."""
    return KittiTree(tmp_path / "kitti")


@pytest.fixture(scope="session")
def small_kitti(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A filled tree with infos and database; tests only read it."""
    tree = KittiTree(tmp_path_factory.mktemp("small") / "kitti")
    fill(tree)
    create_infos(tree.root)
    return tree.root


@pytest.fixture
def data_settings() -> dict[str, Any]:
    """DATA_CONFIG of a PointPillars on KITTI, as OpenPCDet's YAML has it."""
    return {
        "DATASET": "KittiDataset",
        "DATA_PATH": "../data/kitti",
        "POINT_CLOUD_RANGE": [0, -39.68, -3, 69.12, 39.68, 1],
        "DATA_SPLIT": {"train": "train", "test": "val"},
        "INFO_PATH": {"train": ["kitti_infos_train.pkl"], "test": ["kitti_infos_val.pkl"]},
        "GET_ITEM_LIST": ["points"],
        "FOV_POINTS_ONLY": True,
        "DATA_AUGMENTOR": {
            "DISABLE_AUG_LIST": ["placeholder"],
            "AUG_CONFIG_LIST": [
                {
                    "NAME": "gt_sampling",
                    "USE_ROAD_PLANE": True,
                    "DB_INFO_PATH": ["kitti_dbinfos_train.pkl"],
                    "PREPARE": {
                        "filter_by_min_points": ["Car:5", "Pedestrian:5", "Cyclist:5"],
                        "filter_by_difficulty": [-1],
                    },
                    "SAMPLE_GROUPS": ["Car:15", "Pedestrian:15", "Cyclist:15"],
                    "NUM_POINT_FEATURES": 4,
                    "DATABASE_WITH_FAKELIDAR": False,
                    "REMOVE_EXTRA_WIDTH": [0.0, 0.0, 0.0],
                    "LIMIT_WHOLE_SCENE": False,
                },
                {"NAME": "random_world_flip", "ALONG_AXIS_LIST": ["x"]},
                {"NAME": "random_world_rotation", "WORLD_ROT_ANGLE": [-0.78539816, 0.78539816]},
                {"NAME": "random_world_scaling", "WORLD_SCALE_RANGE": [0.95, 1.05]},
            ],
        },
        "POINT_FEATURE_ENCODING": {
            "encoding_type": "absolute_coordinates_encoding",
            "used_feature_list": ["x", "y", "z", "intensity"],
            "src_feature_list": ["x", "y", "z", "intensity"],
        },
        "DATA_PROCESSOR": [
            {"NAME": "mask_points_and_boxes_outside_range", "REMOVE_OUTSIDE_BOXES": True},
            {"NAME": "shuffle_points", "SHUFFLE_ENABLED": {"train": True, "test": False}},
            {
                "NAME": "transform_points_to_voxels",
                "VOXEL_SIZE": [0.16, 0.16, 4],
                "MAX_POINTS_PER_VOXEL": 32,
                "MAX_NUMBER_OF_VOXELS": {"train": 16000, "test": 40000},
            },
        ],
    }


@pytest.fixture
def scene() -> Scene:
    """Four turned objects with 80 points each, on a ground."""
    rng = np.random.default_rng(1)
    objects = [
        ("Car", box_of("Car", 12, 1, 0.3)),
        ("Van", box_of("Van", 25, -6, 1.2)),
        ("Pedestrian", box_of("Pedestrian", 9, -3, -2.0)),
        ("Car", box_of("Car", 30, 8, 3.0)),
    ]
    points = [ground(rng), *(points_within(box, 80, rng) for _, box in objects)]
    return Scene(
        "000000",
        np.concatenate(points),
        gt_boxes=np.array([box for _, box in objects], dtype=np.float32),
        gt_names=np.array([name for name, _ in objects]),
        calib=calibration(),
        road_plane=np.array([0.0, -1.0, 0.0, 1.7]),
    )


@pytest.fixture
def empty_scene() -> Scene:
    """Neither points nor boxes."""
    return Scene("empty", np.zeros((0, 4), np.float32), np.zeros((0, 7), np.float32), np.zeros(0, dtype="<U1"))


@pytest.fixture
def context(tmp_path: Path) -> AugmentContext:
    return AugmentContext(tmp_path, CLASSES, 4, logging.getLogger("pcdet"))
