"""A folder of data to be checked, whatever its layout: which frames it has, and how they are read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pcdet.datasets.checks.problem import Level, Problem
from pcdet.datasets.cloud_formats import CloudLayout, read_points, stem_of
from pcdet.datasets.clouds import cloud_files
from pcdet.datasets.custom.folder import CustomFolder
from pcdet.datasets.custom.label_formats import Parsed, camera_row, csv_frames, label_format, lines_of, parse_each
from pcdet.datasets.custom.labels import MOST_TURNS, LabelRow, Labels, usable
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

CLOUDS_ALONE = "clouds alone"  # the kind of a source without labels
WANTED_FOLDERS = {"KittiDataset": "training/velodyne", "CustomDataset": "points"}
LOOKED_AT = 20  # frames from which the unit of headings is guessed
NO_LABELS = Labels(np.zeros(0, dtype="<U1"), np.zeros((0, 7)), [], [], [])


class Content(NamedTuple):
    """What a frame's files hold, and what is wrong with them."""

    points: np.ndarray | None  # (N, C), None where the cloud cannot be read
    dropped: int
    names: np.ndarray  # (M,)
    boxes: np.ndarray  # (M, 7)
    faults: list[str]  # what stops the making of infos
    left_out: list[str]  # objects that cannot be used
    wide: list[str]  # places of headings beyond a full turn
    tilted: list[str]  # places of boxes that lean
    lacks: str | None = None  # the feature that the cloud lacks and that was filled in


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
    box_convention: Mapping[str, Any] | None = None  # BOX_CONVENTION of own data
    oddities: tuple[Problem, ...] = ()  # of the folder itself, in spite of which it can be trained on

    @property
    def asked_convention(self) -> BoxConvention | None:
        """What BOX_CONVENTION says, or ``None`` where the labels' format has a convention of its own."""
        if self.label_format is None or label_format(self.label_format).has_own_convention:
            return None
        return self.convention

    def read(self, frame: str) -> Content:
        """A frame's content; nothing that its files hold raises."""
        faults: list[str] = []
        points, dropped, lacks = self.read_points(frame, faults)
        labels = NO_LABELS
        if self.parse is not None and self.frames[frame] != ("test",):
            try:
                rows, broken = self.parse(frame)
                faults += broken
                labels = usable(rows, self.convention, self.class_map or {})
            except (ValueError, OSError) as error:
                faults.append(str(error))
        return Content(points, dropped, labels.names, labels.boxes, faults, *labels[2:], lacks)

    def read_points(self, frame: str, faults: list[str]) -> tuple[np.ndarray | None, int, str | None]:
        """The cloud, how many points were dropped, and what was filled in; a fault is added to ``faults``."""
        try:
            return *self.points(frame), None
        except (ValueError, OSError) as error:
            first = str(error)
        if self.fallback is not None:
            try:
                return *self.fallback(frame), first
            except (ValueError, OSError):
                pass  # then the first error tells more
        faults.append(first)
        return None, 0, None


def find_source(root: Path, settings: Mapping[str, Any] | None = None) -> DataSource:
    """The data below ``root``, read as a DATA_CONFIG says, or as its folders look where there is none.

    ``root`` may be a single cloud. A folder of another layout than DATASET asks for is looked at as clouds alone, with
    a fault that says so. Raises ``FileNotFoundError`` where there is neither a known layout nor a cloud, ``ValueError``
    for another DATASET.
    """
    kind = None if settings is None else settings["DATASET"]
    if kind not in (None, "KittiDataset", "CustomDataset"):
        raise ValueError(f"data of {kind} are not checked; KittiDataset and CustomDataset are")
    if kind != "CustomDataset" and kitti_parts(root):
        return kitti_source(root, settings)
    if kind != "KittiDataset" and (root / "points").is_dir():
        return custom_source(root, settings)
    wanted = None if root.is_file() else WANTED_FOLDERS.get(kind or "")
    return clouds_source(root, settings, () if wanted is None else (f"{kind} needs {root / wanted}: it is missing",))


def clouds_source(root: Path, settings: Mapping[str, Any] | None, faults: tuple[str, ...]) -> DataSource:
    """A cloud, or those of a folder or of its folder ``velodyne`` or ``points``, without labels."""
    folder = next((p for p in (root / "velodyne", root / "points") if p.is_dir()), root)
    files = {p.name: p for p in cloud_files(folder)}
    layout = DEFAULT_FEATURES if settings is None else cloud_layout(settings["POINT_FEATURE_ENCODING"])
    lenient = replace(layout, missing_values={"intensity": 0.0, **layout.missing_values})

    def points(frame: str) -> tuple[np.ndarray, int]:
        return read_points(files[frame], layout)

    def fallback(frame: str) -> tuple[np.ndarray, int]:
        return read_points(files[frame], lenient)

    frames = dict.fromkeys(files, ("all",))
    return DataSource(CLOUDS_ALONE, root, layout, frames, files.__getitem__, None, points, fallback, faults=faults)


def frames_by_split(
    root: Path, every: Sequence[str], settings: Mapping[str, Any] | None, test_prefix: str = ""
) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Frame -> its splits by ``ImageSets``, or 'all' where there are no lists; and what is wrong with the lists.

    Training needs those of DATA_SPLIT in ``settings``: it opens the frames to evaluate on before it begins.
    """
    frames: dict[str, tuple[str, ...]] = {}
    wanted = {"train": "train", "test": "val"} | dict((settings or {}).get("DATA_SPLIT") or {})
    uses = {wanted["train"]: "train on"}
    uses.setdefault(wanted["test"], "evaluate on")
    missing = [split for split in uses if not (root / "ImageSets" / f"{split}.txt").is_file()]
    faults = []
    if missing:
        names, purposes = " and ".join(f"{split}.txt" for split in missing), " and to ".join(map(uses.get, missing))
        faults.append(f"{root / 'ImageSets'} lacks {names}: there the frames to {purposes} are listed, one a line")
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
    clouds = sorted(p.stem for p in (training / "velodyne").glob("*.bin"))
    frames, faults = frames_by_split(root, clouds, settings, TEST_PREFIX)
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
        reader = guessed_reader(folder)
    else:
        reader = CustomReader.from_settings(root, settings)
    every = sorted(stem_of(p) for p in cloud_files(root / "points"))
    frames, faults = frames_by_split(root, every, settings)
    labelled = (root / "labels").is_dir() or (root / "labels.csv").is_file()
    if not labelled:
        faults = (*faults, f"{root / 'labels'} is missing: without labels there is nothing to learn")
    agree, strange = csv_agreement(folder, reader.label_format, every)
    faults = faults if agree else (*faults, *strange)
    oddities = [Problem(Level.HARMS, "files", text) for text in strange] if agree else []
    oddities += [Problem(Level.NOTE, "lists", text) for text in unlisted(folder, frames, every)]
    parse = reader.parse_labels if labelled else None
    lenient = replace(reader, layout=WITHOUT_INTENSITY)
    kind = f"custom, labels as {reader.label_format}" + (
        ", headings in degrees" if reader.convention.unit == "deg" else ""
    )
    return DataSource(
        kind, root, reader.layout, frames, folder.cloud_path, parse,
        reader.points, lenient.points if settings is None else None, reader.convention, reader.class_map, faults,
        reader.label_format, reader.box_convention, oddities=tuple(oddities),
    )  # fmt: skip


def csv_agreement(folder: CustomFolder, label_format_name: str, clouds: Sequence[str]) -> tuple[bool, list[str]]:
    """Does one CSV label any cloud, and what to say where it labels frames by names that no cloud has."""
    whole = folder.root / "labels.csv"
    if label_format_name != "csv" or not whole.is_file():
        return True, []
    try:
        named = csv_frames(whole, whole.stat().st_mtime_ns)
    except ValueError:
        return True, []  # told when the first frame is read
    strange = [name for name in named if name not in set(clouds)]
    if not strange:
        return True, []
    agree = len(strange) < len(named)
    count = f"{len(strange)} of {len(named)} have no cloud" if agree else "none agree"
    return agree, [f"{whole} labels frames such as '{strange[0]}', clouds are called such as '{clouds[0]}': {count}"]


def unlisted(folder: CustomFolder, frames: Mapping[str, tuple[str, ...]], clouds: Sequence[str]) -> list[str]:
    """What to say of clouds that no list of ``ImageSets`` names: nobody will use them."""
    left = [name for name in clouds if name not in frames]
    if not left:
        return []
    lists = folder.root / "ImageSets"
    return [f"{len(left)} of {len(clouds)} clouds, such as '{left[0]}', are in no list of {lists}: they are not used"]


def guessed_reader(folder: CustomFolder) -> CustomReader:
    """A folder read as its files look: the labels' format, and whether their headings are degrees."""
    reader = CustomReader(folder, DEFAULT_FEATURES, label_format=guess_label_format(folder.root))
    headings: list[float] = []
    for path in cloud_files(folder.root / "points")[:LOOKED_AT]:
        try:
            headings += [abs(row.box[6]) for row in reader.parse_labels(stem_of(path)).rows]
        except (ValueError, OSError):
            continue  # told when the frame is read
    own = label_format(reader.label_format).has_own_convention
    if not own and headings and (np.array(headings) > MOST_TURNS).mean() > 0.5:
        return replace(reader, box_convention={"unit": "deg"})
    return reader


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
