"""The choice between two ways to draw rows that have what is given.

*Plain draws* come from the chain of all rows, and those are kept that have what is
given. *Refitted draws* come from another chain, which is fitted to the rows that have
it, and is closer to these few rows. A detector on halves of the rows chooses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from sliceflow.estimators.tables.columns.level_positions import LevelPositions
from sliceflow.estimators.tables.draws.row_distances import compared_columns
from sliceflow.estimators.tables.draws.strategies import Strategy
from sliceflow.estimators.tables.draws.trees import TreeSettings
from sliceflow.estimators.tables.given.given_rows import GivenRows
from sliceflow.estimators.tables.table import Table
from sliceflow.estimators.tables.trials.trial_draws import (
    CHOICE_SEED,
    N_FOLDS,
    detector_auc,
    iter_splits,
    trial_draws,
)

# Two ways to draw rows that have what is given are compared if this many have it. With
# fewer, the other half would have too few for a detector of three folds.
MIN_ROWS_TO_COMPARE = 60

# Refitted draws are chosen if their AUC is lower by this on average, which is about the
# standard error of the mean difference of AUCs. Without it, the choice was luck where
# the given level says nothing about the other columns: refitted draws were chosen with
# two of four seeds, and their errors are two to three times as large.
MIN_GAIN_OF_REFIT = 0.03


def plain_draws_are_better(
    table: Table,
    given_rows: GivenRows,
    settings: TreeSettings,
    strategies: Sequence[Strategy],
) -> bool:
    """Whether samples with what is given should be plain draws that have it.

    They should, unless refitted draws are clearly closer to the rows that have it. Both
    chains are fitted to one half of the rows. A detector compares their draws with the
    rows of the other half that have what is given. If few rows have it, nothing is
    compared: plain draws are better, because they are not close to these few rows.

    Of a wide table, only the first columns and the given ones are drawn and compared.

    Parameters
    ----------
    table, settings, strategies : of all rows
    given_rows : what is given
    """
    n_matches = int(given_rows.has_given(table.level_positions).sum())
    if n_matches < MIN_ROWS_TO_COMPARE:
        return True
    # The chains of half of the rows have half as many near ones.
    trial_settings = settings._replace(n_neighbors=settings.n_neighbors // 2)
    needed_indices = {*compared_columns(table), *given_rows.column_indices}
    drawn_indices = [c for c in table.drawing_order if c in needed_indices]
    compared_indices = [c for c in drawn_indices if c not in given_rows.fixed_positions]
    if not compared_indices:
        return False  # all columns are given, and no chain draws anything

    def draw_matching(
        train: LevelPositions, n: int, fixed_positions: Mapping[int, float]
    ) -> LevelPositions:
        """Draw n rows by a chain of train rows; keep those with what is given."""
        draws = trial_draws(
            table,
            train,
            n,
            trial_settings,
            strategies,
            drawn_indices=drawn_indices,
            fixed_positions=fixed_positions,
        )
        return draws[given_rows.has_given(draws)]

    share = n_matches / len(table.level_positions)
    seed = CHOICE_SEED.child("given")
    gains = []
    for train, held_out in iter_splits(table.level_positions, seed, n_matches):
        rows = held_out[given_rows.has_given(held_out)]
        n_plain = math.ceil(len(rows) / share)  # about as many have what is given
        plain = draw_matching(train, n_plain, {})
        matching_train = train[given_rows.has_given(train)]
        refitted = draw_matching(matching_train, len(rows), given_rows.fixed_positions)
        # Fewer could not be split into the folds of a detector.
        if min(len(rows), len(plain), len(refitted)) >= N_FOLDS:
            gains.append(_gain_of_refit(rows, plain, refitted, compared_indices))
    if not gains:
        return True
    return float(np.mean(gains)) < MIN_GAIN_OF_REFIT


def _gain_of_refit(
    rows: LevelPositions,
    plain: LevelPositions,
    refitted: LevelPositions,
    column_indices: Sequence[int],
) -> float:
    """By how much the AUC of refitted draws is lower than the AUC of plain ones.

    Both are compared with the same held-out rows (m, d), by some of the columns.
    """
    compared_rows = rows[:, column_indices]
    auc_of_plain = detector_auc(compared_rows, plain[:, column_indices])
    auc_of_refitted = detector_auc(compared_rows, refitted[:, column_indices])
    return auc_of_plain - auc_of_refitted
