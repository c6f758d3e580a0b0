"""What the commands that draw share: classes by name, and endings of files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sliceflow.app.pictures import class_named
from sliceflow.cli.failures import UsageError
from sliceflow.cli.run_folder import is_stdout
from sliceflow.errors import DataError

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


def check_ending(
    path: Path,
    endings: tuple[str, ...],
    *,
    name: str = "--out",
    allows_stdout: bool = False,
) -> None:
    """Refuse a path whose ending does not say how to write, or read, it.

    Parameters
    ----------
    path : of a file or folder, or the "-" that stands for stdout
    endings : those that are allowed; "" is that of a folder
    name : what the user calls the path
    allows_stdout : whether it may be stdout
    """
    hint = "name one of " + ", ".join(ending or "a folder" for ending in endings)
    if is_stdout(path):
        if not allows_stdout:
            raise UsageError(f"{name} - is for tables", hint)
    elif path.suffix.lower() not in endings:
        raise UsageError(f"{name} {path} ends in {path.suffix or 'nothing'}", hint)
