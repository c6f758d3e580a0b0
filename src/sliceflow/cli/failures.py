"""How a command fails: one line and a hint on stderr, and an exit code.

Commands raise `Failed` and `WrongUsage` where they know what to do. Errors of the library are
translated here: a parameter becomes its flag, and advice behind a semicolon becomes the hint.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from sliceflow.cli.interrupts import signals_as_interrupt

__all__ = ["INSTALL", "OPTIONAL", "Failed", "WrongUsage", "print_error", "with_exit_code"]

F = TypeVar("F", bound=Callable[..., Any])
INSTALL = "pip install 'sliceflow[cli]'"
OPTIONAL = ("typer", "rich", "pandas", "jinja2", "PIL")  # modules of that extra
_FLAGS = {  # parameters of the library that flags set under another name
    "n_particles": "particles",
    "n_steps": "quality",
    "random_state": "seed",
    "constraints": "constraint",
    "columns": "column",
}
_KIND_IN_PYTHON = re.compile(r"(?:pass )?columns={['\"](.*?)['\"]: '(\w+)'}")


class Failed(Exception):
    """The run failed: exit code 1. The hint says what to do about it."""

    code = 1

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class WrongUsage(Failed):
    """The command makes no sense this way: exit code 2."""

    code = 2


def with_exit_code(command: F) -> F:
    """The command with every error turned into a line, a hint and an exit code.

    With ``debug=True`` the traceback comes first.
    """
    flags = set(inspect.signature(command).parameters)

    @functools.wraps(command)
    def inner(*args: Any, **kwargs: Any) -> Any:
        warnings.showwarning = _ignore_warning if kwargs.get("quiet", False) else _print_warning
        warnings.filterwarnings("ignore", "the particles copy")  # commands measure that themselves
        try:
            with signals_as_interrupt():
                return command(*args, **kwargs)
        except BrokenPipeError:
            sys.exit(1)
        except (Exception, KeyboardInterrupt) as error:
            if kwargs.get("debug", False):
                traceback.print_exception(error)
            failed = translated(error, flags)
            print_error(str(failed), failed.hint)
            sys.exit(failed.code)

    return inner  # type: ignore[return-value]


def translated(error: BaseException, flags: Collection[str]) -> Failed:
    """The error in the words of a command that has these flags."""
    if isinstance(error, Failed):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Failed("interrupted", "nothing was finished; run it again")
    if isinstance(error, ModuleNotFoundError) and error.name in OPTIONAL:
        return Failed(f"this command needs {error.name}, which is not installed", INSTALL)
    if isinstance(error.__cause__, ModuleNotFoundError):
        return translated(error.__cause__, flags)
    if isinstance(error, OSError) and error.filename is not None:
        return Failed(f"{error.filename}: {error.strerror}", "check that path")
    return _from_library(error, flags)


def _from_library(error: BaseException, flags: Collection[str]) -> Failed:
    from sliceflow.errors import ParameterError

    if isinstance(error, ParameterError):
        name = _FLAGS.get(error.name, error.name)
        if name in flags:
            hint = "pass --device cpu" if name == "device" else "--help shows what each flag takes"
            return WrongUsage(f"--{name.replace('_', '-')} {error.value} {error.fact}", hint)
    if isinstance(error, MemoryError) or "allocate" in str(error):
        if "particles" in flags:
            columns = ", or leave columns out with --drop" if "columns" in str(error) else ""
            hint = f"lower --particles or --quality{columns}; --dry-run estimates the memory they need"
        else:
            hint = "pass a smaller --n, several times with different --seed"
        return Failed(getattr(error, "fact", str(error)), hint)
    known = isinstance(error, (ValueError, MemoryError, ImportError, RuntimeError, OSError))
    message = str(error) if known and str(error) else f"{type(error).__name__}: {error}"
    fact, _, advice = message.rpartition("; ")
    if not known or not fact:
        hint = "check the data and the flags; --help shows what each takes"
        return Failed(
            message, hint if isinstance(error, ValueError) else "--debug shows where it happened"
        )
    return Failed(fact, _KIND_IN_PYTHON.sub(r"pass --column '\1=\2'", advice))


def print_error(message: str, hint: str) -> None:
    """One line each on stderr."""
    print("error:", " ".join(message.split()), file=sys.stderr)
    print("hint:", " ".join(hint.split()), file=sys.stderr, flush=True)


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print("warning:", " ".join(str(message).split()), file=sys.stderr)


def _ignore_warning(*_: Any, **__: Any) -> None:
    pass
