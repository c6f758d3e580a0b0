"""What each column of a table was taken for, as `TableFlow.columns_` shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sliceflow.estimators.tables.columns.column import Column
from sliceflow.estimators.tables.identifiers.new_identifiers import example_identifier
from sliceflow.estimators.tables.rows.table_rows import format_names
from sliceflow.estimators.tables.rules.kinds import is_solvable
from sliceflow.estimators.tables.table import Table
from sliceflow.wording import shorten

if TYPE_CHECKING:
    import pandas as pd

# The description is printed in lines of this many characters: in a terminal of 80,
# pandas leaves out columns in the middle, the kind among them, if lines are longer.
LINE_WIDTH = 79

# Notes are not cut to fewer characters than this, however wide the other columns are: a
# few letters would say nothing.
MIN_NOTE_WIDTH = 12


def describe_columns(table: Table) -> pd.DataFrame:
    """A DataFrame with one row for each column of a table."""
    import pandas as pd

    described = [describe_column(column) for column in table.columns]
    for rule in table.all_rules:
        if rule.is_discovered and is_solvable(rule):
            derived, *others = rule.column_indices
            note = described[derived]["note"]
            names = format_names([table.names[c] for c in others])
            described[derived]["note"] = f"follows from {names}, {note}"
    df = pd.DataFrame(described)
    df["note"] = _shortened_notes(df)
    return df


def describe_column(column: Column) -> dict[str, str | int | float]:
    """The row of the table `columns_` for a column."""
    is_missing = column.encoded.is_missing
    return {
        "column": str(column.name),
        "kind": column.kind,
        "missing": round(float(is_missing.mean()), 4),
        "distinct": len(np.unique(column.encoded.observed_codes)),
        "note": _note(column),
    }


def _note(column: Column) -> str:
    """What the column holds, in a few words."""
    if column.kind == "drop":
        return "left out, as asked"
    if column.kind == "identifier":
        example = example_identifier(column.encoded)
        new = "new ones"
        if column.has_pseudonyms:
            new = "a new one for each,"
        return f"{column.identifier_reason}: {new} like {example}"
    if column.is_quantitative:
        return f"{column.levels.iloc[0]} to {column.levels.iloc[-1]}"
    note = format_names(column.levels.tolist()) or "all missing"
    if column.has_disclosing_levels:
        # At the front, because long notes are cut.
        note = f"REAL VALUES in samples, most of which belong to one row; {note}"
    return note


def _shortened_notes(df: pd.DataFrame) -> list[str]:
    """The notes of `columns_`, as long as there is room beside the other columns."""
    width = LINE_WIDTH - len(str(len(df) - 1))  # of the index
    separator = 2  # spaces before each column
    for name in df.columns:
        width -= separator
        if name != "note":
            cells = [name, *df[name].astype(str)]
            width -= max(len(cell) for cell in cells)
    width = max(MIN_NOTE_WIDTH, width)
    return [shorten(note, width) for note in df["note"]]
