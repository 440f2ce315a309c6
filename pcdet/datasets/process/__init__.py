"""Processors: the deterministic end of the item flow, one class a step, under OpenPCDet's names."""

from pcdet.datasets.process import points, voxels  # noqa: F401  (importing registers the classes)
from pcdet.datasets.process.registry import PROCESSORS, ProcessContext

__all__ = ["PROCESSORS", "ProcessContext"]
