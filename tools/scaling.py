"""Measure what more processes bring: the same global work at each process count, as a table and a picture.

    python tools/scaling.py --cfg_file cfgs/... --nproc 1 2 4 8 [options of tools/train.py] [--set KEY VALUE ...]

Writes scaling.md, scaling.csv and scaling.png into output/<group>/<configuration>/scaling/<extra_tag>/.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from _common import ROOT, read_config, run

if TYPE_CHECKING:
    from pcdet.train_utils.scaling import ScalingRow

RUN = Path(__file__).with_name("_scaling_run.py")


def parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Our options, and those that are passed on to every training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--cfg_file", required=True, help="the model's YAML")
    add("--nproc", type=int, nargs="+", default=[1, 2], help="process counts to measure (default: 1 2)")
    add("--batch_size", type=int, help="global batch (default: the least that all counts divide, at least the YAML's)")
    add("--steps", type=int, default=30, help="steps to measure for each count (default: 30)")
    add("--workers", type=int, default=2, help="loading processes for each process (default: 2)")
    add("--extra_tag", default="default", help="last folder of the output's path")
    add("--output_dir", type=Path, default=ROOT / "output", help="root of the output (default: output)")
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    cut = arguments.index("--set") if "--set" in arguments else len(arguments)
    given, passed = parser.parse_known_args(arguments[:cut])
    if min(given.nproc) < 1 or given.steps < 1:
        parser.error("--nproc and --steps are at least 1")
    given.nproc = sorted(set(given.nproc))
    given.set_cfgs, given.print_config = arguments[cut + 1 :], False
    return given, passed + arguments[cut:]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every process count, then write and print the table."""
    given, passed = parse(arguments)
    wanted, given.batch_size = given.batch_size, None
    config = read_config(given, [])
    given.batch_size = global_batch(wanted, config.settings.OPTIMIZATION.get("BATCH_SIZE_PER_GPU", 4), given.nproc)
    folder = given.output_dir / config.exp_group_path / config.tag / "scaling" / given.extra_tag
    rows = [measure(given, processes, passed, folder) for processes in given.nproc]
    write(rows, folder)
    return 0


def global_batch(wanted: int | None, least: int, nproc: Sequence[int]) -> int:
    """A batch that every count divides. Raises ``ValueError`` with the nearest ones if the wanted one is none."""
    from pcdet.train_utils.global_batch import micro_batch

    common = math.lcm(*nproc)
    if wanted is None:
        return -(-least // common) * common
    micro_batch(wanted, common)
    return wanted


def measure(given: argparse.Namespace, processes: int, passed: list[str], folder: Path) -> "ScalingRow":
    """Train with so many processes and read what they measured."""
    from pcdet.train_utils.scaling import ScalingRow

    own = ["--cfg_file", given.cfg_file, "--batch_size", given.batch_size, "--workers", given.workers]
    own += ["--output_dir", folder / "runs", "--extra_tag", f"{processes}_processes", "--steps", given.steps]
    found = folder / "runs" / f"{processes}.json"
    found.unlink(missing_ok=True)
    launcher, several = [], []
    if processes > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", processes]
        several = ["--launcher", "pytorch"]
    command = [sys.executable, *launcher, RUN, *own, "--result", found, *several, *passed]
    threads = {"OMP_NUM_THREADS": str(max((os.cpu_count() or 1) // processes, 1)), **os.environ}
    print(f"== {processes} process(es)", flush=True)
    status = subprocess.run(list(map(str, command)), env=threads, check=False).returncode
    if status or not found.is_file():
        raise ValueError(f"the run with {processes} process(es) ended with the status {status}; its log is above")
    return ScalingRow(**json.loads(found.read_text(encoding="utf-8")))


def write(rows: "list[ScalingRow]", folder: Path) -> None:
    """Table, numbers and picture."""
    from pcdet.train_utils.scaling import comma_separated, markdown
    from pcdet.utils.files import write_text
    from pcdet.visual import draw_scaling

    write_text(folder / "scaling.md", markdown(rows))
    write_text(folder / "scaling.csv", comma_separated(rows))
    shares = [{phase: seconds / row.step_seconds for phase, seconds in row.phases.items()} for row in rows]
    shares = [{**share, "other": max(1 - sum(share.values()), 0.0)} for share in shares]
    processes, speeds = [row.processes for row in rows], [row.samples_per_second for row in rows]
    draw_scaling(processes, speeds, shares, folder / "scaling.png")
    print(f"\n{markdown(rows)}\nscaling.md, scaling.csv and scaling.png are in {folder}")


if __name__ == "__main__":
    run(main)
