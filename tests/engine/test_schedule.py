"""Stages: their step sizes."""

import pytest

from sliceflow.engine.frames import Axis
from sliceflow.engine.schedule import Stage


@pytest.mark.parametrize(
    ("size", "taper", "sizes"),
    [(1, 0, [1, 1, 1, 1]), (1, 0.5, [1, 1, 1, 0.5]), (2, 1, [2, 1.5, 1, 0.5])],
)
def test_the_step_size_falls_over_the_taper(size, taper, sizes):
    stage = Stage("s", Axis(), 4, step_size=size, taper=taper)
    assert [stage.size_of(k) for k in range(4)] == sizes
