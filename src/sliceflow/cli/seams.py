"""Calls that change with the estimators: each becomes one plain call, and then this module goes."""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["check_table", "fit", "impute", "make_plan", "plan_stages", "understand"]


def _has(function: Any, name: str) -> bool:
    return name in inspect.signature(function).parameters


def make_plan(flow: Any, x: Any, y: Any) -> Any:
    """``flow.plan(x, y)``; None for a TableFlow without plans."""
    return flow.plan(x, y) if hasattr(flow, "plan") else None


def plan_stages(plan: Any) -> list[tuple[str, int]]:
    """The stages of a plan: name and steps."""
    stages = getattr(plan, "stages", ())
    return [(s.name, s.n_steps) for s in (stages() if callable(stages) else stages)]


def fit(flow: Any, x: Any, y: Any, **more: Any) -> None:
    """``flow.fit(x, y, listeners=, checkpoint_dir=, checkpoint_every=, ranks=)``."""
    flow.fit(x, y, **{name: value for name, value in more.items() if _has(flow.fit, name)})


def impute(flow: Any, frame: Any, *, n: int, seed: int) -> Any:
    """``flow.impute(frame, n=n, random_state=seed)``."""
    count = {"n" if _has(flow.impute, "n") else "n_samples": n}
    return flow.impute(frame, random_state=seed, **count)


def check_table(flow: Any, frame: Any) -> None:
    """Raise the error that a fit to the whole table would raise; its rows are those of the file."""
    from sliceflow.errors import rows_of_the_file

    if hasattr(flow, "check"):
        with rows_of_the_file():
            flow.check(frame)


def understand(frame: Any) -> list[dict[str, Any]]:
    """What every column was understood as; one that cannot be used is to be left out, and says why."""
    from sliceflow.cells import read_cells
    from sliceflow.errors import rows_of_the_file
    from sliceflow.spaces.tables.columns import understood

    out = []
    for cells in read_cells(frame)[0]:
        try:
            with rows_of_the_file():
                column = understood(cells)
            out.append(column.told(column.numbers(cells)))
        except ValueError as error:
            missing = round(float(cells.missing.mean()), 4) if len(cells.missing) else 0.0
            told = {"column": cells.kept.name, "kind": "drop", "missing": missing, "distinct": 0}
            out.append(told | {"note": str(error).split("; ")[0], "refused": True})
    return out
