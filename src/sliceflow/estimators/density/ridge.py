"""Ridge regression with a penalty for each group, which maximizes the evidence.

The update of the penalties is MacKay's (1992), which is that of Fellner and Schall for
smoothing (Wood and Fasiolo 2017): λ_g = γ_g / |β_g|², where γ_g = p_g − λ_g·tr V_gg is
how many of the p_g coefficients of a group the data determine. A group that explains
nothing gets a penalty without end, and so no weight. (Other ridge regressions of the
package have one penalty, which cross-validation chooses, or which is fixed.)
"""

from __future__ import annotations

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri

from sliceflow.arrays import Floats, Ints

__all__ = ["evidence_ridge"]

# Updates of the penalties in one call. They start where the last call ended, so few
# suffice.
MAX_UPDATES = 5
# Penalties stay between these. Beyond them, a group is as good as free, or absent.
MIN_PENALTY = 1e-4
MAX_PENALTY = 1e9
# The penalty of coefficients that should have none, so that the equations are not
# singular.
TINY_PENALTY = 1e-9
# Updates end when no penalty changes by more than this factor, as a logarithm.
PENALTY_TOL = 0.05
# The least γ_g: with 0, a penalty would become 0 where it should grow without end.
MIN_DETERMINED = 1e-3


def evidence_ridge(
    gram: Floats, products: Floats, groups: Ints, penalties: Floats
) -> tuple[Floats, Floats]:
    """Fit coefficients (p,) and penalties (g,) of a regression, by unit noise.

    Parameters
    ----------
    gram, products : XᵀX (p, p) and Xᵀt (p,), of features X (n, p) and the target t (n,)
    groups : of every coefficient (p,), from 0 to g − 1; −1 has no penalty
    penalties : to start from (g,)
    """
    is_penalized = groups >= 0
    membership = groups[:, None] == np.arange(len(penalties))
    sizes = membership.sum(axis=0)
    coefficients = np.zeros(len(groups))
    for _ in range(MAX_UPDATES):
        ridge = np.full(len(groups), TINY_PENALTY)
        ridge[is_penalized] = penalties[groups[is_penalized]]
        inverse = _inverse(gram + np.diag(ridge))
        coefficients = inverse @ products
        determined = sizes - penalties * (np.diag(inverse) @ membership)
        squares = coefficients**2 @ membership
        updated = np.maximum(determined, MIN_DETERMINED) / (squares + 1 / MAX_PENALTY)
        updated = np.clip(updated, MIN_PENALTY, MAX_PENALTY)
        change = np.abs(np.log(updated / penalties)).max(initial=0)
        penalties = updated
        if change < PENALTY_TOL:
            break
    return coefficients, penalties


def _inverse(matrix: Floats) -> Floats:
    """The inverse of a positive definite matrix (p, p), by LAPACK's Cholesky factors.

    The matrix is scaled to a diagonal of ones first. If it is singular up to rounding,
    this is its pseudoinverse.
    """
    scale = 1 / np.sqrt(np.diag(matrix))
    factor, failed = dpotrf(matrix * np.outer(scale, scale), lower=1)
    if failed:
        return np.asarray(np.linalg.pinv(matrix, hermitian=True))
    lower, _ = dpotri(factor, lower=1)
    full = np.tril(lower) + np.tril(lower, -1).T
    return np.asarray(full * np.outer(scale, scale))
