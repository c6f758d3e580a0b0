"""`sliceflow fit`: one pipeline for pictures, vectors and tables."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from PIL import Image

pytest.importorskip("typer")

import sliceflow
from running import FEW, command, done, environment, inside, refused
from sliceflow.cli.data import read_data
from sliceflow.cli.settings import Settings
from sliceflow.datasets import load
from sliceflow.estimators.pictures.fit import PictureFitPlanner
from sliceflow.estimators.tables.fit import TableFitPlanner


def test_help_imports_no_torch_and_names_nine_commands_at_most():
    code = "import sys\nfrom sliceflow.cli import main\ntry:\n main()\nfinally:\n"
    code += " assert 'torch' not in sys.modules"
    words = [sys.executable, "-c", code, "--help"]
    result = subprocess.run(
        words, capture_output=True, text=True, env=environment(), timeout=60
    )
    assert result.returncode == 0, result.stderr
    from sliceflow.cli.commands import app

    names = [c.callback.__name__ for c in app.registered_commands]
    assert len(names) <= 9
    assert all(name in result.stdout for name in names)


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_the_installed_command(digits_run):
    words = " ".join(command("info", digits_run[0]))
    piped = subprocess.run(
        ["sh", "-c", f"{words} | head -n 1"],
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert piped.stdout.startswith("model: ")
    assert "Traceback" not in piped.stderr


def test_a_run_of_pictures_holds_all_that_is_promised(digits_run):
    folder, said = digits_run
    promised = {
        "config.json",
        "model.sliceflow",
        "samples.png",
        "samples.npz",
        "evolution.gif",
    }
    promised |= {"history.csv", "evaluation.json", "report.html"}
    assert {path.name for path in folder.iterdir()} == promised
    config = json.loads((folder / "config.json").read_text())
    assert config["data"]["what"] == "1297 pictures of 8×8 in 10 classes"
    assert config["data"]["held_out"] == 500
    assert config["steps"] == len(pd.read_csv(folder / "history.csv"))
    flow = sliceflow.load(folder, device="cpu")
    with np.load(folder / "samples.npz") as samples:
        labels = samples["labels"]
        assert np.array_equal(
            samples["images"], flow.sample(len(labels), y=labels, random_state=0)
        )
        assert set(labels) == set(range(10))
    with Image.open(folder / "evolution.gif") as film:
        assert film.n_frames > 5
    found = json.loads((folder / "evaluation.json").read_text())
    assert {"copy rate", "NN ratio"} <= {row["name"] for row in found["metrics"]}
    assert found["verdict"]["use"]["question"] == "May I use it?"
    assert found["verdict"]["sharing"]["grade"] in ("green", "amber", "red")
    assert config["start"] == "noise"
    assert said.stdout.startswith(
        "reading digits\n"
    )  # at once: before torch is imported
    assert said.stderr.startswith("step 1 of ")
    assert "measuring 1297 training rows in their place, for comparison" in said.stdout
    assert f"wrote {folder}: config.json, model.sliceflow" in said.stdout
    assert said.stdout.endswith(f"open {folder / 'report.html'} in a browser\n")


def test_a_run_of_a_table_keeps_every_column_and_its_constraints(table_run, people):
    folder, said = table_run
    real = pd.read_csv(people)
    new = pd.read_csv(folder / "samples.csv")
    assert list(new.columns) == list(real.columns)
    assert len(new) == 200
    assert (new["start"] <= new["end"]).all()
    assert set(new["plan"]) == {"basic", "gold"}
    flow = sliceflow.load(folder, device="cpu")
    assert len(flow.sample(3, random_state=0)) == 3
    assert (
        "200 rows of 6 columns to fit, 20 to measure with, by a second fit"
        in said.stdout
    )
    assert "columns: plan (category), age (" in said.stdout
    assert "fitting again without the 20 held-out rows" in said.stdout
    note = json.loads((folder / "evaluation.json").read_text())["note"]
    counts, by = note.split("; ")
    assert counts == "180 samples, 180 training rows and 20 held-out rows"
    assert by == "measured by a second fit, without the held-out rows"


@pytest.mark.slow
def test_the_printed_command_repeats_the_run_and_force_leaves_other_files_alone(
    digits_run, tmp_path
):
    folder, _ = digits_run
    words = json.loads((folder / "config.json").read_text())["command"].split()[1:]
    run = tmp_path / "again"
    run.mkdir()
    (run / "mine.txt").write_text("mine")
    words[words.index("--out") + 1] = run
    refused(inside(*words), 2, "not empty", "mine.txt", "--force")
    done(*words, "--force", "--quiet")
    assert (run / "mine.txt").read_text() == "mine"
    with np.load(run / "samples.npz") as a, np.load(folder / "samples.npz") as b:
        assert np.array_equal(a["images"], b["images"])


@pytest.fixture
def pictures(tmp_path):
    """A folder with one subfolder per class, 120 pictures of one size."""
    digits = load("digits")
    for label in (0, 1):
        folder = tmp_path / "photos" / f"class-{label}"
        folder.mkdir(parents=True)
        for i, image in enumerate(digits.images[digits.labels == label][:60]):
            Image.fromarray((image * 15).astype(np.uint8)).save(folder / f"{i:03d}.png")
    return tmp_path / "photos"


def test_a_folder_of_pictures_is_fitted_by_class_and_broken_ones_are_noted(
    pictures, tmp_path
):
    (pictures / "class-0" / "005.png").write_bytes(b"no picture")
    words = (
        "fit",
        pictures,
        "--size",
        6,
        *FEW,
        "--out",
        tmp_path / "run",
    )
    refused(inside(*words), 1, "005.png", "--skip-broken")
    said = inside(*words, "--skip-broken", "--json")
    found = json.loads(said.stdout)
    assert found["data"]["what"] == "107 pictures of 6×6 in 2 classes"
    assert found["data"]["held_out"] == 12
    assert found["classes"] == ["class-0", "class-1"]
    assert "note: skipped 1 of 120 pictures" in said.stderr
    assert "skipped 1 of 120 pictures" in (tmp_path / "run" / "report.html").read_text()
    Image.new("L", (20, 10)).save(pictures / "class-0" / "005.png")
    refused(inside("fit", pictures, "--out", tmp_path / "x"), 1, "20x10", "--size")


def test_classes_can_be_left_out_and_the_hint_of_sample_names_the_flag(
    pictures, tmp_path
):
    run = tmp_path / "run"
    done("fit", pictures, "--no-conditional", *FEW, "--no-measure", "--out", run)
    config = json.loads((run / "config.json").read_text())
    assert config["classes"] == []
    assert "--no-conditional" in config["command"]
    words = ("sample", run, "--label", "class-0", "--out", tmp_path / "x.png")
    refused(inside(*words), 2, "without classes", "--conditional")


def test_classes_of_few_pictures_are_not_fitted_unless_asked_for(pictures):
    for file in sorted((pictures / "class-1").iterdir())[9:]:
        file.unlink()
    train, _ = read_data(Settings(str(pictures)))
    assert train.labels is None
    assert "class class-1 has 9 pictures" in train.notes[0]
    assert "--conditional" in train.notes[0]
    train, _ = read_data(Settings(str(pictures), conditional=True))
    assert set(train.labels) == {"class-0", "class-1"}


@pytest.mark.parametrize("source", ["digits", "people"])
def test_a_dry_run_prints_the_plan_and_writes_nothing(
    source, people, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    source = people if source == "people" else source
    said = done("fit", source, "--dry-run")
    assert "nothing was written" in said
    found = json.loads(done("fit", source, "--dry-run", "--json"))
    assert found["free_bytes"] is None or found["free_bytes"] > 0
    if source == "digits":
        assert "1297 pictures of 8×8" in found["plan"]
        assert found["bytes"] > 0
        assert found["seconds"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("source", ["digits", "people"])
def test_data_are_planned_once(source, people, tmp_path, monkeypatch):
    space = PictureFitPlanner if source == "digits" else TableFitPlanner
    plan = space.plan_fit
    prepared = []
    monkeypatch.setattr(
        space, "plan_fit", lambda *of: prepared.append(plan(*of)) or prepared[-1]
    )
    words = FEW if source == "digits" else ("--holdout", 0)
    done(
        "fit",
        people if source == "people" else source,
        *words,
        "--out",
        tmp_path / "run",
    )
    assert len(prepared) == 1


def test_info_shows_a_run_or_the_system(digits_run, table_run):
    found = json.loads(done("info", digits_run[0], "--json"))
    assert found["pictures"] == "8×8"
    assert found["start"] == "noise"
    assert found["classes"] == [str(i) for i in range(10)]
    assert "copy rate" in found["measures"]
    said = done("info", table_run[0])
    assert "plan: category" in said
    assert "all: the model keeps its rows" in said
    said = done("info")
    assert f"sliceflow: {sliceflow.__version__}" in said
    assert "devices:" in said
    assert "  digits: found" in said
