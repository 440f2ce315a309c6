"""The files of a KITTI folder: where they are, and how they are read."""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pcdet.datasets.splits import read_split
from pcdet.structures.calibration import Calibration
from pcdet.utils.files import read_text

SPLITS = ("train", "val", "trainval", "test")
POINT_FEATURES = ("x", "y", "z", "intensity")
DEFAULT_IMAGE_SHAPE = (375, 1242)
# Image sizes (height, width) of KITTI's recording days, by focal length in pixels as the calib files give it.
_SHAPE_OF_CAMERA = {
    721.5377: (375, 1242),
    707.0493: (370, 1224),
    718.3351: (374, 1238),
    707.0912: (370, 1226),
    718.856: (376, 1241),
}
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class KittiFolder:
    """A folder with ``ImageSets``, ``training`` and perhaps ``testing``."""

    root: Path

    def part(self, split: str) -> Path:
        """The folder that holds a split's frames."""
        return self.root / ("testing" if split == "test" else "training")

    def split_file(self, split: str) -> Path:
        """The list of a split's frames."""
        return self.root / "ImageSets" / f"{split}.txt"

    def frame_ids(self, split: str) -> list[str]:
        """The frames that ``ImageSets/<split>.txt`` lists, in its order.

        Raises ``FileNotFoundError``, or ``ValueError`` naming the line of a frame that is listed twice.
        """
        return list(read_split(self.split_file(split)))

    def cloud_path(self, split: str, frame_id: str) -> Path:
        """float32 x y z intensity, one row a point."""
        return self.part(split) / "velodyne" / f"{frame_id}.bin"

    def label_path(self, split: str, frame_id: str) -> Path:
        """One labelled object a line."""
        return self.part(split) / "label_2" / f"{frame_id}.txt"

    def calib(self, split: str, frame_id: str) -> Calibration:
        """A frame's calibration. Raises as :meth:`Calibration.from_file`."""
        return Calibration.from_file(self.part(split) / "calib" / f"{frame_id}.txt")

    def image_path(self, split: str, frame_id: str) -> Path:
        """The left colour image; it need not exist."""
        return self.part(split) / "image_2" / f"{frame_id}.png"

    def image_shape(self, split: str, frame_id: str, calib: Calibration) -> tuple[np.ndarray, bool]:
        """(2,) int32 height and width, and whether the image itself was there to ask.

        Without an image the size follows from the calibration: that of the KITTI camera with this focal length, or
        else twice the principal point, which most cameras have near the centre; 375 x 1242 if that is not positive.
        """
        path = self.image_path(split, frame_id)
        if path.is_file():
            return np.array(png_shape(path), dtype=np.int32), True
        return np.array(camera_image_shape(calib), dtype=np.int32), False

    def plane_path(self, split: str, frame_id: str) -> Path:
        """The ground plane; it need not exist."""
        return self.part(split) / "planes" / f"{frame_id}.txt"

    def road_plane(self, split: str, frame_id: str) -> np.ndarray | None:
        """(4,) float64 a b c d of the ground in the rectified camera frame, or ``None`` if there is no file.

        The normal has length 1 and points up (the camera's y points down, so ``b`` is negative). Raises ``ValueError``
        naming the file and line of a malformed plane.
        """
        path = self.plane_path(split, frame_id)
        if not path.is_file():
            return None
        lines = read_text(path).splitlines()
        try:
            plane = np.array([float(v) for v in lines[3].split()])
        except (IndexError, ValueError) as error:
            raise ValueError(f"{path}:4: a plane file has four numbers on its fourth line") from error
        if plane.shape != (4,) or not np.isfinite(plane).all() or not np.linalg.norm(plane[:3]) > 0:
            raise ValueError(f"{path}:4: a plane is four finite numbers a b c d, got '{lines[3]}'")
        if plane[1] > 0:
            plane = -plane
        return plane / np.linalg.norm(plane[:3])


def camera_image_shape(calib: Calibration) -> tuple[int, int]:
    """Height and width of a camera's image, judged by its calibration."""
    for focal, shape in _SHAPE_OF_CAMERA.items():
        if abs(focal - float(calib.P2[0, 0])) < 0.02:
            return shape
    width, height = (round(2 * float(v)) for v in calib.P2[:2, 2])
    return (height, width) if height > 0 and width > 0 else DEFAULT_IMAGE_SHAPE


def png_shape(path: Path) -> tuple[int, int]:
    """Height and width from a PNG's header, without decoding it. Raises ``ValueError`` if it is not a PNG."""
    with open(path, "rb") as file:
        head = file.read(24)
    if len(head) < 24 or not head.startswith(_PNG_SIGNATURE):
        raise ValueError(f"{path} is not a PNG image; remove it (images are optional) or replace it")
    width, height = struct.unpack(">II", head[16:24])
    return height, width


def in_camera_view(points: np.ndarray, calib: Calibration, image_shape: np.ndarray) -> np.ndarray:
    """(N, 3+) LiDAR points -> (N,) bool: in front of the camera and inside the image."""
    pixels, depth = calib.lidar_to_image(points)
    height, width = image_shape
    u, v = pixels[:, 0], pixels[:, 1]
    return (u >= 0) & (u < width) & (v >= 0) & (v < height) & (depth >= 0)
