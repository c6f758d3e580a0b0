"""Transports: one-dimensional maps, for the parameter `transport`."""

from sliceflow.engine.transports import (
    AlignedHistogram,
    Auto,
    Counts,
    FittedMap,
    GridMap,
    Histogram,
    Interpolated,
    KnotMap,
    SavedTransport,
    Sorted,
    Transport,
    TransportMap,
)

__all__ = [
    "AlignedHistogram",
    "Auto",
    "Counts",
    "FittedMap",
    "GridMap",
    "Histogram",
    "Interpolated",
    "KnotMap",
    "SavedTransport",
    "Sorted",
    "Transport",
    "TransportMap",
]
