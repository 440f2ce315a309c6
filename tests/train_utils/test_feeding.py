"""Batches on their way: one ahead of the step, and the shared memory that they pass through."""

import logging
import threading
from types import SimpleNamespace

import pytest
import torch
from engine_fakes import FakeScenes

from pcdet.train_utils import shared_memory
from pcdet.train_utils.prefetch import ahead, on_device
from pcdet.train_utils.shared_memory import check_shared_memory
from pcdet.utils.logging import get_logger


def test_items_keep_their_order_and_one_is_prepared_ahead():
    prepared, second = [], threading.Event()

    def prepare(item):
        prepared.append(item)
        if item == 1:
            second.set()
        return 10 * item

    stream = ahead(range(4), prepare)
    assert next(stream) == 0
    assert second.wait(timeout=10), "the next is prepared while the first is in use"
    assert [*stream] == [10, 20, 30] and prepared == [0, 1, 2, 3]


def test_an_error_is_raised_where_its_item_would_have_come():
    def items():
        yield 1
        raise KeyError("broken file")

    stream = ahead(items(), lambda item: item)
    assert next(stream) == 1
    with pytest.raises(KeyError, match="broken file"):
        next(stream)


def test_on_a_cpu_batches_pass_as_they_are():
    scenes = FakeScenes(2)
    batch = scenes.collate([scenes[0], scenes[1]])
    (out,) = on_device([batch], torch.device("cpu"))
    assert out["x"] is batch["x"] and out["frame_id"] == batch["frame_id"]


@pytest.mark.parametrize("free, workers, fits", [(575, 2, False), (576, 2, True), (0, 0, True)])
def test_too_little_shared_memory_is_told_before_workers_die_of_it(tmp_path, monkeypatch, caplog, free, workers, fits):
    """A scene is 4 float32 and one int64, 24 bytes; 4 scenes x 2 workers x 3 batches are 576."""
    monkeypatch.setattr(shared_memory.os, "statvfs", lambda folder: SimpleNamespace(f_bavail=free, f_frsize=1))
    logger = get_logger()
    monkeypatch.setattr(logger, "propagate", True)
    with caplog.at_level(logging.WARNING, logger=logger.name):
        assert check_shared_memory(FakeScenes(4), 4, workers, tmp_path) == fits
    assert ("--shm-size" in caplog.text) == (not fits)
