"""Ranks: one fit on many devices and machines."""

from sliceflow.models.ranks import (
    LostRankError,
    Ranks,
    joined,
    under_torchrun,
)

__all__ = [
    "LostRankError",
    "Ranks",
    "joined",
    "under_torchrun",
]
