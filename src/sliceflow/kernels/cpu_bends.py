"""Where maps bend: few knots for many values, in numba, as `sliceflow.engine.compact` needs them."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from sliceflow.kernels.cpu import over_rows

__all__ = ["bends"]

_jit: Any = numba.njit(cache=True, error_model="numpy", nogil=True)


def bends(
    shift: np.ndarray, weights: np.ndarray, error: float, step: float, most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Piecewise linear curves near the rows of `shift` (h, B + 1), with few knots.

    Parameters
    ----------
    shift, weights : the curves on the edges of B bins, and how much every edge matters
    error : weighted root mean square of what may be lost; the rounding comes on top
    step : what the knots' values are multiples of
    most : knots of a curve

    Returns
    -------
    sizes (h,), how many knots each curve has; then, all curves one after the other, the knots' edges
    and their values in steps
    """
    h = len(shift)
    sizes, at = np.zeros(h, np.int16), np.zeros((h, most), np.int32)
    levels = np.zeros((h, most), np.int16)
    over_rows(_bends, [shift, weights, sizes, at, levels], error, step)
    kept = np.arange(most) < sizes[:, None]
    return sizes, at[kept], levels[kept]


@_jit
def _chord(d, w, i, j):
    """Squared error of the chord from edge i to edge j, and the edge that is farthest from it."""
    total, most, at = 0.0, 0.0, -1
    slope = (d[j] - d[i]) / (j - i)
    for b in range(i + 1, j):
        if w[b] > 0:
            r = abs(d[b] - (d[i] + slope * (b - i)))
            total += w[b] * r * r
            if r > most:
                most, at = r, b
    return total, at


@_jit
def _bends(shift, weights, sizes, at, levels, error, step):
    """Knots of every map: split the worst chord where it is farthest off, until the error is small.

    Then the displacements at the knots by least squares, which leaves no mean error: one by one from
    the right, each rounded before the next is found, so that the next makes up for its rounding.
    """
    most = at.shape[1]
    last = shift.shape[1] - 1
    right, split = np.zeros(most, np.int64), np.zeros(most, np.int64)
    worst = np.zeros(most)
    diagonal, beside, b = np.zeros(most), np.zeros(most), np.zeros(most)
    for row in range(len(shift)):
        d, w, knots = shift[row], weights[row], at[row]
        mass = w.sum()
        knots[0], right[0], m = 0, last, 1
        worst[0], split[0] = _chord(d, w, 0, last)
        total = worst[0]
        while m < most - 1 and total > error * error * mass:
            c = np.argmax(worst[:m])
            if split[c] < 0:
                break
            knots[m], right[m] = split[c], right[c]
            right[c] = split[c]
            total -= worst[c]
            worst[c], split[c] = _chord(d, w, knots[c], right[c])
            worst[m], split[m] = _chord(d, w, knots[m], right[m])
            total += worst[c] + worst[m]
            m += 1
        knots[m] = last
        m += 1
        knots[:m].sort()
        sizes[row] = m

        # Normal equations of a linear spline: tridiagonal. The curve's own values, very lightly
        # weighted, decide where no particles were.
        light = 1e-6 * mass / m + 1e-300
        for k in range(m):
            diagonal[k], beside[k], b[k] = light, 0.0, light * d[knots[k]]
        for k in range(m - 1):
            i, j = knots[k], knots[k + 1]
            for e in range(i, j + 1 if k == m - 2 else j):
                t = (e - i) / (j - i)
                diagonal[k] += w[e] * (1 - t) * (1 - t)
                beside[k] += w[e] * t * (1 - t)
                diagonal[k + 1] += w[e] * t * t
                b[k] += w[e] * (1 - t) * d[e]
                b[k + 1] += w[e] * t * d[e]
        for k in range(1, m):
            f = beside[k - 1] / diagonal[k - 1]
            diagonal[k] -= f * beside[k - 1]
            b[k] -= f * b[k - 1]
        after = 0.0
        for k in range(m - 1, -1, -1):
            level = np.round((b[k] - beside[k] * after) / diagonal[k] / step)
            level = min(max(level, -32767.0), 32767.0)
            levels[row, k] = np.int16(level)
            after = level * step
