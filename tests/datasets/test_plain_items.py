"""Items against the plain way of making them, which benchmarks/data_pipeline.py measures; memory of the workers."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pcdet.datasets import build_dataset

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
CLASSES = ["Car", "Pedestrian", "Cyclist"]


def benchmark(name: str):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def limited(data_settings):
    """At most two of a class are pasted, so that chance decides which ones and where there is room."""
    block = data_settings["DATA_AUGMENTOR"]["AUG_CONFIG_LIST"][0]
    block.update(SAMPLE_GROUPS=["Car:2", "Pedestrian:1", "Cyclist:1"], LIMIT_WHOLE_SCENE=True)
    return data_settings


def test_without_chance_both_ways_make_the_same_item(small_kitti, limited):
    """Nothing pasted, no turn, factor 1: of the flip, the item that both ways can draw is compared."""
    blocks = limited["DATA_AUGMENTOR"]["AUG_CONFIG_LIST"]
    blocks[0]["SAMPLE_GROUPS"] = ["Car:0"]
    blocks[2]["WORLD_ROT_ANGLE"], blocks[3]["WORLD_SCALE_RANGE"] = [0.0, 0.0], [1.0, 1.0]
    ours = build_dataset(limited, CLASSES, training=True, root=small_kitti)
    plain = benchmark("data_pipeline_plain").PlainItems(small_kitti, limited, CLASSES)
    for index in range(3):
        items = [ours[index]]
        while len(items) < 2:
            other = plain[index]
            if np.sign(other["gt_boxes"][0, 1]) == np.sign(items[0]["gt_boxes"][0, 1]):
                items.append(other)
        one, two = (item["points"][np.lexsort(item["points"].T)] for item in items)
        np.testing.assert_array_equal(one, two)
        np.testing.assert_allclose(items[0]["gt_boxes"], items[1]["gt_boxes"], atol=1e-6)
        assert sorted(items[0]["voxel_num_points"]) == sorted(items[1]["voxel_num_points"])


def test_both_ways_draw_from_one_distribution(small_kitti, limited):
    """Means over 150 items a frame: sizes, classes, places and headings, within 4.5 standard errors."""
    ours = build_dataset(limited, CLASSES, training=True, root=small_kitti)
    plain = benchmark("data_pipeline_plain").PlainItems(small_kitti, limited, CLASSES, seed=1)
    for index in range(3):
        found = [[], []]
        for epoch in range(150):
            ours.set_epoch(epoch)
            for rows, item in zip(found, (ours[index], plain[index]), strict=True):
                rows.append(summary(item))
        one, two = (np.array(rows) for rows in found)
        error = np.sqrt((one.var(axis=0) + two.var(axis=0)) / len(one)) + 1e-6
        assert (np.abs(one.mean(axis=0) - two.mean(axis=0)) < 4.5 * error).all(), index
        assert one.var(axis=0)[0] > 0  # chance has something to decide


def summary(item) -> list[float]:
    boxes, points = item["gt_boxes"], item["points"]
    classes = [float(np.sum(boxes[:, 7] == label)) for label in (1, 2, 3)]
    places = [*points.mean(axis=0), *boxes[:, :6].mean(axis=0), np.cos(boxes[:, 6]).mean()]
    return [float(len(points)), float(len(boxes)), float(len(item["voxels"])), *classes, *places]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_memory_of_workers_stays_flat_over_five_epochs(small_kitti, limited):
    """Four workers, epochs of 600 items; measured is memory that a worker has for itself, in the kernel's count.

    In the first epoch kernels are loaded and buffers grow. An item is about 0.1 MB, so in the five epochs after it a
    leak of one item in thirty would exceed the limit.
    """
    memory = benchmark("data_memory")
    data = build_dataset(limited, CLASSES, training=True, root=small_kitti)
    data.infos = data.infos * 200
    torch.set_num_threads(1)
    private = [sizes["private"] for sizes in memory.worker_memory(data, 6, 4, 2)]
    assert private[-1] - private[0] < 10.0, private
