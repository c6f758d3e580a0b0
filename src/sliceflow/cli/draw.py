"""``sliceflow sample``, ``inpaint`` and ``impute``: from a model to files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sliceflow.app.pictures import as_bytes, class_named
from sliceflow.cli.data import read_mask
from sliceflow.cli.failures import CommandError, UsageError, rows_of_a_file
from sliceflow.cli.grids import (
    make_grid,
    read_pictures,
    write_arrays,
    write_image,
    write_pictures,
)
from sliceflow.cli.results import Result
from sliceflow.cli.run_folder import check_new, load_model
from sliceflow.cli.settings import Part, parse_kinds
from sliceflow.errors import DataError, HintedError, ParameterError
from sliceflow.number_formats import TABLE_ENDINGS
from sliceflow.validation import from_tensor

if TYPE_CHECKING:
    from sliceflow import ImageFlow, SlicedWassersteinFlow, TableFlow
    from sliceflow.spaces.pictures.layout import Layout

_ENDINGS_OF_PICTURES = (".png", ".npz", "")
_ENDINGS_OF_VECTORS = (".npz",)


def sample(
    run: Path,
    out: Path,
    n: int = 64,
    label: str | None = None,
    given: list[str] | None = None,
    device: str = "auto",
    seed: int = 0,
    force: bool = False,
) -> Result:
    """Draw new samples from a model: pictures, vectors, or rows of a table.

    The ending of --out chooses the format: a .png grid, an .npz, a folder of pictures;
    for tables .csv, .tsv, .parquet, .xlsx.
    """
    check_new(out, force=force)
    model = load_model(run, device)
    from sliceflow import ImageFlow, TableFlow

    if isinstance(model, TableFlow):
        _check_ending(out, TABLE_ENDINGS)
        if label is not None:
            fact = "--label is for classes; this is a table"
            raise UsageError(fact, "pass --given column=value")
        _sample_table(model, out, n, given or [], seed)
    else:
        is_image_flow = isinstance(model, ImageFlow)
        _check_ending(
            out, _ENDINGS_OF_PICTURES if is_image_flow else _ENDINGS_OF_VECTORS
        )
        if given:
            raise UsageError("--given is for tables", "pass --label for a class")
        if isinstance(model, ImageFlow) and model.observed is not None:
            fact = f"{run} completes pictures, and makes none"
            raise UsageError(fact, "use sliceflow inpaint")
        _sample_flow(model, out, n, _find_class(model, label, run), seed)
    found = {
        "out": str(out),
        "n": n,
        "label": label,
        "given": given or [],
        "seed": seed,
    }
    return Result(found, f"wrote {n} samples to {out}")


def _sample_table(
    model: TableFlow, out: Path, n: int, given: list[str], seed: int
) -> None:
    """Write n new rows, all of which have what is given."""
    from sliceflow.spaces.tables.files import write_table

    conditions = dict(_parse_given(model, text) for text in given)
    rows = model.sample(n, given=conditions or None, random_state=seed)
    write_table(rows, out)


def _sample_flow(
    model: SlicedWassersteinFlow | ImageFlow, out: Path, n: int, label: Any, seed: int
) -> None:
    """Write n new pictures or vectors, of one class or of all."""
    from sliceflow import ImageFlow

    samples, labels = model.sample(n, y=label, random_state=seed, return_y=True)
    x = np.asarray(from_tensor(samples))
    if isinstance(model, ImageFlow):
        write_pictures(out, x, model.plan_.layout, labels)
    else:
        write_arrays(out, labels, x=x)


def inpaint(  # noqa: PLR0913, a parameter for each flag
    run: Path,
    picture: Path,
    out: Path,
    observed: Part | None = None,
    mask: str | None = None,
    label: str | None = None,
    n: int = 8,
    resize: bool = False,
    device: str = "auto",
    seed: int = 0,
    force: bool = False,
) -> Result:
    """Complete pictures of which only a part is known.

    A model fitted with --observed or --mask completes that part. One that keeps its
    pictures (colour pictures, or --keep-rows) completes any part: pass it here.
    """
    check_new(out, force=force)
    if observed is not None and mask is not None:
        hint = "pass --observed top, or --mask m.png"
        raise UsageError("the known part is given twice", hint)
    _check_ending(out, _ENDINGS_OF_PICTURES)
    model = load_model(run, device)
    from sliceflow import ImageFlow

    if not isinstance(model, ImageFlow):
        fact = f"{run} is not a model of pictures"
        raise UsageError(fact, "sliceflow impute fills tables")
    layout = model.plan_.layout
    known: str | np.ndarray | None = observed
    if mask is not None:
        known = read_mask(mask, layout.height, layout.width)
    if known is None and model.observed is None:
        fact = f"{run} was not fitted for one known part"
        hint = (
            "pass the known part with --observed top (or left, border, …), "
            "or with --mask mask.png"
        )
        raise UsageError(fact, hint)
    pictures = read_pictures(picture, layout, resize=resize)
    y = _find_class(model, label, run)
    try:
        completed = model.inpaint(pictures, known, n=n, y=y, random_state=seed)
    except ParameterError as error:
        if error.parameter != "keep_rows":
            raise
        hint = (
            "sliceflow fit … --keep-rows keeps the pictures, for any part; "
            "sliceflow fit … --observed fits one part"
        )
        raise CommandError(f"{run} {error.fact}", hint) from error
    completions = np.asarray(completed)
    if out.suffix.lower() == ".png":
        part = model.observed if known is None else known
        _write_completions(out, pictures, part, completions, layout)
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


def _write_completions(
    out: Path,
    pictures: np.ndarray,
    known: str | np.ndarray | None,
    completions: np.ndarray,
    layout: Layout,
) -> None:
    """Write a grid with a row for each picture: its known part, then its completions.

    What is not known is grey. `pictures` are (k, h, w[, c]), `completions` (k, n, h,
    w[, c]).
    """
    from sliceflow.spaces.pictures.layout import as_mask

    grey = 0.5 if layout.n_pixel_values is None else layout.n_pixel_values // 2
    hidden = pictures.astype(completions.dtype)  # a copy
    hidden[:, ~as_mask(known, layout)] = grey
    rows = np.concatenate((hidden[:, None], completions), axis=1)
    write_image(out, make_grid(as_bytes(rows, layout.n_pixel_values)), optimize=True)


def impute(
    table: Path,
    out: Path,
    run: Path | None = None,
    column: list[str] | None = None,
    drop: list[str] | None = None,
    n: int = 1,
    seed: int = 0,
    force: bool = False,
) -> Result:
    """Fill the missing cells of a table, and leave all others as they are."""
    from sliceflow.spaces.tables.files import read_table, write_table

    _check_ending(out, TABLE_ENDINGS)
    paths = [out]
    if n > 1:
        paths = [out.with_stem(f"{out.stem}-{i}") for i in range(1, n + 1)]
    for path in paths:
        check_new(path, force=force)
    if run is not None and (column or drop):
        fact = "--column and --drop are for fitting the table itself, not for a run"
        raise UsageError(fact, "leave them out, or leave --run out")
    frame = read_table(table)
    with rows_of_a_file():
        model = _load_or_fit_table(frame, run, parse_kinds(column, drop), seed)
        filled = model.impute(frame, n=n, random_state=seed)
    tables = [filled] if n == 1 else filled
    for path, filled_table in zip(paths, tables, strict=True):
        write_table(filled_table, path)
    n_missing = int(frame.isna().sum().sum())
    n_empty = int(tables[0].isna().sum().sum())
    n_filled = n_missing - n_empty
    names = [str(path) for path in paths]
    text = f"filled {n_filled} cells"
    if n_empty:
        text += f", {n_empty} are left empty"
    found = {"out": names, "cells": n_filled, "left": n_empty, "seed": seed}
    return Result(found, f"{text}; wrote {', '.join(names)}")


def _load_or_fit_table(
    frame: Any, run: Path | None, kinds: dict[str, str] | None, seed: int
) -> TableFlow:
    """The model of a run, or without one, a model of the table itself."""
    from sliceflow import TableFlow

    if run is None:
        return TableFlow(columns=kinds, random_state=seed).fit(frame)
    model = load_model(run)
    if not isinstance(model, TableFlow):
        fact = f"{run} is not a model of a table"
        raise UsageError(fact, "fit one, or leave --run out")
    return model


def _parse_given(model: TableFlow, text: str) -> tuple[str, Any]:
    """A column and its value from text such as plan=gold."""
    name, equals, value = text.partition("=")
    names = [str(column) for column in model.feature_names_in_]
    if not equals or name not in names:
        hint = f"pass column=value; there are {', '.join(names)}"
        raise UsageError(f"--given {text} does not name a column", hint)
    hint = "pass another value"
    try:
        return name, model.value_of(name, value)
    except HintedError as error:
        fact = f"--given {text}: {error.fact}"
        raise UsageError(fact, error.advice or hint) from error
    except ValueError as error:
        raise UsageError(f"--given {text}: {error}", hint) from error


def _find_class(
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


def _check_ending(out: Path, endings: tuple[str, ...]) -> None:
    """Refuse an ending that does not say what to write."""
    if out.suffix.lower() in endings:
        return
    names = ", ".join(ending or "a folder" for ending in endings)
    fact = f"--out {out} ends in {out.suffix or 'nothing'}"
    raise UsageError(fact, f"name one of {names}")
