"""Pasting labelled objects of other frames into a scene (SECOND, Yan et al. 2018)."""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from pcdet.datasets.augment.database import ObjectDatabase, apply_filters, pack_objects, parse_counts, read_index
from pcdet.datasets.augment.registry import AUGMENTS, AugmentContext
from pcdet.ops.iou3d import boxes_collide_bev
from pcdet.ops.points_in_boxes import points_in_any_box
from pcdet.structures.calibration import Calibration
from pcdet.structures.scene import Scene


class PrepareSettings(TypedDict, total=False):
    """Filters of the database."""

    filter_by_min_points: list[str]
    filter_by_difficulty: list[int]


@AUGMENTS.register(name="gt_sampling")
class GtSampling:
    """Paste objects from the ground-truth database where they overlap nothing.

    SAMPLE_GROUPS such as ``Car:15`` asks for 15 cars a scene or, with LIMIT_WHOLE_SCENE, for as many as make 15
    together with the labelled ones. Objects are drawn without repetition; every one whose box, seen from above,
    overlaps a labelled box, a pasted one, or another of the same draw, is left out (as in OpenPCDet, both of two
    drawn objects that overlap). Points of the scene inside a pasted box, widened by REMOVE_EXTRA_WIDTH, make room for
    the object's own. With USE_ROAD_PLANE the objects are set down on the frame's ground, where its plane is known.

    A class without objects in the database is skipped, with one warning at the start.
    """

    ignored_keys = ("USE_SHARED_MEMORY",)

    def __init__(
        self,
        context: AugmentContext,
        *,
        db_info_path: Sequence[str],
        sample_groups: Sequence[str],
        num_point_features: int = 4,
        prepare: PrepareSettings | None = None,
        use_road_plane: bool = False,
        remove_extra_width: Sequence[float] = (0.0, 0.0, 0.0),
        limit_whole_scene: bool = False,
        database_with_fakelidar: bool = False,
    ):
        if num_point_features < context.num_point_features:
            raise ValueError(
                f"gt_sampling: NUM_POINT_FEATURES is {num_point_features}, but the scene's points have "
                f"{context.num_point_features} columns"
            )
        self.context = context
        self.use_road_plane = use_road_plane
        self.limit_whole_scene = limit_whole_scene
        self.extra_width = np.array(remove_extra_width, dtype=np.float32)
        self.wanted = {
            c: n for c, n in parse_counts(sample_groups, "SAMPLE_GROUPS").items() if c in context.class_names
        }
        self.database = self.open_database(db_info_path, prepare or {}, num_point_features, database_with_fakelidar)

    def open_database(
        self, files: Sequence[str], filters: PrepareSettings, num_point_features: int, fake_lidar: bool
    ) -> ObjectDatabase:
        """Read and filter the index; each wanted class without objects is one warning."""
        everything = read_index(self.context, files)
        pack = pack_objects(self.context, files, everything, num_point_features)
        wanted = {name: everything.get(name, []) for name in self.context.class_names}
        index = apply_filters(wanted, filters, self.context)
        for name in self.wanted:
            if not index.get(name):
                self.context.logger.warning("gt_sampling: no %s is left in the database, none will be pasted", name)
        return ObjectDatabase(pack, self.context.root, index, fake_lidar)

    def __call__(self, scene: Scene, rng: np.random.Generator) -> Scene:
        boxes, names, objects = [], [], []
        occupied = scene.gt_boxes[:, :7]
        for name, wanted in self.wanted.items():
            if self.limit_whole_scene:
                wanted -= int(np.sum(scene.gt_names == name))
            numbers = self.draw(name, wanted, occupied, rng)
            boxes.append(self.database.boxes[name][numbers])
            occupied = np.concatenate([occupied, boxes[-1]])
            names += [name] * len(numbers)
            objects.append(self.database.places[name][numbers])
        if not names:
            return scene
        return self.paste(scene, np.concatenate(boxes), names, np.concatenate(objects))

    def draw(self, name: str, wanted: int, occupied: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Numbers of objects of one class that overlap neither ``occupied`` (M, 7) nor each other."""
        pool = self.database.boxes[name]
        numbers = rng.choice(len(pool), min(max(wanted, 0), len(pool)), replace=False)
        return numbers[~boxes_collide_bev(pool[numbers], occupied)]

    def paste(self, scene: Scene, boxes: np.ndarray, names: list[str], objects: np.ndarray) -> Scene:
        """The scene with objects added: their boxes (K, 7), names, and places in the database (K,)."""
        if self.use_road_plane:
            boxes = self.set_down(scene, boxes)
        points, counts = self.database.points(objects)
        points = points[:, : scene.points.shape[1]]
        points[:, :3] += np.repeat(boxes[:, :3], counts, axis=0)
        room = boxes.copy()
        room[:, 3:6] += self.extra_width
        free = ~points_in_any_box(scene.points, room)  # (N,)
        width = max(scene.gt_names.dtype.itemsize // 4, *map(len, names))
        return scene.with_(
            points=np.concatenate([points, scene.points.compress(free, axis=0)]),
            gt_boxes=np.concatenate([scene.gt_boxes, boxes.astype(scene.gt_boxes.dtype)]),
            gt_names=np.concatenate([scene.gt_names, np.array(names, dtype=f"<U{width}")]),
        )

    def set_down(self, scene: Scene, boxes: np.ndarray) -> np.ndarray:
        """The boxes at the height of the frame's ground; in a frame without a plane they keep their own."""
        if scene.road_plane is None or scene.calib is None:
            return boxes
        out = boxes.copy()
        out[:, 2] = ground_height(boxes, scene.road_plane, scene.calib) + boxes[:, 5] / 2
        return out


def ground_height(boxes: np.ndarray, plane: np.ndarray, calib: Calibration) -> np.ndarray:
    """(M,) height of the ground, metres in the LiDAR frame, below the centres of boxes (M, 7).

    ``plane`` (4,) is a b c d in the rectified camera frame.
    """
    a, b, c, d = plane
    camera = calib.lidar_to_rect(boxes[:, :3])
    camera[:, 1] = -(a * camera[:, 0] + c * camera[:, 2] + d) / b
    return calib.rect_to_lidar(camera)[:, 2]
