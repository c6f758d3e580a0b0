"""One fit on many devices and machines, by `torch.distributed`.

Every rank holds its own particles and its own rows of the data, draws the same frames from the seed,
and moves its own particles. Only the maps need all ranks: their ranges and then their counts are summed
over all ranks (`SharedHistogram`), two messages per step. Every rank then composes the same table.

`torchrun` starts the ranks, `joined` connects them, and ``fit(…, ranks=ranks)`` does the rest.
"""

from sliceflow.models.ranks.group import Place, Ranks
from sliceflow.models.ranks.joining import joined, under_torchrun
from sliceflow.models.ranks.lost import LostRank
from sliceflow.models.ranks.transport import (
    SharedHistogram,
    across_ranks,
    target_across,
    weighted_batches,
)

__all__ = [
    "LostRank",
    "Place",
    "Ranks",
    "SharedHistogram",
    "across_ranks",
    "joined",
    "target_across",
    "under_torchrun",
    "weighted_batches",
]
