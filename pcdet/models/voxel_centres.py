"""Where the cells of a sparse grid lie."""

from torch import Tensor

from pcdet.structures.dataset_info import DatasetInfo
from pcdet.utils.constants import constant


def voxel_centres(
    coords: Tensor,  # (V, 3) z, y, x
    info: DatasetInfo,
    stride: int = 1,
) -> Tensor:
    """Centres x y z in metres of the cells of a grid ``stride`` times as coarse as the voxelizer's. -> (V, 3)"""
    xyz = coords.flip(1).float()
    size = constant(info.voxel_size, xyz) * stride
    return (xyz + 0.5) * size + constant(info.point_cloud_range[:3], xyz)
