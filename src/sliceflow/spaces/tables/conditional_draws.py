"""How rows that have a condition are drawn: plain draws that have it, or a chain anew.

Plain draws that have it know what all rows tell; a chain that is fitted again to the
rows that have it is closer to these. A detector on halves of the rows chooses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sliceflow.arrays import Mask
from sliceflow.spaces.tables.coords import Coords
from sliceflow.spaces.tables.strategies import Strategy
from sliceflow.spaces.tables.table import Table
from sliceflow.spaces.tables.trees import TreeSettings
from sliceflow.spaces.tables.trial_draws import (
    CHOICE_SEED,
    detector_auc,
    iter_halves,
    trial_draws,
)

# Two ways to draw rows that have a condition are compared if so many have it. With
# fewer, the other half would have too few for a detector of three folds.
MIN_ROWS_TO_COMPARE = 60

# By so much the detector's AUC must be lower for a chain that is fitted again. This is
# about the standard error of the mean difference of AUCs. Without it, the choice was
# luck for a level that says nothing about a curve: with two of four seeds, the chain of
# the few rows that have it was taken, whose errors are two to three times as large.
MIN_GAIN_OF_REFIT = 0.03


def plain_draws_are_better(
    table: Table,
    holds: Callable[[Coords], Mask],
    fixed_coords: Mapping[int, float],
    settings: TreeSettings,
    strategies: Sequence[Strategy],
) -> bool:
    """Whether a detector finds plain draws that have a condition hard to tell.

    They are better unless the other draws are clearly harder to tell: those of a chain
    that is fitted to the rows that have the condition. Chains are fitted to one half of
    the rows, and the detector compares their draws with rows of the other half that
    have the condition. If few have it, nothing is compared, and plain draws are better:
    they are not close to these few rows.

    Parameters
    ----------
    table, settings, strategies : of all rows
    holds : which rows (m,) of coordinates (m, d) have the condition
    fixed_coords : coordinates that the condition fixes, by the indices of their columns
    """
    n_matches = int(holds(table.cell_coords).sum())
    if n_matches < MIN_ROWS_TO_COMPARE:
        return True
    settings = settings._replace(n_neighbors=settings.n_neighbors // 2)
    share = n_matches / len(table.cell_coords)
    compared = [c for c in table.drawing_order if c not in fixed_coords]
    gains = []
    seed = CHOICE_SEED.child("given")
    for fitted, held_out in iter_halves(table.cell_coords, seed, n_matches):
        rows = held_out[holds(held_out)][:, compared]
        n_draws = math.ceil(len(rows) / share)
        plain = trial_draws(table, fitted, n_draws, settings, strategies)
        refitted = trial_draws(
            table,
            fitted[holds(fitted)],
            len(rows),
            settings,
            strategies,
            fixed_coords,
        )
        auc_of_plain = detector_auc(rows, plain[holds(plain)][:, compared])
        auc_of_refitted = detector_auc(rows, refitted[holds(refitted)][:, compared])
        gains.append(auc_of_plain - auc_of_refitted)
    return float(np.mean(gains)) < MIN_GAIN_OF_REFIT
