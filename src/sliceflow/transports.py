"""Transports: one-dimensional maps, for the parameter `transport`."""

from sliceflow.engine.transports import (
    Auto,
    GridMap,
    Histogram,
    Interpolated,
    KnotMap,
    MapFit,
    Sorted,
    Transport,
    TransportMap,
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
