"""Point-cloud detectors and classifiers assembled from YAML. See docs/ARCHITECTURE.md for the rooms."""

from typing import TYPE_CHECKING, Any

from pcdet.version import __version__

if TYPE_CHECKING:
    from pcdet.predict import load_model

__all__ = ["__version__", "load_model"]


def __getattr__(name: str) -> Any:
    """``load_model`` is imported when it is asked for: ``import pcdet`` alone needs no torch."""
    if name == "load_model":
        from pcdet.predict import load_model

        return load_model
    raise AttributeError(f"module 'pcdet' has no attribute '{name}'")
