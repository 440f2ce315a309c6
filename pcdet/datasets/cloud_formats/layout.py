"""What is asked of a cloud, and how its columns are found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

# Other names of a feature in files with named fields; they are compared without case.
ALIASES: dict[str, tuple[str, ...]] = {
    "intensity": ("i", "reflectance", "reflectivity", "remission", "scalar_intensity"),
    "ring": ("channel", "line", "laser_id"),
    "timestamp": ("t", "time", "gps_time"),
}


@dataclass(frozen=True)
class CloudLayout:
    """The wanted features of a cloud, in order.

    Files of named fields are asked by name: ``field_names`` says what the file calls a feature, else the feature's own
    name or a usual one is looked for. In files of bare numbers the columns are the features in their order, but for
    those of ``missing_values``, which the file does not hold. A feature that a file of named fields lacks takes its
    value there too.
    """

    features: tuple[str, ...]
    field_names: Mapping[str, str] = field(default_factory=dict)
    missing_values: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self):
        for key in ("field_names", "missing_values"):
            unknown = [name for name in getattr(self, key) if name not in self.features]
            if unknown:
                raise ValueError(
                    f"POINT_FEATURE_ENCODING.{key} names {unknown}; src_feature_list has {list(self.features)}"
                )

    @staticmethod
    def of(features: "Sequence[str] | CloudLayout") -> "CloudLayout":
        """A layout itself, or the one that asks for these features."""
        return features if isinstance(features, CloudLayout) else CloudLayout(tuple(features))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a file of bare numbers."""
        return tuple(name for name in self.features if name not in self.missing_values)

    def by_place(self, array: np.ndarray, place: str | Path) -> np.ndarray:
        """(N, C or more) array of numbers -> (N, features) float32: the first columns, and the missing values.

        Raises ``ValueError`` naming ``place`` for another shape or type.
        """
        table = columns_of(array, self.columns, str(place))
        if not self.missing_values:
            return table
        return self._stack({name: table[:, i] for i, name in enumerate(self.columns)}, len(table))

    def by_name(self, fields: Mapping[str, np.ndarray], place: str | Path) -> np.ndarray:
        """Fields (N,) by their names in the file -> (N, features) float32.

        Raises ``ValueError`` naming ``place``, the feature and the fields there are, where one is absent.
        """
        known = {name.lower(): name for name in fields}
        found = {}
        for feature in self.features:
            wanted = (
                (self.field_names[feature],) if feature in self.field_names else (feature, *ALIASES.get(feature, ()))
            )
            name = next((known[w.lower()] for w in wanted if w.lower() in known), None)
            if name is not None:
                found[feature] = fields[name]
            elif feature not in self.missing_values:
                raise ValueError(
                    f"{place} has no field '{wanted[0]}'; it has {', '.join(fields)}. In DATA_CONFIG."
                    f"POINT_FEATURE_ENCODING, field_names {{{feature}: FIELD}} says what the file calls it, and "
                    f"missing_values {{{feature}: 0.0}} does without"
                )
        count = len(next(iter(fields.values()))) if fields else 0
        return self._stack(found, count)

    def _stack(self, found: Mapping[str, np.ndarray], count: int) -> np.ndarray:
        out = np.empty((count, len(self.features)), dtype=np.float32)
        for i, feature in enumerate(self.features):
            out[:, i] = found[feature] if feature in found else self.missing_values[feature]
        return out


def columns_of(array: np.ndarray, names: Sequence[str], place: str) -> np.ndarray:
    """The columns of these names, the first C of an (N, C or more) array of numbers, as contiguous float32."""
    num_features = len(names)
    if array.ndim != 2 or array.shape[1] < num_features:
        message = f"{place} holds an array of shape {array.shape}, expected (N, {num_features}): {' '.join(names)}"
        if array.ndim == 2 and array.shape[1] >= 3:
            fill = ", ".join(f"{name}: 0.0" for name in names[array.shape[1] :])
            message += f". In DATA_CONFIG.POINT_FEATURE_ENCODING, missing_values {{{fill}}} does without the others"
        raise ValueError(message)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{place} holds {array.dtype}, expected numbers")
    return np.ascontiguousarray(array[:, :num_features], dtype=np.float32)


def finite_rows(points: np.ndarray) -> tuple[np.ndarray, int]:
    """(N, C) -> the rows without NaN or infinity, and how many were dropped."""
    if np.isfinite(points).all():  # a fifth of the time of asking row by row
        return points, 0
    finite = np.isfinite(points).all(axis=1)
    dropped = int(len(points) - finite.sum())
    return points[finite], dropped
