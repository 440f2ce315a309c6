"""What an evaluation returns, and how its tables look."""

from collections.abc import Sequence
from typing import NamedTuple

NOT_EVALUATED = "n/a"


class EvalReport(NamedTuple):
    """Numbers for TensorBoard and a text for the reader."""

    metrics: dict[str, float]
    text: str


def aligned(rows: Sequence[Sequence[str]], *, left: int) -> str:
    """Columns two spaces apart under a ruled head; the first ``left`` to the left, the rest to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    layout = "  ".join(f"{{:{'<' if i < left else '>'}{width}}}" for i, width in enumerate(widths))
    lines = [layout.format(*row) for row in rows]
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(lines)
