"""The classifier two-sample test (C2ST): can a classifier tell samples from real rows?"""

from __future__ import annotations

from typing import Any

import numpy as np

from sliceflow.errors import from_tensor

__all__ = ["two_sample_accuracy"]


def two_sample_accuracy(
    samples: Any,
    real: Any,
    *,
    classifier: Any = None,
    scoring: str = "accuracy",
    n_trees: int = 200,
    seed: int = 0,
) -> float:
    """Cross-validated score of a classifier that separates samples from real rows; 0.5 is ideal.

    Equally many of both are used (a random subset of the larger), in five shuffled folds. A random
    forest detects what distances do not: values that never occur, columns that never vary.

    Parameters
    ----------
    samples, real : (n, d) and (m, d)
    classifier : any classifier of scikit-learn, instead of a forest with n_trees trees
    scoring : "accuracy", or another score of scikit-learn such as "roc_auc"
    seed : of the subset, the folds and the forest

    Examples
    --------
    >>> a, b = np.random.default_rng(0).normal(size=(2, 100, 2))
    >>> two_sample_accuracy(a, b + 9, n_trees=10)
    1.0
    """
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    rng = np.random.default_rng(seed)
    n = min(len(samples), len(real))
    if n < 5:
        raise ValueError(f"there are {len(samples)} samples and {len(real)} real rows; pass 5 or more")
    a, b = (np.asarray(from_tensor(x))[rng.permutation(len(x))[:n]] for x in (samples, real))
    if classifier is None:
        classifier = RandomForestClassifier(n_trees, random_state=seed)
    X, y = np.concatenate((a, b)), np.repeat([0, 1], n)
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    return float(cross_val_score(classifier, X, y, cv=folds, scoring=scoring).mean())
