"""Types come back as they were, and are understood for what they are."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from sliceflow import TableFlow
from sliceflow.errors import DataError, ParameterError
from sliceflow.estimators.tables.columns.formats import infer_date_formats
from sliceflow.estimators.tables.rows.encoded_columns import EncodedColumn
from sliceflow.estimators.tables.rows.table_rows import read_dataframe


def fit(frame, **parameters):
    return TableFlow(random_state=0, **parameters).fit(frame)


N = 200
COLUMNS = {
    "int64 beyond 2**62": lambda r: 2**62 + r.integers(0, 10**15, N),
    "uint64": lambda r: (2**63 + r.integers(0, 10**15, N).astype(np.uint64)).astype(
        np.uint64
    ),
    "Float32": lambda r: pd.array(r.normal(size=N), dtype="Float32"),
    "float32": lambda r: r.normal(size=N).astype(np.float32),
    "float16": lambda r: r.normal(size=N).astype(np.float16),
    "unix seconds": lambda r: 1.7e9 + (r.random(N) * 1e6).round(3),
    "Decimal": lambda r: pd.Series(
        [Decimal(int(v)) / 100 for v in r.integers(0, 9999, N)], dtype=object
    ),
    "bool": lambda r: r.random(N) < 0.3,
    "string": lambda r: pd.array(r.choice(["a", "b"], N), dtype="string"),
    "days": lambda r: (
        pd.Timestamp("2020-01-01") + pd.to_timedelta(r.integers(0, 900, N), "D")
    ),
    "nanoseconds": lambda r: r.integers(0, 10**9, N).astype("datetime64[ns]"),
    "New York": lambda r: pd.date_range(
        "2024-11-02", periods=N, freq="20min", tz="America/New_York"
    ),
    "Berlin": lambda r: pd.date_range(
        "2024-10-26", periods=N, freq="20min", tz="Europe/Berlin"
    ),
    "offset": lambda r: pd.date_range("2024-10-26", periods=N, freq="h", tz="+05:30"),
    "months": lambda r: pd.date_range("2005-01-01", periods=N, freq="MS"),
    "two places": lambda r: pd.Series(
        [Decimal("1.10"), Decimal("1.1")] * (N // 2), dtype=object
    ),
    "days in Berlin": lambda r: pd.date_range(
        "2024-01-01", periods=N, tz="Europe/Berlin"
    ),
    "ISO with offsets": lambda r: [
        f"2024-{k % 9 + 1:02}-10T10:00:00+0{k % 3}:00" for k in range(N)
    ],
    "ISO in ms": lambda r: (
        pd.Timestamp(0) + pd.to_timedelta(r.integers(0, 10**12, N), "ms")
    ).map(lambda time: time.isoformat(timespec="milliseconds")),
    "categories of days": lambda r: pd.Categorical(
        pd.Timestamp(0) + pd.to_timedelta(r.integers(0, 3, N), "D")
    ),
    "arrow int": lambda r: pd.array(
        2**62 + r.integers(0, 99, N), dtype="int64[pyarrow]"
    ),
    "arrow float": lambda r: pd.array(r.normal(size=N), dtype="double[pyarrow]"),
    "arrow bool": lambda r: pd.array(r.random(N) < 0.3, dtype="bool[pyarrow]"),
    "arrow time": lambda r: pd.Series(
        pd.date_range("2024-10-26", periods=N, freq="h", tz="Europe/Berlin")
    ).astype("timestamp[us, tz=Europe/Berlin][pyarrow]"),
}


def with_missing_cells(column, missing):
    if column.dtype == object:
        return column.where(~missing, None)
    return column.mask(missing)


def check_values(name, values, known):
    """What is special about some columns."""
    if name == "months":
        assert (values.dt.day == 1).all()
    if name.startswith("days"):
        assert (values == values.dt.normalize()).all()
    if name == "ISO with offsets":
        assert set(values) <= set(known)
    if name == "ISO in ms":
        assert (values.str.len() == 23).all()
    if name == "unix seconds":
        assert (values % 1 != 0).mean() > 0.9
    if name == "Decimal":
        assert all(value == round(value, 2) for value in values)


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("missing", [False, True])
def test_a_column_comes_back(name, missing, rng):
    column = pd.Series(COLUMNS[name](rng))
    is_missing = rng.random(N) < 0.2
    n_observed = 300
    if missing:
        if str(column.dtype).startswith(("int", "uint")) or column.dtype == bool:
            pytest.skip("the dtype has no missing cells")
        column = with_missing_cells(column, is_missing)
        n_observed = pytest.approx(240, abs=39)
    frame = pd.DataFrame({"c": column, "x": rng.normal(size=N)})
    new = fit(frame).sample(300, random_state=0)["c"]
    assert new.dtype == frame["c"].dtype
    values = new.dropna()
    known = frame["c"].dropna()
    assert len(values) == n_observed
    if frame["c"].dtype == object:
        assert {type(value) for value in values} == {type(value) for value in known}
    if hasattr(frame["c"], "cat"):
        assert list(new.cat.categories) == list(frame["c"].cat.categories)
        assert new.cat.ordered == frame["c"].cat.ordered
    else:
        assert known.min() <= values.min()
        assert values.max() <= known.max()
    check_values(name, values, known)


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["2024-01-31", "2024-02-01", "2023-12-24"], "datetime"),
        (["31.01.2024", "01.02.2024", "24.12.2023"], "datetime"),
        (["01/31/2024", "02/01/2024", "12/24/2023"], "datetime"),
        (["1.234,50 €", "7,25 €", "12,00 €"], "continuous"),
        (["$1,234", "$7", "$99"], "integer"),
        (["7%", "12%", "30%"], "integer"),
        (["-$5.25", "$7.00", "$12.50"], "continuous"),
        (["EUR 12.50", "EUR 7.00", "EUR 1,300.00"], "continuous"),
        (["08:30", "17:45", "00:00"], "datetime"),
        (["08:30:59", "17:45:00", "00:00:01"], "datetime"),
        (["02:30 PM", "11:15 AM", "12:00 AM"], "datetime"),
        (["2:1", "3:0", "0:0"], "category"),
        (["31-Jan-2024", "01-Feb-2024", "24-Dec-2023"], "datetime"),
        (["00123", "00456", "01234"], "category"),
    ],
)
def test_texts_are_returned_as_they_were_written(texts, kind, rng):
    frame = pd.DataFrame({"t": texts * 30, "x": rng.normal(size=90)})
    flow = fit(frame)
    assert flow.kinds_["t"] == kind
    assert set(flow.sample(60, random_state=0)["t"]) <= set(texts)


@pytest.mark.parametrize(
    "form",
    [
        "%Y-%m-%dT%H:%M:%S+02:00",
        "%Y-%m-%d %H:%M:%S.5",
        "%d/%m/%Y %I:%M %p",
        "%d.%m.%Y",
        "%B %d, %Y",
        "%Y-%m-%dT%HZ",
    ],
)
def test_new_dates_are_written_like_the_others(form, rng):
    times = pd.date_range("2020-01-01 10:30", periods=300, freq="37h")
    texts = times.strftime(form)
    frame = pd.DataFrame({"d": texts, "x": np.arange(300.0)})[rng.random(300) < 0.7]
    flow = fit(frame, kinds={"d": "datetime"})
    new = flow.sample(300, random_state=0)
    assert flow.kinds_["d"] == "datetime"
    assert not set(new["d"]) <= set(frame["d"])
    there = pd.to_datetime(new["d"], format=form)
    assert (there.dt.strftime(form) == new["d"]).all()
    assert np.corrcoef(there.astype("int64"), new["x"])[0, 1] > 0.98


def test_the_format_of_dates_does_not_hang_on_one_of_them():
    """pandas guesses no format for the first of them."""
    first = "01/03/2020 01:30 PM"
    texts = [first, "13/03/2020 10:30 AM", "27/11/2021 04:15 PM"]
    (found,) = infer_date_formats(texts)
    assert found.format == "%d/%m/%Y %I:%M %p"


@pytest.mark.parametrize("dtype", ["int64", "Int64", "float64", "str"])
def test_compact_dates_stay_dates(dtype, rng):
    days = (
        pd.date_range("2021-01-01", "2023-06-30")
        .strftime("%Y%m%d")
        .to_series(index=range(911))
    )
    frame = pd.DataFrame({"day": days.astype(dtype), "x": rng.normal(size=911)})
    if dtype in ("Int64", "float64"):
        frame.loc[::5, "day"] = None
    flow = TableFlow(random_state=0).fit(frame)
    assert flow.kinds_["day"] == "datetime"
    new = flow.sample(400, random_state=0)["day"]
    assert new.dtype == frame["day"].dtype
    texts = new.dropna().astype("int64" if dtype != "str" else dtype).astype(str)
    assert pd.to_datetime(texts, format="%Y%m%d").dt.day.nunique() > 20
    assert set(
        flow.sample(5, random_state=0, given={"day": frame.loc[1, "day"]})["day"]
    ) == {frame.loc[1, "day"]}
    numbers = frame.assign(day=days.astype(int) + 45)  # February has no 46th
    assert TableFlow().fit(numbers).kinds_["day"] == "integer"
    with pytest.raises(
        DataError, match=r"holds 20230675, which is a number.* pandas.to_datetime"
    ) as caught:
        TableFlow(kinds={"day": "datetime"}).fit(numbers)
    assert caught.value.column == "day"


def test_ambiguous_dates_are_refused_with_a_cure():
    frame = pd.DataFrame({"d": ["01/02/2024", "03/04/2024"] * 20, "x": range(40)})
    with pytest.raises(DataError, match="day and month") as caught:
        fit(frame)
    assert caught.value.row == 0
    assert caught.value.column == "d"
    assert fit(frame, kinds={"d": "datetime:%d/%m/%Y"}).kinds_["d"] == "datetime"


def test_years_and_running_numbers_stay_numbers():
    year = np.arange(1950, 2024)
    frame = pd.DataFrame(
        {"year": year, "number": np.arange(74), "co2": 300.0 + year - 1950}
    )
    flow = fit(frame)
    assert set(flow.kinds_.values()) == {"integer"}
    assert flow.sample(500, random_state=0).corr().to_numpy().min() > 0.9


def test_names_of_columns_come_back(rng):
    x = rng.normal(size=(30, 3))
    for columns in (
        pd.Index([2021, 2022, 2023]),
        pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)], names=["u", "v"]),
        pd.Index([("a", 1), "b", 3], tupleize_cols=False),
    ):
        frame = pd.DataFrame(x, columns=columns)
        assert fit(frame).sample(3, random_state=0).columns.equals(frame.columns)


EMAILS = [f"user{k}@example.org" for k in range(1000)]


def test_personal_data_are_made_up_also_with_duplicates(rng):
    frame = pd.DataFrame({"mail": EMAILS, "x": rng.normal(size=1000)})
    frame = pd.concat([frame, frame.iloc[:20]], ignore_index=True)
    flow = fit(frame)
    assert flow.kinds_["mail"] == "identifier"
    new = flow.sample(1000, random_state=0)["mail"]
    gone = frame.assign(mail=frame["mail"].mask(rng.random(1020) < 0.3))
    assert (
        abs(fit(gone).sample(1000, random_state=0)["mail"].isna().mean() - 0.3) < 0.05
    )
    assert not set(new) & set(EMAILS)
    assert new.is_unique
    assert {*new} != {
        *flow.sample(1000, random_state=1)["mail"]
    }  # others for each seed
    assert new.str.fullmatch(
        r"[a-z]+\d+@[a-z]+\.[a-z]+"
    ).all()  # longer ones grow before the @


@pytest.mark.parametrize(
    "values",
    [
        [f"+49 170 {k:07}" for k in range(1000, 1100)],
        [f"{k:03}-{k % 90 + 10}-{k:04}" for k in range(100, 200)],
        [f"DE{k % 90 + 10} 3704 0044 0532 {k:04} 00" for k in range(100)],
        [
            f"{a} {b}son"
            for a in ("Anna", "Ben", "Cleo", "Dan", "Eva")
            for b in ("Karl", "Lar", "Nil", "Ole", "Per")
        ],
    ],
)
def test_personal_patterns_are_recognized(values, rng):
    name = "full name" if "son" in values[0] else "c"
    frame = pd.DataFrame({name: values, "x": rng.normal(size=len(values))})
    flow = fit(frame)
    assert flow.kinds_[name] == "identifier"
    assert not set(flow.sample(50, random_state=0)[name]) & set(values)
    repeated = pd.DataFrame({"name": ["Anna", "Ben", "Cleo"] * 20, "x": range(60)})
    assert fit(repeated).kinds_["name"] == "category"


@pytest.mark.parametrize("dtype", ["int64", "uint64", "Int64", "int16", object])
def test_integers_that_identify_stay_within_their_dtype(dtype, rng):
    most = {"int16": 2**15 - 1, "uint64": 2**64 - 1, object: 10**25}.get(
        dtype, 2**63 - 1
    )
    ids = [most - int(v) for v in rng.permutation(400)[:300]]
    flow = fit(
        pd.DataFrame(
            {"customer_id": pd.Series(ids, dtype=dtype), "x": rng.normal(size=300)}
        )
    )
    new = flow.sample(300, random_state=0)["customer_id"]
    assert new.dtype == dtype
    assert new.is_unique
    assert not set(new) & set(ids)
    if dtype == "int16":
        with pytest.raises(
            DataError, match="too few other numbers for 60000 new identifiers"
        ) as caught:
            flow.sample(60_000, random_state=0)
        assert caught.value.column == "customer_id"


def test_real_values_of_single_rows_are_named_loudly(rng):
    frame = pd.DataFrame({"mail": EMAILS, "x": rng.normal(size=1000)})
    with pytest.warns(UserWarning, match="column 'mail': samples contain real values"):
        flow = fit(frame, kinds={"mail": "category"})
    assert flow.columns_["note"][0].count("REAL VALUES") == 1


def long_texts(n):
    words = ["the quick brown fox", "jumps over the lazy dog", "a b c d e f"]
    return [
        f"{words[k % 3]} {words[(k // 3) % 3]} number {k} of many long texts"
        for k in range(n)
    ]


@pytest.mark.parametrize(
    ("values", "row", "message"),
    [
        (long_texts(60), None, "free text"),
        ([1.0, np.inf] * 30, 1, "the value is inf"),
        ([{"k": 1}] * 60, 0, "dict"),
        (["x", 1.5] + ["y"] * 58, 1, "a float, but most are str"),
        ([*["1.5"] * 40, "unknown", *["2.5"] * 19], 40, "holds 'unknown'"),
        (["2024-01-31", "31.1.2024"] * 30, 0, "dates not all in one format"),
        ([Decimal("NaN"), Decimal(1), Decimal("inf")] * 20, 2, "make it missing"),
        (pd.period_range("2020-01", periods=60, freq="M"), None, "to_timestamp"),
        (pd.Categorical([("u", 1), ("v", 2)] * 30), None, "support the dtype category"),
    ],
)
def test_free_text_and_odd_cells_are_named_by_row_and_column(values, row, message):
    frame = pd.DataFrame({"c": values, "x": range(60)})
    with pytest.raises(DataError, match=message) as caught:
        fit(frame)
    assert caught.value.row == row
    assert caught.value.column == "c"


def test_a_table_of_polars_is_refused():
    polars = pytest.importorskip("polars")
    with pytest.raises(TypeError, match="to_pandas"):
        fit(polars.DataFrame({"a": [1]}))


def test_other_names_and_kinds_are_refused():
    with pytest.raises(ValueError, match="two columns are named 1;"):
        fit(pd.DataFrame([[1, 2]], columns=[1, "1"]))
    with pytest.raises(ParameterError, match="not a kind") as caught:
        fit(pd.DataFrame({"a": [1, 2]}), kinds={"a": "constant"})
    assert caught.value.parameter == "kinds"
    with pytest.raises(ValueError, match="not a column"):
        fit(pd.DataFrame({"a": [1, 2]}), kinds={"b": "drop"})
    with pytest.raises(
        DataError, match="is text such as 'u', not continuous"
    ) as caught:
        fit(pd.DataFrame({"a": ["u", "v"] * 9}), kinds={"a": "continuous"})
    assert caught.value.column == "a"


@pytest.mark.parametrize(
    ("dtype", "levels"),
    [
        # The year 33,658, on a clock that is shown and on one that is not.
        ("datetime64[s, Europe/Berlin]", {"values": np.array([10**12])}),
        ("datetime64[s]", {"values": np.array([10**12])}),
        ("datetime64[s]", {"values": np.array([-(10**12)])}),
        ("object", {"labels": ("a", 3)}),
        ("object", {"labels": (True, 1.5)}),
        ("no dtype", {"labels": ("a",)}),
    ],
)
def test_levels_that_only_a_damaged_file_has_are_refused(dtype, levels):
    with pytest.raises(ValueError, match="levels that are not"):
        EncodedColumn("t", dtype, np.array([0]), **levels).check_saved()


def test_the_last_year_of_the_calendar_is_a_year():
    days = pd.Series(["0001-01-01", "9999-12-31"] * 20, dtype="datetime64[s]")
    frame = pd.DataFrame({"until": days, "x": range(40)})
    assert set(fit(frame).sample(30, random_state=0)["until"]) <= set(days)


def test_rounding_errors_of_sums_are_no_decimals(rng):
    net = rng.lognormal(3, 1, 300).round(2)
    tax = (0.19 * net).round(2)
    frame = pd.DataFrame({"net": net, "tax": tax, "total": net + tax})
    assert (frame["total"] != frame["total"].round(2)).mean() > 0.1
    new = TableFlow(random_state=0).fit(frame).sample(300, random_state=0)
    assert (new["total"] == new["total"].round(2)).all()
    assert (new["total"] == (new["net"] + new["tax"]).round(2)).all()
    # Measured numbers keep all of their decimals.
    measured = pd.DataFrame({"x": rng.normal(size=300)})
    drawn = TableFlow(random_state=0).fit(measured).sample(300, random_state=0)["x"]
    assert (drawn != drawn.round(6)).all()


def test_a_rounding_error_that_many_rows_share_does_not_come_back():
    """One row in ten samples had such a value, where several rows had the same one."""
    prices = pd.DataFrame({"price": [0.1 + 0.2] * 40 + [1.25] * 40 + [2.5] * 40})
    new = TableFlow(random_state=0).fit(prices).sample(200, random_state=0)["price"]
    assert set(new) == {0.3, 1.25, 2.5}


def test_decimals_are_kept_as_written_and_new_rows_must_fit():
    frame = pd.DataFrame({"a": [Decimal("1.10"), Decimal("1.1"), Decimal("2")] * 10})
    rows = read_dataframe(frame)
    (column,) = rows.columns
    assert (column.to_series(column.codes).map(str) == frame["a"].map(str)).all()
    whole = pd.DataFrame({"a": range(40)})
    with pytest.raises(DataError, match=r"0\.5\) does not fit in int64") as caught:
        fit(whole).partial_fit(whole + 0.5)
    assert caught.value.column == "a"


def test_new_values_are_rounded_like_the_column_and_keep_away_from_atoms(rng):
    x = np.where(rng.random(400) < 0.5, 0, 100 + rng.gamma(2, 50, 400)).round(4)
    new = fit(pd.DataFrame({"x": x})).sample(1000, random_state=0)["x"]
    assert ((new == 0) | (new >= 100)).all()
    assert (new == new.round(4)).all()
    assert not set(new) <= set(x)


def test_an_hour_that_the_clock_shows_twice_is_drawn_twice(rng):
    times = pd.Series(
        pd.date_range("2024-10-26", periods=1800, freq="2min", tz="Europe/Berlin")
    )
    times = times[rng.random(1800) < 0.5]
    new = fit(pd.DataFrame({"t": times})).sample(900, random_state=0)["t"]
    twice = new[(new.dt.day == 27) & (new.dt.hour == 2)].map(
        lambda time: time.utcoffset().seconds
    )
    assert set(twice) == {3600, 7200}
    assert not set(new) <= set(times)


def test_scores_are_normal_and_a_missing_cell_has_one():
    frame = pd.DataFrame({"a": [np.nan] * 50 + list(range(50))})
    scores = fit(frame)._record.model.features(frame)[0]
    assert scores[[0, 50, 99]] == pytest.approx(norm.ppf([0.25, 0.505, 0.995]))
