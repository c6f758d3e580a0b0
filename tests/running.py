"""How tests run the command line: in a process of its own, or in this one."""

import contextlib
import io
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from unittest import mock

import sliceflow

COMMAND = Path(sys.executable).with_name(
    "sliceflow.exe" if os.name == "nt" else "sliceflow"
)
# Flags of a fit of pictures that is as short as can be.
FEW = ("--steps-per-stage", "2", "--particles", "300")


@contextlib.contextmanager
def few_trees():
    """Trees that measure are few: they take most of a short fit."""
    with (
        mock.patch("sliceflow.metrics.picture_comparison.N_TREES", 5),
        mock.patch("sliceflow.metrics.attack_scores._N_TREES", 5),
        mock.patch("sliceflow.metrics.tables._BOOSTING_ITERATIONS", 5),
    ):
        yield


def environment():
    """The variables of a process that imports the package that the tests see."""
    paths = [str(Path(sliceflow.__file__).parent.parent)]
    if os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    variables = dict(os.environ)
    variables["PYTHONPATH"] = os.pathsep.join(paths)
    variables["OMP_NUM_THREADS"] = "1"
    # Whatever the terminal is, it is narrow and has no colors.
    variables["COLUMNS"] = "100"
    variables["NO_COLOR"] = "1"
    return variables


def command(*words):
    """The words of the installed command, which must be there."""
    assert COMMAND.exists(), f"{COMMAND} is not installed; pip install -e '.[dev]'"
    return [str(COMMAND), *map(str, words)]


def installed(*words, cwd=None, **more):
    """Run the installed command as a user does; it takes seconds to start."""
    return subprocess.run(
        command(*words),
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment() | more,
        timeout=120,
    )


def inside(*words):
    """Run a command in this process, where torch is imported already."""
    from sliceflow.cli import main

    out = io.StringIO()
    err = io.StringIO()
    code = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["sliceflow", *map(str, words)]),
        # A command replaces this function, and here it must be restored.
        mock.patch.object(warnings, "showwarning", warnings.showwarning),
    ):
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code or 0
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def done(*words):
    """What a command prints that must succeed."""
    result = inside(*words)
    assert result.returncode == 0, result.stderr
    return result.stdout


def flags_of(name):
    """The flags of a command."""
    import typer

    from sliceflow.cli.commands import app

    flags = {"--help"}
    found = typer.main.get_command(app).commands.get(name)
    if found is not None:
        for parameter in found.params:
            flags |= {*parameter.opts, *parameter.secondary_opts}
    return flags


def unknown_flags(text, name):
    """Flags in a text of a command that it does not have.

    Behind "sliceflow sample" the text speaks of that command.
    """
    unknown = set()
    for clause in text.split(";"):
        own, *others = re.split(r"sliceflow (?=[a-z]+\b)", clause)
        parts = [(name, own)]
        for other in others:
            parts.append((other.split()[0], other))
        for command_name, part in parts:
            flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", part))
            unknown |= flags - flags_of(command_name)
    return unknown


def refused(result, code, *words):
    """Exit code, one line of error and one of hint, no traceback, and their words."""
    assert result.returncode == code, result.stdout + result.stderr
    lines = [
        line
        for line in result.stderr.strip().splitlines()
        if not line.startswith(("step ", "column "))
    ]
    assert [line.split(":")[0] for line in lines] == ["error", "hint"], result.stderr
    assert "--debug" not in lines[1], "a hint that says nothing: " + result.stderr
    unknown = unknown_flags(lines[1], result.args[0])
    assert not unknown, "a hint with other commands' flags: " + lines[1]
    for word in words:
        assert word in result.stderr, f"{word} is not in: {result.stderr}"
