"""Constraints hold in every row: of samples, given rows and imputed ones."""

import numpy as np
import pandas as pd
import pytest

from sliceflow import TableFlow, load


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


@pytest.mark.parametrize(
    "given", [{"city": "Rome", "land": "F"}, {"part": 1.0, "other": 1.0, "total": 5.0}]
)
def test_given_values_that_contradict_a_constraint_are_refused(given):
    flow = TableFlow(constraints=RULES, random_state=0, n_steps=5).fit(frame())
    with pytest.raises(ValueError, match="contradicts the constraint"):
        flow.sample(3, given=given, random_state=0)


def test_parts_of_a_small_given_total_stay_positive():
    old = frame()
    flow = TableFlow(constraints=RULES, random_state=0, n_steps=5).fit(old)
    new = flow.sample(200, given={"total": 1.5}, random_state=0)
    assert set(new["total"]) == {1.5}
    assert (new[["part", "other"]] >= 0).all().all()
    assert np.allclose(new["part"] + new["other"], 1.5)
    assert np.allclose(new["other"], new["other"].round(2), atol=1e-9)


def with_followers(n=300):
    rng = np.random.default_rng(0)
    month = rng.integers(0, 24, n)
    return pd.DataFrame(
        {
            "month": month,
            "ads": np.array([-5.0, 3.0, 80.0, 120.0])[month % 4],
            "town": np.array(["Paris", "Lyon", "Rome"])[month % 3],
            "x": rng.normal(size=n).round(1) + month,
        }
    )


def test_columns_that_follow_from_another_do_so_in_samples_given_rows_and_imputed_ones(tmp_path):
    old = with_followers()
    flow = TableFlow(random_state=0, n_steps=10).fit(old)
    notes = flow.columns_.set_index("column")["note"]
    assert notes["ads"].endswith("follows from month")
    assert notes["town"].endswith("follows from month")
    pairs = set(old[["month", "ads", "town"]].itertuples(index=False))

    def kept(new):
        return set(new[["month", "ads", "town"]].itertuples(index=False)) <= pairs

    new = flow.sample(500, random_state=1)
    assert kept(new)
    assert list(new.dtypes) == list(old.dtypes)
    assert (
        abs(np.corrcoef(new["month"], new["x"])[0, 1] - np.corrcoef(old["month"], old["x"])[0, 1])
        < 0.05
    )
    for given in ({"ads": -5.0}, {"town": "Rome"}, {"month": 3}, {"ads": 80.0, "town": "Lyon"}):
        some = flow.sample(40, given=given, random_state=1)
        assert kept(some)
        assert all((some[name] == value).all() for name, value in given.items())
    gaps = old.astype({"month": "Int64"})
    gaps.loc[::3, "month"] = pd.NA
    gaps.loc[1::3, "ads"] = np.nan
    assert kept(flow.impute(gaps, random_state=0))
    flow.save(tmp_path / "m.sliceflow")
    assert load(tmp_path / "m.sliceflow").sample(500, random_state=1).equals(new)


def test_rules_by_chance_are_not_kept():
    rng = np.random.default_rng(0)
    rare = np.arange(100) == 7  # follows from every column that tells row 7 apart
    old = pd.DataFrame({"group": np.arange(100) // 5, "rare": rare, "y": rng.integers(0, 3, 100)})
    old.loc[5:9, "rare"] = True
    flow = TableFlow(random_state=0, n_steps=5).fit(old)
    assert not any("follows" in note for note in flow.columns_["note"])


def test_partial_fit_with_rows_that_break_a_rule_gives_it_up():
    old = with_followers()
    flow = TableFlow(random_state=0, n_steps=5).fit(old)
    flow.partial_fit(old.head(40).assign(ads=3.0))
    assert not any("ads" in rule.text for rule, _ in flow._fitted.rules)


def test_check_names_what_a_fit_would_refuse():
    old = frame()
    flow = TableFlow(constraints=RULES).check(old)
    assert not hasattr(flow, "n_rows_")
    bad = old.assign(end=old["end"].where(np.arange(len(old)) != 7, -1))
    with pytest.raises(ValueError, match="'start <= end' does not hold in 1 rows, first in row 7"):
        flow.check(bad)
    with pytest.raises(ValueError, match="no column 'stop'"):
        TableFlow(constraints=["start <= stop"]).check(old)
    with pytest.raises(ValueError, match="no column can be modelled"):
        TableFlow().check(pd.DataFrame({"a": [1, 1, 1]}))
