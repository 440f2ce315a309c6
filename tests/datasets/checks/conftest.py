"""Made-up frames without a fault, and the configuration that fits them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pcdet.config import load_config
from pcdet.datasets.checks.facts import FrameFacts, Grid, measure

SIZES = {"Vehicle": (4.0, 1.8, 1.6), "Pedestrian": (0.8, 0.6, 1.7), "Cyclist": (1.8, 0.6, 1.7)}


def filled(box: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """(count, 3) points evenly inside a (7,) box."""
    local = rng.uniform(-0.49, 0.49, (count, 3)) * box[3:6]
    cos, sin = np.cos(box[6]), np.sin(box[6])
    return np.column_stack([local[:, 0] * cos - local[:, 1] * sin, local[:, 0] * sin + local[:, 1] * cos, local[:, 2]])


def clean_frame(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(N, 4) points, (M,) names and (M, 7) boxes: nine objects far from each other on flat ground at z = 0."""
    rng = np.random.default_rng(seed)
    ground = np.column_stack([rng.uniform(-40, 40, (8000, 2)), rng.normal(0, 0.01, 8000)])
    places = np.stack(np.meshgrid([-20, 2, 20], [-20, 3, 20]), axis=-1).reshape(-1, 2) + rng.uniform(-3, 3, (9, 2))
    names = np.array(["Vehicle"] * 5 + ["Pedestrian"] * 2 + ["Cyclist"] * 2)
    sizes = np.array([SIZES[n] for n in names]) * rng.uniform(0.95, 1.05, (9, 3))
    boxes = np.column_stack([places, sizes[:, 2] / 2, sizes, rng.uniform(-np.pi, np.pi, 9)])
    xyz = np.concatenate([ground, *(filled(box, 80, rng) + box[:3] for box in boxes)])
    return np.column_stack([xyz, rng.random(len(xyz))]).astype(np.float32), names, boxes


def facts_of(
    frames: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]], grid: Grid | None = None
) -> list[FrameFacts]:
    """What is measured of frames that are no files; every frame is one of 'train'."""
    return [
        replace(measure(name, ("train",), Path("none"), *(p, 0, n, b), intensity_column=3, grid=grid), digest=name)
        for name, (p, n, b) in frames.items()
    ]


@pytest.fixture(scope="session")
def frames() -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Four frames without a fault."""
    return {f"{i:06d}": clean_frame(i) for i in range(4)}


@pytest.fixture
def facts(frames) -> list[FrameFacts]:
    """What is measured of them."""
    return facts_of(frames)


@pytest.fixture
def with_boxes(frames) -> Callable[..., list[FrameFacts]]:
    """``with_boxes(change)``: the facts where ``change(boxes)`` took the labels' place."""

    def make(change: Callable[[np.ndarray], np.ndarray]) -> list[FrameFacts]:
        return facts_of({name: (p, n, change(b.copy())) for name, (p, n, b) in frames.items()})

    return make


@pytest.fixture
def settings() -> dict:
    """The configuration of PV-RCNN for own data."""
    return load_config("cfgs/custom_models/pv_rcnn.yaml").settings
