"""The levels of PointNet++ with multi-scale grouping, as a YAML writes them (Qi et al. 2017, sec. 3.3)."""

from typing import TypedDict

from torch import Tensor, nn

from pcdet.layers.set_abstraction import MultiScaleAbstraction


class MultiScaleConfig(TypedDict):
    """The block SA_CONFIG: one entry a level, and in it one entry a scale."""

    NPOINTS: list[int]  # centres
    RADIUS: list[list[float]]  # in the unit of the coordinates
    NSAMPLE: list[list[int]]  # neighbours of a centre
    MLPS: list[list[list[int]]]


def build_levels(config: MultiScaleConfig, width: int, *, features_first: bool) -> nn.ModuleList:
    """The levels that a block describes, for features of ``width`` channels besides x y z.

    Raises ``ValueError`` where the lists do not fit together.
    """
    counts = {key: len(config[key]) for key in ("NPOINTS", "RADIUS", "NSAMPLE", "MLPS")}
    if len(set(counts.values())) != 1 or counts["NPOINTS"] == 0:
        raise ValueError(f"SA_CONFIG: every list needs one entry a level, got {counts}")
    levels = nn.ModuleList()
    for i in range(counts["NPOINTS"]):
        sizes = (config["NPOINTS"][i], config["RADIUS"][i], config["NSAMPLE"][i], config["MLPS"][i])
        try:
            levels.append(MultiScaleAbstraction(width, *sizes, features_first=features_first))
        except ValueError as error:
            raise ValueError(f"SA_CONFIG, level {i + 1}: {error}") from error
        width = levels[-1].out_channels
    return levels


def split_columns(point_clouds: Tensor) -> tuple[Tensor, Tensor | None]:
    """(B, N, 3 + C) -> coordinates (B, N, 3) and the other columns (B, N, C), ``None`` where C is 0."""
    features = point_clouds[..., 3:] if point_clouds.shape[-1] > 3 else None
    return point_clouds[..., :3].contiguous(), features
