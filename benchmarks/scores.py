"""Held-out numbers of samples: one definition of each, independent of the package.

Rows are arrays (n, d). `train` are the fitted rows, `test` rows that were held out. All
functions are deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "c2st",
    "copies",
    "coverage",
    "detection",
    "distances_to",
    "frechet",
    "nn_ratio",
    "sliced_distance",
    "table_scores",
    "thumbnails",
    "vector_scores",
]

# Rows whose distances are computed at once: with 60,000 rows to compare, the distances
# of a block take 480 MB.
DISTANCE_BLOCK = 2_000
# Samples nearer to a training row than this share of held-out rows count as copies, so
# that real rows have this share of copies themselves.
COPY_QUANTILE = 0.01
# scikit-learn's boosted trees take at most 255 levels of a category.
MAX_CATEGORY_CODE = 250
# Boosted trees of a detector and of a prediction, never tuned. More trees would detect
# and predict a little better, and take longer.
N_BOOSTED_TREES = 150
# Tables with fewer rows are divided into folds several times, as one division of them
# decides much of the AUC.
FEW_ROWS = 1_000
N_REPEATS_OF_FEW_ROWS = 4


# --- rows -----------------------------------------------------------------------------


def distances_to(
    x: np.ndarray,
    data: np.ndarray,
    k: int = 1,
    *,
    device: str = "cpu",
    itself: bool = False,
) -> np.ndarray:
    """Distances (n,) of the rows of x to their k-th nearest row of `data`.

    With `itself`, x are the data, and no row is a neighbor of itself.
    """
    reference = _flat_rows(data, device).float()
    center = reference.mean(0)
    reference = reference - center
    norms = reference.square().sum(1)
    n_nearest = k + int(itself)
    distances = []
    for block in _flat_rows(x, device).split(DISTANCE_BLOCK):
        rows = block.float() - center
        # |r − x|² without |x|², which is the same for all r, in single precision …
        comparison = torch.addmm(norms[None], rows, reference.T, alpha=-2)
        nearest = comparison.topk(n_nearest, dim=1, largest=False).indices
        # … and the distances of the few nearest in double precision.
        differences = rows[:, None].double() - reference[nearest].double()
        exact = differences.square().sum(2).sqrt()
        distances.append(exact.sort(1).values[:, n_nearest - 1])
    return torch.cat(distances).cpu().numpy()


def _flat_rows(x: np.ndarray, device: str) -> Tensor:
    """Rows or pictures as a tensor (n, d) of the same numbers."""
    flat = np.asarray(x).reshape(len(x), -1)
    return torch.from_numpy(np.ascontiguousarray(flat)).to(device)


def nn_ratio(of_samples: np.ndarray, of_test: np.ndarray) -> float:
    """Ratio of median distances to the nearest training row: 1 is ideal, 0 copies."""
    return float(np.median(of_samples) / max(np.median(of_test), 1e-12))


def copies(of_samples: np.ndarray, of_test: np.ndarray) -> float:
    """Share of samples nearer to training rows than the nearest 1 % of held-out rows.

    Both are distances to the nearest training row; .01 is ideal.
    """
    threshold = np.quantile(of_test, COPY_QUANTILE)
    return float(np.mean(of_samples <= threshold))


def coverage(
    samples: np.ndarray, real: np.ndarray, *, k: int = 5, device: str = "cpu"
) -> float:
    """Share of real rows with a sample nearer than their k-th real neighbor.

    The measure of Naeem et al. (2020).
    """
    radii = distances_to(real, real, k, device=device, itself=True)
    return float(np.mean(distances_to(real, samples, device=device) <= radii))


def sliced_distance(a: np.ndarray, b: np.ndarray, n_directions: int = 200) -> float:
    """Sliced Wasserstein-2 distance, by 1,000 quantiles along random directions."""
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(a.shape[1], n_directions))
    directions /= np.linalg.norm(directions, axis=0)
    difference = _quantiles(a @ directions) - _quantiles(b @ directions)
    return float(np.sqrt(np.mean(difference**2)))


def _quantiles(x: np.ndarray, n: int = 1_000) -> np.ndarray:
    """n quantiles (n, d) of each column, interpolated between neighbors."""
    position = (np.arange(n) + 0.5) / n * (len(x) - 1)
    below = position.astype(int)
    above = np.minimum(below + 1, len(x) - 1)
    weight = (position - below)[:, None]
    x = np.sort(x, axis=0)
    return np.asarray(x[below] * (1 - weight) + x[above] * weight)


def c2st(
    samples: np.ndarray, real: np.ndarray, max_rows: int = 2_000, n_trees: int = 100
) -> float:
    """Accuracy of a forest that tells samples from as many real rows: ½ is ideal."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    rng = np.random.default_rng(0)
    n = min(len(samples), len(real), max_rows)
    chosen_samples = samples[rng.permutation(len(samples))[:n]]
    chosen_real = real[rng.permutation(len(real))[:n]]
    x = np.concatenate((chosen_samples, chosen_real))
    y = np.repeat([0, 1], n)
    forest = RandomForestClassifier(n_trees, random_state=0)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    return float(cross_val_score(forest, x, y, cv=folds).mean())


def vector_scores(
    samples: np.ndarray, train: np.ndarray, test: np.ndarray
) -> dict[str, float]:
    """All numbers of rows, in standard deviations of the training rows."""
    mean = train.mean(0)
    spread = train.std(0)
    spread = np.where(spread > 0, spread, 1)
    samples = (samples - mean) / spread
    train = (train - mean) / spread
    test = (test - mean) / spread
    sample_distances = distances_to(samples, train)
    test_distances = distances_to(test, train)
    return {
        "sliced": sliced_distance(samples, test),
        "c2st": c2st(samples, test),
        "nn_ratio": nn_ratio(sample_distances, test_distances),
        "copies": copies(sample_distances, test_distances),
    }


# --- pictures -------------------------------------------------------------------------


def frechet(a: np.ndarray, b: np.ndarray, device: str = "cpu") -> float:
    """Fréchet distance of two sets of features, as if they were Gaussian.

    |μ₁ − μ₂|² + tr Σ₁ + tr Σ₂ − 2 tr (Σ₁^½ Σ₂ Σ₁^½)^½
    """
    x = torch.as_tensor(a, device=device).double()
    y = torch.as_tensor(b, device=device).double()
    cov_x = torch.cov(x.T)
    cov_y = torch.cov(y.T)
    values, vectors = torch.linalg.eigh(cov_x)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    cross = torch.linalg.eigvalsh(root @ cov_y @ root).clamp_min(0).sqrt().sum()
    between_means = (x.mean(0) - y.mean(0)).square().sum()
    return float(between_means + cov_x.trace() + cov_y.trace() - 2 * cross)


def thumbnails(images: np.ndarray, side: int = 8) -> np.ndarray:
    """Pictures averaged over squares, to about `side` pixels a side, as rows."""
    n, h, w = images.shape[:3]
    step = max(1, min(h, w) // side)
    whole_squares = images[:, : h - h % step, : w - w % step]
    squares = whole_squares.reshape(n, h // step, step, w // step, step, -1)
    return squares.mean((2, 4), dtype=np.float32).reshape(n, -1)


# --- tables ---------------------------------------------------------------------------


def table_scores(
    train: pd.DataFrame,
    test: pd.DataFrame,
    synthetic: pd.DataFrame,
    target: str,
    seed: int = 0,
) -> dict[str, float]:
    """All numbers of synthetic rows, by the names that `today.py` explains.

    Parameters
    ----------
    train, test, synthetic : fitted rows, held-out rows and samples, with one's columns
    target : the column that is predicted from the others
    seed : of folds and trees
    """
    columns = list(train)
    frames = [
        train[columns].reset_index(drop=True),
        test[columns].reset_index(drop=True),
        synthetic[columns].reset_index(drop=True),
    ]
    is_category = {name: _is_category(name, frames) for name in columns}
    train, test, synthetic = _as_numbers(frames, is_category)
    train_rows, test_rows, synthetic_rows = _as_points(
        [train, test, synthetic], is_category
    )
    sample_distances = distances_to(synthetic_rows, train_rows)
    test_distances = distances_to(test_rows, train_rows)
    to_test = distances_to(synthetic_rows, test_rows)
    shapes = []
    for name in columns:
        shapes.append(_shape(test[name], synthetic[name], is_category[name]))
    test_associations = _associations(test, is_category)
    synthetic_associations = _associations(synthetic, is_category)
    return {
        "detection": _detection(test, synthetic, list(is_category.values()), seed),
        "shape": float(np.mean(shapes)),
        "trend": float(np.mean(np.abs(test_associations - synthetic_associations))),
        "utility": _utility(synthetic, test, is_category, target, seed),
        "utility_real": _utility(train, test, is_category, target, seed),
        "copies": copies(sample_distances, test_distances),
        "nn_ratio": nn_ratio(sample_distances, test_distances),
        "nearer_train": float(np.mean(_is_nearer(sample_distances, to_test))),
        "exact": _share_among(synthetic, train),
        "exact_real": _share_among(test, train),
    }


def detection(test: pd.DataFrame, synthetic: pd.DataFrame, seed: int = 0) -> float:
    """AUC of boosted trees that tell synthetic from held-out rows: ½ is ideal."""
    columns = list(test)
    frames = [
        test[columns].reset_index(drop=True),
        synthetic[columns].reset_index(drop=True),
    ]
    is_category = {name: _is_category(name, frames) for name in columns}
    test, synthetic = _as_numbers(frames, is_category)
    return _detection(test, synthetic, list(is_category.values()), seed)


def _is_nearer(to_train: np.ndarray, to_test: np.ndarray) -> np.ndarray:
    """1 where samples are nearer to a fitted than to a held-out row, ½ for ties."""
    return (np.sign(to_test - to_train) + 1) / 2


def _share_among(rows: pd.DataFrame, others: pd.DataFrame) -> float:
    """The share of rows that are among others, cell by cell."""
    known = set(map(tuple, others.fillna(np.inf).to_numpy()))
    found = [row in known for row in map(tuple, rows.fillna(np.inf).to_numpy())]
    return float(np.mean(found))


def _is_category(name: str, frames: Sequence[pd.DataFrame]) -> bool:
    """Whether a column is neither of numbers nor of dates in all frames."""
    from pandas.api.types import is_numeric_dtype

    dtypes = [frame[name].dtype for frame in frames]
    if any(str(dtype).startswith("datetime") for dtype in dtypes):
        return False
    if str(dtypes[0]) == "bool":
        return True
    return not all(is_numeric_dtype(dtype) for dtype in dtypes)


def _as_numbers(
    frames: Sequence[pd.DataFrame], is_category: dict[str, bool]
) -> list[pd.DataFrame]:
    """The frames as floats: dates in days, the same codes of levels in every frame."""
    import pandas as pd

    numbers = [pd.DataFrame(index=frame.index) for frame in frames]
    for name, category in is_category.items():
        columns = [frame[name] for frame in frames]
        if category:
            columns = _level_codes(columns)
        elif str(columns[0].dtype).startswith("datetime"):
            columns = [_days(column) for column in columns]
        for frame, column in zip(numbers, columns, strict=True):
            frame[name] = pd.to_numeric(column).astype(float)
    return numbers


def _level_codes(columns: Sequence[pd.Series]) -> list[pd.Series]:
    """The places of the cells' texts in a sorted list of all; missing stay missing."""
    texts = []
    levels: set[str] = set()
    for column in columns:
        cells = column.astype(object).where(column.notna(), None)
        texts.append(cells.map(str, "ignore"))
        levels.update(texts[-1].dropna())
    codes = {level: float(code) for code, level in enumerate(sorted(levels))}
    return [column.map(codes) for column in texts]


def _days(column: pd.Series) -> pd.Series:
    """Dates in days since 1970."""
    import pandas as pd

    return (column - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)


def _as_points(
    frames: Sequence[pd.DataFrame], is_category: dict[str, bool]
) -> list[np.ndarray]:
    """Rows whose distances count a category as one standard deviation of a number.

    Standard deviations are those of the first frame. Missing cells have a column of
    their own where there are any.
    """
    parts: list[list[np.ndarray]] = [[] for _ in frames]
    for name, category in is_category.items():
        columns = [frame[name].to_numpy(float) for frame in frames]
        if category:
            points = _category_points(columns)
        else:
            points = _number_points(columns)
        for part, column_points in zip(parts, points, strict=True):
            part.append(column_points)
        if any(np.isnan(column).any() for column in columns):
            for part, column in zip(parts, columns, strict=True):
                part.append(np.isnan(column)[:, None].astype(float))
    return [np.hstack(part) for part in parts]


def _category_points(columns: Sequence[np.ndarray]) -> list[np.ndarray]:
    """One axis (n, levels) for each level, so that two levels have a distance of 1."""
    known_codes = [column[~np.isnan(column)] for column in columns]
    levels = np.unique(np.concatenate(known_codes))
    return [(column[:, None] == levels) / np.sqrt(2) for column in columns]


def _number_points(columns: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Numbers (n, 1) in standard deviations of the first column, 0 where missing."""
    middle = np.nanmedian(columns[0])
    scale = np.nanstd(columns[0])
    if scale == 0:
        scale = 1.0
    return [np.nan_to_num((column - middle) / scale)[:, None] for column in columns]


def _detection(
    test: pd.DataFrame, synthetic: pd.DataFrame, is_category: list[bool], seed: int
) -> float:
    """AUC of boosted trees that tell synthetic from held-out rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold

    rng = np.random.default_rng(seed)
    n = min(len(test), len(synthetic))
    chosen_test = test.iloc[rng.permutation(len(test))[:n]]
    chosen_synthetic = synthetic.iloc[rng.permutation(len(synthetic))[:n]]
    x = np.vstack((chosen_test.to_numpy(float), chosen_synthetic.to_numpy(float)))
    y = np.repeat([0, 1], n)
    categorical = []
    for i, category in enumerate(is_category):
        largest_code = np.nanmax(x[:, i], initial=0)
        categorical.append(category and largest_code < MAX_CATEGORY_CODE)
    n_repeats = 1
    if n < FEW_ROWS:
        n_repeats = N_REPEATS_OF_FEW_ROWS
    aucs = []
    for repeat in range(n_repeats):
        folds = StratifiedKFold(5, shuffle=True, random_state=seed + repeat)
        for fitted, held_out in folds.split(x, y):
            trees = HistGradientBoostingClassifier(
                max_iter=N_BOOSTED_TREES,
                categorical_features=categorical,
                random_state=seed,
            )
            trees.fit(x[fitted], y[fitted])
            probability = trees.predict_proba(x[held_out])[:, 1]
            aucs.append(roc_auc_score(y[held_out], probability))
    return float(np.mean(aucs))


def _shape(test: pd.Series, synthetic: pd.Series, category: bool) -> float:
    """Agreement of two columns: 1 is ideal.

    1 minus the largest difference of distribution functions; for categories, minus the
    total variation.
    """
    a = test.dropna()
    b = synthetic.dropna()
    if len(a) == 0 or len(b) == 0:
        return float(len(a) == len(b))
    if category:
        shares_a = a.value_counts(normalize=True)
        shares_b = b.value_counts(normalize=True)
        return 1 - 0.5 * float(shares_a.sub(shares_b, fill_value=0).abs().sum())
    a = np.sort(a.to_numpy())
    b = np.sort(b.to_numpy())
    values = np.concatenate((a, b))
    cdf_a = np.searchsorted(a, values, "right") / len(a)
    cdf_b = np.searchsorted(b, values, "right") / len(b)
    return 1 - float(np.abs(cdf_a - cdf_b).max())


def _associations(frame: pd.DataFrame, is_category: dict[str, bool]) -> np.ndarray:
    """The association of each pair of columns, of the rows that have both."""
    names = list(is_category)
    associations = []
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            pair = frame[[first, second]].dropna()
            value = _association(
                pair[first], pair[second], is_category[first], is_category[second]
            )
            associations.append(float(value))
    return np.array(associations)


def _association(
    a: pd.Series, b: pd.Series, a_is_category: bool, b_is_category: bool
) -> float:
    """Cramér's V of categories, the correlation ratio, or Pearson's r of numbers."""
    if len(a) <= 2 or a.nunique() < 2 or b.nunique() < 2:
        return 0.0
    if a_is_category and b_is_category:
        return _cramers_v(a, b)
    if a_is_category:
        return _correlation_ratio(a, b)
    if b_is_category:
        return _correlation_ratio(b, a)
    return np.corrcoef(a, b)[0, 1]


def _cramers_v(a: pd.Series, b: pd.Series) -> float:
    """√(χ² / n / (min(levels of a, levels of b) − 1))."""
    import pandas as pd

    count = pd.crosstab(a, b).to_numpy(float)
    row_sums = count.sum(1, keepdims=True)
    column_sums = count.sum(0, keepdims=True)
    expected = row_sums * column_sums / count.sum()
    chi2_per_row = ((count - expected) ** 2 / expected).sum() / count.sum()
    return np.sqrt(chi2_per_row / (min(count.shape) - 1))


def _correlation_ratio(category: pd.Series, number: pd.Series) -> float:
    """√(variance of the means of the levels / variance)."""
    level_means = number.groupby(category).transform("mean")
    return np.sqrt(level_means.var(ddof=0) / number.var(ddof=0))


def _utility(
    fitted: pd.DataFrame,
    test: pd.DataFrame,
    is_category: dict[str, bool],
    target: str,
    seed: int,
) -> float:
    """R², or AUC of a category, on held-out rows of trees that learnt from `fitted`.

    NaN if the target has a level in the held-out rows that nobody could learn.
    """
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )
    from sklearn.metrics import r2_score, roc_auc_score

    features = [name for name in is_category if name != target]
    fitted = fitted.dropna(subset=[target])
    test = test.dropna(subset=[target])
    categorical = []
    for name in features:
        few_levels = fitted[name].max() < MAX_CATEGORY_CODE
        categorical.append(is_category[name] and few_levels)
    options = {
        "categorical_features": categorical,
        "random_state": seed,
        "max_iter": N_BOOSTED_TREES,
        # scikit-learn's 20, but fewer where the table is small.
        "min_samples_leaf": min(20, max(2, len(fitted) // 40)),
    }
    x = fitted[features].to_numpy(float)
    y = fitted[target]
    x_test = test[features].to_numpy(float)
    if not is_category[target]:
        trees = HistGradientBoostingRegressor(**options).fit(x, y)
        return float(r2_score(test[target], trees.predict(x_test)))
    test_levels = np.unique(test[target])
    x = x[y.isin(test_levels)]
    y = y[y.isin(test_levels)]
    if y.nunique() < len(test_levels):
        return float("nan")
    trees = HistGradientBoostingClassifier(**options).fit(x, y)
    probability = trees.predict_proba(x_test)
    if probability.shape[1] == 2:
        probability = probability[:, 1]
    return float(roc_auc_score(test[target], probability, multi_class="ovr"))
