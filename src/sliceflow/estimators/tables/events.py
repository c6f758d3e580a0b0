"""Events of a table's fit, which listeners get: of trials, and then of columns.

They have what progress bars read of any event (`sliceflow.events.ProgressEvent`), whose
steps are trials and columns. What a listener returns is ignored: a chain needs all its
columns.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TableTrialEvent:
    """A trial has ended, by which a fit chooses how rows are drawn."""

    trial: str  # what was tried, such as "how to draw age" or "27 neighbors"
    trials_done: int
    trials_total: int  # at most so many
    columns_total: int  # which are fitted after the trials
    seconds: float  # since the fit began

    @property
    def steps_done(self) -> int:
        """The number of trials that are done, as progress bars call it."""
        return self.trials_done

    @property
    def steps_total(self) -> int:
        """The number of all trials and columns, as progress bars call it."""
        return self.trials_total + self.columns_total

    def describe(self) -> str:
        """Such as "trial: how to draw age"."""
        return f"trial: {self.trial}"


@dataclass(frozen=True)
class ColumnEvent:
    """A step of the chain is fitted: of one column, or of several drawn together."""

    column: str  # the name; of columns that are drawn together all names, with commas
    columns_done: int
    columns_total: int
    # The share of the column's impurity that the columns before it leave.
    unexplained_share: float
    seconds: float  # since the fit began
    trials_done: int = 0  # before all columns

    @property
    def steps_done(self) -> int:
        """The number of trials and columns that are done."""
        return self.trials_done + self.columns_done

    @property
    def steps_total(self) -> int:
        """The number of all trials and columns."""
        return self.trials_done + self.columns_total

    def describe(self) -> str:
        """Such as "column age, unexplained share 0.31"."""
        return f"column {self.column}, unexplained share {self.unexplained_share:.4g}"


TableEvent = TableTrialEvent | ColumnEvent
