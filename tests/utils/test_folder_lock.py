"""One run a folder."""

import os
import signal
import subprocess
import sys

import pytest

from pcdet.utils import folder_lock
from pcdet.utils.folder_lock import holding

OTHER = """
import sys, pathlib, time
from pcdet.utils.folder_lock import holding
with holding(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def other(tmp_path):
    """A process that holds the folder."""
    process = subprocess.Popen([sys.executable, "-c", OTHER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_folder_in_use_is_refused_and_its_user_named(tmp_path, other, monkeypatch):
    monkeypatch.setattr(folder_lock, "PATIENCE", 0.1)
    with pytest.raises(ValueError, match=rf"in use by another training \(process {other.pid} on .*--extra_tag"):
        with holding(tmp_path):
            pass
    with holding(tmp_path / "beside"):
        assert (tmp_path / "beside").is_dir()


def test_one_whose_user_was_killed_is_free(tmp_path, other):
    os.kill(other.pid, signal.SIGKILL)
    with holding(tmp_path):
        assert (tmp_path / folder_lock.LOCK).read_text().startswith(f"process {os.getpid()} on ")


def test_it_is_free_again_afterwards(tmp_path):
    for _ in range(2):
        with holding(tmp_path):
            pass
