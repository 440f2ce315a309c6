"""Augmentors: random changes of a labelled scene, one class a kind, under OpenPCDet's names."""

from pcdet.datasets.augment import frustum, gt_sampling, local, pyramid, world  # noqa: F401  (registers the classes)
from pcdet.datasets.augment.registry import AUGMENTS, AugmentContext

__all__ = ["AUGMENTS", "AugmentContext"]
