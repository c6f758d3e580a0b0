"""Bad tables: a clear message, or a documented reading; nothing is dropped in silence."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from running import environment
from sliceflow import TableFlow
from sliceflow.spaces.tables.files import read_table

X = np.random.default_rng(0).normal(size=40)


def fit(frame, **parameters):
    return TableFlow(random_state=0, n_steps=5, **parameters).fit(frame)


def refused(frame, *said, **parameters):
    with pytest.raises((ValueError, TypeError)) as error:
        fit(frame, **parameters)
    for text in said:
        assert text in str(error.value)


def test_empty_tables_and_single_rows_are_refused():
    refused(pd.DataFrame(), "no columns")
    refused(pd.DataFrame({"a": pd.Series([], dtype=float)}), "no rows")
    refused(pd.DataFrame({"a": [1.0], "b": ["x"]}), "1 row", "at least 2")


def test_one_column_is_enough():
    new = fit(pd.DataFrame({"a": X})).sample(200, random_state=0)
    assert abs(new["a"].mean() - X.mean()) < 0.3
    assert new["a"].between(X.min(), X.max()).all()


def test_a_table_with_nothing_but_missing_cells_is_refused():
    refused(pd.DataFrame({"a": [np.nan] * 5, "b": [None] * 5}), "no column can be modelled", "'a'")


def test_mixed_types_are_named_with_the_first_bad_value_and_its_row():
    refused(pd.DataFrame({"a": [*X[:38], "n.a.", 3.0], "b": X}), "'a'", "row 38", "'n.a.'")
    refused(pd.DataFrame({"a": ["x", 1.5] + ["y"] * 38}), "'a'", "row 1", "1.5")
    refused(pd.DataFrame({"a": [{"k": 1}] * 5}), "'a'", "dict")
    texts = [f"{v:.2f}" for v in X]
    texts[7] = "unknown"
    refused(pd.DataFrame({"a": texts}), "'a'", "'unknown'", "row 7", "'category'")


def test_duplicate_names_are_refused():
    refused(pd.DataFrame(np.zeros((5, 2)), columns=["a", "a"]), "two columns are named 'a'")


def test_a_hundred_thousand_columns_are_refused_at_once():
    refused(pd.DataFrame(np.zeros((2, 100_000))), "100000 columns", "at most 5000")


def test_infinities_are_named():
    refused(pd.DataFrame({"a": [*X[:39], np.inf]}), "'a'", "inf", "row 39")


def test_free_text_is_refused_by_name_or_dropped_on_request():
    rng = np.random.default_rng(0)
    words = ["late", "order", "great", "bad", "service", "again", "never", "thanks"]
    notes = [" ".join(rng.choice(words, 9)) for _ in range(40)]
    frame = pd.DataFrame({"note": notes, "x": X})
    refused(frame, "'note'", "free text", "'drop'")
    assert list(fit(frame, columns={"note": "drop"}).sample(3).columns) == ["x"]


def test_arrays_lazy_frames_and_unknown_kinds_are_refused():
    refused(np.zeros((5, 2)), "DataFrame")
    refused(pd.DataFrame({"a": X}), "not a kind", columns={"a": "colour"})
    refused(pd.DataFrame({"a": X}), "'b'", "not a column", columns={"b": "category"})
    pl = pytest.importorskip("polars")
    refused(pl.LazyFrame({"a": X}), "collect")
    refused(pl.DataFrame({"a": [[1, 2]] * 5}), "'a'", "List")


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"smoothing": 2}, "smoothing=2"),
        ({"n_neighbors": 1}, "n_neighbors=1"),
        ({"missing": "drop"}, "missing='drop'"),
        ({"constraints": "a <= b"}, "constraints='a <= b'"),
    ],
)
def test_invalid_parameters_are_named(parameters, said):
    refused(pd.DataFrame({"a": X}), said, **parameters)


def test_other_columns_than_the_fitted_ones_are_named():
    flow = fit(pd.DataFrame({"a": X, "b": X}))
    with pytest.raises(ValueError, match="lacks the column 'b'"):
        flow.impute(pd.DataFrame({"a": X}))
    with pytest.raises(ValueError, match="'c' that the model does not know"):
        flow.partial_fit(pd.DataFrame({"a": X, "b": X, "c": X}))


WAYS = {
    "thousands": ["1,234", "12,345", "999", "1,000,000"],
    "decimal comma": ["3,14", "2,5", "10,25", "0,5"],
    "both": ["1.234,50", "10,00", "7,25", "1.000.000,75"],
    "per cent": ["7%", "12%", "0%", "100%"],
    "currency": ["$1,200.50", "$3.75", "$10.00", "$999.99"],
}
NUMBERS = {
    "thousands": [1234, 12345, 999, 1000000],
    "decimal comma": [3.14, 2.5, 10.25, 0.5],
    "both": [1234.5, 10, 7.25, 1000000.75],
    "per cent": [7, 12, 0, 100],
    "currency": [1200.5, 3.75, 10, 999.99],
}


@pytest.mark.parametrize("way", WAYS)
def test_numbers_written_as_text_are_read_and_written_the_same_way(way):
    from sliceflow.written import written_as

    texts = np.array(WAYS[way], dtype=object)
    found = written_as(texts)
    assert found.parse(texts).tolist() == NUMBERS[way]
    assert found.parse(found.texts(np.array(NUMBERS[way], dtype=float))).tolist() == NUMBERS[way]
    frame = pd.DataFrame({"a": WAYS[way] * 10, "x": X})
    new = fit(frame).sample(40, random_state=0)
    assert set(new["a"]) <= set(WAYS[way])
    assert new["a"].dtype == frame["a"].dtype


def test_of_two_ways_to_write_numbers_the_first_counts_in_every_process():
    """Sets of texts have another order in each."""
    code = "import numpy as np\nfrom sliceflow.written import written_as\n"
    code += "print([written_as(np.array(t, dtype=object)) for t in (['7%', '8 %'], ['€ 5', '$6'])])"
    said = set()
    for seed in range(4):
        more = environment() | {"PYTHONHASHSEED": str(seed)}
        said.add(subprocess.run([sys.executable, "-c", code], env=more, capture_output=True).stdout)
    assert len(said) == 1
    assert b"suffix='%'" in said.pop()


def test_codes_with_leading_zeros_are_no_numbers():
    frame = pd.DataFrame({"zip": ["01234", "10115", "00007"] * 10, "x": X[:30]})
    flow = fit(frame)
    assert flow.kinds_["zip"] == "category"
    assert set(flow.sample(20)["zip"]) <= set(frame["zip"])


def test_csv_cells_are_read_as_documented(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "a;b;c;d;e\n1;2,5;N/A;2024-01-31;x\n;3,5;7%;2024-02-29;\n3;0,25;8%;NULL;y\n", encoding="utf-8"
    )
    frame = read_table(path)
    assert frame["a"].dtype == "Int64"
    assert frame["a"].tolist()[0] == 1
    assert frame["b"].tolist() == ["2,5", "3,5", "0,25"]
    assert frame["c"].isna().tolist() == [True, False, False]
    assert str(frame["d"].dtype).startswith("datetime64")
    assert frame["e"].isna().tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "is empty"),
        (b"a,b\n", "column names but no rows"),
        (b"a,b\n1,2\n3\n", "row 3 has 1 cells"),
        (b"a,a\n1,2\n", "two columns named 'a'"),
        ("name\nMüller\n".encode("latin-1"), "not UTF-8"),
    ],
)
def test_files_that_cannot_be_read_are_said(tmp_path, raw, said):
    (tmp_path / "t.csv").write_bytes(raw)
    with pytest.raises(ValueError, match=said):
        TableFlow().fit(tmp_path / "t.csv")


def test_other_files_are_refused_and_missing_ones_named(tmp_path):
    (tmp_path / "t.docx").touch()
    with pytest.raises(ValueError, match="not a table"):
        TableFlow().fit(tmp_path / "t.docx")
    with pytest.raises(FileNotFoundError, match=r"no\.csv"):
        TableFlow().fit(str(tmp_path / "no.csv"))


def test_a_path_is_fitted_like_its_table(tmp_path):
    frame = pd.DataFrame({"a": X.round(3), "b": ["u", "v"] * 20})
    frame.to_csv(tmp_path / "t.csv", index=False)
    a, b = (fit(x).sample(10, random_state=0) for x in (tmp_path / "t.csv", frame))
    assert a.equals(b)


def test_dates_as_text_are_refused_instead_of_made_up():
    days = [f"2024-01-{1 + i % 28:02d}" for i in range(40)]
    refused(pd.DataFrame({"day": days, "x": X}), "'day'", "'2024-01-01'", "pandas.to_datetime")
    refused(pd.DataFrame({"day": [*days[:9], "soon", *days[10:]], "x": X}), "'soon'", "row 9")
    other = [f"{1 + i % 28:02d}/01/2024" for i in range(40)]
    refused(pd.DataFrame({"day": other, "x": X}), "'01/01/2024'", "day and month")
    as_they_are = fit(pd.DataFrame({"day": days, "x": X}), columns={"day": "category"})
    assert set(as_they_are.sample(30, random_state=0)["day"]) <= set(days)


def test_a_wrong_date_in_a_file_is_named(tmp_path):
    path = tmp_path / "a.csv"
    rows = [f"2024-01-{1 + i % 28:02d},{i}" for i in range(40)]
    path.write_text("\n".join(["day,x", *rows[:5], "tomorrow,5", *rows[6:]]))
    refused(path, "'day'", "'tomorrow'", "row 5")


def test_offsets_from_utc_are_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "t,x\n" + "\n".join(f"2024-01-{1 + i:02d}T10:00:00+02:00,{i % 7}" for i in range(28))
    )
    new = fit(path).sample(20, random_state=0)
    assert (new["t"].dt.hour == 10).all()
    assert set(new["t"].map(lambda t: t.utcoffset().total_seconds())) == {7200.0}
    rows = [f"2024-01-{1 + i:02d}T10:00+0{1 + i % 2}:00,{i % 7}" for i in range(28)]
    path.write_text("t,x\n" + "\n".join(rows))
    mixed = read_table(path)["t"]
    assert str(mixed.dtype).endswith("UTC]")
    assert mixed.dt.hour.tolist()[:2] == [9, 8]


def test_check_raises_what_a_fit_would_raise():
    good, bad = pd.DataFrame({"a": X}), pd.DataFrame({"a": [*X[:38], "n.a.", 3.0]})
    flow = TableFlow().check(good)
    assert not hasattr(flow, "n_rows_")
    with pytest.raises(ValueError, match="row 38"):
        flow.check(bad)
