"""Rooms cut into square columns with equally many points (PointNet++, supplement sec. B.3; Qi et al. 2017)."""

import logging
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pcdet.datasets.whole_clouds.augmentation import CloudAugmentation
from pcdet.datasets.whole_clouds.cloud_dataset import Example
from pcdet.datasets.whole_clouds.packs import Pack
from pcdet.datasets.whole_clouds.segmented import SegmentedClouds
from pcdet.datasets.whole_clouds.selection import choose_points
from pcdet.structures.dataset_info import DatasetInfo

if TYPE_CHECKING:
    from pcdet.evaluation.report import EvalReport

_TRIES = 10  # draws of a training block before the last one is taken as it is


class _Piece(NamedTuple):
    """NUM_POINTS points of a block of a room, for evaluation."""

    room: int
    centre: tuple[float, float]  # x, y
    rows: np.ndarray  # (n,) rows of the room, n at most NUM_POINTS


class RoomBlocks(SegmentedClouds):
    """Blocks of rooms. A subclass gives the pack of rooms, whose points start with x y z, and the features.

    In training a block is centred on a random point of a random room (rooms in proportion to their points) and
    NUM_POINTS of its points are drawn; one with few points or few labelled ones is drawn again. In evaluation rooms
    are cut by a grid and every point is seen exactly once: the points of a block are dealt out to as few pieces as
    hold them, and a piece is filled up with its own points, which then have the label -1.

    An epoch has as many blocks as the rooms have points, over NUM_POINTS. A point's x and y are relative to the
    block's centre, z is the height above the room's lowest point; all in metres.
    """

    min_labelled = 0.7  # share of a training block's points

    def __init__(
        self,
        *,
        info: DatasetInfo,
        pack: Pack,
        training: bool,
        seed: int,
        logger: logging.Logger,
        num_points: int,
        block_size: float,
        augmentation: CloudAugmentation | None,
    ):
        super().__init__(
            info=info,
            training=training,
            seed=seed,
            logger=logger,
            num_points=num_points,
            augmentation=augmentation,
        )
        if block_size <= 0:
            raise ValueError(f"BLOCK_SIZE is {block_size} metres; it must be above 0")
        self.pack, self.block_size = pack, block_size
        self.min_points = num_points // 4  # of a training block
        self.lows = np.stack([pack.cloud(i)[:, :3].min(axis=0) for i in range(len(pack))])  # (M, 3)
        self.highs = np.stack([pack.cloud(i)[:, :3].max(axis=0) for i in range(len(pack))])
        self.pieces = [] if training else [piece for i in range(len(pack)) for piece in self._cut(i)]
        self.all_classes = np.arange(info.num_class)

    @abstractmethod
    def features(self, room: int, rows: np.ndarray) -> np.ndarray:
        """(N, C) what follows x y z, of ``rows`` (N, 3 + D) of a room."""

    def __len__(self) -> int:
        if self.training:
            return max(1, int(self.pack.offsets[-1]) // self.num_points)
        return len(self.pieces)

    def frame_id(self, index: int) -> str:
        if self.training:
            return f"block_{index}"
        return f"{self.pack.names[self.pieces[index].room]}/{index}"

    def allowed(self, index: int) -> np.ndarray:
        return self.all_classes

    def load(self, index: int, rng: np.random.Generator) -> Example:
        """A block and ``point_labels``."""
        room, centre, rows = self._draw(rng) if self.training else self.pieces[index]
        chosen = rows[choose_points(len(rows), self.num_points, rng if self.training else None)]
        points = np.asarray(self.pack.cloud(room)[chosen])  # (N, 3 + D)
        labels = np.asarray(self.pack.labels_of_points(room)[chosen]).astype(np.int64)
        if not self.training:
            labels[len(rows) :] = -1  # points that stand there twice
        xyz = points[:, :3] - np.array([*centre, self.lows[room][2]], dtype=np.float32)
        return Example(np.concatenate([xyz, self.features(room, points)], axis=1), {"point_labels": labels})

    def _draw(self, rng: np.random.Generator) -> _Piece:
        for _ in range(_TRIES):
            point = int(rng.integers(self.pack.offsets[-1]))
            room = int(np.searchsorted(self.pack.offsets, point, side="right")) - 1
            cloud = self.pack.cloud(room)
            centre = cloud[point - self.pack.offsets[room], :2]
            rows = np.flatnonzero((np.abs(cloud[:, :2] - centre) <= self.block_size / 2).all(axis=1))
            labelled = (self.pack.labels_of_points(room)[rows] >= 0).mean()
            if len(rows) > self.min_points and labelled >= self.min_labelled:
                break
        return _Piece(room, (float(centre[0]), float(centre[1])), rows)

    def _cut(self, room: int) -> list[_Piece]:
        """The pieces of a room; each of its points is in exactly one."""
        xy, low = self.pack.cloud(room)[:, :2], self.lows[room][:2]
        cells = np.floor((xy - low) / self.block_size).astype(np.int64)  # (N, 2)
        columns = int(cells[:, 1].max()) + 1
        order = np.argsort(cells[:, 0] * columns + cells[:, 1], kind="stable")
        numbers = (cells[:, 0] * columns + cells[:, 1])[order]
        out = []
        for rows in np.split(order, np.flatnonzero(np.diff(numbers)) + 1):
            centre = low + (cells[rows[0]] + 0.5) * self.block_size
            pieces = math.ceil(len(rows) / self.num_points)
            out += [_Piece(room, (float(centre[0]), float(centre[1])), rows[i::pieces]) for i in range(pieces)]
        return out

    def evaluate(self, results: Sequence[Mapping[str, Any]]) -> "EvalReport":
        """Mean IoU over all points of all rooms."""
        from pcdet.evaluation.segmentation import evaluate_semantic

        return evaluate_semantic(self.confusion(results), self.class_names)

    def metric_names(self) -> set[str]:
        """Every metric that :meth:`evaluate` may give."""
        from pcdet.evaluation.segmentation import semantic_names

        return semantic_names(self.class_names)


def class_weights(pack: Pack, num_class: int) -> tuple[float, ...]:
    """``1 / log(1.2 + share)`` of each class among the labelled points, as published for ScanNet."""
    labels = pack.point_labels
    counts = np.bincount(labels[labels >= 0], minlength=num_class).astype(np.float64)
    return tuple((1 / np.log(1.2 + counts / max(counts.sum(), 1))).tolist())
