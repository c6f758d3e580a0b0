"""Types of numpy arrays, chunks of long ones, and limits of numbers.

Shapes are in docstrings, because types cannot say them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
# Counts, codes, and indices of rows or columns.
Ints: TypeAlias = NDArray[np.int64]
# Booleans: which rows, columns or cells have a property.
Mask: TypeAlias = NDArray[np.bool_]

# A divisor, or the argument of a logarithm, may be 0: a variance or a sum of weights,
# for example. Such a float64 is raised to at least this number, or this number is added
# to it. Then 0/0 becomes 0, logarithms stay finite, and no other result changes.
SMALLEST_POSITIVE = 1e-300
# exp and sinh of more than about 710 overflow float64.
MAX_EXPONENT = 700.0
# Where the mean log-density of held-out rows decides, the log-density of a row counts
# as no less than the median of all rows minus this number. Otherwise a single row that
# no model foresees would decide. Chosen by hand: e⁻²⁰ is as good as never.
MAX_LOG_DENSITY_DROP = 20.0


def chunks(n: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` items that cover ``range(n)``, in order.

    Examples
    --------
    >>> list(chunks(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))
