"""Events of a table's fit, which listeners get."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ColumnEvent:
    """A column of a table whose model was just fitted.

    It has what progress bars read of any event (`sliceflow.events.ProgressEvent`). What
    a listener returns is ignored: a chain needs all its columns.
    """

    column: str  # the name; of columns that are drawn together all names, with commas
    columns_done: int
    columns_total: int
    unexplained: float  # share of the column's impurity that columns before it leave
    seconds: float  # since the fit began

    @property
    def steps_done(self) -> int:
        """The number of columns that are done, as progress bars call it."""
        return self.columns_done

    @property
    def steps_total(self) -> int:
        """The number of all columns, as progress bars call it."""
        return self.columns_total

    def describe(self) -> str:
        """Such as "column age, unexplained share 0.31"."""
        return f"column {self.column}, unexplained share {self.unexplained:.4g}"
