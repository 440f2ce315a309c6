"""What is odd about a cloud, by itself and for the configuration that it is given to."""

from collections.abc import Sequence

import numpy as np

CELL = 2.0  # metres; the ground is looked for in cells of this side
GROUND_RADIUS = 30.0
# Forward-looking ranges such as KITTI's hold 34 to 54 % of a full turn's points (KITTI, ONCE, nuScenes and others).
LEAST_IN_RANGE = 0.2
# Of the points over the range's ground area, 95 % or more lie between its heights in KITTI's frames, 84 % in others'.
LEAST_IN_HEIGHT = 0.7
# The farthest twentieth of the points begins at 20 m or more in KITTI's frames, whose range has its corner at 81 m.
LEAST_REACH = 0.1
# Half the height of a car: further off, an anchor and the car that it stands for share less than half their height.
MOST_OFF_GROUND = 0.75
SLACK = 1e-3  # of intensities from 0 to 1
INTENSITY_TOPS = (255.0, 65535.0)  # of 8 and 16 bits
FAR = 1000.0  # metres that no LiDAR of a vehicle measures


def is_off_scale(low: float, high: float) -> bool:
    """Do intensities from ``low`` to ``high`` leave the scale from 0 to 1?"""
    return high > 1 + SLACK or low < -SLACK


def intensity_scale(low: float, high: float) -> float | None:
    """INTENSITY_SCALE for intensities from ``low`` to ``high``, by the bits they need; ``None`` if they are none."""
    if not is_off_scale(low, high):
        return 1.0
    top = next((v for v in INTENSITY_TOPS if v >= high), None)
    return None if low < -SLACK or top is None else 1 / top


def intensity_doubt(low: float, high: float) -> str:
    """What to say of intensities that leave the scale from 0 to 1."""
    scale = intensity_scale(low, high)
    advice = (
        "is the column another quantity? src_feature_list and field_names say which one is read"
        if scale is None
        else f"set INTENSITY_SCALE {scale:.6g}"
    )
    return f"intensity runs from {low:g} to {high:g}, models expect 0 to 1: {advice}"


def is_no_scan(low: np.ndarray, high: np.ndarray, farthest: float) -> bool:
    """Are clouds whose points lie between the quantiles ``low`` and ``high`` (3,) as tall as wide, or out of reach?"""
    extent = high - low
    return bool(extent[2] > 0.5 * extent[:2].max() or farthest >= FAR)


def cloud_doubts(points: np.ndarray) -> list[str]:
    """What is odd about (N, 4) points that should be x y z intensity in metres and [0, 1]; usually nothing."""
    if len(points) == 0:
        return []
    doubts = []
    low, high = float(points[:, 3].min()), float(points[:, 3].max())
    if is_off_scale(low, high):
        doubts.append(intensity_doubt(low, high))
    elif high == low:
        doubts.append(f"intensity is {low:g} everywhere, so it was probably not recorded; it is used as it is")
    low, high = np.quantile(points[:, :3], (0.05, 0.95), axis=0)  # (3,) each
    farthest = float(np.abs(points[:, :3]).max())
    if is_no_scan(low, high, farthest):
        extents = ", ".join(f"{v:.3g}" for v in high - low)
        doubts.append(
            f"nine tenths of the points spread over {extents} m along x, y, z, and the farthest lie at {farthest:.3g} "
            "m: has the file another number of values a point?"
        )
    return doubts


def fit_doubts(points: np.ndarray, limits: Sequence[float] | np.ndarray, ground: float | None = None) -> list[str]:
    """How (N, 3+) points differ from what a configuration was made for; usually nothing.

    Args:
        points: x y z in metres.
        limits: (6,) POINT_CLOUD_RANGE.
        ground: The height that objects stand at, where the configuration tells it.
    """
    if len(points) == 0:
        return ["it has no points"]
    xyz, limits = np.asarray(points)[:, :3], np.asarray(limits)
    inside = (xyz >= limits[:3]) & (xyz <= limits[3:])  # (N, 3)
    over = inside[:, :2].all(axis=1)
    if over.mean() < LEAST_IN_RANGE:
        return [
            f"{over.mean():.0%} of the points lie over POINT_CLOUD_RANGE, where it was made for clouds with "
            f"{LEAST_IN_RANGE:.0%} or more: are x, y, z metres with x forward and the sensor at the origin?"
        ]
    doubts = []
    reach, corner = (
        np.quantile(np.hypot(xyz[:, 0], xyz[:, 1]), 0.95),
        np.hypot(*np.abs(limits[[0, 1, 3, 4]]).reshape(2, 2).max(axis=0)),
    )
    if reach < LEAST_REACH * corner:
        doubts.append(
            f"95 % of the points lie within {reach:.2g} m, POINT_CLOUD_RANGE reaches to {corner:.3g} m: is the unit "
            "the metre, and the sensor one for outdoors?"
        )
    if inside[over, 2].mean() < LEAST_IN_HEIGHT:
        low, high = np.quantile(xyz[over, 2], (0.05, 0.95))
        doubts.append(
            f"{inside[over, 2].mean():.0%} of the points lie between the heights {limits[2]:g} and {limits[5]:g} m of "
            f"POINT_CLOUD_RANGE, nine tenths between {low:.2f} and {high:.2f} m: add the difference to z"
        )
    return doubts + _ground_doubts(ground_height(xyz), limits, ground)


def _ground_doubts(found: float, limits: np.ndarray, wanted: float | None) -> list[str]:
    """``found`` is NaN where too few points lie near the sensor; nothing is said then."""
    if wanted is not None and abs(found - wanted) > MOST_OFF_GROUND:
        return [
            f"the ground lies at z = {found:.2f} m, anchors stand at {wanted:.2f} m: add {wanted - found:.2f} to z "
            "(the sensor is mounted at another height than that of the training data)"
        ]
    if not np.isnan(found) and not limits[2] <= found <= limits[5]:
        return [f"the ground lies at z = {found:.2f} m, outside POINT_CLOUD_RANGE ({limits[2]:g} to {limits[5]:g} m)"]
    return []


def ground_height(xyz: np.ndarray) -> float:
    """The median, over cells of 2 m within 30 m, of the lowest points' height; NaN with too few points."""
    near = xyz[np.hypot(xyz[:, 0], xyz[:, 1]) < GROUND_RADIUS]
    if len(near) < 50:
        return float("nan")
    cells = np.floor(near[:, :2] / CELL).astype(np.int64)
    order = np.lexsort((near[:, 2], cells[:, 1], cells[:, 0]))
    cells, z = cells[order], near[order, 2]
    starts = np.flatnonzero(np.r_[True, (np.diff(cells, axis=0) != 0).any(axis=1)])
    counts = np.diff(np.r_[starts, len(z)])
    kept = counts >= 3
    # A tenth of a cell's points may lie below the ground: echoes.
    lowest = z[(starts + counts // 10)[kept]]
    return float(np.median(lowest)) if len(lowest) else float("nan")
