"""Scenes from above: points by height, detections by class and labels in white, or both by their verdicts."""

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
from pcdet.structures.outcomes import Outcomes
from pcdet.visual.canvas import new_figure, save_png
from pcdet.visual.marks import LegendRow, Marks, class_legend, found_marks, truth_marks, verdict_legend

BACKGROUND = "#0d1117"
TEXT = "#c9d1d9"
# Blue to pale grey: boxes in saturated colours stand out from the points.
HEIGHTS = LinearSegmentedColormap.from_list("heights", ["#27457a", "#3a6ea8", "#7396bf", "#aab9cf", "#e4e6ea"])
MAX_WIDTH, MAX_HEIGHT = 1400, 1100  # pixels of the scene, without margins
MAX_SCALE = 40.0  # pixels a metre
LEFT, MARGIN, TOP, BOTTOM = 64, 240, 44, 48  # pixels around the scene; MARGIN is the right one, with the legend
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
    gt_names: Sequence[str] | None = None,
    outcomes: Outcomes | None = None,
    class_names: Sequence[str],
    point_cloud_range: Sequence[float] | None = None,
    title: str = "",
) -> Path:
    """Draw a scene from above into a PNG file and return its path.

    Scores stand beside detections. With ``outcomes`` a colour is a verdict, and the class stands before the score.

    Args:
        points: (N, 3+) x y z in metres, LiDAR frame; points that are not finite are left out.
        path: The file; its folder is made.
        detections: Boxes with scores and 1-based labels; boxes that are not finite are left out.
        gt_boxes: (G, 7+) labelled boxes, drawn in dashed white.
        gt_names: (G,) what they are labelled, written beside those that were not found.
        outcomes: Verdicts on the M detections and G labelled boxes.
        class_names: Names for the legend, in the order of the labels.
        point_cloud_range: (6,) x y z minimum, x y z maximum of what is shown; by default what the points span.
        title: A line above the picture.

    Raises:
        ValueError: An argument has another shape, or a label is not one of ``class_names``.
    """
    points = _finite_points(points)
    found = _found(detections, outcomes, class_names).finite()
    truth = truth_marks(gt_boxes, gt_names, outcomes).finite()
    view = choose_view(points, np.concatenate([found.boxes, truth.boxes]), point_cloud_range)
    figure = new_figure(LEFT + view.width + MARGIN, TOP + view.height + BOTTOM, BACKGROUND)
    axes = _scene_axes(figure, view, title)
    _draw_points(figure, axes, view, points)
    _draw_marks(axes, truth, (1.3, 0.9), dashed=True)
    _draw_marks(axes, found, (1.5, 1.5), dashed=False)
    _write_texts(axes, view, truth, left=True)
    _write_texts(axes, view, found)
    labelled = None if gt_boxes is None else len(truth.boxes)
    rows = verdict_legend(outcomes) if outcomes is not None else class_legend(found.labels, class_names, labelled)
    _draw_legend(figure, view, rows)
    return save_png(figure, path)


def _finite_points(points: np.ndarray) -> np.ndarray:
    points = np.asarray(points)
    if points.ndim != 2 or points.shape[1] < 3:
        raise ValueError(f"points have shape {points.shape}, expected (N, 3 or more): x y z ...")
    return points[np.isfinite(points[:, :3]).all(axis=1), :3].astype(np.float64)


def _found(found: Detections | None, outcomes: Outcomes | None, class_names: Sequence[str]) -> Marks:
    """Marks of detections, better ones last, to lie on top."""
    found = Detections.empty() if found is None else found
    boxes, scores = (values.detach().cpu().double().numpy() for values in (found.boxes, found.scores))
    marks = found_marks(boxes, found.labels.cpu().numpy(), scores, outcomes, class_names)
    return marks[np.argsort(scores, kind="stable")]


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


def _draw_marks(axes: Axes, marks: Marks, widths: tuple[float, float], dashed: bool) -> None:
    """Outlines and heading marks; where lines are whole the front is thicker."""
    outlines, style = _footprints(marks.boxes), (0, (4, 2)) if dashed else "solid"
    layers = [(outlines, widths[0], style), (_heading_marks(marks.boxes), widths[1], "solid")]
    layers += [] if dashed else [(outlines[:, :2], 2.6, style)]
    for lines, width, kind in layers:
        collection = LineCollection(lines, colors=marks.colors, linewidths=width, linestyles=kind)
        collection.set_zorder(3 if dashed else 4)
        axes.add_collection(collection, autolim=False)


def _write_texts(axes: Axes, view: View, marks: Marks, left: bool = False) -> None:
    """Texts beside the boxes, level with their far ends: those of labels on the other side than those of detections."""
    halo = [withStroke(linewidth=2.2, foreground=BACKGROUND)]
    for box, outline, text, color in zip(marks.boxes, _footprints(marks.boxes), marks.texts, marks.colors, strict=True):
        if not (text and view.x_min <= box[0] <= view.x_max and view.y_min <= box[1] <= view.y_max):
            continue
        place = (outline[:, 0].max() if left else outline[:, 0].min(), outline[:, 1].max())
        shift, side = ((-3, -4), "right") if left else ((3, -4), "left")
        axes.annotate(
            text, place, xytext=shift, textcoords="offset points", fontsize=8.5, color=color, ha=side,
            path_effects=halo, annotation_clip=True, clip_on=True, zorder=5,
        )  # fmt: skip


def _draw_legend(figure: Figure, view: View, rows: Sequence[LegendRow]) -> None:
    """Text, colour and style of every kind of box, right of the scene."""
    handles = [
        Line2D([], [], color=color, linewidth=1.5 if dashed else 2.5, linestyle="--" if dashed else "-", label=text)
        for text, color, dashed in rows
    ]
    width, height = figure.bbox.size
    corner = ((LEFT + view.width + 10) / width, 1 - TOP / height)
    legend = figure.legend(handles=handles, loc="upper left", bbox_to_anchor=corner, frameon=False, fontsize=10)
    for text in legend.get_texts():
        text.set_color(TEXT)
