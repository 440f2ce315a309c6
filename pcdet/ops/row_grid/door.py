"""Rows of features at their places in dense grids, forward and backward."""

from types import ModuleType

from torch import Tensor, library

from pcdet.ops.doors import backend, require_columns, require_same_device
from pcdet.ops.row_grid import reference


def rows_to_grid(
    features: Tensor,  # (N, C)
    scene: Tensor,  # (N,) int64 in [0, B)
    cell: Tensor,  # (N,) int64 in [0, cells)
    batch_size: int,
    cells: int,
) -> Tensor:
    """Write each row into the grid of its scene, which is zero elsewhere. -> (B, C, cells)

    The pseudo-image of PointPillars (sec. 2.1) and every other dense map of sparse features. No two rows may have the
    same place. Differentiable in ``features``: a row's gradient is read at its place.

    Raises ``ValueError`` for other shapes or two devices.
    """
    require_columns("features", features, "(N, C)", 0)
    require_same_device(features=features, scene=scene, cell=cell)
    if scene.shape != features.shape[:1] or cell.shape != features.shape[:1]:
        raise ValueError(
            f"scene {tuple(scene.shape)} and cell {tuple(cell.shape)} must be ({len(features)},), one for each row"
        )
    return _rows_to_grid(features, scene, cell, batch_size, cells)


def _implementation(device_type: str) -> ModuleType:
    return reference if device_type == "cpu" else backend("row_grid", device_type)


@library.custom_op("pcdet::rows_to_grid", mutates_args=())
def _rows_to_grid(features: Tensor, scene: Tensor, cell: Tensor, batch_size: int, cells: int) -> Tensor:
    return _implementation(features.device.type).rows_to_grid(features, scene, cell, batch_size, cells)


@_rows_to_grid.register_fake
def _(features: Tensor, scene: Tensor, cell: Tensor, batch_size: int, cells: int) -> Tensor:
    return features.new_empty(batch_size, features.shape[1], cells)


@library.custom_op("pcdet::grid_to_rows", mutates_args=())
def _grid_to_rows(grid: Tensor, scene: Tensor, cell: Tensor) -> Tensor:
    return _implementation(grid.device.type).grid_to_rows(grid, scene, cell)


@_grid_to_rows.register_fake
def _(grid: Tensor, scene: Tensor, cell: Tensor) -> Tensor:
    return grid.new_empty(len(scene), grid.shape[1])


def _keep_places(ctx, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:3])
    ctx.sizes = inputs[0].shape if inputs[0].ndim == 3 else None


def _backward_of_rows(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return _grid_to_rows(gradient, *ctx.saved_tensors), None, None, None, None


def _backward_of_grid(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
    batch_size, _, cells = ctx.sizes
    return _rows_to_grid(gradient, *ctx.saved_tensors, batch_size, cells), None, None


_rows_to_grid.register_autograd(_backward_of_rows, setup_context=_keep_places)
_grid_to_rows.register_autograd(_backward_of_grid, setup_context=_keep_places)
