"""`metrics.table_report`: fresh rows score as the floor, bad ones are found out."""

import numpy as np
import pandas as pd
import pytest

from sliceflow.metrics import table_report
from sliceflow.metrics.tables import association, dependencies, embedded


def rows(n, seed):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=n)
    kind = np.where(a + rng.normal(size=n) > 0, "u", "v")
    b = np.where(rng.random(n) < 0.1, np.nan, 2 * a + rng.normal(size=n))
    return pd.DataFrame(
        {"a": a, "b": b, "n": rng.poisson(3, n), "kind": kind, "id": [f"r{seed}{k}" for k in range(n)]}
    )


TRAIN, TEST, FRESH = rows(400, 1), rows(400, 2), rows(400, 3)


def test_fresh_rows_score_as_their_floor():
    report = table_report(TRAIN, TEST, FRESH)
    scores = report.scores
    assert abs(scores["detection"] - 0.5) < 0.08
    assert scores["shape"] > 0.93
    assert scores["trend"] < 0.08
    assert abs(scores["utility"] - report.floors["utility"]) < 0.1
    assert scores["copies"] < 0.04
    assert 0.85 < scores["nn_ratio"] < 1.15
    assert scores["valid"] > 0.98
    assert scores["missing"] < 0.06
    assert "id" not in report.columns
    assert report.target == "kind"
    assert set(report.floors) == set(scores)
    assert "detection" in str(report)


def test_independent_columns_are_detected_and_the_worst_pair_comes_first():
    rng = np.random.default_rng(0)
    loose = pd.DataFrame({name: rng.permutation(FRESH[name]) for name in FRESH})
    report = table_report(TRAIN, TEST, loose)
    assert report.scores["detection"] > 0.75
    assert report.scores["shape"] > 0.93
    assert report.pairs[0][:2] == ("a", "b")
    assert report.scores["utility"] < report.floors["utility"] - 0.2


def test_copies_are_seen_and_invalid_cells_too():
    report = table_report(TRAIN, TEST, TRAIN)
    assert report.scores["copies"] == report.scores["exact"] == 1
    wrong = FRESH.assign(n=FRESH["n"] + 0.5, kind="w")
    assert table_report(TRAIN, TEST, wrong).scores["valid"] < 0.6


def test_polars_tables_score_the_same():
    pl = pytest.importorskip("polars")
    made = [pl.DataFrame({c: f[c].to_list() for c in f}) for f in (TRAIN, TEST, FRESH)]
    made = [f.with_columns(pl.col("b").fill_nan(None)) for f in made]
    a, b = table_report(*made).scores, table_report(TRAIN, TEST, FRESH).scores
    assert a == pytest.approx(b)


def test_bad_tables_are_named():
    with pytest.raises(ValueError, match="'n' is not in all"):
        table_report(TRAIN, TEST, FRESH.drop(columns="n"))
    with pytest.raises(ValueError, match="10 or more"):
        table_report(TRAIN, TEST, FRESH[:5])
    with pytest.raises(ValueError, match="target='z'"):
        table_report(TRAIN, TEST, FRESH, target="z")


def test_associations_are_those_of_the_textbook():
    a = np.array([0.0, 0, 1, 1])
    numbers = np.column_stack((a, a, [1.0, 2, 3, 4], [0.0, 1, 0, 1]))
    found = association(numbers, [True, True, False, True])
    assert found[0, 1] == pytest.approx(1)  # Cramér's V of a column with itself
    assert found[0, 3] == pytest.approx(0)
    assert found[0, 2] == pytest.approx(np.sqrt(4 / 5))  # between over total: 4 of 5


def test_distances_count_a_category_like_a_standard_deviation():
    numbers = np.array([[0.0, 0], [1, 0], [0, 30]])
    points = embedded(numbers, [2, 31], numbers)
    assert np.linalg.norm(points[0] - points[1]) == pytest.approx(1)
    assert np.linalg.norm(points[0] - points[2]) == pytest.approx(1, abs=0.35)  # many categories


def test_numbers_written_as_text_are_compared_as_numbers():
    rng = np.random.default_rng(0)

    def rows(n, high):
        prices = rng.uniform(0, high, n)
        return pd.DataFrame({"price": [f"${v:,.2f}" for v in prices], "x": prices + rng.normal(size=n)})

    train, test = rows(100, 5000), rows(100, 5000)
    good, bad = (table_report(train, test, rows(100, high), floors=False) for high in (5000, 2500))
    assert good.columns["price"] > 0.8 > bad.columns["price"]
    assert next(pair for pair in good.pairs)[2] > 0.99


def test_associations_are_compared_on_as_many_rows():
    rng = np.random.default_rng(0)

    def rows(n):
        return pd.DataFrame({"zip": rng.integers(0, 50, n).astype(str), "x": rng.normal(size=n)})

    rows_of = {n: rows(n).assign(zip=lambda f: "z" + f["zip"]) for n in (1000, 60, 999)}
    report = table_report(*rows_of.values(), floors=False)
    assert report.scores["trend"] < 0.15  # 60 and 999 rows would differ by .7


def test_rules_between_columns_are_measured():
    rng = np.random.default_rng(0)

    def rows(n, broken):
        town = rng.integers(0, 8, n)
        land = np.where(rng.random(n) < broken, (town + 1) % 8, town) // 3
        return pd.DataFrame({"town": town, "land": land, "x": rng.normal(size=n)})

    report = table_report(rows(200, 0.0), rows(100, 0.0), rows(200, 0.6), floors=False)
    assert 0.6 < report.scores["rules"] < 0.95
    assert np.isnan(report.floors["rules"])
    assert dependencies(rows(200, 0.0).to_numpy()) == [(0, 1)]
