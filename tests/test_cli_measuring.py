"""What the command line measures and shows: numbers and pictures that mean what they seem to."""

import json
import re

import numpy as np
import pytest
import torch

pytest.importorskip("typer")

from running import inside
from sliceflow.cli import evaluate
from sliceflow.cli.data import Data
from sliceflow.cli.progress import ProgressLines
from sliceflow.cli.run_folder import RunFolder
from sliceflow.cli.settings import Settings
from sliceflow.datasets import load
from sliceflow.engine.events import Event


def measured(*words):
    result = inside(*words, "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    return {m["name"]: m["batched"] for m in found["measures"]}, found["note"]


@pytest.fixture(scope="module")
def sorted_run(tmp_path_factory):
    """A run on 2000 rows that are sorted by their first column, and the table."""
    folder = tmp_path_factory.mktemp("sorted")
    x = np.random.default_rng(0).normal(size=(2000, 2))
    x[:, 0] = np.arange(2000)
    np.savetxt(folder / "rows.csv", x, delimiter=",", header="id,value", comments="")
    words = ("fit", folder / "rows.csv", "--quality", 20, "--particles", 1000)
    result = inside(*words, "--out", folder / "run")
    assert result.returncode == 0, result.stderr
    return folder / "run", folder / "rows.csv", result


def test_the_scatter_shows_rows_from_all_over_a_sorted_table(sorted_run):
    run, _, _ = sorted_run
    page = (run / "report.html").read_text()
    places = [float(x) for x in re.findall(r'<circle class="ring" cx="([\d.]+)"[^>]*r="3"', page)]
    others = [float(x) for x in re.findall(r'<circle class="dot" cx="([\d.]+)"[^>]*r="3"', page)]
    assert len(places) == len(others) == 400
    quarters = [np.quantile(p, (0.25, 0.5, 0.75)) for p in (places, others)]
    assert np.abs(quarters[0] - quarters[1]).max() < 60  # of 700 pixels
    assert inside("report", run).returncode == 0
    assert (run / "report.html").read_text() == page  # the same rows again


def test_the_distance_that_is_shown_last_is_not_that_of_an_axis_step(sorted_run):
    run, _, fitted = sorted_run
    history = RunFolder(run).history()
    assert [row["stage"] for row in history[-3:]] == ["flow", "axis", "axis"]
    assert history[-1]["distance"] < 1e-9  # exact: it says nothing
    shown = f"{history[-3]['distance']:.4g}"
    assert f"step 22/22, stage axis, sliced distance {shown}," in fitted.stderr
    known = json.loads(inside("info", run, "--json").stdout)
    assert (known["last sliced distance"], known["in stage"]) == (history[-3]["distance"], "flow")
    said = re.search(r"It goes from .*?\. Bands", (run / "report.html").read_text())[0]
    assert f"to {history[-3]['distance']:.3g} at the last step of stage flow" in said


def test_single_pixels_are_axes_too(capsys):
    say = ProgressLines()
    way = (("1×1[1]", 3.0), ("1×1[1]", 2.0), ("8×8[2]", 0.5), ("8×8[1]", 1e-9))
    for done, (stage, distance) in enumerate(way, 1):
        say(Event(stage, done - 1, 0, done, 4, torch.tensor(distance), 1.0, torch.empty(2, 5)))
    shown = [float(d) for d in re.findall("distance ([^,]*),", capsys.readouterr().err)]
    assert shown == [3.0, 2.0, 0.5, 0.5]


def test_a_runs_own_samples_are_read_in_its_own_levels(digits_run, tmp_path):
    run, _ = digits_run
    own, note = measured("evaluate", run, "--against", run / "samples.npz")
    assert own["precision"] > 0.9
    assert own["sliced distance"] < 0.01
    assert "its pixels, 0 to 16, are taken as the run's, 0 to 16" in note
    assert "held-out" not in note
    images = load("digits", "test").images
    np.save(tmp_path / "bytes.npy", (images * (255 / 16)).round().astype(np.uint8))
    _, note = measured("evaluate", run, "--against", tmp_path / "bytes.npy")
    assert "taken as" not in note


def test_rows_that_were_fitted_are_not_called_held_out(sorted_run, tmp_path):
    run, table, _ = sorted_run
    _, note = measured("evaluate", run)
    assert "and 200 held-out rows;" in note
    _, note = measured("evaluate", run, "--against", table)
    assert f"rows of {table}" in note
    assert "not held out: 1800 of the 2000 rows were fitted" in note
    x = np.random.default_rng(1).normal(size=(300, 2))
    np.savetxt(tmp_path / "new.csv", x, delimiter=",", header="id,value", comments="")
    with (tmp_path / "new.csv").open("a") as stream:
        stream.write("1.5,\n")
    _, note = measured("evaluate", run, "--against", tmp_path / "new.csv")
    assert "were fitted" not in note
    assert "held" not in note
    assert "left out 1 of 301 rows" in note


def test_info_names_the_columns(sorted_run):
    run, _, _ = sorted_run
    assert "columns: id, value" in inside("info", run).stdout
    assert json.loads(inside("info", run, "--json").stdout)["columns"] == ["id", "value"]


def test_a_fit_that_copies_says_so_with_the_flag_that_helps(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "sliceflow.spaces.vectors.smoothing._FEWEST", 1000
    )  # with smoothing it would not
    x = np.random.default_rng(0).normal(size=(150, 2))
    np.savetxt(tmp_path / "rows.csv", x, delimiter=",", header="a,b", comments="")
    run = tmp_path / "run"
    said = inside("fit", tmp_path / "rows.csv", "--particles", 500, "--out", run).stdout
    line = (
        r"the samples copy training rows \(copies .*, NN ratio .*\); fewer steps help: --quality draft"
    )
    (warning,) = re.findall(rf"^warning: ({line})$", said, re.MULTILINE)
    again = inside("evaluate", run)
    assert f"warning: {warning}" in again.stdout.splitlines()
    assert f"<p><strong>Warning:</strong> {warning}.</p>" in (run / "report.html").read_text()
    assert f"warning: {warning}" in inside("info", run).stdout.splitlines()
    scores, _ = measured("evaluate", run)
    known = json.loads(inside("info", run, "--json").stdout)
    assert known["warning"] == warning
    assert known["measures of batched samples"] == scores
    assert scores["copies"] > 0.3
    assert scores["NN ratio"] < 0.5
    # Other rows, as near to the fitted ones as it may be.
    assert "warning" not in inside("evaluate", run, "--against", tmp_path / "rows.csv").stdout


def test_a_fit_that_does_not_copy_says_nothing_of_it(sorted_run):
    run, _, fitted = sorted_run
    assert "copies " in fitted.stdout
    assert "warning" not in fitted.stdout + (run / "report.html").read_text()
    assert "warning" not in inside("info", run).stdout


@pytest.mark.parametrize(
    ("copies", "floor", "ratio", "warned"),
    [
        ((0.05, 0.05), 0.01, (0.7, 0.7), False),
        ((0.051, 0.01), 0.01, (1.0, 1.0), True),
        ((0.01, 0.051), 0.01, (1.0, None), True),
        ((0.2, 0.2), 0.05, (1.0, 1.0), False),  # 19 rows were held out
        ((0.01, None), 0.01, (0.69, None), True),
        ((0.01, 0.01), 0.01, (1.0, 0.69), True),
    ],
)
def test_copying_is_five_times_the_floor_or_a_low_ratio(copies, floor, ratio, warned):
    measures = [
        evaluate.Measure("NN ratio", *ratio, 1.0, "1", ""),
        evaluate.Measure("copies", *copies, floor, "0.01", ""),
    ]
    assert (evaluate._copying(measures) is not None) == warned
    assert evaluate._copying(measures[:1]) is evaluate._copying([]) is None


@pytest.mark.parametrize(
    ("quality", "table", "pictures"),
    [("best", "draft", "draft"), ("draft", "25", "1"), ("51", "25", "25"), ("8", "4", "4")],
)
def test_the_flag_against_copying_makes_fewer_steps(quality, table, pictures):
    kinds = (Data("t", np.zeros((9, 2)), columns=["a", "b"]), Data("p", np.zeros((9, 4, 4), np.uint8)))
    for data, flag in zip(kinds, (table, pictures), strict=True):
        said = evaluate._against_copying(Settings("t", quality=quality), data)
        assert said == f"fewer steps help: --quality {flag}"
        assert evaluate._against_copying(Settings("t", quality="1"), data) == "fit more rows"
