"""What is sent to Rerun: to the library where it is installed, else to a stand-in that records the calls."""

import importlib.util
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pcdet.structures.calibration import Calibration
from pcdet.structures.detections import Detections
from pcdet.structures.outcomes import RIGHT, WRONG, Outcomes
from pcdet.visual import JudgedScene, log_to_rerun
from pcdet.visual.canvas import FALSE_ALARM, HIT

# P2 of a camera that stands 0.06 m to the left of the rectified frame's origin.
P2 = np.array([[700, 0, 600, 42], [0, 700, 170, 0], [0, 0, 1, 0]], dtype=np.float32)
V2C = np.array([[0, -1, 0, 0], [0, 0, -1, -0.1], [1, 0, 0, -0.3]], dtype=np.float32)


@pytest.fixture
def scenes(tmp_path):
    from skimage import io

    io.imsave(tmp_path / "image.png", np.zeros((40, 120, 3), dtype=np.uint8), check_contrast=False)
    points = np.array([[5, 0, -1, 0.2], [9, 1, 0, 0.4], [np.nan, 0, 0, 0]], dtype=np.float32)
    boxes = torch.tensor([[10.0, 0, -1, 4, 2, 1.5, np.pi / 2], [20.0, 3, -1, 4, 2, 1.5, 0], [30.0, 0, 0, 4, 2, 1, 0]])
    found = Detections(boxes, torch.tensor([0.9, 0.6, 0.1]), torch.tensor([1, 1, 1]))
    outcomes = {0.3: Outcomes(np.array([RIGHT, WRONG, -1]), np.array([RIGHT]))}
    calib = Calibration(P2, np.eye(3, dtype=np.float32), V2C)
    whole = JudgedScene("000001", points, found, boxes[:1].numpy(), ["Car"], outcomes, calib, tmp_path / "image.png")
    return [whole, JudgedScene("bare", np.zeros((0, 3)), Detections.empty())]


class StandIn:
    """The part of rerun-sdk that is used, as a module that keeps what it is given."""

    def __init__(self):
        self.calls: list[tuple] = []
        self.ViewCoordinates = SimpleNamespace(FLU="FLU")
        self.Radius = SimpleNamespace(ui_points=lambda size: ("ui", size))

    def __getattr__(self, kind):  # archetypes: Points3D, Boxes3D ...
        return lambda *values, **named: (kind, values, named)

    def spawn(self, recording):
        recording.calls.append(("spawn",))

    def RecordingStream(self, name):  # noqa: N802
        def keep(what):
            return lambda *values, **named: self.calls.append((what, values, named))

        return SimpleNamespace(
            calls=self.calls, **{w: keep(w) for w in ("save", "log", "set_time", "flush", "disconnect")}
        )


@pytest.fixture
def stand_in(monkeypatch):
    module = StandIn()
    monkeypatch.setitem(sys.modules, "rerun", module)
    return module


def logged(stand_in, entity):
    return [values[1] for what, values, _ in stand_in.calls if what == "log" and values[0] == entity]


def test_boxes_points_and_camera_are_sent(stand_in, scenes, tmp_path):
    log_to_rerun(scenes, tmp_path / "new" / "out.rrd", class_names=["Car"], score=0.3)
    assert (tmp_path / "new").is_dir() and stand_in.calls[0][0] == "save" and stand_in.calls[-1][0] == "disconnect"
    assert [named for what, _, named in stand_in.calls if what == "set_time"] == [{"sequence": 0}, {"sequence": 1}]
    first, bare = logged(stand_in, "world/found")
    boxes = first[2]
    np.testing.assert_allclose(boxes["centers"], [[10, 0, -1], [20, 3, -1]])
    np.testing.assert_allclose(boxes["quaternions"], [[0, 0, np.sqrt(0.5), np.sqrt(0.5)], [0, 0, 0, 1]], atol=1e-6)
    colors = [tuple(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in (HIT, FALSE_ALARM)]
    assert boxes["colors"] == colors and boxes["labels"] == ["Car 0.90", "Car 0.60"]
    assert len(bare[2]["centers"]) == 0 and len(logged(stand_in, "world/labelled")) == 2
    assert [len(points[1][0]) for points in logged(stand_in, "world/points")] == [2, 0]
    (_, _, place), clear = logged(stand_in, "world/camera")
    # The rectified origin lies 0.3 m ahead of the LiDAR and 0.1 m below; the camera 0.06 m to its left.
    np.testing.assert_allclose(place["translation"], [0.3, 0.06, -0.1], atol=1e-6)
    np.testing.assert_allclose(place["mat3x3"], [[0, 0, 1], [-1, 0, 0], [0, -1, 0]], atol=1e-6)
    assert clear[0] == "Clear" and logged(stand_in, "world/camera/image")[0][2]["resolution"] == [120, 40]


def test_without_a_file_a_viewer_is_opened(stand_in, scenes):
    log_to_rerun(scenes[1:], class_names=["Car"])
    assert stand_in.calls[0] == ("spawn",) and stand_in.calls[-1][0] == "flush"


def test_a_viewer_that_does_not_open_is_one_line(stand_in, scenes):
    def spawn(recording):
        raise RuntimeError("\nno executable\nmany more lines")

    stand_in.spawn = spawn
    with pytest.raises(ValueError, match=r"does not open \(no executable\); write a file"):
        log_to_rerun(scenes[1:], class_names=["Car"])


def test_an_absent_package_is_an_error_that_says_how_to_install_it(monkeypatch, scenes):
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(ValueError, match="pip install rerun-sdk"):
        log_to_rerun(scenes, class_names=["Car"])


@pytest.mark.skipif(importlib.util.find_spec("rerun") is None, reason="rerun-sdk is not installed")
def test_the_library_writes_a_recording(scenes, tmp_path):
    for name, some in (("whole", scenes), ("bare", scenes[1:])):
        log_to_rerun(some, tmp_path / f"{name}.rrd", class_names=["Car"], score=0.3)
    whole, bare = ((tmp_path / f"{name}.rrd").read_bytes() for name in ("whole", "bare"))
    assert whole.startswith(b"RRF2") and bare.startswith(b"RRF2") and len(whole) > len(bare) + 1000
