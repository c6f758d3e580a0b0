"""How a command prints, and how it ends: with an exit code, and an error in one line.

Errors of the library are put into the words of the command line from their fields: a
parameter becomes its flag, a suggested kind of a column becomes ``--column``.
"""

from __future__ import annotations

import errno
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from sliceflow.errors import (
    CopyWarning,
    DataError,
    DataProblem,
    HintedError,
    ParameterError,
)

INSTALL_HINT = "pip install 'sliceflow[cli]'"
# Optional modules that the extra "cli" installs.
OPTIONAL_MODULES = ("typer", "rich", "narwhals", "pandas", "jinja2", "PIL")
# How to install optional modules: those of the extra, and those for one kind of files.
_INSTALL_HINTS = dict.fromkeys(OPTIONAL_MODULES, INSTALL_HINT) | {
    "openpyxl": "pip install 'sliceflow[excel]'",
    "pyarrow": "pip install pyarrow",
}

# Flags whose names differ from the parameters that they set.
_FLAGS_BY_PARAMETER = {
    "n_particles": "particles",
    "random_state": "seed",
    "constraints": "constraint",
    "kinds": "column",
}
# Errors of a full disk: no space, too large a file, and a quota (which Windows does not
# have).
_DISK_IS_FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))
# Signals that end a process; Windows has no SIGHUP.
_END_SIGNALS = [signal.SIGTERM]
if hasattr(signal, "SIGHUP"):
    _END_SIGNALS.append(signal.SIGHUP)
# Line 1 of a file has the names of the columns, so row 0 of the table is line 2.
_FIRST_ROW_OF_A_FILE = 2


class CommandError(HintedError):
    """A command failed: exit code 1."""

    exit_code = 1


class UsageError(CommandError):
    """A command was called in a way that makes no sense: exit code 2."""

    exit_code = 2


@dataclass(frozen=True)
class Output:
    """Where a command prints what happens: to stdout, or nowhere if `silent`."""

    silent: bool = False
    progress: bool = True  # whether a fit shows how far it is

    def say(self, text: str) -> None:
        """Print a line, unless the output is silent."""
        if not self.silent:
            print(text, flush=True)

    def say_always(self, text: str) -> None:
        """Print a line even if the output is silent: then to stderr."""
        print(text, file=sys.stderr if self.silent else sys.stdout, flush=True)


@contextmanager
def exit_on_error(flags: Collection[str], *, debug: bool) -> Iterator[None]:
    """Turn every error into a line, a hint and an exit code.

    Parameters
    ----------
    flags : names of the flags that the command has, such as "n_particles"
    debug : print the traceback first
    """
    warnings.showwarning = _show_warning
    warnings.simplefilter("ignore", CopyWarning)  # commands measure copies themselves
    try:
        with _signals_as_interrupt():
            yield
    except BrokenPipeError:
        sys.exit(1)
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            traceback.print_exception(error)
        failure = as_command_error(error, flags)
        print_error(failure.fact, failure.hint)
        sys.exit(failure.exit_code)


def as_command_error(error: BaseException, flags: Collection[str]) -> CommandError:
    """The error in the words of a command that has these flags."""
    if isinstance(error, CommandError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return CommandError("interrupted", "nothing was finished; run it again")
    if isinstance(error.__cause__, ModuleNotFoundError):
        error = error.__cause__
    if isinstance(error, ModuleNotFoundError) and error.name in _INSTALL_HINTS:
        fact = f"this command needs {error.name}, which is not installed"
        return CommandError(fact, _INSTALL_HINTS[error.name])
    if isinstance(error, OSError) and error.filename is not None:
        return _file_error(error)
    if isinstance(error, ParameterError):
        flag = _FLAGS_BY_PARAMETER.get(error.parameter, error.parameter)
        if flag in flags:
            return _wrong_value(flag, error)
    if isinstance(error, MemoryError) or _is_out_of_memory(error):
        return _memory_error(error, flags)
    return _other_error(error)


def _file_error(error: OSError) -> CommandError:
    """An error of the operating system about a file."""
    hint = "check that path"
    if error.errno in _DISK_IS_FULL:
        hint = "free some space, or write elsewhere"
    return CommandError(f"{error.filename}: {error.strerror}", hint)


def _wrong_value(flag: str, error: ParameterError) -> UsageError:
    """A parameter that a flag has set."""
    value = error.value
    if isinstance(value, dict):  # kinds of columns, as --column takes them
        value = ", ".join(f"{name}={kind}" for name, kind in value.items())
    fact = f"--{flag.replace('_', '-')} {value} {error.fact}"
    if flag == "device":
        return UsageError(fact, "pass --device cpu")
    if flag in ("column", "constraint") and error.hint:  # it is about the table
        return UsageError(fact, error.hint)
    return UsageError(fact, "--help shows what each flag takes")


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether it is torch's own error for a full GPU, which is not a MemoryError."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.OutOfMemoryError)


def _memory_error(error: BaseException, flags: Collection[str]) -> CommandError:
    """The error for too little memory, with the flags that need less."""
    hint = "pass a smaller --n, several times with different --seed"
    if "particles" in flags:
        hint = (
            "for pictures lower --particles or --steps-per-stage, for tables leave "
            "columns out with --drop; --dry-run estimates the memory that a fit needs"
        )
    if isinstance(error, HintedError):
        return CommandError(error.where + error.fact, hint)
    return CommandError(str(error) or "there is not enough memory", hint)


def _other_error(error: BaseException) -> CommandError:
    """An error with a hint of its own, or with a general one."""
    check_hint = "check the data and the flags; --help shows what each takes"
    if isinstance(error, DataProblem):
        hint = hint_with_flags(error) or check_hint
        return CommandError(error.where + error.fact, hint)
    if isinstance(error, HintedError):
        return CommandError(error.where + error.fact, error.full_hint or check_hint)
    if isinstance(error, ValueError) and str(error):
        return CommandError(str(error), check_hint)
    if isinstance(error, FileNotFoundError):
        return CommandError(str(error), "check that path")
    debug_hint = "--debug shows where it happened"
    if isinstance(error, ImportError | RuntimeError | OSError) and str(error):
        return CommandError(str(error), debug_hint)
    return CommandError(f"{type(error).__name__}: {error}", debug_hint)


def hint_with_flags(problem: DataProblem) -> str:
    """The hint of an error or a warning, with ``--column`` for suggested kinds."""
    choices = [
        f"--column '{problem.column}={kind}'" for kind in problem.suggested_kinds
    ]
    return join_hints(problem.hint, "pass", choices)


def join_hints(hint: str, verb: str, choices: list[str]) -> str:
    """Join a hint and flags, such as "fix the cells, or pass --column 'a=category'".

    Either part may be empty.
    """
    parts = []
    if hint:
        parts.append(hint)
    if choices:
        parts.append(f"{verb} {' or '.join(choices)}")
    return ", or ".join(parts)


def fact_in_file(error: DataError) -> str:
    """What is wrong in a table that was read from a file.

    Rows are counted as a spreadsheet shows them: "row 9 of the file, column 'a': …".
    """
    if error.row is None:
        return error.where + error.fact
    place = f"row {error.row + _FIRST_ROW_OF_A_FILE} of the file"
    if error.column is not None:
        place += f", column {error.column!r}"
    return f"{place}: {error.fact}"


@contextmanager
def errors_with_file_rows() -> Iterator[None]:
    """Turn errors about a table into those that count rows as its file does."""
    try:
        yield
    except DataError as error:
        if error.row is None:
            raise
        hint = hint_with_flags(error) or "fix that row"
        raise CommandError(fact_in_file(error), hint) from error


def print_error(fact: str, hint: str) -> None:
    """One line each on stderr."""
    _print_line("error:", fact)
    _print_line("hint:", hint)


def print_note(text: str) -> None:
    """A line on stderr about what was left out of the data, or taken for missing."""
    _print_line("note:", text)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one line; it takes the place of `warnings.showwarning`."""
    text = str(message)
    if isinstance(message, DataProblem):
        hint = hint_with_flags(message)
        text = message.where + message.fact
        if hint:
            text += f"; {hint}"
    _print_line("warning:", text)


def _print_line(kind: str, text: str) -> None:
    print(kind, " ".join(text.split()), file=sys.stderr, flush=True)


@contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt.

    SIGINT is ignored in the background of scripts, unless a process asks for it.
    Signals with a handler of their own, as SIGHUP under nohup, keep it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    handlers_before = {}
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        handlers_before[signal.SIGINT] = signal.SIG_IGN
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in _END_SIGNALS:
        if signal.getsignal(number) == signal.SIG_DFL:
            handlers_before[number] = signal.SIG_DFL
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Do what Ctrl-C does at this moment: a fit first writes a checkpoint."""
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)
    else:
        signal.default_int_handler(signal.SIGINT, frame)
