"""Attacks: copies are found, fresh rows are not, and numbers are right."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy.stats import betabinom
from sklearn.base import BaseEstimator
from sklearn.metrics import roc_auc_score, roc_curve

from sliceflow import metrics
from sliceflow.metrics.membership import (
    area_under_curve,
    score_attack,
    true_positive_rate,
)
from sliceflow.metrics.shadows import ShadowScores, _score_statistics

N = 300


@pytest.fixture(scope="module", autouse=True)
def few_trees():
    """Small forests: these tests are about attacks, not about forests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sliceflow.metrics.attack_scores._N_TREES", 10)
        yield


def table(rng, n=N):
    """Numbers with rare values, a category, missing cells."""
    income = np.round(rng.lognormal(8, 1, n), 1)
    town = rng.choice(list("abcdef"), n)
    age = np.where(rng.random(n) < 0.05, np.nan, rng.integers(18, 90, n))
    wants = np.where(income + 500 * rng.normal(size=n) > 3000, "yes", "no")
    debt = np.round(rng.gamma(1, 1000, n), 1)
    return pd.DataFrame(
        {"income": income, "debt": debt, "town": town, "age": age, "wants": wants}
    )


class Copier(BaseEstimator):
    """A generator that returns its training rows."""

    def __init__(self, share=1.0, random_state=None):
        self.share = share
        self.random_state = random_state

    def fit(self, X):
        self.rows_ = X
        return self

    def sample(self, n, *, random_state):
        rng = np.random.default_rng(random_state)
        is_copy = rng.random(n) < self.share
        copies = self.rows_.sample(n, replace=True, random_state=random_state)
        fresh = table(rng, n)
        both = [copies.reset_index(drop=True)[is_copy], fresh[~is_copy]]
        return pd.concat(both, ignore_index=True)


def test_copies_are_found_by_every_attack(rng):
    train = table(rng)
    found = metrics.attack(train, train, table(rng), hidden="income", device="cpu")
    assert len(found.attacks) == 5
    for one in found.attacks:
        assert one.score.auc.low > 0.6, one.name
        assert one.score.is_beyond_chance, one.name
    for name in ("distance difference", "verbatim values"):
        assert found[name].score.auc.value > 0.95
    nearest = found["distance difference"].score
    assert nearest.tpr_at_fpr_1pct.value > 0.9


def test_fresh_rows_are_not_found_out(rng):
    """Fails by chance once in 1,000 seeds or less: ten numbers, 5 standard errors."""
    samples, train, held_out = table(rng), table(rng), table(rng)
    found = metrics.attack(samples, train, held_out, device="cpu")
    for one in found.attacks:
        for success in (one.score, one.null_score):
            standard_error = (success.auc.high - success.auc.low) / (2 * 1.96)
            assert abs(success.auc.value - 0.5) < 5 * standard_error, one.name
            assert success.p_value > 1e-4
            assert success.tpr_at_fpr_1pct.value < 0.1


def test_shadow_models_find_rows_that_come_back(rng):
    """The copies of a third of the rows, but no fresh ones. Chance: 1 in 1,000."""
    train, held_out = table(rng), table(rng)
    said = []
    found = metrics.attack(
        Copier(0.4).fit(train), train, held_out, n_shadows=16, notify=said.append
    )
    shadow = found["shadow models, outliers"]
    assert shadow.score.auc.low > 0.5
    assert shadow.score.auc.value > 0.55
    assert abs(shadow.null_score.auc.value - 0.5) < 0.03
    assert any(text.startswith("shadow model 1 of 16, about") for text in said)
    assert found.counts["outliers"] == 40
    assert sorted(found["forest"].auc_by_n_samples) == [2 * N, 4 * N]


def test_shadow_models_of_fresh_rows_find_nothing(rng):
    """A permutation test: its p-value is below 1/100 in one of fifty seeds at most."""
    statistics = rng.normal(size=(24, 30, 2))
    is_member = rng.random((24, 30)) < 0.5
    success, by_chance = _score_statistics(statistics, is_member, rng)
    assert abs(success.auc.value - 0.5) < 0.12
    assert abs(by_chance.auc.value - 0.5) < 0.02
    moved = statistics + 3 * is_member[..., None]
    success, _ = _score_statistics(moved, is_member, rng)
    assert success.auc.value > 0.97
    assert success.p_value == 2 / 400


def test_more_of_the_fitted_rows_in_samples_are_found_more_often(rng):
    train, held_out = table(rng), table(rng)
    aucs = []
    for n_copies in (0, 150, 300):
        samples = pd.concat([train[:n_copies], table(rng, N - n_copies)])
        found = metrics.attack(samples, train, held_out, device="cpu")
        aucs.append(found["verbatim values"].score.auc.value)
    assert aucs[0] < aucs[1] - 0.05
    assert aucs[1] < aucs[2] - 0.05


def test_numbers_are_those_of_others(rng):
    members = rng.integers(0, 40, 500) + 3.0
    others = rng.integers(0, 40, 700).astype(float)
    truth = np.repeat([1, 0], [500, 700])
    scores = np.concatenate((members, others))
    assert area_under_curve(members, others) == pytest.approx(
        roc_auc_score(truth, scores)
    )
    false_rate, true_rate, _ = roc_curve(truth, scores, drop_intermediate=False)
    best = true_rate[false_rate < 7 / 700].max()
    assert true_positive_rate(members, others, 0.01) == pytest.approx(best)


def test_intervals_cover_and_p_values_are_uniform_or_larger(rng):
    """Of 100 trials 95 % are covered: fewer than 84 % have a chance of 1e-5."""
    covered = 0
    p_values = []
    for _ in range(100):
        success = score_attack(rng.normal(size=80), rng.normal(size=90))
        covered += success.auc.low <= 0.5 <= success.auc.high
        p_values.append(success.p_value)
    assert covered > 84
    assert np.mean(np.array(p_values) < 0.05) < 0.2


def test_the_true_positive_rate_by_chance_is_beta_binomial(rng):
    found = []
    for _ in range(2000):
        members, others = rng.random(20), rng.random(150)
        found.append(20 * true_positive_rate(members, others, 0.01))
    expected = betabinom(20, 1, 150).mean()
    error = betabinom(20, 1, 150).std() / np.sqrt(2000)
    assert abs(np.mean(found) - expected) < 5 * error


def test_attacks_print_a_table_and_are_json(rng):
    x = rng.normal(size=(3, 60, 3))
    found = metrics.attack(*x, device="cpu")
    lines = str(found).splitlines()
    assert lines[0].split()[:2] == ["AUC", "(95"]
    assert [line.split("  ")[0] for line in lines[1:6]] == [
        one.name for one in found.attacks
    ]
    assert "with 60 others all numbers are rough" in lines[-1]
    told = json.loads(json.dumps(found.to_dict()))
    assert set(told["attacks"][0]["score"]["auc"]) == {"value", "low", "high"}
    assert found.hidden == "column 2"
    with pytest.raises(KeyError):
        found["no such attack"]


def test_what_cannot_be_attacked_is_named(rng):
    x = rng.normal(size=(100, 2))
    with pytest.raises(ValueError, match=r"too few rows, \{'samples': 100, 'train': 9"):
        metrics.attack(x, x[:9], x)
    with pytest.raises(ValueError, match="n_shadows=3 must be 0, or 8 or more"):
        metrics.attack(x, x, x, n_shadows=3)
    with pytest.raises(ValueError, match="pass the model, or n_shadows=0"):
        metrics.attack(x, x, x, n_shadows=20)
    with pytest.raises(ValueError, match=r"samples has the shape \(100, 2, 1\)"):
        metrics.attack(x[..., None], x, x)


def test_an_outlier_is_no_reference_for_itself(rng, monkeypatch):
    """Else its distance to the reference would be 0, and say nothing."""
    seen = []

    def run(self, generator, pool, statistics, as_input):
        samples = table(rng)
        seen.append(statistics(samples, pool, np.arange(20)))
        return ShadowScores(guess, guess)

    guess = score_attack(np.arange(20.0), np.arange(20.0))
    monkeypatch.setattr("sliceflow.metrics.shadows.ShadowAttack.run", run)
    train = table(rng)
    copier = Copier().fit(train)
    metrics.attack(copier, train, table(rng), n_shadows=8, device="cpu")
    differences = seen[0][:, 0]
    assert differences.std() > 0
    assert (differences > -1).all()
