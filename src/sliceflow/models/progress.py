"""Progress of a fit in the log of Python's `logging`."""

from __future__ import annotations

import logging

from sliceflow.engine.events import Event

LOGGER = logging.getLogger("sliceflow")

_N_LINES = 10  # per fit: reading the distance waits for a GPU


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

    def __call__(self, event: Event) -> None:
        n_due = event.steps_done * _N_LINES // event.steps_total
        if n_due <= self._n_logged:
            return
        self._n_logged = n_due
        distance = f"{event.measure} {float(event.distance):.4g}"
        if event.moving is not None:
            distance += f", {float(event.moving):.0%} of the maps move"
        done = f"{event.steps_done}/{event.steps_total}"
        LOGGER.info("%s %s, %s", event.stage, done, distance)
