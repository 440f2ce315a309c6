"""KITTI's object detection metric on the CPU, in float64."""

from collections.abc import Mapping, Sequence
from typing import Any

from pcdet.evaluation.kitti.average_precision import average_precisions
from pcdet.evaluation.kitti.files import read_annos
from pcdet.evaluation.kitti.measure import Entry
from pcdet.evaluation.kitti.report import metric_names, metrics_of, text_of
from pcdet.evaluation.report import EvalReport

__all__ = ["Entry", "average_precisions", "evaluate", "metric_names", "read_annos"]


def evaluate(
    gt_annos: Sequence[Mapping[str, Any]],
    dt_annos: Sequence[Mapping[str, Any]],
    class_names: Sequence[str],
    *,
    min_overlaps: Mapping[str, tuple[float, float]] | None = None,
    lidar_only: bool = False,
) -> EvalReport:
    """KITTI's table: bbox, bev, 3d and aos with 11 and 40 recall positions, at strict and loose overlaps.

    Args:
        gt_annos: One annotation dictionary a frame, in KITTI's camera frame and OpenPCDet's schema: ``name`` (N,),
            ``truncated``, ``occluded``, ``alpha``, ``bbox`` (N, 4), ``dimensions`` (N, 3) l h w, ``location`` (N, 3),
            ``rotation_y``. DontCare may stand anywhere; it forgives detections in the image only.
        dt_annos: The same for the detections, in the same order, with ``score``. Only the order of scores matters;
            of equal ones the first in the frame is taken.
        class_names: What to evaluate. Names are compared without case. Van is neutral for Car, Person_sitting for
            Pedestrian.
        min_overlaps: Class -> (strict, loose), where they shall differ from KITTI's 0.7, 0.5 / 0.5, 0.25 (also the
            default for classes that KITTI does not have).
        lidar_only: Do without 2-D boxes: no object is ignored for its height in the image, bbox and aos are left out.

    Returns:
        ``metrics`` as ``Car_3d/moderate_R40`` (percent, never NaN; what is not evaluated is 0) and the text. Without
        any ground truth of these classes there are no metrics, and the text says so.

    Raises:
        ValueError: The frames do not pair up, an array is missing or has another length, or a score, alpha or 2-D box
            is not finite. Degenerate boxes in space overlap nothing.
    """
    entries = average_precisions(gt_annos, dt_annos, class_names, min_overlaps=min_overlaps, lidar_only=lidar_only)
    wanted = {name.lower() for name in class_names}
    if not any(str(name).lower() in wanted for frame in gt_annos for name in frame["name"]):
        found = sum(len(frame["name"]) for frame in dt_annos)
        why = f"no ground truth of {', '.join(class_names)} in {len(gt_annos)} frames, metrics skipped"
        return EvalReport({}, f"{why} ({found} detections)")
    return EvalReport(metrics_of(entries), text_of(entries, len(gt_annos)))
