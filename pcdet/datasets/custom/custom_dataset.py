"""Own LiDAR data in OpenPCDet's custom layout: clouds and boxes in the LiDAR frame, no camera."""

import argparse
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from pcdet.datasets import DATASETS
from pcdet.datasets.clouds import cloud_doubts
from pcdet.datasets.custom.folder import CustomFolder
from pcdet.datasets.custom.infos import create_infos
from pcdet.datasets.custom.reading import CustomReader
from pcdet.datasets.custom.results import write_results
from pcdet.datasets.dataset import cloud_layout, find_data_path
from pcdet.datasets.info_dataset import (
    AugmentorSettings,
    InfoDataset,
    InfosByMode,
    PointFeatureSettings,
    SplitByMode,
    stages_of,
)
from pcdet.evaluation.classes import KittiClassMap, min_overlaps_of
from pcdet.structures.batch import Batch
from pcdet.structures.boxes import wrap_angle
from pcdet.structures.detections import Detections
from pcdet.structures.scene import Scene
from pcdet.utils.logging import setup_logger

if TYPE_CHECKING:
    from pcdet.evaluation.analysis import Objects
    from pcdet.evaluation.report import EvalReport

OUTSIDE = "centre outside POINT_CLOUD_RANGE"


class BoxConventionSettings(TypedDict, total=False):
    """The block BOX_CONVENTION, see :class:`pcdet.structures.box_convention.BoxConvention`."""

    origin: Literal["center", "bottom"]
    clockwise: bool
    order: Literal["lwh", "lhw", "wlh", "whl", "hlw", "hwl"]
    unit: Literal["rad", "deg"]
    zero: Literal["x", "y", "-x", "-y"]


class LidarMetricSettings(TypedDict, total=False):
    """The block EVALUATION: overlaps by class (strict, loose) and the borders of bands."""

    MIN_OVERLAPS: dict[str, list[float]]
    DISTANCE_BANDS: list[float]
    POINT_BANDS: list[int]


LabelFormatName = Literal["openpcdet", "kitti", "kitti_lidar", "labelcloud", "csv"]


@DATASETS.register
class CustomDataset(InfoDataset):
    """Frames of OpenPCDet's custom layout, listed in info files that ``tools/create_data.py custom`` writes.

    LABEL_FORMAT, BOX_CONVENTION and CLASS_MAP are applied when the infos are made; changing them asks for new ones.
    Errors are those of :class:`InfoDataset`, and ``ValueError`` for overlaps or bands that cannot be evaluated, before
    training.
    """

    title = "Custom data"

    def __init__(
        self,
        class_names: Sequence[str],
        training: bool,
        seed: int,
        logger: logging.Logger,
        *,
        dataset: str = "CustomDataset",
        data_path: str,
        point_cloud_range: Sequence[float],
        data_split: SplitByMode,
        info_path: InfosByMode,
        point_feature_encoding: PointFeatureSettings,
        data_processor: Sequence[dict],
        data_augmentor: AugmentorSettings | None = None,
        map_class_to_kitti: dict[str, str] | None = None,
        class_map: dict[str, str | None] | None = None,
        box_convention: BoxConventionSettings | None = None,
        label_format: LabelFormatName = "openpcdet",
        max_sweeps: int = 1,
        evaluation: LidarMetricSettings | None = None,
        intensity_scale: float = 1.0,
        keep_empty: bool = False,
    ):
        super().__init__(
            class_names,
            training,
            seed,
            logger,
            root=find_data_path(data_path),
            point_cloud_range=point_cloud_range,
            point_feature_encoding=point_feature_encoding,
            data_augmentor=data_augmentor,
            data_processor=data_processor,
            data_split=data_split,
            info_path=info_path,
            keep_empty=keep_empty,
        )
        from pcdet.evaluation.lidar import make_bands

        wanted = evaluation or {}
        self.min_overlaps = KittiClassMap(map_class_to_kitti).min_overlaps(wanted.get("MIN_OVERLAPS"))
        min_overlaps_of(class_names, self.min_overlaps)
        self.bands = make_bands(wanted.get("DISTANCE_BANDS", (30, 50)), wanted.get("POINT_BANDS", ()))
        layout = cloud_layout(point_feature_encoding)
        self.reader = CustomReader(CustomFolder(self.root), layout, box_convention, class_map, label_format, max_sweeps)
        self.intensity_scale = intensity_scale
        self.look_at_inputs()

    def make_command(self) -> str:
        """``tools/create_data.py custom``."""
        return f"python tools/create_data.py custom --cfg_file YAML --data_path {self.root}"

    def look_at_inputs(self) -> None:
        """Say once what is odd about the first cloud, and which labelled classes are not learned."""
        if "intensity" in self.source_features:
            first = str(self.infos[0]["point_cloud"]["lidar_idx"])
            columns = [0, 1, 2, self.source_features.index("intensity")]
            for doubt in cloud_doubts(self.load_points(first)[:, columns]):
                self.logger.warning("%s: %s", self.reader.folder.cloud_path(first), doubt)
        names = [np.asarray(info["annos"]["name"]) for info in self.infos if "annos" in info]
        found, counts = np.unique(np.concatenate(names), return_counts=True) if names else ((), ())
        others = [f"{n} {c}" for n, c in zip(found, counts, strict=True) if n not in self.class_names]
        if others:
            self.logger.warning(
                "%s: labelled classes that CLASS_NAMES does not name are left out: %s", self.split, ", ".join(others)
            )

    def load_points(self, frame_id: str) -> np.ndarray:
        """(N, C) float32 points of a frame, in the columns of ``src_feature_list``."""
        points, dropped = self.reader.points(frame_id)
        if dropped:
            path = self.reader.folder.cloud_path(frame_id)
            self.warn_once(
                "nan", f"{path}: {dropped} points are NaN or infinite and were dropped; more clouds may be so"
            )
        if self.intensity_scale != 1.0 and "intensity" in self.source_features:
            points[:, self.source_features.index("intensity")] *= self.intensity_scale
        return points

    def load_scene(self, index: int) -> Scene:
        """The frame's points and boxes."""
        info = self.infos[index]
        frame_id = str(info["point_cloud"]["lidar_idx"])
        scene = Scene(frame_id, self.load_points(frame_id))
        if "annos" not in info:
            return scene
        boxes = np.array(info["annos"]["gt_boxes_lidar"], dtype=np.float64).reshape(-1, 7)
        boxes[:, 6] = wrap_angle(boxes[:, 6])
        return scene.with_(gt_boxes=boxes.astype(np.float32), gt_names=np.asarray(info["annos"]["name"], dtype=np.str_))

    def to_results(self, batch: Batch, predictions: Sequence[Detections]) -> list[dict[str, Any]]:
        """One result a scene: ``frame_id``, ``index``, ``name``, ``score``, ``boxes_lidar``, ``pred_labels``.

        Of a model of two stages also ``proposals`` and ``refined``, the LiDAR boxes before and after the second one.
        """
        results = []
        for i, found in enumerate(predictions):
            labels = found.labels.cpu().numpy()
            annos = {
                "frame_id": batch["frame_id"][i],
                "index": int(batch["index"][i]),
                "name": np.array(self.class_names)[labels - 1] if len(labels) else np.zeros(0, dtype="<U1"),
                "score": found.scores.detach().cpu().double().numpy(),
                "boxes_lidar": found.boxes[:, :7].detach().cpu().double().numpy(),
                "pred_labels": labels,
            }
            results.append(annos | stages_of(found))
        return results

    def average_precision(
        self, truths: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]
    ) -> "EvalReport":
        """AP in 3-D and from above, in the LiDAR frame. Objects outside POINT_CLOUD_RANGE are not asked for."""
        from pcdet.evaluation.lidar import evaluate

        return evaluate(
            truths,
            results,
            self.class_names,
            min_overlaps=self.min_overlaps,
            bands=self.bands,
            ignored=self.outside(truths),
            why_ignored=OUTSIDE,
        )

    def precision_names(self) -> set[str]:
        """By class and band."""
        from pcdet.evaluation.lidar import metric_names

        return metric_names(self.class_names, self.bands)

    def objects_of(self, truths: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]) -> "Objects":
        """In the LiDAR frame. Objects outside POINT_CLOUD_RANGE are not asked for."""
        from pcdet.evaluation.analysis import lidar_objects

        return lidar_objects(truths, results, ignored=self.outside(truths), why_ignored=OUTSIDE)

    def outside(self, truths: Sequence[Mapping[str, Any]]) -> list[np.ndarray]:
        """(M,) bool of each frame: is an object's centre outside POINT_CLOUD_RANGE?"""
        return [~self.in_range(np.asarray(annos["gt_boxes_lidar"]).reshape(-1, 7)) for annos in truths]

    def strict_and_loose(self) -> Mapping[str, tuple[float, float]]:
        """MIN_OVERLAPS, or those of KITTI's classes that stand for these."""
        return self.min_overlaps

    def overlap_thresholds(self) -> Mapping[str, float]:
        """The strict overlaps of AP."""
        return {name: pair.strict for name, pair in self.min_overlaps.items()}

    def write_results(self, results: Sequence[Mapping[str, Any]], folder: str) -> None:
        """Write label files with scores and ``results.json`` into ``folder``."""
        write_results(results, folder)


def main(arguments: Sequence[str] | None = None) -> None:
    """``python -m pcdet.datasets.custom.custom_dataset create_custom_infos <yaml>``, OpenPCDet's command."""
    from pcdet.config import load_dataset_config

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("command", choices=["create_custom_infos"])
    parser.add_argument("yaml", help="a data set's YAML, such as cfgs/dataset_configs/custom_dataset.yaml")
    given = parser.parse_args(arguments)
    logger = setup_logger()
    logger.info("infos and database are written\n%s", create_infos(load_dataset_config(given.yaml)))


if __name__ == "__main__":
    main()
