"""Simulated frames as somebody else would write them: PCD clouds, one CSV of labels, other names and conventions."""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pcdet.datasets.synthetic import simulate_custom
from pcdet.structures.box_convention import BoxConvention

NAMES = {"Vehicle": "car", "Pedestrian": "person", "Cyclist": "bicycle"}
# What docs/examples/foreign_data.yaml says: the centre of the bottom, degrees clockwise from the y axis.
CONVENTION = BoxConvention(origin="bottom", clockwise=True, unit="deg", zero="y")
COLUMNS = "file,type,cx,cy,cz,length,width,height,yaw"
FIELDS = [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("refl", "u1")]


def write_pcd(path: Path, points: np.ndarray) -> None:
    """(N, 4) x y z and intensity in [0, 1] -> a binary PCD with refl from 0 to 255."""
    rows = np.empty(len(points), dtype=FIELDS)
    for column, name in enumerate("xyz"):
        rows[name] = points[:, column]
    rows["refl"] = np.round(points[:, 3] * 255)
    header = (
        "VERSION 0.7\nFIELDS x y z refl\nSIZE 4 4 4 1\nTYPE F F F U\nCOUNT 1 1 1 1\n"
        f"WIDTH {len(rows)}\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS {len(rows)}\nDATA binary\n"
    )
    path.write_bytes(header.encode() + rows.tobytes())


def label_lines(path: Path, cloud: str) -> list[str]:
    """Lines of the CSV from a label file of ours."""
    rows = [line.split() for line in path.read_text().splitlines()]
    boxes = CONVENTION.from_lidar(np.array([row[:7] for row in rows], dtype=np.float64))
    return [",".join([cloud, NAMES[row[7]], *(f"{v:.4f}" for v in box)]) for row, box in zip(rows, boxes, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--frames", type=int, default=40, help="default 40")
    parser.add_argument("--workers", type=int, default=1, help="processes, default 1")
    given = parser.parse_args()
    ours = simulate_custom(given.out / "simulated", given.frames, 0, workers=given.workers)
    for folder in ("points", "ImageSets"):
        (given.out / folder).mkdir(exist_ok=True)
    lines = [COLUMNS]
    for cloud in sorted((ours / "points").glob("*.npy")):
        name = f"{cloud.stem}.pcd"
        write_pcd(given.out / "points" / name, np.load(cloud))
        lines += label_lines(ours / "labels" / f"{cloud.stem}.txt", name)
    (given.out / "labels.csv").write_text("\n".join(lines) + "\n")
    for split in (ours / "ImageSets").iterdir():
        (given.out / "ImageSets" / split.name).write_text(split.read_text())
    print(f"{given.frames} frames are in {given.out}: points/*.pcd, labels.csv, ImageSets")


if __name__ == "__main__":
    main()
