"""KITTI's 3-D object data set (Geiger et al., "Are we ready for autonomous driving?", 2012)."""

import argparse
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pcdet.datasets import DATASETS
from pcdet.datasets.clouds import cloud_doubts, read_cloud
from pcdet.datasets.dataset import find_data_path
from pcdet.datasets.info_dataset import (
    AugmentorSettings,
    InfoDataset,
    InfosByMode,
    PointFeatureSettings,
    SplitByMode,
    stages_of,
)
from pcdet.datasets.kitti.camera_views import CameraViews
from pcdet.datasets.kitti.folder import POINT_FEATURES, KittiFolder
from pcdet.datasets.kitti.infos import calib_from_info, create_infos
from pcdet.datasets.kitti.labels import camera_boxes, without_dont_care
from pcdet.datasets.kitti.results import detections_to_annos, write_results
from pcdet.evaluation.classes import NEIGHBOURS
from pcdet.structures.batch import Batch
from pcdet.structures.boxes import boxes_from_kitti_camera, wrap_angle
from pcdet.structures.detections import Detections
from pcdet.structures.scene import Scene
from pcdet.utils.logging import setup_logger

if TYPE_CHECKING:
    from pcdet.evaluation.analysis import Objects
    from pcdet.evaluation.report import EvalReport


@DATASETS.register
class KittiDataset(InfoDataset):
    """Frames of KITTI's layout, listed in info files that ``tools/create_data.py kitti`` writes.

    Raises ``FileNotFoundError`` that names the info file and the command where infos are absent, and ``ValueError``
    where a training set holds no box of a wanted class and ``keep_empty`` is not set.

    With ``fov_cache`` the points that the camera sees are kept in files, see :mod:`pcdet.datasets.kitti.camera_views`.
    """

    title = "KITTI"
    neutral = NEIGHBOURS

    def __init__(
        self,
        class_names: Sequence[str],
        training: bool,
        seed: int,
        logger: logging.Logger,
        *,
        dataset: str = "KittiDataset",
        data_path: str,
        point_cloud_range: Sequence[float],
        data_split: SplitByMode,
        info_path: InfosByMode,
        point_feature_encoding: PointFeatureSettings,
        data_processor: Sequence[dict],
        data_augmentor: AugmentorSettings | None = None,
        get_item_list: Sequence[str] = ("points",),
        fov_points_only: bool = True,
        fov_cache: bool = True,
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
        unknown = [name for name in get_item_list if name != "points"]
        if unknown:
            raise ValueError(f"GET_ITEM_LIST: {dataset} gives 'points' alone, not {unknown}")
        for key in {"field_names", "missing_values"} & point_feature_encoding.keys():
            raise ValueError(
                f"POINT_FEATURE_ENCODING.{key}: KITTI's clouds hold {POINT_FEATURES} by place, in all files"
            )
        if not set(self.source_features) <= set(POINT_FEATURES):
            raise ValueError(f"src_feature_list: a KITTI cloud has {POINT_FEATURES}, not {self.source_features}")
        self.folder = KittiFolder(self.root)
        self.fov_points_only = fov_points_only
        self.views = CameraViews(self.root, logger, keep=fov_cache)
        self.intensity_scale = intensity_scale
        self.planes: dict[str, np.ndarray | None] = {}
        self.look_at_inputs()

    def make_command(self) -> str:
        """``tools/create_data.py kitti``."""
        return f"python tools/create_data.py kitti --data_path {self.root}"

    def look_at_inputs(self) -> None:
        """Say here, once, what loader processes would say again and again: odd points, absent road planes.

        The planes themselves, if objects are to be set down on them, are kept: they are 32 bytes each.
        """
        frames = [str(info["point_cloud"]["lidar_idx"]) for info in self.infos]
        for doubt in cloud_doubts(self.load_points(frames[0])):
            self.logger.warning("%s: %s", self.folder.cloud_path(self.split, frames[0]), doubt)
        if any(getattr(augment, "use_road_plane", False) for augment in self.augmentors):
            self.planes = {f: self.folder.road_plane(self.split, f) for f in frames}
            bare = [f for f, plane in self.planes.items() if plane is None]
            if bare:
                self.logger.warning(
                    "USE_ROAD_PLANE: %d of %d frames, such as %s, have no road plane: pasted objects keep their own "
                    "height there",
                    len(bare),
                    len(frames),
                    bare[0],
                )

    def load_scene(self, index: int) -> Scene:
        """The frame's points (those the camera sees, if FOV_POINTS_ONLY), boxes without DontCare.

        Where an augmentor uses road planes, also the frame's.
        """
        info = self.infos[index]
        frame_id = str(info["point_cloud"]["lidar_idx"])
        calib = calib_from_info(info["calib"])
        image_shape = np.asarray(info["image"]["image_shape"], dtype=np.int32)
        path = self.folder.cloud_path(self.split, frame_id)
        view = self.views.read(path, calib, image_shape) if self.fov_points_only else read_cloud(path)
        points = self.to_features(*view, path)
        scene = Scene(frame_id, points, calib=calib, image_shape=image_shape)
        if "annos" not in info:
            return scene
        annos = without_dont_care(info["annos"])
        boxes = boxes_from_kitti_camera(camera_boxes(annos), calib)
        boxes[:, 6] = wrap_angle(boxes[:, 6])
        plane = self.planes.get(frame_id)
        return scene.with_(gt_boxes=boxes.astype(np.float32), gt_names=annos["name"], road_plane=plane)

    def load_points(self, frame_id: str) -> np.ndarray:
        """(N, C) float32 points of a frame, in the columns of ``src_feature_list``."""
        path = self.folder.cloud_path(self.split, frame_id)
        return self.to_features(*read_cloud(path), path)

    def to_features(self, points: np.ndarray, dropped: int, path: Path) -> np.ndarray:
        """Points as the file ``path`` holds them -> the columns of ``src_feature_list``, intensity scaled."""
        if dropped:
            self.warn_once("dropped", f"{path}: {dropped} points are NaN or infinite and were dropped, as in others")
        if self.intensity_scale != 1.0:
            points[:, 3] *= self.intensity_scale
        if self.source_features != POINT_FEATURES:
            points = points[:, [POINT_FEATURES.index(name) for name in self.source_features]]
        return points

    def to_results(self, batch: Batch, predictions: Sequence[Detections]) -> list[dict[str, Any]]:
        """One result a scene of the batch: OpenPCDet's annotation arrays with ``frame_id`` and ``index``.

        Of a model of two stages also ``proposals`` and ``refined``, the LiDAR boxes before and after the second one.
        """
        results = []
        for i, found in enumerate(predictions):
            annos = detections_to_annos(
                found.boxes.detach().cpu().double().numpy(),
                found.scores.detach().cpu().double().numpy(),
                found.labels.cpu().numpy(),
                self.class_names,
                batch["calib"][i],
                np.asarray(batch["image_shape"][i].cpu()),
            )
            place = {"frame_id": batch["frame_id"][i], "index": int(batch["index"][i])}
            results.append(place | annos | stages_of(found))
        return results

    def average_precision(
        self, truths: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]
    ) -> "EvalReport":
        """KITTI's table."""
        from pcdet.evaluation.kitti import evaluate

        return evaluate(truths, results, self.class_names)

    def precision_names(self) -> set[str]:
        """Those of KITTI's table."""
        from pcdet.evaluation.kitti import metric_names

        return metric_names(self.class_names)

    def objects_of(self, truths: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]) -> "Objects":
        """In the camera frame, with the points of each box where the infos count them."""
        from pcdet.evaluation.analysis import kitti_objects

        counts = [annos.get("num_points_in_gt") for annos in truths]
        return kitti_objects(truths, results, points=None if any(c is None for c in counts) else counts)

    def write_results(self, results: Sequence[Mapping[str, Any]], folder: str | Path) -> None:
        """Write KITTI label files and ``results.json`` into ``folder``."""
        write_results(results, folder)


def main(arguments: Sequence[str] | None = None) -> None:
    """``python -m pcdet.datasets.kitti.kitti_dataset create_kitti_infos <yaml>``, OpenPCDet's command."""
    from pcdet.config import load_dataset_config

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("command", choices=["create_kitti_infos"])
    parser.add_argument("yaml", help="a data set's YAML, such as cfgs/dataset_configs/kitti_dataset.yaml")
    given = parser.parse_args(arguments)
    logger = setup_logger()
    table = create_infos(find_data_path(load_dataset_config(given.yaml)["DATA_PATH"]))
    logger.info("infos and database are written\n%s", table)


if __name__ == "__main__":
    main()
