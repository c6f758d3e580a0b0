"""Listeners: what they hear, and how they stop a stage."""

import contextlib

import pytest

from sliceflow.engine.events import as_listeners, closing, notify


@pytest.mark.parametrize(
    ("listeners", "count"),
    [(print, 1), ((print,), 1), ([print, len], 2), (iter([print]), 1), (None, 0)],
)
def test_one_listener_several_or_none_may_be_given(listeners, count):
    assert len(as_listeners(listeners)) == count


@pytest.mark.parametrize("listeners", [3, (print, 3)])
def test_listeners_that_cannot_be_called_are_refused(listeners):
    with pytest.raises(
        ValueError, match=r"listeners=.*3.* must be a callable, a tuple of several, or"
    ):
        as_listeners(listeners)


def test_listeners_are_closed_and_the_stage_ends_if_any_of_them_says_so():
    class Closing:
        closed = False

        def __call__(self, event):
            return False

        def close(self):
            self.closed = True

    first = Closing()
    heard = []
    assert not notify((first, heard.append), 1)
    assert notify((lambda _: True, heard.append), 2)
    assert heard == [1, 2]
    with contextlib.suppress(KeyError), closing((first, heard.append)):
        raise KeyError
    assert first.closed
