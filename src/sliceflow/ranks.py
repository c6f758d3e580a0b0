"""Ranks: one fit on many devices and machines."""

from sliceflow.models.ranks import (
    LostRankError,
    RankMismatchError,
    Ranks,
    joined,
    under_torchrun,
)

__all__ = [
    "LostRankError",
    "RankMismatchError",
    "Ranks",
    "joined",
    "under_torchrun",
]
