"""The command line. `main` is its entry point; every command is declared in `commands`.

Nothing in the library imports this package. Each command imports what it needs when it runs.
"""

import io
import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command that ``sys.argv`` names, and exit: 0 success, 1 it failed, 2 wrong usage."""
    # Read when torch is imported. Threads that wait should sleep, not spin, where cores are shared.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    for stream in (
        sys.stdout,
        sys.stderr,
    ):  # Windows writes to files and pipes without κ or ²
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    from sliceflow.cli.failures import INSTALL, OPTIONAL, print_error

    try:
        from sliceflow.cli.commands import app

        code: object = app(standalone_mode=False)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        print_error(
            f"the command line needs {error.name}, which is not installed", INSTALL
        )
        sys.exit(1)
    except KeyboardInterrupt:
        code = 130
    except (
        Exception
    ) as error:  # flags that cannot be parsed; commands handle everything else
        describe = getattr(error, "format_message", None)
        if describe is None:
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", "sliceflow")
        print_error(describe(), f"{command} --help")
        sys.exit(2)
    if code == 130:  # Ctrl-C before the command itself has begun
        print_error("interrupted", "nothing was done; run it again")
        sys.exit(1)
