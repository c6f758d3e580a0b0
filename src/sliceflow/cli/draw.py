"""``sliceflow sample``, ``inpaint`` and ``impute``: from a model to files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sliceflow.app.pictures import as_bytes, class_named
from sliceflow.cli.data import read_known
from sliceflow.cli.failures import (
    CommandError,
    UsageError,
    print_note,
    rows_of_a_file,
)
from sliceflow.cli.given import parse_given, split_given
from sliceflow.cli.grids import (
    find_picture_files,
    make_grid,
    read_pictures,
    write_arrays,
    write_image,
    write_pictures,
)
from sliceflow.cli.messy_tables import all_problems, find_free_text, note_free_text
from sliceflow.cli.results import Result
from sliceflow.cli.run_folder import (
    check_new,
    is_stdout,
    load_model,
    model_file,
    read_description,
    write_or_print,
)
from sliceflow.cli.settings import PICTURES, TABLE, parse_kinds
from sliceflow.errors import DataError, ParameterError
from sliceflow.number_formats import TABLE_ENDINGS
from sliceflow.validation import from_tensor

if TYPE_CHECKING:
    from sliceflow import ImageFlow, SlicedWassersteinFlow, TableFlow
    from sliceflow.spaces.pictures.layout import Layout

_ENDINGS_OF_PICTURES = (".png", ".npz", "")
_ENDINGS_OF_VECTORS = (".npz",)
_VECTORS = "vectors"


def sample(
    run: Path,
    out: Path,
    n: int = 64,
    label: str | None = None,
    given: list[str] | None = None,
    device: str = "auto",
    seed: int = 0,
    force: bool = False,
) -> Result | None:
    """Draw new samples from a model: pictures, vectors, or rows of a table.

    The ending of --out chooses the format: a .png grid, an .npz, a folder of pictures;
    for tables .csv, .tsv, .parquet, .xlsx. Rows of a table also go to stdout, as
    --out - asks for.
    """
    check_new(out, force=force)
    description = read_description(run)
    _check_request(description.kind, out, label, given)
    if description.columns:
        for text in given or ():
            split_given(text, description.columns)
    model = load_model(
        run, device
    )  # imports torch: errors that need no model came before
    from sliceflow import ImageFlow, TableFlow

    if isinstance(model, TableFlow):
        _check_request(TABLE, out, label, given)
        rows = _draw_rows(model, n, given or [], seed)
        write_or_print(rows, out, description.dialect)
        if is_stdout(out):
            return None
    else:
        is_image_flow = isinstance(model, ImageFlow)
        _check_request(PICTURES if is_image_flow else _VECTORS, out, label, given)
        if isinstance(model, ImageFlow) and model.known is not None:
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


def _check_request(
    kind: str, out: Path, label: str | None, given: list[str] | None
) -> None:
    """Refuse an ending and flags that are not for models of this kind.

    The kind is empty if it is not known yet.
    """
    if not kind:
        return
    if kind == TABLE:
        _check_ending(out, TABLE_ENDINGS)
        if label is not None:
            fact = "--label is for classes; this is a table"
            raise UsageError(fact, "pass --given column=value")
        return
    _check_ending(
        out, _ENDINGS_OF_PICTURES if kind == PICTURES else _ENDINGS_OF_VECTORS
    )
    if given:
        raise UsageError("--given is for tables", "pass --label for a class")


def _draw_rows(model: TableFlow, n: int, given: list[str], seed: int) -> Any:
    """A DataFrame of n new rows, all of which have what is given."""
    conditions = parse_given(model, given)
    return model.sample(n, given=conditions or None, random_state=seed)


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
    known: str | None = None,
    label: str | None = None,
    n: int = 8,
    resize: bool = False,
    device: str = "auto",
    seed: int = 0,
    force: bool = False,
) -> Result:
    """Complete pictures of which only a part is known.

    A model fitted with --known completes that part. One that keeps its
    pictures (colour pictures, or --keep-rows) completes any part: pass it here.
    """
    check_new(out, force=force)
    _check_ending(out, _ENDINGS_OF_PICTURES)
    not_of_pictures = UsageError(
        f"{run} is not a model of pictures", "sliceflow impute fills tables"
    )
    if read_description(run).kind == TABLE:
        raise not_of_pictures
    find_picture_files(picture)
    model = load_model(
        run, device
    )  # imports torch: errors that need no model came before
    from sliceflow import ImageFlow

    if not isinstance(model, ImageFlow):
        raise not_of_pictures
    layout = model.plan_.layout
    known_part = None
    if known is not None:
        known_part = read_known(known, layout.height, layout.width)
    elif model.known is None:
        fact = f"{run} was not fitted for one known part"
        hint = "pass --known top (or left, border, …), or --known picture.png"
        raise UsageError(fact, hint)
    pictures = read_pictures(picture, layout, resize=resize)
    y = _find_class(model, label, run)
    try:
        completed = model.inpaint(pictures, known_part, n=n, y=y, random_state=seed)
    except ParameterError as error:
        if error.parameter != "keep_rows":
            raise
        hint = (
            "sliceflow fit … --keep-rows keeps the pictures, for any part; "
            "sliceflow fit … --known fits one part"
        )
        raise CommandError(f"{run} {error.fact}", hint) from error
    completions = np.asarray(completed)
    if out.suffix.lower() == ".png":
        if known_part is None:
            known_part = model.known
        _write_completions(out, pictures, known_part, completions, layout)
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
    from sliceflow.spaces.pictures.known_parts import as_known

    grey = 0.5 if layout.n_pixel_values is None else layout.n_pixel_values // 2
    hidden = pictures.astype(completions.dtype)  # a copy
    hidden[:, ~as_known(known, layout)] = grey
    rows = np.concatenate((hidden[:, None], completions), axis=1)
    write_image(out, make_grid(as_bytes(rows, layout.n_pixel_values)), optimize=True)


def impute(
    run_and_table: list[Path],
    out: Path,
    column: list[str] | None = None,
    drop: list[str] | None = None,
    missing: list[str] | None = None,
    n: int = 1,
    seed: int = 0,
    force: bool = False,
) -> Result | None:
    """Fill the missing cells of a table, and leave all others as they are.

    With a run, its model fills them. Without one, the table itself is fitted first.
    Several tables (-n) get numbers before the ending of --out.
    """
    run, table = _split_run_and_table(run_and_table)
    paths = _paths_of_tables(out, n)
    for path in paths:
        check_new(path, force=force)
    _check_table_and_run(table, run, flags=[*(column or ()), *(drop or ())])
    kinds = parse_kinds(column, drop) or {}
    from sliceflow.spaces.tables.files import read_file

    file = read_file(table, missing or ())
    df = file.df
    for note in file.notes:
        print_note(note.where + note.fact)
    if run is None:
        model = _fit_table(df, kinds, seed)
    else:
        model = _load_table_model(run)
    with rows_of_a_file():
        filled = model.impute(df, n=n, random_state=seed)
    tables = filled if isinstance(filled, list) else [filled]
    for path, filled_table in zip(paths, tables, strict=True):
        write_or_print(filled_table, path, file.dialect)
    if is_stdout(out):
        return None
    n_missing = int(df.isna().sum().sum())
    n_empty = int(tables[0].isna().sum().sum())
    n_filled = n_missing - n_empty
    names = [str(path) for path in paths]
    text = f"filled {n_filled} cells"
    if n_empty:
        text += f", {n_empty} are left empty"
    found = {"out": names, "cells": n_filled, "left": n_empty, "seed": seed}
    return Result(found, f"{text}; wrote {', '.join(names)}")


def _split_run_and_table(paths: list[Path]) -> tuple[Path | None, Path]:
    """The run, or None, and the table of ``sliceflow impute [RUN] TABLE``."""
    if len(paths) == 1:
        return None, paths[0]
    if len(paths) == 2:
        return paths[0], paths[1]
    fact = f"there are {len(paths)} paths: {', '.join(str(path) for path in paths)}"
    raise UsageError(fact, "pass a run, if there is one, and then one table")


def _check_table_and_run(table: Path, run: Path | None, flags: list[str]) -> None:
    """Refuse what is no table, and a run that is none of a table or has `flags`."""
    if not table.exists():
        raise UsageError(f"{table} does not exist", "name a table with missing cells")
    _check_ending(table, TABLE_ENDINGS, "the table")
    if run is None:
        return
    if flags:
        fact = "--column and --drop are for fitting the table itself, not for a run"
        raise UsageError(fact, "leave them out, or leave the run out")
    model_file(run)
    if read_description(run).kind == PICTURES:
        raise _not_of_a_table(run)


def _paths_of_tables(out: Path, n: int) -> list[Path]:
    """Where n filled tables are written to."""
    _check_ending(out, TABLE_ENDINGS)
    if n == 1:
        return [out]
    if is_stdout(out):
        raise UsageError(
            f"--out - takes one table, not {n}", "name a file, or pass -n 1"
        )
    return [out.with_stem(f"{out.stem}-{i}") for i in range(1, n + 1)]


def _fit_table(df: Any, kinds: dict[str, str], seed: int) -> TableFlow:
    """A model of the table itself, without its columns of free text."""
    from sliceflow import TableFlow

    free_text = find_free_text(df, kinds)
    for name in free_text:
        print_note(note_free_text(name))
    kinds = kinds | dict.fromkeys(free_text, "drop")
    with rows_of_a_file(), all_problems(df, kinds):
        return TableFlow(kinds=kinds, random_state=seed).fit(df)


def _load_table_model(run: Path) -> TableFlow:
    """The model of a run, which must be one of a table."""
    from sliceflow import TableFlow

    model = load_model(run)
    if not isinstance(model, TableFlow):
        raise _not_of_a_table(run)
    return model


def _not_of_a_table(run: Path) -> UsageError:
    fact = f"{run} is not a model of a table"
    return UsageError(fact, "name a run of a table, or only the table")


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


def _check_ending(path: Path, endings: tuple[str, ...], what: str = "--out") -> None:
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
