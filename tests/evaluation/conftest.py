"""Hand-made frames in KITTI's annotation format."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest


def make_annos(
    names: Sequence[str] = (),
    *,
    x: Sequence[float] | None = None,
    scores: Sequence[float] | None = None,
    bbox: Sequence[float] = (100.0, 100.0, 200.0, 200.0),
    dims: Sequence[float] = (4.0, 1.5, 2.0),
    rotation: float = 0.0,
    alpha: float = 0.0,
) -> dict[str, np.ndarray]:
    """Objects beside each other, 20 m apart; an object at x has its 2-D box shifted by 10 px a metre."""
    count = len(names)
    x = np.arange(count) * 20.0 if x is None else np.asarray(x, dtype=float)
    shift = np.array([[1.0, 0.0, 1.0, 0.0]]) * x[:, None] * 10
    return {
        "name": np.array(names, dtype=np.str_),
        "truncated": np.zeros(count),
        "occluded": np.zeros(count),
        "alpha": np.full(count, alpha),
        "bbox": np.tile(bbox, (count, 1)) + shift if count else np.zeros((0, 4)),
        "dimensions": np.tile(dims, (count, 1)) if count else np.zeros((0, 3)),
        "location": np.stack([x, np.full(count, 1.5), np.full(count, 20.0)], axis=1),
        "rotation_y": np.full(count, rotation),
        "score": np.asarray(scores if scores is not None else np.linspace(1.0, 0.5, count)),
    }


@pytest.fixture
def annos() -> Callable[..., dict[str, np.ndarray]]:
    """``make_annos``."""
    return make_annos
