"""report.html: one self-contained page about a run, from one template for all kinds of data."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sliceflow.app.pictures import as_bytes
from sliceflow.cli.data import Data
from sliceflow.cli.progress import seconds_text
from sliceflow.cli.settings import PICTURES, TABLE

_MOST_CLASSES, _ROWS, _PAIRS = 20, 8, 12
_BINS, _LEVELS, _MOST_COLUMNS = 24, 12, 30
_WIDE, _HIGH = 720, 300  # of the scatter
_BARS_WIDE, _BARS_HIGH = 240, 90


def number(value: float | None) -> str:
    """Three digits, or a dash."""
    return "–" if value is None else f"{value:.3g}"


def page(
    config: dict[str, Any], measures: dict[str, Any], flow: Any, train: Data,
    drawn: tuple[Any, np.ndarray | None], film: Path | None = None,
) -> str:  # fmt: skip
    """The page as HTML; `drawn` are samples and their labels, `film` is an animation."""
    from jinja2 import Environment, FileSystemLoader

    files = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=files, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": number, "seconds": seconds_text}
    html: str = environment.get_template("report.html.j2").render(
        title=f"{config['data']['name']}: {train.kind} from a sliced-Wasserstein flow",
        config=config,
        data=config["data"],
        measures=measures,
        heats=_heats(measures, train.columns),
        pairs=(measures["details"].get("pairs") or [])[:_PAIRS],
        stages=_stages(getattr(flow, "history_", None) or {}),
        evolution=None if film is None else _evolution(film),
        scatter_size=(_WIDE, _HIGH),
        bars_size=(_BARS_WIDE, _BARS_HIGH),
        **(_pictures if train.kind == PICTURES else _columns)(flow, train, *drawn),
    )
    return html + "\n"


def _pictures(flow: Any, train: Data, samples: Any, labels: np.ndarray | None) -> dict[str, Any]:
    """A grid of samples for each class, or one of all; samples beside the nearest training pictures."""
    from PIL import Image

    from sliceflow import metrics
    from sliceflow.cli.pictures import by_class, grid

    def laid_out(rows: np.ndarray) -> Any:
        return grid(as_bytes(rows, train.n_pixel_values), ground=None)

    rows, names = by_class(samples, labels)
    out: dict[str, Any] = {"n_classes": len(names), "classes": []}
    for name, row in list(zip(names, rows, strict=False))[:_MOST_CLASSES]:
        picture = _picture(laid_out(row[None]), f"{len(row)} samples of class {name}")
        out["classes"].append((name, picture))
    if not names:
        out["samples"] = _picture(laid_out(rows), f"A grid of {len(rows)} by {rows.shape[1]} samples")
    first, k = samples[:8], min(5, len(train.x))
    found, _ = metrics.nearest_pictures(first, train.x, k, mirror=getattr(flow, "mirror", False))
    left, right = laid_out(first[:, None]), laid_out(found)
    both = Image.new(left.mode, (left.width * 3 // 2 + right.width, left.height))
    both.paste(left, (0, 0))
    both.paste(right, (left.width * 3 // 2, 0))
    out["neighbours"] = _picture(both, "Each row: a sample, then its nearest training pictures")
    return out


def _columns(flow: Any, train: Data, samples: Any, labels: np.ndarray | None) -> dict[str, Any]:
    """Rows of samples, and a small plot for every column; of vectors also the first two as points."""
    import pandas as pd

    real, new = train.all_rows, samples
    if train.kind != TABLE:
        real, new = (pd.DataFrame(x, columns=train.columns) for x in (real, samples))
    kinds = getattr(flow, "kinds_", {})
    names = [name for name in real.columns if name in new]
    plotted = [name for name in names if kinds.get(name) not in ("identifier", "drop")]
    first = new[names].head(_ROWS)
    rows = first.astype(object).where(first.notna(), "").to_numpy().tolist()
    out = {"names": names, "rows": rows, "plots": [_bars(str(c), real[c], new[c]) for c in plotted]}
    out["labels"] = None if labels is None else [str(label) for label in labels[:_ROWS]]
    out["identifiers"] = [name for name in names if kinds.get(name) == "identifier"]
    return out | {"scatter": _scatter(real, new) if train.kind != TABLE and len(names) > 1 else None}


def _scatter(real: Any, new: Any) -> dict[str, Any]:
    """The first two columns of some rows, in the units of a chart."""
    rows = [f.iloc[np.linspace(0, len(f) - 1, min(len(f), 400)).astype(int), :2] for f in (real, new)]
    low, high = (getattr(np.concatenate(rows), of)(axis=0) for of in ("min", "max"))
    corner, size = np.array((8, _HIGH - 8)), np.array((_WIDE - 16, 16 - _HIGH))
    spread = np.where(high > low, high - low, 1)
    points = [(corner + size * (r.to_numpy() - low) / spread).tolist() for r in rows]
    return {"points": points, "names": [str(name) for name in real.columns[:2]]}


def _heats(measures: dict[str, Any], columns: Sequence[str] | None) -> list[dict[str, Any]]:
    """Associations of held-out rows, of samples, and their difference, from the measured pairs."""
    pairs = measures["details"].get("pairs") or []
    found = {name for pair in pairs for name in pair[:2]}
    names = [name for name in columns or () if name in found][:_MOST_COLUMNS]
    tables = np.zeros((3, len(names), len(names)))
    for a, b, real, new in pairs:
        if a in names and b in names:
            i, j = names.index(a), names.index(b)
            tables[:, i, j] = tables[:, j, i] = abs(real), abs(new), abs(real - new)
    titles = ("held-out rows", "samples", "difference") if names else ()
    both = zip(titles, tables.clip(0, 1).round(3).tolist(), strict=False)
    return [{"title": title, "names": names, "cells": cells} for title, cells in both]


def _bars(name: str, real: Any, new: Any) -> dict[str, Any]:
    """Shares of real and synthetic cells, side by side."""
    a, b = _numbers(real), _numbers(new)
    ordered = a is not None and b is not None
    if a is not None and b is not None and real.nunique() > _LEVELS:
        low, high = np.nanquantile(a, [0.005, 0.995])
        edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
        present = [x[np.isfinite(x)].clip(edges[0], edges[-1]) for x in (a, b)]
        shares = [np.histogram(x, edges)[0] / max(1, len(x)) for x in present]
        labels, ends = [""] * _BINS, [str(real.dropna().min()), str(real.dropna().max())]
    else:
        common = real.value_counts().index[:_LEVELS]
        labels = [str(v) for v in (sorted(common) if ordered else common)] or [""]
        shares = [np.array([(c.astype(str) == v).mean() for v in labels]) for c in (real, new)]
        ends = [labels[0], labels[-1]]
        if real.nunique() > _LEVELS:
            ends[1] += f" (the most frequent {_LEVELS} of {real.nunique()})"
    scale, width = _BARS_HIGH / max(float(np.max(shares)), 1e-9), _BARS_WIDE / len(labels)
    x, missing = width * np.arange(len(labels)), [float(column.isna().mean()) for column in (real, new)]
    bars = [list(zip(x.tolist(), (scale * y).tolist(), labels, strict=True)) for y in shares]
    return {"name": name, "bars": bars, "width": width, "ends": ends, "missing": missing}


def _numbers(column: Any) -> np.ndarray | None:
    """The cells of a column as numbers, NaN where there is none; None if they are words."""
    import pandas as pd

    if pd.api.types.is_bool_dtype(column):
        return None
    if pd.api.types.is_numeric_dtype(column):
        return np.asarray(column.to_numpy(np.float64, na_value=np.nan))
    if pd.api.types.is_datetime64_any_dtype(column):
        return np.where(column.isna(), np.nan, column.astype("int64").to_numpy(np.float64))
    from sliceflow.written import written_as

    there = column.notna().to_numpy()
    way = written_as(column[there].to_numpy(dtype=object)) if there.any() else None
    if way is None:
        return None
    out = np.full(len(column), np.nan)
    out[there] = way.parse(column[there].to_numpy(dtype=object))
    return out


def _evolution(film: Path) -> dict[str, Any]:
    from PIL import Image, ImageSequence

    with Image.open(film) as stored:
        *_, last = (frame.convert("RGB") for frame in ImageSequence.Iterator(stored))
    alt, data = "Samples on their way to pictures", base64.b64encode(film.read_bytes()).decode()
    return {"film": {"alt": alt, "kind": "gif", "data": data}, "last": _picture(last, "")}


def _stages(history: dict[str, list[Any]]) -> list[tuple[str, int, float, float]]:
    """Every stage: its name, its steps, its first and last sliced distance. Tables have none."""
    names, distances = history.get("stage", []), history.get("distance", [])
    starts = [i for i in range(len(names)) if names[i] not in ("columns", *names[i - 1 : i])]
    both = zip(starts, [*starts[1:], len(names)], strict=False)  # without stages there is an end
    return [(names[a], b - a, distances[a], distances[b - 1]) for a, b in both]


def _picture(picture: Any, alt: str) -> dict[str, str]:
    """A Pillow image for the template."""
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True)
    return {"alt": alt, "kind": "png", "data": base64.b64encode(stream.getvalue()).decode()}
