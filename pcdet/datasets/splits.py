"""Lists of frames: ``ImageSets/<split>.txt``, one frame a line."""

from pathlib import Path

from pcdet.utils.files import read_text


def read_split(path: str | Path) -> dict[str, int]:
    """Frame -> its line, in the file's order; empty lines are passed over.

    Raises ``FileNotFoundError``, or ``ValueError`` naming the line of a frame that is listed twice.
    """
    seen: dict[str, int] = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        frame = line.strip()
        if frame in seen:
            raise ValueError(f"{path}:{number}: frame {frame} stands on line {seen[frame]} already")
        if frame:
            seen[frame] = number
    return seen
