"""From a block of the YAML to a layer that describes the surroundings of points."""

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from torch import nn

from pcdet.layers.stacked_set_abstraction import StackSAModuleMSG
from pcdet.layers.vector_pool import VectorPoolAggregationModule, VectorPoolAggregationModuleMSG


class VectorPoolGroup(TypedDict):
    """The block GROUP_CFG_k: one size of cells."""

    NUM_LOCAL_VOXEL: list[int]  # cells along x, y, z
    MAX_NEIGHBOR_DISTANCE: float  # metres
    NEIGHBOR_NSAMPLE: int  # -1 for no limit
    POST_MLPS: list[int]


class LocalAggregation(TypedDict, total=False):
    """A block that describes a layer: NAME says which, and so which of the other keys are needed."""

    NAME: Literal["StackSAModuleMSG", "VectorPoolAggregationModuleMSG"]
    # StackSAModuleMSG, which is meant where NAME is not given: one entry a scale
    MLPS: list[list[int]]
    POOL_RADIUS: list[float]  # metres
    NSAMPLE: list[int]
    POOL_METHOD: Literal["max_pool"]
    # VectorPoolAggregationModuleMSG
    NUM_GROUPS: int
    LOCAL_AGGREGATION_TYPE: Literal["local_interpolation", "voxel_avg_pool", "voxel_random_choice"]
    NUM_REDUCED_CHANNELS: int | None
    NUM_CHANNELS_OF_LOCAL_AGGREGATION: int
    MSG_POST_MLPS: list[int]
    GROUP_CFG_0: VectorPoolGroup
    GROUP_CFG_1: VectorPoolGroup
    GROUP_CFG_2: VectorPoolGroup
    GROUP_CFG_3: VectorPoolGroup


STACK_KEYS = {"MLPS", "POOL_RADIUS", "NSAMPLE"}
VECTOR_KEYS = {"NUM_GROUPS", "LOCAL_AGGREGATION_TYPE", "NUM_CHANNELS_OF_LOCAL_AGGREGATION", "MSG_POST_MLPS"}


def build_local_aggregation(in_channels: int, config: Mapping[str, Any], where: str) -> nn.Module:
    """The layer of a block. It has ``out_channels``, and is called as :class:`StackSAModuleMSG` is.

    ``in_channels`` is the number of a point's features besides x y z, ``where`` the block's place for messages.
    Raises ``ValueError`` where keys are missing or belong to the other layer.
    """
    if config.get("NAME", "StackSAModuleMSG") == "StackSAModuleMSG":
        _require_keys(config, STACK_KEYS, VECTOR_KEYS, where)
        return StackSAModuleMSG(in_channels, config["POOL_RADIUS"], config["NSAMPLE"], config["MLPS"])
    groups = [f"GROUP_CFG_{k}" for k in range(config.get("NUM_GROUPS", 1))]
    _require_keys(config, VECTOR_KEYS | set(groups), STACK_KEYS, where)
    pools = [
        VectorPoolAggregationModule(
            in_channels,
            num_local_voxel=config[group]["NUM_LOCAL_VOXEL"],
            max_neighbor_distance=config[group]["MAX_NEIGHBOR_DISTANCE"],
            neighbor_nsample=config[group]["NEIGHBOR_NSAMPLE"],
            post_mlps=config[group]["POST_MLPS"],
            local_aggregation_type=config["LOCAL_AGGREGATION_TYPE"],
            num_channels_of_local_aggregation=config["NUM_CHANNELS_OF_LOCAL_AGGREGATION"],
            num_reduced_channels=config.get("NUM_REDUCED_CHANNELS"),
        )
        for group in groups
    ]
    return VectorPoolAggregationModuleMSG(pools, config["MSG_POST_MLPS"])


def _require_keys(config: Mapping[str, Any], needed: set[str], foreign: set[str], where: str) -> None:
    name = config.get("NAME", "StackSAModuleMSG")
    missing, unfit = needed - config.keys(), foreign & config.keys()
    if missing:
        raise ValueError(f"{where}: {name} needs {', '.join(sorted(missing))}")
    if unfit:
        raise ValueError(f"{where}: {name} takes no {', '.join(sorted(unfit))}; it is for another NAME")
