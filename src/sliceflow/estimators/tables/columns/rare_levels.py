"""Levels of categories that few rows have, and how they are merged.

A level of fewer than `min_count` rows may tell who is in the table. Samples have it
nevertheless, unless the user wants such levels to be merged: levels of texts become
"other", and those of numbers, booleans and ordered categories become the next level in
order. Texts that have too few rows even together become the most frequent level.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import numpy as np

from sliceflow.arrays import Ints
from sliceflow.estimators.tables.columns.column import CATEGORY_KINDS, Column
from sliceflow.estimators.tables.columns.infer import category_column
from sliceflow.estimators.tables.rows.encoded_columns import EncodedColumn

# The level that rare levels become. If a column has this level already, in capitals or
# not, it takes that one.
OTHER = "other"


def rare_level_codes(column: Column) -> Ints:
    """The codes of a category's levels that fewer than `min_count` rows have."""
    if column.kind not in CATEGORY_KINDS:
        return np.empty(0, dtype=np.int64)
    return column.level_codes[column.level_counts < column.min_count]


def merge_rare_levels(column: Column) -> Column:
    """The column without rare levels; the same one if there are none."""
    rare = rare_level_codes(column)
    frequent = np.setdiff1d(column.level_codes, rare)
    if not len(rare) or not len(frequent):
        return column
    encoded = column.encoded
    if encoded.value_type == "str" and column.kind == "category":
        encoded, targets = _other_level(column, rare)
    else:
        nearest = np.abs(frequent[None, :] - rare[:, None]).argmin(axis=1)
        targets = frequent[nearest]
    merged = _recode(encoded, rare, targets)
    counts = np.bincount(merged.observed_codes, minlength=len(merged.levels))
    merged_column = category_column(merged, counts, column.kind)
    values = encoded.levels.tolist()
    merged_levels = dict[Hashable, Hashable]()
    for code, target in zip(rare.tolist(), targets.tolist(), strict=True):
        merged_levels[values[code]] = values[target]
    return replace(
        merged_column, min_count=column.min_count, merged_levels=merged_levels
    )


def _recode(encoded: EncodedColumn, codes: Ints, new_codes: Ints) -> EncodedColumn:
    """The column with new codes (k,) in place of some codes (k,)."""
    new_code_of = np.arange(len(encoded.levels) + 1)
    new_code_of[-1] = -1  # the code −1 of a missing cell is this last one
    new_code_of[codes] = new_codes
    return replace(encoded, codes=new_code_of[encoded.codes])


def _other_level(column: Column, rare: Ints) -> tuple[EncodedColumn, Ints]:
    """Add a level for all rare ones, if needed.

    Returns the cells, and for each rare level the code of the level that it becomes.
    """
    encoded = column.encoded
    texts = [str(level).lower() for level in encoded.levels.tolist()]
    n_rows = int(np.isin(encoded.codes, rare).sum())
    if OTHER in texts:
        other = texts.index(OTHER)
    elif n_rows >= column.min_count:
        encoded = replace(encoded, labels=(*encoded.labels, OTHER))
        other = len(texts)
    else:
        other = int(column.level_codes[column.level_counts.argmax()])
    return encoded, np.full(len(rare), other)
