"""Tables of mixed columns on the command line."""

import json
import shutil

import pandas as pd
import pytest

from mixed_tables import columns
from running import inside, refused
from sliceflow.cli import mixed


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixed")
    frame = pd.DataFrame(columns(240))
    frame.to_csv(folder / "people.csv", index=False)
    result = inside(
        "fit", folder / "people.csv", "--out", folder / "run", "--constraint", "start <= end"
    )
    assert result.returncode == 0, result.stderr
    return folder / "run", folder / "people.csv", result.stdout


def test_fit_drops_nothing_and_says_what_the_columns_are(run):
    folder, source, said = run
    names = list(pd.read_csv(source).columns)
    new = pd.read_csv(folder / "samples.csv")
    assert list(new.columns) == names
    assert len(new) == 216
    assert (new["start"] <= new["end"]).all()
    for word in ("category", "integer", "often 0", "detection"):
        assert word in said
    files = {path.name for path in folder.iterdir()}
    assert files >= {"config.json", "model.sliceflow", "samples.csv", "evaluation.json", "report.html"}


def test_the_page_shows_every_column_and_loads_nothing(run):
    page = (run[0] / "report.html").read_text()
    for name in columns(5):
        assert f"<h3>{name}</h3>" in page
    assert "Worst pairs" in page
    assert "http" not in page.replace("http-equiv", "")


def test_sample_with_given_values(run, tmp_path):
    out = tmp_path / "new.csv"
    result = inside(
        "sample", run[0], "--n", 20, "--given", "plan=gold", "--given", "age=40", "--out", out
    )
    assert result.returncode == 0, result.stderr
    new = pd.read_csv(out)
    assert set(new["plan"]) == {"gold"}
    assert set(new["age"]) == {40}
    bad = inside("sample", run[0], "--given", "colour=red", "--out", tmp_path / "b.csv")
    refused(bad, 2, "does not name a column", "plan")
    bad = inside("sample", run[0], "--given", "plan=platinum", "--out", tmp_path / "b.csv")
    refused(bad, 2, "--given plan=platinum: column 'plan' has no category", "it has basic")
    assert "row" not in bad.stderr
    refused(inside("sample", run[0], "--out", tmp_path / "b.png"), 2, "not a table")
    refused(inside("sample", run[0], "--label", "x", "--out", tmp_path / "b.csv"), 2, "--given")


def test_impute_fills_a_table(run, tmp_path):
    out = tmp_path / "full.csv"
    assert inside("impute", run[1], "--out", out).returncode == 0
    old, new = pd.read_csv(run[1]), pd.read_csv(out)
    assert not new["score"].isna().any()
    assert new.drop(columns="score").equals(old.drop(columns="score"))
    said = inside("impute", run[1], "--run", run[0], "--n", 2, "--out", tmp_path / "m.csv", "--json")
    assert len(json.loads(said.stdout)["out"]) == 2
    assert (tmp_path / "m-2.csv").exists()


def test_evaluate_report_and_info(run):
    said = inside("evaluate", run[0], "--json")
    found = json.loads(said.stdout)
    assert 0.3 < found["scores"]["detection"] < 0.8
    assert "rows of" in inside("evaluate", run[0], "--against", run[1]).stdout
    assert inside("report", run[0]).returncode == 0
    info = json.loads(inside("info", run[0], "--json").stdout)
    assert info["estimator"] == "TableFlow"
    assert info["kinds"]["plan"] == "category"
    assert info["measures of samples"]["valid"] == 1
    assert "216 rows" in info["data"]
    assert info["values of the data"].startswith("all")


def test_kinds_can_be_given_and_flags_of_pictures_are_refused(run, tmp_path):
    shown = inside("fit", run[1], "--column", "age=category", "--drop", "score", "--dry-run").stdout
    assert "category" in next(line for line in shown.splitlines() if line.split()[0] == "age")
    assert "left out, as asked" in shown
    refused(inside("fit", run[1], "--mirror", "--out", tmp_path / "r"), 2, "--mirror is for pictures")
    refused(inside("fit", run[1], "--column", "age", "--out", tmp_path / "r"), 2, "name=kind")
    refused(
        inside("fit", run[1], "--constraint", "a <= b", "--out", tmp_path / "r"), 1, "no column 'a'"
    )
    assert not (tmp_path / "r").exists()


def test_messages_name_the_row_of_the_file_and_the_flag(tmp_path):
    frame = pd.DataFrame(columns(150)).astype({"age": object})
    for row in range(0, 150, 50):  # some of them are held out
        bad = frame.copy()
        bad.loc[row, "age"] = "forty"
        bad.to_csv(tmp_path / "a.csv", index=False)
        said = inside("fit", tmp_path / "a.csv", "--out", tmp_path / "r")
        refused(said, 1, f"'forty' in row {row + 2} of the file", "--column 'age=category'")


def test_the_page_reads_written_numbers_and_missing_cells_and_shows_no_identifier(tmp_path):
    frame = pd.DataFrame(columns(150))
    frame["id"] = [f"K{7919 * i}" for i in range(150)]
    frame["price"] = [f"${v:,.2f}" for v in frame["balance"]]
    frame["count"] = pd.array([None, 1, 2] * 50, dtype="Int64")
    frame.to_csv(tmp_path / "a.csv", index=False)
    result = inside("fit", tmp_path / "a.csv", "--out", tmp_path / "r")
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "r" / "report.html").read_text()
    assert "An identifier: every sample has a new one." in page
    assert not any(f">{i}<" in page or f" {i} " in page for i in frame["id"])
    assert f"{frame['balance'].max():g}" in page.partition("<h3>price</h3>")[2][:12_000]


def test_flags_that_would_do_nothing_are_refused(run, tmp_path):
    for more in (("--resume",), ("--checkpoint-every", 5)):
        refused(
            inside("fit", run[1], *more, "--out", tmp_path / "r"), 2, f"{more[0]} is not for tables"
        )


def test_few_held_out_rows_are_counted(tmp_path):
    rows = pd.DataFrame({"a": range(100)})
    assert mixed.measured(rows, None, rows)["note"].startswith("not measured: no rows were held out")
    assert mixed.measured(rows, rows[:5], rows)["note"].startswith(
        "not measured: only 5 rows were held"
    )


def test_a_run_whose_table_is_gone_says_so(run, tmp_path):
    shutil.copytree(run[0], tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["settings"]["source"] = str(tmp_path / "gone.csv")
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    for verb in ("evaluate", "report"):
        refused(inside(verb, tmp_path / "run"), 1, "gone.csv does not exist", "put it back")


def test_empty_columns_are_measured_and_shown(tmp_path):
    frame = pd.DataFrame(columns(150))[["age", "plan"]]
    frame["empty"] = None
    frame["nearly"] = [None] * 148 + [1.0, 2.0]
    frame.to_csv(tmp_path / "a.csv", index=False)
    result = inside("fit", tmp_path / "a.csv", "--out", tmp_path / "r")
    assert (result.returncode, result.stderr) == (0, "")
    assert pd.read_csv(tmp_path / "r" / "samples.csv")["empty"].isna().all()
    assert "<h3>empty</h3>" in (tmp_path / "r" / "report.html").read_text()
    assert json.loads((tmp_path / "r" / "evaluation.json").read_text())["scores"]["missing"] < 0.1
