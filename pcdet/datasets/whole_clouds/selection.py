"""Which clouds of a training set are held out, and which points of a cloud are used."""

from typing import Literal

import numpy as np

from pcdet.datasets.whole_clouds.packs import Pack

PointChoice = Literal["first", "random", "fps"]
EvalSplit = Literal["test", "val", "train"]


def held_out(groups: np.ndarray, share: float) -> np.ndarray:
    """(M,) bool: the clouds kept out of training, about ``share`` of every group, always the same ones.

    ``groups`` (M,) are the clouds' classes. A group of two or more clouds loses at least one and keeps at least one.
    Raises ``ValueError`` for a share outside [0, 1).
    """
    if not 0 <= share < 1:
        raise ValueError(f"HOLD_OUT is {share}; it should be a share of the training set in [0, 1)")
    mask = np.zeros(len(groups), dtype=bool)
    if share == 0:
        return mask
    rng = np.random.default_rng(0)
    for group in np.unique(groups):
        members = rng.permutation(np.flatnonzero(groups == group))
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        mask[members[:count]] = True
    return mask


def part_of_training(groups: np.ndarray, share: float, *, training: bool, split: EvalSplit) -> np.ndarray:
    """(M,) indices of the training clouds that a data set uses: what is not held out, or for ``val`` what is.

    Raises ``ValueError`` where ``val`` is asked for and nothing is held out.
    """
    mask = held_out(groups, share)
    if training or split == "train":
        return np.flatnonzero(~mask)
    if not mask.any():
        raise ValueError("EVAL_SPLIT is val, but nothing of the training set is held out: set HOLD_OUT, such as 0.1")
    return np.flatnonzero(mask)


def source_split(training: bool, split: EvalSplit) -> Literal["train", "test"]:
    """The data set's own split that is read. Raises ``ValueError`` for an unknown EVAL_SPLIT."""
    if split not in ("test", "val", "train"):
        raise ValueError(f"EVAL_SPLIT is {split}; it may be test, val (what HOLD_OUT keeps back) or train")
    return "train" if training or split != "test" else "test"


def choose_points(count: int, wanted: int, rng: np.random.Generator | None) -> np.ndarray:
    """(wanted,) indices below ``count``; every point is taken before any is taken twice.

    Without a generator: evenly spread over the order, or repeated in turn.
    """
    if rng is None:
        return np.arange(wanted) * count // wanted if count >= wanted else np.arange(wanted) % count
    rounds = [rng.permutation(count) for _ in range(-(-wanted // count))]
    return np.concatenate(rounds)[:wanted]


class PointChooser:
    """Chooses NUM_POINTS points of a cloud of a pack as POINT_CHOICE says.

    Raises ``ValueError`` for another choice, and where the first or furthest points are wanted of clouds with too few.
    """

    def __init__(self, pack: Pack, num_points: int, choice: PointChoice):
        if choice not in ("first", "random", "fps"):
            raise ValueError(f"POINT_CHOICE is {choice}; it may be first, random or fps")
        lengths = np.diff(pack.offsets)
        if choice != "random" and (lengths < num_points).any():
            short = int(lengths.argmin())
            raise ValueError(
                f"the cloud {pack.names[short]} holds {lengths[short]} rows; {num_points} are wanted (NUM_POINTS). "
                "POINT_CHOICE random repeats some"
            )
        self.lengths, self.num_points, self.choice = lengths, num_points, choice
        self.furthest = pack.furthest(num_points) if choice == "fps" else None  # (M, N)

    def __call__(self, position: int, rng: np.random.Generator | None) -> slice | np.ndarray:
        """Rows of the cloud at ``position``; a slice, or (N,) indices."""
        if self.choice == "first":
            return slice(0, self.num_points)
        if self.choice == "fps":
            return self.furthest[position]
        return choose_points(self.lengths[position], self.num_points, rng)
