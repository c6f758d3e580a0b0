"""Rules of a table: found beyond chance, in words, and kept in every new row."""

import warnings
from decimal import ROUND_HALF_EVEN, Decimal

import numpy as np
import pandas as pd
import pytest

import sliceflow
from sliceflow import TableFlow
from sliceflow.estimators.tables.rows.table_rows import read_dataframe
from sliceflow.estimators.tables.table import Table


def orders(rng, n=1200, missing=0.0):
    """Orders whose net price, tax and total are computed, with some cells missing."""
    price = rng.choice(rng.gamma(3, 12, 60).round(2) + 3, n).round(2)
    quantity = 1 + rng.poisson(1.5, n)
    frame = pd.DataFrame({"price": price, "quantity": quantity})
    frame["net"] = (price * quantity).round(2)
    is_large = frame["net"] > 80
    frame["shipping"] = np.where(is_large, 0, rng.choice([4.9, 6.5, 9.9], n))
    frame["rate"] = rng.choice([7, 19], n)
    frame["tax"] = (frame["net"] * frame["rate"] / 100).round(2)
    frame["total"] = (frame["net"] + frame["shipping"] + frame["tax"]).round(2)
    frame["ordered"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(
        rng.integers(0, 360, n), "D"
    )
    frame["delivered"] = frame["ordered"] + pd.to_timedelta(rng.integers(0, 9, n), "D")
    for name in ("shipping", "tax", "total", "delivered"):
        frame.loc[rng.random(n) < missing, name] = None
    return frame


ORDER_RULES = {
    "total = net + shipping + tax",
    "net = price · quantity, rounded",
    "tax = 0.01 · net · rate, rounded",
    "ordered <= delivered",
}


def broken(frame):
    """How many rows break each rule of orders, in exact arithmetic."""
    cents = (100 * frame[["price", "net", "shipping", "tax", "total"]]).round()
    tax = cents["net"] * frame["rate"] / 100
    return {
        "net": int((cents["net"] != cents["price"] * frame["quantity"]).sum()),
        "tax": int(((cents["tax"] - tax).abs() > 0.5 + 1e-6).sum()),
        "total": int(
            (cents["net"] + cents["shipping"] + cents["tax"] - cents["total"])
            .fillna(0)
            .ne(0)
            .sum()
        ),
        "delivered": int((frame["delivered"] < frame["ordered"]).sum()),
    }


def find(frame, constraints=()):
    table = Table.from_rows(read_dataframe(frame), {}, constraints)
    return {rule.text: rule.share for rule in table.found_rules}


@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_orders_keep_their_rules(rng, missing):
    """Missing cells are as many: their shares have deviations of .01."""
    frame = orders(rng, missing=missing)
    flow = TableFlow(random_state=0).fit(frame)
    assert {rule.text for rule in flow.rules_} == ORDER_RULES
    assert {rule.share for rule in flow.rules_} == {1.0}
    new = flow.sample(1000, random_state=0)
    assert broken(new) == {"net": 0, "tax": 0, "total": 0, "delivered": 0}
    assert np.allclose(new.isna().mean(), frame.isna().mean(), atol=0.06)
    assert new["net"].corr(new["total"]) == pytest.approx(
        frame["net"].corr(frame["total"]), abs=0.02
    )


def test_a_given_total_is_reached_by_its_parts(rng):
    flow = TableFlow(random_state=0).fit(orders(rng, 2000))
    with warnings.catch_warnings(action="ignore"):  # few rows have this
        new = flow.sample(50, given={"tax": 7.6, "rate": 19}, random_state=0)
    assert (new["tax"] == 7.6).all()
    assert broken(new) == {"net": 0, "tax": 0, "total": 0, "delivered": 0}
    new = flow.sample(100, given={"total": (50.0, 80.0)}, random_state=0)
    assert new["total"].between(50, 80).all()
    assert broken(new) == {"net": 0, "tax": 0, "total": 0, "delivered": 0}


def test_weighted_sums_and_rounded_quotients(rng):
    """As of a season of baseball; who never bats has an average of 0."""
    n = 800
    bats = np.where(rng.random(n) < 0.15, 0, rng.negative_binomial(1, 0.005, n))
    hit = rng.binomial(bats, 0.25)
    double = rng.binomial(hit, 0.2)
    triple = rng.binomial(hit - double, 0.05)
    home_run = rng.binomial(hit - double - triple, 0.1)
    frame = pd.DataFrame(
        {"bats": bats, "hit": hit, "double": double, "triple": triple, "run": home_run}
    )
    frame["bases"] = hit + double + 2 * triple + 3 * home_run
    frame["average"] = np.where(bats > 0, hit / np.maximum(bats, 1), 0).round(3)
    rules = find(frame)
    assert "bases = hit + double + 2·triple + 3·run" in rules
    assert "average = hit / bats, rounded" in rules
    flow = TableFlow(random_state=0).fit(frame)
    new = flow.sample(800, random_state=0)
    bases = new["hit"] + new["double"] + 2 * new["triple"] + 3 * new["run"]
    assert (new["bases"] == bases).all()
    batting = new[new["bats"] > 0]
    error = (batting["average"] - batting["hit"] / batting["bats"]).abs()
    assert error.max() <= 0.0005 + 1e-9
    assert (new["bats"] == 0).mean() == pytest.approx((bats == 0).mean(), abs=0.06)


def test_a_rule_that_nearly_always_holds_holds_as_often(rng):
    """Ten of 2,000 rows break it, .5 percent; of 4,000 draws, between .1 and 1.2.

    A binomial share is outside of these limits less than once in 10,000 times.
    """
    frame = pd.DataFrame(rng.integers(0, 900, (2000, 2)), columns=["a", "b"])
    frame["sum"] = frame["a"] + frame["b"]
    wrong = rng.permutation(2000)[:10]
    frame.loc[wrong, "sum"] += rng.integers(1, 90, 10)
    flow = TableFlow(random_state=0).fit(frame)
    (rule,) = [rule for rule in flow.rules_ if rule.columns[0] == "sum"]
    assert rule.text == "sum = a + b"
    assert rule.share == 0.995
    assert repr(rule) == "sum = a + b (99.5 % of rows)"
    new = flow.sample(4000, random_state=0)
    is_broken = new["sum"] != new["a"] + new["b"]
    assert 0.001 < is_broken.mean() < 0.012


def test_parts_of_dates_and_multiples(rng):
    time = pd.Timestamp("2013-01-01") + pd.to_timedelta(rng.integers(0, 8000, 900), "h")
    frame = pd.DataFrame({"hour": time.hour, "month": time.strftime("%b"), "at": time})
    frame["net"] = rng.gamma(2, 50, 900).round(2)
    frame["tax"] = (0.19 * frame["net"]).round(2)
    rules = find(frame)
    assert rules.keys() >= {
        "hour is the hour of at",
        "month is the month of at",
        "tax = 0.19 · net, rounded",
    }
    new = TableFlow(random_state=0).fit(frame).sample(500, random_state=0)
    assert (new["at"].dt.hour == new["hour"]).all()
    assert (new["at"].dt.strftime("%b") == new["month"]).all()
    assert ((new["tax"] - 0.19 * new["net"]).abs() <= 0.005 + 1e-9).all()


def test_products_are_rounded_as_decimals_are(rng):
    """Compared with Python's decimal arithmetic; a tie goes to the even digit."""
    price = rng.integers(1, 99_999, 400) / 1000
    rate = rng.integers(1, 999, 400) / 100
    frame = pd.DataFrame({"price": price, "rate": rate})
    exact = [
        Decimal(f"{p:.3f}") * Decimal(f"{r:.2f}")
        for p, r in zip(price, rate, strict=True)
    ]
    rounded = [value.quantize(Decimal("0.01"), ROUND_HALF_EVEN) for value in exact]
    frame["product"] = [float(value) for value in rounded]
    table = Table.from_rows(read_dataframe(frame), {}, ())
    (rule,) = table.rule_set.rules
    assert rule.column_indices == (2, 0, 1)
    z = table.level_positions
    assert np.array_equal(rule.solve(table.columns, z, 2), z[:, 2])
    assert not rule.is_broken(table.columns, z).any()
    moved = z.copy()
    moved[:, 2] = np.roll(z[:, 2], 1)
    assert rule.is_broken(table.columns, moved).mean() > 0.9


def shuffled(frame, rng):
    return pd.DataFrame({name: rng.permutation(frame[name]) for name in frame})


@pytest.mark.parametrize(
    "n_tables", [3, pytest.param(100, marks=pytest.mark.slow)], ids=["few", "hundred"]
)
def test_shuffled_columns_have_no_rules(rng, n_tables):
    """Counts, money, rare levels and towns: nothing is left of their rules.

    A rule by chance has a probability below 1e-9 for each pair of columns.
    """
    n_with_rules = 0
    for _ in range(n_tables):
        n = int(rng.integers(60, 600))
        frame = orders(rng, n, missing=0.1)
        frame["rare"] = np.where(rng.random(n) < 0.02, "x", "y")
        frame["town"] = rng.integers(0, n // 6, n)
        frame["country"] = frame["town"] // 5
        frame["count"] = rng.poisson(0.3, n)
        frame["other count"] = rng.poisson(0.3, n)
        n_with_rules += bool(find(shuffled(frame, rng)))
    assert n_with_rules <= n_tables // 100


def test_constraints_overrule_and_rules_can_be_off(rng):
    frame = orders(rng, 400)
    assert "ordered <= delivered" not in find(frame, ["ordered <= delivered"])
    assert "total = net + shipping + tax" not in find(
        frame, ["net = total - shipping - tax"]
    )
    flow = TableFlow(rules="off", random_state=0).fit(frame)
    assert flow.rules_ == []
    with pytest.raises(ValueError, match="rules"):
        TableFlow(rules="on").fit(frame)


def test_rules_stay_in_files(rng, tmp_path):
    flow = TableFlow(random_state=0).fit(orders(rng, 400))
    flow.save(tmp_path / "model")
    loaded = sliceflow.load(tmp_path / "model")
    assert loaded.rules_ == flow.rules_
    drawn = loaded.sample(20, random_state=0)
    pd.testing.assert_frame_equal(drawn, flow.sample(20, random_state=0))


def test_missing_cells_that_follow_are_computed(rng):
    """Each row lacks one cell of its total, which the others say.

    A model has no values beyond those of its table, which 1 row of 100 may need.
    """
    frame = orders(rng, 900)
    train = frame[:600]
    held_out = frame[600:].reset_index(drop=True)
    incomplete = held_out.astype({"quantity": float})
    names = np.array(["total", "tax", "net"])[np.arange(300) % 3]
    for name in ("total", "tax", "net"):
        incomplete[name] = incomplete[name].mask(names == name)
    full = TableFlow(random_state=0).fit(train).impute(incomplete, random_state=0)
    computed = ["net", "tax", "total"]
    is_right = np.isclose(full[computed], held_out[computed], atol=1e-9).all(axis=1)
    assert is_right.mean() > 0.97


def test_rows_with_new_levels_are_filled(rng):
    frame = pd.DataFrame({"g": rng.choice([*"abc"], 200), "x": rng.normal(size=200)})
    flow = TableFlow(random_state=0).fit(frame)
    incomplete = pd.DataFrame({"g": ["q", None, "a"], "x": [None, 1.0, None]})
    with pytest.warns(UserWarning, match="1 rows have values .* such as g=q"):
        full = flow.impute(incomplete, random_state=0)
    assert full.notna().all(axis=None)
    assert full["g"][0] == "q"


def test_one_broken_row_of_floats_does_not_hide_a_constant_part(rng):
    frame = pd.DataFrame(rng.normal(size=(400, 2)), columns=["a", "b"])
    frame["total"] = frame["a"] + frame["b"] + 100
    frame.loc[7, "total"] = 900.0
    (text,) = [text for text in find(frame) if "total" in text]
    assert "100" in text


def test_rare_numbers_determine_nothing(rng):
    """Their values would come back as they are: a wage of one row, and its class."""
    wage = rng.choice(rng.permutation(10_000)[:250], 800)
    frame = pd.DataFrame(
        {"wage": wage, "band": wage // 1000, "x": rng.normal(size=800)}
    )
    rows = read_dataframe(frame)
    table = Table.from_rows(rows, {}, (), min_count=5)
    assert "band follows from wage" not in {rule.text for rule in table.found_rules}
    without_limit = Table.from_rows(rows, {}, (), min_count=1)
    texts = {rule.text for rule in without_limit.found_rules}
    assert "band follows from wage" in texts
