"""Events: how to watch and stop a running fit."""

from sliceflow.engine.events import (
    Event,
    History,
    Listener,
    Listeners,
    Progress,
    ProgressEvent,
)

__all__ = [
    "Event",
    "History",
    "Listener",
    "Listeners",
    "Progress",
    "ProgressEvent",
]
