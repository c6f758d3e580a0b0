"""Types of numpy arrays. Shapes are in docstrings, because types cannot say them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
# Counts, codes, and indices of rows or columns.
Ints: TypeAlias = NDArray[np.int64]
# Which rows, columns or cells have a property.
Mask: TypeAlias = NDArray[np.bool_]
