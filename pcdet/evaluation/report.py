"""What an evaluation returns."""

from typing import NamedTuple


class EvalReport(NamedTuple):
    """Numbers for TensorBoard and a text for the reader."""

    metrics: dict[str, float]
    text: str
