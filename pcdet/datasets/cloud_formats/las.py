"""``.las`` and ``.laz``, read with laspy (and lazrs for the compressed form)."""

from pathlib import Path

import numpy as np

from pcdet.datasets.cloud_formats.extras import optional_package
from pcdet.datasets.cloud_formats.layout import CloudLayout


def las_points(path: Path, layout: CloudLayout) -> np.ndarray:
    """Coordinates in the file's unit, scaled and shifted as its header says, and its other dimensions by name.

    Raises ``ValueError`` naming the file where it is broken.
    """
    laspy = optional_package("laspy", path)
    if path.suffix.lower() == ".laz":
        optional_package("lazrs", path)
    try:
        cloud = laspy.read(str(path))
        fields = {"x": np.asarray(cloud.x), "y": np.asarray(cloud.y), "z": np.asarray(cloud.z)}
        others = [name for name in cloud.point_format.dimension_names if name not in ("X", "Y", "Z")]
        fields |= {name: np.asarray(cloud[name]) for name in others}
    except (laspy.errors.LaspyException, ValueError, RuntimeError, OSError) as error:
        raise ValueError(f"{path} cannot be read as LAS: {error}") from error
    return layout.by_name(fields, path)
