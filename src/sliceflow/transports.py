"""Transports: one-dimensional maps, for the parameter `transport`."""

from sliceflow.engine.maps import GridMaps, KnotMaps, TransportMaps
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
    "GridMaps",
    "Histogram",
    "Interpolated",
    "KnotMaps",
    "MapFit",
    "Sorted",
    "Transport",
    "TransportMaps",
]
