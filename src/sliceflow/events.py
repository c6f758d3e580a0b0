"""Events: how to watch and stop a running fit."""

from sliceflow.engine.events import (
    EventListener,
    FlowEvent,
    History,
    Listeners,
    Progress,
    ProgressEvent,
)

__all__ = [
    "EventListener",
    "FlowEvent",
    "History",
    "Listeners",
    "Progress",
    "ProgressEvent",
]
