"""Progress: something at the first step, and remaining time only where it is right."""

from types import SimpleNamespace

import pytest

pytest.importorskip("rich")

from sliceflow.cli import progress
from sliceflow.cli.progress import Clock, Progress, seconds_text


class Walk:
    """A fit on a clock of its own: stages of (name, steps, seconds a step)."""

    def __init__(self, monkeypatch, stages):
        self.now = 0.0
        self.stages = stages
        self.total = sum(steps for _, steps, _ in stages)
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)

    def events(self):
        done = 0
        for index, (name, steps, seconds) in enumerate(self.stages):
            for step in range(steps):
                self.now += seconds + 20 * (done == 0)  # the first step compiles
                done += 1
                yield SimpleNamespace(
                    stage=name,
                    stage_index=index,
                    step=step,
                    steps_done=done,
                    steps_total=self.total,
                    distance=0.5,
                    measure="sliced distance",
                )

    def names(self):
        return [(name, steps) for name, steps, _ in self.stages]


STEADY = [("flow", 100, 0.2)]
PIXELS = [
    (f"{s}×{s}[{min(s, 7)}]", 8, 0.03 + 1e-3 * s * s)
    for s in (1, 2, 4, 7, 14, 28, 28, 28)
]
DEARER = [(f"{s}×{s}[3]", 8, 0.03 + 1e-5 * s**4) for s in (1, 2, 4, 7, 14, 28, 28)]


@pytest.mark.parametrize(
    "stages", [STEADY, PIXELS, DEARER], ids=["steady", "pixels", "dearer"]
)
def test_remaining_time_is_right_within_a_factor_of_two_or_not_shown(
    monkeypatch, stages
):
    walk = Walk(monkeypatch, stages)
    clock = Clock(walk.names())
    told = []
    for event in walk.events():
        clock.update(event)
        told.append((walk.now, clock.share, clock.left()))
    shown = [(now, left) for now, share, left in told[:-1] if left is not None]
    assert all(left is None for _, share, left in told if share < 0.1)
    for now, left in shown:
        assert (walk.now - now) / 2 <= left <= 2 * (walk.now - now)
    assert len(shown) > 0.2 * len(told)
    assert told[-1][1] == 1


def test_lines_come_at_the_first_step_and_every_tenth(monkeypatch, capsys):
    walk = Walk(monkeypatch, STEADY)
    listener = Progress(walk.names())
    for event in walk.events():
        listener(event)
    listener.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "step 1/100, stage flow, sliced distance 0.5"
    assert lines[-1] == "step 100/100, stage flow, sliced distance 0.5"
    assert len(lines) == 11
    assert "10.0 s left" in lines[5]


def test_stages_that_were_not_planned_are_counted_by_steps(monkeypatch):
    walk = Walk(monkeypatch, STEADY)
    clock = Clock([])
    for event in walk.events():
        clock.update(event)
    assert clock.share == 1
    times = {3.14: "3.1 s", 59.4: "59 s", 200: "3 min 20 s", 7500: "2 h 05 min"}
    assert [seconds_text(seconds) for seconds in times] == list(times.values())
