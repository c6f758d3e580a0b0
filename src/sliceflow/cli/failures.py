"""How a command fails: one line and a hint on stderr, and an exit code.

Commands raise `Failed` and `WrongUsage` where they know what to do about an error. Unforeseen errors
are shown as they are.
"""

from __future__ import annotations

import functools
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sliceflow.cli.interrupts import signals_as_interrupt

__all__ = ["INSTALL", "OPTIONAL", "Failed", "WrongUsage", "as_flags", "print_error", "with_exit_code"]

F = TypeVar("F", bound=Callable[..., Any])
INSTALL = "pip install 'sliceflow[cli]'"
OPTIONAL = ("typer", "rich", "narwhals", "pandas", "jinja2", "PIL")  # modules of that extra
_FLAGS = {
    "n_particles": "particles",
    "n_clusters": "clusters",
    "n_steps": "quality",
    "random_state": "seed",
}


class Failed(Exception):
    """The run failed: exit code 1. The hint says what to do about it."""

    code = 1

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class WrongUsage(Failed):
    """The command makes no sense this way: exit code 2."""

    code = 2


@contextmanager
def as_flags() -> Iterator[None]:
    """Errors about a parameter of the library name the flag that set it."""
    from sliceflow.errors import ParameterError

    try:
        yield
    except ParameterError as error:
        flag = "--" + _FLAGS.get(error.name, error.name).replace("_", "-")
        hint = "pass --device cpu" if error.name == "device" else "--help shows what each flag takes"
        raise WrongUsage(f"{flag} {error.value} {error.fact}", hint) from error


def with_exit_code(command: F) -> F:
    """The command with every error turned into a line, a hint and an exit code.

    With ``debug=True`` the traceback comes first.
    """

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
            print_error(*_described(error))
            sys.exit(error.code if isinstance(error, Failed) else 1)

    return inner  # type: ignore[return-value]


def _described(error: BaseException) -> tuple[str, str]:
    """The line and the hint for an error."""
    if isinstance(error, Failed):
        return str(error), error.hint
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "nothing was finished; run it again"
    if isinstance(error, ModuleNotFoundError) and error.name in OPTIONAL:
        return f"this command needs {error.name}, which is not installed", INSTALL
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", "check that path"
    known = isinstance(error, (ValueError, MemoryError, ImportError, RuntimeError, OSError))
    message = str(error) if known and str(error) else f"{type(error).__name__}: {error}"
    return message, "--debug shows where it happened"


def print_error(message: str, hint: str) -> None:
    """One line each on stderr."""
    print("error:", " ".join(message.split()), file=sys.stderr)
    print("hint:", " ".join(hint.split()), file=sys.stderr, flush=True)


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print("warning:", " ".join(str(message).split()), file=sys.stderr)


def _ignore_warning(*_: Any, **__: Any) -> None:
    pass
