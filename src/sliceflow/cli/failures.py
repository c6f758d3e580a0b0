"""How a command fails: one line and a hint on stderr, and an exit code. No command lives here.

Commands raise `Failed` and `WrongUsage` where they know what to do about an error; what nobody foresaw
is told as it is.
"""

from __future__ import annotations

import functools
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from sliceflow.cli.signals import told_to_stop

if TYPE_CHECKING:
    from sliceflow.errors import ParameterError

__all__ = ["Failed", "WrongUsage", "guarded", "in_flags"]

F = TypeVar("F", bound=Callable[..., Any])
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
    """The command cannot be meant this way: exit code 2."""

    code = 2


def in_flags(error: ParameterError) -> WrongUsage:
    """What the library says of a parameter, said of the flag that set it."""
    flag = "--" + _FLAGS.get(error.name, error.name).replace("_", "-")
    hint = "pass --device cpu" if error.name == "device" else "--help shows what each flag takes"
    return WrongUsage(f"{flag} {error.value} {error.fact}", hint)


def guarded(command: F) -> F:
    """The command, with every error made one line, a hint and an exit code, unless ``debug=True``."""

    @functools.wraps(command)
    def inner(*args: Any, **kwargs: Any) -> Any:
        debug = kwargs.get("debug", False)
        warnings.showwarning = _no_warning if kwargs.get("quiet", False) else _say_warning
        try:
            with told_to_stop():
                return command(*args, **kwargs)
        except KeyboardInterrupt as error:
            _say(error, "interrupted", "nothing was finished; run it again", debug)
            sys.exit(1)
        except Failed as error:
            _say(error, str(error), error.hint, debug)
            sys.exit(error.code)
        except BrokenPipeError:
            sys.exit(1)
        except OSError as error:
            if error.filename is None:
                message, hint = str(error), "--debug shows where it happened"
            else:
                message, hint = f"{error.filename}: {error.strerror}", "check that path"
            _say(error, message, hint, debug)
            sys.exit(1)
        except Exception as error:
            known = isinstance(error, (ValueError, MemoryError, ImportError, RuntimeError))
            message = str(error) if known and str(error) else f"{type(error).__name__}: {error}"
            _say(error, message, "--debug shows where it happened", debug)
            sys.exit(1)

    return inner  # type: ignore[return-value]


def _say(error: BaseException, message: str, hint: str, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    print("error:", " ".join(message.split()), file=sys.stderr)
    print("hint:", " ".join(hint.split()), file=sys.stderr, flush=True)


def _say_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print("warning:", " ".join(str(message).split()), file=sys.stderr)


def _no_warning(*_: Any, **__: Any) -> None:
    pass
