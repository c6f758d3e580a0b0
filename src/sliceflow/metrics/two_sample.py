"""The classifier two-sample test: can a classifier distinguish samples from real rows?"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["two_sample_accuracy"]


def two_sample_accuracy(
    samples: np.ndarray,
    real: np.ndarray,
    *,
    classifier: Any = None,
    n_trees: int = 200,
    seed: int = 0,
) -> float:
    """Cross-validated accuracy of a classifier that separates samples from real rows; 0.5 is ideal.

    Equally many of both are used (a random subset of the larger). The default classifier is a random
    forest, which detects what distances do not: values that never occur, columns that never vary.

    Parameters
    ----------
    samples, real : (n, d) and (m, d)
    classifier : any classifier of scikit-learn, instead of the forest
    n_trees : of the forest
    seed : of the subset and of the forest

    Examples
    --------
    >>> a, b = np.random.default_rng(0).normal(size=(2, 100, 2))
    >>> two_sample_accuracy(a, b + 9, n_trees=10)
    1.0
    """
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import cross_val_score

    rng = np.random.default_rng(seed)
    n = min(len(samples), len(real))
    if n < 5:
        raise ValueError(f"there are {len(samples)} samples and {len(real)} real rows; pass 5 or more")
    a, b = (np.asarray(x)[rng.permutation(len(x))[:n]] for x in (samples, real))
    if classifier is None:
        classifier = RandomForestClassifier(n_trees, random_state=seed)
    X, y = np.concatenate((a, b)), np.repeat([0, 1], n)
    return float(cross_val_score(classifier, X, y, cv=5).mean())
