"""How good samples are, measured on arrays (n, d): numpy and scikit-learn only, no pictures, no plots.

No single number suffices: distances between distributions do not see copying, so print `nn_ratio`
beside them, and print every metric's floor (real rows against real rows) beside the metric.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = [
    "frechet_distance",
    "frechet_distance_pca",
    "labelled_protocol",
    "nn_ratio",
    "sliced_wasserstein",
    "two_sample_accuracy",
]


def sliced_wasserstein(
    a: np.ndarray,
    b: np.ndarray,
    *,
    n_directions: int = 1000,
    seed: int = 0,
    directions: np.ndarray | None = None,
) -> float:
    """Sliced 2-Wasserstein distance between two samples of any sizes, exact on each direction.

    SW₂(a, b)² = 1/H · Σ_h ∫₀¹ |F⁻¹_{a,h}(t) − F⁻¹_{b,h}(t)|² dt

    Parameters
    ----------
    a, b : array
        (n, d) and (m, d).
    n_directions : int
        H random unit directions.
    seed : int
        Their seed.
    directions : array
        (H, d) unit vectors to use instead.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> a = rng.normal(size=(400, 3))
    >>> round(sliced_wasserstein(a, a + np.array([3.0, 0, 0])), 1)  # |shift| / sqrt(d)
    1.7
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if directions is None:
        directions = np.random.default_rng(seed).standard_normal((n_directions, a.shape[1]))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    n, m = len(a), len(b)
    # The two quantile functions are constant between the levels i/n and j/m: integrate piecewise.
    levels = np.union1d(np.arange(1, n + 1) / n, np.arange(1, m + 1) / m)
    width = np.diff(levels, prepend=0.0)
    middle = levels - width / 2
    i = np.minimum((middle * n).astype(int), n - 1)
    j = np.minimum((middle * m).astype(int), m - 1)
    total = 0.0
    for block in np.array_split(directions, max(1, len(directions) // 64)):
        za, zb = np.sort(block @ a.T, axis=1), np.sort(block @ b.T, axis=1)
        total += float((np.square(za[:, i] - zb[:, j]) @ width).sum())
    return float(np.sqrt(total / len(directions)))


def frechet_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Squared 2-Wasserstein distance between the Gaussians fitted to two samples.

    |μ_a − μ_b|² + tr(Σ_a + Σ_b − 2·(Σ_a^½ Σ_b Σ_a^½)^½)

    It is biased upwards for few samples: compare only at equal counts, with the floor beside it.

    Examples
    --------
    >>> a = np.random.default_rng(0).normal(size=(1000, 2))
    >>> round(frechet_distance(a, 2 * a + 3), 1)  # |3, 3|^2 + tr(1 + 4 - 2*2)
    19.7
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    mu = a.mean(axis=0) - b.mean(axis=0)
    cov_a, cov_b = np.atleast_2d(np.cov(a.T)), np.atleast_2d(np.cov(b.T))
    values, vectors = np.linalg.eigh(cov_a)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    cross = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ cov_b @ root), 0)).sum()
    return float(mu @ mu + np.trace(cov_a) + np.trace(cov_b) - 2 * cross)


def frechet_distance_pca(
    samples: np.ndarray, test: np.ndarray, train: np.ndarray, n_components: int = 32
) -> float:
    """Fréchet distance of samples to test rows in the leading principal components of train rows."""
    mean = train.mean(axis=0)
    axes = np.linalg.svd(train - mean, full_matrices=False)[2][:n_components]
    return frechet_distance((samples - mean) @ axes.T, (test - mean) @ axes.T)


def nn_ratio(samples: np.ndarray, train: np.ndarray, test: np.ndarray) -> float:
    """Median distance sample → nearest train row, over test row → nearest train row.

    1 is ideal; near 0 the samples are copies of the training rows; above 1 they are off the data.
    """
    ours, theirs = np.median(_nearest(samples, train)), np.median(_nearest(test, train))
    if theirs == 0:
        raise ValueError(
            "the median test row is identical to a train row, so the NN ratio is undefined; "
            "remove duplicates between test and train"
        )
    return float(ours / theirs)


def _nearest(rows: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Distance of each row to the nearest train row, in bounded memory; copies are at exactly 0."""
    from scipy.spatial.distance import cdist

    per_block = max(1, (1 << 24) // len(train))
    blocks = np.split(np.asarray(rows), range(per_block, len(rows), per_block))
    return np.concatenate([cdist(block, train).min(axis=1) for block in blocks])


def two_sample_accuracy(
    samples: np.ndarray, real: np.ndarray, *, classifier: Any = None, seed: int = 0
) -> float:
    """Cross-validated accuracy of a classifier that tells samples from real rows; 0.5 is ideal.

    Equally many of both are used (a random subset of the larger). The default classifier is a random
    forest, which sees what distances do not: values that never occur, columns that never vary.
    """
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import cross_val_score

    rng = np.random.default_rng(seed)
    n = min(len(samples), len(real))
    a, b = (np.asarray(x)[rng.permutation(len(x))[:n]] for x in (samples, real))
    if classifier is None:
        classifier = RandomForestClassifier(200, random_state=seed)
    X, y = np.concatenate((a, b)), np.repeat([0, 1], n)
    return float(cross_val_score(classifier, X, y, cv=5).mean())


def labelled_protocol(
    samples: np.ndarray,
    labels: np.ndarray | None,
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
) -> dict[str, float]:
    """All the numbers we print for labelled rows, each defined above or here.

    `accuracy`: of an RBF support vector machine trained on the training rows, on the samples; `TSTR`
    (train on synthetic, test on real): of one trained on the samples, on the test rows. Both are
    ``SVC(C=10)``. Trained on real rows, that gets .992 of the 500 test digits right, and scikit-learn's
    default C = 1 gets .986.

    Parameters
    ----------
    samples : (m, d) array
    labels : (m,) array of the samples' classes, or None, which leaves those two out
    train, test : pairs of rows (n, d) and their classes (n,)

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(size=(3, 100, 2)), np.arange(100) % 2
    >>> x[..., 0] += 9 * y
    >>> samples, train, test = x
    >>> out = labelled_protocol(samples, y, (train, y), (test, y))
    >>> list(out)
    ['FD-PCA32', 'sliced distance', 'two-sample accuracy', 'NN ratio', 'accuracy', 'TSTR']
    >>> out["accuracy"], out["TSTR"]
    (1.0, 1.0)
    """
    from sklearn.svm import SVC

    out = {
        "FD-PCA32": frechet_distance_pca(samples, test[0], train[0]),
        "sliced distance": sliced_wasserstein(samples, test[0]),
        "two-sample accuracy": two_sample_accuracy(samples, test[0]),
        "NN ratio": nn_ratio(samples, train[0], test[0]),
    }
    if labels is not None:
        out["accuracy"] = float(SVC(C=10).fit(*train).score(samples, labels))
        out["TSTR"] = float(SVC(C=10).fit(samples, labels).score(*test))
    return out
