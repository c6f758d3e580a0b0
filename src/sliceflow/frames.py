"""Frames: the directions of a step, for the parameter `frame`."""

from sliceflow.engine.frames import (
    Axis,
    Frame,
    FrameKind,
    FrameLike,
    MaxSliced,
    Orthogonal,
    Random,
)

__all__ = [
    "Axis",
    "Frame",
    "FrameKind",
    "FrameLike",
    "MaxSliced",
    "Orthogonal",
    "Random",
]
