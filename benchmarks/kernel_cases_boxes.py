"""Calls of the box and voxel operators' Triton kernels at the models' sizes, for ``check_kernels.py``."""

from collections.abc import Callable

CASES: list[Callable[[], object]] = []
