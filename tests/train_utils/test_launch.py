"""Devices, seeds, BatchNorm over ranks."""

import logging
import subprocess
import sys

import pytest
import torch
from engine_fakes import fresh_model

from pcdet.layers.sync_norm import SyncBatchNorm
from pcdet.train_utils import launch
from pcdet.utils.logging import get_logger

CPU = torch.device("cpu")


def test_devices():
    assert launch.choose_device("cpu") == CPU
    assert launch.choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_an_error():
    with pytest.raises(ValueError, match="sees no CUDA device"):
        launch.choose_device("cuda")


def test_sync_bn_of_one_process_changes_nothing_and_says_so(caplog, monkeypatch):
    monkeypatch.setattr(get_logger(), "propagate", True)
    caplog.set_level(logging.INFO, logger=get_logger().name)
    model = fresh_model()
    assert launch.synchronize_norms(model) is model
    assert "changes nothing" in caplog.text


def test_sync_bn_keeps_the_names_of_the_weights(monkeypatch):
    monkeypatch.setattr(launch.ranks, "world_size", lambda: 2)
    monkeypatch.setattr(launch.dist, "new_group", lambda: None)
    names = list(fresh_model().state_dict())
    model = launch.synchronize_norms(fresh_model())
    assert isinstance(model.norm, SyncBatchNorm)
    assert list(model.state_dict()) == names


def test_ranks_that_see_different_checkpoints_are_told_so(monkeypatch, tmp_path):
    """Machines without a shared folder: rank 1 would begin anew while rank 0 resumes."""
    found = tmp_path / "checkpoint_epoch_3.pth", {"it": 12}
    for other, agree in (("none", False), ("checkpoint_epoch_3.pth of step 12", True)):
        monkeypatch.setattr(launch.ranks, "gather_objects", lambda mine, other=other: [mine, (other, "b")])
        if agree:
            launch.agree_on_checkpoint(found, tmp_path)
            continue
        with pytest.raises(ValueError, match=r"rank 0 on \S+: checkpoint_epoch_3.pth of step 12; rank 1 on b: none"):
            launch.agree_on_checkpoint(found, tmp_path)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_large_blocks_are_kept_after_they_were_freed():
    """In a process of its own: a block of 128 MiB that is taken, written and freed again and again."""
    code = """
import ctypes, resource
from pcdet.train_utils.launch import keep_freed_memory
assert keep_freed_memory()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
faults = []
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = library.malloc(ctypes.c_size_t(128 << 20))
    library.memset(ctypes.c_void_p(block), 1, ctypes.c_size_t(128 << 20))
    library.free(ctypes.c_void_p(block))
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
assert max(faults[1:]) < 100, faults
"""
    subprocess.run([sys.executable, "-c", code], check=True)
