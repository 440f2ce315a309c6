"""Where the host waits for a GPU on the way of a training step or a prediction: only where a reason is given here.

A static scan. It looks for calls that bring a value to the host (``.cpu``, ``.item``, ``.tolist``, ``.numpy``,
``int(tensor)``, ``if mask.any()`` and the like), for results whose size depends on data (``nonzero``, ``unique``,
``bincount``, ``repeat_interleave`` without its size, indices that are masks), and for lists of the host that become
tensors of the device (``new_tensor``, ``torch.tensor(..., device=...)``, ``x[[0, 2]]``): torch waits for such a copy,
and so for all that was asked of the device before. It sees names, not types, so it knows a mask by how it was made.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pcdet

ROOT = Path(pcdet.__file__).parent
FOLDERS = ("ops", "layers", "models", "train_utils")
# Rooms of the CPU, plain references, and what runs before or beside the steps.
ELSEWHERE = {
    *("ops/threads.py", "ops/compile.py", "ops/bev_grid.py", "layers/sparse/cpu.py", "layers/sparse/kernels.py"),
    *("layers/sparse/lanes.py", "layers/sparse/reference.py"),
}
CALLS = {
    *("cpu", "item", "tolist", "numpy", "nonzero", "argwhere", "masked_select", "unique", "unique_consecutive"),
    *("bincount", "equal", "allclose", "is_nonzero", "get_scale", "synchronize", "new_tensor"),
}
BOOLEAN = {"isfinite", "isnan", "isinf", "logical_and", "logical_or", "logical_not", "any", "all"}

ON_CPU = "asked only of tensors on the CPU, to name the bad row in an error"
SIZE = "the size of what is allocated next"
COMPACT = "rows that need no work are left out, which is worth more than one wait"
POSITIVES = "the targets of the few positives; their number is the size"
DRAWS = "how many are drawn depends on how many there are, and on a CPU the same ones must be drawn"
RARE = "beside the steps: at the start, once an epoch, or when a file is written"

ALLOWED: dict[str, str] = {
    "ops/doors.py::require_scenes": "rooms without a kernel of their own cut stacks into scenes",
    "ops/furthest_point_sampling/door.py::_integers": "counts that are already on the host, in all models",
    "ops/furthest_point_sampling/door.py::furthest_point_sample_stack": SIZE,
    "ops/furthest_point_sampling/sectors.py::sector_furthest_point_sample": SIZE,
    "ops/furthest_point_sampling/triton.py::sample_stack": "right after its door has waited, when nothing runs",
    "ops/grouping/door.py::require_rows": ON_CPU,
    "ops/iou3d/door.py::boxes_collide_bev": "the form for NumPy arrays",
    "ops/points_in_boxes/door.py::points_in_any_box": "the form for NumPy arrays",
    "ops/points_in_boxes/door.py::points_in_boxes_index": "the form for NumPy arrays",
    "ops/points_in_boxes/door.py::points_in_boxes_mask": "the form for NumPy arrays",
    "ops/roiaware_pool/door.py::_counts": ON_CPU,
    "ops/scatter/door.py::_require_rows": ON_CPU,
    "ops/scatter/door.py::_require_segments": ON_CPU,
    "ops/triton.py::sizes_on_host": SIZE,
    "ops/vector_pool/door.py::_checked": ON_CPU,
    "ops/voxel_query/door.py::_require_inside": ON_CPU,
    "ops/voxelize/door.py::voxelize": "the form for NumPy arrays",
    "layers/msg_set_abstraction.py::_count_in_cycles": COMPACT,
    "layers/sparse/device.py::_distinct": SIZE,
    "layers/sparse/measure.py::_now": RARE,
    "layers/sparse/rulebook.py::table_pairs": "only the reference lists pairs; on a GPU the table is gathered as it is",
    "layers/sparse/sites.py::Sites.ordered": "on a GPU it sorts without asking",
    "layers/sparse/sites.py::_require_distinct": ON_CPU,
    "layers/sparse/sites.py::_require_inside": ON_CPU,
    "layers/sparse/sites.py::_site": ON_CPU,
    "layers/stacked_set_abstraction.py::distinct_neighbours": COMPACT,
    "layers/vector_pool.py::VectorPoolAggregationModule._interpolate": COMPACT,
    "layers/vector_pool.py::VectorPoolAggregationModule._pool": COMPACT,
    "models/assigners/atss.py::_match_set": SIZE,
    "models/assigners/atss.py::_most_overlapping": SIZE,
    "models/assigners/atss.py::_nearest": SIZE,
    "models/assigners/atss.py::match_anchors_adaptively": POSITIVES,
    "models/assigners/axis_aligned.py::_sample_scene": DRAWS,
    "models/assigners/axis_aligned.py::match_anchors": POSITIVES,
    "models/assigners/axis_aligned.py::sample_anchors": DRAWS,
    "models/assigners/heatmap.py::draw_peaks": SIZE,
    "models/assigners/overlap_pairs.py::_cells": SIZE,
    "models/assigners/overlap_pairs.py::volume_pairs": SIZE,
    "models/assigners/point_targets.py::match_points": POSITIVES,
    "models/assigners/proposal_targets.py::sample_proposals": DRAWS,
    "models/backbones_3d/pointnet2_msg.py::_require_equal": "PointRCNN's sampling needs scenes of one size",
    "models/box_coders/point_residual.py::PointResidualCoder.__init__": RARE,
    "models/dense_heads/anchors.py::_axis": RARE,
    "models/dense_heads/center_head.py::_survivors": "how many boxes pass the threshold of their class",
    "models/pfe/keypoints.py::proposal_centric_keypoints": SIZE,
    "models/pfe/voxel_set_abstraction.py::VoxelSetAbstraction._sample": SIZE,
    "models/pfe/voxel_set_abstraction.py::_near_rois": COMPACT,
    "models/post_processing.py::_in_columns": "how many classes are found; the suppression of each waits anyway",
    "models/post_processing.py::suppress": "how many boxes pass the threshold",
    "models/roi_heads/parta2_head.py::PartA2FCHead._pool": COMPACT,
    "models/roi_heads/parta2_head.py::_corner_cells": "only where hardly any cell holds a point",
    "models/roi_heads/pointrcnn_head.py::PointRCNNHead._pool": COMPACT,
    "models/roi_heads/pointrcnn_head.py::_fill": SIZE,
    "models/vfe/pillar_vfe.py::distinct_rows": COMPACT,
    "models/voxelization.py::with_voxels": "where each scene of the batch begins",
    "train_utils/batches.py::BatchPlan.batches": "a permutation on the CPU",
    "train_utils/checkpoint.py::epoch_files": RARE,
    "train_utils/checkpoint_forms.py::plain": RARE,
    "train_utils/device_usage.py::_read_nvml": "of the driver, once an interval of the log",
    "train_utils/ema.py::WeightAverage.state_dict": RARE,
    "train_utils/engine.py::Trainer.settle": "a step that overflowed in float16 is logged with the new scale",
    "train_utils/engine.py::Trainer.state": RARE,
    "train_utils/evaluate.py::wait_for": "the clock of tools/test.py --infer_time",
    "train_utils/outcome.py::Outcome.bad_loss": "a number that Readback has read",
    "train_utils/outcome.py::Outcome.bad_norm": "a number that Readback has read",
    "train_utils/outcome.py::Outcome.stop": "a number that Readback has read",
    "train_utils/outcome.py::Readback.read": "of the step before, while the GPU computes this one",
    "train_utils/rendezvous.py::Seat.from_environment": RARE,
    "train_utils/safetensors_files.py::read_safetensors": RARE,
    "train_utils/safetensors_files.py::write_safetensors": RARE,
    "train_utils/weights.py::in_our_layout": "lists of names",
    "train_utils/validation.py::validation_loss": "a position in a batch, which is a list of the CPU",
}


def is_mask(node: ast.AST, masks: set[str]) -> bool:
    """Whether an expression is a mask, as far as its form tells."""
    match node:
        case ast.Compare(ops=[ast.Is() | ast.IsNot() | ast.In() | ast.NotIn(), *_]):
            return False
        case ast.Compare():
            return True
        case ast.BinOp(op=ast.BitAnd() | ast.BitOr()):
            return is_mask(node.left, masks) or is_mask(node.right, masks)
        case ast.UnaryOp(op=ast.Invert()):
            return is_mask(node.operand, masks)
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in BOOLEAN
        case ast.Name(id=name):
            return name in masks
        case _:
            return False


def masks_of(function: ast.AST) -> set[str]:
    """Names that a function gives to masks."""
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                names |= {t.id for t, v in pairs if isinstance(t, ast.Name) and is_mask(v, names)}
    return names


def waits_in(function: ast.AST) -> Iterator[str]:
    """What in a function may make the host wait, as source."""
    masks = masks_of(function)
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Attribute(attr=name)) if name in CALLS:
                yield ast.unparse(node)
            case ast.Call(func=ast.Attribute(attr="tensor" | "as_tensor"), keywords=options) if _has(options, "device"):
                yield ast.unparse(node)
            case ast.Call(func=ast.Attribute(attr="repeat_interleave"), keywords=options):
                if not _has(options, "output_size"):
                    yield ast.unparse(node)
            case ast.Call(func=ast.Attribute(attr="where"), args=[_], keywords=[]):
                yield ast.unparse(node)
            case ast.Call(func=ast.Attribute(attr="to"), args=[ast.Constant(value="cpu"), *_]):
                yield ast.unparse(node)
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test):
                yield from (ast.unparse(part) for part in _asked(test))
            case ast.Call(func=ast.Name(id="int" | "float" | "bool"), args=[argument]) if _computed(argument):
                yield ast.unparse(node)
            case ast.comprehension(iter=ast.Call(func=ast.Attribute(attr="aminmax"))):
                yield ast.unparse(node.iter)
            case ast.Subscript(value=ast.Name(id="Callable")):
                pass
            case ast.Subscript(slice=ast.Tuple(elts=parts)) if any(_is_costly(part, masks) for part in parts):
                yield ast.unparse(node)
            case ast.Subscript(slice=index) if _is_costly(index, masks):
                yield ast.unparse(node)


def _has(options: list[ast.keyword], name: str) -> bool:
    return any(option.arg == name for option in options)


def _is_costly(index: ast.AST, masks: set[str]) -> bool:
    """Whether an index is a mask, or a list that has to be copied to the device."""
    return isinstance(index, ast.List | ast.ListComp) or is_mask(index, masks)


def _asked(test: ast.AST) -> Iterator[ast.AST]:
    """The parts of a condition that ask a tensor: ``mask.any()``, ``not (x > 0).all()``."""
    match test:
        case ast.BoolOp(values=parts):
            for part in parts:
                yield from _asked(part)
        case ast.UnaryOp(op=ast.Not(), operand=part):
            yield from _asked(part)
        case ast.Call(func=ast.Attribute(attr="any" | "all")):
            yield test


def _computed(node: ast.AST) -> bool:
    """Whether ``int(...)`` is given a reduction, an entry or a member, which most plain numbers are not."""
    reductions = {"sum", "max", "min", "any", "all", "mean"}
    match node:
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in reductions
        case ast.Subscript() | ast.Attribute():
            return True
    return False


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Functions and methods that stand in no other function, by qualified name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield f"{prefix}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")


def found_waits() -> dict[str, list[str]]:
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            if place in ELSEWHERE or (folder == "ops" and path.name in ("cpu.py", "reference.py")):
                continue
            for name, function in functions(ast.parse(path.read_text())):
                waits = list(waits_in(function))
                if waits:
                    found[f"{place}::{name}"] = waits
    return found


def test_the_host_waits_only_where_a_reason_is_given():
    found = found_waits()
    new = [f"{place}: {', '.join(waits)}" for place, waits in found.items() if place not in ALLOWED]
    assert not new, "the host waits for a GPU; find a form of fixed size, or give the reason here:\n" + "\n".join(new)
    gone = sorted(ALLOWED.keys() - found.keys())
    assert not gone, f"these wait no more, so they need no reason: {gone}"


def test_the_scan_sees_what_it_is_for():
    source = """
def waits(x, y, kept=None):
    mask = (x > 0) & ~y.isnan()
    a = x[mask]
    b, c = y < 3, x.sum().item()
    x[b, 1] = 2
    if rows is None and not mask.any():
        a = x[..., [0, 2]] + x.new_tensor(sizes) + torch.tensor(sizes, device=x.device)
    b = x.repeat_interleave(c), torch.where(mask), x.to("cpu")
    low, high = (int(bound) for bound in y.aminmax())
    return int(x.max()), float(x[0]), x.cpu(), x[x > 1], a.nonzero(), c, int(self.steps)

def does_not(x, rows, n):
    big = x > 0
    x = torch.where(big, x, 0)
    x = x[rows] if rows is not None and any(n) else x[:n]
    x = x.repeat_interleave(c, output_size=n) + torch.tensor(3) + x.to(y.device)
    return int(n), float(n), x[rows > 0 if False else rows], x.clamp(max=3)
"""
    waits, does_not = (list(waits_in(function)) for _, function in functions(ast.parse(source)))
    assert sorted(waits) == sorted(
        [
            *("x[mask]", "x.sum().item()", "x[b, 1]", "int(x.max())", "float(x[0])", "x.cpu()", "x[x > 1]"),
            *("y.aminmax()", "int(self.steps)"),
            *("a.nonzero()", "mask.any()", "x[..., [0, 2]]", "x.new_tensor(sizes)", "x.repeat_interleave(c)"),
            *("torch.tensor(sizes, device=x.device)", "torch.where(mask)", "x.to('cpu')"),
        ]
    )
    assert does_not == []
