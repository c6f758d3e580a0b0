"""report.html: one self-contained page about a run, from one template for all kinds of data."""

from __future__ import annotations

import base64
import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from sliceflow.app.pictures import as_bytes
from sliceflow.cli.data import Data
from sliceflow.cli.draw import by_class, grid
from sliceflow.cli.progress import seconds_text
from sliceflow.cli.settings import PICTURES

_MOST_CLASSES = 20
_ROWS = 8
_PAIRS = 12
_GREY = 128  # between pictures: on light pages and on dark ones
_BINS = 24
_LEVELS = 12
_MOST_COLUMNS = 30
_BARS_WIDE = 240
_BARS_HIGH = 90


def page(
    config: dict[str, Any],
    measures: dict[str, Any],
    flow: Any,
    train: Data,
    drawn: tuple[Any, np.ndarray | None],
    film: Path | None = None,
) -> str:
    """The page as HTML; `drawn` are samples and their labels, `film` is an animation."""
    from jinja2 import Environment, FileSystemLoader

    files = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=files, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = lambda value: (
        "–" if value is None else f"{value:.3g}"
    )
    environment.filters["seconds"] = seconds_text
    html: str = environment.get_template("report.html.j2").render(
        title=f"{train.name}: new {'pictures' if train.kind == PICTURES else 'rows'}",
        config=config,
        data=config["data"],
        measures=measures,
        heats=_heats(measures, train.columns),
        pairs=(measures["details"].get("pairs") or [])[:_PAIRS],
        evolution=None if film is None else _evolution(film),
        bars_size=(_BARS_WIDE, _BARS_HIGH),
        **(_pictures if train.kind == PICTURES else _columns)(flow, train, *drawn),
    )
    return html + "\n"


def _pictures(
    flow: Any, train: Data, samples: Any, labels: np.ndarray | None
) -> dict[str, Any]:
    """A grid of samples for each class, or one of all; samples beside the nearest training pictures."""
    from sliceflow import metrics

    def laid_out(rows: np.ndarray) -> Any:
        return grid(as_bytes(rows, train.n_pixel_values), ground=_GREY)

    rows, names = by_class(samples, labels)
    out: dict[str, Any] = {"n_classes": len(names), "classes": []}
    for name, row in list(zip(names, rows, strict=False))[:_MOST_CLASSES]:
        picture = _picture(laid_out(row[None]), f"{len(row)} samples of class {name}")
        out["classes"].append((name, picture))
    if not names:
        out["samples"] = _picture(
            laid_out(rows), f"A grid of {len(rows)} by {rows.shape[1]} samples"
        )
    first = samples[:8]
    k = min(5, len(train.x))
    found, _ = metrics.nearest_pictures(
        first, train.x, k, mirror=getattr(flow, "mirror", False)
    )
    both = laid_out(np.concatenate((first[:, None], found), axis=1))
    out["neighbours"] = _picture(
        both, "Each row: a sample, then its nearest training pictures"
    )
    return out


def _columns(flow: Any, train: Data, new: Any, _: object) -> dict[str, Any]:
    """Rows of samples, and a small plot for every column."""
    real = train.all_rows
    kinds = flow.kinds_
    names = [name for name in real.columns if name in new]
    plotted = [
        name for name in names if kinds.get(str(name)) not in ("identifier", "drop")
    ]
    rows = list(csv.reader(io.StringIO(new[names].head(_ROWS).to_csv(index=False))))[1:]
    out = {
        "names": names,
        "rows": rows,
        "plots": [_bars(str(c), real[c], new[c]) for c in plotted],
    }
    return out | {
        "identifiers": [name for name in names if kinds.get(str(name)) == "identifier"]
    }


def _heats(measures: dict[str, Any], columns: list[str]) -> list[dict[str, Any]]:
    """Associations of held-out rows, of samples, and their difference, from the measured pairs."""
    pairs = measures["details"].get("pairs") or []
    found = {name for pair in pairs for name in pair[:2]}
    names = [name for name in columns if name in found][:_MOST_COLUMNS]
    tables = np.zeros((3, len(names), len(names)))
    for a, b, real, new in pairs:
        if a in names and b in names:
            i = names.index(a)
            j = names.index(b)
            tables[:, i, j] = tables[:, j, i] = abs(real), abs(new), abs(real - new)
    titles = ("held-out rows", "samples", "difference") if names else ()
    both = zip(titles, tables.clip(0, 1).round(3).tolist(), strict=False)
    return [{"title": title, "names": names, "cells": cells} for title, cells in both]


def _bars(name: str, real: Any, new: Any) -> dict[str, Any]:
    """Shares of real and synthetic cells, side by side."""
    from sliceflow.metrics.tables import as_numbers

    a, words = as_numbers(real)
    b, _ = as_numbers(new)
    if not words and real.nunique() > _LEVELS:
        low, high = np.nanquantile(a, [0.005, 0.995])
        edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
        present = [x[np.isfinite(x)].clip(edges[0], edges[-1]) for x in (a, b)]
        shares = [np.histogram(x, edges)[0] / max(1, len(x)) for x in present]
        labels = [""] * _BINS
        ends = [_plain(real.dropna().min()), _plain(real.dropna().max())]
    else:
        common = real.value_counts().index[:_LEVELS]
        labels = [str(v) for v in (common if words else sorted(common))] or [""]
        shares = [
            np.array([(c.astype(str) == v).mean() for v in labels]) for c in (real, new)
        ]
        ends = [labels[0], labels[-1]]
        if real.nunique() > _LEVELS:
            ends[1] += f" (the most frequent {_LEVELS} of {real.nunique()})"
    scale = _BARS_HIGH / max(float(np.max(shares)), 1e-9)
    width = _BARS_WIDE / len(labels)
    x = width * np.arange(len(labels))
    missing = [float(column.isna().mean()) for column in (real, new)]
    bars = [
        list(zip(x.tolist(), (scale * y).tolist(), labels, strict=True)) for y in shares
    ]
    return {
        "name": name,
        "bars": bars,
        "width": width,
        "ends": ends,
        "missing": missing,
    }


def _plain(value: object) -> str:
    """A number or a date without what says nothing."""
    return str(value).removesuffix(" 00:00:00").removesuffix(".0")


def _evolution(film: Path) -> dict[str, Any]:
    from PIL import Image, ImageSequence

    with Image.open(film) as stored:
        *_, last = (frame.convert("RGB") for frame in ImageSequence.Iterator(stored))
    alt = "Samples on their way to pictures"
    data = base64.b64encode(film.read_bytes()).decode()
    return {
        "film": {"alt": alt, "kind": "gif", "data": data},
        "last": _picture(last, ""),
    }


def _picture(picture: Any, alt: str) -> dict[str, str]:
    """A Pillow image for the template."""
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True)
    return {
        "alt": alt,
        "kind": "png",
        "data": base64.b64encode(stream.getvalue()).decode(),
    }
