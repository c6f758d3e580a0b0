"""The command line. Here is only its door, `main`; every command is declared in `commands`.

Nothing in the library imports this package. Each command imports what it needs when it runs.
"""

import os
import sys
from typing import NoReturn

__all__ = ["main"]

_CURE = 'pip install "sliceflow[cli]"'


def main() -> None:
    """Run the command that ``sys.argv`` names, and exit: 0 good, 1 it failed, 2 wrong usage."""
    # Read when torch is imported. Threads that wait should sleep, not spin, where cores are shared.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        from sliceflow.cli.commands import app

        code = app(standalone_mode=False)
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        _fail(f"the command line needs {error.name}, which is not installed", _CURE, 1)
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # flags that cannot be read; everything else is `guarded`
        said = getattr(error, "format_message", None)
        if said is None:
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", "sliceflow")
        _fail(said(), f"{command} --help", 2)
    if code == 130:  # Ctrl-C before the command itself has begun
        _fail("interrupted", "nothing was done; run it again", 1)


def _fail(message: str, hint: str, code: int) -> NoReturn:
    print("error:", " ".join(message.split()), file=sys.stderr)
    print("hint:", hint, file=sys.stderr)
    sys.exit(code)
