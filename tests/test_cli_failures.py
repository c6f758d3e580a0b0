"""Errors at the command line: one line and a hint, an exit code, and nothing left behind."""

import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("typer")

from running import FEW, command, environment, inside, installed, refused


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("fit", "./nowhere"), 2, ("'./nowhere'", "digits, mnist")),
        (("fit", ""), 2, ("''", "digits, mnist")),
        (("fit", "empty"), 1, ("empty holds no pictures", "pass a folder")),
        (("fit", "words.txt"), 1, ("words.txt is not", "pass a folder")),
        (("fit", "empty.csv"), 1, ("empty.csv is empty", "a row of column names")),
        (("fit", "words.csv"), 1, ("1 row", "at least 2")),
        (("fit", "words.csv", "--vectors"), 1, ("no numeric column", "'a'")),
        (("fit", "digits", "--quality", "fine"), 2, ("'fine'", "number of steps")),
        (("fit", "digits", "--particles", "0"), 2, ("--particles", "--help")),
        (("fit", "digits", "--particles", "9", "--conditional"), 2, ("10 classes", "10 or more")),
        (("fit", "digits", "--device", "toaster"), 2, ("--device toaster", "--device cpu")),
        (("fit", "digits", "--amplifier", "nan"), 2, ("--amplifier", "--help")),
        (("fit", "digits", "--schedule", "9["), 2, ("--schedule", "auto")),
        (("fit", "digits", "--schedule", "99[3]"), 2, ("99", "auto")),
        (("fit", "digits", "--size", "16"), 2, ("--size", "leave it out")),
        (("fit", "digits", "--observed", "half"), 2, ("--observed", "'half'")),
        (("fit", "digits", "--target", "x"), 2, ("--target", "--conditional")),
        (("fit", "digits", "--out", "words.txt"), 2, ("words.txt is a file", "--out")),
        (("fit", "digits", "--out", "/proc/run", *FEW), 1, ("/proc/run cannot be written to", "--out")),
        (("fit", "digits", "--conditional", "--observed", "top"), 2, ("exclude", "choose")),
        (("fit", "digits", "--conditional", "--clusters", "3"), 2, ("exclude", "choose")),
        (("fit", "digits", "--observed", "top", "--clusters", "3"), 2, ("exclude", "choose")),
        (("fit", "numbers.csv", "--clusters", "3"), 2, ("--clusters is for pictures", "leave it out")),
        (("fit", "numbers.csv", "--mask", "m.png"), 2, ("--mask is for pictures", "leave it out")),
        (("fit", "digits", "--clusters", "9999", "--dry-run"), 2, ("--clusters 9999", "--help")),
        (("fit", "digits", "--start", "0", "--dry-run"), 2, ("--start 0", "--help")),
        (("fit", "digits", "--start", "data", "--dry-run"), 2, ("--start data", "'noise'")),
        (("fit", "digits", "--start", "3", "--observed", "top"), 2, ("--start 3", "observed")),
        (("fit", "numbers.csv", "--start", "3"), 2, ("--start is for pictures", "leave it out")),
        (("fit", "five.npy"), 2, ("5 channels", "ImageFlow")),
        (("fit", "loud.npy"), 1, ("loud.npy", "range from 0 to 999", "0 to 255")),
        (("fit", "digits", "--config", "no.toml"), 2, ("no.toml", "--help")),
        (("fit", "mnist", "--data-root", "/nowhere"), 1, ("/nowhere/MNIST/raw", "--data-root")),
        (("info", "nowhere"), 2, ("does not exist", "run folder")),
        (("info", "words.txt"), 1, ("not a sliceflow file", "sliceflow wrote")),
        (("report", "empty"), 2, ("no config.json", "sliceflow fit")),
        (("evaluate", "words.txt"), 2, ("not a run folder", "sliceflow fit")),
        (("sample", "empty", "--out", "x.gif"), 2, ("does not exist", "run folder")),
        (("frobnicate",), 2, ("frobnicate", "--help")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_done_is_said_in_a_line_and_a_hint(tmp_path, monkeypatch, words, code, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "words.txt").write_text("no data")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "words.csv").write_text("a,b\nx,y\n")
    (tmp_path / "numbers.csv").write_text("a,b\n1,2\n3,4\n")
    np.save(tmp_path / "five.npy", np.zeros((3, 6, 6, 5), np.uint8))
    np.save(tmp_path / "loud.npy", np.arange(1000).reshape(10, 10, 10))
    before = sorted(tmp_path.iterdir())
    result = inside(*words, *(("--quiet",) if words[0] == "fit" else ()))
    refused(result, code, *said)
    assert sorted(tmp_path.glob("**/*")) == before or not any((tmp_path / "runs").iterdir())


def test_a_file_that_does_not_exist_is_named_before_a_folder_that_is_not_empty(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine.txt").touch()
    result = inside("fit", tmp_path / "no.csv", "--out", tmp_path / "runs")
    refused(result, 2, "no.csv", "neither a known set nor an existing path")


def test_more_than_the_memory_holds_is_refused_with_the_flags_to_lower(digits_run, tmp_path):
    words = ("fit", "digits", "--particles", 10**12, "--quiet", "--out", tmp_path / "run")
    refused(inside(*words), 1, "GiB free", "--particles")
    assert not (tmp_path / "run").exists()
    words = ("sample", digits_run[0], "--n", 10**12, "--out", tmp_path / "x.npz")
    refused(inside(*words), 1, "1000000000000 samples", "--n")


def test_a_fit_that_is_refused_leaves_the_run_that_it_would_replace(digits_run, tmp_path):
    shutil.copytree(digits_run[0], tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    words = ("fit", "digits", "--quiet", "--out", tmp_path / "run", "--force")
    refused(inside(*words, "--particles", 10**12), 1, "GiB free")
    refused(inside(*words, "--clusters", 9999), 2, "--clusters 9999")
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_a_class_that_is_not_there_is_named_with_those_that_are(digits_run, tmp_path):
    words = ("sample", digits_run[0], "--label", "cat", "--out", tmp_path / "x.npz")
    refused(inside(*words), 2, "'cat'", "0, 1, 2")
    words = ("sample", digits_run[0], "--device", "toaster", "--out", tmp_path / "x.npz")
    refused(inside(*words), 2, "--device toaster")
    words = ("sample", digits_run[0], "--out", tmp_path / "x.gif")
    refused(inside(*words), 2, ".gif", ".png")
    words = ("inpaint", digits_run[0], tmp_path, "--out", tmp_path / "x.png")
    refused(inside(*words), 2, "does not complete", "--observed")


def test_broken_and_mixed_pictures_are_named_with_the_cure(pictures, tmp_path):
    (pictures / "class-0" / "005.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    result = installed("fit", pictures, "--out", tmp_path / "run")
    refused(result, 1, "005.png", "--skip-broken")
    assert "skip_broken" not in result.stderr  # a word of Python's
    assert not (tmp_path / "run").exists()
    Image.new("L", (20, 10)).save(pictures / "class-0" / "005.png")
    refused(inside("fit", pictures, "--out", tmp_path / "run"), 1, "20x10", "--size")


def test_a_damaged_file_of_a_run_is_named(digits_run, tmp_path):
    run = shutil.copytree(digits_run[0], tmp_path / "run")
    whole = (run / "samples.npz").read_bytes()
    for part in (
        b"",
        whole[:500],
        whole[: len(whole) // 2] + bytes(100) + whole[len(whole) // 2 + 100 :],
    ):
        (run / "samples.npz").write_bytes(part)
        for word in ("report", "evaluate"):
            refused(inside(word, run), 1, "samples.npz is damaged", "fit the run again")


def test_debug_shows_where_it_happened(tmp_path):
    result = inside("info", tmp_path / "nowhere", "--debug")
    assert result.returncode == 2
    assert "Traceback" in result.stderr


def test_too_few_rows_to_measure_with_are_said_and_no_failure(tmp_path):
    out = tmp_path / "run"
    result = inside("fit", "digits", "--quality", 1, "--particles", 3, "--out", out)
    assert result.returncode == 0, result.stderr
    assert "not measured: 3 samples" in result.stdout
    assert "not measured" in (out / "report.html").read_text()


def test_data_that_have_gone_are_missed_by_name(pictures, tmp_path):
    out = tmp_path / "run"
    assert inside("fit", pictures, *FEW, "--quiet", "--out", out).returncode == 0
    pictures.rename(tmp_path / "elsewhere")
    refused(inside("evaluate", out), 1, "cannot be read again", "in place")


def test_a_reader_that_goes_away_ends_the_command(digits_run):
    words = " ".join(command("info", digits_run[0]))
    result = subprocess.run(
        ["sh", "-c", f"{words} | head -n 1"], capture_output=True, text=True, env=environment()
    )
    assert result.stdout.startswith("model: ")
    assert "Traceback" not in result.stderr


def test_a_table_of_a_hundred_thousand_columns_is_refused_before_any_rotation_is_made(tmp_path):
    """The rotations of so many would take a terabyte."""
    path = tmp_path / "wide.csv"
    columns = 100_000
    rows = [",".join(f"c{j}" for j in range(columns))]
    rows += [",".join(str((i * j) % 7) for j in range(columns)) for i in range(1, 4)]
    path.write_text("\n".join(rows))
    words = ("fit", path, "--quiet", "--device", "cpu", "--out", tmp_path / "run")
    refused(inside(*words), 1, "100000 columns", "at most 5000")
    refused(inside(*words, "--vectors"), 1, "100000 columns", "GiB free", "--particles")
    assert not (tmp_path / "run").exists()
