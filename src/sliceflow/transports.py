"""Transports: one-dimensional maps, for the parameter `transport`."""

from sliceflow.engine.transports import (
    Auto,
    FittedMap,
    GridMap,
    Histogram,
    Interpolated,
    KnotMap,
    Sorted,
    Transport,
    TransportMap,
)

__all__ = [
    "Auto",
    "FittedMap",
    "GridMap",
    "Histogram",
    "Interpolated",
    "KnotMap",
    "Sorted",
    "Transport",
    "TransportMap",
]
