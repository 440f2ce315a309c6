"""Camera images, read and drawn upon."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from pcdet.structures.boxes import box_corners
from pcdet.structures.calibration import Calibration
from pcdet.structures.outcomes import Outcomes
from pcdet.visual.canvas import new_figure, save_png
from pcdet.visual.marks import LegendRow, found_marks, truth_marks, verdict_legend

NEAR = 0.1  # metres before the camera at which edges are cut
# Pixels of a line and a column of the legend, which stands below the image.
LEGEND_LINE, LEGEND_COLUMN = 24, 170
# Corners of pcdet.structures.boxes.box_corners: bottom, top, uprights; then a cross on the front, which shows heading.
EDGES = np.array([
    (0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4), (0, 4), (1, 5), (2, 6), (3, 7), (0, 5), (1, 4),
])  # fmt: skip


def read_image(path: str | Path) -> np.ndarray:
    """Read an image as (H, W, 3) uint8 RGB, whatever its channels and depth.

    Raises ``FileNotFoundError``, or ``ValueError`` naming the file if it is not an image.
    """
    # Imported here: pictures without a camera do without these modules.
    from skimage import color, io, util

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no image {path}")
    try:
        image = io.imread(path)
    except (OSError, ValueError, SyntaxError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from error
    if image.ndim == 3 and image.shape[2] <= 2:  # grey, perhaps with alpha
        image = image[..., 0]
    image = color.gray2rgb(image) if image.ndim == 2 else image[..., :3]
    return util.img_as_ubyte(image)


def draw_image_boxes(
    image: np.ndarray,
    boxes: np.ndarray,
    calib: Calibration,
    path: str | Path,
    *,
    labels: Sequence[int] | np.ndarray,
    scores: Sequence[float] | np.ndarray | None = None,
    class_names: Sequence[str],
    gt_boxes: np.ndarray | None = None,
    gt_names: Sequence[str] | None = None,
    outcomes: Outcomes | None = None,
) -> Path:
    """Draw 3-D boxes over the camera image into a PNG file of the image's size and return its path.

    With ``outcomes`` a colour is a verdict, and a legend stands in a strip below the image.

    Args:
        image: (H, W, 3) uint8 RGB.
        boxes: (M, 7+) LiDAR boxes; those behind the camera or not finite are left out.
        calib: The frame's calibration.
        path: The file; its folder is made.
        labels: (M,) 1-based.
        scores: (M,) written beside the boxes.
        class_names: Names in the order of the labels.
        gt_boxes: (G, 7+) labelled boxes, drawn in dashed white.
        gt_names: (G,) what they are labelled, written beside those that were not found.
        outcomes: Verdicts on the M detections and G labelled boxes.

    Raises:
        ValueError: An argument has another shape, or a label is not one of ``class_names``.
    """
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
        raise ValueError(f"the image is {image.shape} {image.dtype}, expected (H, W, 3) uint8")
    found = found_marks(boxes, labels, scores, outcomes, class_names, named=True)
    truth = truth_marks(gt_boxes, gt_names, outcomes)
    legend = [] if outcomes is None else verdict_legend(outcomes)
    columns = max(1, image.shape[1] // LEGEND_COLUMN)
    axes = _image_axes(image, LEGEND_LINE * -(-len(legend) // columns))
    texts = []
    for marks, dashed in ((truth, True), (found, False)):
        for index in np.argsort(-marks.boxes[:, 0], kind="stable"):  # near boxes lie over far ones
            lines = project_edges(marks.boxes[index], calib)
            color = marks.colors[index]
            _draw_lines(axes, image, lines[:12] if dashed else lines, color, dashed)
            texts.append((lines, marks.texts[index], color, dashed))
    for lines, text, color, below in texts:
        _write_beside(axes, image, lines, text, color, below)
    if legend:
        _draw_legend(axes, legend, columns)
    return save_png(axes.figure, path)


def project_edges(box: np.ndarray, calib: Calibration) -> np.ndarray:
    """(7,) LiDAR box -> (E, 2, 2) lines in pixels u v: its edges and front cross, cut ``NEAR`` the camera's plane.

    Edges behind the camera are left out; a box that is not finite has none.
    """
    if not np.isfinite(box).all():
        return np.zeros((0, 2, 2))
    corners = calib.lidar_to_rect(box_corners(box[None])[0])  # (8, 3)
    edges = clip_near(corners[EDGES])
    pixels, _ = calib.rect_to_image(edges.reshape(-1, 3))
    return pixels.reshape(-1, 2, 2)


def clip_near(edges: np.ndarray, near: float = NEAR) -> np.ndarray:
    """(E, 2, 3) lines in the camera frame -> the (F, 2, 3) that lie at least partly before the plane z = near, cut."""
    edges = edges[(edges[..., 2] > near).any(axis=1)]
    depth = edges[..., 2]  # (F, 2)
    behind = depth < near
    # The share of the way from an end behind the plane to the other end; ends before it stay.
    way = np.where(behind, (near - depth) / np.where(behind, depth[:, ::-1] - depth, 1.0), 0.0)
    return edges + way[..., None] * (edges[:, ::-1] - edges)


def _image_axes(image: np.ndarray, below: int) -> Axes:
    """Axes in pixels of the image, over it; ``below`` is the height of the empty strip beneath."""
    height, width = image.shape[:2]
    figure = new_figure(width, height + below, "#0d1117")
    figure.figimage(image, 0, below, origin="upper")  # pixel for pixel; imshow would resample
    axes = figure.add_axes((0, below / (height + below), 1, height / (height + below)), zorder=1)
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    return axes


def _draw_legend(axes: Axes, rows: Sequence[LegendRow], columns: int) -> None:
    handles = [
        Line2D([], [], color=row.color, linewidth=2, linestyle="--" if row.dashed else "-", label=row.text)
        for row in rows
    ]
    spaces = {"borderpad": 0.2, "borderaxespad": 0.2, "columnspacing": 1.4, "labelspacing": 0.4}
    options = {"loc": "lower center", "ncols": min(columns, len(rows)), "frameon": False, **spaces}
    legend = axes.figure.legend(handles=handles, fontsize=9, **options)
    for text in legend.get_texts():
        text.set_color("#c9d1d9")


def _draw_lines(axes: Axes, image: np.ndarray, lines: np.ndarray, color: str, dashed: bool) -> None:
    thick = max(1.0, min(image.shape[:2]) / 500)
    style = (0, (3, 2)) if dashed else "solid"
    widths = [1.3 * thick] * 12 + [0.6 * thick] * 2 if len(lines) == len(EDGES) else 1.3 * thick
    axes.add_collection(LineCollection(lines, colors=color, linewidths=widths, linestyles=style), autolim=False)


def _write_beside(axes: Axes, image: np.ndarray, lines: np.ndarray, text: str, color: str, below: bool) -> None:
    """Text over the highest point of a box, or under the lowest; a box outside the image gets none."""
    height, width = image.shape[:2]
    ends = lines.reshape(-1, 2)
    if not text or not len(ends) or (ends.max(axis=0) < 0).any() or (ends.min(axis=0) > (width, height)).any():
        return
    left = np.clip(ends[:, 0].min(), 3, max(3, width - 60))
    base = ends[:, 1].max() + 11 if below else ends[:, 1].min() - 4
    base = np.clip(base, 14, max(14, height - 3))
    halo = [withStroke(linewidth=2.2, foreground="#000000")]
    axes.text(left, base, text, fontsize=8.5, color=color, path_effects=halo, clip_on=True)
