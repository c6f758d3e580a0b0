"""Stages: step sizes, and the schedule of vectors."""

import pytest

from sliceflow.engine.frames import Axis, Orthogonal
from sliceflow.engine.schedule import Stage, flat
from sliceflow.engine.transports import Auto, Histogram, Sorted


@pytest.mark.parametrize(
    ("size", "taper", "sizes"),
    [(1, 0, [1, 1, 1, 1]), (1, 0.5, [1, 1, 1, 0.5]), (2, 1, [2, 1.5, 1, 0.5])],
)
def test_the_step_size_falls_over_the_taper(size, taper, sizes):
    stage = Stage("s", Axis(), 4, step_size=size, taper=taper)
    assert [stage.size_of(k) for k in range(4)] == sizes


def test_the_flat_schedule_ends_with_exact_axis_steps():
    flow, axis = flat(Orthogonal(), 20, transport=Histogram(9), n_axis_steps=3, n_axis_knots=7)
    assert (flow.frame, flow.n_steps, flow.transport) == (Orthogonal(), 20, Histogram(9))
    assert (flow.exact, flow.n_knots) == (False, 512)
    assert (axis.frame, axis.n_steps, axis.transport) == (Axis(), 3, Sorted())
    assert (axis.exact, axis.n_knots) == (True, 7)
    assert flat(Orthogonal(), 20)[0].transport == Auto()
    assert [stage.name for stage in flat(Orthogonal(), 20, n_axis_steps=0)] == ["flow"]
    assert flat(Orthogonal(), 0, n_axis_steps=0) == []
