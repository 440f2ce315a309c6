"""The processors of DATA_PROCESSOR and what they are told."""

from dataclasses import dataclass

import numpy as np

from pcdet.utils.registry import Registry

PROCESSORS = Registry("processor")


@dataclass(frozen=True)
class ProcessContext:
    """What every processor may know of its data set."""

    training: bool
    point_cloud_range: np.ndarray  # (6,) x_min y_min z_min x_max y_max z_max, metres
    point_features: tuple[str, ...]  # the columns of scene.points

    @property
    def mode(self) -> str:
        """The key of settings that differ by mode: ``train`` or ``test``."""
        return "train" if self.training else "test"
