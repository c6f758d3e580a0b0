"""The two-sample test: chance for equal distributions, Bayes' rate for Gaussians apart, any score."""

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from sliceflow.metrics import two_sample_accuracy

A, B = np.random.default_rng(0).normal(size=(2, 1000, 3))


def test_equal_distributions_are_told_apart_by_chance_only():
    assert two_sample_accuracy(A, B, n_trees=50) == pytest.approx(0.5, abs=0.05)
    assert two_sample_accuracy(A, B + 9, n_trees=10) == 1


@pytest.mark.parametrize("shift", [0.5, 2.0])
def test_shifted_gaussians_are_told_apart_as_often_as_is_possible(shift):
    best, moved = LogisticRegression(), B + np.array([shift, 0, 0])
    found = two_sample_accuracy(A, moved, classifier=best)
    assert found == pytest.approx(norm.cdf(shift / 2), abs=0.04)
    auc = two_sample_accuracy(A, moved, classifier=best, scoring="roc_auc")
    assert auc == pytest.approx(norm.cdf(shift / 2**0.5), abs=0.04)


def test_equally_many_of_both_are_used_and_few_are_refused():
    assert two_sample_accuracy(A[:100], B, n_trees=20) == pytest.approx(0.5, abs=0.15)
    with pytest.raises(ValueError, match="4 samples and 1000 real rows; pass 5 or more"):
        two_sample_accuracy(A[:4], B)
