"""KITTI's 3-D object data set (Geiger et al., "Are we ready for autonomous driving?", 2012)."""

import argparse
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from pcdet.datasets import DATASETS
from pcdet.datasets.clouds import cloud_doubts, read_cloud
from pcdet.datasets.dataset import SceneDataset, find_data_path
from pcdet.datasets.kitti.folder import POINT_FEATURES, KittiFolder, in_camera_view
from pcdet.datasets.kitti.infos import calib_from_info, create_infos
from pcdet.datasets.kitti.labels import camera_boxes, without_dont_care
from pcdet.datasets.kitti.results import detections_to_annos, write_results
from pcdet.structures.batch import Batch
from pcdet.structures.boxes import boxes_from_kitti_camera, wrap_angle
from pcdet.structures.detections import Detections
from pcdet.structures.scene import Scene
from pcdet.utils.files import read_pickle
from pcdet.utils.logging import setup_logger

if TYPE_CHECKING:
    from pcdet.evaluation.report import EvalReport


class SplitByMode(TypedDict, total=False):
    """The image set used in training and the one used in testing."""

    train: str
    test: str


class InfosByMode(TypedDict, total=False):
    """The info files used in training and those used in testing."""

    train: list[str]
    test: list[str]


class AugmentorSettings(TypedDict, total=False):
    """The block DATA_AUGMENTOR."""

    DISABLE_AUG_LIST: list[str]
    AUG_CONFIG_LIST: list[dict]


class PointFeatureSettings(TypedDict, total=False):
    """The block POINT_FEATURE_ENCODING; its keys are lower case, as in OpenPCDet."""

    encoding_type: str
    used_feature_list: list[str]
    src_feature_list: list[str]


@DATASETS.register
class KittiDataset(SceneDataset):
    """Frames of KITTI's layout, listed in info files that ``tools/create_data.py kitti`` writes.

    Raises ``FileNotFoundError`` that names the info file and the command where infos are absent, and ``ValueError``
    where a training set holds no box of a wanted class and ``keep_empty`` is not set.
    """

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
        )
        unknown = [name for name in get_item_list if name != "points"]
        if unknown:
            raise ValueError(f"GET_ITEM_LIST: {dataset} gives 'points' alone, not {unknown}")
        if not set(self.source_features) <= set(POINT_FEATURES):
            raise ValueError(f"src_feature_list: a KITTI cloud has {POINT_FEATURES}, not {self.source_features}")
        mode = "train" if training else "test"
        self.split = data_split[mode]
        self.folder = KittiFolder(self.root)
        self.fov_points_only = fov_points_only
        self.intensity_scale = intensity_scale
        self.keep_empty = keep_empty
        self.infos = self.read_infos(info_path[mode])
        self._warned: set[str] = set()
        if training:
            self.require_objects()
        self.look_at_inputs()

    def read_infos(self, files: Sequence[str]) -> list[dict[str, Any]]:
        """The infos of all files, in order."""
        infos: list[dict[str, Any]] = []
        for name in files:
            path = self.root / name
            if not path.is_file():
                raise FileNotFoundError(
                    f"{path} (INFO_PATH) is missing. Make it: python tools/create_data.py kitti --data_path {self.root}"
                )
            infos += read_pickle(path)
        if not infos:
            raise ValueError(f"{self.root}: {', '.join(files)} list no frame")
        self.logger.info("KITTI %s: %d frames", self.split, len(infos))
        return infos

    def require_objects(self) -> None:
        """Stop before training where nothing can be learned."""
        unlabelled = [i["point_cloud"]["lidar_idx"] for i in self.infos if "annos" not in i]
        if unlabelled:
            raise ValueError(f"{self.root}: frame {unlabelled[0]} of '{self.split}' has no labels to train on")
        if self.keep_empty or any(np.isin(i["annos"]["name"], self.class_names).any() for i in self.infos):
            return
        raise ValueError(
            f"0 usable objects: none of the {len(self.infos)} frames of '{self.split}' in {self.root} is labelled with "
            f"{list(self.class_names)}. Check CLASS_NAMES, or set KEEP_EMPTY True to train on empty scenes"
        )

    def look_at_inputs(self) -> None:
        """Say here, once, what loader processes would say again and again: odd points, absent road planes."""
        frames = [str(info["point_cloud"]["lidar_idx"]) for info in self.infos]
        for doubt in cloud_doubts(self.load_points(frames[0])):
            self.logger.warning("%s: %s", self.folder.cloud_path(self.split, frames[0]), doubt)
        if any(getattr(augment, "use_road_plane", False) for augment in self.augmentors):
            bare = [f for f in frames if not self.folder.plane_path(self.split, f).is_file()]
            if bare:
                self.logger.warning(
                    "USE_ROAD_PLANE: %d of %d frames, such as %s, have no road plane: pasted objects keep their own "
                    "height there",
                    len(bare),
                    len(frames),
                    bare[0],
                )

    def __len__(self) -> int:
        return len(self.infos)

    def allows_empty(self) -> bool:
        """As ``keep_empty`` says."""
        return self.keep_empty

    def load_scene(self, index: int) -> Scene:
        """The frame's points (those the camera sees, if FOV_POINTS_ONLY), boxes without DontCare, and road plane."""
        info = self.infos[index]
        frame_id = str(info["point_cloud"]["lidar_idx"])
        calib = calib_from_info(info["calib"])
        image_shape = np.asarray(info["image"]["image_shape"], dtype=np.int32)
        points = self.load_points(frame_id)
        if self.fov_points_only:
            points = points[in_camera_view(points, calib, image_shape)]
        scene = Scene(frame_id, points, calib=calib, image_shape=image_shape)
        if "annos" not in info:
            return scene
        annos = without_dont_care(info["annos"])
        boxes = boxes_from_kitti_camera(camera_boxes(annos), calib)
        boxes[:, 6] = wrap_angle(boxes[:, 6])
        plane = self.folder.road_plane(self.split, frame_id)
        return scene.with_(gt_boxes=boxes.astype(np.float32), gt_names=annos["name"], road_plane=plane)

    def load_points(self, frame_id: str) -> np.ndarray:
        """(N, C) float32 points of a frame, in the columns of ``src_feature_list``."""
        path = self.folder.cloud_path(self.split, frame_id)
        points, dropped = read_cloud(path)
        if dropped:
            self.warn_once("dropped", f"{path}: {dropped} points are NaN or infinite and were dropped, as in others")
        if self.intensity_scale != 1.0:
            points[:, 3] *= self.intensity_scale
        if self.source_features != POINT_FEATURES:
            points = points[:, [POINT_FEATURES.index(name) for name in self.source_features]]
        return points

    def warn_once(self, kind: str, message: str) -> None:
        """Log a warning unless one of its kind was logged before."""
        if kind not in self._warned:
            self._warned.add(kind)
            self.logger.warning("%s", message)

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
            stages = {"proposals": found.proposals, "refined": found.refined}
            annos |= {key: boxes.cpu().numpy() for key, boxes in stages.items() if boxes is not None}
            results.append({"frame_id": batch["frame_id"][i], "index": int(batch["index"][i]), **annos})
        return results

    def evaluate(
        self,
        results: Sequence[Mapping[str, Any]],
        *,
        score_threshold: float = 0.3,
        min_points: int = 0,
        recall_thresholds: Sequence[float] = (0.3, 0.5, 0.7),
    ) -> "EvalReport":
        """KITTI's metrics of one result a frame, then recall and precision of detections from a score on.

        The latter count labelled objects whose centre lies in POINT_CLOUD_RANGE, with ``min_points`` points or more.
        OpenPCDet's recall, by any box at ``recall_thresholds`` of 3-D IoU, counts all objects of the wanted classes;
        with a second stage it is that of all its boxes before suppression, beside the proposals' own.
        Without labels in the split there are no metrics, and the text says so.
        """
        from pcdet.evaluation.kitti import evaluate
        from pcdet.evaluation.recall import recall_by_stage, recall_precision
        from pcdet.evaluation.report import EvalReport

        if not all("annos" in info for info in self.infos):
            return EvalReport({}, f"no ground truth in this split, metrics skipped ({self.split}, {len(self)} frames)")
        ordered = [dict(r) for r in sorted(results, key=lambda r: r["index"])]
        truths = [self.infos[r["index"]]["annos"] for r in ordered]
        report = evaluate(truths, ordered, self.class_names)
        labelled = [self._labelled(annos) for annos in truths]
        boxes, names, points = ([row[column] for row in labelled] for column in range(3))
        table = recall_precision(
            boxes,
            names,
            points,
            ordered,
            class_names=self.class_names,
            score_threshold=score_threshold,
            min_points=min_points,
        )
        wanted = [b[np.isin(n, self.class_names)] for b, n in zip(boxes, names, strict=True)]
        recalls = recall_by_stage(wanted, ordered, recall_thresholds)
        lines = [f"{tag.replace('/', '_')}: {value:f}" for tag, value in recalls.items()]
        return EvalReport(report.metrics | table.metrics | recalls, "\n".join([report.text, table.text, *lines]))

    def _labelled(self, annos: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """LiDAR boxes (M, 7), names (M,) and point counts (M,) of a frame's objects, without DontCare.

        Objects whose centre lies outside POINT_CLOUD_RANGE count -1 points: nobody can be asked to find them, and
        finding one is no fault.
        """
        objects = np.asarray(annos["name"]) != "DontCare"
        boxes = np.asarray(annos["gt_boxes_lidar"]).reshape(-1, 7)
        low, high = self.point_cloud_range[:2], self.point_cloud_range[3:5]
        inside = ((boxes[:, :2] >= low) & (boxes[:, :2] <= high)).all(axis=1)
        return boxes, annos["name"][objects], np.where(inside, annos["num_points_in_gt"][objects], -1)

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
