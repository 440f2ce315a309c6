"""Runs a model on the frames of a recorded run and compares everything that was recorded.

The input is rebuilt here from raw KITTI files, independently of the data sets: file, field of view, range, voxels.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fill_weights import fill_weights
from recorded import Row, compare_number, compare_tensor, match_detections
from torch import nn

from pcdet.layers.sparse import SparseConvTensor
from pcdet.models.build import build_model
from pcdet.ops.voxelize import voxelize
from pcdet.structures.batch import Batch
from pcdet.structures.boxes import boxes_from_kitti_camera
from pcdet.structures.calibration import Calibration
from pcdet.structures.dataset_info import DatasetInfo

GRADIENT_TOLERANCE = 3e-2
MEDIAN_GRADIENT_TOLERANCE = 5e-3


def compare_run(record_path: Path, kitti: Path, config: Mapping[str, Any]) -> Iterator[Row]:
    """One row for every recorded input, weight list, slot, loss, gradient group and list of detections."""
    record = json.loads(record_path.read_text())
    info = info_of(config)
    batch = load_batch(kitti / "training", record["frames"], config, info)
    model = build_model(config["MODEL"], info)
    fill_weights(model)
    yield from _compare_input(batch, record["input"])
    yield _compare_weights(model, record["weights"])
    yield from _compare_evaluation(model, batch, record, np.load(record_path.with_suffix(".npz")))
    fill_weights(model)
    yield from _compare_training(model, batch, record)


def info_of(config: Mapping[str, Any]) -> DatasetInfo:
    """What the data set of a configuration would tell the model."""
    data = config["DATA_CONFIG"]
    voxels = processor(config, "transform_points_to_voxels")
    area, size = np.array(data["POINT_CLOUD_RANGE"], dtype=np.float64), np.array(voxels["VOXEL_SIZE"])
    return DatasetInfo(
        class_names=tuple(config["CLASS_NAMES"]),
        point_features=tuple(data["POINT_FEATURE_ENCODING"]["used_feature_list"]),
        point_cloud_range=tuple(area.tolist()),
        voxel_size=tuple(size.tolist()),
        grid_size=tuple(np.round((area[3:] - area[:3]) / size).astype(int).tolist()),
        max_points_per_voxel=voxels["MAX_POINTS_PER_VOXEL"],
    )


def processor(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The block of one DATA_PROCESSOR."""
    return next(block for block in config["DATA_CONFIG"]["DATA_PROCESSOR"] if block["NAME"] == name)


def merged_config(configs: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The configuration ``name`` of a table of them, its DATA_CONFIG completed by its base."""
    config = dict(configs[name])
    base = configs[config["DATA_CONFIG"]["_BASE_CONFIG_"].removeprefix("cfgs/")]
    return config | {"DATA_CONFIG": {**base, **config["DATA_CONFIG"]}}


def load_batch(folder: Path, frames: list[str], config: Mapping[str, Any], info: DatasetInfo) -> Batch:
    """Frames of a KITTI folder as an evaluation batch."""
    limit = processor(config, "transform_points_to_voxels")["MAX_NUMBER_OF_VOXELS"]["test"]
    voxels, coords, counts, clouds, boxes = [], [], [], [], []
    for i, frame in enumerate(frames):
        calib = Calibration.from_file(folder / "calib" / f"{frame}.txt")
        cloud = _load_points(folder, frame, calib, info)
        found = voxelize(
            cloud, info.point_cloud_range, info.voxel_size, info.grid_size, info.max_points_per_voxel, limit
        )
        voxels.append(found.voxels)
        coords.append(np.pad(found.coords, ((0, 0), (1, 0)), constant_values=i))
        counts.append(found.num_points)
        clouds.append(np.pad(cloud, ((0, 0), (1, 0)), constant_values=i))
        boxes.append(_load_boxes(folder, frame, calib, info))
    padded = np.zeros((len(frames), max(map(len, boxes)), 8), dtype=np.float32)
    for row, scene in zip(padded, boxes, strict=True):
        row[: len(scene)] = scene
    arrays = {"voxels": voxels, "voxel_coords": coords, "voxel_num_points": counts, "points": clouds}
    tensors = {key: torch.from_numpy(np.concatenate(parts)) for key, parts in arrays.items()}
    return {"batch_size": len(frames), "frame_id": frames, "gt_boxes": torch.from_numpy(padded), **tensors}


def _load_points(folder: Path, frame: str, calib: Calibration, info: DatasetInfo) -> np.ndarray:
    points = np.fromfile(folder / "velodyne" / f"{frame}.bin", dtype=np.float32).reshape(-1, 4)
    header = (folder / "image_2" / f"{frame}.png").read_bytes()[:24]
    width, height = struct.unpack(">II", header[16:24])
    pixels, depth = calib.lidar_to_image(points)
    seen = (pixels >= 0).all(axis=1) & (pixels < [width, height]).all(axis=1) & (depth >= 0)
    low, high = np.float32(info.point_cloud_range[:2]), np.float32(info.point_cloud_range[3:5])
    return points[seen & (points[:, :2] >= low).all(axis=1) & (points[:, :2] <= high).all(axis=1)]


def _load_boxes(folder: Path, frame: str, calib: Calibration, info: DatasetInfo) -> np.ndarray:
    rows = [line.split() for line in (folder / "label_2" / f"{frame}.txt").read_text().splitlines()]
    rows = [row for row in rows if row[0] in info.class_names]
    numbers = np.array([row[8:15] for row in rows], dtype=np.float64).reshape(-1, 7)
    camera = numbers[:, [3, 4, 5, 2, 0, 1, 6]]  # label order is h w l x y z ry
    labels = np.array([info.class_names.index(row[0]) + 1 for row in rows]).reshape(-1, 1)
    return np.concatenate([boxes_from_kitti_camera(camera, calib), labels], axis=1).astype(np.float32)


def _compare_input(batch: Batch, record: Mapping[str, Any]) -> Iterator[Row]:
    for key in ("points", "voxels", "voxel_coords", "voxel_num_points", "gt_boxes"):
        if key in record:
            yield compare_tensor(f"input {key}", batch[key], record[key], rtol=1e-5, atol=1e-5)


def _compare_weights(model: nn.Module, record: Mapping[str, Any]) -> Row:
    mine = {name: [list(value.shape), value.double().abs().sum().item()] for name, value in model.state_dict().items()}
    missing, extra = sorted(record.keys() - mine.keys()), sorted(mine.keys() - record.keys())
    if missing or extra:
        return Row("weights", float("inf"), f"missing {missing}, not recorded {extra}")
    shapes = [name for name, (shape, _) in record.items() if mine[name][0] != shape]
    if shapes:
        return Row("weights", float("inf"), f"other shapes: {shapes}")
    worst = max(abs(mine[name][1] - total) / max(total, 1e-6) for name, (_, total) in record.items())
    return Row("weights", worst / 1e-6, f"{len(mine)} entries")


def _run(model: nn.Module, batch: Batch) -> tuple[Any, dict[str, Any]]:
    """What the model returns, and what its slots returned on the way."""
    slots: dict[str, Any] = {}

    def keep(name: str):
        return lambda module, inputs, output: slots.update({name: output._asdict()})

    hooks = [module.register_forward_hook(keep(name)) for name, module in model.named_children()]
    output = model(batch)
    for hook in hooks:
        hook.remove()
    return output, slots


def _compare_evaluation(model: nn.Module, batch: Batch, record: Mapping[str, Any], arrays) -> Iterator[Row]:
    model.eval()
    with torch.no_grad():
        detections, slots = _run(model, batch)
        head = model.dense_head
        boxes, logits = head.decode(type(head).forward.__annotations__["return"](**slots["dense_head"]))
    slots["dense_head"] |= {"batch_box_preds": boxes, "batch_cls_preds": logits}
    yield from _compare_slots("eval", slots, record["eval"]["slots"])
    for i, scene in enumerate(detections):
        wanted = tuple(arrays[f"eval.pred{i}.pred_{key}"] for key in ("boxes", "scores", "labels"))
        share = match_detections((scene.boxes, scene.scores, scene.labels), wanted)
        yield Row(f"eval detections {i}", (1 - share) / 0.03, f"{share:.4f} of {len(wanted[0])}, found {len(scene)}")


def _compare_training(model: nn.Module, batch: Batch, record: Mapping[str, Any]) -> Iterator[Row]:
    model.train()
    output, slots = _run(model, batch)
    slots["dense_head"] |= _dense_targets(model, batch)
    yield from _compare_slots("train", slots, record["train"]["slots"])
    total = sum(output.losses.values())
    yield compare_number("train loss", total.item(), record["train"]["loss"], rtol=1e-3)
    for name, wanted in record["train"]["tb_dict"].items():
        yield compare_number(f"train {name}", output.metrics[name].item(), wanted, rtol=1e-3)
    total.backward()
    yield from _compare_gradients(model, record["train"]["grad_norm"])
    state = model.state_dict()
    after = record["train"]["bn_after_norm"]
    worst = max(after, key=lambda name: abs(state[name].norm().item() - after[name]) / max(after[name], 1e-6))
    yield compare_number(f"train {worst}", state[worst].norm().item(), after[worst], rtol=1e-3)


def _dense_targets(model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
    """The head's targets as full tables, as they were recorded."""
    targets = model.dense_head.assign(batch["gt_boxes"])
    table = torch.zeros(targets.labels.numel(), targets.codes.shape[1])
    table[targets.positives] = targets.codes
    weights = (targets.labels > 0).float()
    return {
        "box_cls_labels": targets.labels,
        "box_reg_targets": table.view(*targets.labels.shape, -1),
        "reg_weights": weights,
    }


def _compare_slots(mode: str, slots: Mapping[str, Any], record: Mapping[str, Any]) -> Iterator[Row]:
    for slot, recorded in record.items():
        for key, wanted in {**recorded["tensors"], **recorded.get("forward_ret_dict", {})}.items():
            if key in slots[slot]:
                yield from _compare_value(f"{mode} {slot}.{key}", slots[slot][key], wanted)


def _compare_value(what: str, value: Any, wanted: Any) -> Iterator[Row]:
    if isinstance(value, SparseConvTensor):
        order = np.lexsort(value.indices.numpy().T[::-1])
        yield compare_tensor(f"{what}.indices", value.indices.numpy()[order], wanted["indices"])
        yield compare_tensor(f"{what}.features", value.features.detach().numpy()[order], wanted["features"])
    elif isinstance(value, Mapping):
        for key in wanted:
            yield from _compare_value(f"{what}.{key}", value[key], wanted[key])
    elif isinstance(value, torch.Tensor):
        yield compare_tensor(what, value.detach().numpy(), wanted)
    else:
        yield Row(what, 0.0 if value == wanted else float("inf"), f"{value}, recorded {wanted}")


def _compare_gradients(model: nn.Module, record: Mapping[str, float]) -> Iterator[Row]:
    """The worst parameter of each slot, and the median of all."""
    mine = {name: p.grad.norm().item() for name, p in model.named_parameters() if p.grad is not None}
    if mine.keys() != record.keys():
        yield Row("gradients", float("inf"), f"other parameters: {sorted(mine.keys() ^ record.keys())}")
        return
    errors = {name: abs(mine[name] - wanted) / max(abs(wanted), 1e-9) for name, wanted in record.items()}
    for slot in sorted({name.partition(".")[0] for name in errors}):
        worst = max((name for name in errors if name.startswith(slot + ".")), key=errors.get)
        yield Row(f"gradients {slot}", errors[worst] / GRADIENT_TOLERANCE, f"worst {worst} {errors[worst]:.2g}")
    median = float(np.median(list(errors.values())))
    yield Row("gradients median", median / MEDIAN_GRADIENT_TOLERANCE, f"{median:.2g}")
