"""KITTI's average precision (40 positions) as one writes it down: loops over frames, objects and thresholds.

Slow and independent of ``pcdet.evaluation``; what the benchmark measures and checks against.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

LEVELS = ((40, 0, 0.15), (25, 1, 0.30), (25, 2, 0.50))  # least height in pixels, most occlusion, most truncation
COUNTED, IGNORED, OTHER = 0, 1, -1

Annos = dict[str, Any]


def average_precision(
    truths: Sequence[Annos], founds: Sequence[Annos], name: str, metric: str, min_overlap: float
) -> list[float]:
    """Percent at easy, moderate, hard. The names have no neighbours and no frame holds DontCare."""
    kind = "bbox" if metric == "aos" else metric
    tables = [overlaps(truth, found, kind) for truth, found in zip(truths, founds, strict=True)]
    return [_at_level(truths, founds, tables, name, level, min_overlap, metric == "aos") for level in LEVELS]


def overlaps(truth: Annos, found: Annos, kind: str) -> np.ndarray:
    """(G, D) intersection over union in the image ("bbox"), on the ground ("bev") or in space ("3d")."""
    pair = image_overlap if kind == "bbox" else solid_overlap
    out = np.zeros((len(truth["name"]), len(found["name"])))
    for g, d in np.ndindex(out.shape):
        out[g, d] = pair(truth, g, found, d) if kind == "bbox" else pair(truth, g, found, d, kind == "3d")
    return out


def image_overlap(truth: Annos, g: int, found: Annos, d: int) -> float:
    a, b = truth["bbox"][g], found["bbox"][d]
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return width * height / (areas - width * height)


def solid_overlap(truth: Annos, g: int, found: Annos, d: int, in_space: bool) -> float:
    shared = area(clip(outline(truth, g), outline(found, d)))
    (la, ha, wa), (lb, hb, wb) = truth["dimensions"][g], found["dimensions"][d]
    if not in_space:
        return shared / (la * wa + lb * wb - shared)
    bottom_a, bottom_b = truth["location"][g][1], found["location"][d][1]
    shared *= max(0.0, min(bottom_a, bottom_b) - max(bottom_a - ha, bottom_b - hb))
    return shared / (la * ha * wa + lb * hb * wb - shared)


def outline(frame: Annos, row: int) -> list[tuple[float, float]]:
    """Corners x, z of a box, counter-clockwise."""
    (length, _, width), (x, _, z), turn = frame["dimensions"][row], frame["location"][row], -frame["rotation_y"][row]
    signs = ((1, 1), (-1, 1), (-1, -1), (1, -1))
    corners = [(a * length / 2, b * width / 2) for a, b in signs]
    cos, sin = math.cos(turn), math.sin(turn)
    return [(x + a * cos - b * sin, z + a * sin + b * cos) for a, b in corners]


def clip(polygon: list[tuple[float, float]], window: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The part of a polygon inside a convex one (Sutherland and Hodgman, 1974)."""
    for (ax, ay), (bx, by) in zip(window, window[1:] + window[:1], strict=True):
        inside = [(bx - ax) * (y - ay) - (by - ay) * (x - ax) for x, y in polygon]
        kept = []
        for i, (x, y) in enumerate(polygon):
            before, now = inside[i - 1], inside[i]
            if before * now < 0:
                share = before / (before - now)
                px, py = polygon[i - 1]
                kept.append((px + share * (x - px), py + share * (y - py)))
            if now >= 0:
                kept.append((x, y))
        polygon = kept
    return polygon


def area(polygon: list[tuple[float, float]]) -> float:
    return sum(
        polygon[i - 1][0] * polygon[i][1] - polygon[i][0] * polygon[i - 1][1] for i in range(len(polygon))
    ) / 2.0  # fmt: skip


def _at_level(truths, founds, tables, name, level, min_overlap, oriented):
    states = [_states(truth, found, name, level) for truth, found in zip(truths, founds, strict=True)]
    total = sum(state[0].count(COUNTED) for state in states)
    scores = []
    for found, table, (of_truth, of_found) in zip(founds, tables, states, strict=True):
        scores += _true_scores(found["score"], table, of_truth, of_found, min_overlap)
    precisions = []
    for threshold in _thresholds(scores, total):
        right, wrong = 0.0, 0
        hits = 0
        for truth, found, table, state in zip(truths, founds, tables, states, strict=True):
            pairs, false = _count(found["score"], table, *state, threshold, min_overlap)
            turns = [truth["alpha"][g] - found["alpha"][d] for g, d in pairs]
            right += sum((1 + math.cos(turn)) / 2 for turn in turns) if oriented else len(pairs)
            hits, wrong = hits + len(pairs), wrong + false
        precisions.append(right / (hits + wrong))
    curve = [max(precisions[i:]) for i in range(len(precisions))]
    return 100 * sum(curve[1:]) / 40


def _states(truth, found, name, level):
    height, occlusion, truncation = level
    of_truth, of_found = [], []
    for g, label in enumerate(truth["name"]):
        tall = truth["bbox"][g][3] - truth["bbox"][g][1] > height
        fits = tall and truth["occluded"][g] <= occlusion and truth["truncated"][g] <= truncation
        of_truth.append(OTHER if label != name else COUNTED if fits else IGNORED)
    for d, label in enumerate(found["name"]):
        low = found["bbox"][d][3] - found["bbox"][d][1] < height
        of_found.append(IGNORED if low else COUNTED if label == name else OTHER)
    return of_truth, of_found


def _true_scores(scores, table, of_truth, of_found, min_overlap):
    taken, out = set(), []
    for g, state in enumerate(of_truth):
        near = [d for d, s in enumerate(of_found) if s != OTHER and d not in taken and table[g, d] > min_overlap]
        if state == OTHER or not near:
            continue
        best = max(near, key=lambda d: scores[d])
        taken.add(best)
        if state == COUNTED and of_found[best] == COUNTED:
            out.append(scores[best])
    return out


def _thresholds(scores, total):
    out, wanted = [], 0.0
    scores = sorted(scores, reverse=True)
    for i, score in enumerate(scores):
        if i < len(scores) - 1 and (i + 2) / total - wanted < wanted - (i + 1) / total:
            continue
        out.append(score)
        wanted += 1 / 40
    return out


def _count(scores, table, of_truth, of_found, threshold, min_overlap):
    taken, pairs = set(), []
    open_to = [d for d, state in enumerate(of_found) if state != OTHER and scores[d] >= threshold]
    for g, state in enumerate(of_truth):
        near = [d for d in open_to if d not in taken and table[g, d] > min_overlap]
        if state == OTHER or not near:
            continue
        counted = [d for d in near if of_found[d] == COUNTED]
        best = max(counted, key=lambda d, g=g: table[g, d]) if counted else near[0]
        taken.add(best)
        if state == COUNTED and of_found[best] == COUNTED:
            pairs.append((g, best))
    false = sum(of_found[d] == COUNTED and d not in taken for d in open_to)
    return pairs, false
