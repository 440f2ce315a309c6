"""Sparse residual convolution over voxels (Yin et al., "Center-based 3D Object Detection and Tracking", sec. 5)."""

from pcdet.layers.sparse import SparseModule
from pcdet.models.backbones_3d.blocks import SparseBasicBlock
from pcdet.models.backbones_3d.voxel_backbone import VoxelBackbone
from pcdet.models.registry import BACKBONES_3D
from pcdet.structures.dataset_info import DatasetInfo


@BACKBONES_3D.register
class VoxelResBackBone8x(VoxelBackbone):
    """Two residual blocks a level, the last level twice as wide as that of VoxelBackBone8x.

    The convolutions of the blocks have a bias, as in the published models, unless ``use_bias`` is false; the others
    have none.
    """

    def __init__(
        self,
        info: DatasetInfo,
        channels: dict[str, int],
        *,
        last_pad: int = 0,
        use_bias: bool | None = None,
    ):
        def blocks(width: int, level: int) -> list[SparseModule]:
            return [SparseBasicBlock(width, bias=use_bias is not False, indice_key=f"subm{level}") for _ in range(2)]

        super().__init__(info, channels, (16, 32, 64, 128), blocks, False, last_pad)
