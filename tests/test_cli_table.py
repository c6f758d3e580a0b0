"""Tables with bad cells: what is left out is counted and reported, and most rows only on demand."""

import json
import sys

import numpy as np
import pytest

pytest.importorskip("typer")

from running import FEW, inside, refused
from sliceflow.cli.table import read_csv


@pytest.fixture
def table(tmp_path):
    """300 rows: 'age' with a word and two gaps, 'income' in six rows alone, a text, and labels."""
    rng = np.random.default_rng(0)
    lines = ["age,height,income,town,kind"]
    for i, (a, b) in enumerate(rng.normal(size=(300, 2))):
        age = {7: "unknown", 8: "", 9: "NA"}.get(i, f"{a}")
        lines.append(f"{age},{b},{i if i < 6 else ''},town {i},{'uv'[i % 2]}")
    path = tmp_path / "people.csv"
    path.write_text("\n".join(lines))
    return path


def test_most_rows_are_not_left_out_without_being_asked(table, tmp_path):
    result = inside("fit", table, *FEW, "--quiet", "--out", tmp_path / "run")
    refused(result, 1, "294 of 300 rows", "'income' 294", "'age' 3 (1 not a number, such as 'unknown')")
    assert "hint: --drop income leaves that column out; --keep income" in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_bad_cell_costs_its_row_and_not_its_column(table):
    x, labels, names, notes = read_csv(table, "kind", drop=["income"])
    assert names == ["age", "height"]
    assert x.shape == (297, 2)
    assert len(labels) == 297
    assert notes == [
        "left out the column 'income', as --drop says",
        "left out the column 'town', which is not numeric (300 cells, such as 'town 0')",
        "left out 3 of 300 rows, with missing or non-numeric cells: "
        "'age' 3 (1 not a number, such as 'unknown')",
    ]


def test_a_sparse_column_is_kept_when_asked_for_with_the_rows_that_have_it(table):
    x, _, names, notes = read_csv(table, keep=["income"])
    assert names == ["age", "height", "income"]
    assert len(x) == 6
    assert notes[-1].startswith("left out 294 of 300 rows")


def test_what_is_left_out_is_said_also_when_quiet(table, tmp_path):
    words = ("fit", table, "--drop", "income", "--drop", "town", "--target", "kind", *FEW)
    result = inside(*words, "--quiet", "--out", tmp_path / "run")
    assert (result.returncode, result.stdout) == (0, "")
    assert "note: left out 3 of 300 rows" in result.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert "--drop income --drop town" in config["command"]
    said = inside(*words, "--out", tmp_path / "other")
    assert "note: left out 3 of 300 rows" in said.stdout
    assert "note: left out 3 of 300 rows" not in said.stderr
    again = inside("evaluate", tmp_path / "run", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == json.loads((tmp_path / "run" / "evaluation.json").read_text())


def test_columns_to_drop_are_there_and_not_asked_for_elsewhere(table, tmp_path):
    words = ("fit", table, "--out", tmp_path / "run")
    refused(inside(*words, "--drop", "incom"), 2, "no column 'incom'", "income")
    refused(inside(*words, "--drop", "age", "--keep", "age"), 2, "exclude each other")
    refused(inside(*words, "--drop", "kind", "--target", "kind"), 2, "exclude each other")
    refused(inside(*words, "--keep", "town"), 1, "no number in the column 'town'")
    refused(inside("fit", "digits", "--keep", "age"), 2, "--keep is for columns of tables")


def test_labels_that_are_mostly_missing_are_said(tmp_path):
    rows = "".join(f"{i},{'u' if i < 4 else ''}\n" for i in range(20))
    (tmp_path / "few.csv").write_text("a,kind\n" + rows)
    result = inside("fit", tmp_path / "few.csv", "--target", "kind", "--out", tmp_path / "run")
    refused(result, 1, "16 of 20 rows", "'kind' 16", "leave --target out")


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"a,b\n1,2\n\n3\n", ("row 3 has 1 cells, but the first row has 2", "fix that row")),
        (b"a,b\n1,2,3\n", ("row 2 has 3 cells", "fix that row")),
        (b"a,a\n1,2\n", ("two columns named 'a'", "rename one")),
        (b"a,b\n", ("column names but no rows", "add rows")),
        ("ä,b\n1,2\n".encode("latin-1"), ("not UTF-8 text", "save it as UTF-8")),
    ],
    ids=["short row", "long row", "same names", "no rows", "encoding"],
)
def test_a_table_that_cannot_be_read_is_said_with_its_row(tmp_path, raw, said):
    (tmp_path / "t.csv").write_bytes(raw)
    refused(inside("fit", tmp_path / "t.csv", "--out", tmp_path / "run"), 1, "t.csv", *said)


def test_cells_are_read_exactly_and_words_for_nothing_in_any_spelling(tmp_path):
    (tmp_path / "t.csv").write_text(
        "a;b\n0.1;1\n0.30000000000000004; 2\n;\n  nA ;3\nNULL;4\n1e-7;true\n7;5\n8;6\n"
    )
    x, _, _, notes = read_csv(tmp_path / "t.csv")
    assert x.tolist() == [[0.1, 1], [0.30000000000000004, 2], [7, 5], [8, 6]]
    assert notes == [
        "left out 3 of 7 rows, with missing or non-numeric cells: "
        "'a' 2, 'b' 1 (1 not a number, such as 'true')"
    ]


@pytest.mark.parametrize(("module", "verb"), [("pandas", "fit"), ("jinja2", "report")])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    table, digits_run, tmp_path, monkeypatch, module, verb
):
    monkeypatch.setitem(sys.modules, module, None)
    words = {"fit": (table, "--out", tmp_path / "run"), "report": (digits_run[0],)}[verb]
    refused(inside(verb, *words), 1, f"needs {module}", "pip install 'sliceflow[cli]'")
