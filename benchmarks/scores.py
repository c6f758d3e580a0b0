"""Held-out numbers of samples: one definition of each, independent of the package that
is measured.

Rows are arrays (n, d). `train` are the fitted rows, `test` rows that were held out. All
functions are deterministic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "c2st",
    "copies",
    "coverage",
    "distances_to",
    "frechet",
    "nn_ratio",
    "sliced_distance",
    "table_scores",
    "thumbnails",
    "vector_scores",
]

_BLOCK = 2_000  # rows whose distances are computed at a time
_NEAREST_SHARE = 0.01  # of held-out rows: what is nearer than these counts as a copy


def _rows(x: Any, device: str) -> Tensor:
    flat = np.asarray(x).reshape(len(x), -1)
    return torch.from_numpy(np.ascontiguousarray(flat)).to(device)


def distances_to(
    x: np.ndarray,
    data: np.ndarray,
    k: int = 1,
    *,
    device: str = "cpu",
    itself: bool = False,
) -> np.ndarray:
    """Distance of each row to its k-th nearest row of `data`; `itself`: x are the data,
    skip i for i.
    """
    reference = _rows(data, device).float()
    centre = reference.mean(0)
    reference = reference - centre
    norms = reference.square().sum(1)
    out = []
    for part in _rows(x, device).split(_BLOCK):
        rows = part.float() - centre
        near = (
            torch.addmm(norms[None], rows, reference.T, alpha=-2)
            .topk(k + itself, 1, False)
            .indices
        )
        exact = (
            (rows[:, None].double() - reference[near].double()).square().sum(2).sqrt()
        )
        out.append(exact.sort(1).values[:, k + itself - 1])
    return torch.cat(out).cpu().numpy()


def nn_ratio(of_samples: np.ndarray, of_test: np.ndarray) -> float:
    """Ratio of median distances to the nearest training row: 1 is ideal, near 0 is
    copying.
    """
    return float(np.median(of_samples) / max(np.median(of_test), 1e-12))


def copies(of_samples: np.ndarray, of_test: np.ndarray) -> float:
    """Share of samples nearer to a training row than the nearest 1 % of held-out rows:
    .01 is ideal.
    """
    return float(np.mean(of_samples <= np.quantile(of_test, _NEAREST_SHARE)))


def coverage(
    samples: np.ndarray, real: np.ndarray, *, k: int = 5, device: str = "cpu"
) -> float:
    """Share of real rows with a sample nearer than their k-th real neighbour (Naeem et
    al. 2020).
    """
    radii = distances_to(real, real, k, device=device, itself=True)
    return float(np.mean(distances_to(real, samples, device=device) <= radii))


def sliced_distance(a: np.ndarray, b: np.ndarray, n_directions: int = 200) -> float:
    """Sliced Wasserstein-2 distance, by 1,000 quantiles along random directions."""
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(a.shape[1], n_directions))
    directions /= np.linalg.norm(directions, axis=0)
    ours = _quantiles(a @ directions)
    theirs = _quantiles(b @ directions)
    return float(np.sqrt(np.mean((ours - theirs) ** 2)))


def _quantiles(x: np.ndarray, n: int = 1_000) -> np.ndarray:
    """n quantiles of each column."""
    at = (np.arange(n) + 0.5) / n * (len(x) - 1)
    low = at.astype(int)
    x = np.sort(x, axis=0)
    part = (at - low)[:, None]
    return np.asarray(x[low] * (1 - part) + x[np.minimum(low + 1, len(x) - 1)] * part)


def c2st(
    samples: np.ndarray, real: np.ndarray, most: int = 2_000, n_trees: int = 100
) -> float:
    """Accuracy of a random forest that tells samples from as many real rows; ½ is
    ideal.
    """
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    rng = np.random.default_rng(0)
    n = min(len(samples), len(real), most)
    x = np.concatenate([a[rng.permutation(len(a))[:n]] for a in (samples, real)])
    forest = RandomForestClassifier(n_trees, random_state=0)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    return float(cross_val_score(forest, x, np.repeat([0, 1], n), cv=folds).mean())


def vector_scores(
    samples: np.ndarray, train: np.ndarray, test: np.ndarray
) -> dict[str, float]:
    """Of rows, in standard deviations of the training rows."""
    mean = train.mean(0)
    spread = train.std(0)
    spread = np.where(spread > 0, spread, 1)
    samples = (samples - mean) / spread
    train = (train - mean) / spread
    test = (test - mean) / spread
    ours = distances_to(samples, train)
    theirs = distances_to(test, train)
    return {
        "sliced": sliced_distance(samples, test),
        "c2st": c2st(samples, test),
        "nn_ratio": nn_ratio(ours, theirs),
        "copies": copies(ours, theirs),
    }


def frechet(a: np.ndarray, b: np.ndarray, device: str = "cpu") -> float:
    """Fréchet distance of two sets of features, as if they were Gaussian."""
    x = torch.as_tensor(a, device=device).double()
    y = torch.as_tensor(b, device=device).double()
    first = torch.cov(x.T)
    second = torch.cov(y.T)
    values, vectors = torch.linalg.eigh(first)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    cross = torch.linalg.eigvalsh(root @ second @ root).clamp_min(0).sqrt().sum()
    apart = (x.mean(0) - y.mean(0)).square().sum()
    return float(apart + first.trace() + second.trace() - 2 * cross)


def thumbnails(images: np.ndarray, side: int = 8) -> np.ndarray:
    """Pictures averaged over squares, to about `side` pixels a side."""
    n, h, w = images.shape[:3]
    step = max(1, min(h, w) // side)
    x = images[:, : h - h % step, : w - w % step].reshape(
        n, h // step, step, w // step, step, -1
    )
    return x.mean((2, 4), dtype=np.float32).reshape(n, -1)


# --- tables ---------------------------------------------------------------------------


def table_scores(
    train: Any, test: Any, made: Any, target: str, seed: int = 0
) -> dict[str, float]:
    """Of a synthetic DataFrame against held-out rows, by the names that `today.py`
    explains.
    """
    from pandas.api.types import is_numeric_dtype

    frames = [
        frame[list(train)].reset_index(drop=True) for frame in (train, test, made)
    ]
    categories = {}
    for name in train:
        kinds = [frame[name].dtype for frame in frames]
        dated = any(str(kind).startswith("datetime") for kind in kinds)
        categories[name] = not dated and (
            any(not is_numeric_dtype(kind) for kind in kinds)
            or frames[0][name].dtype == bool
        )
    tr, te, sy = _as_numbers(frames, categories)
    points = _points([tr, te, sy], categories)
    ours = distances_to(points[2], points[0])
    theirs = distances_to(points[1], points[0])
    spread = np.abs(_association(te, categories) - _association(sy, categories))
    return {
        "detection": _detection(te, sy, list(categories.values()), seed),
        "shape": float(
            np.mean([_shape(te[c], sy[c], categories[c]) for c in categories])
        ),
        "trend": float(np.mean(spread)),
        "utility": _utility(sy, te, categories, target, seed),
        "utility_real": _utility(tr, te, categories, target, seed),
        "copies": copies(ours, theirs),
        "nn_ratio": nn_ratio(ours, theirs),
    }


def _as_numbers(frames: list[Any], categories: dict[str, bool]) -> list[Any]:
    """The frames as floats: dates in days, the same codes for a category in every
    frame.
    """
    import pandas as pd

    out = [pd.DataFrame(index=frame.index) for frame in frames]
    for name, category in categories.items():
        own = [frame[name] for frame in frames]
        if category:
            texts = [
                column.astype(object).where(column.notna(), None).map(str, "ignore")
                for column in own
            ]
            levels = sorted(set().union(*(set(t.dropna()) for t in texts)))
            code = {level: float(i) for i, level in enumerate(levels)}
            own = [t.map(code) for t in texts]
        elif str(own[0].dtype).startswith("datetime"):
            own = [(c - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1) for c in own]
        for frame, column in zip(out, own, strict=True):
            frame[name] = pd.to_numeric(column).astype(float)
    return out


def _detection(test: Any, made: Any, categories: list[bool], seed: int) -> float:
    """AUC of boosted trees that tell synthetic from held-out rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold

    rng = np.random.default_rng(seed)
    n = min(len(test), len(made))
    x = np.vstack(
        [f.iloc[rng.permutation(len(f))[:n]].to_numpy(float) for f in (test, made)]
    )
    y = np.repeat([0, 1], n)
    few = [c and np.nanmax(x[:, i], initial=0) < 250 for i, c in enumerate(categories)]
    found = []
    for repeat in range(4 if n < 1_000 else 1):
        folds = StratifiedKFold(5, shuffle=True, random_state=seed + repeat)
        for learn, judge in folds.split(x, y):
            trees = HistGradientBoostingClassifier(
                max_iter=150, categorical_features=few, random_state=seed
            )
            said = trees.fit(x[learn], y[learn]).predict_proba(x[judge])[:, 1]
            found.append(roc_auc_score(y[judge], said))
    return float(np.mean(found))


def _shape(test: Any, made: Any, category: bool) -> float:
    """1 − the largest difference of distribution functions, or the total variation of
    categories.
    """
    a = test.dropna()
    b = made.dropna()
    if not len(a) or not len(b):
        return float(len(a) == len(b))
    if category:
        shares = [x.value_counts(normalize=True) for x in (a, b)]
        return 1 - 0.5 * float(shares[0].sub(shares[1], fill_value=0).abs().sum())
    a = np.sort(a.to_numpy())
    b = np.sort(b.to_numpy())
    at = np.concatenate((a, b))
    below = [np.searchsorted(x, at, "right") / len(x) for x in (a, b)]
    return 1 - float(np.abs(below[0] - below[1]).max())


def _association(frame: Any, categories: dict[str, bool]) -> np.ndarray:
    """Pearson's r, the correlation ratio or Cramér's V of each pair of columns."""
    import pandas as pd

    names = list(categories)
    out = []
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            both = frame[[a, b]].dropna()
            value = 0.0
            if len(both) > 2 and both[a].nunique() > 1 and both[b].nunique() > 1:
                if categories[a] and categories[b]:
                    count = pd.crosstab(both[a], both[b]).to_numpy(float)
                    fair = (
                        count.sum(1, keepdims=True)
                        * count.sum(0, keepdims=True)
                        / count.sum()
                    )
                    chi = ((count - fair) ** 2 / fair).sum() / count.sum()
                    value = np.sqrt(chi / (min(count.shape) - 1))
                elif categories[a] or categories[b]:
                    level, number = (a, b) if categories[a] else (b, a)
                    mean = both.groupby(level)[number].transform("mean")
                    value = np.sqrt(mean.var(ddof=0) / both[number].var(ddof=0))
                else:
                    value = np.corrcoef(both[a], both[b])[0, 1]
            out.append(float(value))
    return np.array(out)


def _utility(
    fit: Any, test: Any, categories: dict[str, bool], target: str, seed: int
) -> float:
    """R², or AUC of a category, on held-out rows of boosted trees that learnt from
    `fit`.
    """
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )
    from sklearn.metrics import r2_score, roc_auc_score

    features = [c for c in categories if c != target]
    fit = fit.dropna(subset=[target])
    test = test.dropna(subset=[target])
    options: dict[str, Any] = {
        "categorical_features": [
            categories[c] and fit[c].max() < 250 for c in features
        ],
        "random_state": seed,
        "max_iter": 150,
        "min_samples_leaf": min(20, max(2, len(fit) // 40)),
    }
    x = fit[features].to_numpy(float)
    y = fit[target]
    at = test[features].to_numpy(float)
    if not categories[target]:
        trees = HistGradientBoostingRegressor(**options).fit(x, y)
        return float(r2_score(test[target], trees.predict(at)))
    known = np.unique(test[target])
    x = x[y.isin(known)]
    y = y[y.isin(known)]
    if y.nunique() < len(known):  # a level that nobody learnt cannot be scored
        return float("nan")
    said = HistGradientBoostingClassifier(**options).fit(x, y).predict_proba(at)
    said = said[:, 1] if said.shape[1] == 2 else said
    return float(roc_auc_score(test[target], said, multi_class="ovr"))


def _points(frames: list[Any], categories: dict[str, bool]) -> list[np.ndarray]:
    """Rows where another category and one standard deviation of `frames[0]` both are a
    distance of 1.
    """
    parts: list[list[np.ndarray]] = [[] for _ in frames]
    for name, category in categories.items():
        own = [frame[name].to_numpy(float) for frame in frames]
        if category:
            levels = np.unique(np.concatenate([x[~np.isnan(x)] for x in own]))
            for part, x in zip(parts, own, strict=True):
                part.append((x[:, None] == levels) / np.sqrt(2))
        else:
            middle = np.nanmedian(own[0])
            scale = np.nanstd(own[0]) or 1.0
            for part, x in zip(parts, own, strict=True):
                part.append(np.nan_to_num((x - middle) / scale)[:, None])
        if any(np.isnan(x).any() for x in own):
            for part, x in zip(parts, own, strict=True):
                part.append(np.isnan(x)[:, None].astype(float))
    return [np.hstack(part) for part in parts]
