"""Tables as people keep them: odd cells, free text, semicolons, decimal commas."""

import json
import shlex

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("typer")

from running import done, inside, refused

N = 120


@pytest.fixture
def messy(tmp_path):
    """A file in the dialect of a German spreadsheet, with five messy columns."""
    rng = np.random.default_rng(0)
    day = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, N), "D")
    columns = {
        "Größe": [f"{x:.1f}".replace(".", ",") for x in rng.normal(170, 9, N)],
        "Preis": [
            f"{x:,.2f} €".translate({44: 46, 46: 44}) for x in rng.gamma(2, 900, N)
        ],
        "Tag": [f"{when:%d.%m.%Y}" for when in day],
        "Besuche": [str(k) for k in rng.integers(0, 9, N)],
        "Notiz": [f"kam am {k}. Tag und ging nach {2 * k} Tagen" for k in range(N)],
        "Art": list(rng.choice(["neu", "alt", "unknown"], N)),
    }
    frame = pd.DataFrame(columns)
    frame.loc[3, "Besuche"] = "unknown"
    frame.loc[[5, 6], "Preis"] = "n.a."
    path = tmp_path / "kunden.csv"
    path.write_text(frame.to_csv(index=False, sep=";"), encoding="utf-8-sig")
    return path


def test_a_messy_table_is_fitted_and_comes_back_in_its_dialect(
    messy, tmp_path, one_comparison
):
    run = tmp_path / "run"
    said = done("fit", messy, "--no-measure", "--out", run)
    assert "note: column 'Besuche': 'unknown' is taken for a missing cell" in said
    assert "note: column 'Preis': 'n.a.' is taken for a missing cell" in said
    assert "note: column 'Notiz' is left out: it is free text" in said
    assert "Art" not in said.partition("columns:")[0]
    out = tmp_path / "new.csv"
    done("sample", run, "--n", 20, "--given", "Größe>170", "--out", out)
    for path in (out, run / "samples.csv"):
        raw = path.read_bytes()
        assert raw.startswith(b"\xef\xbb\xbf")
        lines = raw.decode("utf-8-sig").splitlines()
        assert lines[0] == "Größe;Preis;Tag;Besuche;Art"
        new = pd.read_csv(path, sep=";", decimal=",", encoding="utf-8-sig")
        assert new["Größe"].dtype.kind == "f"
        assert new["Tag"].str.fullmatch(r"\d\d\.\d\d\.2024").all()
        assert new["Preis"].dropna().str.fullmatch(r"[\d.]+,\d\d €").all()


def test_a_filled_table_comes_back_in_its_dialect(messy, tmp_path):
    out = tmp_path / "full.csv"
    result = inside("impute", messy, "--out", out)
    assert result.returncode == 0, result.stderr
    assert "note: column 'Notiz' is left out" in result.stderr
    before = messy.read_text(encoding="utf-8-sig").splitlines()
    after = out.read_text(encoding="utf-8-sig").splitlines()
    changed = [i for i in range(N + 1) if before[i] != after[i]]
    assert changed == [4, 6, 7]  # below the header, the rows with unknown cells
    assert len(after[4].split(";")) == 6


def test_all_problems_come_in_one_report_with_one_command_that_works(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 60, N).astype(str),
            "when": [f"0{k % 9 + 1}/0{k % 7 + 1}/2024" for k in range(N)],
            "net": [f"{x:.2f}" for x in rng.gamma(2, 30, N)],
            "code": [f"{k % 30}" for k in range(N)],
            "my group": rng.choice(["a", "b"], N),
        }
    )
    frame.loc[7, "age"] = "old"
    frame.loc[[1, 2], "net"] = ["-oops-", "much"]
    frame.loc[:6, "code"] = [f"c{k}" for k in range(7)]
    path = tmp_path / "my table.csv"
    frame.to_csv(path, index=False)
    words = ("fit", path, "--no-measure", "--out", tmp_path / "run")
    result = inside(*words)
    refused(
        result,
        1,
        "4 columns cannot be used",
        "row 9 of the file, column 'age': the cell holds 'old'",
        "column 'when'",
        "column 'net'",
        "column 'code'",
    )
    hint = result.stderr.splitlines()[-1]
    command = shlex.split(hint.partition("run: ")[2])
    assert command[:2] == ["sliceflow", "fit"]
    assert "--missing=-oops-" in command
    assert "--column=when=datetime:%d/%m/%Y" in command
    assert "--column=code=category" in command
    done(*command[1:])
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["settings"]["missing"] == ["old", "-oops-", "much"]
