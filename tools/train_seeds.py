"""Train a configuration with several seeds, and report mean and standard deviation of what each reaches.

    python tools/train_seeds.py --seeds 3 --cfg_file cfgs/... [options of tools/train.py] [--set KEY VALUE ...]

Seed N trains into <extra_tag>_seed_N, so that a stopped series goes on where it was. <extra_tag>_seeds.txt and
<extra_tag>_seeds.json, beside these folders, hold every metric of the test set for the last epoch and, with
--best_metric, for the chosen one.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from _common import ROOT, read_config, run, split_name
from _seeds import Metrics, seed_tag, summarise, table, write_summary

REFUSED = {
    "--seed": "every run would get the same seed; leave it out",
    "--fix_random_seed": "every run would get the same seed; leave it out",
    "--print_config": "it is for tools/train.py, which takes the same options",
}


def parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Our options, and those that are passed on to every training."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--seeds", type=int, default=3, help="seeds 0 to N - 1 (default: 3)")
    add("--cfg_file", required=True, help="the model's YAML")
    add("--extra_tag", default="default", help="beginning of the folders' names")
    add("--output_dir", type=Path, default=ROOT / "output", help="root of the output (default: output)")
    add("--status_file", type=Path, help="how the last training ended (default: status.txt in the seed's folder)")
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    cut = arguments.index("--set") if "--set" in arguments else len(arguments)
    given, passed = parser.parse_known_args(arguments[:cut])
    if given.seeds < 2:
        parser.error("--seeds needs at least 2: one seed has no deviation")
    for option, why in REFUSED.items():
        if any(word.split("=")[0] == option for word in passed):
            parser.error(f"{option}: {why}")
    given.set_cfgs, given.batch_size, given.print_config = arguments[cut + 1 :], None, False
    return given, passed + arguments[cut:]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, collect, summarise."""
    given, passed = parse(arguments)
    config = read_config(given, [])
    group = given.output_dir / config.exp_group_path / config.tag
    found: list[dict[str, Metrics]] = []
    for seed in range(given.seeds):
        tag = seed_tag(given.extra_tag, seed)
        status_file = given.status_file or group / tag / "status.txt"
        own = ["--cfg_file", given.cfg_file, "--output_dir", str(given.output_dir), "--extra_tag", tag]
        own += ["--status_file", str(status_file)]
        command = [sys.executable, str(ROOT / "tools" / "train.py"), *own, "--seed", str(seed), *passed]
        status = subprocess.run(command, check=False).returncode
        if status:
            raise ValueError(f"seed {seed}: training ended with the status {status}")
        if status_file.read_text(encoding="utf-8").strip() != "finished":
            raise ValueError(f"seed {seed}: training was stopped by a signal; the same command goes on from there")
        found.append(collect(group / tag, split_name(config.settings)))
    summary = summarise(found)
    write_summary(group / f"{given.extra_tag}_seeds", summary)
    print(table(summary))
    return 0


def collect(folder: Path, split: str) -> dict[str, Metrics]:
    """Metrics of a finished run: of its last epoch, and of the chosen one. Raises ``ValueError`` without any."""
    evaluated = folder / "eval" / "eval_with_train"
    epochs = sorted(
        (p for p in evaluated.glob(f"epoch_*/{split}/metrics.json")),
        key=lambda p: int(p.parent.parent.name.removeprefix("epoch_")),
    )
    if not epochs:
        raise ValueError(f"{evaluated} holds no evaluation of the split {split}")
    out = {"last epoch": json.loads(epochs[-1].read_text(encoding="utf-8"))}
    best = evaluated / "best" / split / "metrics.json"
    if best.is_file():
        out["chosen epoch"] = json.loads(best.read_text(encoding="utf-8"))
    return out


if __name__ == "__main__":
    run(main)
