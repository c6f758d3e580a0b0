"""What the commands that draw share: classes by name, and endings of files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sliceflow.app.pictures import class_named
from sliceflow.cli.failures import UsageError
from sliceflow.cli.run_folder import is_stdout
from sliceflow.errors import DataError
from sliceflow.table_files import TABLE_ENDINGS

if TYPE_CHECKING:
    from sliceflow import ImageFlow, SlicedWassersteinFlow

PICTURE_ENDINGS = (".png", ".npz", "")


def find_class(
    model: SlicedWassersteinFlow | ImageFlow, label: str | None, run: Path
) -> Any:
    """The class of the model that is written like `label`; None for all classes."""
    if label is None:
        return None
    if not hasattr(model, "classes_"):
        fact = f"{run} was fitted without classes"
        hint = "leave --label out, or fit by class: sliceflow fit … --conditional"
        raise UsageError(fact, hint)
    try:
        return class_named(model, label, str(run))
    except DataError as error:
        raise UsageError(error.fact, error.hint) from error


def check_ending(path: Path, endings: tuple[str, ...], what: str = "--out") -> None:
    """Refuse an ending that does not say how to write, or read, a file."""
    may_be_stdout = endings == TABLE_ENDINGS and what == "--out"
    if path.suffix.lower() in endings and not is_stdout(path):
        return
    if is_stdout(path) and may_be_stdout:
        return
    names = ", ".join(ending or "a folder" for ending in endings)
    fact = f"{what} {path} ends in {path.suffix or 'nothing'}"
    if is_stdout(path):
        fact = f"{what} - is for tables"
    raise UsageError(fact, f"name one of {names}")
