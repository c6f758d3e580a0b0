"""Smoothing of vectors: a flow fits draws along the rows, not the rows themselves.

`sliceflow.neighbors.smoothing` makes the draws and chooses how far they spread. This
module decides what the axis steps see of the draws. `plan.resolve_smoothing` says
whether rows are smoothed at all, and `PlannedVectorFit.tune` chooses how far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.neighbors.smoothing import ClassNeighbors

# √n times the largest difference of two distribution functions that is exceeded by
# chance once in twenty: Kolmogorov's test.
_KOLMOGOROV_5_PERCENT = 1.36

# A value is an atom if enough rows have it: this share of all rows, and at least 5.
_MIN_ATOM_SHARE = 0.02
_MIN_ATOM_ROWS = 5


@dataclass(frozen=True, eq=False)
class Smoother:
    """Draws new rows along the rows' neighbors."""

    bandwidth: float  # how far rows are spread
    rows: Tensor  # (n, d), the rows of all ranks, in the flow's units
    groups: Sequence[ClassNeighbors]  # the rows of each class with their neighbors

    def draw_for_flow(self, draws_per_row: int, seed: Seed) -> Tensor:
        """Draws of each row, in the order of the rows: (n·draws_per_row, d)."""
        n, d = self.rows.shape
        draws_of_all = self.rows.new_empty(n, draws_per_row, d)
        for i, group in enumerate(self.groups):
            draws = group.draw(self.bandwidth, draws_per_row, seed.child(i))
            draws_of_all[group.indices] = draws.to(draws_of_all.dtype)
        return draws_of_all.flatten(0, 1)

    def draw_for_axes(
        self, draws_per_row: int, seed: Seed, is_heavy_tailed: Tensor
    ) -> Tensor:
        """Draws for the axis steps: (n·draws_per_row, d), in the order of the rows.

        Axis steps copy the distribution of every column. So these are the draws for the
        flow, in which values are replaced where they would change a column: see
        `correct_columns`. `is_heavy_tailed` (d,) says which columns have heavy tails.
        """
        n, d = self.rows.shape
        draws_of_all = self.rows.new_empty(n, draws_per_row, d)
        is_atom = are_atoms(self.rows)
        for i, group in enumerate(self.groups):
            draws = group.draw(self.bandwidth, draws_per_row, seed.child(i))
            draws = correct_columns(
                draws, group.x, is_atom[group.indices], is_heavy_tailed
            )
            draws_of_all[group.indices] = draws.to(draws_of_all.dtype)
        return draws_of_all.flatten(0, 1)


def correct_columns(
    draws: Tensor, x: Tensor, is_atom: Tensor, is_heavy_tailed: Tensor
) -> Tensor:
    """Draws (n, t, d) of rows x (n, d), whose columns are distributed like the rows'.

    Atoms stay exact, and no draw leaves the range of its column. Noise along neighbors
    may still blur a column, above all if there are many columns, or stretch a heavy
    tail. The values of such a column do not come from the draws, but are the values of
    the rows, spread evenly.

    Parameters
    ----------
    draws : t draws of each row
    x : the rows
    is_atom : which values (n, d) of the rows are atoms
    is_heavy_tailed : which columns (d,) have heavy tails
    """
    draws = keep_atoms(draws, x, is_atom)
    draws = keep_in_range(draws, x)
    is_replaced = is_heavy_tailed | rejected_by_ks_test(draws, x)
    even_values = spread_evenly(x, is_atom, draws_per_row=draws.shape[1])
    return torch.where(is_replaced, even_values, draws)


def keep_atoms(draws: Tensor, x: Tensor, is_atom: Tensor) -> Tensor:
    """Draws (n, t, d) in which the atoms of rows x (n, d) stay as they are.

    Examples
    --------
    The first of two rows has the atom 0, with three draws of each:

    >>> x = torch.tensor([[0.0], [5.0]])
    >>> draws = torch.tensor([[[-0.1], [0.0], [0.2]], [[4.9], [5.0], [5.3]]])
    >>> keep_atoms(draws, x, is_atom=x == 0)[:, :, 0]
    tensor([[0.0000, 0.0000, 0.0000],
            [4.9000, 5.0000, 5.3000]])
    """
    return torch.where(is_atom[:, None], x[:, None], draws)


def keep_in_range(draws: Tensor, x: Tensor) -> Tensor:
    """Draws (n, t, d) within the range of each column of rows x (n, d).

    The lowest and the highest value stay as they are, so that draws have the same
    range. A draw outside gives way to the value of its row.

    Examples
    --------
    Three rows, with two draws of each:

    >>> x = torch.tensor([[1.0], [4.0], [5.0]])
    >>> draws = torch.tensor([[[1.2], [0.8]], [[3.5], [5.5]], [[4.9], [5.1]]])
    >>> keep_in_range(draws, x)[:, :, 0]
    tensor([[1.0000, 1.0000],
            [3.5000, 4.0000],
            [5.0000, 5.0000]])
    """
    rows = x[:, None]
    low = rows.amin(0)
    high = rows.amax(0)
    is_end = (rows == low) | (rows == high)
    is_outside = (draws < low) | (draws > high)
    return torch.where(is_end | is_outside, rows, draws)


def rejected_by_ks_test(draws: Tensor, x: Tensor) -> Tensor:
    """Which columns (d,) of rows x (n, d) are distributed unlike the draws.

    Kolmogorov's test rejects them at 5 %, with the draws (n, t, d) as the distribution.

    Examples
    --------
    The draws of the second column are too wide:

    >>> x = torch.linspace(-1, 1, 100)[:, None].expand(-1, 2)
    >>> draws = x[:, None] * torch.tensor([1.0, 3.0])
    >>> rejected_by_ks_test(draws, x)
    tensor([False,  True])
    """
    values = x.T.contiguous().sort(1).values
    drawn = draws.flatten(0, 1).T.contiguous().sort(1).values
    share_of_rows = torch.searchsorted(values, values, right=True) / values.shape[1]
    share_of_draws = torch.searchsorted(drawn, values, right=True) / drawn.shape[1]
    distance = (share_of_rows - share_of_draws).abs().amax(1)
    return distance > _KOLMOGOROV_5_PERCENT / math.sqrt(len(x))


def spread_evenly(x: Tensor, is_kept: Tensor, draws_per_row: int) -> Tensor:
    """The values of each column of x (n, d), spread halfway to the next values.

    Returns (n, draws_per_row, d). Values stay where `is_kept` (n, d) is True.

    Examples
    --------
    Three rows, of which the last stays, and four values of each:

    >>> x = torch.tensor([[0.0], [8.0], [9.0]])
    >>> spread_evenly(x, is_kept=x == 9, draws_per_row=4)[:, :, 0]
    tensor([[0.0000, 0.0000, 1.0000, 3.0000],
            [5.0000, 7.0000, 8.1250, 8.3750],
            [9.0000, 9.0000, 9.0000, 9.0000]])
    """
    values, order = x.sort(0)
    gap = values.diff(dim=0)
    no_gap = gap.new_zeros(1, x.shape[1])
    # In the order of the rows: the gaps to the next lower and to the next higher value.
    gap_below = torch.empty_like(x).scatter_(0, order, torch.cat((no_gap, gap)))
    gap_above = torch.empty_like(x).scatter_(0, order, torch.cat((gap, no_gap)))
    # From −½ to ½, in the middle of equal intervals, one for each draw.
    middles = torch.arange(draws_per_row, dtype=x.dtype) + 0.5
    share_of_gap = (middles / draws_per_row - 0.5)[:, None]
    gap_on_side = torch.where(share_of_gap < 0, gap_below[:, None], gap_above[:, None])
    moved = x[:, None] + share_of_gap * gap_on_side
    return torch.where(is_kept[:, None], x[:, None], moved)


def are_atoms(x: Tensor) -> Tensor:
    """Which values of x (n, d) are atoms: values that many rows share.

    If more than half of a column's values occur in several rows, all its values count
    as atoms.

    Examples
    --------
    Five rows share the 0, and six have a value of their own:

    >>> x = torch.tensor([0.0] * 5 + [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    >>> are_atoms(x[:, None])[:, 0].nonzero()[:, 0]
    tensor([0, 1, 2, 3, 4])
    """
    is_atom = torch.empty(x.shape, dtype=torch.bool)
    min_rows = max(_MIN_ATOM_ROWS, _MIN_ATOM_SHARE * len(x))
    for j, column in enumerate(x.T):
        _, value_indices, counts = torch.unique(
            column, return_inverse=True, return_counts=True
        )
        n_sharing = counts[value_indices]  # how many rows have the value of each row
        is_mostly_shared = (n_sharing > 1).double().mean() > 0.5
        is_atom[:, j] = is_mostly_shared | (n_sharing >= min_rows)
    return is_atom
