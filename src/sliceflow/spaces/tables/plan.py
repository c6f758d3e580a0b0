"""The plan of the fit of a table: in which order and how its columns are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from sliceflow.models.fit_plan import FitPlan
from sliceflow.saved_types import Between, Count, Label
from sliceflow.spaces.tables.strategies import Strategy, uses_ridge
from sliceflow.spaces.tables.table import Table
from sliceflow.spaces.tables.table_rows import format_names
from sliceflow.spaces.tables.trees import MAX_ROWS_PER_TREE, TreeSettings

# About the cost of a fit, to tell users before it starts: seconds on one thread for
# each cell that a tree is fitted to and each column that the tree sees; seconds for
# each cell that is read; and bytes for each cell. Users are told an order of magnitude.
SECONDS_PER_CELL_AND_PREDICTOR = 1.5e-6
SECONDS_PER_CELL = 1e-6
BYTES_PER_CELL = 200


@dataclass(frozen=True, kw_only=True)
class TablePlan(FitPlan):
    """The plan of the fit of a table. It prints as a table."""

    n_rows: Count
    n_columns: Count
    order: tuple[Label, ...]  # names of the columns, in the order of the chain
    strategies: tuple[Strategy, ...]  # how each of these columns is drawn
    min_samples_leaf: Count  # see `TreeSettings`
    ccp_factor: Annotated[float, Between(0)]
    n_neighbors: Count = 0
    rules: tuple[str, ...] = ()  # constraints, and dependencies that were found
    identifiers: tuple[Label, ...] = ()  # columns whose values are made up

    @property
    def method(self) -> str:
        """The method that draws rows, in a few words."""
        if self.n_neighbors:
            return "near rows and a chain of trees"
        return "chain of trees"

    @property
    def tree_settings(self) -> TreeSettings:
        """How fine trees are, as `TableFlow(tree_settings=…)` takes it."""
        return TreeSettings(self.min_samples_leaf, self.ccp_factor, self.n_neighbors)

    def tree_settings_for(self, allow_missing: bool) -> TreeSettings:
        """The settings to draw rows with or without missing cells.

        Nearest rows give their missing cells to draws, so without these trees draw all
        columns.
        """
        if allow_missing:
            return self.tree_settings
        return self.tree_settings._replace(n_neighbors=0)

    def summary(self) -> Sequence[tuple[str, object]]:
        """Names and values to print; those with the value "" are left out."""
        return [
            ("data", f"{self.n_rows} rows of {self.n_columns} columns"),
            ("order", format_names(self.order)),
            ("near rows", self._near_rows_in_words()),
            ("trees", self._trees_in_words()),
            ("separate trees", self._separate_trees_in_words()),
            ("regressions", format_names(self._regression_columns())),
            ("rules", format_names(self.rules)),
            ("identifiers", format_names(self.identifiers)),
            ("model", "keeps all rows"),
        ]

    def _near_rows_in_words(self) -> str:
        if self.n_neighbors == 0:
            return ""
        k = self.n_neighbors
        return f"smooth numbers from the {k} rows nearest to a random one"

    def _trees_in_words(self) -> str:
        return (
            f"leaves of {self.min_samples_leaf} rows or more; "
            f"splits worth {self.ccp_factor:g} times noise"
        )

    def _separate_trees_in_words(self) -> str:
        for name, strategy in zip(self.order, self.strategies, strict=True):
            if strategy == "per_level":
                return f"for each level of {name!s}"
        return ""

    def _regression_columns(self) -> list[Label]:
        """The names of columns that are drawn along a regression."""
        names = []
        for name, strategy in zip(self.order, self.strategies, strict=True):
            if uses_ridge(strategy):
                names.append(name)
        return names

    @property
    def nbytes(self) -> int:
        """Memory of the fit, without the input data."""
        return BYTES_PER_CELL * self.n_rows * max(1, len(self.order))

    @property
    def seconds(self) -> float:
        """About how long the fit takes, on one thread."""
        n_drawn = len(self.order)
        n_fitted = min(self.n_rows, MAX_ROWS_PER_TREE)
        # Each column sees those before it, so pairs of columns count.
        seconds = SECONDS_PER_CELL_AND_PREDICTOR * n_fitted * n_drawn * (n_drawn + 1)
        return seconds + SECONDS_PER_CELL * self.n_rows * n_drawn

    def is_compatible_with(self, table: Table) -> bool:
        """Whether a table, of the rows of a file, could have this plan."""
        names = tuple(table.names[c] for c in table.drawing_order)
        if self.order != names or len(self.strategies) != len(names):
            return False
        for c, strategy in zip(table.drawing_order, self.strategies, strict=True):
            column = table.columns[c]
            if uses_ridge(strategy) and not column.new_values.are_possible:
                return False
            if strategy == "per_level" and not column.is_binary:
                return False
        if not self.n_neighbors:
            return True
        # It imports torch, which takes seconds, and plain draws need none of it.
        from sliceflow.spaces.tables.choose_neighbours import may_use_neighbours

        return may_use_neighbours(table, self.strategies)
