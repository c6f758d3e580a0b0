"""``sliceflow inpaint``: pictures of which only a part is known, completed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sliceflow.app.pictures import as_bytes
from sliceflow.cli.data import read_known
from sliceflow.cli.failures import CommandError, UsageError
from sliceflow.cli.grids import (
    find_picture_files,
    make_grid,
    read_pictures,
    write_image,
    write_pictures,
)
from sliceflow.cli.outputs import PICTURE_ENDINGS, check_ending, find_class
from sliceflow.cli.results import Result
from sliceflow.cli.run_folder import check_new, load_model, read_description
from sliceflow.cli.settings import TABLE
from sliceflow.errors import ParameterError

if TYPE_CHECKING:
    from sliceflow import ImageFlow
    from sliceflow.arrays import Mask
    from sliceflow.estimators.pictures.known_parts import KnownPart
    from sliceflow.estimators.pictures.layout import Layout


def inpaint(  # noqa: PLR0913, a parameter for each flag
    run: Path,
    picture: Path,
    out: Path,
    known: str | None = None,
    label: str | None = None,
    n: int = 8,
    resize: bool = False,
    device: str = "auto",
    seed: int = 0,
    force: bool = False,
) -> Result:
    """Complete pictures of which only a part is known.

    A model fitted with --known completes that part. One that keeps its pictures (color
    pictures, or --save-rows) completes any part: pass it here.
    """
    check_new(out, force=force)
    check_ending(out, PICTURE_ENDINGS)
    if read_description(run).kind == TABLE:
        raise _not_of_pictures(run)
    find_picture_files(picture)
    model = _load_picture_model(run, device)
    layout = model.plan_.layout
    known_part = _choose_known_part(model, known, run)
    pictures = read_pictures(picture, layout, resize=resize)
    y = find_class(model, label, run)
    # None leaves the known part to a model that was fitted for one.
    given_part = None if known is None else known_part
    with _errors_with_hints_at_flags(run):
        completed = model.inpaint(pictures, given_part, n=n, y=y, random_state=seed)
    completions = np.asarray(completed)
    if out.suffix.lower() == ".png":
        _write_grid(out, pictures, known_part, completions, layout)
    else:
        flat = completions.reshape(-1, *completions.shape[2:])
        write_pictures(out, flat, layout, None)
    found = {
        "out": str(out),
        "pictures": len(pictures),
        "n": n,
        "label": label,
        "seed": seed,
    }
    text = f"wrote {n} completions of each of {len(pictures)} pictures to {out}"
    return Result(found, text)


@contextmanager
def _errors_with_hints_at_flags(run: Path) -> Iterator[None]:
    """Name the flags of a fit in the error of a model that keeps no pictures."""
    try:
        yield
    except ParameterError as error:
        if error.parameter != "save_rows":
            raise
        hint = (
            "sliceflow fit … --save-rows saves the pictures, for any part; "
            "sliceflow fit … --known fits one part"
        )
        raise CommandError(f"{run} {error.fact}", hint) from error


def _not_of_pictures(run: Path) -> UsageError:
    fact = f"{run} is not a model of pictures"
    return UsageError(fact, "sliceflow impute fills tables")


def _load_picture_model(run: Path, device: str) -> ImageFlow:
    """The model of a run, which must be one of pictures."""
    # This imports torch: errors that need no model came before.
    model = load_model(run, device)
    from sliceflow import ImageFlow

    if not isinstance(model, ImageFlow):
        raise _not_of_pictures(run)
    return model


def _choose_known_part(
    model: ImageFlow, known: str | None, run: Path
) -> KnownPart | Mask:
    """The known part that the flag says, or for which the model was fitted."""
    layout = model.plan_.layout
    if known is not None:
        return read_known(known, layout.height, layout.width)
    if model.known is None:
        fact = f"{run} was not fitted for one known part"
        hint = "pass --known top (or left, border, …), or --known picture.png"
        raise UsageError(fact, hint)
    return model.known


def _write_grid(
    out: Path,
    pictures: NDArray[Any],
    known: KnownPart | Mask,
    completions: NDArray[Any],
    layout: Layout,
) -> None:
    """Write a grid with a row for each picture: its known part, then its completions.

    What is not known is gray. `pictures` are (k, h, w[, c]), `completions` (k, n, h,
    w[, c]).
    """
    from sliceflow.estimators.pictures.known_parts import as_known

    gray = 0.5 if layout.n_pixel_values is None else layout.n_pixel_values // 2
    hidden = pictures.astype(completions.dtype)  # a copy
    hidden[:, ~as_known(known, layout)] = gray
    rows = np.concatenate((hidden[:, None], completions), axis=1)
    write_image(out, make_grid(as_bytes(rows, layout.n_pixel_values)), optimize=True)
