"""A small made-up data set in OpenPCDet's custom layout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pcdet.datasets.custom.infos import create_infos

SIZES = {"Vehicle": (4.0, 1.8, 1.6), "Pedestrian": (0.8, 0.6, 1.7), "Cyclist": (1.8, 0.6, 1.7), "Tram": (9.0, 2.5, 3.0)}


def box_of(name: str, x: float, y: float, heading: float) -> np.ndarray:
    """A (7,) box of the class's size that stands on the ground, z = 0."""
    return np.array([x, y, SIZES[name][2] / 2, *SIZES[name], heading])


def label_line(name: str, box: np.ndarray) -> str:
    return " ".join(f"{v:.6f}" for v in box) + f" {name}"


def points_within(box: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """(count, 4) float64 points inside a box."""
    local = rng.uniform(-0.49, 0.49, (count, 3)) * box[3:6]
    cos, sin = np.cos(box[6]), np.sin(box[6])
    x, y = local[:, 0] * cos - local[:, 1] * sin, local[:, 0] * sin + local[:, 1] * cos
    return np.column_stack([np.stack([x, y, local[:, 2]], axis=1) + box[:3], rng.random(count)])


class CustomTree:
    """Writes frames into a folder in OpenPCDet's custom layout."""

    def __init__(self, root: Path):
        self.root = root
        self.rng = np.random.default_rng(0)
        for name in ("points", "labels", "ImageSets"):
            (root / name).mkdir(parents=True)

    def add(self, split: str, frame: str, objects: list[tuple[str, np.ndarray]], dtype: type = np.float32) -> None:
        """One frame with 60 points in each object, on flat ground just below it."""
        ground = np.column_stack([self.rng.uniform(-15, 15, (2000, 2)), np.full(2000, -0.05), self.rng.random(2000)])
        clouds = [points_within(box, 60, self.rng) for _, box in objects]
        np.save(self.root / "points" / f"{frame}.npy", np.concatenate([ground, *clouds]).astype(dtype))
        if split != "test":
            self.label(frame, [label_line(name, box) for name, box in objects])
        with open(self.root / "ImageSets" / f"{split}.txt", "a") as file:
            file.write(f"{frame}\n")

    def label(self, frame: str, lines: list[str]) -> None:
        (self.root / "labels" / f"{frame}.txt").write_text("".join(f"{line}\n" for line in lines))


def fill(tree: CustomTree) -> None:
    """Two training frames, one of them float64; two for validation, one of them empty; one for testing."""
    tree.add("train", "a", [("Vehicle", box_of("Vehicle", 8, 1, 0.3)), ("Tram", box_of("Tram", -7, -8, 1.2))])
    both = [("Pedestrian", box_of("Pedestrian", -6, 3, -2.0)), ("Cyclist", box_of("Cyclist", 5, -6, 0.7))]
    tree.add("train", "b", both, np.float64)
    tree.add("val", "c", [("Vehicle", box_of("Vehicle", -5, 4, 2.9)), ("Vehicle", box_of("Vehicle", 10, -3, 0.0))])
    tree.add("val", "d", [])
    tree.add("test", "e", [("Vehicle", box_of("Vehicle", 8, 1, 0.3))])


@pytest.fixture
def custom_tree(tmp_path: Path) -> CustomTree:
    """An empty tree to add frames to."""
    return CustomTree(tmp_path / "own")


@pytest.fixture
def custom_settings() -> dict[str, Any]:
    """DATA_CONFIG of a SECOND on own data, with a small range."""
    return {
        "DATASET": "CustomDataset",
        "DATA_PATH": "../data/custom",
        "POINT_CLOUD_RANGE": [-12.8, -12.8, -2, 12.8, 12.8, 4],
        "MAP_CLASS_TO_KITTI": {"Vehicle": "Car", "Pedestrian": "Pedestrian", "Cyclist": "Cyclist"},
        "DATA_SPLIT": {"train": "train", "test": "val"},
        "INFO_PATH": {"train": ["custom_infos_train.pkl"], "test": ["custom_infos_val.pkl"]},
        "POINT_FEATURE_ENCODING": {
            "encoding_type": "absolute_coordinates_encoding",
            "used_feature_list": ["x", "y", "z", "intensity"],
            "src_feature_list": ["x", "y", "z", "intensity"],
        },
        "DATA_AUGMENTOR": {
            "DISABLE_AUG_LIST": ["placeholder"],
            "AUG_CONFIG_LIST": [
                {
                    "NAME": "gt_sampling",
                    "USE_ROAD_PLANE": False,
                    "DB_INFO_PATH": ["custom_dbinfos_train.pkl"],
                    "PREPARE": {"filter_by_min_points": ["Vehicle:5", "Pedestrian:5", "Cyclist:5"]},
                    "SAMPLE_GROUPS": ["Vehicle:2", "Pedestrian:2", "Cyclist:2"],
                    "NUM_POINT_FEATURES": 4,
                    "DATABASE_WITH_FAKELIDAR": False,
                    "REMOVE_EXTRA_WIDTH": [0.0, 0.0, 0.0],
                    "LIMIT_WHOLE_SCENE": True,
                },
                {"NAME": "random_world_flip", "ALONG_AXIS_LIST": ["x", "y"]},
            ],
        },
        "DATA_PROCESSOR": [
            {"NAME": "mask_points_and_boxes_outside_range", "REMOVE_OUTSIDE_BOXES": True},
            {"NAME": "shuffle_points", "SHUFFLE_ENABLED": {"train": True, "test": False}},
            {
                "NAME": "transform_points_to_voxels",
                "VOXEL_SIZE": [0.1, 0.1, 0.15],
                "MAX_POINTS_PER_VOXEL": 5,
                "MAX_NUMBER_OF_VOXELS": {"train": 15000, "test": 15000},
            },
        ],
    }


@pytest.fixture
def small_custom(custom_tree: CustomTree, custom_settings: dict[str, Any]) -> Path:
    """A filled tree with infos and database."""
    fill(custom_tree)
    create_infos(custom_settings, custom_tree.root)
    return custom_tree.root
