"""PCL's ``.pcd``: ascii, binary or compressed, read with pypcd4."""

from pathlib import Path

import numpy as np

from pcdet.datasets.cloud_formats.extras import optional_package
from pcdet.datasets.cloud_formats.layout import CloudLayout


def pcd_points(path: Path, layout: CloudLayout) -> np.ndarray:
    """Fields by name; of a field with a COUNT above 1 the first value. Organized clouds are read row by row.

    Raises ``ValueError`` naming the file where its header or data is broken.
    """
    pypcd4 = optional_package("pypcd4", path)
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty: a PCD file has a header even where it holds no points")
    try:
        cloud = pypcd4.PointCloud.from_path(path)
        data = cloud.pc_data
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as PCD, its header or data is broken: {_short(error)}") from error
    first = "__0000"
    fields = {name.removesuffix(first): data[name] for name in data.dtype.names if not _is_repeat(name)}
    return layout.by_name({name: values for name, values in fields.items() if not name.startswith("#")}, path)


def _is_repeat(name: str) -> bool:
    """Is this the second or a later value of a field with a COUNT? They are called NAME__0001 and so on."""
    head, _, number = name.rpartition("__")
    return bool(head) and len(number) == 4 and number.isdigit() and number != "0000"


def _short(error: Exception) -> str:
    """A validation error of pypcd4 runs over many lines, with links: its fields are what counts."""
    if hasattr(error, "errors"):
        return ", ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg'].lower()}" for e in error.errors())
    return str(error)
