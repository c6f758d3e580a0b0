"""Progress of a fit in the log of Python's `logging`."""

from __future__ import annotations

import logging

from sliceflow.engine.events import ProgressEvent

LOGGER = logging.getLogger("sliceflow")

_N_LINES = 10  # per fit: a description of an event waits for a GPU


class LoggedProgress:
    """Logs a line after each tenth of the steps, at the level INFO of "sliceflow".

    If no handler would show the lines, they are printed to stderr.
    """

    def __init__(self) -> None:
        self._n_logged = 0
        if not LOGGER.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
            LOGGER.addHandler(handler)
        if not LOGGER.isEnabledFor(logging.INFO):
            LOGGER.setLevel(logging.INFO)

    def __call__(self, event: ProgressEvent) -> None:
        n_due = event.steps_done * _N_LINES // event.steps_total
        if n_due <= self._n_logged:
            return
        self._n_logged = n_due
        done = f"{event.steps_done}/{event.steps_total}"
        LOGGER.info("step %s, %s", done, event.describe())
