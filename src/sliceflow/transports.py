"""Transports: one-dimensional maps, for the parameter `transport`."""

from sliceflow.engine.maps import GridMaps, KnotMaps, TransportMaps
from sliceflow.engine.transports import (
    AutoTransport,
    HistogramTransport,
    PaperTransport,
    SortedTransport,
    Transport,
    TransportSolution,
)

__all__ = [
    "AutoTransport",
    "GridMaps",
    "HistogramTransport",
    "KnotMaps",
    "PaperTransport",
    "SortedTransport",
    "Transport",
    "TransportMaps",
    "TransportSolution",
]
