"""The memory that a model file may take.

A few bytes of a file can stand for many in memory. So memory is counted before it is
allocated.
"""

from __future__ import annotations

from sliceflow.wording import format_bytes

# Bytes that a model may take in memory, however small its file is. All machines have
# this much.
BASE_MEMORY = 320_000_000
# Bytes that a model and the drawing of one sample may take together, however small the
# file is. All machines have this much, too.
BASE_SAMPLE_MEMORY = 1 << 30
# Bytes allowed in addition for every byte of a file. Models of usual fits take 6 to 20,
# or more if columns or pictures hardly vary. A file made to exhaust memory can claim
# ten thousand and more.
MEMORY_PER_FILE_BYTE = 64


class MemoryBudget:
    """Counts the memory for the model of a file and for drawing one sample from it.

    Parameters
    ----------
    file_size : bytes of the file
    max_memory : bytes that are allowed; None derives the limit from `file_size`
    """

    def __init__(self, file_size: int, max_memory: int | None = None) -> None:
        self.file_size = file_size
        self.max_memory = max_memory
        self.taken = 0

    def take(self, n_bytes: int) -> None:
        """Count bytes about to be allocated; a ValueError if they are too many."""
        self.taken += n_bytes
        self._check(self.taken, BASE_MEMORY, "its parts take")

    def check_sample(self, n_bytes: int) -> None:
        """Raise a ValueError if the model and `n_bytes` for a sample take too much."""
        wanted = self.taken + n_bytes
        self._check(wanted, BASE_SAMPLE_MEMORY, "drawing a sample of it takes")

    def _check(self, n_bytes: int, base: int, what: str) -> None:
        if self.max_memory is None:
            limit = base + MEMORY_PER_FILE_BYTE * self.file_size
            size = format_bytes(self.file_size)
            rule = f"a file of {size} may take {format_bytes(limit)}"
        else:
            limit = self.max_memory
            rule = f"max_memory is {format_bytes(limit)}"
        if n_bytes > limit:
            hint = f"if you trust the file, load it with max_memory={n_bytes} or more"
            raise ValueError(
                f"{what} {format_bytes(n_bytes)} of memory, and {rule}; {hint}"
            )
