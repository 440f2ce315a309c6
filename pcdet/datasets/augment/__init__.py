"""Augmentors: random changes of a labelled scene, one class a kind, under OpenPCDet's names."""

from pcdet.datasets.augment.registry import AUGMENTS, AugmentContext

__all__ = ["AUGMENTS", "AugmentContext"]
