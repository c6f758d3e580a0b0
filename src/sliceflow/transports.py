"""Transports: one-dimensional maps, for the parameter `transport`."""

from sliceflow.engine.maps import GridMaps, KnotMaps, TransportMaps
from sliceflow.engine.transports import (
    AutoTransport,
    HistogramTransport,
    InterpolatedTransport,
    SortedTransport,
    Transport,
    TransportSolution,
)

__all__ = [
    "AutoTransport",
    "GridMaps",
    "HistogramTransport",
    "InterpolatedTransport",
    "KnotMaps",
    "SortedTransport",
    "Transport",
    "TransportMaps",
    "TransportSolution",
]
