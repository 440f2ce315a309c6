"""Where a step's time goes, by hand."""

import json
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from pcdet.train_utils import step_times
from pcdet.train_utils.device_usage import DeviceUsage, _open_nvml, peak_resident
from pcdet.train_utils.profiling import StepProfiler
from pcdet.train_utils.speed import Speed, scalars, workers_needed
from pcdet.train_utils.step_times import Span, StepReport, StepTimes, _union_before

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    hand = SimpleNamespace(now=100.0)
    monkeypatch.setattr(step_times.time, "perf_counter", lambda: hand.now)
    return hand


class Bucket:
    def buffer(self):
        return torch.ones(2)


class Exchange:
    """A sum that arrives when it is told to."""

    def get_future(self):
        return self

    def then(self, arrived):
        self.arrive = lambda: arrived(self)
        return self

    def value(self):
        return [torch.ones(2)]


def test_the_phases_add_up_to_the_step(clock, monkeypatch):
    """Data 1 s, forward 3 s with a collective of 1 s, backward 5 s, a decision of 0.5 s, optimiser 0.5 s.

    In the backward pass a first bucket is under way from 1.0 to 2.5 s, a second from 2.0 to 3.0, the last is ready at
    4.0: the second from there on is waited for, and 2.0 before it are overlapped.
    """
    exchanges = []
    monkeypatch.setattr(step_times.dist, "all_reduce", lambda *_, **__: exchanges.append(Exchange()) or exchanges[-1])
    times = StepTimes(CPU)
    times.start_step()
    clock.now += 1
    assert times.have_data() == 1
    with times.phase("forward"):
        clock.now += 1
        with times.collective():
            clock.now += 1
        clock.now += 1
    with times.phase("backward"):
        for seconds, act in (
            (1.0, lambda: times.reduce_bucket(None, Bucket())),
            (1.0, lambda: times.reduce_bucket(None, Bucket())),
            (0.5, lambda: exchanges[0].arrive()),
            (0.5, lambda: exchanges[1].arrive()),
            (1.0, lambda: times.reduce_bucket(None, Bucket())),
            (1.0, lambda: exchanges[2].arrive()),
        ):
            clock.now += seconds
            act()
    with times.collective():
        clock.now += 0.5
    with times.phase("optimizer"):
        clock.now += 0.5
    assert times.end_step(7) == 9
    (report,) = times.read()
    assert report.step == 7 and report.wall == 10
    assert report.phases == {"data": 1, "forward": 2, "backward": 4, "communication": 2.5, "optimizer": 0.5}
    assert report.overlapped == 2.0
    assert times.read() == []


def test_buckets_that_overlap_count_once_and_only_before_the_last():
    spans = [Span("backward", 0.0, 2.0), Span("backward", 1.0, 3.0), Span("backward", 5.0, 9.0), Span(None, 6.0, 9.5)]
    assert _union_before(spans) == 3.0 + 1.0
    assert _union_before(spans[:1]) == 0.0


def test_on_a_gpu_a_step_is_read_once_its_events_have_passed(monkeypatch):
    """Events of a device that lags behind: nobody waits for it."""
    passed = []

    class Event:
        def __init__(self, enable_timing):
            self.at = None

        def record(self):
            self.at = time.perf_counter()

        def query(self):
            return bool(passed)

        def elapsed_time(self, other):
            return 1000 * (other.at - self.at)

        def synchronize(self):
            raise AssertionError("waited for the device")

    monkeypatch.setattr(step_times.torch.cuda, "Event", Event)
    times = StepTimes(torch.device("cuda", 0))
    times.start_step()
    times.have_data()
    with times.phase("forward"):
        time.sleep(0.01)
    times.end_step(1)
    assert times.read() == []
    passed.append(True)
    assert times.read()[0].phases["forward"] >= 0.01


@pytest.mark.parametrize(
    "data, rest, workers, needed",
    [
        (0.9, 0.3, 0, 3),  # loads 0.9 s by itself; three do it within 0.3 s
        (0.2, 0.4, 2, 3),  # two workers bring a step in 0.6 s: 1.2 s of work
        (0.0, 0.5, 4, 4),  # they keep up
        (0.6, 0.2, 1, 4),
    ],
)
def test_the_number_of_workers_that_would_keep_up(data, rest, workers, needed):
    assert workers_needed(data, rest, workers) == needed


def report(data, rest, step=1):
    phases = {"data": data, "forward": rest / 2, "backward": rest / 4, "communication": rest / 8, "optimizer": rest / 8}
    return StepReport(step, phases, 0.05, data + rest)


@pytest.fixture
def told(monkeypatch):
    """Lines of the log, by level."""
    lines = {"info": [], "warning": []}
    logger = SimpleNamespace(**{k: lambda text, *v, k=k: lines[k].append(text % v) for k in lines})
    monkeypatch.setattr("pcdet.train_utils.speed.get_logger", lambda: logger)
    return lines


def test_a_wait_for_data_is_told_once_with_the_number_of_workers(told):
    speed = Speed(samples_per_step=6, workers=2, world=2)
    for _ in range(2):
        for _ in range(8):
            speed.add(report(0.2, 0.4))
        speed.tell({"device/peak_memory_gib": 1.5})
    assert told["info"][0] == (
        "Times: data 0.200 s (33%), forward 0.200 s (33%), backward 0.100 s (17%), communication 0.050 s (8%), "
        "optimizer 0.050 s (8%); 10.0 samples/s; peak memory 1.50 GiB"
    )
    (warning,) = told["warning"]
    assert "waits 0.200 s for data, 33% of its time, with --workers 2. By these times 3 workers a process" in warning


@pytest.mark.parametrize("data, count", [(0.02, 20), (0.2, 4)])
def test_no_warning_without_a_wait_or_without_enough_steps(told, data, count):
    speed = Speed(samples_per_step=6, workers=0, world=1)
    for _ in range(count):
        speed.add(report(data, 0.4))
    speed.tell({"device/utilisation_percent": 93.0, "device/memory_gib": 12.25, "device/peak_memory_gib": 8.0})
    assert told["warning"] == []
    assert told["info"][0].endswith("GPU 93%, 12.2 GiB in use; peak memory 8.00 GiB")
    assert "communication" not in told["info"][0]


def test_scalars_of_a_step():
    assert scalars(report(0.1, 0.4), samples=2, world=2) == pytest.approx({
        "time/data": 0.1, "time/forward": 0.2, "time/backward": 0.1, "time/communication": 0.05, "time/optimizer": 0.05,
        "time/overlapped_communication": 0.05, "speed/samples_per_second": 4.0,
    })  # fmt: skip


def test_nvml_is_asked_by_the_gpus_unique_name(monkeypatch):
    asked = []
    nvml = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: asked.append(uuid) or "handle",
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=87),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=3 * 2**30),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="12-ab"))
    read = _open_nvml(torch.device("cuda", 0))
    assert asked == ["GPU-12-ab"]
    assert read() == {"device/utilisation_percent": 87.0, "device/memory_gib": 3.0}

    def fails():
        raise RuntimeError("no driver")

    nvml.nvmlInit = fails
    assert _open_nvml(torch.device("cuda", 0)) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert _open_nvml(torch.device("cuda", 0)) is None


def test_a_cpu_tells_its_resident_memory():
    assert DeviceUsage(CPU).read() == {"device/peak_memory_gib": pytest.approx(peak_resident() / 2**30)}
    assert 0.05 < peak_resident() / 2**30 < 1000


def test_the_profiler_writes_a_trace_and_a_table_of_as_many_steps(tmp_path):

    with StepProfiler(tmp_path, 3, CPU) as profiler:
        for _ in range(9):
            torch.ones(8, 8) @ torch.ones(8, 8)
            profiler.step()
    table = (tmp_path / "operators_rank0.txt").read_text()
    assert "aten::mm" in table and profiler.wrote
    events = json.loads((tmp_path / "trace_rank0.json").read_text())["traceEvents"]
    assert sum(e.get("name") == "aten::mm" for e in events) == 3


def test_the_profiler_says_when_there_were_too_few_steps(tmp_path):
    with StepProfiler(tmp_path, 3, CPU) as profiler:
        profiler.step()
    assert not profiler.wrote and not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="--profile -1"):
        StepProfiler(tmp_path, -1, CPU)
