"""Does the voxel grid fit the strides of the model?"""

from collections.abc import Mapping

from torch import nn

from pcdet.structures.dataset_info import DatasetInfo


def require_divisible_grid(info: DatasetInfo, slots: Mapping[str, nn.Module]) -> None:
    """Raise ``ValueError`` where rounding would make maps or anchors of different sizes meet in the model.

    Looks at ``backbone_2d`` (strides of its coarsest and its last map, relative to its input) and at the stride of the
    head's anchors. The message names the nearest ranges that fit.
    """
    head, backbone = slots.get("dense_head"), slots.get("backbone_2d")
    if backbone is None or not hasattr(head, "feature_map_stride"):
        return
    before = head.feature_map_stride / backbone.out_stride
    if before < 1 or before != int(before):
        raise ValueError(
            f"MODEL.DENSE_HEAD: feature_map_stride is {head.feature_map_stride}, but MODEL.BACKBONE_2D alone reduces "
            f"its input {backbone.out_stride:g} times; it should be that or a multiple"
        )
    total = int(before) * backbone.total_stride
    problems = [_problem(info, axis, total) for axis in (0, 1) if info.grid_size[axis] % total]
    if problems:
        raise ValueError(
            f"MODEL: the strides multiply to {total}, and the grid must have a multiple of that many cells. "
            f"DATA_CONFIG.POINT_CLOUD_RANGE {list(info.point_cloud_range)} in voxels of VOXEL_SIZE "
            f"{list(info.voxel_size)} has {list(info.grid_size)} cells: " + "; ".join(problems)
        )


def _problem(info: DatasetInfo, axis: int, stride: int) -> str:
    cells, low, size = info.grid_size[axis], info.point_cloud_range[axis], info.voxel_size[axis]
    down = cells - cells % stride
    fitting = [n for n in (down, down + stride) if n > 0]
    ends = " or ".join(f"{low + n * size:.6g} ({n} cells)" for n in fitting)
    name = "xyz"[axis]
    return f"{name} has {cells} cells; from {low:g} it may end at {ends}"
