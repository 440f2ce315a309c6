"""Run by test_pointnet2_two_ranks.py once a rank, and imported by it: PointNet++ on eight clouds, however divided."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engine_fakes import FakeScenes
from torch import Tensor
from two_rank_job import CPU, PLAIN, watched

from pcdet.config import load_config
from pcdet.datasets import describe_clouds
from pcdet.datasets.synthetic.shapes import SHAPES, sample_shape
from pcdet.models.build import build_model
from pcdet.train_utils import tracking
from pcdet.train_utils.engine import RunOptions, Trainer
from pcdet.train_utils.launch import end_process, start_processes, stop_processes
from pcdet.utils import distributed as ranks

ROOT = Path(__file__).resolve().parents[2]
POINTS = 128


class Clouds(FakeScenes):
    """A simulated shape of each of eight classes."""

    def __init__(self):
        super().__init__(8)

    def __getitem__(self, index: int) -> dict[str, Any]:
        name = list(SHAPES)[5 * index]
        cloud = sample_shape(name, POINTS, np.random.default_rng(index))[:, :3]
        return {"frame_id": name, "cloud": cloud - cloud.mean(axis=0), "label": 5 * index}

    @staticmethod
    def collate(items: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "batch_size": len(items),
            "frame_id": [i["frame_id"] for i in items],
            "point_clouds": torch.from_numpy(np.stack([i["cloud"] for i in items])),  # (B, N, 3)
            "class_labels": torch.tensor([i["label"] for i in items]),  # (B,)
        }


def trainer_of(folder: Path, batch_size: int) -> Trainer:
    """The published single-scale model, narrower and with fewer points, without dropout."""
    settings = load_config(ROOT / "cfgs" / "modelnet_models" / "pointnet2_ssg.yaml").settings
    settings.MODEL.BACKBONE_3D.SA_CONFIG.update(
        NPOINTS=[32, 8], NSAMPLE=[8, 16], MLPS=[[8, 8, 16], [16, 16, 32], [32, 64]]
    )
    settings.MODEL.CLS_HEAD.update(HIDDEN=[32], DROPOUT=0.0)
    torch.manual_seed(0)
    model = build_model(settings.MODEL, describe_clouds(settings.DATA_CONFIG, settings.CLASS_NAMES))
    options = RunOptions(folder, CPU, seed=1, sync_bn=ranks.world_size() > 1)
    optimization = PLAIN.__class__(**{**vars(PLAIN), "batch_size_per_gpu": batch_size})
    return Trainer(model, Clouds(), optimization, options)


def outcome(folder: Path, batch_size: int) -> dict[str, Tensor]:
    """Losses and gradients of the steps, weights, statistics, and the logits of all clouds after them."""
    trainer = trainer_of(folder, batch_size)
    found = watched(trainer)
    clouds = Clouds()
    with torch.no_grad():
        scores = trainer.model.eval()(clouds.collate([clouds[i] for i in range(len(clouds))]))
    return found | {"logits": scores.logits}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    tracking.draw_history = lambda history, folder: None  # matplotlib takes seconds to load
    start_processes("pytorch", None, "cpu", timeout=60)
    torch.save(outcome(folder / "run", 4), folder / f"rank{ranks.rank()}.pth")
    stop_processes()
    end_process(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
