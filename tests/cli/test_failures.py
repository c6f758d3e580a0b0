"""Errors at the command line: one line and a hint, an exit code, and nothing left behind."""

import ast
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")

import typer

import sliceflow.cli
from running import FEW, done, inside, refused
from sliceflow.cli.commands import app
from sliceflow.cli.failures import translated
from sliceflow.errors import NotEnoughMemoryError, ParameterError


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("fit", "./nowhere"), 2, ("'./nowhere'", "digits, mnist")),
        (("fit", ""), 2, ("''", "digits, mnist")),
        (("fit", "empty"), 1, ("empty holds no pictures", "pass a folder")),
        (("fit", "empty.csv"), 1, ("empty.csv is empty", "a row of column names")),
        (("fit", "uneven.csv"), 1, ("row 3 has 3 cells", "fix that row")),
        (("fit", "twice.csv"), 1, ("two columns named 'a'", "rename one")),
        (("fit", "bytes.csv"), 1, ("neither UTF-8 nor Windows-1252", "save it as UTF-8")),
        (("fit", "bad.csv"), 1, ("'oops' in row 9 of the file", "--column 'a=category'")),
        (("fit", "words.csv", "--vectors"), 1, ("no numeric column", "--vectors")),
        (("fit", "digits", "--quality", "fine"), 2, ("'fine'", "number of steps")),
        (("fit", "digits", "--particles", "0"), 2, ("--particles", "--help")),
        (("fit", "digits", "--particles", "9", "--conditional"), 2, ("10 classes", "10 or more")),
        (("fit", "digits", "--device", "toaster"), 2, ("--device toaster", "--device cpu")),
        (("fit", "digits", "--size", "16"), 2, ("--size", "leave it out")),
        (("fit", "digits", "--observed", "half"), 2, ("--observed", "'half'")),
        (("fit", "digits", "--target", "x"), 2, ("--target", "--conditional")),
        (("fit", "digits", "--vectors"), 2, ("--vectors is for tables", "leave it out")),
        (("fit", "digits", "--column", "a=drop"), 2, ("--column is for tables", "leave")),
        (("fit", "digits", "--out", "words.txt"), 2, ("words.txt is a file", "--out")),
        (("fit", "digits", "--out", "/proc/run", *FEW), 1, ("/proc/run cannot be written to", "--out")),
        (("fit", "digits", "--conditional", "--observed", "top"), 2, ("exclude", "choose")),
        (("fit", "numbers.csv", "--mask", "m.png"), 2, ("--mask is for pictures", "leave it out")),
        (("fit", "numbers.csv", "--conditional"), 2, ("--conditional is for pictures", "--given")),
        (("fit", "numbers.csv", "--quality", "3"), 2, ("tables with --vectors", "leave it out")),
        (("fit", "numbers.csv", "--keep-rows"), 2, ("--keep-rows is for", "leave it out")),
        (("fit", "numbers.csv", "--vectors", "--constraint", "a<=b"), 2, ("without --vectors",)),
        (("fit", "numbers.csv", "--column", "a"), 2, ("--column a is not name=kind", "zip=category")),
        (("fit", "numbers.csv", "--column", "z=drop"), 1, ("'z'", "a, b")),
        (("fit", "numbers.csv", "--constraint", "z < 1"), 1, ("z",)),
        (("fit", "five.npy"), 2, ("5 channels", "ImageFlow")),
        (("fit", "loud.npy"), 1, ("range from 0 to 999",)),
        (("fit", "mnist", "--data-root", "/nowhere"), 1, ("/nowhere/MNIST/raw", "--data-root")),
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
def test_what_cannot_be_done_is_said_in_a_line_and_a_hint(tmp_path, monkeypatch, words, code, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name, text in {
        "words.txt": "no data",
        "empty.csv": "",
        "words.csv": "a,b\nx,y\n",
        "uneven.csv": "a,b\n1,2\n1,2,3\n",
        "twice.csv": "a,a\n1,2\n",
        "numbers.csv": "a,b\n1,2\n3,4\n",
        "bad.csv": "a,b\n" + "".join(f"{'oops' if i == 7 else i},{i % 3}\n" for i in range(60)),
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "bytes.csv").write_bytes(b"a,b\n\x81,2\n")
    np.save(tmp_path / "five.npy", np.zeros((3, 6, 6, 5), np.uint8))
    np.save(tmp_path / "loud.npy", np.arange(1000).reshape(10, 10, 10))
    before = sorted(tmp_path.iterdir())
    result = inside(*words, *(("--quiet",) if words[0] == "fit" else ()))
    refused(result, code, *said)
    assert sorted(tmp_path.glob("**/*")) == before


def test_more_than_the_memory_holds_is_refused_with_the_flags_to_lower(digits_run, tmp_path):
    words = ("fit", "digits", "--particles", 10**12, "--quiet", "--out", tmp_path / "run")
    refused(inside(*words), 1, "GiB free", "--particles")
    assert not (tmp_path / "run").exists()
    words = ("sample", digits_run[0], "--n", 10**12, "--out", tmp_path / "x.npz")
    refused(inside(*words), 1, "--n", "--seed")


def test_a_fit_that_is_refused_leaves_the_run_that_it_would_replace(digits_run, tmp_path):
    shutil.copytree(digits_run[0], tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    words = ("fit", "digits", "--quiet", "--out", tmp_path / "run", "--force")
    refused(inside(*words, "--particles", 10**12), 1, "GiB free")
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


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
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{i},{i % 3}\n" for i in range(30)))
    said = done("fit", tmp_path / "t.csv", "--out", tmp_path / "run")
    assert "not measured: 0 rows were held out" in said
    assert "not measured" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("module", ["pandas", "jinja2"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(module, people, tmp_path):
    error = ModuleNotFoundError(f"No module named {module!r}", name=module)
    found = translated(error, set())
    assert module in str(found)
    assert "pip install 'sliceflow[cli]'" in found.hint


@pytest.mark.parametrize(
    ("error", "flags", "words"),
    [
        (ParameterError("n_particles", 0, "must be 1"), {"particles"}, "--particles 0 must be 1"),
        (ParameterError("n_particles", 0, "must be 1"), set(), "n_particles=0 must be 1"),
        (ValueError("so it is; do that"), set(), "so it is|do that"),
        (ValueError("x; pass columns={'a b': 'category'}"), {"column"}, "--column 'a b=category'"),
        (NotEnoughMemoryError("too much"), {"particles"}, "--particles or --quality"),
        (NotEnoughMemoryError("too much"), {"n"}, "--n"),
        (OSError(2, "not there", "a.txt"), set(), "a.txt: not there"),
    ],
)
def test_errors_of_the_library_are_translated(error, flags, words):
    found = translated(error, flags)
    text = f"{found}|{found.hint}"
    assert words in text
    assert ("--particles" in text) <= ("particles" in flags)


# Every hint names only flags that the command has


COMMANDS = typer.main.get_command(app).commands
RAISED = ("Failed", "WrongUsage")
FOLDER = Path(sliceflow.cli.__file__).parent
MODULES = {path.stem: ast.parse(path.read_text()) for path in FOLDER.glob("*.py")}


def functions():
    """Every function of the command line: (module, class or "", name) → its node."""
    out = {}
    for module, tree in MODULES.items():
        for node in tree.body:
            inner = node.body if isinstance(node, ast.ClassDef) else [node]
            name = node.name if isinstance(node, ast.ClassDef) else ""
            out |= {(module, name, f.name): f for f in inner if isinstance(f, ast.FunctionDef)}
    return out


def imported(*trees):
    """What names of the command line mean: a module, or (module, name)."""
    out = {}
    for tree in trees:
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sliceflow.cli"):
                module = node.module.split(".")[-1]
                for alias in node.names:
                    whole = alias.name if module == "cli" else (module, alias.name)
                    out[alias.asname or alias.name] = whole
    return out


def calls(node):
    """The names and attributes that a function uses, unless it catches `Failed` and says otherwise."""
    if isinstance(node, ast.Try):
        caught = [ast.unparse(handler.type) for handler in node.handlers if handler.type]
        if any("Failed" in text for text in caught):
            for child in (*node.handlers, *node.orelse, *node.finalbody):
                yield from calls(child)
            return
    if isinstance(node, ast.Attribute):
        yield (getattr(node.value, "id", ""), node.attr)
    if isinstance(node, ast.Name):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from calls(child)


def reached(verb, every):
    """All functions that a command may call."""
    seen, todo = set(), [("commands", "", verb)]
    while todo:
        here = todo.pop()
        if here in seen:
            continue
        seen.add(here)
        names = imported(MODULES[here[0]]) | imported(every[here])
        for used in set(calls(every[here])):
            if isinstance(used, str):
                module, name = (
                    names.get(used, (here[0], used))[:2] if used in names else (here[0], used)
                )
                if module != "commands" or name not in COMMANDS:  # parameters have such names
                    todo += [key for key in every if key == (module, "", name)]
                todo += [key for key in every if key == (module, name, "__init__")]
            elif isinstance(names.get(used[0]), str):
                todo += [key for key in every if key == (names[used[0]], "", used[1])]
            else:  # a method, or a property
                methods = [key for key in every if key[1] and key[2] == used[1]]
                todo += [key for key in methods if key[0] == here[0] or key[0] != "play"]
    return seen


def texts(node, module):
    """The texts in a function that raises, and in the constants of its module that it uses."""
    if isinstance(node, ast.JoinedStr):
        yield ast.unparse(node)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name):
        for one in MODULES[module].body:
            if isinstance(one, ast.Assign) and getattr(one.targets[0], "id", "") == node.id:
                yield from texts(one.value, module)
    else:
        for child in ast.iter_child_nodes(node):
            yield from texts(child, module)


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_every_hint_names_only_flags_that_the_command_has(verb):
    every, named = functions(), set()
    flags = {name for param in COMMANDS[verb].params for name in param.opts} | {"--help"}
    skipped = {"failures", "commands"}  # which know the flags of the command
    if verb in ("demo", "play"):  # their data and settings are fixed
        skipped |= {"data", "settings", "evaluate", "draw"}
    for module, of, name in reached(verb, every):
        node = every[module, of, name]
        raises = any(getattr(n, "id", "") in RAISED for n in ast.walk(node))
        for text in texts(node, module) if raises and module not in skipped else ():
            # but not those of another command, which the hint quotes
            alone = re.sub(r"(sliceflow \w+|\{[\w.]*command\})[^;,]*", "", text)
            named |= {(module, name, flag) for flag in re.findall(r"--[a-z][a-z-]+", alone)}
    assert {item for item in named if item[2] not in flags} == set()
    if verb == "fit":
        assert len(named) > 20  # the search finds hints
