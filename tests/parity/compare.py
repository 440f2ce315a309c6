"""Compare a model with a recorded run: python tests/parity/compare.py RUN.json --data KITTI_FOLDER.

Prints a row for every slot, loss and gradient group, with its deviation in units of what is tolerated. Exits with 1
where one is above 1, and with 2 where files are missing.

The configuration is the one that --config names (a YAML or JSON file, or a name under cfgs/). Without it, it is what
the run itself holds as ``config``; of a name there, NAME.json or NAME.yaml beside the run or in ``cfgs/`` beside it,
or else NAME.yaml in cfgs/kitti_models/ or another folder of this project's cfgs/.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import compare_run
from inputs import CONFIGS, completed, read_config


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a recorded run; its arrays lie beside it as .npz")
    parser.add_argument("--data", type=Path, required=True, help="folder with KITTI's training/")
    parser.add_argument(
        "--config", help="configuration: a file, or a name under cfgs/ such as kitti_models/second.yaml"
    )
    options = parser.parse_args()
    try:
        config, place = config_of(options.run, options.config)
        print(f"{options.run} with the configuration of {place}", flush=True)
        rows = print_rows(options.run, options.data, config)
    except FileNotFoundError as error:
        print(f"{error.filename or error} does not exist" if error.filename else error, file=sys.stderr)
        return 2
    failed = sum(not row.passed for row in rows)
    left_out = sum(not row.compared for row in rows)
    print(f"{len(rows)} rows: {failed} deviate by more than is tolerated, {left_out} could not be compared")
    return 1 if failed else 0


def print_rows(run: Path, data: Path, config: Mapping[str, Any]) -> list:
    """Compare, and print every row as soon as it is there."""
    rows = []
    for row in compare_run(run, data, config):
        verdict = "ok  " if row.passed else "FAIL"
        print(f"{verdict if row.compared else '-   '} {row.deviation:9.3g}  {row.what:58s} {row.note}", flush=True)
        rows.append(row)
    return rows


def config_of(run: Path, chosen: str | None = None) -> tuple[Mapping[str, Any], Path]:
    """The configuration of a run and the file it comes from. Raises ``FileNotFoundError`` where there is none."""
    if chosen is not None:
        return _first([Path(chosen), CONFIGS / chosen], f"--config {chosen}")
    named = json.loads(run.read_text())["config"]
    if isinstance(named, Mapping):
        return completed(named), run
    name = Path(named).name.removesuffix(".yaml")
    beside = [folder / f"{name}{end}" for folder in (run.parent, run.parent / "cfgs") for end in (".json", ".yaml")]
    ours = [CONFIGS / "kitti_models" / f"{name}.yaml", *sorted(CONFIGS.glob(f"*/{name}.yaml"))]
    return _first([path for path in [*beside, *ours] if path != run], f"a configuration called {name}")


def _first(places: list[Path], what: str) -> tuple[Mapping[str, Any], Path]:
    for path in places:
        if path.is_file():
            return read_config(path), path
    raise FileNotFoundError(f"There is no {what}; looked for {', '.join(map(str, places))}")


if __name__ == "__main__":
    sys.exit(main())
