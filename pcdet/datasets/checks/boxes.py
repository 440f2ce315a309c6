"""Checks of labelled boxes against the points and against each other."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pcdet.datasets.checks.facts import READINGS, FrameFacts
from pcdet.datasets.checks.problem import Level, Problem, some
from pcdet.structures.box_convention import ZEROS, BoxConvention

TURNED, MIRRORED, MIRRORED_TURNED, HIGHER, LOWER = 1, 2, 3, 4, 5  # of READINGS
OTHER_AXES = range(6, len(READINGS))
ELONGATED = 1.3  # length over width from which a quarter turn can be told
ENOUGH = 10  # points that make a box's vote
CLEARLY = 1.5  # times more points that a reading needs to win a box's vote
# Least and largest length, width and height in metres of classes by their usual names (lower case).
USUAL_SIZES: dict[str, tuple[tuple[float, float], ...]] = {
    "car": ((2.0, 7.0), (1.2, 2.8), (1.0, 3.0)),
    "van": ((3.0, 8.0), (1.4, 3.0), (1.4, 3.5)),
    "vehicle": ((1.5, 25.0), (0.5, 4.0), (0.8, 5.0)),
    "truck": ((3.5, 25.0), (1.5, 4.0), (1.5, 5.0)),
    "bus": ((5.0, 25.0), (2.0, 4.0), (2.2, 5.0)),
    "pedestrian": ((0.2, 1.8), (0.2, 1.6), (0.7, 2.3)),
    "person": ((0.2, 1.8), (0.2, 1.6), (0.7, 2.3)),
    "cyclist": ((0.8, 2.8), (0.25, 1.6), (0.8, 2.4)),
    "bicycle": ((0.8, 2.8), (0.2, 1.6), (0.6, 2.2)),
    "motorcycle": ((1.0, 3.2), (0.3, 1.8), (0.7, 2.4)),
}


def all_boxes(facts: Sequence[FrameFacts]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Boxes (M, 7), names (M,), points inside (M, R) and frames (M,) of all frames."""
    boxes = np.concatenate([np.zeros((0, 7)), *(f.boxes for f in facts)])
    names = np.concatenate([np.zeros(0, dtype="<U1"), *(f.names for f in facts)])
    inside = np.concatenate([np.zeros((0, len(READINGS)), dtype=np.int64), *(f.inside for f in facts)])
    frames = np.repeat(np.array([f.frame for f in facts], dtype=np.str_), [len(f.names) for f in facts])
    return boxes, names, inside, frames


def check_emptiness(facts: Sequence[FrameFacts]) -> list[Problem]:
    """Boxes without a point; where most are, whether another axis order would fill them."""
    _, names, inside, frames = all_boxes(facts)
    if not len(names):
        return []
    filled = (inside > 0).mean(axis=0)  # (R,)
    share = 1 - filled[0]
    best = max(OTHER_AXES, key=lambda r: filled[r])
    empty = tuple(dict.fromkeys(frames[inside[:, 0] == 0].tolist()))
    if share > 0.5 and filled[best] > 0.5 and filled[best] > 2 * filled[0]:
        message = (
            f"{share:.0%} of {len(names)} boxes hold no point, but {filled[best]:.0%} would {READINGS[best]}: labels "
            "and clouds have different axes (x forward, y left, z up is meant)"
        )
        return [Problem(Level.BREAKS, "boxes without points", message, share, empty)]
    if share > 0.5:
        message = f"{share:.0%} of {len(names)} boxes hold no point: do labels and clouds belong together?"
        return [Problem(Level.BREAKS, "boxes without points", message, share, empty)]
    if share > 0.2:
        message = f"{share:.0%} of {len(names)} boxes hold no point, in {some(empty)}"
        return [Problem(Level.HARMS, "boxes without points", message, share, empty)]
    if share > 0:
        message = f"{(inside[:, 0] == 0).sum()} of {len(names)} boxes hold no point, in {some(empty)}"
        return [Problem(Level.NOTE, "boxes without points", message, share, empty)]
    return []


def check_headings(facts: Sequence[FrameFacts], convention: BoxConvention | None = None) -> list[Problem]:
    """Headings that are mirrored or a quarter turn off, by the points that each reading puts into the boxes.

    ``convention``: what the labels are read in, where a YAML may say so.
    """
    boxes, _, inside, frames = all_boxes(facts)
    sizes = boxes[:, 3:5]
    elongated = (sizes.max(axis=1, initial=0) >= ELONGATED * sizes.min(axis=1, initial=np.inf)) if len(boxes) else []
    rows, where = inside[elongated], frames[elongated] if len(boxes) else frames
    wide = bool(len(rows)) and float((sizes[elongated, 1] > sizes[elongated, 0]).mean()) > 0.5
    found = [
        p
        for r in (TURNED, MIRRORED, MIRRORED_TURNED)
        if (p := reading_problem(rows[:, 0], rows[:, r], where, r, advice(r, convention, wide))) is not None
    ]
    return sorted(found, key=lambda p: -p.share)[:1]


def check_origin(facts: Sequence[FrameFacts], convention: BoxConvention | None = None) -> list[Problem]:
    """Boxes whose z is that of their bottom and taken for the centre, or the reverse; ``convention`` as above."""
    _, _, inside, frames = all_boxes(facts)
    below, above = np.concatenate([np.zeros((0, 2), dtype=np.int64), *(f.halves for f in facts)]).T
    # A box half its height lower holds the ground, which may be more than the object: it is judged by its halves.
    pairs = ((HIGHER, inside[:, 0], inside[:, HIGHER]), (LOWER, above, below))
    found = [
        p for r, now, other in pairs if (p := reading_problem(now, other, frames, r, advice(r, convention))) is not None
    ]
    return sorted(found, key=lambda p: -p.share)[:1]


def reading_problem(
    now: np.ndarray, other: np.ndarray, frames: np.ndarray, reading: int, what_to_do: str
) -> Problem | None:
    """Do boxes hold clearly more points (M,) under another reading than ``now``? Each that can tell has one vote."""
    against = (other >= ENOUGH) & (other > CLEARLY * now)
    votes = against | ((now >= ENOUGH) & (now > CLEARLY * other))
    if against.sum() < 3:
        return None
    share = against.sum() / votes.sum()
    shown = tuple(dict.fromkeys(frames[against].tolist()))
    tail = f"{against.sum()} of the {votes.sum()} boxes that can tell hold more points {READINGS[reading]}"
    if share > 0.5:
        message = f"{tail}: the labels have another convention than they are read in{what_to_do}"
        return Problem(Level.BREAKS, "box convention", message, share, shown)
    if share > 0.1:
        return Problem(Level.HARMS, "box convention", f"{tail}, such as in {some(shown)}", share, shown)
    return None


def advice(reading: int, convention: BoxConvention | None, wide: bool = False) -> str:
    """What BOX_CONVENTION would be under another reading than ``convention``; nothing where no value of it is.

    Boxes that face back hold the same points, so the opposite zero is as likely. ``wide``: most of the boxes are wider
    than long.
    """
    wanted = None if convention is None else convention_of(reading, convention, wide)
    if wanted is None:
        return ""
    plain = vars(BoxConvention())
    keys = ", ".join(f"{key}: {value}" for key, value in vars(wanted).items() if value != plain[key])
    back = ZEROS[(ZEROS.index(wanted.zero) + 2) % 4]
    return f"; set BOX_CONVENTION {{{keys}}}" + (f" (or zero: {back}, if all face back)" if reading < HIGHER else "")


def convention_of(reading: int, convention: BoxConvention, wide: bool = False) -> BoxConvention | None:
    """The convention whose boxes are those of ``convention`` under a reading of headings or of the origin.

    ``None`` where there is none: bottoms cannot be put half a box higher, nor centres lower. Boxes that are ``wide``
    are turned by a quarter by exchanging length and width, so that the longer side becomes the length.
    """
    if reading in (HIGHER, LOWER):
        before, after = ("center", "bottom") if reading == HIGHER else ("bottom", "center")
        return replace(convention, origin=after) if convention.origin == before else None
    mirrored, quarters = {TURNED: (False, 1), MIRRORED: (True, 0), MIRRORED_TURNED: (True, 1)}[reading]
    order = convention.order
    if quarters and wide:
        order, quarters = exchanged(order), 0
    zero = ZEROS.index(convention.zero)
    zero = ZEROS[((-zero if mirrored else zero) + quarters) % 4]
    return replace(convention, clockwise=convention.clockwise != mirrored, order=order, zero=zero)


def exchanged(order: str) -> str:
    """An order of sizes with length and width in each other's place."""
    return order.translate(str.maketrans("lw", "wl"))


def check_sizes(facts: Sequence[FrameFacts], convention: BoxConvention | None = None) -> list[Problem]:
    """Sizes that are unusual for the class's name, unlike the class's others, or longer across than along.

    ``convention``: what the labels are read in, where a YAML may say so.
    """
    order = None if convention is None else exchanged(convention.order)
    what_to_do = "are the two exchanged?" if order is None else f"set BOX_CONVENTION {{order: {order}}}?"
    boxes, names, _, frames = all_boxes(facts)
    found = []
    for name in np.unique(names):
        own, where = boxes[names == name, 3:6], frames[names == name]
        median = np.median(own, axis=0)
        text = " x ".join(f"{v:.2f}" for v in median)
        limits = USUAL_SIZES.get(str(name).lower())
        if limits and not all(low <= v <= high for v, (low, high) in zip(median, limits, strict=True)):
            usual = " x ".join(f"{low:g}-{high:g}" for low, high in limits)
            message = (
                f"{name} measures {text} m (l x w x h, median of {len(own)}), usual is {usual}: is the order right?"
            )
            found.append(Problem(Level.HARMS, "box sizes", message, 1.0, tuple(dict.fromkeys(where.tolist()))))
        across = (own[:, 1] > 1.2 * own[:, 0]).mean()
        if len(own) >= 3 and across > 0.5 and str(name).lower() not in ("pedestrian", "person"):
            message = f"{across:.0%} of {len(own)} {name} are wider than long: {what_to_do}"
            found.append(Problem(Level.HARMS, "box sizes", message, across, tuple(dict.fromkeys(where.tolist()))))
        odd = ((own > 3 * median) | (own < median / 3)).any(axis=1)
        if odd.any() and len(own) >= 5:
            shown = tuple(dict.fromkeys(where[odd].tolist()))
            message = f"{odd.sum()} of {len(own)} {name} differ 3 times from the median {text} m, in {some(shown)}"
            found.append(Problem(Level.NOTE, "box sizes", message, odd.mean(), shown))
    return found


def check_range(
    facts: Sequence[FrameFacts], limits: Sequence[float], class_names: Sequence[str] | None = None
) -> list[Problem]:
    """Boxes whose centre lies outside POINT_CLOUD_RANGE are never learned; ``class_names``: of these classes alone."""
    boxes, names, _, frames = all_boxes(facts)
    if class_names is not None:
        wanted = np.isin(names, list(class_names))
        boxes, names, frames = boxes[wanted], names[wanted], frames[wanted]
    low, high = np.array(limits[:3]), np.array(limits[3:])
    outside = ~((boxes[:, :3] >= low) & (boxes[:, :3] <= high)).all(axis=1)
    if not outside.any():
        return []
    share = outside.mean()
    by_class = ", ".join(f"{n} {(names[outside] == n).sum()}" for n in np.unique(names[outside]))
    need_low, need_high = np.floor(boxes[:, :3].min(axis=0)), np.ceil(boxes[:, :3].max(axis=0))
    message = (
        f"{outside.sum()} of {len(names)} boxes lie outside POINT_CLOUD_RANGE {list(limits)} and are never learned "
        f"({by_class}); all centres lie in {[*need_low.tolist(), *need_high.tolist()]}"
    )
    level = Level.BREAKS if share == 1 else Level.HARMS if share > 0.2 else Level.NOTE
    return [Problem(level, "range", message, share, tuple(dict.fromkeys(frames[outside].tolist())))]
