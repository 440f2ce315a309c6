"""The shared MLP and the maximum of set abstraction in one."""

from pcdet.ops.grouped_mlp.door import grouped_mlp, grouped_mlp_known

__all__ = ["grouped_mlp", "grouped_mlp_known"]
