"""The state of a fitted `TableFlow`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any

import numpy as np
import torch

from sliceflow.cells import Cells, Kept
from sliceflow.engine.random import Seed
from sliceflow.spaces.tables.columns import Column, hashes, some
from sliceflow.spaces.tables.conditional import conditions_for
from sliceflow.spaces.tables.constraints import Rule, implied, parsed
from sliceflow.spaces.tables.local import LocalFlow
from sliceflow.spaces.tables.scores import Scores, Stream, quantiles

__all__ = ["FittedTable", "checked", "fitted_to"]


@dataclass(frozen=True, eq=False)
class FittedTable:
    """A fitted table.

    Parameters
    ----------
    library : of the DataFrame
    columns : of the table
    numbers : (n, columns), its rows
    rules : the constraints, and the combinations of each
    modelled : (n, columns), the rows as they are modelled under the constraints
    scores, flow : the model
    seed : of the fit
    """

    library: str
    columns: tuple[Column, ...]
    numbers: np.ndarray
    rules: tuple[tuple[Rule, np.ndarray], ...]
    modelled: np.ndarray
    scores: Scores
    flow: LocalFlow
    seed: Seed

    @property
    def keeps_rows(self) -> bool:
        """Whether the rows of the table are part of the model: always."""
        return True

    def restored(self, modelled: np.ndarray) -> np.ndarray:
        """Numbers of the table from modelled ones."""
        for rule, kinds in reversed(self.rules):
            modelled = rule.restored(modelled, kinds, self.numbers)
        return modelled

    def encoded(self, numbers: np.ndarray) -> np.ndarray:
        """Modelled numbers of other rows."""
        for rule, kinds in self.rules:
            numbers = rule.encoded(numbers, kinds)
        return numbers

    def mended(self, numbers: np.ndarray, given: np.ndarray) -> np.ndarray:
        """Rows that satisfy the constraints, with the cells `given` unchanged."""
        for rule, kinds in self.rules:
            numbers = rule.mended(numbers, given, kinds)
        return numbers

    def condition(self, wanted: np.ndarray, n: int, draw: Stream) -> np.ndarray:
        """Scores (n, d) of what is wanted of each column: a number, NaN for missing, −∞ for nothing.

        Under a constraint, what is wanted of one column may leave others open. They are then taken from
        a row that agrees, or nearly.
        """
        open_ = np.isneginf(wanted)
        tied = {c for rule, _ in self.rules if rule.kind != "bound" for c in rule.columns}
        some = [c for c in tied if not open_[c]]
        if not some:
            return conditions_for(self.scores, self.flow.z, self.modelled, wanted, n, draw)
        scale = np.nanstd(self.numbers[:, some], axis=0) + 1e-12
        off = np.nan_to_num(np.abs(self.numbers[:, some] - wanted[some]) / scale, nan=1e3)
        category = np.array([self.columns[c].is_category for c in some])
        combined = {c for rule, _ in self.rules if rule.combines for c in rule.columns}
        exact = [i for i, c in enumerate(some) if c in combined]
        distance = np.where(category, 1e3 * (off > 0), off).sum(1) + 1e6 * (off[:, exact] > 0).any(1)
        count = max(1, min(50, int((distance < 1e6).sum())), int((distance == 0).sum()))
        rows = np.argsort(distance, kind="stable")[:count][(draw.uniform(n) * count).astype(int)]
        full = np.where(open_, np.nan, wanted) + np.zeros((n, 1))
        for rule, _ in self.rules:
            if rule.kind != "bound" and any(c in some for c in rule.columns):
                fill = [c for c in rule.columns if open_[c]]
                full[:, fill] = self.numbers[np.ix_(rows, fill)]
        keep = ~np.isnan(full) | ~open_
        full = self.encoded(self.mended(full, np.broadcast_to(~open_, full.shape)))
        out = np.empty((n, len(self.scores.coordinates)))
        codes, which = np.unique(np.where(keep, full, -np.inf), axis=0, return_inverse=True)
        for i, values in enumerate(codes):
            at = np.flatnonzero(which.reshape(-1) == i)
            values = np.where(np.isnan(values) & open_, -np.inf, values)
            out[at] = conditions_for(self.scores, self.flow.z, self.modelled, values, len(at), draw)
        return out

    def number_of(self, c: int, value: Any) -> float:
        """The number of a value that a user gives for column c; NaN for missing."""
        column = self.columns[c]
        if column.kind in ("identifier", "drop"):
            raise ValueError(f"column {column.name!r} is of kind {column.kind}; it cannot be given")
        if value is None or value != value:
            if not np.isnan(self.numbers[:, c]).any():
                raise ValueError(f"column {column.name!r} is never missing in the table")
            return float("nan")
        cell = _cell(column.kept, value)
        if column.labels and cell.values.tolist()[0] not in column.labels:
            raise ValueError(
                f"column {column.name!r} has no category {value!r}; it has {some(column.labels)}"
            )
        if column.written is not None and np.isnan(column.written.parse(cell.values)).any():
            raise ValueError(f"column {column.name!r} holds numbers; {value!r} is none")
        number = float(column.numbers(cell)[0])
        near = float(column.on_grid(np.array([number]))[0])
        free = column.labels or column.kind == "constant"
        if not free and abs(near - number) > 1e-9 * max(1.0, abs(number)):
            raise ValueError(
                f"column {column.name!r} cannot be {value!r}: its values go in steps of "
                f"{column.step:g}; the nearest is {near:g}"
            )
        return number

    def extended(self, c: int, cells: Cells) -> Column:
        """Column c with the categories and identifiers of more cells."""
        column = self.columns[c]
        present = cells.values[~cells.missing]
        if column.hashes is not None:
            more = hashes([str(v) for v in present.tolist()])
            return replace(column, hashes=np.concatenate((column.hashes, more)))
        if column.labels and column.kept.categories is None:
            values = {v.item() if isinstance(v, np.generic) else v for v in present.tolist()}
            new = sorted(values - set(column.labels), key=str)
            kind = "category" if new and column.kind == "constant" else column.kind
            return replace(column, labels=(*column.labels, *new), kind=kind)
        return column

    def without(self, c: int, cells: Cells) -> Column:
        """Column c without the identifiers of these cells."""
        column = self.columns[c]
        if column.hashes is None:
            return column
        gone = hashes([str(v) for v in cells.values[~cells.missing].tolist()])
        return replace(column, hashes=column.hashes[~np.isin(column.hashes, gone)])


def _cell(kept: Kept, value: Any) -> Cells:
    """One cell of a user's value."""
    unit = kept.unit
    if kept.form in ("datetime", "date"):
        when = value
        if isinstance(value, str):
            with suppress(ValueError):
                when = datetime.fromisoformat(value)
        if isinstance(when, datetime):
            when = when.replace(tzinfo=None)  # on the clock of the column's time zone
        elif not isinstance(when, date | np.datetime64):
            raise ValueError(f"column {kept.name!r} holds dates, not {value!r}; pass '2024-01-31'")
        values: Any = np.array([when], dtype=f"datetime64[{unit}]").astype(np.int64)
    elif kept.form == "duration":
        values = np.array([value], dtype=f"timedelta64[{unit}]").astype(np.int64)
    elif kept.form == "text" or kept.categories is not None:
        values = np.array([value], dtype=object)
    else:
        try:
            values = np.array([float(value)])
        except (TypeError, ValueError):
            values = np.array([np.nan])
        if not np.isfinite(values).all():
            raise ValueError(f"column {kept.name!r} holds numbers; {value!r} is none")
        if kept.form == "boolean":
            values = values.astype(np.int64)
    return Cells(kept, values, np.zeros(1, dtype=bool))


def checked(columns: Sequence[Column], numbers: np.ndarray, constraints: Sequence[str]) -> list[Rule]:
    """The constraints as rules; a ValueError says why there is no model of these rows."""
    if len(numbers) < 2:
        raise ValueError(f"the table has {len(numbers)} row; a model needs at least 2")
    if not any(column.modelled for column in columns):
        raise ValueError(
            "no column can be modelled: " + ", ".join(f"{c.name!r} is {c.kind}" for c in columns[:5])
        )
    rules = parsed(constraints, columns)
    for rule in rules:
        rule.check(numbers, [column.name for column in columns])
    return rules


def fitted_to(
    columns: Sequence[Column],
    numbers: np.ndarray,
    library: str,
    seed: Seed,
    device: torch.device,
    parameters: Mapping[str, Any],
) -> FittedTable:
    """The model of these rows."""
    asked = checked(columns, numbers, parameters["constraints"])
    columns, given = list(columns), tuple(columns)
    modelled, rules = numbers, []
    for rule in [*asked, *implied(columns, numbers, asked)]:
        columns, modelled, kinds = rule.modelled(columns, modelled)
        rules.append((rule, kinds))
    scores, z = Scores.of(columns, modelled, Stream(seed.child("scores")))
    levels = [len(column.labels) if column.is_category else 0 for column in columns]

    def decoded(some: np.ndarray) -> np.ndarray:
        return embedded(scores.decode(some, quantiles(some)), levels, modelled)

    h = parameters["smoothing"]
    flow = LocalFlow.fit(
        z,
        scores.relevance(),
        decoded,
        seed.child("flow"),
        device,
        k=parameters["n_neighbors"],
        h=None if h == "auto" else float(h),
        kappa=parameters["shrinkage"],
        n_steps=parameters["n_steps"],
    )
    return FittedTable(library, given, numbers, tuple(rules), modelled, scores, flow, seed)


_ONE_HOT = 24  # categories with an axis each; more share as many


def embedded(numbers: np.ndarray, levels: Sequence[int], reference: np.ndarray) -> np.ndarray:
    """Rows as points, where another category and one standard deviation both are a distance of 1.

    Parameters
    ----------
    numbers : (n, c), NaN where missing; of categories, codes
    levels : the number of categories of each column; 0 for numbers
    reference : (m, c), rows whose medians and standard deviations count

    Examples
    --------
    >>> rows = np.array([[0.0, 0.0], [2.0, 1.0]])
    >>> points = embedded(rows, [0, 2], rows)
    >>> float(np.linalg.norm(points[1] - points[0]).round(2))  # two standard deviations, one category
    2.24
    """
    out = []
    for column, n, known in zip(numbers.T, levels, reference.T, strict=True):
        gone, present = np.isnan(column), known[~np.isnan(known)]
        if n:
            axes = np.eye(n)
            if n > _ONE_HOT:  # directions at random are nearly orthogonal
                axes = np.random.default_rng(0).normal(size=(n, _ONE_HOT)) / np.sqrt(_ONE_HOT)
            points = axes[np.where(gone, 0, column).astype(int)] / np.sqrt(2)
            out.append(np.where(gone[:, None], 0.0, points))
        elif len(present):
            scale = present.std() or 1.0
            out.append(np.where(gone, 0.0, (column - np.median(present)) / scale)[:, None])
        if len(present) < len(known):
            out.append(gone[:, None] / (np.sqrt(2) if n else 1.0))
    return np.hstack(out) if out else np.zeros((len(numbers), 1))
