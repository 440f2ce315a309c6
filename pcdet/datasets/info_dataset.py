"""Data sets whose frames and labels are gathered in info files."""

import abc
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

import numpy as np

from pcdet.datasets.dataset import SceneDataset
from pcdet.structures.detections import Detections
from pcdet.structures.outcomes import Outcomes
from pcdet.utils.files import read_pickle

if TYPE_CHECKING:
    from pcdet.evaluation.analysis import Analysis, Objects
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
    """The block POINT_FEATURE_ENCODING; its keys are lower case, as in OpenPCDet.

    The last two are of :class:`pcdet.datasets.cloud_formats.CloudLayout`.
    """

    encoding_type: str
    used_feature_list: list[str]
    src_feature_list: list[str]
    field_names: dict[str, str]
    missing_values: dict[str, float]


class InfoDataset(SceneDataset):
    """Frames as info files list them: ``point_cloud.lidar_idx`` and, with labels, ``annos`` (OpenPCDet's schema).

    Raises ``FileNotFoundError`` that names the info file and the command where infos are absent, and ``ValueError``
    where a training set holds no box of a wanted class and ``keep_empty`` is not set.
    """

    title: ClassVar[str]  # how the log calls the data set
    # Class (lower case) -> class of labels that is neither asked for nor held against it.
    neutral: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        class_names: Sequence[str],
        training: bool,
        seed: int,
        logger: logging.Logger,
        *,
        root: Path,
        data_split: SplitByMode,
        info_path: InfosByMode,
        keep_empty: bool,
        **flow: Any,
    ):
        super().__init__(class_names, training, seed, logger, root=root, **flow)
        mode = "train" if training else "test"
        self.split = data_split[mode]
        self.keep_empty = keep_empty
        self.infos = self.read_infos(info_path[mode])
        self._warned: set[str] = set()
        if training:
            self.require_objects()

    @abc.abstractmethod
    def make_command(self) -> str:
        """The command that makes the info files."""

    @abc.abstractmethod
    def average_precision(
        self, truths: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]
    ) -> "EvalReport":
        """AP of one result a frame against the frames' ``annos``."""

    @abc.abstractmethod
    def precision_names(self) -> set[str]:
        """Every metric that :meth:`average_precision` may give."""

    @abc.abstractmethod
    def objects_of(self, truths: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]) -> "Objects":
        """What the analysis measures: the frames' ``annos`` with one result a frame."""

    def overlap_thresholds(self) -> Mapping[str, float] | None:
        """Class -> 3-D IoU of a find in recall and precision, where it differs from KITTI's."""
        return None

    def read_infos(self, files: Sequence[str]) -> list[dict[str, Any]]:
        """The infos of all files, in order."""
        infos: list[dict[str, Any]] = []
        for name in files:
            path = self.root / name
            if not path.is_file():
                raise FileNotFoundError(f"{path} (INFO_PATH) is missing. Make it: {self.make_command()}")
            infos += read_pickle(path)
        if not infos:
            raise ValueError(f"{self.root}: {', '.join(files)} list no frame")
        self.logger.info("%s %s: %d frames", self.title, self.split, len(infos))
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

    def __len__(self) -> int:
        return len(self.infos)

    @property
    def has_labels(self) -> bool:
        """Is every frame labelled?"""
        return all("annos" in info for info in self.infos)

    def allows_empty(self) -> bool:
        """As ``keep_empty`` says."""
        return self.keep_empty

    def warn_once(self, kind: str, message: str) -> None:
        """Log a warning unless one of its kind was logged before."""
        if kind not in self._warned:
            self._warned.add(kind)
            self.logger.warning("%s", message)

    def evaluate(
        self,
        results: Sequence[Mapping[str, Any]],
        *,
        score_threshold: float = 0.3,
        min_points: int = 0,
        recall_thresholds: Sequence[float] = (0.3, 0.5, 0.7),
    ) -> "EvalReport":
        """AP of one result a frame, then recall and precision of detections from a score on.

        The latter count labelled objects whose centre lies in POINT_CLOUD_RANGE, with ``min_points`` points or more.
        OpenPCDet's recall, by any box at ``recall_thresholds`` of 3-D IoU, counts all objects of the wanted classes;
        with a second stage it is that of all its boxes before suppression, beside the proposals' own.
        Without labels in the split there are no metrics, and the text says so.
        """
        from pcdet.evaluation.recall import recall_by_stage, recall_precision
        from pcdet.evaluation.report import EvalReport

        if not self.has_labels:
            return EvalReport({}, f"no ground truth in this split, metrics skipped ({self.split}, {len(self)} frames)")
        ordered = [dict(r) for r in sorted(results, key=lambda r: r["index"])]
        truths = [self.infos[r["index"]]["annos"] for r in ordered]
        report = self.average_precision(truths, ordered)
        labelled = [self.labelled(annos) for annos in truths]
        boxes, names, points = ([row[column] for row in labelled] for column in range(3))
        table = recall_precision(
            boxes,
            names,
            points,
            ordered,
            class_names=self.class_names,
            score_threshold=score_threshold,
            iou_threshold=self.overlap_thresholds(),
            min_points=min_points,
            neutral=self.neutral,
        )
        wanted = [b[np.isin(n, self.class_names)] for b, n in zip(boxes, names, strict=True)]
        recalls = recall_by_stage(wanted, ordered, recall_thresholds)
        lines = [f"{tag.replace('/', '_')}: {value:f}" for tag, value in recalls.items()]
        return EvalReport(report.metrics | table.metrics | recalls, "\n".join([report.text, table.text, *lines]))

    def metric_names(self, *, recall_thresholds: Sequence[float] = (0.3, 0.5, 0.7)) -> set[str]:
        """Every metric that :meth:`evaluate` may give, with these options; none where the split has no labels."""
        from pcdet.evaluation.recall import metric_names

        return self.precision_names() | metric_names(self.class_names, recall_thresholds) if self.has_labels else set()

    def truths_of(self, results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The ``annos`` of the frame of each result. Raises ``ValueError`` where the split has no labels."""
        if not self.has_labels:
            raise ValueError(f"no ground truth in {self.split}: nothing can be judged right or wrong")
        return [self.infos[r["index"]]["annos"] for r in results]

    def analyse(self, results: Sequence[Mapping[str, Any]], score: float) -> "Analysis":
        """By distance, points and occlusion, confusions, headings, calibration. Errors as in :meth:`truths_of`."""
        from pcdet.evaluation.analysis import analyse

        objects = self.objects_of(self.truths_of(results), results)
        return analyse(objects, self.class_names, score=score, min_overlaps=self.strict_and_loose())

    def outcomes(self, results: Sequence[Mapping[str, Any]], scores: Sequence[float]) -> list[dict[float, Outcomes]]:
        """Of every frame: which detections are hits, which labelled objects were found, counted from each score on.

        The matching is the metric's, class by class at its strict overlap in 3-D. Verdicts on labelled objects are in
        the order of a scene's ``gt_boxes``. Errors as in :meth:`truths_of`.
        """
        from pcdet.evaluation.analysis import outcomes
        from pcdet.evaluation.classes import min_overlaps_of

        truths = self.truths_of(results)
        least = [pair.strict for pair in min_overlaps_of(self.class_names, self.strict_and_loose())]
        objects = self.objects_of(truths, results)
        by_score = {score: outcomes(objects, self.class_names, least, score) for score in scores}
        cared = [np.asarray(annos["name"]) != "DontCare" for annos in truths]
        return [
            {score: Outcomes(frames[f].found, frames[f].truth[keep]) for score, frames in by_score.items()}
            for f, keep in enumerate(cared)
        ]

    def strict_and_loose(self) -> Mapping[str, tuple[float, float]] | None:
        """Class -> minimum overlaps of AP, where they differ from KITTI's."""
        return None

    def labelled(self, annos: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """LiDAR boxes (M, 7), names (M,) and point counts (M,) of a frame's objects, without DontCare.

        Objects whose centre lies outside POINT_CLOUD_RANGE count -1 points: nobody can be asked to find them, and
        finding one is no fault.
        """
        objects = np.asarray(annos["name"]) != "DontCare"
        boxes = np.asarray(annos["gt_boxes_lidar"]).reshape(-1, 7)
        unknown = np.full(len(objects), np.iinfo(np.int32).max)  # infos of OpenPCDet's custom data hold no counts
        points = np.asarray(annos.get("num_points_in_gt", unknown))[objects]
        return boxes, np.asarray(annos["name"])[objects], np.where(self.in_range(boxes), points, -1)

    def in_range(self, boxes: np.ndarray) -> np.ndarray:
        """(M, 7) -> (M,) bool: is the centre in POINT_CLOUD_RANGE, seen from above?"""
        low, high = self.point_cloud_range[:2], self.point_cloud_range[3:5]
        return ((boxes[:, :2] >= low) & (boxes[:, :2] <= high)).all(axis=1)


def stages_of(found: Detections) -> dict[str, np.ndarray]:
    """Of a model of two stages, ``proposals`` and ``refined``: the LiDAR boxes before and after the second one."""
    stages = {"proposals": found.proposals, "refined": found.refined}
    return {key: boxes.cpu().numpy() for key, boxes in stages.items() if boxes is not None}


def without_stages(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Results as they are written: without the boxes of :func:`stages_of`."""
    return [{k: v for k, v in annos.items() if k not in ("proposals", "refined")} for annos in results]
