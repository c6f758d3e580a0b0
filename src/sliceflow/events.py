"""Events: how to watch and stop a running fit."""

from sliceflow.engine.events import (
    Event,
    EventListener,
    History,
    Listeners,
    Progress,
    ProgressEvent,
)

__all__ = [
    "Event",
    "EventListener",
    "History",
    "Listeners",
    "Progress",
    "ProgressEvent",
]
