import pytest

from pcdet.layers.stacked_set_abstraction import StackSAModuleMSG
from pcdet.layers.vector_pool import VectorPoolAggregationModuleMSG
from pcdet.models.pfe.local_aggregation import build_local_aggregation

STACK = {"MLPS": [[16, 8], [4]], "POOL_RADIUS": [0.4, 0.8], "NSAMPLE": [16, 32]}
GROUP = {"NUM_LOCAL_VOXEL": [2, 2, 2], "MAX_NEIGHBOR_DISTANCE": 0.4, "NEIGHBOR_NSAMPLE": -1, "POST_MLPS": [6]}
VECTOR = {
    "NAME": "VectorPoolAggregationModuleMSG",
    "NUM_GROUPS": 2,
    "LOCAL_AGGREGATION_TYPE": "local_interpolation",
    "NUM_REDUCED_CHANNELS": 2,
    "NUM_CHANNELS_OF_LOCAL_AGGREGATION": 3,
    "MSG_POST_MLPS": [5],
    "GROUP_CFG_0": GROUP,
    "GROUP_CFG_1": GROUP | {"MAX_NEIGHBOR_DISTANCE": 0.8, "NEIGHBOR_NSAMPLE": 7},
}


def test_set_abstraction_is_meant_without_a_name():
    layer = build_local_aggregation(4, STACK, "x")
    assert isinstance(layer, StackSAModuleMSG) and layer.out_channels == 12
    assert (layer.radii, layer.nsamples) == ((0.4, 0.8), (16, 32))
    assert STACK["MLPS"] == [[16, 8], [4]]  # the settings are left alone


def test_vector_pools_take_their_groups():
    layer = build_local_aggregation(4, VECTOR, "x")
    assert isinstance(layer, VectorPoolAggregationModuleMSG) and layer.out_channels == 5
    assert (layer.layer_0.max_distance, layer.layer_1.max_distance) == (0.4, 0.8)
    assert (layer.layer_0.num_samples, layer.layer_1.num_samples) == (-1, 7)
    assert layer.layer_0.reduced == 2


@pytest.mark.parametrize(
    "config, message",
    [
        ({"MLPS": [[4]], "NSAMPLE": [4]}, "SA_LAYER.x: StackSAModuleMSG needs POOL_RADIUS"),
        (STACK | {"NUM_GROUPS": 1}, "takes no NUM_GROUPS"),
        (VECTOR | {"NUM_GROUPS": 3}, "needs GROUP_CFG_2"),
        (VECTOR | {"MLPS": [[4]]}, "takes no MLPS"),
    ],
)
def test_keys_that_do_not_fit(config, message):
    with pytest.raises(ValueError, match=message):
        build_local_aggregation(4, config, "SA_LAYER.x")
