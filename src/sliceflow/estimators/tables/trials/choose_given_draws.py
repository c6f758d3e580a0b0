"""The choice between two ways to draw rows that have what is given.

*Plain draws* come from the chain of all rows, and only draws that have what is given
are kept. *Refitted draws* come from another chain, which is fitted to the rows that
have what is given, and is closer to these few rows. A detector on halves of the rows
chooses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

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
    Split,
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


DrawKind = Literal["plain", "refitted"]


@dataclass(frozen=True, eq=False)
class _Trial:
    """What all trials of both kinds of draws share."""

    table: Table
    given_rows: GivenRows
    settings: TreeSettings  # of the chains of half of the rows
    strategies: Sequence[Strategy]
    drawn_indices: Sequence[int]  # the columns that trial chains draw
    compared_indices: Sequence[int]  # the columns that the detector sees


def choose_draws_by_trial(
    table: Table,
    given_rows: GivenRows,
    settings: TreeSettings,
    strategies: Sequence[Strategy],
) -> DrawKind:
    """Choose how samples are drawn that have what is given.

    They are plain draws, unless refitted draws are clearly closer to the rows that have
    what is given. Chains of both kinds are fitted to one half of the rows. A detector
    compares their draws with the rows of the other half that have what is given. If few
    rows have it, nothing is compared: plain draws are better, because refitted draws
    would be close to these few rows.

    Of a wide table, only the first columns and the given ones are drawn and compared.

    Parameters
    ----------
    table, settings, strategies : of all rows
    given_rows : what is given
    """
    n_matches = int(given_rows.has_given(table.level_positions).sum())
    if n_matches < MIN_ROWS_TO_COMPARE:
        return "plain"
    needed_indices = {*compared_columns(table), *given_rows.column_indices}
    drawn_indices = [c for c in table.drawing_order if c in needed_indices]
    compared_indices = [c for c in drawn_indices if c not in given_rows.fixed_positions]
    if not compared_indices:
        return "refitted"  # all columns are given, and no chain draws anything
    trial = _Trial(
        table,
        given_rows,
        # The chains of half of the rows have half as many neighbors.
        settings._replace(n_neighbors=settings.n_neighbors // 2),
        strategies,
        drawn_indices,
        compared_indices,
    )
    seed = CHOICE_SEED.child("given")
    gains = []
    for split in iter_splits(table.level_positions, seed, n_matches):
        gain = _gain_of_refit(trial, split, n_matches / len(table.level_positions))
        if gain is not None:
            gains.append(gain)
    if gains and float(np.mean(gains)) >= MIN_GAIN_OF_REFIT:
        return "refitted"
    return "plain"


def _gain_of_refit(trial: _Trial, split: Split, share: float) -> float | None:
    """By how much the AUC of refitted draws is lower than the AUC of plain draws.

    Chains of both kinds are fitted to the training rows of a split. The held-out rows
    that have what is given are compared with the draws that have it. None if rows or
    draws are too few to be split into the folds of a detector.

    `share` is the share of all rows that have what is given.
    """
    given_rows = trial.given_rows
    rows = split.held_out[given_rows.has_given(split.held_out)]
    matching_train = split.train[given_rows.has_given(split.train)]
    n_plain = math.ceil(len(rows) / share)  # about as many have what is given
    plain = _draw_matching(trial, split.train, n_plain, fixed_positions={})
    refitted = _draw_matching(
        trial, matching_train, len(rows), fixed_positions=given_rows.fixed_positions
    )
    if min(len(rows), len(plain), len(refitted)) < N_FOLDS:
        return None
    compared_rows = rows[:, trial.compared_indices]
    auc_of_plain = detector_auc(compared_rows, plain[:, trial.compared_indices])
    auc_of_refitted = detector_auc(compared_rows, refitted[:, trial.compared_indices])
    return auc_of_plain - auc_of_refitted


def _draw_matching(
    trial: _Trial,
    train: LevelPositions,
    n: int,
    fixed_positions: Mapping[int, float],
) -> LevelPositions:
    """Draw n rows by a chain of training rows; keep draws that have what is given."""
    draws = trial_draws(
        trial.table,
        train,
        n,
        trial.settings,
        trial.strategies,
        drawn_indices=trial.drawn_indices,
        fixed_positions=fixed_positions,
    )
    return draws[trial.given_rows.has_given(draws)]
