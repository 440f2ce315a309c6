"""The analysis of results, written beside an evaluation."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pcdet.evaluation.analysis import Analysis


def write_analysis(analysis: "Analysis", folder: Path) -> list[Path]:
    """``analysis.txt``, ``analysis.json`` and charts as PNG; returns the paths."""
    from pcdet.utils.files import write_json, write_text
    from pcdet.visual import draw_analysis

    content = analysis.as_json()
    write_text(folder / "analysis.txt", analysis.text + "\n")
    write_json(folder / "analysis.json", content)
    return [folder / "analysis.txt", folder / "analysis.json", *draw_analysis(content, folder)]
