"""The table of strong scaling, by hand."""

import csv
import io

import pytest

from pcdet.train_utils.scaling import (
    cells,
    comma_separated,
    efficiency,
    markdown,
    recommendation,
    recommended,
    summarise,
)
from pcdet.train_utils.step_times import StepReport
from pcdet.visual import draw_scaling, read_image


def report(data=0.1, wall=1.0, communication=0.2):
    phases = {"data": data, "forward": 0.2, "backward": 0.3, "communication": communication, "optimizer": 0.1}
    return StepReport(1, phases, 0.05, wall)


def row(ranks, **options):
    return summarise(ranks, [1.0] * len(ranks), **{"batch": 8, "scenes": 80, "workers": 1, "threads": 1, **options})


def test_a_step_lasts_as_long_as_on_its_slowest_rank():
    """Steps of 1 and 3 s on one rank, 2 and 1 s (and one that the other does not have) on the other: 2.5 s."""
    ranks = [[report(wall=1.0), report(wall=3.0)], [report(wall=2.0), report(wall=1.0), report(wall=9.0)]]
    made = row(ranks)
    assert (made.processes, made.steps, made.step_seconds) == (2, 2, 2.5)
    assert made.samples_per_second == pytest.approx(3.2)
    assert made.epoch_seconds == pytest.approx(25.0)
    assert made.communication_share == pytest.approx(0.08)
    with pytest.raises(ValueError, match="no step"):
        row([[]])


ONE = row([[report(wall=1.0, communication=0.0)]])
TWO = row([[report(wall=0.625)]] * 2)
FOUR = row([[report(wall=0.61)]] * 4)


def test_efficiency_is_speed_a_process_against_the_first_row():
    assert efficiency(ONE, ONE) == 1.0
    assert efficiency(TWO, ONE) == pytest.approx(0.8)
    assert [line["speed-up"] for line in cells([ONE, TWO])] == ["1.00", "1.60"]
    assert [line["parallel efficiency"] for line in cells([TWO, FOUR])] == ["100.0%", "51.2%"]


def test_the_fewest_processes_that_come_near_the_best_are_recommended():
    assert recommended([ONE, TWO, FOUR]) is TWO
    assert recommended([ONE]) is ONE
    assert "Recommended: 2 process(es), 2 worker(s) each: 12.80 samples/s, 80% parallel" in recommendation([ONE, TWO])


@pytest.mark.parametrize("data, workers, needed", [(0.05, 1, 1), (0.5, 1, 2), (0.75, 2, 8), (0.5, 0, 1)])
def test_workers_are_added_where_steps_wait(data, workers, needed):
    """A step of 1 s that waits half of it for one worker needs two."""
    assert row([[report(data=data, wall=1.0)]], workers=workers).workers_needed == needed


def test_the_files_hold_what_the_rows_hold():
    text = markdown([ONE, TWO])
    assert "| 1 | 8 | 10.0 | 1.000 | 8.00 | 1.00 | 10.0% | 0.0% | 5.0% | 1.00 | 100.0% |" in text
    assert "| 2 | 4 | 6.2 | 0.625 | 12.80 | 1.00 | 16.0% | 32.0% | 8.0% | 1.60 | 80.0% |" in text
    lines = list(csv.DictReader(io.StringIO(comma_separated([ONE, TWO]))))
    assert [float(line["communication_seconds"]) for line in lines] == [0.0, 0.2]
    assert [float(line["parallel_efficiency"]) for line in lines] == pytest.approx([1.0, 0.8])


def test_the_picture_has_the_phases(tmp_path):
    shares = [{"data": 0.1, "forward": 0.5, "backward": 0.3, "communication": c, "optimizer": 0.1} for c in (0.0, 0.2)]
    picture = read_image(draw_scaling([1, 2], [8.0, 12.8], shares, tmp_path / "scaling.png"))
    assert picture.shape[:2] == (430, 1100)
    red = (abs(picture[..., :3].astype(int) - [0xD1, 0x49, 0x5B]).max(-1) < 4).sum()
    assert red > 500, "communication is drawn"
