"""What KITTI says about its classes: who is forgiven for whom, and how much overlap a match needs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

DONT_CARE = "dontcare"
# A detection of the first may lie on the second: too alike to be held against it.
NEIGHBOURS = {"car": "van", "pedestrian": "person_sitting"}


class MinOverlap(NamedTuple):
    """A match needs an overlap above this: ``strict`` is KITTI's rule, ``loose`` the second one OpenPCDet prints."""

    strict: float
    loose: float  # for boxes from above and in 3-D; in the image the strict one always holds


MIN_OVERLAPS = {
    "car": MinOverlap(0.7, 0.5),
    "van": MinOverlap(0.7, 0.5),
    "truck": MinOverlap(0.7, 0.5),
    "pedestrian": MinOverlap(0.5, 0.25),
    "person_sitting": MinOverlap(0.5, 0.25),
    "cyclist": MinOverlap(0.5, 0.25),
}
DEFAULT_MIN_OVERLAP = MinOverlap(0.5, 0.25)
KITTI_CLASSES = (*MIN_OVERLAPS, "tram", "misc")


def min_overlaps_of(
    class_names: Sequence[str], given: Mapping[str, tuple[float, float]] | None = None
) -> list[MinOverlap]:
    """The overlaps of each class: from ``given`` (name -> strict, loose), else KITTI's table, else the default.

    Names are compared without case. Raises ``ValueError`` for no class, a class named twice, and overlaps outside
    [0, 1); call it before training and an evaluation cannot fail for that at the end.
    """
    lower = [name.lower() for name in class_names]
    if not lower or len(set(lower)) < len(lower):
        raise ValueError(f"the class names {list(class_names)} must be at least one, and differ in more than case")
    chosen = {name.lower(): MinOverlap(*pair) for name, pair in (given or {}).items()}
    for name, pair in chosen.items():
        if not all(0 <= v < 1 for v in pair):
            raise ValueError(f"minimum overlaps {tuple(pair)} of {name} must lie in [0, 1)")
    return [chosen.get(name, MIN_OVERLAPS.get(name, DEFAULT_MIN_OVERLAP)) for name in lower]


class KittiClassMap(dict[str, str]):
    """Class of a data set -> class of KITTI that stands for it (MAP_CLASS_TO_KITTI).

    KITTI's overlap is then the one that its class needs. Raises ``ValueError`` for a name that KITTI does not have, and
    where a pair of overlaps is not one.
    """

    def __init__(self, pairs: Mapping[str, str] | None = None):
        super().__init__(pairs or {})
        unknown = [f"{mine}: {theirs}" for mine, theirs in self.items() if theirs.lower() not in KITTI_CLASSES]
        if unknown:
            raise ValueError(
                f"MAP_CLASS_TO_KITTI: {', '.join(unknown)}; KITTI's classes are {', '.join(KITTI_CLASSES)}"
            )

    def min_overlaps(self, given: Mapping[str, Sequence[float]] | None = None) -> dict[str, MinOverlap]:
        """Overlaps of the mapped classes, replaced by those ``given`` as name -> (strict, loose)."""
        mapped = {name: MIN_OVERLAPS.get(theirs.lower(), DEFAULT_MIN_OVERLAP) for name, theirs in self.items()}
        for name, pair in (given or {}).items():
            if len(pair) != 2:
                raise ValueError(f"minimum overlaps of {name} are {list(pair)}; two are needed: strict and loose")
            mapped[name] = MinOverlap(*pair)
        return mapped
