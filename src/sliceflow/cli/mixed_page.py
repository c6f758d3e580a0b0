"""The page of a table: a small plot for every column, associations side by side, copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["page"]

_BINS, _LEVELS, _ROWS, _PAIRS, _MOST = 24, 12, 8, 12, 30
_WIDE, _HIGH, _CELL = 240, 90, 14


def page(config: dict[str, Any], train: Any, test: Any, made: Any, measures: dict[str, Any]) -> str:
    """The page as HTML."""
    from jinja2 import Environment, FileSystemLoader

    from sliceflow.metrics.tables import COLUMN_MEANING

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = [name for name in train.columns if name in made]
    some = made[names].head(_ROWS)
    new = [name for name in names if config["data"].get("kinds", {}).get(name) == "identifier"]
    html: str = environment.get_template("mixed.html.j2").render(
        config=config,
        data=config["data"],
        measures=measures,
        meaning=COLUMN_MEANING,
        columns=[
            _bars(str(name), train[name], made[name], measures) for name in names if name not in new
        ],
        new=new,
        heats=_heats(names, train, made),
        pairs=measures["pairs"][:_PAIRS],
        names=names,
        rows=some.astype(object).where(some.notna(), "").to_numpy().tolist(),
        wide=_WIDE,
        high=_HIGH,
        cell=_CELL,
    )
    return html + "\n"


def _bars(name: str, real: Any, made: Any, measures: dict[str, Any]) -> dict[str, Any]:
    """Shares of real and synthetic cells, side by side."""
    import pandas as pd

    from sliceflow.written import written_as

    if pd.api.types.is_string_dtype(real) and real.notna().any():
        way = written_as(real.dropna().to_numpy(dtype=object))
        if way is not None:
            real, made = (pd.Series(way.parse(x.dropna().to_numpy(dtype=object))).reindex(range(len(x)))
                          for x in (real, made))  # fmt: skip
    numbers = pd.api.types.is_numeric_dtype(real) and not pd.api.types.is_bool_dtype(real)
    times = pd.api.types.is_datetime64_any_dtype(real)
    if (numbers or times) and real.nunique() > _LEVELS:
        a, b = (_float(column.dropna()) for column in (real, made))
        low, high = np.quantile(a, [0.005, 0.995])
        edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
        shares = [
            np.histogram(np.clip(x, edges[0], edges[-1]), edges)[0] / max(1, len(x)) for x in (a, b)
        ]
        ends = [str(real.min()), str(real.max())]
        labels = [""] * _BINS
    else:
        common = real.value_counts().index[:_LEVELS]
        levels = [str(v) for v in (sorted(common) if numbers or times else common)] or [""]
        shares = [
            np.array([(column.astype(str) == v).mean() for v in levels]) for column in (real, made)
        ]
        labels, ends = levels, [levels[0], levels[-1]]
        if real.nunique() > _LEVELS:
            ends[1] += f" (the most frequent {_LEVELS} of {real.nunique()})"
    top = max(float(np.max(shares)), 1e-9)
    width = _WIDE / len(labels)
    bars = [
        [
            (k * width, _HIGH * float(share) / top, label)
            for k, (share, label) in enumerate(zip(of, labels, strict=True))
        ]
        for of in shares
    ]
    gone = [float(column.isna().mean()) for column in (real, made)]
    return {"name": name, "bars": bars, "width": width, "ends": ends, "missing": gone,
            "shape": measures["columns"].get(name)}  # fmt: skip


def _float(column: Any) -> np.ndarray:
    if str(column.dtype).startswith("datetime"):
        return np.asarray(column.astype("int64"), dtype=np.float64)
    return np.asarray(column, dtype=np.float64)


def _heats(names: list[str], train: Any, made: Any) -> list[dict[str, Any]]:
    """Associations of real rows, of samples, and their difference."""
    from sliceflow.metrics.tables import aligned, association

    some = names[:_MOST]
    known, categories, (real, synthetic) = aligned(train[some], made[some])
    tables = [np.abs(association(x[:5_000], categories)) for x in (real, synthetic)]
    tables.append(np.abs(tables[0] - tables[1]))
    titles = ("real rows", "samples", "difference")
    return [
        {"title": title, "names": known, "cells": table.round(3).tolist()}
        for title, table in zip(titles, tables, strict=True)
    ]
