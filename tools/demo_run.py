"""The whole road in one command: simulate, train, evaluate, draw. ``make demo`` runs this."""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from _common import ROOT, run

CONFIG = "cfgs/synthetic_models/pointpillar_mini.yaml"
PICTURES = 4
# Frames of the simulated set; with this seed and fraction the last ones are held out for evaluation.
FRAMES, SEED, VAL_FRACTION = 400, 0, 0.125


def main() -> int:
    """Run the four steps; what exists already is used again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=ROOT / "data" / "synthetic_kitti", help="where the data set lies")
    parser.add_argument("--output_dir", type=Path, default=ROOT / "output", help="root of the output")
    given = parser.parse_args()
    began = time.monotonic()
    step("1/4  A simulated LiDAR data set in KITTI's layout", given.data)
    make_data(given.data)
    folder = given.output_dir / "synthetic_models" / "pointpillar_mini" / "default"
    step("2/4  Training a small PointPillars, and its evaluation with KITTI's metric", folder)
    train(given)
    step("3/4  Pictures of held-out frames", folder / "demo")
    draw(given, folder)
    step("4/4  What came out", folder)
    print(summary(given.data, folder, time.monotonic() - began))
    return 0


def step(title: str, folder: Path) -> None:
    print(f"\n=== {title} ({shown(folder)})", flush=True)


def shown(path: Path) -> str:
    """A path as short as it can be given."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def tool(name: str, *arguments: str) -> None:
    """Run one of the tools. Raises ``ValueError`` if it fails; it has said why."""
    status = subprocess.run([sys.executable, str(ROOT / "tools" / name), *arguments], cwd=ROOT).returncode
    if status:
        raise ValueError(f"tools/{name} ended with status {status}; its message stands above")


def make_data(data: Path) -> None:
    wanted = {"frames": FRAMES, "seed": SEED, "val_fraction": VAL_FRACTION}
    stamp = data / "simulated.json"
    if not (stamp.is_file() and json.loads(stamp.read_text()) == wanted):
        tool(
            "create_data.py", "simulate-kitti", "--frames", str(FRAMES), "--out", str(data), "--seed", str(SEED),
            "--val_fraction", str(VAL_FRACTION), "--workers", str(os.cpu_count() or 1), "--fov_only",
        )  # fmt: skip
        tool("create_data.py", "kitti", "--data_path", str(data))
        stamp.write_text(json.dumps(wanted))
    else:
        print("is there already")


def train(given: argparse.Namespace) -> None:
    """Train and evaluate; a finished run says so and ends, an interrupted one goes on where it stopped."""
    tool(
        "train.py", "--cfg_file", CONFIG, "--workers", "2", "--output_dir", str(given.output_dir),
        "--logger_iter_interval", "20", "--set", "DATA_CONFIG.DATA_PATH", str(given.data),
    )  # fmt: skip


def checkpoint(folder: Path) -> Path:
    from pcdet.train_utils.checkpoint import epoch_files

    return epoch_files(folder / "ckpt")[-1]


def metrics_file(folder: Path) -> Path:
    found = sorted(folder.glob("eval/eval_with_train/epoch_*/val/metrics.json"), key=lambda p: p.stat().st_mtime)
    if not found:
        raise ValueError(f"There is no evaluation below {folder}/eval: remove {folder} and run again")
    return found[-1]


def held_out(data: Path) -> list[Path]:
    frames = (data / "ImageSets" / "val.txt").read_text().split()[:PICTURES]
    return [data / "training" / "velodyne" / f"{frame}.bin" for frame in frames]


def draw(given: argparse.Namespace, folder: Path) -> None:
    tool(
        "demo.py", "--cfg_file", CONFIG, "--ckpt", str(checkpoint(folder)), "--out", str(folder / "demo"),
        "--score_thresh", "0.4", "--data_path", *map(str, held_out(given.data)),
    )  # fmt: skip


def summary(data: Path, folder: Path, seconds: float) -> str:
    """The closing table and where to look."""
    metrics = json.loads(metrics_file(folder).read_text())
    rows = [f"{'3D AP, R40 (held-out frames)':<30}{'easy':>8}{'moderate':>10}{'hard':>8}"]
    for name in ("Car", "Pedestrian", "Cyclist"):
        values = [metrics.get(f"{name}_3d/{level}_R40") for level in ("easy", "moderate", "hard")]
        cells = ["n/a" if v is None else f"{v:.2f}" for v in values]
        rows.append(f"{name:<30}{cells[0]:>8}{cells[1]:>10}{cells[2]:>8}")
    places = {
        "pictures": folder / "demo",
        "training curves": folder / "curves.png",
        "evaluation report": metrics_file(folder).parent / "report.txt",
        "checkpoint": checkpoint(folder),
        "data set": data,
    }
    rows += ["", *(f"{name:<20}{shown(path)}" for name, path in places.items())]
    return "\n".join([*rows, "", f"took {seconds / 60:.1f} minutes"])


if __name__ == "__main__":
    run(main)
