"""Listeners: what they hear, and how they stop a stage."""

import numpy as np
import pytest

from sliceflow import SlicedWassersteinFlow
from sliceflow.engine.events import notify


def test_the_stage_ends_if_any_listener_says_so():
    heard = []
    assert not notify((lambda _: False, heard.append), 1)
    assert notify((lambda _: True, heard.append), 2)
    assert heard == [1, 2]


def test_listeners_are_closed_even_after_an_error():
    class Failing:
        closed = False

        def __call__(self, event):
            raise KeyError

        def close(self):
            self.closed = True

    failing = Failing()
    flow = SlicedWassersteinFlow(n_particles=20, n_steps=1)
    with pytest.raises(KeyError):
        flow.fit(np.zeros((5, 2)), listeners=[print_nothing, failing])
    assert failing.closed


def print_nothing(event):
    """A listener without a method `close`."""
