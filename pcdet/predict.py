"""Detections of single clouds in three lines of Python; see docs/PREDICT.md."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from pcdet.config import load_config
from pcdet.datasets.cloud_formats.layout import finite_rows
from pcdet.datasets.kitti.camera_clouds import CameraClouds
from pcdet.models.build import build_model
from pcdet.structures.batch import to_device
from pcdet.structures.detections import Detections
from pcdet.structures.scene import Scene
from pcdet.train_utils.checkpoint import load_checkpoint
from pcdet.train_utils.launch import choose_device
from pcdet.train_utils.weights import load_weights
from pcdet.utils.logging import get_logger

Cloud = str | os.PathLike | np.ndarray | Tensor


class Predictor:
    """A detector with the processing that its configuration asks for."""

    def __init__(self, model: torch.nn.Module, clouds: CameraClouds, device: torch.device):
        self.model = model.to(device).eval()
        self.clouds = clouds
        self.device = device

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the labels 1, 2, ..."""
        return self.clouds.class_names

    @overload
    def predict(self, points: Cloud, *, score: float = ..., batch_size: int = ...) -> Detections: ...

    @overload
    def predict(self, points: Sequence[Cloud], *, score: float = ..., batch_size: int = ...) -> list[Detections]: ...

    def predict(
        self, points: Cloud | Sequence[Cloud], *, score: float = 0.0, batch_size: int = 1
    ) -> Detections | list[Detections]:
        """Detections on the CPU; of a list of clouds a list.

        Args:
            points: A file of any format that the project reads, or an array (N, C) whose columns are the
                configuration's ``src_feature_list``, or a list of either. A file in KITTI's layout is cut to the
                camera's view if training did so; an array is taken whole.
            score: Leave out detections below this score; those below the configuration's SCORE_THRESH never come.
            batch_size: Clouds of a list that are run at once.

        Raises:
            ValueError: An array has another shape, or a file is damaged; the message names it.
        """
        many = isinstance(points, list | tuple)
        scenes = self.scenes(points if many else [points])
        found = list(self.detect(scenes, score, batch_size))
        return found if many else found[0]

    def scenes(self, points: Sequence[Cloud]) -> Iterator[Scene]:
        """The clouds as scenes, read when asked for; what looks unlike the configuration's data is logged."""
        for position, cloud in enumerate(points):
            if isinstance(cloud, str | os.PathLike):
                yield self.clouds.read_scene(Path(cloud))
            else:
                rows, dropped = finite_rows(self._rows(cloud, position))
                yield self.clouds.scene_of(rows, f"{position:06d}", f"cloud {position}", dropped)

    def _rows(self, cloud: np.ndarray | Tensor, position: int) -> np.ndarray:
        rows = cloud.detach().cpu().numpy() if isinstance(cloud, Tensor) else np.asarray(cloud)
        names = self.clouds.source_features
        if rows.ndim != 2 or rows.shape[1] != len(names):
            raise ValueError(
                f"cloud {position} has shape {rows.shape}, expected (N, {len(names)}): {' '.join(names)}; several "
                "clouds are given as a list"
            )
        return rows.astype(np.float32, copy=False)

    def detect(self, scenes: Iterator[Scene], score: float = 0.0, batch_size: int = 1) -> Iterator[Detections]:
        """Detections of each scene, from a score on, on the CPU."""
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, expected 1 or more")
        batch: list[dict[str, Any]] = []
        for scene in scenes:
            # Evaluation draws no random numbers. The image's size is of no use to a model.
            item = self.clouds.process(scene.with_(image_shape=None), np.random.default_rng(0))
            batch.append({**item, "index": len(batch)})
            if len(batch) == batch_size:
                yield from self._run(batch, score)
                batch = []
        if batch:
            yield from self._run(batch, score)

    def _run(self, items: Sequence[dict[str, Any]], score: float) -> Iterator[Detections]:
        with torch.no_grad():
            results = self.model(to_device(self.clouds.collate(items), self.device))
        for found in results:
            found = found.to("cpu")
            yield found[found.scores >= score]


def load_model(
    cfg: str | Path, ckpt: str | Path, device: str = "auto", overrides: Sequence[str] | None = None
) -> Predictor:
    """A detector ready to predict.

    Args:
        cfg: The model's YAML.
        ckpt: Its weights, of this project or of OpenPCDet.
        device: ``auto``, ``cpu`` or ``cuda``.
        overrides: Words as after ``--set``.

    Raises:
        ValueError: The configuration is wrong or of no detector, or the weights do not fit it.
        FileNotFoundError: A file is missing.
    """
    settings = load_config(cfg, overrides).settings
    data = settings.DATA_CONFIG
    if "POINT_CLOUD_RANGE" not in data:
        raise ValueError(f"predictions are of detectors; {data.DATASET} has no scenes. Evaluate with tools/test.py")
    clouds = CameraClouds([], data, settings.CLASS_NAMES, get_logger(), ground=anchor_ground(settings.MODEL))
    clouds.fov_points_only = data.get("FOV_POINTS_ONLY", True)
    model = build_model(settings.MODEL, clouds.info)
    load_weights(model, load_checkpoint(ckpt), ckpt)
    return Predictor(model, clouds, choose_device(device))


def anchor_ground(model: Mapping[str, Any]) -> float | None:
    """Where the lowest anchors of a MODEL block stand (metres), or ``None`` without anchors."""
    blocks = (model.get("DENSE_HEAD") or {}).get("ANCHOR_GENERATOR_CONFIG") or ()
    return min((float(height) for block in blocks for height in block["anchor_bottom_heights"]), default=None)
