"""Missing cells filled by draws given all other cells of their row.

Each column with missing cells has trees that see all other columns (multiple imputation by trees: Doove,
van Buuren and Dusseldorp 2014). A tree is grown on one half of the rows and draws from the other half,
so that draws spread as far as rows do. A cell is that of a random row in the leaf of a random tree. A
few sweeps over the columns let filled cells agree.
"""

from __future__ import annotations

import numpy as np

from sliceflow.engine.random import Seed
from sliceflow.spaces.tables.chain import Detail, Link, grow
from sliceflow.spaces.tables.table import Table, generator

__all__ = ["fill"]

_TREES, _DETAIL = 10, Detail(5, 2.75)  # of a column
_SWEEPS = 4
_ROUNDS = 10  # in which rows that break a rule are filled anew
_MOST_ROWS = 20_000  # of a tree


def fill(table: Table, z: np.ndarray, seed: Seed) -> tuple[np.ndarray, np.ndarray]:
    """Positions z (m, d) with missing cells filled, and which rows could not keep the rules.

    Cells of columns without values, identifiers and those that are left out stay as they are.
    """
    columns, rng = table.columns, generator(seed.child("fill"))
    never = ("identifier", "constant")
    usable = [c for c in table.order if len(columns[c].order) and columns[c].kind not in never]
    gone = (z < 0) & np.isin(np.arange(z.shape[1]), usable)
    wanted = [c for c in usable if gone[:, c].any()]
    forests = {c: _forest(table, c, usable, seed.child("column", c)) for c in wanted}
    out, rest = z.copy(), np.flatnonzero(gone.any(1))
    for _ in range(_ROUNDS):
        if not len(rest):
            break
        part, own = z[rest].copy(), gone[rest]
        for _ in range(_SWEEPS):
            for c in wanted:
                _redraw(table, forests[c], part, own, rng)
            table.rules.solve(part, own)
        filled = np.where(own & (part < 0), np.nan, part)
        ok = table.rules.complete(filled, ~own)
        out[rest[ok]] = filled[ok]
        rest = rest[~ok]
    return out, rest


def _forest(table: Table, c: int, usable: list[int], seed: Seed) -> list[Link]:
    rows = np.flatnonzero(table.z[:, c] >= 0)
    before, out = np.array([b for b in usable if b != c], dtype=np.int64), []
    for t in range(_TREES):
        some = rows[generator(seed.child("rows", t)).permutation(len(rows))[:_MOST_ROWS]]
        key = seed.child("grow", t).key
        out.append(grow(table.columns, table.z[some], c, before, key, _DETAIL, honest=True))
    return out


def _redraw(
    table: Table, forest: list[Link], z: np.ndarray, gone: np.ndarray, rng: np.random.Generator
) -> None:
    """Draw the cells `gone` of a forest's column anew, in place, each by a random tree."""
    c = forest[0].column
    rows = np.flatnonzero(gone[:, c])
    which = rng.integers(len(forest), size=len(rows))
    for t, link in enumerate(forest):
        own = rows[which == t]
        drawn = z[own].copy()
        drawn[:, c] = np.nan
        drawn[gone[own] & (drawn < 0)] = np.nan

        def allowed(k: np.ndarray, at: np.ndarray, drawn: np.ndarray = drawn) -> np.ndarray:
            return np.asarray((at >= 0) & table.rules.allowed(c, drawn[k], at))

        found = link.draw(table.columns, z[own], rng, allowed)
        z[own, c] = np.where(np.isnan(found), z[own, c], found)
