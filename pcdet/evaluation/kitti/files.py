"""Label and result files of KITTI as the evaluation wants them: in file order, nothing dropped.

``pcdet.datasets.kitti.labels`` reads the same files for training, where DontCare goes last and degenerate boxes go.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pcdet.utils.files import read_text

FIELDS = 15  # and the score in results
# Fields, counted from 1, without which nothing can be matched or ranked. A box in space that is not finite overlaps
# nothing, as in KITTI's devkit.
FINITE = {4: "alpha", 5: "x1", 6: "y1", 7: "x2", 8: "y2", 16: "the score"}


def parse_annos(text: str, place: str, *, scored: bool) -> dict[str, np.ndarray]:
    """The objects of one file's text as an annotation dictionary; ``scored`` asks for the 16th field.

    Raises ``ValueError`` with ``place`` and line for another number of fields, one that is not a number, and an alpha,
    2-D box or score that is not finite.
    """
    rows = [(number, line.split()) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    table = np.array([_numbers(fields, f"{place}:{number}", scored) for number, fields in rows]).reshape(-1, FIELDS)
    for row, column in np.argwhere(~np.isfinite(table)).tolist():
        if (what := FINITE.get(column + 2)) is not None:  # field 1 is the name
            number, fields = rows[row]
            raise ValueError(
                f"{place}:{number}: {what}, field {column + 2}, is {fields[column + 1]}; it must be finite"
            )
    return {
        "name": np.array([fields[0] for _, fields in rows], dtype=np.str_),
        "truncated": table[:, 0],
        "occluded": table[:, 1],
        "alpha": table[:, 2],
        "bbox": table[:, 3:7],
        "dimensions": table[:, [9, 7, 8]],  # l h w; the file has h w l
        "location": table[:, 10:13],
        "rotation_y": table[:, 13],
        "score": table[:, 14],
    }


def _numbers(fields: Sequence[str], place: str, scored: bool) -> list[float]:
    """The 14 numbers of a line and the score (0 for a label)."""
    if scored and len(fields) == FIELDS:
        raise ValueError(f"{place}: the score, field 16, is missing; results of a detector need one in every line")
    if len(fields) not in (FIELDS, FIELDS + 1):
        raise ValueError(f"{place}: {len(fields)} fields; KITTI has {FIELDS}, and the score in results")
    try:
        numbers = [float(v) for v in fields[1:]]
    except ValueError as error:
        raise ValueError(f"{place}: {error}; every field after the class name is a number") from error
    return numbers if scored else [*numbers[:14], 0.0]


def file_stems(folder: str | Path) -> list[str]:
    """The frames that a folder has text files of, in order."""
    return sorted(path.stem for path in Path(folder).glob("*.txt"))


def read_annos(
    folder: str | Path, frame_ids: Sequence[str], *, scored: bool, missing_is_empty: bool = False
) -> list[dict[str, np.ndarray]]:
    """Read ``<folder>/<frame_id>.txt`` of every frame: labels, or results if ``scored``.

    ``missing_is_empty`` takes a missing file for a frame without objects. Raises ``FileNotFoundError`` naming the
    first missing file and their number, and the errors of :func:`parse_annos`.
    """
    paths = [Path(folder) / f"{frame_id}.txt" for frame_id in frame_ids]
    missing = [path for path in paths if not path.is_file()]
    if missing and not missing_is_empty:
        count = f"{len(missing)} of {len(paths)} files"
        raise FileNotFoundError(f"{missing[0]} is missing ({count} are); a frame without objects needs an empty one")
    texts = ["" if path in missing else read_text(path) for path in paths]
    return [
        parse_annos(text, str(path), scored=scored) | {"frame_id": frame_id}
        for text, path, frame_id in zip(texts, paths, frame_ids, strict=True)
    ]
