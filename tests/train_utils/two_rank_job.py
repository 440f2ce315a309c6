"""Run by test_two_ranks.py once a rank, and imported by it for the single process that both are compared with."""

import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from engine_fakes import FakeScenes, fresh_model
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))

from zoo import simulated_scene, small_config, small_dataset, small_model  # noqa: E402

from pcdet.structures.scene import Scene  # noqa: E402
from pcdet.train_utils import tracking  # noqa: E402
from pcdet.train_utils.engine import RunOptions, Trainer  # noqa: E402
from pcdet.train_utils.evaluate import Evaluator  # noqa: E402
from pcdet.train_utils.launch import end_process, start_processes, stop_processes  # noqa: E402
from pcdet.train_utils.non_finite import NonFiniteLoss  # noqa: E402
from pcdet.train_utils.settings import Optimization  # noqa: E402
from pcdet.utils import distributed as ranks  # noqa: E402

CPU = torch.device("cpu")
ANCHORS, CENTRES = "synthetic_models/pointpillar_mini", "kitti_models/centerpoint_dyn_pillar_kitti"
STEPS = 5
PLAIN = Optimization(
    num_epochs=STEPS, optimizer="sgd", lr=0.01, momentum=0.9, weight_decay=0.0, grad_norm_clip=None, pct_start=0.0
)


@dataclass(frozen=True)
class Case:
    """A model on 8 scenes, one step an epoch, however the 8 are divided."""

    model: str  # "fake", or a name of the zoo
    freeze_bn: bool = False
    global_normalizer: bool = False
    by_positives: bool = False  # of the fake


CASES = {
    "fake, frozen": Case("fake", freeze_bn=True),
    "fake, synchronised": Case("fake"),
    "positives, frozen": Case("fake", freeze_bn=True, by_positives=True),
    "positives, frozen, global": Case("fake", freeze_bn=True, by_positives=True, global_normalizer=True),
    "anchors, frozen": Case(ANCHORS, freeze_bn=True),
    "anchors, synchronised": Case(ANCHORS),
    "centres, frozen": Case(CENTRES, freeze_bn=True),
    "centres, frozen, global": Case(CENTRES, freeze_bn=True, global_normalizer=True),
}


def mirrored(scene: Scene) -> Scene:
    """The scene with left and right exchanged."""
    points, boxes = scene.points.copy(), scene.gt_boxes.copy()
    points[:, 1] *= -1
    boxes[:, [1, 6]] *= -1
    return scene.with_(points=points, gt_boxes=boxes)


def eight_scenes() -> list[Scene]:
    """Four simulated scenes and their mirror images."""
    scenes = [simulated_scene(i) for i in range(4)]
    return [*scenes, *map(mirrored, scenes)]


def parts(case: Case) -> tuple[nn.Module, Any]:
    """Model and data set of a case; detectors have the same few channels everywhere."""
    name = case.model
    if name == "fake":
        return fresh_model(dropout=0.0, by_positives=case.by_positives), FakeScenes(8)
    model = small_config(name).MODEL
    for block in (model.BACKBONE_2D, model.DENSE_HEAD):
        narrow = {k: [16] * len(v) for k, v in block.items() if k in ("NUM_FILTERS", "NUM_UPSAMPLE_FILTERS")}
        block.update(narrow, **{k: 16 for k in ("SHARED_CONV_CHANNEL",) if k in block})
    small_model.cache_clear()
    return small_model(name), small_dataset(name, eight_scenes())


def trainer_of(case: Case, folder: Path, *, batch_size: int, accumulation: int = 1, **options: Any) -> Trainer:
    model, scenes = parts(case)
    settings = replace(
        PLAIN,
        batch_size_per_gpu=batch_size,
        accumulation_steps=accumulation,
        freeze_bn=case.freeze_bn,
        global_normalizer=case.global_normalizer,
    )
    given = RunOptions(folder, CPU, seed=1, sync_bn=ranks.world_size() > 1 and not case.freeze_bn, **options)
    return Trainer(model, scenes, settings, given)


def flat(tensors: Any) -> Tensor:
    return torch.cat([t.detach().flatten() for t in tensors])


def watched(trainer: Trainer) -> dict[str, Any]:
    """Train; the loss of each step, the gradient of the first and of the last, and the weights at the end."""
    losses, grads, take = [], [], trainer.take_step

    def step(group):
        outcome = take(group)
        losses.append(outcome.values()["train/loss"])
        grads.append(flat(p.grad for p in trainer.model.parameters()))
        return outcome

    trainer.take_step = step
    trainer.fit()
    loss = ranks.gather_objects(losses)
    return {
        "losses": torch.tensor(loss).mean(0),  # (steps,) over the ranks
        "first": grads[0],
        "last": grads[-1],
        "weights": flat(trainer.model.parameters()),
        "statistics": flat(b.double() for b in trainer.model.buffers()),
    }


def prefix(case: Case, folder: Path) -> dict[str, Any]:
    """The checkpoint after 3 of the steps, saved on a signal that rank 1 alone receives."""
    trainer = trainer_of(case, folder, batch_size=4)
    take = trainer.take_step

    def step(group):
        if ranks.rank() == 1 and trainer.place.it == 2:
            os.kill(os.getpid(), signal.SIGUSR1)
        return take(group)

    trainer.take_step = step
    return {"over": trainer.fit(), "it": trainer.place.it}


def with_bad_scene(folder: Path, policy: str) -> dict[str, Any]:
    """Scene 3 holds a NaN; the other rank has none of its own."""
    settings = replace(PLAIN, batch_size_per_gpu=2, num_epochs=2)
    options = RunOptions(folder, CPU, seed=1, nan_policy=policy, sync_bn=True)
    trainer = Trainer(fresh_model(dropout=0.0), FakeScenes(8, bad=[3]), settings, options)
    message = ""
    try:
        trainer.fit()
    except NonFiniteLoss as error:
        message = str(error)
    place = trainer.place
    return {
        "message": message,
        "tried": place.epoch * trainer.plan.steps_per_epoch + place.step,
        "taken": place.it,
        "state": flat(v.double() for v in trainer.model.state_dict().values()),
    }


def without_positives(folder: Path) -> dict[str, Any]:
    """E2: at every step the scenes of rank 0 hold no object, those of rank 1 do."""
    trainer = trainer_of(Case(ANCHORS), folder, batch_size=1)
    scenes = trainer.dataset.scenes
    trainer.plan.batches = lambda epoch: [[ranks.rank()], [2 + ranks.rank()]]
    for i in (0, 2):
        scenes[i] = scenes[i].with_(gt_boxes=scenes[i].gt_boxes[:0], gt_names=scenes[i].gt_names[:0])
    trainer.plan.steps_per_epoch = 2
    found = watched(trainer)
    return {"grads": [found["first"], found["last"]], "weights": found["weights"], "losses": found["losses"]}


def evaluated(folder: Path, length: int) -> list[str]:
    evaluator = Evaluator(fresh_model(), FakeScenes(length), CPU, batch_size=2)
    return [r["frame_id"] for r in evaluator(folder).results]


def times(folder: Path) -> dict[str, list[float]]:
    """Seconds of every step, by phase."""
    trainer = trainer_of(CASES["fake, synchronised"], folder, batch_size=4)
    reports = []
    trainer.speed.add = reports.append
    trainer.fit()
    return {"wall": [r.wall for r in reports], **{k: [r.phases[k] for r in reports] for k in reports[0].phases}}


def uneven(folder: Path) -> dict[str, Any]:
    """E3: 7 scenes for 2 ranks in batches of 2, with statistics of all ranks."""
    settings = replace(PLAIN, batch_size_per_gpu=2, num_epochs=2)
    trainer = Trainer(fresh_model(dropout=0.0), FakeScenes(7), settings, RunOptions(folder, CPU, seed=1, sync_bn=True))
    trainer.fit()
    return {"steps": trainer.place.it, "state": flat(v.double() for v in trainer.model.state_dict().values())}


def fakes(folder: Path) -> dict[str, Any]:
    """All that needs no detector."""
    found: dict[str, Any] = {"prefix": prefix(CASES["fake, frozen"], folder / "prefix")}
    found["uneven"] = uneven(folder / "uneven")
    found["times"] = times(folder / "times")
    for policy in ("stop", "skip"):
        found[policy] = with_bad_scene(folder / policy, policy)
    found["evaluated"] = {length: evaluated(folder / "evaluated", length) for length in (1, 5, 8)}
    return found


def main(folder: Path, kind: str) -> None:
    torch.set_num_threads(1)
    tracking.draw_history = lambda history, folder: None  # matplotlib takes seconds to load
    start_processes("pytorch", None, "cpu", timeout=60)
    found = fakes(folder) if kind == "fake" else {"without positives": without_positives(folder / "positives")}
    for name, case in CASES.items():
        if (case.model == "fake") == (kind == "fake"):
            found[name] = watched(trainer_of(case, folder / name, batch_size=4))
        if case.global_normalizer and (case.model == "fake") == (kind == "fake"):
            found[f"{name}, twice"] = watched(trainer_of(case, folder / f"{name}, twice", batch_size=2, accumulation=2))
    torch.save(found, folder / f"rank{ranks.rank()}.pth")
    stop_processes()
    end_process(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
