"""Tables with bad cells: what is left out is counted and said, and much is left out only on demand."""

import json

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
