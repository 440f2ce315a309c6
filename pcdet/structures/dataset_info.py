"""What a model is told about its data, instead of the dataset itself."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DatasetInfo:
    """The facts that models and datasets share.

    Fields that a task does not have (a classifier has no voxels) are ``None``.
    """

    class_names: tuple[str, ...]
    point_features: tuple[str, ...]  # channels of a point after encoding, such as ("x", "y", "z", "intensity")
    point_cloud_range: tuple[float, ...] | None = None  # x_min, y_min, z_min, x_max, y_max, z_max in metres
    voxel_size: tuple[float, ...] | None = None  # x, y, z in metres
    grid_size: tuple[int, ...] | None = None  # cells along x, y, z
    max_points_per_voxel: int | None = None
    # The most voxels of a scene in training and in testing, where the model has to lay points into voxels itself.
    device_voxels: tuple[int, int] | None = None
    category_names: tuple[str, ...] | None = None  # of objects whose category is known when their parts are told apart
    class_weights: tuple[float, ...] | None = None  # of each class in a segmentation's loss

    @property
    def num_class(self) -> int:
        return len(self.class_names)

    @property
    def num_point_features(self) -> int:
        return len(self.point_features)
