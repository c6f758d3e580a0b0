"""report.html: one self-contained page about a run, from one template for all kinds of data."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sliceflow.cli.data import Data
from sliceflow.cli.evaluate import number
from sliceflow.cli.progress import seconds_text
from sliceflow.cli.run_folder import RunFolder
from sliceflow.cli.settings import PICTURES, TABLE

__all__ = ["page", "write_report"]

_MOST_CLASSES, _STILLS, _ROWS, _PAIRS = 20, 6, 8, 12
_BINS, _LEVELS, _MOST_COLUMNS = 24, 12, 30
_WIDE, _HIGH, _LEFT, _TOP, _BOTTOM = 720, 300, 72, 22, 266  # of a chart, and the edges of its axes
_BARS_WIDE, _BARS_HIGH = 240, 90


def write_report(
    folder: RunFolder, flow: Any, train: Data, samples: Any, labels: np.ndarray | None
) -> None:
    """Write the page of a fitted run into its folder."""
    config, measures = folder.read_json("config.json"), folder.read_json("evaluation.json")
    film = folder / "evolution.gif"
    html = page(config, measures, flow, train, samples, labels, film if film.exists() else None)
    folder.write_text("report.html", html)


def page(
    config: dict[str, Any],
    measures: dict[str, Any],
    flow: Any,
    train: Data,
    samples: Any,
    labels: np.ndarray | None = None,
    film: Path | None = None,
) -> str:
    """The page as HTML."""
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "seconds": seconds_text}
    shown = _pictures if train.kind == PICTURES else _columns
    html: str = environment.get_template("report.html.j2").render(
        title=f"{config['data']['name']}: {train.kind} from a sliced-Wasserstein flow",
        config=config,
        data=config["data"],
        measures=measures,
        distance=_distance_chart(getattr(flow, "history_", None) or {}),
        evolution=None if film is None else _evolution(film),
        sizes={"wide": _WIDE, "high": _HIGH, "left": _LEFT, "top": _TOP, "bottom": _BOTTOM},
        bars={"wide": _BARS_WIDE, "high": _BARS_HIGH},
        **shown(flow, train, samples, labels),
    )
    return html + "\n"


def _pictures(flow: Any, train: Data, samples: Any, labels: np.ndarray | None) -> dict[str, Any]:
    """A grid of samples for each class, or one of all; samples beside the nearest training pictures."""
    from PIL import Image

    from sliceflow import metrics
    from sliceflow.cli.pictures import as_bytes, by_class, grid

    def drawn(rows: np.ndarray, alt: str) -> dict[str, str]:
        return _picture(grid(as_bytes(rows, train.n_pixel_values), ground=None), alt)

    rows, names = by_class(samples, labels)
    if names:
        classes = [
            (name, drawn(row[None], f"{len(row)} samples of class {name}"))
            for name, row in list(zip(names, rows, strict=True))[:_MOST_CLASSES]
        ]
        out: dict[str, Any] = {"classes": classes, "n_classes": len(names)}
    else:
        out = {"samples": drawn(rows, f"A grid of {rows.shape[0]} by {rows.shape[1]} samples")}
    first, k = samples[:8], min(5, len(train.x))
    found, _ = metrics.nearest_pictures(first, train.x, k, mirror=getattr(flow, "mirror", False))
    left, right = (
        grid(as_bytes(x, train.n_pixel_values), ground=None) for x in (first[:, None], found)
    )
    both = Image.new(left.mode, (left.width * 3 // 2 + right.width, left.height))
    both.paste(left, (0, 0))
    both.paste(right, (left.width * 3 // 2, 0))
    out["neighbours"] = _picture(both, "Each row: a sample, then its nearest training pictures")
    return out


def _columns(flow: Any, train: Data, samples: Any, labels: np.ndarray | None) -> dict[str, Any]:
    """Rows of samples, a small plot for every column, and associations side by side."""
    import pandas as pd

    real, new = train.x, samples
    if train.kind != TABLE:
        real, new = (pd.DataFrame(x, columns=train.columns) for x in (real, samples))
    kinds = getattr(flow, "kinds_", {})
    names = [name for name in real.columns if name in new]
    plotted = [name for name in names if kinds.get(name) not in ("identifier", "drop")]
    some = new[names].head(_ROWS)
    tables = [_association([frame[name] for name in plotted[:_MOST_COLUMNS]]) for frame in (real, new)]
    heats = [*tables, np.abs(tables[0] - tables[1])]
    n = len(heats[0])
    worst = sorted(((heats[2][i, j], i, j) for i in range(n) for j in range(i)), reverse=True)[:_PAIRS]
    return {
        "names": names,
        "rows": some.astype(object).where(some.notna(), "").to_numpy().tolist(),
        "labels": None if labels is None else [str(label) for label in labels[:_ROWS]],
        "plots": [_bars(str(name), real[name], new[name]) for name in plotted],
        "identifiers": [name for name in names if kinds.get(name) == "identifier"],
        "heats": [
            {"title": title, "names": [str(c) for c in plotted[:n]], "cells": heat.round(3).tolist()}
            for title, heat in zip(("real rows", "samples", "difference"), heats, strict=True)
        ],
        "pairs": [
            (plotted[j], plotted[i], float(tables[0][i, j]), float(tables[1][i, j]))
            for _, i, j in worst
        ],
    }


def _bars(name: str, real: Any, new: Any) -> dict[str, Any]:
    """Shares of real and synthetic cells, side by side."""
    numbers = [_numbers(column) for column in (real, new)]
    ordered = numbers[0] is not None and numbers[1] is not None
    if ordered and real.nunique() > _LEVELS:
        low, high = np.nanquantile(numbers[0], [0.005, 0.995])
        edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
        present = [x[np.isfinite(x)] for x in numbers]
        shares = [
            np.histogram(np.clip(x, edges[0], edges[-1]), edges)[0] / max(1, len(x)) for x in present
        ]
        labels, ends = [""] * _BINS, [str(real.dropna().min()), str(real.dropna().max())]
    else:
        common = real.value_counts().index[:_LEVELS]
        labels = [str(v) for v in (sorted(common) if ordered else common)] or [""]
        shares = [np.array([(c.astype(str) == v).mean() for v in labels]) for c in (real, new)]
        ends = [labels[0], labels[-1]]
        if real.nunique() > _LEVELS:
            ends[1] += f" (the most frequent {_LEVELS} of {real.nunique()})"
    top, width = max(float(np.max(shares)), 1e-9), _BARS_WIDE / len(labels)
    return {
        "name": name,
        "bars": [
            [(k * width, _BARS_HIGH * float(share) / top, labels[k]) for k, share in enumerate(of)]
            for of in shares
        ],
        "width": width,
        "ends": ends,
        "missing": [float(column.isna().mean()) for column in (real, new)],
    }


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


def _association(columns: Sequence[Any]) -> np.ndarray:
    """Cramér's V of all pairs of columns, of which numbers are cut into eight parts."""
    import pandas as pd

    blocks = []
    for column in columns:
        numbers = _numbers(column)
        cells: Any = column.astype(str)
        if numbers is not None:
            cells = pd.qcut(pd.Series(numbers), 8, labels=False, duplicates="drop").fillna(-1)
        codes, levels = pd.factorize(cells)
        kept = np.argsort(-np.bincount(codes, minlength=1))[:_LEVELS]
        blocks.append((codes[:, None] == kept).astype(np.float32))
    out, n = np.eye(len(blocks)), max(1, len(blocks[0]) if blocks else 1)
    for i, a in enumerate(blocks):
        for j, b in enumerate(blocks[:i]):
            least = min(a.shape[1], b.shape[1]) - 1
            expected = np.outer(a.sum(0), b.sum(0)) / n
            chi2 = ((a.T @ b - expected) ** 2 / np.maximum(expected, 1e-9)).sum()
            out[i, j] = out[j, i] = min(1.0, math.sqrt(chi2 / n / least)) if least > 0 else 0.0
    return out


def _evolution(film: Path) -> dict[str, Any]:
    from PIL import Image, ImageSequence

    with Image.open(film) as stored:
        frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(stored)]
    stills = []
    for i in np.unique(np.linspace(0, len(frames) - 1, _STILLS).round().astype(int)):
        caption = f"{i / max(len(frames) - 1, 1):.0%} of the way"
        quarter = frames[i].crop((0, 0, frames[i].width // 2, frames[i].height // 2))
        stills.append((caption, _picture(quarter, f"Some samples at {caption}")))
    data = base64.b64encode(film.read_bytes()).decode()
    return {
        "film": {"alt": "Samples on their way to pictures, as an animation", "kind": "gif", "data": data},
        "last": _picture(frames[-1], "The samples at the end"),
        "stills": stills,
    }


def _distance_chart(history: dict[str, list[Any]]) -> dict[str, Any] | None:
    """The sliced distance before every step on a logarithmic scale, with a band for every stage."""
    names, distances = history.get("stage", []), history.get("distance", [])
    positive = [d for d in distances if d > 0 and math.isfinite(d)]
    if not positive:
        return None
    starts = [i for i in range(len(names)) if i == 0 or names[i] != names[i - 1]]
    stages = list(zip(starts, [*starts[1:], len(names)], strict=True))
    high = math.log10(max(positive))
    # A last step may be exact: what lies far below the rest is drawn at the lower edge.
    low = max(math.log10(min(positive)), high - 4)
    high = max(high, low + 0.1)

    def x(step: float) -> float:
        return _LEFT + (_WIDE - _LEFT - 8) * step / len(distances)

    def y(exponent: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (max(exponent, low) - low) / (high - low)

    digits = (1,) if high - low > 2 else (1, 2, 5)  # ticks of every decade
    decades = range(math.floor(low), math.ceil(high) + 1)
    ticks = [decade + math.log10(digit) for decade in decades for digit in digits]
    return {
        "words": f"From {distances[0]:.3g} to {distances[-1]:.3g} in {len(distances)} steps and "
        f"{len(stages)} stages, which are the bands.",
        "bands": [(x(a), x(b) - x(a), names[a]) for a, b in stages],
        "ticks": [(y(t), f"{10**t:.3g}") for t in ticks if low - 1e-9 <= t <= high + 1e-9],
        "points": [
            (x(i + 0.5), y(math.log10(d) if d > 0 else low))
            for i, d in enumerate(distances)
            if math.isfinite(d)
        ],
        "stages": [(names[a], b - a, distances[a], distances[b - 1]) for a, b in stages],
        "n_steps": len(distances),
    }


def _picture(picture: Any, alt: str) -> dict[str, str]:
    """A Pillow image for the template."""
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True)
    return {"alt": alt, "kind": "png", "data": base64.b64encode(stream.getvalue()).decode()}
