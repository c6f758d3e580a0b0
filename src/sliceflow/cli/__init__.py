"""The command line. Here is only its door, `main`; every command is declared in `commands`.

Nothing in the library imports this package. Each command imports what it needs when it runs.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command that ``sys.argv`` names, and exit: 0 good, 1 it failed, 2 wrong usage."""
    try:
        from sliceflow.cli.commands import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(f"error: the command line needs {error.name}, which is not installed", file=sys.stderr)
        print('hint: pip install "sliceflow[cli]"', file=sys.stderr)
        sys.exit(1)
    try:
        app(standalone_mode=False)
    except Exception as error:  # flags that cannot be read; everything else is `guarded`
        said = getattr(error, "format_message", None)
        if said is None:
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", "sliceflow")
        print("error:", " ".join(said().split()), file=sys.stderr)
        print(f"hint: {command} --help", file=sys.stderr)
        sys.exit(2)
