"""Frames: the directions of a step, for the parameter `frame`."""

from sliceflow.engine.frames import (
    Axis,
    DenseFrame,
    Frame,
    FrameKind,
    MaxSliced,
    Orthogonal,
    Random,
)

__all__ = [
    "Axis",
    "DenseFrame",
    "Frame",
    "FrameKind",
    "MaxSliced",
    "Orthogonal",
    "Random",
]
