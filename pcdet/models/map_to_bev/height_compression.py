"""The sparse grid seen from above (Yan et al., "SECOND", sec. 3.1.3)."""

from typing import NamedTuple

from torch import Tensor, nn

from pcdet.layers.sparse import SparseConvTensor
from pcdet.models.registry import MAPS_TO_BEV
from pcdet.structures.dataset_info import DatasetInfo


class BevFeatures(NamedTuple):
    """What a map to the bird's-eye view adds to the batch."""

    spatial_features: Tensor  # (B, C * Z, Y, X)
    spatial_features_stride: int


@MAPS_TO_BEV.register
class HeightCompression(nn.Module):
    """Stacks the few cells along z into the channels of a dense map: channel ``c * Z + z``.

    ``num_bev_features`` is C * Z. Raises ``ValueError`` where the sparse tensor has another number.
    """

    def __init__(self, info: DatasetInfo, channels: dict[str, int], *, num_bev_features: int):
        super().__init__()
        depth, rest = divmod(num_bev_features, channels["encoded_spconv_tensor"])
        if depth < 1 or rest:
            raise ValueError(
                f"HeightCompression: NUM_BEV_FEATURES is {num_bev_features}, which is no multiple of the backbone's "
                f"{channels['encoded_spconv_tensor']} channels; it must be channels times cells along z"
            )
        self.num_bev_features = num_bev_features
        self.out_channels = {"spatial_features": num_bev_features}

    def forward(
        self,
        encoded_spconv_tensor: SparseConvTensor,
        encoded_spconv_tensor_stride: int,
    ) -> BevFeatures:
        spatial_features = encoded_spconv_tensor.dense().flatten(1, 2)  # (B, C * Z, Y, X)
        if spatial_features.shape[1] != self.num_bev_features:
            raise ValueError(
                f"HeightCompression: NUM_BEV_FEATURES is {self.num_bev_features}, but the backbone's grid has "
                f"{encoded_spconv_tensor.spatial_shape[0]} cells along z, which makes {spatial_features.shape[1]}"
            )
        return BevFeatures(spatial_features, encoded_spconv_tensor_stride)
