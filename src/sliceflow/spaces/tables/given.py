"""Columns that are given: rows that have them, or are moved there.

They choose rows, and a chain of the other columns is fitted to these. A number that few rows have takes
the nearest rows and moves them there: their numbers change along lines on the given ones (`lines`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np

from sliceflow.spaces.tables.cells import pandas, shown
from sliceflow.spaces.tables.columns import Column
from sliceflow.spaces.tables.constraints import LinearRule, MembershipRule, Rule
from sliceflow.spaces.tables.formats import whole_numbers
from sliceflow.spaces.tables.lines import Line
from sliceflow.spaces.tables.table import Table

_ENOUGH = 20  # rows behind an answer, from which on it is not worth a warning
_NEAR = 8
_LEAST = 100
_MOST = 2_000  # an eighth of the rows are near a number; at least, at most
_FAR = 0.5  # standard deviations


def condition_on(
    table: Table, given: Mapping[Any, Any]
) -> tuple[Table, np.ndarray, dict[int, float], dict[int, Any]]:
    """Rows z (n, d) for what is given; the position, and the value, of each column that has only one.

    Ranges and lists are more rules of the table. A warning says what is doubtful.
    """
    if not isinstance(given, Mapping):
        raise ValueError(
            f"given={given!r} must be a dict such as {{'plan': 'gold', 'age': (30, 40)}}"
        )
    rows = np.ones(len(table.z), dtype=bool)
    notes = list[str]()
    more = list[Rule]()
    fixed = dict[int, float]()
    values = dict[int, Any]()
    near = dict[int, float]()
    for name, value in given.items():
        if name not in table.names:
            raise ValueError(
                f"given {name!r} is not a column; there are {shown(table.names)}"
            )
        c = table.names.index(name)
        column = table.columns[c]
        at = table.z[:, c]
        if column.kind in ("identifier", "drop"):
            raise ValueError(
                f"given {name!r} is of kind {column.kind}; samples make it up"
            )
        if isinstance(value, tuple):
            more += _range(column, c, value)
            rows &= at >= 0
        elif isinstance(value, list | set | frozenset | np.ndarray):
            known = set[float]()
            for one in value:
                place, number, _ = find_value(column, one)
                if place < 0 or column.numbers(np.array([place]))[0] == number:
                    known.add(place)
                else:
                    notes.append(f"no row has {name}={one}")
            more.append(MembershipRule(f"given {name}", (c,), tuple(sorted(known))))
        else:
            fixed[c], number, one = find_value(column, value)
            same = at == fixed[c]
            if column.is_number and not np.isnan(number):
                values[c] = one
                if not column.values[0] <= number <= column.values[-1]:
                    notes.append(f"{name}={value} is outside the table's values")
                if int((same & rows).sum()) < _ENOUGH:
                    near[c] = number
                    continue
            rows &= same
    if more:
        table = table.with_rules(more)
        rows &= ~np.any([table.rules.broken(rule, table.z) for rule in more], axis=0)
    if not rows.any():
        fact = f"no row of the table has given={dict(given)}"
        raise ValueError(f"{fact}; leave out what never occurs together")
    z = table.z[rows]
    if near:
        z, found = _moved(table, z, near, [fixed[c] for c in near])
        if found < _ENOUGH:
            notes.append(f"only {found} rows of the table are near it")
    if int(rows.sum()) < _ENOUGH:
        notes.append(f"only {int(rows.sum())} rows of the table have this")
    if notes:
        warnings.warn(
            f"given={dict(given)}: {'; '.join(notes)}", UserWarning, stacklevel=3
        )
    return table, z, fixed, values


def find_value(column: Column, value: Any) -> tuple[float, float, Any]:
    """The position of a value, or of a text for it, its number, and the value as a Series of one."""
    pd = pandas()
    cells = column.cells
    one = pd.Series([value], dtype=object)
    if one.isna().all():
        if not cells.missing.any():
            raise ValueError(
                f"{column.name!r} is missing, but no cell of this column is"
            )
        return -1.0, np.nan, one.astype(cells.dtype)
    if cells.form == "datetime" and getattr(value, "tzinfo", None) is None:
        one = one.astype(str)  # on the clock of the column
    (at,), (number,), new = column.find(one)
    known = column.levels.iloc[[int(at)]].reset_index(drop=True)
    return (
        float(np.rint(at) if column.exact else at),
        float(number),
        new if len(new) else known,
    )


def _range(column: Column, c: int, value: tuple[Any, ...]) -> list[Rule]:
    """The rules low ≤ column and column ≤ high."""
    text = f"given {column.name}={value}"
    rules = list[Rule]()
    if len(value) != 2 or not column.is_number or pandas().isna([*value]).any():
        raise ValueError(
            f"{text} is not a range (low, high) of numbers or times; pass a list"
        )
    for sign, end, towards in zip((-1, 1), value, (ceil, floor), strict=True):
        integer_values, unit = whole_numbers(
            find_value(column, end)[2], column.cells.form, column.writing
        )
        number = Fraction(integer_values[0]) * (unit or 1)
        bound = float(number) if column.unit is None else towards(number / column.unit)
        rules.append(LinearRule(text, (c,), (sign,), "<=", sign * bound, column.unit))
    return rules


def _moved(
    table: Table, z: np.ndarray, near: Mapping[int, float], at: list[float]
) -> tuple[np.ndarray, int]:
    """The rows nearest to numbers, moved to their positions along lines; and how many rows are near.

    A ValueError if a constraint compares a number that no position stands for exactly.
    """
    columns = table.columns
    given = list(near)
    for c, place in zip(given, at, strict=True):
        there = columns[c].on_grid(columns[c].numbers(np.array([place])))[0]
        asked = [
            rule.text
            for rule in table.rules.rules
            if c in rule.columns and not rule.implied
        ]
        if asked and abs(there - near[c]) > 1e-12 * abs(near[c]):
            fact = f"given {columns[c].name!r} is outside the table's values, or finer than they are"
            raise ValueError(
                f"{fact}, and the constraint {asked[0]!r} needs them; leave one out"
            )
    z = z[(z[:, given] >= 0).all(1)]
    if not len(z):
        raise ValueError("no row has a value of all given columns at once")
    x = np.column_stack([columns[c].numbers(z[:, c]) for c in given])
    scale = x.std(0)
    away = (np.array(list(near.values())) - x) / np.where(scale > 0, scale, 1.0)
    k = min(len(z), max(_LEAST, min(len(z) // _NEAR, _MOST)))
    distance = np.sqrt((away**2).sum(1))
    nearest = np.argsort(distance, kind="stable")[:k]
    z = z[nearest]
    for c in set(table.order) - set(given):
        column = columns[c]
        moving = columns[c].is_free(z[:, c])
        line = Line.fit("numbers", columns, z[moving], c, np.array(given))
        if line is not None:
            there = z[moving]
            there[:, given] = at
            moved = column.numbers(z[moving, c]) + line.at(there) - line.at(z[moving])
            z[moving, c] = line.position(column, moved)
    z[:, given] = at
    return z, int((distance < _FAR).sum())
