"""Point-cloud detectors and classifiers assembled from YAML. See docs/ARCHITECTURE.md for the rooms."""

from pcdet.version import __version__

__all__ = ["__version__"]
