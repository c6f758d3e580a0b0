"""Frames: the directions of a step, for the parameter `frame`."""

from sliceflow.engine.frames import (
    AnyFrame,
    Axis,
    Frame,
    FrameKind,
    MaxSliced,
    Orthogonal,
    Random,
)

__all__ = [
    "AnyFrame",
    "Axis",
    "Frame",
    "FrameKind",
    "MaxSliced",
    "Orthogonal",
    "Random",
]
