"""Memory of data-loader workers, epoch by epoch.

    python benchmarks/data_memory.py --data_path DATA [--cfg_file C] [--epochs 5] [--workers 4] [--json OUT]

DATA has its infos (tools/create_data.py kitti). The same workers live through all epochs. Of each, RSS counts pages
that are shared with other processes in full, PSS (Linux) divides them among those who share them: the sum over workers
is what they take. Both are read once after each epoch.
"""

import argparse
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from pcdet.config import load_config
from pcdet.datasets import build_dataset
from pcdet.utils.files import write_json


def memory_of(pid: int) -> dict[str, float]:
    """RSS, PSS and the part that no other process shares, MiB."""
    sizes = {"Rss": 0.0, "Pss": 0.0, "Private_Clean": 0.0, "Private_Dirty": 0.0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition(":")
        if name in sizes:
            sizes[name] = int(rest.split()[0]) / 1024
    return {"rss": sizes["Rss"], "pss": sizes["Pss"], "private": sizes["Private_Clean"] + sizes["Private_Dirty"]}


def worker_memory(data, epochs: int, workers: int, batch_size: int) -> list[dict[str, float]]:
    """MiB of all workers together after each epoch. Every worker makes items of every epoch."""
    loader = DataLoader(
        data, batch_size, shuffle=True, num_workers=workers, collate_fn=data.collate, persistent_workers=True
    )
    found = []
    for _ in range(epochs):
        batches = iter(loader)
        for _ in batches:
            pass
        each = [memory_of(worker.pid) for worker in batches._workers]
        found.append({key: sum(one[key] for one in each) for key in each[0]})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cfg_file", default="cfgs/kitti_models/second.yaml", help="default: %(default)s")
    parser.add_argument("--data_path", type=Path, required=True, help="KITTI folder with infos")
    parser.add_argument("--epochs", type=int, default=5, help="default: 5")
    parser.add_argument("--workers", type=int, default=4, help="default: 4")
    parser.add_argument("--json", metavar="OUT", help="write the figures to this file as well")
    given = parser.parse_args()
    torch.set_num_threads(1)
    settings = load_config(given.cfg_file).settings
    data = build_dataset(settings.DATA_CONFIG, settings.CLASS_NAMES, training=True, root=given.data_path)
    found = worker_memory(data, given.epochs, given.workers, batch_size=2)
    print(f"{given.workers} workers, {len(data)} frames an epoch; MiB of all workers together")
    for epoch, sizes in enumerate(found, start=1):
        print(f"epoch {epoch}: " + ", ".join(f"{key} {value:.1f}" for key, value in sizes.items()))
    if given.json:
        write_json(given.json, {"cfg_file": given.cfg_file, "workers": given.workers, "mib_by_epoch": found})


if __name__ == "__main__":
    main()
