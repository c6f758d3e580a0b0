"""Transports: one-dimensional maps, for the parameter `transport`."""

from sliceflow.engine.maps import GridMap, KnotMap, TransportMap
from sliceflow.engine.transports import (
    Auto,
    Histogram,
    Interpolated,
    MapFit,
    Sorted,
    Transport,
)

__all__ = [
    "Auto",
    "GridMap",
    "Histogram",
    "Interpolated",
    "KnotMap",
    "MapFit",
    "Sorted",
    "Transport",
    "TransportMap",
]
