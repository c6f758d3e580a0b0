"""Errors at the command line: a line, a hint, an exit code, nothing left behind."""

import ast
import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")

import sliceflow.cli
from running import FEW, done, environment, inside, refused, unknown_flags
from sliceflow.cli.failures import (
    CommandError,
    as_command_error,
    errors_with_file_rows,
    exit_on_error,
)
from sliceflow.errors import (
    DataError,
    DataWarning,
    HintedError,
    NotEnoughMemoryError,
    ParameterError,
)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("fit", "./nowhere"), 2, ("'./nowhere'", "digits, mnist")),
        (("fit", ""), 2, ("''", "digits, mnist")),
        (("fit", "empty"), 1, ("empty holds no pictures", "pass a folder")),
        (("fit", "empty.csv"), 1, ("empty.csv is empty", "a row of column names")),
        (("fit", "uneven.csv"), 1, ("row 3 has 3 cells", "fix that row")),
        (("fit", "twice.csv"), 1, ("two columns named 'a'", "rename one")),
        (
            ("fit", "bytes.csv"),
            1,
            ("neither UTF-8 nor Windows-1252", "save it as UTF-8"),
        ),
        (
            ("fit", "bad.csv"),
            1,
            (
                "row 9 of the file, column 'a': the cell holds 'oops'",
                "sliceflow fit bad.csv --quiet --missing=oops",
            ),
        ),
        (
            ("fit", "digits", "--quality", "fine"),
            2,
            ("--quality", "fine", "standard"),
        ),
        (("fit", "digits", "--particles", "0"), 2, ("--particles", "--help")),
        (
            ("fit", "digits", "--particles", "9", "--conditional"),
            2,
            ("--particles 9", "at least 10"),
        ),
        (
            ("fit", "digits", "--device", "toaster"),
            2,
            ("--device toaster", "--device cpu"),
        ),
        (("fit", "digits", "--size", "16"), 2, ("--size", "leave it out")),
        (("fit", "digits", "--known", "half"), 2, ("--known half", "border")),
        (("fit", "digits", "--target", "x"), 2, ("--target", "--conditional")),
        (
            ("fit", "digits", "--holdout", "0.2"),
            2,
            ("your own data", "test pictures of its own"),
        ),
        (("fit", "digits", "--skip-broken"), 2, ("folders and celeba", "leave it out")),
        (("fit", "empty", "--data-root", "/x"), 2, ("named sets", "leave it out")),
        (
            ("fit", "digits", "--resume", "--force"),
            2,
            ("exclude each other", "choose one"),
        ),
        (
            ("fit", "digits", "--column", "a=drop"),
            2,
            ("--column is for tables", "leave"),
        ),
        (("fit", "digits", "--out", "words.txt"), 2, ("words.txt is a file", "--out")),
        (
            ("fit", "digits", "--out", "/proc/run", *FEW),
            1,
            ("/proc/run cannot be written to", "--out"),
        ),
        (
            ("fit", "digits", "--conditional", "--known", "top"),
            2,
            ("exclude", "choose"),
        ),
        (
            ("fit", "numbers.csv", "--known", "m.png"),
            2,
            ("--known is for pictures", "leave it out"),
        ),
        (
            ("fit", "numbers.csv", "--conditional"),
            2,
            ("--conditional is for pictures", "--given"),
        ),
        (
            ("fit", "numbers.csv", "--save-rows"),
            2,
            ("--save-rows is for pictures", "leave it out"),
        ),
        (
            ("fit", "numbers.csv", "--checkpoint-every", "1"),
            2,
            ("--checkpoint-every is for pictures", "no checkpoints"),
        ),
        (
            ("fit", "numbers.csv", "--column", "a"),
            2,
            ("--column a is not name=kind", "zip=category"),
        ),
        (("fit", "numbers.csv", "--column", "z=drop"), 2, ("no column 'z'", "a, b")),
        (
            ("fit", "numbers.csv", "--column", "a=category", "--drop", "a"),
            2,
            ("a already is drop",),
        ),
        (
            ("fit", "numbers.csv", "--target", "a", "--drop", "a"),
            2,
            ("--drop a exclude each other",),
        ),
        (("fit", "numbers.csv", "--constraint", "z < 1"), 2, ("no column 'z'",)),
        (
            ("impute", "bad.csv", "--out", "x.csv"),
            1,
            ("row 9 of the file, column 'a'", "--out x.csv --missing=oops"),
        ),
        (
            ("impute", "x", "bad.csv", "--drop", "a", "--out", "x.csv"),
            2,
            ("leave the run out",),
        ),
        (
            ("impute", "nowhere.csv", "--out", "x.csv"),
            2,
            ("nowhere.csv does not exist",),
        ),
        (
            ("impute", "nowhere", "bad.csv", "--out", "x.csv"),
            2,
            ("nowhere does not exist", "run folder"),
        ),
        (("impute", "a", "b", "c", "--out", "x.csv"), 2, ("3 paths", "one table")),
        (
            ("fit", "numbers.csv", "--target", "A"),
            2,
            ("no column 'A'", "did you mean 'a'?"),
        ),
        (("fit", "five.npy"), 2, ("5 channels", "ImageFlow")),
        (("fit", "loud.npy"), 1, ("range from 0 to 999",)),
        (
            ("fit", "mnist", "--data-root", "/nowhere"),
            1,
            ("/nowhere/MNIST/raw", "--data-root"),
        ),
        (("info", "nowhere"), 2, ("does not exist", "run folder")),
        (("info", "words.txt"), 1, ("not a sliceflow file", "sliceflow wrote")),
        (("evaluate", "empty"), 2, ("no config.json", "sliceflow fit")),
        (("evaluate", "words.txt"), 2, ("not a run folder", "sliceflow fit")),
        (("sample", "empty", "--out", "x.gif"), 2, ("does not exist", "run folder")),
        (("play", "nothing", "--no-browser"), 2, ("does not exist", "run folder")),
        (("frobnicate",), 2, ("frobnicate", "--help")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_done_is_said_in_a_line_and_a_hint(
    tmp_path, monkeypatch, words, code, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name, text in {
        "words.txt": "no data",
        "empty.csv": "",
        "uneven.csv": "a,b\n1,2\n1,2,3\n",
        "twice.csv": "a,a\n1,2\n",
        "numbers.csv": "a,b\n1,2\n3,4\n",
        "bad.csv": "a,b\n"
        + "".join(f"{'oops' if i == 7 else i},{i % 3}\n" for i in range(60)),
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "bytes.csv").write_bytes(b"a,b\n\x81,2\n")
    np.save(tmp_path / "five.npy", np.zeros((3, 6, 6, 5), np.uint8))
    np.save(tmp_path / "loud.npy", np.arange(1000).reshape(10, 10, 10))
    before = sorted(tmp_path.iterdir())
    result = inside(*words, *(("--quiet",) if words[0] == "fit" else ()))
    refused(result, code, *said)
    assert sorted(tmp_path.glob("**/*")) == before


def test_more_than_the_memory_holds_is_refused_with_the_flags_to_lower(
    digits_run, tmp_path
):
    shutil.copytree(digits_run[0], tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    words = (
        "fit",
        "digits",
        "--particles",
        10**12,
        "--quiet",
        "--out",
        tmp_path / "run",
        "--force",
    )
    refused(inside(*words), 1, "GiB free", "--particles")
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    words = ("sample", digits_run[0], "--n", 10**12, "--out", tmp_path / "x.npz")
    refused(inside(*words), 1, "--n", "--seed")


def test_a_class_that_is_not_there_is_named_with_those_that_are(digits_run, tmp_path):
    words = ("sample", digits_run[0], "--out", tmp_path / "x.npz")
    refused(inside(*words, "--label", "cat"), 2, "'cat'", "0, 1, 2")
    refused(inside(*words, "--device", "toaster"), 2, "--device toaster")
    words = ("sample", digits_run[0], "--out", tmp_path / "x.gif")
    refused(inside(*words), 2, ".gif", ".png")


def test_debug_shows_where_it_happened(tmp_path):
    result = inside("info", tmp_path / "nowhere", "--debug")
    assert result.returncode == 2
    assert "Traceback" in result.stderr


def test_few_rows_are_fitted_and_not_measured(tmp_path):
    (tmp_path / "t.csv").write_text(
        "a,b\n" + "".join(f"{i},{i % 3}\n" for i in range(30))
    )
    said = done("fit", tmp_path / "t.csv", "--out", tmp_path / "run")
    assert "not measured: 0 rows were held out" in said
    assert "not measured" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("error", "flags", "words"),
    [
        (
            ParameterError("n_particles", 0, "must be 1"),
            {"particles"},
            "--particles 0 must be 1",
        ),
        (
            ParameterError("n_particles", 0, "must be 1"),
            set(),
            "n_particles=0 must be 1",
        ),
        (ValueError("so it is; do that"), set(), "so it is; do that|check the data"),
        (HintedError("so it is", "do that"), set(), "so it is|do that"),
        (
            DataError("is odd", "fix it", row=3, column="a b"),
            {"column"},
            "row 3, column 'a b': is odd|fix it",
        ),
        (
            DataError("is odd", column="a b", suggested_kinds=("category", "drop")),
            {"column"},
            "column 'a b': is odd|pass --column 'a b=category' or --column 'a b=drop'",
        ),
        (
            NotEnoughMemoryError("too much"),
            {"particles"},
            "--particles or --steps-per-stage",
        ),
        (NotEnoughMemoryError("too much"), {"n"}, "--n"),
        (OSError(2, "not there", "a.txt"), set(), "a.txt: not there"),
        (
            ModuleNotFoundError("no", name="jinja2"),
            set(),
            "pip install 'sliceflow[cli]'",
        ),
    ],
)
def test_errors_of_the_library_are_translated(error, flags, words):
    found = as_command_error(error, flags)
    text = f"{found.fact}|{found.hint}"
    assert words in text
    assert ("--particles" in text) <= ("particles" in flags)


def test_rows_of_a_table_are_counted_as_in_its_file():
    with pytest.raises(CommandError) as caught, errors_with_file_rows():
        raise DataError("is odd", "fix it", row=7, column="a")
    assert caught.value.fact == "row 9 of the file, column 'a': is odd"
    assert caught.value.hint == "fix it"
    with pytest.raises(DataError), errors_with_file_rows():
        raise DataError("no row is named")


def test_a_warning_suggests_a_flag(capsys, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with warnings.catch_warnings(), exit_on_error((), debug=False):
        warnings.simplefilter("always")
        problem = DataWarning("is known", column="a", suggested_kinds=("identifier",))
        warnings.warn(problem, stacklevel=1)
    said = capsys.readouterr().err
    assert said == "warning: column 'a': is known; pass --column 'a=identifier'\n"


# The command whose errors a module writes. `as_command_error` looks at flags itself,
# and
# `draw` is of several commands.
RAISED_BY = {
    "grids": "inpaint",
    "settings": "fit",
    "run_folder": "fit",
    "data": "fit",
    "fit": "fit",
    "evaluate": "evaluate",
    "info": "info",
    "play": "play",
}


def test_texts_name_only_flags_of_the_command_that_says_them():
    """`refused` checks the hints that tests meet, this checks the others."""
    found = 0
    for module, command in RAISED_BY.items():
        text = Path(sliceflow.cli.__file__).with_name(f"{module}.py").read_text()
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and "--" in node.value
            ):
                found += 1
                assert not unknown_flags(node.value, command), (module, node.value)
    assert found > 20
    assert unknown_flags("pass --size, or sliceflow fit --size", "play") == {"--size"}


WITHOUT_TORCH = """
import json, sys
from sliceflow.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["sliceflow", *words]
    try:
        main()
    except SystemExit as exit:
        assert exit.code == 2, words
    assert "torch" not in sys.modules, words
"""


def test_wrong_arguments_are_refused_before_torch_is_imported(
    table_run, digits_run, people, tmp_path
):
    """That takes seconds."""
    there = tmp_path / "there.csv"
    there.touch()
    commands = [
        ("impute", people, "--out", there),
        ("impute", tmp_path / "nowhere.csv", "--out", tmp_path / "x.csv"),
        ("impute", digits_run[0], people, "--out", tmp_path / "x.csv"),
        ("sample", table_run[0], "--out", there),
        ("sample", table_run[0], "--out", tmp_path / "x.gif"),
        ("sample", table_run[0], "--label", "a", "--out", tmp_path / "x.csv"),
        ("sample", table_run[0], "--given", "agge=3", "--out", tmp_path / "x.csv"),
        ("sample", digits_run[0], "--given", "a=1", "--out", tmp_path / "x.png"),
        ("inpaint", table_run[0], there, "--out", tmp_path / "x.png"),
        ("inpaint", digits_run[0], tmp_path / "no.png", "--out", tmp_path / "x.png"),
        ("fit", tmp_path / "nowhere"),
        ("evaluate", tmp_path / "nowhere"),
    ]
    words = json.dumps([[str(word) for word in command] for command in commands])
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, words],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("error: ") == len(commands)
