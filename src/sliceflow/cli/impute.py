"""``sliceflow impute``: a table whose missing cells are filled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sliceflow.cli.failures import UsageError, errors_with_file_rows, print_note
from sliceflow.cli.messy_tables import (
    find_free_text,
    note_free_text,
    report_on_all_columns,
)
from sliceflow.cli.outputs import check_ending
from sliceflow.cli.results import Result
from sliceflow.cli.run_folder import (
    check_new,
    is_stdout,
    load_model,
    model_file,
    read_description,
    write_or_print,
)
from sliceflow.cli.settings import PICTURES, parse_kinds
from sliceflow.table_files import TABLE_ENDINGS

if TYPE_CHECKING:
    import pandas as pd

    from sliceflow import TableFlow


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
    from sliceflow.estimators.tables.files import read_file

    file = read_file(table, missing or ())
    for note in file.notes:
        print_note(note.where + note.fact)
    if run is None:
        model = _fit_table(file.df, kinds, seed)
    else:
        model = _load_table_model(run)
    with errors_with_file_rows():
        filled = model.impute(file.df, n=n, random_state=seed)
    tables = filled if isinstance(filled, list) else [filled]
    for path, filled_table in zip(paths, tables, strict=True):
        write_or_print(filled_table, path, file.dialect)
    if is_stdout(out):
        return None
    n_empty = _count_missing(tables[0])
    n_filled = _count_missing(file.df) - n_empty
    return _describe(n_filled, n_empty, paths, seed)


def _count_missing(df: pd.DataFrame) -> int:
    return int(df.isna().sum().sum())


def _describe(n_filled: int, n_empty: int, paths: list[Path], seed: int) -> Result:
    """What the command prints: how many cells were filled, and where they are."""
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
    check_ending(table, TABLE_ENDINGS, name="the table")
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
    check_ending(out, TABLE_ENDINGS, allows_stdout=True)
    if n == 1:
        return [out]
    if is_stdout(out):
        raise UsageError(
            f"--out - takes one table, not {n}", "name a file, or pass -n 1"
        )
    return [out.with_stem(f"{out.stem}-{i}") for i in range(1, n + 1)]


def _fit_table(df: pd.DataFrame, kinds: dict[str, str], seed: int) -> TableFlow:
    """A model of the table itself, without its columns of free text."""
    from sliceflow import TableFlow

    free_text = find_free_text(df, kinds)
    for name in free_text:
        print_note(note_free_text(name))
    kinds = kinds | dict.fromkeys(free_text, "drop")
    with errors_with_file_rows(), report_on_all_columns(df, kinds):
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
