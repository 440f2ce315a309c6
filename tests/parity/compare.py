"""Compare a model with a recorded run: python tests/parity/compare.py RUN.json --data KITTI_FOLDER.

Prints a row for every slot, loss and gradient group, with its deviation in units of what is tolerated. Exits with 1
where one is above 1.
"""

import argparse
import sys
from pathlib import Path

import yaml
from harness import compare_run
from inputs import merged_config

CONFIGS = Path(__file__).resolve().parents[2] / "cfgs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="a recorded run; its arrays lie beside it as .npz")
    parser.add_argument("--data", type=Path, required=True, help="folder with KITTI's training/")
    parser.add_argument("--config", help="model file under cfgs/; by default kitti_models/ and the run's name")
    options = parser.parse_args()
    name = options.config or f"kitti_models/{options.run.name.split('.')[0]}.yaml"
    failed = 0
    for row in compare_run(options.run, options.data, merged_config(read_configs(name), name)):
        failed += not row.passed
        print(f"{'ok  ' if row.passed else 'FAIL'} {row.deviation:9.3g}  {row.what:58s} {row.note}", flush=True)
    print(f"{failed} of the rows above deviate by more than is tolerated" if failed else "everything matches")
    return 1 if failed else 0


def read_configs(name: str) -> dict[str, dict]:
    """The model's file and the bases of data sets, by name."""
    bases = sorted((CONFIGS / "dataset_configs").glob("*.yaml"))
    names = (name, *(f"dataset_configs/{path.name}" for path in bases))
    return {n: yaml.safe_load((CONFIGS / n).read_text()) for n in names}


if __name__ == "__main__":
    sys.exit(main())
