"""What a check finds."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """How bad a problem is; the worst comes first."""

    BREAKS = 0  # training stops, or cannot learn anything
    HARMS = 1  # training runs, and the result will be worse than it could be
    NOTE = 2  # worth knowing


@dataclass(frozen=True)
class Problem:
    """One line of the report."""

    level: Level
    check: str  # the check's short name
    message: str  # what is wrong, where, and what to do
    share: float = 1.0  # of frames, boxes or points it concerns; orders problems of one level
    frames: tuple[str, ...] = ()  # some frames that show it


def worst_first(problems: Iterable[Problem]) -> list[Problem]:
    """Problems by level, then by share."""
    return sorted(problems, key=lambda p: (p.level, -p.share))


def some(places: Iterable[str], count: int = 3) -> str:
    """The first places, and how many more there are."""
    places = list(places)
    more = f" and {len(places) - count} more" if len(places) > count else ""
    return ", ".join(places[:count]) + more
