"""report.html: one self-contained page about a run, from one template."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sliceflow.app.pictures import as_bytes
from sliceflow.cli.data import BaseInput, PictureInput
from sliceflow.cli.grids import arrange_by_class, make_grid
from sliceflow.wording import format_duration

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

    from sliceflow.app.server import JsonObject
    from sliceflow.metrics.table_comparison import ColumnPair

# What fits on a page that people look at.
MAX_HEAT_MAP_COLUMNS = 30
_MAX_CLASSES = 20
_N_TABLE_ROWS = 8
_N_WORST_PAIRS = 12
_N_RULES = 20
_N_NEIGHBOR_ROWS = 8
_N_NEIGHBORS = 5
_GRAY = 128  # between pictures: for light pages and for dark ones

# The small plots of columns: bars of numbers, bars of categories, pixels.
_N_BINS = 24
_MAX_LEVELS = 12
_PLOT_WIDTH = 240
_PLOT_HEIGHT = 90
# A histogram spans these quantiles, so that single far values do not squeeze it.
_PLOTTED_QUANTILES = (0.005, 0.995)


def render(
    config: JsonObject,
    measures: JsonObject,
    train: BaseInput,
    content: JsonObject,
    animation: Path | None = None,
) -> str:
    """The page as HTML.

    Parameters
    ----------
    config, measures : the contents of config.json and evaluation.json
    train : the data that were fitted
    content : what `describe_pictures` or `describe_columns` says of samples
    animation : the file of an animation; None, or no such file, shows none
    """
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = _format_number
    environment.filters["sentence"] = _as_sentence
    environment.filters["share"] = _format_share
    environment.filters["seconds"] = format_duration
    evolution = None
    if animation is not None and animation.exists():
        evolution = _embed_animation(animation)
    pairs = measures["details"].get("pairs") or []
    html: str = environment.get_template("report.html.j2").render(
        name=train.name,
        config=config,
        data=config["data"],
        measures=measures,
        heats=_heat_maps(pairs, train.columns),
        pairs=pairs[:_N_WORST_PAIRS],
        rules=measures["details"].get("rules") or [],
        n_rules=_N_RULES,
        evolution=evolution,
        bars_size=(_PLOT_WIDTH, _PLOT_HEIGHT),
        **content,
    )
    return html + "\n"


def _as_sentence(text: str) -> str:
    """A text with a capital first letter; all others stay as they are."""
    return text[:1].upper() + text[1:]


def _format_share(value: float) -> str:
    """A percentage; nearly all is not shown as all."""
    text = f"{100 * value:.1f} %"
    if text == "100.0 %":
        return "100 %" if value == 1 else "> 99.9 %"
    return text


def _format_number(value: float | None) -> str:
    """Three digits, or a dash for a number that is not known."""
    return "–" if value is None else f"{value:.3g}"


def describe_pictures(
    train: PictureInput,
    x: NDArray[Any],
    labels: NDArray[Any] | None,
    *,
    mirror: bool,
) -> JsonObject:
    """A grid of samples for each class, or one of all, and a grid of neighbors.

    The samples `x` have these labels. With `mirror`, mirror images of training pictures
    may be neighbors.
    """
    from sliceflow import metrics

    rows, names = arrange_by_class(x, labels)
    content: JsonObject = {
        "noun": "pictures",
        "n_classes": len(names),
        "classes": [],
    }
    for name, row in zip(names[:_MAX_CLASSES], rows, strict=False):
        alt = f"{len(row)} samples of class {name}"
        content["classes"].append((name, _embed(_grid(row[None], train), alt)))
    if not names:
        alt = f"A grid of {len(rows)} by {rows.shape[1]} samples"
        content["samples"] = _embed(_grid(rows, train), alt)
    first = x[:_N_NEIGHBOR_ROWS]
    k = min(_N_NEIGHBORS, len(train.x))
    neighbors, _ = metrics.nearest_pictures(first, train.x, k, mirror=mirror)
    beside = np.concatenate((first[:, None], neighbors), axis=1)
    alt = "Each row: a sample, then its nearest training pictures"
    content["neighbors"] = _embed(_grid(beside, train), alt)
    return content


def _grid(pictures: NDArray[Any], data: PictureInput) -> Image:
    """Pictures (rows, columns, h, w[, c]) as one picture."""
    return make_grid(as_bytes(pictures, data.n_pixel_values), ground=_GRAY)


def describe_columns(
    real: pd.DataFrame, new: pd.DataFrame, kinds: Mapping[Hashable, str]
) -> JsonObject:
    """The first rows of samples, and a small plot for every column.

    Parameters
    ----------
    real, new : the rows that were fitted, and the samples
    kinds : what each column was understood as
    """
    names = [name for name in real.columns if name in new]
    plots = []
    identifiers = []
    for name in names:
        kind = kinds.get(str(name))
        if kind == "identifier":
            identifiers.append(name)
        elif kind != "drop":
            plots.append(_plot_column(str(name), real[name], new[name]))
    text = new[names].head(_N_TABLE_ROWS).to_csv(index=False)
    rows = list(csv.reader(io.StringIO(text)))[1:]  # without the names
    return {
        "noun": "rows",
        "names": names,
        "rows": rows,
        "plots": plots,
        "identifiers": identifiers,
    }


def _heat_maps(pairs: list[ColumnPair], columns: list[str]) -> list[JsonObject]:
    """Associations of pairs of columns: in held-out rows, in samples, their difference.

    The association of a column with itself is not shown.
    """
    compared = {pair.first for pair in pairs} | {pair.second for pair in pairs}
    names = [name for name in columns if name in compared][:MAX_HEAT_MAP_COLUMNS]
    if not names:
        return []
    shape = (len(names), len(names))
    in_held_out = np.zeros(shape)
    in_samples = np.zeros(shape)
    difference = np.zeros(shape)
    index = {name: i for i, name in enumerate(names)}
    for pair in pairs:
        if pair.first in index and pair.second in index:
            i = index[pair.first]
            j = index[pair.second]
            real = pair.real_association
            sampled = pair.sample_association
            in_held_out[i, j] = in_held_out[j, i] = abs(real)
            in_samples[i, j] = in_samples[j, i] = abs(sampled)
            difference[i, j] = difference[j, i] = abs(real - sampled)
    return [
        _heat_map("held-out rows", names, in_held_out),
        _heat_map("samples", names, in_samples),
        _heat_map("difference", names, difference),
    ]


def _heat_map(title: str, names: list[str], values: NDArray[Any]) -> JsonObject:
    """A heat map for the template; its cells are numbers from 0 to 1."""
    cells = values.clip(0, 1).round(3).tolist()
    return {"title": title, "names": names, "cells": cells}


class _ComparedShares(NamedTuple):
    """Shares of real and of new cells, a label for each, and labels of both ends."""

    real: NDArray[Any]
    new: NDArray[Any]
    labels: list[str]
    ends: tuple[str, str]


def _plot_column(name: str, real: pd.Series, new: pd.Series) -> JsonObject:
    """Bars for the template: shares of real and of new cells, side by side."""
    from sliceflow.metrics.table_encoding import as_numbers

    encoded = as_numbers(real)
    if not encoded.is_category and real.nunique() > _MAX_LEVELS:
        shares = _compare_numbers(real, encoded.numbers, as_numbers(new).numbers)
    else:
        shares = _compare_levels(real, new, encoded.is_category)
    highest = max(shares.real.max(), shares.new.max(), 1e-9)  # never 0
    scale = _PLOT_HEIGHT / float(highest)
    return {
        "name": name,
        "bars": [
            _bars(scale * shares.real, shares.labels),
            _bars(scale * shares.new, shares.labels),
        ],
        "width": _PLOT_WIDTH / len(shares.labels),
        "ends": shares.ends,
        "missing": [float(real.isna().mean()), float(new.isna().mean())],
    }


def _compare_numbers(
    real: pd.Series, real_numbers: NDArray[Any], new_numbers: NDArray[Any]
) -> _ComparedShares:
    """Histograms of a column of numbers."""
    edges = _bin_edges(real_numbers)
    # Texts such as "$9.50" are compared as the numbers that they stand for.
    smallest = real.iloc[int(np.nanargmin(real_numbers))]
    largest = real.iloc[int(np.nanargmax(real_numbers))]
    return _ComparedShares(
        real=_histogram(real_numbers, edges),
        new=_histogram(new_numbers, edges),
        labels=[""] * _N_BINS,
        ends=(_shorten_text(smallest), _shorten_text(largest)),
    )


def _compare_levels(
    real: pd.Series, new: pd.Series, is_category: bool
) -> _ComparedShares:
    """The shares of the most frequent values of a column."""
    labels = _frequent_levels(real, is_category)
    last = labels[-1]
    if real.nunique() > _MAX_LEVELS:
        last += f" (the most frequent {_MAX_LEVELS} of {real.nunique()})"
    return _ComparedShares(
        real=_shares_of_levels(real, labels),
        new=_shares_of_levels(new, labels),
        labels=labels,
        ends=(labels[0], last),
    )


def _bin_edges(numbers: NDArray[Any]) -> NDArray[Any]:
    """The edges of the bins of a histogram, which has a width even of equal numbers."""
    low, high = np.nanquantile(numbers, _PLOTTED_QUANTILES)
    if high <= low:
        high = low + 1
    return np.linspace(low, high, _N_BINS + 1)


def _histogram(numbers: NDArray[Any], edges: NDArray[Any]) -> NDArray[Any]:
    """The share of numbers in each bin; those outside count in the outer bins."""
    finite = numbers[np.isfinite(numbers)].clip(edges[0], edges[-1])
    counts, _ = np.histogram(finite, edges)
    return np.asarray(counts / max(1, len(finite)))


def _frequent_levels(column: pd.Series, is_category: bool) -> list[str]:
    """The most frequent values of a column as texts; numbers in order."""
    levels = list(column.value_counts().index[:_MAX_LEVELS])
    if not is_category:
        levels = sorted(levels)
    return [str(level) for level in levels] or [""]


def _shares_of_levels(column: pd.Series, labels: list[str]) -> NDArray[Any]:
    """The share of the cells of a column that each label has."""
    texts = column.astype(str)
    return np.array([(texts == label).mean() for label in labels])


def _bars(heights: NDArray[Any], labels: list[str]) -> list[tuple[float, float, str]]:
    """The left edge, height and label of each bar."""
    left_edges = _PLOT_WIDTH / len(labels) * np.arange(len(labels))
    return list(zip(left_edges.tolist(), heights.tolist(), labels, strict=True))


def _shorten_text(value: object) -> str:
    """A number or a date without an empty time or decimal part."""
    return str(value).removesuffix(" 00:00:00").removesuffix(".0")


def _embed_animation(animation: Path) -> JsonObject:
    """An animation for the template, and its last frame for reduced motion."""
    from PIL import Image, ImageSequence

    with Image.open(animation) as film:
        frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(film)]
    data = base64.b64encode(animation.read_bytes()).decode()
    alt = "Samples on their way to pictures"
    return {
        "film": {"alt": alt, "kind": "gif", "data": data},
        "last": _embed(frames[-1], ""),
    }


def _embed(image: Image, alt: str) -> dict[str, str]:
    """A picture for the template, as text."""
    stream = io.BytesIO()
    image.save(stream, "PNG", optimize=True)
    data = base64.b64encode(stream.getvalue()).decode()
    return {"alt": alt, "kind": "png", "data": data}
