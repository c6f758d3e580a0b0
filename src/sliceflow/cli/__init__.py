"""The command line. `main` is its entry point; `commands` declares every command.

Nothing in the library imports this package. A command imports what it needs when it
runs, so that ``sliceflow --help`` is fast.
"""

import io
import os
import sys

__all__ = ["main"]

_INTERRUPTED = 130  # what typer returns after Ctrl-C, before the command has begun


def main() -> None:
    """Run the command that ``sys.argv`` names, and exit.

    Exit codes: 0 success, 1 the command failed, 2 wrong usage.
    """
    _configure_process()
    from sliceflow.cli.failures import INSTALL_HINT, OPTIONAL_MODULES, print_error

    exit_code: object = None
    try:
        from sliceflow.cli.commands import app

        exit_code = app(standalone_mode=False)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL_MODULES:
            raise
        fact = f"the command line needs {error.name}, which is not installed"
        print_error(fact, INSTALL_HINT)
        sys.exit(1)
    except KeyboardInterrupt:
        exit_code = _INTERRUPTED
    except Exception as error:
        # Flags that typer cannot parse. Commands handle all other errors themselves.
        format_message = getattr(error, "format_message", None)
        if format_message is None:
            raise
        context = getattr(error, "ctx", None)
        command = getattr(context, "command_path", "sliceflow")
        print_error(format_message(), f"{command} --help")
        sys.exit(2)
    if exit_code == _INTERRUPTED:
        print_error("interrupted", "nothing was done; run it again")
        sys.exit(1)


def _configure_process() -> None:
    """Set how this process uses threads and memory, and how it prints."""
    # Read when torch is imported. Threads that wait should sleep, not spin, where cores
    # are shared.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # Linux: torch asks for large pages. Without, a third of the time of a fit on a CPU
    # goes into fresh pages of 4 KiB, because large arrays are returned to the system.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    for stream in (sys.stdout, sys.stderr):
        # Files and pipes on Windows may have an encoding without κ or ².
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
