"""`sample(given=…)` against known answers."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from sliceflow import TableFlow
from sliceflow.errors import DataError
from sliceflow.estimators.tables.draws import chain, row_distances
from sliceflow.estimators.tables.given.read_given import ValueRange
from sliceflow.estimators.tables.trials import choose_given_draws


def fit(frame, **parameters):
    return TableFlow(random_state=0, **parameters).fit(frame)


def test_a_level_with_one_row_warns(rng):
    level = np.array(["one"] + ["other"] * 499)
    x = rng.normal(size=500)
    x[0] = 50
    flow = fit(pd.DataFrame({"level": level, "x": x}))
    with pytest.warns(UserWarning, match="only 1 row of"):
        new = flow.sample(20, random_state=0, given={"level": "one"})
    # The number of one row moves, but not beyond the next ones.
    assert (new["x"] != 50).all()
    assert (new["x"] > np.sort(x)[-5]).all()
    flow = fit(pd.DataFrame({"level": level, "x": x}), min_count=1)
    with pytest.warns(UserWarning, match="only 1 row of"):
        new = flow.sample(20, random_state=0, given={"level": "one"})
    assert (new["x"] == 50).all()


def test_two_hundred_levels(rng):
    level = np.concatenate([np.full(rng.integers(3, 30), k) for k in range(200)])
    x = level + 0.3 * rng.normal(size=len(level))
    frame = pd.DataFrame({"level": [f"l{k}" for k in level], "x": x})
    flow = fit(frame, kinds={"level": "category"})
    with warnings.catch_warnings(action="ignore"):
        for k in (0, 77, 150, 199):
            new = flow.sample(50, random_state=0, given={"level": f"l{k}"})
            assert abs(new["x"].mean() - k) < 0.6


def test_xor_of_two_columns(rng):
    a, b = rng.integers(0, 2, (2, 2000))
    x = 5.0 * (a ^ b) + 0.5 * rng.normal(size=2000)
    flow = fit(pd.DataFrame({"a": a, "b": b, "x": x}))
    for first in (0, 1):
        for second in (0, 1):
            new = flow.sample(300, random_state=0, given={"a": first, "b": second})
            assert ((new["x"] > 2.5) == bool(first ^ second)).all()


def test_missing_as_a_condition_keeps_missing_shares_elsewhere(rng):
    x, z = rng.normal(size=(2, 3000))
    y = np.where(rng.random(3000) < 1 / (1 + np.exp(-2 * x)), np.nan, z)
    w = np.where(rng.random(3000) < 0.3, np.nan, z)
    frame = pd.DataFrame({"x": x, "y": y, "w": w})
    new = fit(frame).sample(3000, random_state=0, given={"y": None})
    assert new["y"].isna().all()
    assert abs(new["x"].mean() - x[np.isnan(y)].mean()) < 0.08
    assert abs(new["w"].isna().mean() - 0.3) < 0.04


@pytest.mark.parametrize("number", [-1.0, 0.3, 1.5])
def test_a_gaussian_given_a_number(number, rng):
    x, e = rng.normal(size=(2, 4000))
    flow = fit(pd.DataFrame({"x": x, "y": 3 + 0.8 * x + 0.6 * e}))
    new = flow.sample(4000, random_state=0, given={"x": number})
    assert (new["x"] == number).all()
    # Some 400 rows moved: four standard errors, and a little for leaves and lines.
    assert abs(new["y"].mean() - (3 + 0.8 * number)) < 4 * 0.6 / np.sqrt(400) + 0.01
    assert abs(new["y"].std() - 0.6) < 4 * 0.6 / np.sqrt(800) + 0.01


def test_a_mixture_given_a_number(rng):
    side = rng.choice([-3.0, 3.0], 4000)
    x = rng.normal(size=4000)
    flow = fit(pd.DataFrame({"x": x, "y": side + x + 0.3 * rng.normal(size=4000)}))
    y = flow.sample(2000, random_state=0, given={"x": 1.0})["y"].to_numpy()
    assert abs((y > 1).mean() - 0.5) < 0.1
    assert abs(y[y > 1].mean() - 4) < 0.15
    assert abs(y[y < 1].mean() + 2) < 0.15


def bias(y, mode_means, deviation):
    """How far the means of modes are off, in deviations of one; equal modes."""
    mode = np.abs(y[:, None] - mode_means).argmin(axis=1)
    means = [y[mode == k].mean() for k in range(len(mode_means))]
    return float(np.mean(np.array(means) - mode_means) / deviation)


@pytest.mark.parametrize(
    ("modes_at", "deviation", "limit"),
    [
        (lambda x: np.array([x - 3, x + 3]), 0.3, 0.35),
        (lambda x: np.array([3 + 0.8 * x]), 0.6, 0.12),
        (lambda x: np.array([x**2]), 0.3, 0.17),
    ],
    ids=["mixture", "line", "square"],
)
def test_samples_given_a_number_are_not_biased(modes_at, deviation, limit, rng):
    """The root mean square of the bias over four tables and three numbers.

    Twenty such runs gave .10 ± .07 for the mixture, at most .26 (.5 when noise moved
    rows), .04 ± .01 for the line, .08 ± .02 for the square: it fails less than once in
    a hundred runs. The mean of 400 rows alone is off by .05.
    """
    biases = []
    for _ in range(4):
        x, noise = rng.normal(size=(2, 4000))
        modes = modes_at(x)
        chosen = modes[rng.integers(len(modes), size=4000), np.arange(4000)]
        frame = pd.DataFrame({"x": x, "y": chosen + deviation * noise})
        flow = fit(frame, tree_settings=(8, 2.0, 0))
        for number in (-1.0, 0.3, 1.5):
            new = flow.sample(4000, random_state=0, given={"x": number})["y"]
            biases.append(bias(new.to_numpy(), modes_at(number), deviation))
    assert np.sqrt(np.mean(np.square(biases))) < limit


def test_numbers_that_move_stay_the_sum_of_their_parts(rng):
    """Also those that depend on the given number so weakly that noise decides."""
    x, a, b = rng.normal(size=(3, 1000))
    a = a + 0.1 * x
    frame = pd.DataFrame({"x": x, "a": a, "b": b, "total": a + b})
    new = fit(frame).sample(500, random_state=0, given={"x": 1.0})
    assert np.abs(new["total"] - new["a"] - new["b"]).median() < 0.02


def test_a_category_and_a_number_at_once(rng):
    g = rng.choice(["a", "b"], 4000)
    x = rng.normal(size=4000)
    y = np.where(g == "a", x, -x) + 0.2 * rng.normal(size=4000)
    flow = fit(pd.DataFrame({"g": g, "x": x, "y": y}))
    assert (
        abs(
            flow.sample(500, random_state=0, given={"g": "b", "x": 1.2})["y"].mean()
            + 1.2
        )
        < 0.1
    )


def test_ranges_and_lists(rng, one_comparison):
    age = rng.integers(18, 80, 2000)
    plan = rng.choice(["basic", "gold", "silver"], 2000)
    flow = fit(
        pd.DataFrame({"age": age, "plan": plan, "x": age + rng.normal(size=2000)})
    )
    new = flow.sample(
        500, random_state=0, given={"age": (30, 40), "plan": ["gold", "silver"]}
    )
    assert new["age"].between(30, 40).all()
    assert set(new["plan"]) == {"gold", "silver"}
    assert new["x"].between(26, 44).all()
    assert repr(flow.parse_given("age", "30..40")) == "(30, 40)"  # errors show it
    assert flow.parse_given("plan", "gold|silver") == ["gold", "silver"]
    assert flow.parse_given("age", "30") == 30


def test_values_come_back_as_given(rng):
    days = pd.date_range("2024-01-01", periods=60, freq="MS", tz="Europe/Berlin")
    frame = pd.DataFrame(
        {"d": np.tile(days, 5), "x": rng.normal(size=300), "b": [True, False] * 150}
    )
    flow = fit(frame)
    may = pd.Timestamp("2025-05-17", tz="Europe/Berlin")
    with warnings.catch_warnings(action="ignore"):
        new = flow.sample(3, random_state=0, given={"d": may})
        assert (new["d"] == may).all()
        june = pd.Timestamp("2025-06-01", tz="Europe/Berlin")
        for day in (
            "2025-06-01",
            pd.Timestamp("2025-06-01"),
        ):  # on the clock of the column
            assert (flow.sample(2, random_state=0, given={"d": day})["d"] == june).all()
    assert new["d"].dtype == frame["d"].dtype
    with pytest.raises(ValueError, match="does not fit"):
        flow.sample(1, random_state=0, given={"b": 0.7})
    with pytest.raises(ValueError, match="no cell of this column is"):
        flow.sample(1, random_state=0, given={"x": None})
    with pytest.warns(UserWarning, match="outside the table's values"):
        assert flow.sample(1, random_state=0, given={"x": 99.0})["x"].item() == 99.0


def test_unused_categories_and_other_constants_are_refused():
    frame = pd.DataFrame(
        {"c": pd.Categorical(["a", "b"] * 20, list("abz")), "k": 7, "x": range(40)}
    )
    flow = fit(frame)
    for given, said in (
        ({"c": "z"}, "'z'"),
        ({"k": 8}, "it has 7"),
        ({"q": 8}, "not a column"),
    ):
        with pytest.raises(ValueError, match=said):
            flow.sample(1, random_state=0, given=given)
    assert list(flow.sample(1, random_state=0)["c"].cat.categories) == ["a", "b", "z"]


def test_rows_near_a_number_are_moved_to_it_and_stay_within_the_column(rng):
    y, noise = rng.normal(size=(2, 400))
    flow = fit(pd.DataFrame({"y": y, "x": 3 * y + 0.1 * noise}))
    high = float(np.sort(y)[-2])  # its neighbors are nearly all below
    # About five of 400 are within half a deviation; twenty in less than 1e-6 of runs.
    with pytest.warns(UserWarning, match=r"only \d+ rows of the table are near it"):
        new = flow.sample(500, random_state=0, given={"y": high})
    assert abs(new["x"].mean() - 3 * high) < 0.1
    with pytest.warns(UserWarning, match="outside"):
        assert flow.sample(50, random_state=0, given={"y": 9.0})["x"].notna().all()


def warning_given(flow, given):
    """The warning of samples with something given; there must be one."""
    with pytest.warns(UserWarning, match="given=") as caught:
        flow.sample(3, random_state=0, given=given)
    return str(caught[0].message)


def test_the_warning_counts_the_rows_that_have_the_given_number():
    """Once, it counted the rows that are moved to it, or those at the end."""
    frame = pd.DataFrame({"x": np.arange(300) % 9, "c": list("ab") * 150})
    few = fit(frame[:40])
    said = warning_given(few, {"x": 4})  # 4 of 40 rows
    assert "only 4 rows of the table have this" in said
    assert "close to the 40 rows that are moved to it" in said
    said = warning_given(few, {"x": 100})
    assert "x=100 is outside the table's values" in said
    assert "no row of the table is near it" in said
    assert "no row of the table has this" in said
    said = warning_given(few, {"x": 4, "c": "a"})  # 2 rows, and 20 have c = a
    assert "only 2 rows of the table have this" in said
    assert "close to the 20 rows that are moved to it" in said
    # 33 rows have the number at the end, 8.
    said = warning_given(fit(frame), {"x": 100})
    assert "no row of the table has this" in said
    assert "close to the 33 rows nearest to it" in said
    assert "only 33 rows of the table have this" in warning_given(fit(frame), {"x": 8})


def test_a_range_may_hold_nothing_but_a_rare_number_of_near_rows(rng):
    """Once, near rows moved it out of the range each time, and no row was drawn."""
    frame = pd.DataFrame({"x": rng.permutation(4000)[:400], "y": rng.normal(size=400)})
    flow = fit(frame, tree_settings=(5, 2.0, 8))
    number = int(np.sort(frame["x"])[200])
    next_number = int(np.sort(frame["x"])[201])
    only_this = ValueRange(number, next_number, with_high=False)
    with pytest.warns(UserWarning, match="only 1 row of .* close to it$"):
        new = flow.sample(20, random_state=0, given={"x": only_this})
    assert new["x"].between(number, next_number - 1).all()
    # In a wide range, rare numbers move as they do elsewhere.
    new = flow.sample(100, random_state=0, given={"x": (1000, 3000)})["x"]
    assert new.between(1000, 3000).all()
    assert new.isin(frame["x"]).mean() < 0.3


def orders(rng, n=60):
    """Orders with net = price · quantity, and total = net + postage."""
    frame = pd.DataFrame(
        {"price": rng.gamma(2, 10, n).round(2), "quantity": rng.integers(1, 9, n)}
    )
    frame["net"] = (frame["price"] * frame["quantity"]).round(2)
    frame["postage"] = rng.gamma(2, 3, n).round(2)
    frame["total"] = (frame["net"] + frame["postage"]).round(2)
    return frame


def given_samples(flow, given):
    with warnings.catch_warnings(action="ignore"):
        return flow.sample(5, random_state=0, given=given)


@pytest.mark.parametrize("name", ["net", "total"])
def test_one_value_of_a_computed_column_may_be_a_range_or_a_list(name, rng):
    """Once, no draw of the other columns gave just this value."""
    frame = orders(rng)
    flow = fit(frame)
    value = float(frame[name][0])
    expected = given_samples(flow, {name: value})
    assert (expected[name] == value).all()
    cent = 0.01
    for given in (
        (value, value),
        [value],
        [value, value],
        (value - 0.4 * cent, value + 0.4 * cent),
        ValueRange(value - cent, value + cent, with_low=False, with_high=False),
    ):
        pd.testing.assert_frame_equal(given_samples(flow, {name: given}), expected)


def test_an_exact_sum_comes_before_a_rounded_share(rng):
    """Once, net was tax / 0.19, one of about five nets that have the same tax."""
    net = rng.integers(100, 10_000, 200) / 100
    tax = (0.19 * net).round(2)
    frame = pd.DataFrame({"net": net, "tax": tax, "total": (net + tax).round(2)})
    flow = fit(frame)
    for _, row in frame[:8].iterrows():
        new = given_samples(flow, {"tax": row["tax"], "total": row["total"]})
        assert (new["net"] == row["net"]).all()


def test_a_range_or_list_of_one_value_of_any_type_is_that_value(rng):
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.permutation(400)[:200], "D")
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 60, 200),
            "day": days,
            "text": days.strftime("%d.%m.%Y"),
            "plan": ["basic", "gold"] * 100,
            "x": pd.Series(rng.normal(size=200)).mask(rng.random(200) < 0.2),
        }
    )
    flow = fit(frame, kinds={"text": "datetime:%d.%m.%Y"})
    oldest = int(frame["age"].max())
    day = days[7]
    number = float(frame["x"].max()) - 0.123
    for name, value, given in (
        ("age", 30, ValueRange(29, 31, with_low=False, with_high=False)),
        ("age", oldest, (oldest, None)),
        ("age", oldest + 5, (oldest + 5, oldest + 5)),  # outside the column
        ("age", oldest + 5, [oldest + 5]),
        ("day", day, (day, day)),
        ("day", day, (day, day + pd.Timedelta("23h"))),
        ("text", "07.03.2024", ("07.03.2024", "07.03.2024")),
        ("plan", "gold", {"gold"}),
        ("x", number, (number, number)),
        ("x", None, [None]),
    ):
        pd.testing.assert_frame_equal(
            given_samples(flow, {name: given}), given_samples(flow, {name: value})
        )


def test_a_narrow_range_of_a_computed_column_says_why_it_fails(rng, monkeypatch):
    monkeypatch.setattr(chain, "MAX_DRAW_ROUNDS", 3)
    frame = orders(rng)
    flow = fit(frame)
    value = float(frame["net"][0])
    match = r"a range or list of 'net' is given, .*rule computes.*; give one value"
    with pytest.raises(DataError, match=match):
        given_samples(flow, {"net": (value, value + 0.01)})


def test_frequent_values_are_not_moved(rng):
    x, noise = rng.normal(size=(2, 2000))
    y = np.where(rng.random(2000) < 0.5, 0, 100 + 30 * x + noise)
    new = fit(pd.DataFrame({"x": x, "y": y})).sample(
        1000, random_state=0, given={"x": 1.0}
    )["y"]
    assert abs((new == 0).mean() - 0.5) < 0.1


def test_ranges_include_their_ends_and_numbers_are_not_rounded(rng):
    flow = fit(pd.DataFrame({"age": rng.integers(18, 80, 6000)}))
    assert (flow.sample(5, random_state=0, given={"age": (30, 30)})["age"] == 30).all()
    with pytest.raises(ValueError, match=r"30\.5 does not fit the column"):
        flow.sample(1, random_state=0, given={"age": 30.5})
    with pytest.raises(ValueError, match="no row of the table has"):
        flow.sample(1, random_state=0, given={"age": (90, 99)})
    with pytest.warns(UserWarning, match="no row has age=99$"):
        assert set(
            flow.sample(50, random_state=0, given={"age": [30, 99, 30]})["age"]
        ) == {30}


def test_ranges_and_lists_hold_for_sums_times_missing_cells_and_rows_that_are_moved(
    rng, one_comparison
):
    a, b = rng.gamma(2, 10, (2, 400)).round(2)
    days = pd.date_range("2024-10-20", periods=400, freq="38min", tz="Europe/Berlin")
    frame = pd.DataFrame(
        {"a": a, "b": b, "t": (a + b).round(2), "day": days, "text": days.astype(str)}
    )
    frame["gap"] = pd.Series(rng.integers(0, 9, 400), dtype="Int64").mask(
        rng.random(400) < 0.3
    )
    flow = fit(frame, constraints=["t = a + b"])
    values = sorted(set(a))[::7]
    for given in (
        {"t": (20.0, 30.0)},
        {"a": (values[25] + 0.005, values[30])},
        {"a": values},
        {"a": values, "t": 30.0},
        {"day": (days[180], days[280])},  # the clock is set back between them
        {"text": (str(days[50]), str(days[100])), "gap": (2, 4)},
    ):
        with warnings.catch_warnings(action="ignore"):
            new = flow.sample(100, random_state=0, given=given)
        assert np.allclose(new["t"], new["a"] + new["b"])
        for name, value in given.items():
            kept = (
                new[name].between(*value)
                if type(value) is tuple
                else new[name].isin(np.atleast_1d(value))
            )
            assert kept.fillna(False).all()  # a missing cell is not between
    for value in (7.123, 999.0):  # finer than the column, and outside it
        with pytest.raises(
            ValueError, match=r"column 'a': .* outside.* constraint 't = a . b' needs"
        ):
            flow.sample(1, random_state=0, given={"a": value})


def test_a_number_that_all_rows_have_which_are_left(rng):
    frame = pd.DataFrame({"g": ["a"] * 12 + ["b"] * 88, "k": [5.0] * 12 + [*range(88)]})
    flow = fit(frame.assign(x=rng.normal(size=100)))
    with pytest.warns(UserWarning, match="only 12 rows"):
        assert (
            flow.sample(5, random_state=0, given={"g": "a", "k": 5.0})["k"] == 5
        ).all()


def test_texts_stand_for_values_of_any_type():
    big = pd.Series([10**25 + k for k in range(40)], dtype=object)
    flow = fit(pd.DataFrame({"big": big, "n": range(40), "t": [True, False] * 20}))
    with warnings.catch_warnings(action="ignore"):
        new = flow.sample(
            1, random_state=0, given={"big": str(10**25 + 3), "n": "7", "t": "False"}
        )
    assert new.iloc[0].tolist() == [10**25 + 3, 7, False]
    for value in (0.5, "half", 1e3 + 0.5):
        with pytest.raises(ValueError, match=r"column 'big': .* does not fit"):
            flow.sample(1, random_state=0, given={"big": value})


def test_open_ranges_and_those_without_their_bounds(rng):
    frame = pd.DataFrame({"age": rng.integers(20, 60, 200), "x": rng.normal(size=200)})
    frame["cents"] = (100 * frame["x"]).round() / 100
    flow = fit(frame)

    def drawn(name, given):
        return flow.sample(100, random_state=0, given={name: given})[name]

    assert drawn("age", (50, None)).min() >= 50
    assert drawn("age", (None, 30)).max() <= 30
    above = flow.parse_given("age", ">50")
    assert repr(above) == "> 50"
    assert set(drawn("age", above)) <= set(range(51, 60))
    assert drawn("age", flow.parse_given("age", "<= 21")).isin([20, 21]).all()
    assert drawn("x", flow.parse_given("x", "> 0.5")).min() > 0.5
    assert drawn("cents", flow.parse_given("cents", "<-0.995")).max() <= -1
    with pytest.raises(DataError, match="not a range"):
        drawn("age", (None, None))


def test_given_texts_may_be_iso_dates_and_plain_numbers(rng, one_comparison):
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, 300), "D")
    dollars = rng.gamma(2, 500, 300)
    frame = pd.DataFrame(
        {
            "day": [f"{day:%d.%m.%Y}" for day in days],
            "net": [f"${value:,.2f}" for value in dollars],
            "income": rng.choice([">50K", "<=50K"], 300),
        }
    )
    flow = fit(frame)
    assert flow.parse_given("day", "2024-02-29") == "29.02.2024"
    assert flow.parse_given("day", "29.02.2024") == "29.02.2024"
    given = {"day": flow.parse_given("day", "> 2024-06-30")}
    months = flow.sample(100, random_state=0, given=given)["day"].str[3:5].astype(int)
    assert months.min() >= 7
    given = {"net": flow.parse_given("net", ">1000")}
    net = flow.sample(100, random_state=0, given=given)["net"]
    assert net.str.replace("[$,]", "", regex=True).astype(float).min() > 1000
    assert flow.parse_given("income", ">50K") == ">50K"


def test_given_samples_know_what_rows_without_it_tell(rng):
    """A tenth of the rows has the level, which says nothing about the curve."""
    x = rng.uniform(-2, 2, 1500)
    frame = pd.DataFrame(
        {
            "level": rng.choice(["a", "b"], 1500, p=[0.1, 0.9]),
            "x": x,
            "y": np.sin(3 * x) + 0.1 * rng.normal(size=1500),
        }
    )
    flow = fit(frame)
    plain = flow.sample(3000, random_state=0)
    given = flow.sample(300, random_state=0, given={"level": "a"})
    assert (given["level"] == "a").all()

    def error(samples):
        return np.sqrt(np.mean((samples["y"] - np.sin(3 * samples["x"])) ** 2))

    # The standard error of the first is a tenth of it or less.
    assert error(given) < 1.35 * error(plain[plain["level"] == "a"])


def test_in_wide_tables_the_choice_compares_the_columns_that_are_drawn(
    monkeypatch, rng
):
    """Columns are independent, so that no detector can tell plain draws.

    The AUC of one comparison, of about 50 rows with 50 draws, has a standard error of
    about .06, and their mean over twelve halves one of less than .04. The chance of a
    mean above .7 is below one in a million.
    """
    scores = []
    detector_auc = choose_given_draws.detector_auc

    def remember_score(rows, draws):
        score = detector_auc(rows, draws)
        scores.append(score)
        return score

    monkeypatch.setattr(row_distances, "MAX_COLUMNS_COMPARED", 3)
    monkeypatch.setattr(choose_given_draws, "detector_auc", remember_score)
    frame = pd.DataFrame(rng.normal(size=(300, 6)), columns=list("uvwxyz"))
    frame["level"] = rng.choice(["a", "b", "c"], 300)
    flow = fit(frame)
    with warnings.catch_warnings(action="error"):
        for given in ({"level": "a"}, {"z": (0, 5)}):
            scores.clear()
            new = flow.sample(20, random_state=0, given=given)
            assert len(scores) >= 8
            assert np.mean(scores) < 0.7
    assert new["z"].between(0, 5).all()


def test_draws_that_never_have_what_is_given_are_not_scored(monkeypatch, rng):
    """Where too few draws have it, no score of a detector is made up."""
    draws_of_no_match = np.full((50, 3), -1.0)
    monkeypatch.setattr(
        choose_given_draws, "trial_draws", lambda *_, **__: draws_of_no_match
    )
    frame = pd.DataFrame(rng.normal(size=(300, 2)), columns=["x", "y"])
    frame["level"] = rng.choice(["a", "b", "c"], 300)
    flow = fit(frame)
    with warnings.catch_warnings(action="error"):
        new = flow.sample(20, random_state=0, given={"level": "a"})
    assert (new["level"] == "a").all()


def test_all_columns_may_be_given(rng):
    frame = pd.DataFrame(
        {"a": rng.choice(["x", "y"], 300), "b": rng.choice(["u", "v"], 300)}
    )
    new = fit(frame).sample(3, random_state=0, given={"a": "x", "b": "v"})
    assert new.to_numpy().tolist() == [["x", "v"]] * 3


@pytest.fixture(scope="module")
def people_flow():
    rng = np.random.default_rng(0)
    age = rng.integers(18, 80, 200)
    return fit(pd.DataFrame({"age": age, "plan": ["basic", "gold"] * 100}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"age": math.inf},
            "given inf is no value of a table; a range may have no end",
        ),
        ({"age": (-math.inf, 30)}, "given -inf is no value of a table"),
        (
            {"age": (40, 30)},
            r"given \(40, 30\) is an empty range: 40 is above 30; pass the lower end",
        ),
        ({"plan": {"gold": 1}}, r"given \{'gold': 1\} is a dict; pass a value, a list"),
        ({"age": True}, "column 'age': given True is a bool, but the column has num"),
        ({"age": [30, np.False_]}, "column 'age': given False is a bool"),
        ({"age": (True, 30)}, "column 'age': given True is a bool"),
        ({"plan": []}, r"column 'plan': given \[\] is an empty list; list at least"),
        ({"age": np.array([])}, r"column 'age': given \[\] is an empty list"),
        ([], r"given=\[\] must be a dict"),
        (pd.Series({"plan": "gold"}), "must be a dict such as"),
        (pd.DataFrame({"plan": ["gold"]}), "must be a dict such as"),
    ],
)
def test_what_cannot_be_given_is_named(people_flow, given, message):
    with pytest.raises(ValueError, match=message):
        people_flow.sample(2, given=given)


def test_a_bool_stands_for_itself_in_a_column_of_booleans(rng, one_comparison):
    flow = fit(pd.DataFrame({"paid": rng.random(200) < 0.5, "age": np.arange(200)}))
    for given in (True, np.True_, [True]):
        drawn = flow.sample(5, given={"paid": given}, random_state=0)
        assert drawn["paid"].tolist() == [True] * 5


@pytest.mark.parametrize("several", [range(30, 33), pd.Series([30, 31, 32])])
def test_several_values_may_be_of_any_library(people_flow, several):
    drawn = people_flow.sample(20, given={"age": several}, random_state=0)
    assert drawn["age"].isin(list(several)).all()


@pytest.mark.parametrize("value", [np.array(30), np.int64(30), torch.tensor(30)])
def test_a_value_may_be_an_array_without_axes(people_flow, value, one_comparison):
    for given, same in ((value, 30), ([value], [30]), ((value, None), (30, None))):
        pd.testing.assert_frame_equal(
            people_flow.sample(5, given={"age": given}, random_state=0),
            people_flow.sample(5, given={"age": same}, random_state=0),
        )


def test_the_ends_of_a_range_of_dates_are_compared_as_dates(rng, one_comparison):
    days = pd.to_timedelta(rng.integers(0, 1000, 200), "D")
    texts = (pd.Timestamp("2020-01-01") + days).strftime("%d.%m.%Y")
    flow = fit(pd.DataFrame({"since": texts}), kinds={"since": "datetime:%d.%m.%Y"})
    drawn = flow.sample(5, given={"since": ("20.01.2020", "01.02.2022")})
    assert len(drawn) == 5
    with pytest.raises(DataError, match=r"empty range: 01\.02\.2022 is above 20\.01"):
        flow.sample(5, given={"since": ("01.02.2022", "20.01.2020")})
