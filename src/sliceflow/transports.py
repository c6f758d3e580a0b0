"""Transports: one-dimensional maps, for the parameter `transport`."""

from sliceflow.engine.maps import GridMaps, KnotMaps, TransportMaps
from sliceflow.engine.transports import (
    AutoTransport,
    HistogramTransport,
    InterpolatedTransport,
    MapFit,
    SortedTransport,
    Transport,
)

__all__ = [
    "AutoTransport",
    "GridMaps",
    "HistogramTransport",
    "InterpolatedTransport",
    "KnotMaps",
    "MapFit",
    "SortedTransport",
    "Transport",
    "TransportMaps",
]
