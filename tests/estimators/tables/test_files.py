"""Tables in files: what is read, what is refused, and what comes back."""

from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest

from sliceflow import TableFlow
from sliceflow.errors import DataError, DataWarning
from sliceflow.estimators.tables.files import read_file, read_table, write_table

X = np.random.default_rng(0).normal(size=40)


def test_csv_cells_are_read_as_documented(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "a;b;c;d;e\n?;2,5;N/A;2024-01-31;x\n;3,5;7%;2024-02-29;\n3;0,25;8%;NULL;y\n",
        encoding="utf-8",
    )
    frame = read_table(path)
    assert frame["a"].dtype == "Int64"
    assert frame["b"].tolist() == ["2,5", "3,5", "0,25"]
    assert frame["c"].isna().tolist() == [True, False, False]
    assert frame["d"].tolist()[:2] == ["2024-01-31", "2024-02-29"]
    assert frame["e"].isna().tolist() == [False, True, False]


def test_big_integers_and_headers_of_years(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        f"name,2021,2022\nA,{2**60 + 1},{2**64 - 1}\nB,{2**60 + 3},7\nC,5,{10**25}\n"
    )
    frame = read_table(path)
    assert list(frame.columns) == ["name", "2021", "2022"]
    assert frame["2021"].tolist() == [2**60 + 1, 2**60 + 3, 5]
    assert frame["2022"].tolist() == [2**64 - 1, 7, 10**25]
    years_below_years = ("1,2021\n2,2022\n3,2023\n", "x,1990\ny,1991\n")
    for text in years_below_years:
        path.write_text(text)
        assert list(read_table(path).columns) == ["column 1", "column 2"]


@pytest.mark.parametrize(
    ("content", "fact", "hint"),
    [
        (b"a,b\n", "column names but no rows", "add rows"),
        (b"a,b\n1,2\n3\n", "row 3 has 1 cells", "fix that row"),
        (b"", "is empty", "row of column names"),
        (b"a,b,a\n1,2,3\n", "two columns named 'a'", "rename one"),
        (b"a\n\x81\n", "neither UTF-8 nor Windows-1252", "save it as UTF-8"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, content, fact, hint):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(DataError, match=r"t\.csv") as caught:
        TableFlow().fit(tmp_path / "t.csv")
    assert fact in caught.value.fact
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252"]
)
def test_encodings_are_read_or_named_and_codes_keep_their_zeros(tmp_path, encoding):
    (tmp_path / "t.csv").write_bytes(
        "Straße;plz \nKöln ;00501 \nGößnitz; 12345\n".encode(encoding)
    )
    with pytest.warns(match="1252") if encoding == "cp1252" else nullcontext():
        frame = read_table(tmp_path / "t.csv")
    assert frame.to_dict("list") == {
        "Straße": ["Köln", "Gößnitz"],
        "plz": ["00501", "12345"],
    }


def test_other_files_are_refused_and_missing_ones_named(tmp_path):
    (tmp_path / "t.docx").touch()
    with pytest.raises(ValueError, match="not a table"):
        TableFlow().fit(tmp_path / "t.docx")
    with pytest.raises(FileNotFoundError, match=r"no\.csv"):
        TableFlow().fit(str(tmp_path / "no.csv"))


def test_a_path_is_fitted_like_its_table(tmp_path):
    days = pd.date_range("2024-01-01", periods=40).strftime("%Y-%m-%d")
    frame = pd.DataFrame(
        {"a": X.round(3), "b": ["u", "v"] * 20, "day": days, "k": range(40)}
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    path = tmp_path / "t.csv"
    of_path = TableFlow(random_state=0).fit(path)
    of_frame = TableFlow(random_state=0).fit(pd.read_csv(path))
    assert of_path.kinds_ == of_frame.kinds_ | {"day": "datetime"}
    pd.testing.assert_frame_equal(
        of_path.sample(10, random_state=0), of_frame.sample(10, random_state=0)
    )


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "xlsx"])
def test_samples_are_written_and_read(tmp_path, ending):
    frame = pd.DataFrame({"a": X.round(3), "b": ["u", "v"] * 20, "k": range(40)})
    new = TableFlow(random_state=0).fit(frame).sample(30, random_state=0)
    write_table(new, tmp_path / f"t.{ending}")
    pd.testing.assert_frame_equal(
        read_table(tmp_path / f"t.{ending}"), new, check_dtype=False
    )


def test_words_among_numbers_and_dates_are_missing_with_a_note(tmp_path):
    path = tmp_path / "t.csv"
    rows = [
        "age;price;day;city",
        "31;$1.50;03.01.2024;Bonn",
        "Unknown;unknown;unknown;unknown",
        "n.a.;$2.50;04.01.2024;Köln",
        "42;--;-;Bonn",
    ]
    path.write_text("\n".join(rows), encoding="utf-8")
    with pytest.warns(DataWarning) as caught:
        frame = read_table(path)
    assert frame["age"].isna().tolist() == [False, True, True, False]
    assert frame["age"].dtype == "Int64"
    assert frame["price"].isna().tolist() == [False, True, False, True]
    assert frame["day"].isna().tolist() == [False, True, False, True]
    assert frame["city"].tolist() == ["Bonn", "unknown", "Köln", "Bonn"]
    columns = [warning.message.column for warning in caught]
    assert columns == ["age", "price", "day"]
    assert "'Unknown', 'n.a.'" in str(caught[0].message)


def test_words_among_numbers_of_a_spreadsheet_are_missing(tmp_path):
    path = tmp_path / "t.xlsx"
    cells = {"a": [1, "unknown", 3, "oops"], "b": ["x", "unknown", "y", "x"]}
    pd.DataFrame(cells).to_excel(path, index=False)
    file = read_file(path, missing=["Oops"])
    assert file.df["a"].tolist()[::2] == [1, 3]
    assert file.df["a"].isna().tolist() == [False, True, False, True]
    assert file.df["a"].dtype == "Int64"
    assert file.df["b"].tolist() == ["x", "unknown", "y", "x"]
    assert [note.column for note in file.notes] == ["a"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_file_is_written_as_it_was_read(tmp_path, encoding, line_end):
    rows = ["Straße;Preis;Tag"]
    rows += [f"Köln;{k},5;0{k}.05.2024" for k in range(1, 9)]
    content = (line_end.join(rows) + line_end).encode(encoding)
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.warns(match="1252") if encoding == "cp1252" else nullcontext():
        file = read_file(tmp_path / "t.csv")
    write_table(file.df, tmp_path / "again.csv", file.dialect)
    assert (tmp_path / "again.csv").read_bytes() == content
    write_table(file.df, tmp_path / "again.tsv", file.dialect)
    tabs = (tmp_path / "again.tsv").read_bytes().decode(encoding)
    assert tabs.splitlines()[0] == "Straße\tPreis\tTag"
