"""``.ply``: ascii or binary of either byte order, read with plyfile."""

from pathlib import Path

import numpy as np

from pcdet.datasets.cloud_formats.extras import optional_package
from pcdet.datasets.cloud_formats.layout import CloudLayout


def ply_points(path: Path, layout: CloudLayout) -> np.ndarray:
    """The properties of the element ``vertex`` by name; faces are passed over.

    Raises ``ValueError`` naming the file where it is broken or has no vertices.
    """
    plyfile = optional_package("plyfile", path)
    try:
        vertex = plyfile.PlyData.read(str(path))["vertex"].data
    except (plyfile.PlyParseError, KeyError, ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as PLY with an element 'vertex': {error}") from error
    return layout.by_name({name: vertex[name] for name in vertex.dtype.names}, path)
