"""Look at a data set before training: files, labels, conventions, and how they fit a configuration."""

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import positive, run

if TYPE_CHECKING:
    from pcdet.datasets.checks import Checked, DataSource, Problem

WORDS = ("BREAKS", "harms", "note")
LINES = 20  # of one check and level on the terminal; the report has all


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Ends with status 1 if something will break training, else 0."
    )
    add = parser.add_argument
    add("--cfg_file", help="a model's YAML, or a data set's; without one the folder alone is looked at")
    add(
        "--data_path",
        type=Path,
        help="folder of KITTI's or the custom layout, or of clouds, or a cloud; default: DATA_PATH",
    )
    add("--max_frames", type=positive, help="read at most so many frames, evenly spaced (default: all)")
    add("--out", type=Path, default=Path("data_report.html"), help="the report (default: data_report.html)")
    add("--pictures", type=int, default=6, help="frames drawn in the report, those with problems first (default: 6)")
    add("--set", dest="set_cfgs", nargs=argparse.REMAINDER, help="KEY VALUE pairs, last on the line")
    given = parser.parse_args(arguments)
    if given.cfg_file is None and given.data_path is None:
        parser.error("--cfg_file or --data_path is needed")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, print one line a problem, write the report."""
    given = parse(arguments)
    settings = read_settings(given)
    from pcdet.datasets.checks import Level, check_data, find_source, summary
    from pcdet.datasets.dataset import find_data_path

    data = None if settings is None else settings["DATA_CONFIG"]
    path = given.data_path or data["DATA_PATH"]
    source = find_source(Path(path) if Path(path).is_file() else find_data_path(path), data)
    checked = check_data(source, settings, max_frames=given.max_frames)
    title = f"{source.root} ({source.kind}): {summary(checked)}"
    print(title)
    for line in problem_lines(checked.problems):
        print(line)
    counts = Counter(p.level for p in checked.problems)
    verdict = ", ".join(f"{counts[level]} {WORDS[level]}" for level in Level if counts[level]) or "no problem found"
    path = write(given, source, settings, checked, [title, verdict])
    print(f"{verdict}; report: {path}")
    return 1 if counts[Level.BREAKS] else 0


def read_settings(given: argparse.Namespace) -> dict[str, Any] | None:
    """The configuration; of a data set's YAML DATA_CONFIG alone."""
    from pcdet.config import load_settings

    return None if given.cfg_file is None else load_settings(given.cfg_file, given.set_cfgs)


def problem_lines(problems: "Sequence[Problem]") -> list[str]:
    """A line a problem; of many alike the first ones."""
    seen: Counter = Counter()
    lines = []
    for problem in problems:
        key = problem.level, problem.check
        seen[key] += 1
        if seen[key] <= LINES:
            lines.append(f"{WORDS[problem.level]:<7} {problem.check}: {problem.message}")
    lines += [
        f"{WORDS[level]:<7} {check}: {count - LINES} more, see the report"
        for (level, check), count in seen.items()
        if count > LINES
    ]
    return lines


def write(
    given: argparse.Namespace, source: "DataSource", settings: Any, checked: "Checked", facts: Sequence[str]
) -> Path:
    """The report with its pictures."""
    from pcdet.visual.report import Row, write_report

    rows = [Row(int(p.level), WORDS[p.level], p.check, p.message) for p in checked.problems]
    with tempfile.TemporaryDirectory() as folder:
        pictures = draw(source, settings, checked, given.pictures, Path(folder))
        return write_report(given.out, f"Data of {source.root}", facts, rows, pictures)


def draw(source: "DataSource", settings: Any, checked: "Checked", count: int, folder: Path) -> list:
    """Frames from above with their boxes: first one for each problem that names frames, then others."""
    from pcdet.visual import draw_bev
    from pcdet.visual.report import Picture

    readable = {f.frame: f for f in checked.facts}
    reasons: dict[str, str] = {}
    for problem in checked.problems:
        frame = next((f for f in problem.frames if f in readable), None)
        if frame is not None:
            reasons.setdefault(frame, f"{problem.check}: {problem.message}")
    for frame in readable:
        reasons.setdefault(frame, "")
    limits = None if settings is None else settings["DATA_CONFIG"].get("POINT_CLOUD_RANGE")
    out = []
    for i, (frame, reason) in enumerate(list(reasons.items())[:count]):
        points = source.read(frame).points
        title = f"{frame}: {readable[frame].points} points, {len(readable[frame].names)} labelled boxes"
        path = folder / f"{i}.png"
        boxes = readable[frame].boxes if source.parse is not None else None
        draw_bev(points, path, gt_boxes=boxes, class_names=(), point_cloud_range=limits, title=title)
        out.append(Picture(path, reason or title))
    return out


if __name__ == "__main__":
    run(main)
