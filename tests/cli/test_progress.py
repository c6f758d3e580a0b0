"""Progress: something at the first step, and remaining time only where it is right."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

pytest.importorskip("rich")

from sliceflow.cli import progress
from sliceflow.cli.progress import Forecast, ProgressBar, describe_progress
from sliceflow.estimators.tables.events import ColumnEvent, TableTrialEvent


@dataclass
class Stage:
    """A planned stage of pictures, and how long each of its steps takes."""

    height: int
    width: int
    n_steps: int
    seconds: float


def square(side, seconds):
    return Stage(side, side, 8, seconds)


class Walk:
    """A fit on a clock of its own."""

    def __init__(self, monkeypatch, stages):
        self.now = 0.0
        self.stages = stages
        self.total = sum(stage.n_steps for stage in stages)
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)

    def events(self):
        done = 0
        for index, stage in enumerate(self.stages):
            for step in range(stage.n_steps):
                self.now += stage.seconds
                if done == 0:
                    self.now += 20  # the first step compiles
                done += 1
                yield SimpleNamespace(
                    stage_index=index,
                    step_index=step,
                    steps_done=done,
                    steps_total=self.total,
                    describe=lambda: "stage flow, sliced distance 0.5",
                )


STEADY = [Stage(1, 1, 100, 0.2)]
PIXELS = [square(side, 0.03 + 1e-3 * side**2) for side in (1, 2, 4, 7, 14, 28, 28, 28)]
DEARER = [square(side, 0.03 + 1e-5 * side**4) for side in (1, 2, 4, 7, 14, 28, 28)]


@pytest.mark.parametrize(
    "stages", [STEADY, PIXELS, DEARER], ids=["steady", "pixels", "dearer"]
)
def test_remaining_time_is_right_within_a_factor_of_two_or_not_shown(
    monkeypatch, stages
):
    walk = Walk(monkeypatch, stages)
    forecast = Forecast(stages)
    forecasts = []
    for event in walk.events():
        forecast.update(event)
        forecasts.append((walk.now, forecast.share, forecast.seconds_left()))
    shown = [(now, left) for now, share, left in forecasts[:-1] if left is not None]
    assert all(left is None for _, share, left in forecasts if share < 0.1)
    for now, left in shown:
        assert (walk.now - now) / 2 <= left <= 2 * (walk.now - now)
    assert len(shown) > 0.2 * len(forecasts)
    assert forecasts[-1][1] == 1


def test_lines_come_at_the_first_step_and_every_tenth(monkeypatch, capsys):
    walk = Walk(monkeypatch, STEADY)
    listener = ProgressBar(STEADY)
    for event in walk.events():
        listener(event)
    listener.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "step 1 of 100, stage flow, sliced distance 0.5"
    assert lines[-1] == "step 100 of 100, stage flow, sliced distance 0.5"
    assert len(lines) == 11
    assert "10.0 s left" in lines[5]


def test_stages_that_were_not_planned_are_counted_by_steps(monkeypatch):
    walk = Walk(monkeypatch, STEADY)
    forecast = Forecast()
    shares = []
    for event in walk.events():
        forecast.update(event)
        shares.append(forecast.share)
    assert shares == [step / 100 for step in range(1, 101)]


def test_an_event_without_stages_is_counted_by_steps(monkeypatch):
    """Those of a table have columns instead."""
    forecast = Forecast()
    for done in (1, 2):
        forecast.update(SimpleNamespace(steps_done=done, steps_total=4))
    assert forecast.share == 0.5


def test_trials_of_a_table_are_counted_apart_from_its_columns():
    trial = TableTrialEvent("how to draw age", 3, 8, columns_total=12, seconds=1.0)
    assert describe_progress(trial) == "trial 3 of 8 (how to draw age)"
    column = ColumnEvent(
        "age", 5, 12, unexplained_share=0.5, seconds=2.0, trials_done=6
    )
    assert describe_progress(column) == "column 5 of 12 (age)"
    forecast = Forecast()
    forecast.update(trial)
    assert forecast.share == 3 / 20
    forecast.update(column)
    assert forecast.share == 11 / 18
