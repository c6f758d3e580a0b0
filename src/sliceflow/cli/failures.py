"""How a command fails: one line and a hint on stderr, and an exit code. No command lives here."""

from __future__ import annotations

import functools
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Failed", "WrongUsage", "guarded"]

F = TypeVar("F", bound=Callable[..., Any])


class Failed(Exception):
    """The run failed: exit code 1. The hint says what to do about it."""

    code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class WrongUsage(Failed):
    """The command cannot be meant this way: exit code 2."""

    code = 2


# What messages of the library call by the names of Python's arguments, and the flags for it.
_FLAGS = {
    "size=": "pass --size, which crops the middle square and resizes it",
    "skip_broken=True": "mend or remove that file, or pass --skip-broken",
    "n_particles": "pass another --particles",
    "levels=": "pass whole numbers 0 to 255 or floats in [0, 1]",
    "root=": "name the folder that holds the set with --data-root",
    "device=": "pass --device cpu",
}


def guarded(command: F) -> F:
    """The command, with every error made one line, a hint and an exit code, unless ``debug=True``."""

    @functools.wraps(command)
    def inner(*args: Any, **kwargs: Any) -> Any:
        debug = kwargs.get("debug", False)
        warnings.showwarning = _say_warning
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt as error:
            _say(error, str(error) or "interrupted", "", debug)
            sys.exit(1)
        except Failed as error:
            _say(error, str(error), error.hint, debug)
            sys.exit(error.code)
        except BrokenPipeError:
            sys.exit(1)
        except Exception as error:
            known = isinstance(error, (ValueError, OSError, MemoryError, ImportError, RuntimeError))
            message = str(error) if known and str(error) else f"{type(error).__name__}: {error}"
            hint = next((flag for word, flag in _FLAGS.items() if word in message), "")
            _say(error, message, hint or "--debug shows where it happened", debug)
            sys.exit(1)

    return inner  # type: ignore[return-value]


def _say(error: BaseException, message: str, hint: str, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    print("error:", " ".join(message.split()), file=sys.stderr)
    if hint:
        print("hint:", hint, file=sys.stderr, flush=True)


def _say_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print("warning:", " ".join(str(message).split()), file=sys.stderr)
