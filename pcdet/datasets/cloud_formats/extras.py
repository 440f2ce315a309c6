"""Packages that only some formats need."""

import importlib
from pathlib import Path
from types import ModuleType


def optional_package(name: str, path: Path) -> ModuleType:
    """Import a package that reads ``path``. Raises ``ValueError`` saying how to install it where it is absent."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f"{path}: such files are read with the package {name}, which is not installed: pip install 'pcdet[formats]'"
        ) from error
