"""Missing cells filled by `TableFlow`, beside means, nearest rows and forests.

    OMP_NUM_THREADS=1 python benchmarks/imputing.py

A fifth of the cells of one half of a table is hidden, of 2,000 rows at most. *Others*:
the model is fitted to the other half. *Own*: it is fitted to the incomplete rows.
Means over seeds. TableFlow's guess is the median, or the most frequent, of 19 draws.

error     mean |guess − truth| of numbers in standard deviations, mean over columns: 0
          is ideal
accuracy  share of categories that are guessed, mean over columns
covered   share of numbers between the lowest and the highest of 19 draws; those that
          are equal up to rounding by chance. .90 is ideal
CPU s     seconds of the fit and the filling
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
from report import Row, markdown_table, script_parser
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor
from sklearn.impute import KNNImputer
from table_sets import SETS, halves, load_table

from sliceflow import TableFlow

HEADER = ("set", "fitted to", "method", "error", "accuracy", "covered", "CPU s")
# With 19 draws, a number lies between the lowest and the highest with a probability of
# 18/20 = .90.
N_DRAWS = 19
MAX_ROWS = 2_000  # incomplete ones, as forests take long
HIDDEN_SHARE = 0.2
N_NEIGHBORS = 10
N_TREES = 50  # of a forest
# Numbers, in standard deviations, that differ by less than this are equal. Some columns
# of caschool have the seven digits of float32, and what is computed from others has
# their rounding errors.
ROUNDING = 1e-6
N_SWEEPS = 4  # of forests over all columns


# --- codes ----------------------------------------------------------------------------


def is_number(column: pd.Series) -> bool:
    """Whether a column has numbers, or times, which count as numbers."""
    return column.dtype.kind in "iufM"


def encode(frame: pd.DataFrame, whole: pd.DataFrame) -> np.ndarray:
    """(n, d): numbers in standard deviations, categories as 0, 1, …; NaN is missing.

    Means, standard deviations and categories are those of the `whole` table.
    """
    columns = []
    for name in whole:
        if is_number(whole[name]):
            columns.append(encode_numbers(frame[name], whole[name]))
        else:
            columns.append(encode_categories(frame[name], whole[name]))
    return np.column_stack(columns)


def encode_numbers(column: pd.Series, whole: pd.Series) -> pd.Series:
    """Numbers or times in standard deviations of the whole column."""
    values = pd.to_numeric(column).astype(float).where(column.notna())
    whole_values = pd.to_numeric(whole).astype(float)
    return (values - whole_values.mean()) / whole_values.std()


def encode_categories(column: pd.Series, whole: pd.Series) -> np.ndarray:
    """Places in the sorted list of the whole column's levels."""
    levels = sorted(whole.dropna().unique())
    codes = pd.Categorical(column, categories=levels).codes
    return np.where(codes < 0, np.nan, codes)


# --- other methods --------------------------------------------------------------------
# Each takes encoded rows to learn from, incomplete encoded rows, which may be the same
# array, and whether each column has numbers. It returns the latter rows, filled.


def fill_by_mean(
    train: np.ndarray, incomplete: np.ndarray, numbers: np.ndarray
) -> np.ndarray:
    """Means, and the most frequent categories."""
    means = np.nanmean(train, axis=0)
    modes = pd.DataFrame(train).mode().iloc[0].to_numpy()
    guesses = np.where(numbers, means, modes)
    return np.where(np.isnan(incomplete), guesses, incomplete)


def fill_by_neighbors(
    train: np.ndarray, incomplete: np.ndarray, numbers: np.ndarray
) -> np.ndarray:
    """The mean of the ten nearest rows; categories have an axis for each level."""
    train_axes = []
    incomplete_axes = []
    for column, number in enumerate(numbers):
        train_column = train[:, [column]]
        incomplete_column = incomplete[:, [column]]
        if number:
            train_axes.append(train_column)
            incomplete_axes.append(incomplete_column)
        else:
            levels = np.arange(np.nanmax(train_column) + 1)
            train_axes.append(one_hot(train_column, levels))
            incomplete_axes.append(one_hot(incomplete_column, levels))
    imputer = KNNImputer(n_neighbors=N_NEIGHBORS, keep_empty_features=True)
    filled_axes = imputer.fit(np.hstack(train_axes)).transform(
        np.hstack(incomplete_axes)
    )
    n_axes = [axes.shape[1] for axes in incomplete_axes]
    columns = np.split(filled_axes, np.cumsum(n_axes)[:-1], axis=1)
    guesses = []
    for axes, number in zip(columns, numbers, strict=True):
        if number:
            guesses.append(axes[:, 0])
        else:
            guesses.append(axes.argmax(1))
    return np.where(np.isnan(incomplete), np.column_stack(guesses), incomplete)


def one_hot(codes: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """(n, levels) of codes (n, 1): 1 for the own level, NaN where missing."""
    return np.where(np.isnan(codes), np.nan, codes == levels)


def fill_by_forests(
    train: np.ndarray, incomplete: np.ndarray, numbers: np.ndarray
) -> np.ndarray:
    """Forests of each column given all others, in a few sweeps (missForest)."""
    rows = incomplete
    if train is not incomplete:
        rows = np.concatenate((train, incomplete))
    filled = fill_by_mean(train, rows, numbers)
    is_missing = np.isnan(rows)
    for _ in range(N_SWEEPS):
        for column in np.flatnonzero(is_missing.any(0)):
            forest_class = ExtraTreesClassifier
            if numbers[column]:
                forest_class = ExtraTreesRegressor
            forest = forest_class(N_TREES, min_samples_leaf=2, random_state=0)
            others = np.delete(filled, column, axis=1)
            missing = is_missing[:, column]
            forest.fit(others[~missing], rows[~missing, column])
            filled[missing, column] = forest.predict(others[missing])
    return filled[-len(incomplete) :]


BASELINES: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "mean, mode": fill_by_mean,
    "nearest rows": fill_by_neighbors,
    "forests": fill_by_forests,
}
METHODS = ("TableFlow", *BASELINES)


# --- measuring ------------------------------------------------------------------------


def draw_filled(
    method: str,
    train: pd.DataFrame,
    incomplete: pd.DataFrame,
    whole: pd.DataFrame,
    seed: int,
) -> np.ndarray:
    """The encoded rows, with missing cells filled: draws (19, n, d), or (1, n, d)."""
    if method == "TableFlow":
        with warnings.catch_warnings(action="ignore"):
            flow = TableFlow(random_state=seed).fit(train)
            draws = flow.impute(incomplete, n=N_DRAWS, random_state=seed)
        return np.array([encode(draw, whole) for draw in draws])
    encoded_incomplete = encode(incomplete, whole)
    encoded_train = encoded_incomplete
    if train is not incomplete:
        encoded_train = encode(train, whole)
    numbers = np.array([is_number(whole[name]) for name in whole])
    return BASELINES[method](encoded_train, encoded_incomplete, numbers)[None]


def known_levels_only(test: pd.DataFrame, train: pd.DataFrame) -> pd.DataFrame:
    """The test rows without levels that the fitted rows do not have.

    They cannot be guessed, so they count as missing.
    """
    test = test.copy()
    for name in test:
        if not is_number(test[name]):
            test[name] = test[name].where(test[name].isin(train[name]))
    return test


class DrawScores(NamedTuple):
    """How good filled cells are; NaN without numbers, or without categories."""

    error: float
    accuracy: float
    covered: float


def score_draws(
    draws: np.ndarray,
    test: pd.DataFrame,
    whole: pd.DataFrame,
    hidden: np.ndarray,
    rng: np.random.Generator,
) -> DrawScores:
    """The scores of encoded draws (k, n, d) in the hidden cells of the test rows."""
    truth = encode(test, whole)
    errors = []
    accuracies = []
    coverages = []
    for column, column_name in enumerate(test):
        is_hidden = hidden[:, column]
        column_draws = draws[:, is_hidden, column]
        column_truth = truth[is_hidden, column]
        if len(column_truth) == 0:
            continue
        if is_number(test[column_name]):
            guess = np.median(column_draws, 0)
            errors.append(np.abs(guess - column_truth).mean())
            coverages.append(coverage(column_draws, column_truth, rng))
        else:
            guess = pd.DataFrame(column_draws).mode().iloc[0].to_numpy()
            accuracies.append(np.mean(guess == column_truth))
    if len(draws) == 1:
        coverages = []  # one guess covers nothing
    return DrawScores(
        mean_or_nan(errors), mean_or_nan(accuracies), mean_or_nan(coverages)
    )


def measure(
    name: str, own_rows: bool, method: str, seed: int, folder: str | None
) -> Row:
    """What one method scores on one table, fitted to its own or to other rows."""
    train, test = halves(load_table(name, folder)[0], seed)
    test = test.head(MAX_ROWS)
    if not own_rows:
        test = known_levels_only(test, train)
    rng = np.random.default_rng(seed)
    hidden = (rng.random(test.shape) < HIDDEN_SHARE) & test.notna().to_numpy()
    incomplete = test.mask(hidden)
    whole = pd.concat((train, test))
    fitted = train
    if own_rows:
        fitted = incomplete
    started_at = time.process_time()
    draws = draw_filled(method, fitted, incomplete, whole, seed)
    seconds = time.process_time() - started_at
    error, accuracy, covered = score_draws(draws, test, whole, hidden, rng)
    return {
        "set": name,
        "own": own_rows,
        "method": method,
        "seed": seed,
        "error": error,
        "accuracy": accuracy,
        "covered": covered,
        "seconds": seconds,
    }


def coverage(draws: np.ndarray, truth: np.ndarray, rng: np.random.Generator) -> float:
    """The share of numbers (n,) between the lowest and the highest of draws (k, n).

    A number that equals some of them, up to rounding, is put between these by chance.
    """
    n_below = (draws < truth - ROUNDING).sum(0)
    n_equal = (np.abs(draws - truth) <= ROUNDING).sum(0)
    rank = n_below + rng.integers(n_equal + 1)
    return float(np.mean((rank > 0) & (rank < len(draws))))


def mean_or_nan(values: Sequence[float]) -> float:
    """The mean, NaN of nothing."""
    if len(values) == 0:
        return np.nan
    return float(np.mean(values))


def format_score(value: float) -> str:
    """Three decimals, or a dash for NaN."""
    if np.isnan(value):
        return "–"
    return f"{value:.3f}"


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Print one table; the means by set, `own` and method."""
    parser = script_parser(__doc__)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--csv", help="a folder of tables, written by tables.py")
    args = parser.parse_args(arguments)
    rows = []
    for name, own_rows, method, seed in product(
        args.sets, (False, True), args.methods, range(args.seeds)
    ):
        rows.append(measure(name, own_rows, method, seed, args.csv))
    scores = pd.DataFrame(rows).drop(columns="seed")
    means = scores.groupby(["set", "own", "method"], sort=False).mean()
    cells = []
    for (name, own_rows, method), method_means in means.iterrows():
        fitted_to = "others"
        if own_rows:
            fitted_to = "own rows"
        shown = [format_score(value) for value in method_means]
        cells.append([name, fitted_to, method, *shown])
    print(markdown_table(HEADER, cells))
    return means


if __name__ == "__main__":
    main()
