"""A folder of data to be checked, whatever its layout: which frames it has, and how they are read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pcdet.datasets.cloud_formats import CloudLayout, read_points, stem_of
from pcdet.datasets.clouds import cloud_files
from pcdet.datasets.custom.folder import CustomFolder
from pcdet.datasets.custom.label_formats import Parsed, camera_row, lines_of, parse_each
from pcdet.datasets.custom.labels import LabelRow, usable
from pcdet.datasets.custom.reading import CustomReader
from pcdet.datasets.dataset import cloud_layout
from pcdet.datasets.kitti.folder import POINT_FEATURES, camera_image_shape, in_camera_view
from pcdet.datasets.kitti.labels import parse_line
from pcdet.datasets.splits import read_split
from pcdet.structures.box_convention import BoxConvention
from pcdet.structures.calibration import Calibration

SPLITS = ("train", "val", "test")
TEST_PREFIX = "testing/"  # of KITTI's test frames
DEFAULT_FEATURES = CloudLayout(POINT_FEATURES)
WITHOUT_INTENSITY = CloudLayout(POINT_FEATURES, {}, {"intensity": 0.0})


class Content(NamedTuple):
    """What a frame's files hold, and what is wrong with them."""

    points: np.ndarray | None  # (N, C), None where the cloud cannot be read
    dropped: int
    names: np.ndarray  # (M,)
    boxes: np.ndarray  # (M, 7)
    faults: list[str]  # what stops the making of infos
    complaints: list[str]  # objects left out, conventions in doubt
    filled: bool = False  # a feature that the cloud lacks was filled in


@dataclass(frozen=True)
class DataSource:
    """The frames of a folder."""

    kind: str
    root: Path
    layout: CloudLayout
    frames: Mapping[str, tuple[str, ...]]  # frame -> its splits
    cloud_path: Callable[[str], Path]
    parse: Callable[[str], Parsed] | None  # a frame's label rows, None where there are no labels
    points: Callable[[str], tuple[np.ndarray, int]]
    fallback: Callable[[str], tuple[np.ndarray, int]] | None = None  # for clouds that lack a feature nobody asked for
    convention: BoxConvention = BoxConvention()
    class_map: Mapping[str, str | None] | None = None
    faults: tuple[str, ...] = ()  # of the folder itself
    label_format: str | None = None  # LABEL_FORMAT of own data

    def read(self, frame: str) -> Content:
        """A frame's content; nothing that its files hold raises."""
        faults: list[str] = []
        complaints: list[str] = []
        points, dropped, filled = self.read_points(frame, faults, complaints)
        names, boxes = np.zeros(0, dtype="<U1"), np.zeros((0, 7))
        if self.parse is not None and self.frames[frame] != ("test",):
            try:
                rows, broken = self.parse(frame)
                faults += broken
                names, boxes, left_out, wide, tilted = usable(rows, self.convention, self.class_map or {})
                complaints += left_out
                complaints += [f"{p}: the heading is more than a full turn, are headings degrees?" for p in wide]
                complaints += [f"{p}: the box leans; it is taken as upright" for p in tilted]
            except (ValueError, OSError) as error:
                faults.append(str(error))
        return Content(points, dropped, names, boxes, faults, complaints, filled)

    def read_points(self, frame: str, faults: list[str], complaints: list[str]) -> tuple[np.ndarray | None, int, bool]:
        """The cloud, how many points were dropped, was a feature filled in; what is wrong is added to the lists."""
        try:
            return *self.points(frame), False
        except (ValueError, OSError) as error:
            first = str(error)
        if self.fallback is not None:
            try:
                found = self.fallback(frame)
            except (ValueError, OSError):
                pass  # then the first error tells more
            else:
                complaints.append(first)
                return *found, True
        faults.append(first)
        return None, 0, False


def find_source(root: Path, settings: Mapping[str, Any] | None = None) -> DataSource:
    """The data below ``root``, read as a DATA_CONFIG says, or as its folders look where there is none.

    A folder of another layout than DATASET asks for is looked at as clouds alone, with a fault that says so. Raises
    ``FileNotFoundError`` where there is neither a known layout nor a cloud, ``ValueError`` for another DATASET.
    """
    kind = None if settings is None else settings["DATASET"]
    if kind not in (None, "KittiDataset", "CustomDataset"):
        raise ValueError(f"data of {kind} are not checked; KittiDataset and CustomDataset are")
    if kind != "CustomDataset" and kitti_parts(root):
        return kitti_source(root, settings)
    if kind != "KittiDataset" and (root / "points").is_dir():
        return custom_source(root, settings)
    wanted = {"KittiDataset": "training/velodyne", "CustomDataset": "points"}.get(kind or "")
    return clouds_source(root, settings, () if wanted is None else (f"{kind} needs {root / wanted}: it is missing",))


def clouds_source(root: Path, settings: Mapping[str, Any] | None, faults: tuple[str, ...]) -> DataSource:
    """Clouds of a folder, or of its folder ``velodyne`` or ``points``, without labels."""
    folder = next((p for p in (root / "velodyne", root / "points") if p.is_dir()), root)
    files = {p.name: p for p in cloud_files(folder)}
    layout = DEFAULT_FEATURES if settings is None else cloud_layout(settings["POINT_FEATURE_ENCODING"])
    lenient = replace(layout, missing_values={"intensity": 0.0, **layout.missing_values})

    def points(frame: str) -> tuple[np.ndarray, int]:
        return read_points(files[frame], layout)

    def fallback(frame: str) -> tuple[np.ndarray, int]:
        return read_points(files[frame], lenient)

    frames = dict.fromkeys(files, ("all",))
    kind = "clouds alone"
    return DataSource(kind, root, layout, frames, files.__getitem__, None, points, fallback, faults=faults)


def frames_by_split(
    root: Path, every: Sequence[str], test_prefix: str = ""
) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Frame -> its splits by ``ImageSets``, or 'all' where there are no lists; and what is wrong with the lists."""
    frames: dict[str, tuple[str, ...]] = {}
    train = root / "ImageSets" / "train.txt"
    faults = [] if train.is_file() else [f"{train} is missing: it lists the frames to train on, one a line"]
    for split in SPLITS:
        path = root / "ImageSets" / f"{split}.txt"
        if not path.is_file():
            continue
        try:
            for name in read_split(path):
                frame = test_prefix + name if split == "test" else name
                frames[frame] = (*frames.get(frame, ()), split)
        except ValueError as error:
            faults.append(str(error))
    return frames or dict.fromkeys(every, ("all",)), tuple(faults)


def kitti_parts(root: Path) -> list[Path]:
    """Folders with ``velodyne``: those of KITTI's layout, or the root itself."""
    return [p for p in (root / "training", root / "testing", root) if (p / "velodyne").is_dir()]


def kitti_source(root: Path, settings: Mapping[str, Any] | None) -> DataSource:
    """Frames in KITTI's layout, cropped to the camera's view unless FOV_POINTS_ONLY says otherwise.

    Training and testing have the same numbers: a test frame is called ``testing/<number>``.
    """
    training = kitti_parts(root)[0]
    frames, faults = frames_by_split(root, sorted(p.stem for p in (training / "velodyne").glob("*.bin")), TEST_PREFIX)
    crop = settings is not None and settings.get("FOV_POINTS_ONLY", True)
    calibrated, labelled = (training / "calib").is_dir(), (training / "label_2").is_dir()

    for folder, there in (("calib", calibrated), ("label_2", labelled)):
        if not there:
            faults = (*faults, f"{training / folder} is missing: without it there is nothing to learn")

    def file(frame: str, folder: str, suffix: str) -> Path:
        part = root / "testing" if frame.startswith(TEST_PREFIX) else training
        return part / folder / f"{frame.removeprefix(TEST_PREFIX)}{suffix}"

    def cloud(frame: str) -> Path:
        return file(frame, "velodyne", ".bin")

    def calib(frame: str) -> Calibration:
        return Calibration.from_file(file(frame, "calib", ".txt"))

    def points(frame: str) -> tuple[np.ndarray, int]:
        found, dropped = read_points(cloud(frame), DEFAULT_FEATURES)
        if crop and calibrated:
            own = calib(frame)
            found = found[in_camera_view(found, own, np.array(camera_image_shape(own)))]
        return found, dropped

    def parse(frame: str) -> Parsed:
        own = calib(frame)

        def row(place: str, line: str) -> LabelRow:
            return LabelRow(place, *camera_row(parse_line(line, place), own))

        return parse_each(lines_of(file(frame, "label_2", ".txt")), row)

    return DataSource(
        "KITTI",
        root,
        DEFAULT_FEATURES,
        frames,
        cloud,
        parse if calibrated and labelled else None,
        points,
        faults=faults,
    )


def custom_source(root: Path, settings: Mapping[str, Any] | None) -> DataSource:
    """Frames in OpenPCDet's custom layout."""
    folder = CustomFolder(root)
    if settings is None:
        reader = CustomReader(folder, DEFAULT_FEATURES, label_format=guess_label_format(root))
    else:
        reader = CustomReader.from_settings(root, settings)
    every = sorted(stem_of(p) for p in cloud_files(root / "points"))
    frames, faults = frames_by_split(root, every)
    labelled = (root / "labels").is_dir() or (root / "labels.csv").is_file()
    if not labelled:
        faults = (*faults, f"{root / 'labels'} is missing: without labels there is nothing to learn")
    parse = reader.parse_labels if labelled else None
    lenient = replace(reader, layout=WITHOUT_INTENSITY)
    return DataSource(
        f"custom, labels as {reader.label_format}", root, reader.layout, frames, folder.cloud_path, parse,
        reader.points, lenient.points if settings is None else None, reader.convention, reader.class_map, faults,
        reader.label_format,
    )  # fmt: skip


def guess_label_format(root: Path) -> str:
    """The label format that a folder's files look like."""
    if (root / "labels.csv").is_file() or next((root / "labels").glob("*.csv"), None):
        return "csv"
    if next((root / "labels").glob("*.json"), None):
        return "labelcloud"
    for path in sorted((root / "labels").glob("*.txt")):
        with open(path, encoding="utf-8", errors="replace") as file:
            fields = file.readline().split()
        if fields:
            return ("kitti" if (root / "calib").is_dir() else "kitti_lidar") if len(fields) in (15, 16) else "openpcdet"
    return "openpcdet"
