"""Missing cells filled by draws given all other cells of their row.

Each column with missing cells has trees that see all other columns (multiple imputation by trees: Doove,
van Buuren and Dusseldorp 2014). A tree is grown on one half of the rows and draws from the other half,
so that draws spread as far as rows do. A cell is that of a random row in the leaf of a random tree. A
few sweeps over the columns let filled cells agree.
"""

from __future__ import annotations

import numpy as np

from sliceflow.engine.random import Seed
from sliceflow.spaces.tables.chain import Link, grow
from sliceflow.spaces.tables.table import Table, generator

__all__ = ["fill"]

_TREES = 10  # of a column
_SWEEPS = 4
_ROUNDS = 10  # in which rows that break a rule are filled anew
_MOST_ROWS = 20_000  # of a tree
_LEAF = 5


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
        for sweep in range(_SWEEPS):
            for c in wanted:
                _redraw(table, forests[c], c, part, own, rng, first=sweep == 0)
            table.rules.solve(part, own)
        filled = np.where(own & (part < 0), np.nan, part)
        ok = table.rules.complete(filled, ~own)
        out[rest[ok]] = filled[ok]
        rest = rest[~ok]
    return out, rest


def _forest(table: Table, c: int, usable: list[int], seed: Seed) -> list[Link]:
    rows = np.flatnonzero(table.z[:, c] >= 0)
    before = np.array([b for b in usable if b != c], dtype=np.int64)
    links = []
    for t in range(_TREES):
        some = rows[generator(seed.child("rows", t)).permutation(len(rows))[:_MOST_ROWS]]
        links.append(
            grow(table.columns, table.z[some], c, before, seed.child("grow", t).key, _LEAF, True)
        )
    return links


def _redraw(  # many: one cell of a sweep
    table: Table, forest: list[Link], c: int, z: np.ndarray, gone: np.ndarray, rng: np.random.Generator,
    *, first: bool,
) -> None:  # fmt: skip
    """Draw the cells `gone` of a column anew, in place."""
    rows = np.flatnonzero(gone[:, c])
    which = rng.integers(len(forest), size=len(rows))
    for t, link in enumerate(forest):
        own = rows[which == t]
        if not len(own):
            continue
        others = z[own].copy()
        others[:, c] = np.nan
        open_cells = gone[own] & (others < 0)
        others_drawn = np.where(open_cells, np.nan, others)

        def allowed(
            k: np.ndarray, positions: np.ndarray, drawn: np.ndarray = others_drawn
        ) -> np.ndarray:
            return np.asarray((positions >= 0) & table.rules.allowed(c, drawn[k], positions))

        found = link.draw(table.columns, others, rng, allowed)
        z[own, c] = np.where(np.isnan(found), -1.0 if first else z[own, c], found)
