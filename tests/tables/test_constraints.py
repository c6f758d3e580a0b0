"""Constraints hold in every row: of samples, given rows and imputed ones."""

import numpy as np
import pandas as pd
import pytest

from sliceflow import TableFlow


def frame(n=300):
    rng = np.random.default_rng(0)
    start, part, other = (
        rng.integers(0, 100, n),
        rng.gamma(2, 10, n).round(2),
        rng.gamma(2, 5, n).round(2),
    )
    city, land = np.array([("Paris", "F"), ("Lyon", "F"), ("Rome", "I")])[rng.integers(0, 3, n)].T
    return pd.DataFrame(
        {
            "start": start,
            "end": start + rng.poisson(5, n),
            "part": part,
            "other": other,
            "total": (part + other).round(2),
            "city": city,
            "land": land,
            "x": rng.normal(size=n) ** 2,
        }
    )


RULES = ["start <= end", "total = part + other", "x >= 0", "combinations(city, land)"]


def holds(new, old):
    assert (new["start"] <= new["end"]).all()
    assert np.allclose(new["part"] + new["other"], new["total"], atol=1e-9)
    assert (new["x"] >= 0).all()
    assert set(zip(new["city"], new["land"], strict=True)) <= set(
        zip(old["city"], old["land"], strict=True)
    )
    assert list(new.dtypes) == list(old.dtypes)


def test_samples_satisfy_all_constraints():
    old = frame()
    flow = TableFlow(constraints=RULES, random_state=0, n_steps=10).fit(old)
    new = flow.sample(1000, random_state=1)
    holds(new, old)
    assert abs(new["end"].mean() - old["end"].mean()) < 5
    assert new["end"].max() <= old["end"].max()


@pytest.mark.parametrize(
    "given", [{"end": 50}, {"start": 90}, {"land": "F"}, {"city": "Rome", "start": 3}, {"part": 12.5}]
)
def test_given_rows_satisfy_them_and_what_is_given(given):
    old = frame()
    new = (
        TableFlow(constraints=RULES, random_state=0, n_steps=10)
        .fit(old)
        .sample(100, given=given, random_state=0)
    )
    holds(new, old)
    for name, value in given.items():
        assert (new[name] == value).all()


def test_imputed_rows_satisfy_them():
    old = frame()
    flow = TableFlow(constraints=RULES[:3], random_state=0, n_steps=10).fit(old)
    gaps = old.copy()
    rng = np.random.default_rng(1)
    for name in ("start", "end", "part", "total"):
        gaps[name] = gaps[name].astype("Float64").mask(rng.random(300) < 0.2)
    new = flow.impute(gaps, random_state=0)
    assert not new.isna().any().any()
    assert (new["start"] <= new["end"]).all()
    assert np.allclose(new["part"].astype(float) + new["other"], new["total"].astype(float), atol=1e-9)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("end <= start", "does not hold"),
        ("total = part + missing", "no column 'missing'"),
        ("city <= land", "kind category"),
        ("start ~ end", "cannot be read"),
        ("combinations(city, x)", "'x' is not a category"),
    ],
)
def test_constraints_that_make_no_sense_are_said(rule, said):
    with pytest.raises(ValueError, match=said):
        TableFlow(constraints=[rule]).fit(frame())
