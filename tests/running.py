"""How tests run the command line: the installed command in its own process, or `main` in ours."""

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
FEW = ("--quality", "2", "--particles", "300")


def environment():
    # The package that the tests see, from any folder; narrow and plain, whatever the terminal is.
    paths = [
        str(Path(sliceflow.__file__).parent.parent),
        os.environ.get("PYTHONPATH", ""),
    ]
    fixed = {"OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1"}
    return os.environ | fixed | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def command(*words):
    """The words of the installed command, which must be there."""
    assert COMMAND.exists(), f"{COMMAND} is not installed; pip install -e '.[dev]'"
    return [str(COMMAND), *map(str, words)]


def installed(*words, cwd=None, **more):
    """The installed command in a process of its own: as a user runs it, and seconds slow."""
    return subprocess.run(
        command(*words),
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment() | more,
        timeout=120,
    )


def inside(*words):
    """The same in this process, where torch is imported already: only for what needs no process."""
    from sliceflow.cli import main

    out = io.StringIO()
    err = io.StringIO()
    code = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["sliceflow", *map(str, words)]),
        mock.patch.object(
            warnings, "showwarning", warnings.showwarning
        ),  # a command sets its own
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    return subprocess.CompletedProcess(words, code or 0, out.getvalue(), err.getvalue())


def done(*words):
    """What a command says that must succeed."""
    result = inside(*words)
    assert result.returncode == 0, result.stderr
    return result.stdout


def flags_of(command):
    """The flags of a command."""
    import typer

    from sliceflow.cli.commands import app

    found = typer.main.get_command(app).commands.get(command)
    return {
        name for param in (found.params if found else ()) for name in param.opts
    } | {"--help"}


def unknown_flags(text, command):
    """Flags in a text of a command that it does not have; "sliceflow sample …" speaks of another one."""
    found = set()
    for clause in text.split(";"):
        own, *others = re.split(r"sliceflow (?=[a-z]+\b)", clause)
        for verb, part in [
            (command, own),
            *((other.split()[0], other) for other in others),
        ]:
            found |= set(re.findall(r"(?<![\w-])--[a-z-]+", part)) - flags_of(verb)
    return found


def refused(result, code, *words):
    """Exit code, one line of error and one of hint, no traceback, and what they say."""
    assert result.returncode == code, result.stdout + result.stderr
    lines = [
        line
        for line in result.stderr.strip().splitlines()
        if not line.startswith("step ")
    ]
    assert [line.split(":")[0] for line in lines] == ["error", "hint"], result.stderr
    assert "--debug" not in lines[1], "a hint that says nothing: " + result.stderr
    assert not unknown_flags(lines[1], result.args[0]), (
        "a hint with other commands' flags: " + lines[1]
    )
    for word in words:
        assert word in result.stderr, f"{word} is not in: {result.stderr}"
