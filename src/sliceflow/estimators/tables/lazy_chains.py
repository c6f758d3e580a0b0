"""The chains of a table, each fitted when rows are first drawn by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sliceflow.engine.random import Seed
from sliceflow.estimators.tables.chain import ChainStep, fit_chain
from sliceflow.estimators.tables.strategies import Strategy
from sliceflow.estimators.tables.table import Table
from sliceflow.estimators.tables.trees import TreeSettings


@dataclass(frozen=True, eq=False)
class LazyChains:
    """The chains of a table that draw its rows.

    A fit passes the chain that it has fitted. A file holds no chain, because the rows,
    the seed and the strategies give the same one again.
    """

    table: Table
    seed: Seed
    strategies: Sequence[Strategy]
    fitted: dict[TreeSettings, Sequence[ChainStep]] = field(default_factory=dict)

    def chain_for(self, settings: TreeSettings) -> Sequence[ChainStep]:
        """The chain of these settings, fitted to all rows if it is not fitted yet."""
        if settings not in self.fitted:
            steps = fit_chain(
                self.table,
                self.table.level_positions,
                fixed_indices=(),
                seed=self.seed,
                settings=settings,
                strategies=self.strategies,
            )
            self.fitted[settings] = tuple(steps)
        return self.fitted[settings]
