"""What both estimators keep of a fit, and adding rows to models that keep theirs."""

from __future__ import annotations

from typing import Any, Self

from sliceflow.engine import conditions, events

__all__ = ["Growing"]


class Growing:
    """Mixin of both estimators."""

    _fitted: Any
    history_: dict[str, list[Any]]

    def _grow_rows(self, X: Any, y: Any, refresh: bool | int) -> bool:
        """`partial_fit` of a model that keeps rows; False if it does not."""
        return False

    def _forget_rows(self, X: Any, y: Any, refresh: bool | int) -> bool:
        """`forget` of such a model."""
        return False

    def _refresh_rows(self, last: int | None) -> bool:
        """`refresh` of such a model."""
        return False

    def _keep(
        self, plan: Any, fitted: Any, particles: Any, y: Any, history: dict[str, list[Any]]
    ) -> None:
        """Replace the fitted attributes."""
        self.plan_, self._fitted = plan, fitted
        for name in ("_file", "_waiting"):  # no longer a loaded model; no rows wait
            self.__dict__.pop(name, None)
        self.particles_, self.particle_conditions_ = particles, y
        self.__dict__.pop("classes_", None)
        condition = fitted.condition
        if isinstance(condition, conditions.Labels) and not condition.hidden:
            self.classes_ = condition.classes
        self.history_, self.n_iter_ = history, len(history["step"])

    def partial_fit(
        self, X: Any, y: Any = None, *, refresh: bool = True, listeners: events.Listeners = ()
    ) -> Self:
        """Add rows to a model that keeps its rows, then refresh it."""
        return self._changed(self._grow_rows(X, y, refresh))

    def forget(
        self, X: Any, y: Any = None, *, refresh: bool = True, listeners: events.Listeners = ()
    ) -> Self:
        """Remove rows from a model that keeps its rows, then refresh it."""
        return self._changed(self._forget_rows(X, y, refresh))

    def refresh(self, *, listeners: events.Listeners = ()) -> Self:
        """Fit the rows that the model keeps again."""
        return self._changed(self._refresh_rows(None))

    def _changed(self, done: bool) -> Self:
        if not done:
            raise ValueError("this model keeps no rows; fit all rows again")
        return self
