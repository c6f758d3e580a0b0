"""Constraints hold in every row, in whatever order they are written."""

from decimal import Decimal
from itertools import product

import numpy as np
import pandas as pd
import pytest

from sliceflow import TableFlow
from sliceflow.errors import DataError, ParameterError
from sliceflow.estimators.tables.rows.table_rows import read_dataframe
from sliceflow.estimators.tables.table import Table


def sample(frame, *constraints, n=500, **parameters):
    return (
        TableFlow(constraints=constraints, random_state=0, **parameters)
        .fit(frame)
        .sample(n, random_state=0)
    )


def ordered(rng):
    return pd.DataFrame(
        np.sort(rng.normal(size=(600, 3)), 1).round(2), columns=["a", "b", "c"]
    )


def summed(rng):
    frame = pd.DataFrame(rng.integers(0, 50, (500, 3)), columns=["a", "b", "c"])
    frame["ab"] = frame["a"] + frame["b"]
    frame["abc"] = frame["ab"] + frame["c"]
    frame["cap"] = frame["abc"] + rng.integers(0, 9, 500)
    return frame


def with_missing(rng):
    low = rng.integers(0, 30, 800)
    frame = pd.DataFrame({"low": low, "more": rng.integers(1, 9, 800)})
    frame["high"] = frame["low"] + frame["more"]
    return frame.astype("Int64").mask(rng.random(frame.shape) < 0.2)


@pytest.mark.parametrize(
    ("table", "texts"),
    [
        (ordered, ["a <= b", "b <= c"]),
        (ordered, ["c >= b", "b >= a"]),
        (summed, ["ab = a + b", "abc = ab + c", "abc <= cap"]),
        (with_missing, ["low < high", "high = low + more"]),
    ],
)
@pytest.mark.parametrize("step", [1, -1])
def test_rules_hold_in_any_order_of_rules_and_columns(table, texts, step, rng):
    frame = table(rng)
    new = sample(frame[frame.columns[::step]], *texts[::step])
    assert np.allclose(new.isna().mean(), frame.isna().mean(), atol=0.07)
    for text in texts:
        assert new.dropna().eval(text.replace(" = ", " == ")).all()


def test_tiny_values_nanoseconds_and_big_integers(rng):
    tiny = 1e-10 * np.sort(rng.random((300, 2)), 1)
    large = np.sort(rng.integers(0, 10**9, (300, 2)), 1) + 1_700_000_000_000_000_000
    large[:, 1] += 1
    for rows in (tiny, large.astype("datetime64[ns]"), large):
        new = sample(pd.DataFrame(rows, columns=["a", "b"]), "a < b")
        assert (new["a"] < new["b"]).all()
        assert (new.dtypes == rows.dtype).all()


def test_currency(rng):
    price = rng.gamma(2, 20, 300).round(2)
    frame = pd.DataFrame({"price": price, "total": price + 5}).map("${:,.2f}".format)
    new = sample(frame, "price < total")
    numbers = new.apply(
        lambda column: column.str.lstrip("$").str.replace(",", "").astype(float)
    )
    assert (numbers["price"] < numbers["total"]).all()


def test_combinations_that_share_a_column(rng):
    b = rng.integers(0, 6, 800)
    a = (b + rng.integers(0, 2, 800)) % 6
    c = (b + rng.integers(0, 3, 800)) % 6
    frame = pd.DataFrame({"a": a, "b": b, "c": c}).apply(
        lambda column: column.name + column.astype(str)
    )
    new = sample(frame, "combinations(a, b)", "combinations(b, c)")
    for pair in (["a", "b"], ["b", "c"]):
        assert set(map(tuple, new[pair].to_numpy())) <= set(
            map(tuple, frame[pair].to_numpy())
        )


def test_dependencies_with_missing_cells_and_beside_combinations(rng):
    code = rng.integers(0, 30, 1500)
    frame = pd.DataFrame(
        {
            "zip": [f"z{v:02}" for v in code],
            "city": [f"c{v // 3}" for v in code],
            "country": [f"n{v // 10}" for v in code],
            "kind": rng.choice(["x", "y"], 1500),
        }
    )
    frame.loc[rng.random(1500) < 0.02, "city"] = None
    flow = TableFlow(constraints=["combinations(country, kind)"], random_state=0).fit(
        frame
    )
    new = flow.sample(800, random_state=0)
    known = dict(zip(frame["zip"], frame["country"], strict=True))
    assert (new["country"] == new["zip"].map(known)).all()
    cities = set(map(tuple, frame[["zip", "city"]].dropna().to_numpy()))
    assert set(map(tuple, new[["zip", "city"]].dropna().to_numpy())) <= cities


def test_a_rare_value_is_drawn_as_often_if_others_follow_from_it(rng):
    """Of 300 days, a third have 2 rows and the others 9; month and place follow.

    The share of rare days, .1, has a deviation of .008 in samples, so it fails once in
    10,000 times.
    """
    day = np.repeat(np.arange(300), np.where(np.arange(300) % 3, 9, 2))
    frame = pd.DataFrame({"place": day % 30, "month": day // 30, "day": day})
    frame.insert(0, "price", rng.normal(20 + day % 7, 5))
    new = sample(frame.sample(frac=1, random_state=0), n=1500)
    assert (new["month"] == new["day"] // 30).all()
    assert (new["place"] == new["day"] % 30).all()
    assert (new["day"] % 3 == 0).mean() == pytest.approx(0.1, abs=0.035)


def test_missing_cells_of_a_dependent_are_drawn_as_often(rng):
    """A grade follows from the group, where it is known: in one row of ten.

    The share has a deviation of .01, so it fails once in 10,000 times.
    """
    group = rng.integers(0, 40, 2000)
    frame = pd.DataFrame({"group": [f"g{v:02}" for v in group]})
    grade = pd.Series([f"grade {v % 5}" for v in group])
    frame["grade"] = grade.where(rng.random(2000) < 0.1)
    new = sample(frame, n=2000)
    assert new["grade"].notna().mean() == pytest.approx(0.1, abs=0.04)
    known = new.dropna()
    number = known["group"].str[1:].astype(int)
    assert (known["grade"].str[6:].astype(int) == number % 5).all()
    assert known["grade"].nunique() == 5


def test_dependent_numbers_of_many_values(rng):
    a = rng.integers(0, 150, 1000)
    frame = pd.DataFrame({"x": rng.normal(size=1000), "a": a, "b": a * 2.5 + 1})
    new = sample(frame)
    assert (new["b"] == new["a"] * 2.5 + 1).all()


def test_wrong_constraints_are_named():
    frame = pd.DataFrame({"a": [1.0, 2, 3], "b": [2.0, 1, 5], "t": ["x", "y", "x"]})
    for text, message in (
        ("a <= a", "twice"),
        ("a <= q", "no column 'q'"),
        ("t <= a", "not numbers"),
        ("a ~ b", "cannot be read"),
        (7, "cannot be read"),
        ("a = a + b", "names 'a' twice"),
        ("a = b + b", "names 'b' twice"),
        ("combinations(a, a)", "twice"),
    ):
        with pytest.raises(ParameterError, match=message) as caught:
            TableFlow(constraints=[text]).plan(frame)
        assert caught.value.parameter == "constraints"
        assert caught.value.value == text
    sums = frame.assign(t=frame["a"] + frame["b"])
    with pytest.raises(ParameterError, match="circle"):
        TableFlow(constraints=["t = a + b", "a = t - b"]).plan(sums)
    with pytest.raises(ParameterError, match="compute the same column"):
        TableFlow(constraints=["t = a + b", "t = b + a"]).plan(sums)


def test_a_row_that_breaks_a_constraint_is_named():
    frame = pd.DataFrame({"a": [1.0, 2, 3], "b": [2.0, 1, 5]})
    with pytest.raises(
        DataError, match=r"not hold in 1 rows, .* a=2\.0, b=1\.0"
    ) as caught:
        TableFlow(constraints=["a <= b"]).plan(frame)
    assert caught.value.row == 1


def test_times_across_a_clock_change_and_in_other_units(rng):
    start = pd.Series(
        pd.date_range("2024-10-26 20:00", periods=100, freq="7min", tz="Europe/Berlin")
    )
    end = (start + pd.to_timedelta(rng.integers(1, 90, 100), "min")).dt.tz_convert(
        "America/New_York"
    )
    frame = pd.DataFrame({"start": start, "end": end, "took": end - start})
    new = sample(frame, "start < end")
    assert (new["start"] < new["end"]).all()
    with pytest.raises(ValueError, match="different kinds"):
        TableFlow(constraints=["start < took"]).plan(frame)


def test_texts_with_other_offsets_compare_as_they_are():
    times = pd.date_range("2024-05-01 10:00", periods=60, freq="h")
    frame = pd.DataFrame({"a": times.strftime("%Y-%m-%dT%H:%M:%SZ")})
    frame["b"] = (times + pd.Timedelta("30min")).strftime(
        "%Y-%m-%dT%H:%M:%S+02:00"
    )  # earlier
    assert len(sample(frame, "b < a", n=3)) == 3
    with pytest.raises(ValueError, match="does not hold"):
        sample(frame, "a < b")


def test_sums_of_durations_and_decimals_are_exact(rng):
    a, b = rng.integers(0, 900, (2, 300))
    spans = pd.DataFrame({"a": pd.to_timedelta(a, "s"), "b": pd.to_timedelta(b, "min")})
    cents = pd.DataFrame({"a": a, "b": b}).map(lambda v: Decimal(v) / 100)
    for frame in (spans, cents):
        new = sample(frame.assign(all=frame["a"] + frame["b"]), "all = a + b")
        assert (new["all"] == new["a"] + new["b"]).all()


def test_given_against_a_constraint_raises():
    frame = pd.DataFrame({"a": np.arange(50.0), "b": np.arange(50.0) + 5})
    flow = TableFlow(constraints=["a < b"], random_state=0).fit(frame)
    with (
        pytest.raises(ValueError, match="constraint"),
        pytest.warns(UserWarning, match="near it"),
    ):
        flow.sample(5, random_state=0, given={"a": 40.0, "b": 10.0})


def test_given_against_a_discovered_rule_names_it_and_no_constraint(rng):
    a, b = rng.integers(0, 10, (2, 200))
    frame = pd.DataFrame({"a": a, "b": b, "c": a + b})
    flow = TableFlow(random_state=0).fit(frame)
    match = r"3 of 3 rows could not keep the rule 'c = a \+ b' .*change what is given"
    with (
        pytest.raises(DataError, match=match) as caught,
        pytest.warns(UserWarning, match="near it"),
    ):
        flow.sample(3, random_state=0, given={"a": 5, "b": 3, "c": 2})
    assert "constraint" not in str(caught.value)


def test_bounds_and_sums_are_read_with_their_signs_and_checked_to_the_last_digit(rng):
    total = rng.integers(50, 90, 300)
    part = rng.integers(1, 50, 300)
    noise = rng.normal(size=300)
    frame = pd.DataFrame(
        {"total": total, "part": part, "rest": total - part, "x": noise}
    )
    frame["y"] = frame["x"] * (1 + 1e-5)
    frame["z"] = frame["x"] + noise.std()
    assert len(sample(frame, "total > -3", n=1)) == 1
    new = sample(frame, "rest = total - part")
    assert (new["rest"] == new["total"] - new["part"]).all()
    new = sample(
        frame,
        "total <= part + rest + 0.5",
        "rest >= -part + 50",
        "total = 5e0 + rest + part - 5",
    )
    assert (new["rest"] + new["part"] == new["total"]).all()
    five = pd.Series([5, 5, None] * 40)
    for same in (five, five.astype("Int64"), five / 3):
        new = sample(pd.DataFrame({"a": same, "x": range(120)}), f"a = {same[0]}")["a"]
        assert set(new.dropna()) == {same[0]}
        assert new.isna().any()
    for text in ("total >= 70", "y = x", "x > z", "total < part - rest", "part = 5"):
        with pytest.raises(ValueError, match=f"{text!r} does not hold"):
            sample(frame, text)


def test_missing_totals_stay_and_large_numbers_and_zones_compare_as_they_are(rng):
    frame = pd.DataFrame(rng.integers(0, 50, (400, 2)), columns=["a", "b"])
    frame["total"] = frame.sum(axis=1).astype("Int64").mask(rng.random(400) < 0.3)
    flow = TableFlow(constraints=["total = a + b"], random_state=0).fit(frame)
    assert abs(flow.sample(500, random_state=0)["total"].isna().mean() - 0.3) < 0.1
    given = flow.sample(50, random_state=0, given={"total": 60})
    assert (given["total"] == 60).all()
    assert (given["a"] + given["b"] == 60).all()
    assert given["a"].nunique() > 10
    far = 6 * 10**18
    large = pd.DataFrame(
        {"a": rng.integers(0, 99, 60) - far, "b": rng.integers(0, 99, 60) + far}
    )
    assert len(sample(large, "a <= b", n=3)) == 3  # a − b is beyond 64 bits
    wide = pd.DataFrame(rng.integers(0, 2**59, (60, 2)), columns=["a", "b"])
    with pytest.raises(
        DataError, match=r"spans more than 2\^53 steps.* divide the columns"
    ) as caught:
        sample(wide.assign(total=wide["a"] + wide["b"]), "total = a + b")
    assert caught.value.column == "total"
    times = pd.Series(pd.date_range("2024-05-01", periods=60, freq="h", tz="UTC"))
    clocks = pd.DataFrame(
        {"a": times, "b": (times - pd.Timedelta("30min")).dt.tz_convert("Asia/Tokyo")}
    )
    with pytest.raises(ValueError, match="does not hold"):  # on the walls it would
        sample(clocks, "a <= b")
    seconds = pd.to_timedelta(rng.integers(0, 2_000_000, 400), "s")
    later = pd.to_timedelta(rng.integers(60, 1800, 400), "s")
    times = pd.Timestamp("2024-05-01", tz="UTC") + seconds
    new = sample(
        pd.DataFrame({"a": times, "b": (times + later).tz_convert("Europe/Berlin")}),
        "a <= b",
    )
    assert (new["a"] <= new["b"]).all()  # times between known ones, too


def test_combinations_of_three_and_dependencies_are_exact(rng):
    frame = pd.DataFrame(
        {"a": [0, 0, 1] * 20, "b": [0, 1, 0] * 20, "c": [0, 1, 1] * 20}
    )
    table = Table.from_rows(read_dataframe(frame), {}, ["combinations(a, b, c)"])
    every = np.array(list(product((0.0, 1.0), repeat=3)))
    occurs = every[~table.rule_set.is_broken_so_far(table.rule_set.rules[0], every)]
    assert set(map(tuple, occurs)) == set(map(tuple, table.level_positions))
    frame = pd.DataFrame(rng.integers(0, 3, (60, 6)), columns=[*"abcdef"])
    assert (
        Table.from_rows(read_dataframe(frame), {}, ()).rule_set.rules == ()
    )  # nothing is by chance
    groups = np.arange(100) // 5
    frame = pd.DataFrame({"a": groups, "b": np.where(groups == 3, "x", "y")})
    assert (
        Table.from_rows(read_dataframe(frame), {}, ()).rule_set.rules == ()
    )  # 95 % are y: by chance
    frame["b"] = pd.Series([f"b{g % 7}" for g in groups]).mask(np.arange(100) % 9 == 0)
    (rule,) = Table.from_rows(read_dataframe(frame), {}, ()).rule_set.rules
    assert rule.text == "b follows from a"  # with cells missing in some groups


def test_totals_are_drawn_behind_their_parts_in_any_order_of_columns(rng):
    frame = pd.DataFrame(rng.integers(0, 9, (60, 3)), columns=["a", "b", "c"])
    frame["ab"] = frame["a"] + frame["b"]
    frame["abc"] = frame["ab"] + frame["c"]
    rows = read_dataframe(frame[["ab", "c", "abc", "a", "b"]])
    table = Table.from_rows(rows, {}, ["abc = ab + c", "ab = a + b"])
    assert [table.names[c] for c in table.drawing_order] == ["c", "a", "b", "ab", "abc"]


def test_cells_that_sums_determine_one_after_the_other_are_computed(rng):
    parts = pd.DataFrame(rng.integers(0, 9, (60, 6)), columns=[*"uvwxyz"])
    frame = parts.copy()
    constraints = []
    for first, second in ("yz", "wx", "uv", "xy", "vw"):
        frame[f"{first}{second}"] = parts[first] + parts[second]
        constraints.append(f"{first}{second} = {first} + {second}")
    table = Table.from_rows(read_dataframe(frame), {}, constraints)
    z = table.level_positions.copy()
    z[:, 1:6] = z[::-1, 1:6]  # drawn before the totals were known
    is_changeable = np.isin(np.arange(table.level_positions.shape[1]), range(1, 6))
    finished = table.rule_set.finish_rows(z, is_changeable)
    assert finished.is_valid.all()
    # v follows from u, w from v, and so on.
    assert np.array_equal(finished.level_positions, table.level_positions)


def test_constants_are_compared_and_filled(rng):
    day = pd.Timestamp("2024-05-01")
    frame = pd.DataFrame(
        {"a": rng.integers(0, 50, 200), "cap": 49, "zero": 0.25, "first": day}
    )
    frame["b"] = 49 - frame["a"]
    frame["day"] = day + pd.to_timedelta(frame["a"], "D")
    flow = TableFlow(
        constraints=["a <= cap", "cap = a + b", "zero <= cap", "first <= day"],
        random_state=0,
    )
    new = flow.fit(frame).sample(300, random_state=0)
    assert (new["a"] + new["b"] == new["cap"]).all()
    assert "49" in flow.columns_["note"][1].split()
    incomplete = frame.iloc[:9].assign(cap=None, first=None)
    pd.testing.assert_frame_equal(
        flow.impute(incomplete, random_state=0), frame.iloc[:9]
    )
    with pytest.raises(ValueError, match="'cap <= zero' does not hold"):
        flow.set_params(constraints=["cap <= zero"]).fit(frame)
    with pytest.raises(ValueError, match="not a kind of column"):
        TableFlow(kinds={"a": "constant"}).plan(frame)
