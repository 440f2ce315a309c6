"""Scenes from above: points by height, detections by class, ground truth in white."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from pcdet.structures.boxes import box_corners
from pcdet.structures.detections import Detections
from pcdet.visual.canvas import GROUND_TRUTH, as_boxes, as_labels, class_color, new_figure, save_png

BACKGROUND = "#0d1117"
TEXT = "#c9d1d9"
# Blue to pale grey: boxes in saturated colours stand out from the points.
HEIGHTS = LinearSegmentedColormap.from_list("heights", ["#27457a", "#3a6ea8", "#7396bf", "#aab9cf", "#e4e6ea"])
MAX_WIDTH, MAX_HEIGHT = 1400, 1100  # pixels of the scene, without margins
MAX_SCALE = 40.0  # pixels a metre
LEFT, RIGHT, TOP, BOTTOM = 64, 190, 44, 48  # margins in pixels
DEFAULT_RANGE = (0.0, -40.0, 70.4, 40.0)
MIN_EXTENT = 10.0  # metres
FARTHEST = 1000.0  # metres; a view is never stretched to what lies beyond, which no LiDAR measured


@dataclass(frozen=True)
class View:
    """The part of the ground that a picture shows (metres, LiDAR frame) and its scale; x points up, y to the left."""

    x_min: float
    y_min: float
    x_max: float
    y_max: float
    scale: float  # pixels a metre

    @property
    def width(self) -> int:
        """Pixels from left to right, without margins."""
        return round((self.y_max - self.y_min) * self.scale)

    @property
    def height(self) -> int:
        """Pixels from top to bottom, without margins."""
        return round((self.x_max - self.x_min) * self.scale)

    def pixel(self, x: float, y: float) -> tuple[int, int]:
        """Row and column, in the whole picture, of a place on the ground."""
        return TOP + int((self.x_max - x) * self.scale), LEFT + int((self.y_max - y) * self.scale)


def draw_bev(
    points: np.ndarray,
    path: str | Path,
    *,
    detections: Detections | None = None,
    gt_boxes: np.ndarray | None = None,
    class_names: Sequence[str],
    point_cloud_range: Sequence[float] | None = None,
    title: str = "",
) -> Path:
    """Draw a scene from above into a PNG file and return its path.

    Args:
        points: (N, 3+) x y z in metres, LiDAR frame; points that are not finite are left out.
        path: The file; its folder is made.
        detections: Boxes with scores and 1-based labels; boxes that are not finite are left out.
        gt_boxes: (M, 7+) labelled boxes, drawn in dashed white.
        class_names: Names for the legend, in the order of the labels.
        point_cloud_range: (6,) x y z minimum, x y z maximum of what is shown; by default what the points span.
        title: A line above the picture.

    Raises:
        ValueError: An argument has another shape, or a label is not one of ``class_names``.
    """
    points = _finite_points(points)
    boxes, scores, labels = _unpack(detections, class_names)
    truth = as_boxes(gt_boxes, "gt_boxes")
    truth = truth[np.isfinite(truth).all(axis=1)]
    view = choose_view(points, np.concatenate([boxes, truth]), point_cloud_range)
    figure = new_figure(LEFT + view.width + RIGHT, TOP + view.height + BOTTOM, BACKGROUND)
    axes = _scene_axes(figure, view, title)
    _draw_points(figure, axes, view, points)
    _draw_ground_truth(axes, truth)
    _draw_detections(axes, view, boxes, scores, labels)
    _draw_legend(figure, view, labels, class_names, len(truth) if gt_boxes is not None else None)
    return save_png(figure, path)


def _finite_points(points: np.ndarray) -> np.ndarray:
    points = np.asarray(points)
    if points.ndim != 2 or points.shape[1] < 3:
        raise ValueError(f"points have shape {points.shape}, expected (N, 3 or more): x y z ...")
    return points[np.isfinite(points[:, :3]).all(axis=1), :3].astype(np.float64)


def _unpack(detections: Detections | None, class_names: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(M, 7) boxes, (M,) scores and (M,) labels of the finite boxes."""
    if detections is None:
        detections = Detections.empty()
    boxes = as_boxes(detections.boxes.detach().cpu().double().numpy(), "detections.boxes")
    labels = as_labels(detections.labels.cpu().numpy(), len(boxes), class_names)
    keep = np.isfinite(boxes).all(axis=1)
    return boxes[keep], detections.scores.detach().cpu().double().numpy()[keep], labels[keep]


def choose_view(points: np.ndarray, boxes: np.ndarray, point_cloud_range: Sequence[float] | None = None) -> View:
    """What to show: the range if given, else nearly all points and all boxes.

    ``points`` is (N, 3), ``boxes`` (M, 7), both finite. A narrow strip is widened to half its length.
    """
    if point_cloud_range is not None:
        if len(point_cloud_range) != 6:
            raise ValueError(f"point_cloud_range has {len(point_cloud_range)} numbers, expected 6: minimum, maximum")
        low, high = np.array(point_cloud_range[:2], float), np.array(point_cloud_range[3:5], float)
        if not (low < high).all():
            raise ValueError(
                f"point_cloud_range {list(point_cloud_range)} is empty; each minimum must be below its maximum"
            )
    else:
        low, high = _span(points, boxes)
    extent = high - low
    wanted = np.maximum(extent, extent.max() / 2)
    low, high = low - (wanted - extent) / 2, high + (wanted - extent) / 2
    scale = min(MAX_WIDTH / wanted[1], MAX_HEIGHT / wanted[0], MAX_SCALE)
    return View(*low.tolist(), *high.tolist(), scale=float(scale))


def _span(points: np.ndarray, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper corner (x, y) around the points, stray ones aside, and the boxes."""
    near = points[(np.abs(points[:, :2]) < FARTHEST).all(axis=1), :2]
    corners = box_corners(boxes)[..., :2].reshape(-1, 2)
    corners = corners[(np.abs(corners) < FARTHEST).all(axis=1)]
    if not len(near) + len(corners):
        return np.array(DEFAULT_RANGE[:2]), np.array(DEFAULT_RANGE[2:])
    places = np.concatenate([np.percentile(near, [0.2, 99.8], axis=0), corners]) if len(near) else corners
    low, high = places.min(axis=0), places.max(axis=0)
    margin = np.maximum(1.0, (MIN_EXTENT - (high - low)) / 2)
    return low - margin, high + margin


def _scene_axes(figure: Figure, view: View, title: str) -> Axes:
    """Axes whose pixels are the view's, with a grid in metres and a mark where the sensor is."""
    width, height = figure.bbox.size
    axes = figure.add_axes((LEFT / width, BOTTOM / height, view.width / width, view.height / height))
    axes.set_facecolor(BACKGROUND)
    axes.set_xlim(view.y_max, view.y_min)
    axes.set_ylim(view.x_min, view.x_max)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=10, steps=[1, 2, 5, 10]))
    axes.grid(color="#ffffff", alpha=0.12, linewidth=0.8)
    axes.tick_params(colors=TEXT, labelsize=9, length=3)
    for side in axes.spines.values():
        side.set_color("#30363d")
    axes.set_xlabel("y, to the left (m)", color=TEXT, fontsize=10)
    axes.set_ylabel("x, forward (m)", color=TEXT, fontsize=10)
    axes.set_title(title, color=TEXT, fontsize=12, loc="left")
    if view.x_min <= 0 <= view.x_max and view.y_min <= 0 <= view.y_max:
        axes.plot([0], [0], "^", color=TEXT, markersize=9, markeredgecolor=BACKGROUND, clip_on=False, zorder=2)
    return axes


def _draw_points(figure: Figure, axes: Axes, view: View, points: np.ndarray) -> None:
    """Points as two by two pixels; where several fall on one place the highest is seen."""
    row = (view.x_max - points[:, 0]) * view.scale
    column = (view.y_max - points[:, 1]) * view.scale
    seen = (row >= 0) & (row < view.height) & (column >= 0) & (column < view.width)
    if not seen.any():
        return
    z = points[seen, 2]
    norm = Normalize(*np.percentile(z, [1, 99]))
    order = np.argsort(z, kind="stable")
    row, column = row[seen][order].astype(np.int64), column[seen][order].astype(np.int64)
    colors = HEIGHTS(norm(z[order]), bytes=True)  # (N, 4)
    raster = np.zeros((view.height + 1, view.width + 1, 4), dtype=np.uint8)
    for down, right in ((1, 1), (1, 0), (0, 1), (0, 0)):
        raster[row + down, column + right] = colors
    extent = (view.y_max, view.y_min, view.x_min, view.x_max)
    axes.imshow(raster[:-1, :-1], extent=extent, interpolation="nearest", aspect="auto", zorder=1)
    _draw_height_bar(figure, view, norm)


def _draw_height_bar(figure: Figure, view: View, norm: Normalize) -> None:
    width, height = figure.bbox.size
    long = min(180, view.height // 2)
    place = figure.add_axes(((LEFT + view.width + 20) / width, (BOTTOM + 8) / height, 12 / width, long / height))
    bar = figure.colorbar(ScalarMappable(norm, HEIGHTS), cax=place)
    bar.set_label("z, height (m)", color=TEXT, fontsize=9)
    bar.ax.tick_params(colors=TEXT, labelsize=8)
    bar.outline.set_visible(False)


def _footprints(boxes: np.ndarray) -> np.ndarray:
    """(M, 7) boxes -> (M, 5, 2) closed outlines on the ground in the picture's order (y, x), front edge first."""
    corners = box_corners(boxes)[:, [0, 1, 2, 3, 0], :2]
    return corners[..., ::-1]


def _heading_marks(boxes: np.ndarray) -> np.ndarray:
    """(M, 7) boxes -> (M, 2, 2) lines (y, x) from the centre to a little before the front."""
    ahead = np.stack([np.sin(boxes[:, 6]), np.cos(boxes[:, 6])], axis=1) * (boxes[:, 3:4] / 2 + 0.6)
    centre = boxes[:, [1, 0]]
    return np.stack([centre, centre + ahead], axis=1)


def _draw_ground_truth(axes: Axes, boxes: np.ndarray) -> None:
    lines = LineCollection(_footprints(boxes), colors=GROUND_TRUTH, linewidths=1.3, linestyles=(0, (4, 2)), zorder=3)
    axes.add_collection(lines, autolim=False)
    axes.add_collection(LineCollection(_heading_marks(boxes), colors=GROUND_TRUTH, linewidths=0.9, zorder=3), False)


def _draw_detections(axes: Axes, view: View, boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray) -> None:
    """Outlines with a thicker front, heading marks, and scores beside them; better ones on top."""
    order = np.argsort(scores, kind="stable")
    boxes, scores = boxes[order], scores[order]
    colors = [class_color(label) for label in labels[order]]
    outlines = _footprints(boxes)
    for lines, width in ((outlines, 1.5), (outlines[:, :2], 2.6), (_heading_marks(boxes), 1.5)):
        axes.add_collection(LineCollection(lines, colors=colors, linewidths=width, zorder=4), autolim=False)
    halo = [withStroke(linewidth=2.2, foreground=BACKGROUND)]
    for box, outline, score, color in zip(boxes, outlines, scores, colors, strict=True):
        if not (view.x_min <= box[0] <= view.x_max and view.y_min <= box[1] <= view.y_max):
            continue
        place = (outline[:, 0].min(), outline[:, 1].max())  # right of the box, level with its far end
        axes.annotate(
            f"{score:.2f}", place, xytext=(3, -4), textcoords="offset points", fontsize=8.5, color=color,
            path_effects=halo, annotation_clip=True, clip_on=True, zorder=5,
        )  # fmt: skip


def _draw_legend(
    figure: Figure, view: View, labels: np.ndarray, class_names: Sequence[str], ground_truth: int | None
) -> None:
    """Every class with the number of its detections, right of the scene."""
    handles = [
        Line2D([], [], color=class_color(n), linewidth=2.5, label=f"{name} ({np.count_nonzero(labels == n)})")
        for n, name in enumerate(class_names, start=1)
    ]
    if ground_truth is not None:
        dashed = Line2D([], [], color=GROUND_TRUTH, linewidth=1.5, linestyle="--", label=f"labelled ({ground_truth})")
        handles.append(dashed)
    width, height = figure.bbox.size
    corner = ((LEFT + view.width + 10) / width, 1 - TOP / height)
    legend = figure.legend(handles=handles, loc="upper left", bbox_to_anchor=corner, frameon=False, fontsize=10)
    for text in legend.get_texts():
        text.set_color(TEXT)
