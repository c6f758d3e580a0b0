"""Ranks: one fit on many devices and machines."""

from sliceflow.base.ranks import (
    Communicator,
    LostRankError,
    RankMismatchError,
    joined,
    under_torchrun,
)

__all__ = [
    "Communicator",
    "LostRankError",
    "RankMismatchError",
    "joined",
    "under_torchrun",
]
