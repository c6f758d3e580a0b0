"""How a command ends: one line and a hint if it fails, and an exit code.

Errors of the library are translated: a parameter becomes its flag, advice behind a semicolon the hint.
"""

from __future__ import annotations

import errno
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

INSTALL = "pip install 'sliceflow[cli]'"
OPTIONAL = (
    "typer",
    "rich",
    "narwhals",
    "pandas",
    "jinja2",
    "PIL",
)  # modules of that extra
# Parameters of the library that flags set under another name.
_FLAGS = {"n_particles": "particles", "n_steps": "quality", "random_state": "seed"}
_FLAGS |= {"constraints": "constraint", "columns": "column"}
KIND_IN_PYTHON = re.compile(r"(?:pass )?columns={['\"](.*?)['\"]: '(\w+)'}")
_FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))
_ENDS = [
    signal.SIGTERM,
    *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []),
]  # none on Windows


class Failed(Exception):
    """The run failed: exit code 1. The hint says what to do about it."""

    code = 1

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class WrongUsage(Failed):
    """The command makes no sense this way: exit code 2."""

    code = 2


@dataclass(frozen=True)
class Say:
    """Prints what happens, unless it is silent; `always` then prints to stderr."""

    silent: bool = False
    progress: bool = True

    def __call__(self, text: str, *, always: bool = False) -> None:
        if always or not self.silent:
            print(text, file=sys.stderr if self.silent else sys.stdout, flush=True)


@contextmanager
def exit_code(flags: Collection[str], *, debug: bool) -> Iterator[None]:
    """Turn every error into a line, a hint and an exit code; `debug` shows the traceback first."""
    warnings.showwarning = lambda message, *_, **__: _print("warning:", str(message))
    warnings.filterwarnings(
        "ignore", "the particles copy"
    )  # commands measure that themselves
    try:
        with _signals_as_interrupt():
            yield
    except BrokenPipeError:
        sys.exit(1)
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            traceback.print_exception(error)
        failed = translated(error, flags)
        print_error(str(failed), failed.hint)
        sys.exit(failed.code)


def translated(error: BaseException, flags: Collection[str]) -> Failed:
    """The error in the words of a command that has these flags."""
    if isinstance(error, Failed):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Failed("interrupted", "nothing was finished; run it again")
    if isinstance(error, ModuleNotFoundError) and error.name in OPTIONAL:
        return Failed(
            f"this command needs {error.name}, which is not installed", INSTALL
        )
    if isinstance(error.__cause__, ModuleNotFoundError):
        return translated(error.__cause__, flags)
    if isinstance(error, OSError) and error.filename is not None:
        hint = (
            "free some space, or write elsewhere"
            if error.errno in _FULL
            else "check that path"
        )
        return Failed(f"{error.filename}: {error.strerror}", hint)
    from sliceflow.errors import ParameterError

    if (
        isinstance(error, ParameterError)
        and (name := _FLAGS.get(error.parameter, error.parameter)) in flags
    ):
        hint = (
            "pass --device cpu"
            if name == "device"
            else "--help shows what each flag takes"
        )
        return WrongUsage(
            f"--{name.replace('_', '-')} {error.value} {error.fact}", hint
        )
    if isinstance(error, MemoryError) or "allocate" in str(error):
        hint = "pass a smaller --n, several times with different --seed"
        if "particles" in flags:
            columns = (
                ", or leave columns out with --drop" if "columns" in str(error) else ""
            )
            hint = f"lower --particles or --quality{columns}; --dry-run estimates the memory they need"
        return Failed(getattr(error, "fact", str(error)), hint)
    known = isinstance(error, (ValueError, ImportError, RuntimeError, OSError))
    message = str(error) if known and str(error) else f"{type(error).__name__}: {error}"
    fact, _, advice = message.rpartition("; ")
    if known and fact:
        return Failed(fact, KIND_IN_PYTHON.sub(r"pass --column '\1=\2'", advice))
    hint = "check the data and the flags; --help shows what each takes"
    return Failed(
        message,
        hint if isinstance(error, ValueError) else "--debug shows where it happened",
    )


def print_error(message: str, hint: str) -> None:
    """One line each on stderr."""
    _print("error:", message)
    _print("hint:", hint)


def _print(kind: str, text: str) -> None:
    print(kind, " ".join(text.split()), file=sys.stderr, flush=True)


@contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """SIGINT (ignored in the background of scripts), SIGTERM and SIGHUP raise KeyboardInterrupt.

    Signals with a handler of their own, as under nohup, keep it.
    """
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            before[signal.SIGINT] = signal.signal(
                signal.SIGINT, signal.default_int_handler
            )
        for number in _ENDS:
            if signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_: int, frame: Any) -> None:
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)
