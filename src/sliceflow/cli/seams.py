"""Calls that change with the estimators: each becomes one plain call, and then this module goes."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

__all__ = ["fit", "impute", "inpaint", "make_plan", "measure", "plan_stages", "start_of"]


def _has(function: Any, name: str) -> bool:
    return name in inspect.signature(function).parameters


def make_plan(flow: Any, x: Any, y: Any) -> Any:
    """``flow.plan(x, y)``; None for a TableFlow without plans."""
    return flow.plan(x, y) if hasattr(flow, "plan") else None


def plan_stages(plan: Any) -> list[tuple[str, int]]:
    """The stages of a plan: name and steps."""
    stages = getattr(plan, "stages", ())
    return [(s.name, s.n_steps) for s in (stages() if callable(stages) else stages)]


def start_of(flow: Any) -> str:
    """Where particles of pictures start."""
    n = getattr(getattr(flow, "plan_", None), "n_summed", 0)
    return f"mosaics of {n} training pictures" if n else "noise"


def fit(flow: Any, x: Any, y: Any, **more: Any) -> None:
    """``flow.fit(x, y, listeners=, checkpoint_dir=, checkpoint_every=, ranks=)``."""
    flow.fit(x, y, **{name: value for name, value in more.items() if _has(flow.fit, name)})


def inpaint(flow: Any, x: Any, mask: Any, *, n: int, y: Any, seed: int) -> Any:
    """``flow.inpaint(x, mask, n=n, y=y, random_state=seed)``."""
    count = {"n" if _has(flow.inpaint, "n") else "n_samples": n}
    return flow.inpaint(x, mask=mask, y=y, random_state=seed, **count)


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


def complete(flow: Any, train: Any, picture: Any, mask: Any, n: int, seed: int) -> Any:
    """``flow.inpaint(picture, mask, n=n, random_state=seed)``."""
    if mask is None or train is None or _has(flow.inpaint, "n"):
        return inpaint(flow, picture, mask, n=n, y=None, seed=seed)
    from sliceflow.spaces.pictures.completion import complete as completed

    return completed(picture, mask, train, n, n_pixel_values=flow.n_pixel_values, random_state=seed)


def measure(samples: Any, train: Any, test: Any, *, kind: str, y: Any) -> dict[str, Any]:
    """``metrics.report(samples, train, test, y=y, kind=kind).to_dict()``."""
    from sliceflow import metrics

    if hasattr(metrics, "report"):
        out: dict[str, Any] = metrics.report(samples, train, test, y=y, kind=kind).to_dict()
        return out
    details: dict[str, Any] = {}
    if kind == "tables":
        found = metrics.tables.table_report(train, test, samples, target=y)
        values, floors, details = found.scores, found.floors, {"pairs": found.pairs}
        meaning: Any = metrics.tables.COLUMN_MEANING
    else:
        scale = 1.0 if samples.dtype.kind == "f" else 255.0
        x, a, b = (np.asarray(v, np.float32) / scale for v in (samples, train, test))
        battery = metrics.Battery(a, b, n_trees=4, most=min(500, len(x), len(a)), neighbours_of=200)
        values, floors = battery.score(x[:500], None), battery.floors
        meaning = {name: what for name, (_, what) in metrics.MEANING.items()}
    numbers = [
        {"name": n, "value": v, "floor": floors.get(n, np.nan), "ideal": "", "meaning": meaning[n]}
        for n, v in values.items()
    ]
    copies = f"copies {values['copies']:.2g}" if "copies" in values else "copies: unknown"
    return {"numbers": numbers, "details": details, "verdict": f"The samples were measured ({copies})"}
