"""Calls whose signatures change with the estimators. Each function becomes one plain call, then this goes."""

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


def measure(samples: Any, train: Any, test: Any, *, kind: str, y: Any, target: str | None) -> Any:
    """``metrics.report(samples, train, test, y=y, kind=kind).to_dict()``."""
    from sliceflow import metrics

    if kind == "table":
        found = metrics.tables.table_report(train, test, samples, target=target)
        meaning, names = metrics.tables.COLUMN_MEANING, found.scores
        values, floors = found.scores, found.floors
    else:
        scale = 1.0 if samples.dtype.kind == "f" else 255.0
        x, a, b = (np.asarray(v, np.float32) / scale for v in (samples, train, test))
        battery = metrics.Battery(a, b, n_trees=8, most=min(1000, len(x), len(a)), neighbours_of=200)
        values, floors = battery.score(x[:1000], None), battery.floors
        meaning = {name: what for name, (_, what) in metrics.MEANING.items()}
        names = {name: 0 for name in metrics.MEANING if name in values}
    rows = []
    for name in names:
        value, floor = values[name], floors.get(name)
        shown = [None if v is None or v != v else round(float(v), 5) for v in (value, floor)]
        row = {"name": name, "value": shown[0], "floor": shown[1], "explanation": meaning[name]}
        rows.append(row)
    return {"rows": rows}
