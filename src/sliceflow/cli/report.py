"""report.html: one self-contained page, made from nothing but the files of a run folder."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sliceflow.cli.evaluate import number
from sliceflow.cli.progress import last_distance, seconds_text
from sliceflow.cli.run_folder import RunFolder
from sliceflow.metrics.floors import subsample

__all__ = ["write_report"]

_MOST_CLASSES, _STILLS, _POINTS, _ROWS = 20, 6, 400, 8
# Of a chart: its size, and the edges of what is drawn inside the axes.
_WIDE, _HIGH, _LEFT, _TOP, _BOTTOM = 720, 300, 72, 22, 266


def write_report(folder: RunFolder) -> Path:
    """Write the page of a finished run into its folder."""
    from jinja2 import Environment, FileSystemLoader

    folder.check_finished()
    config = folder.read_json("config.json")
    measured = (folder / "evaluation.json").exists()
    history = folder.history()
    names, distances = [row["stage"] for row in history], [row["distance"] for row in history]
    stages = _stages(names, distances)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "seconds": seconds_text}
    page = environment.get_template("report.html.j2").render(
        title=f"{config['data']['name']}: a sliced-Wasserstein flow",
        config=config,
        data=config["data"],
        **_samples(folder, config["data"]),
        evolution=_evolution(folder),
        stages=stages,
        distance=_distance_chart(stages, names, distances),
        measures=folder.read_json("evaluation.json") if measured else None,
        neighbours=_file(
            folder / "neighbours.png", "Each row: a sample, then its nearest training pictures"
        ),
        wide=_WIDE,
        high=_HIGH,
        left=_LEFT,
        top=_TOP,
        bottom=_BOTTOM,
    )
    folder.write_text("report.html", page + "\n")
    return folder / "report.html"


def _samples(folder: RunFolder, data: dict[str, Any]) -> dict[str, Any]:
    """The samples for the template: rows of a table, a picture of each class, or one of all."""
    arrays = folder.samples()
    labels = arrays.get("labels")
    if data["kind"] == "table":
        x, columns = arrays["x"], [str(c) for c in arrays["columns"]]
        shown = [] if labels is None else [str(label) for label in labels[:_ROWS]]
        two = len(columns) > 1 and "data" in arrays
        return {
            "table": {"columns": columns, "rows": x[:_ROWS].tolist(), "labels": shown},
            "scatter": _scatter_chart(columns, arrays["data"], x) if two else None,
        }
    from sliceflow.cli.grid import as_bytes, by_class, grid

    pictures, names = by_class(as_bytes(arrays["images"], data["n_pixel_values"]), labels)
    if not names:
        alt = f"A grid of {pictures.shape[0]} by {pictures.shape[1]} samples"
        return {"samples": _drawn(grid(pictures, ground=None), alt)}
    rows = list(zip(names, pictures, strict=True))[:_MOST_CLASSES]
    classes = [
        (name, _drawn(grid(row[None], ground=None), f"{len(row)} samples of class {name}"))
        for name, row in rows
    ]
    return {"classes": classes, "n_classes": len(names)}


def _evolution(folder: RunFolder) -> dict[str, Any] | None:
    path = folder / "evolution.gif"
    if not path.exists():
        return None
    from PIL import Image, ImageSequence

    with Image.open(path) as film:
        frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(film)]
    stills = []
    for i in np.unique(np.linspace(0, len(frames) - 1, _STILLS).round().astype(int)):
        caption = f"{i / max(len(frames) - 1, 1):.0%} of the way"
        quarter = frames[i].crop((0, 0, frames[i].width // 2, frames[i].height // 2))
        stills.append((caption, _drawn(quarter, f"Some samples at {caption}")))
    return {
        "film": _file(path, "Samples on their way to pictures, as an animation"),
        "last": _drawn(frames[-1], "The samples at the end"),
        "stills": stills,
    }


def _stages(names: Sequence[str], distances: Sequence[float]) -> list[dict[str, Any]]:
    """Every stage: its name, its steps from `begin` to `end`, its first and last distance."""
    starts = [i for i in range(len(names)) if i == 0 or names[i] != names[i - 1]]
    return [
        {"name": names[a], "begin": a, "end": b, "first": distances[a], "last": distances[b - 1]}
        for a, b in zip(starts, [*starts[1:], len(names)], strict=True)
    ]


def _distance_chart(
    stages: list[dict[str, Any]], names: Sequence[str], distances: Sequence[float]
) -> dict[str, Any] | None:
    """The sliced distance before every step on a logarithmic scale, with a band for every stage."""
    positive = [d for d in distances if d > 0 and math.isfinite(d)]
    if not positive:
        return None
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
    last_stage, last = last_distance(names, distances)
    return {
        "id": "distance",
        "title": "Sliced distance before every step, logarithmic",
        "words": f"It goes from {distances[0]:.3g} at the first step to {last:.3g} at the last step of "
        f"stage {last_stage}, over {len(stages)} stages. Bands are stages.",
        "bands": [(x(s["begin"]), x(s["end"]) - x(s["begin"]), s["name"]) for s in stages],
        "ticks": [(y(t), f"{10**t:.3g}") for t in ticks if low - 1e-9 <= t <= high + 1e-9],
        "points": [
            (x(i + 0.5), y(math.log10(d) if d > 0 else low))
            for i, d in enumerate(distances)
            if math.isfinite(d)
        ],
        "n_steps": len(distances),
    }


def _scatter_chart(columns: Sequence[str], real: np.ndarray, samples: np.ndarray) -> dict[str, Any]:
    """The first two columns: real rows as rings, samples as dots."""
    real, samples = subsample(real[:, :2], _POINTS), subsample(samples[:, :2], _POINTS)
    both = np.concatenate((real, samples))
    low, high = both.min(axis=0), both.max(axis=0)
    corner = np.array((_LEFT + 8, _BOTTOM - 8))
    size = np.array((_WIDE - _LEFT - 24, _TOP + 16 - _BOTTOM))

    def places(rows: np.ndarray) -> Any:
        share = np.where(high > low, (rows - low) / np.where(high > low, high - low, 1), 0.5)
        return (corner + size * share).tolist()

    return {
        "id": "scatter",
        "title": f"{columns[1]} over {columns[0]}",
        "words": f"{len(real)} real rows and {len(samples)} samples. They cover the same places if the "
        "fit is good.",
        "groups": [
            {"name": "real rows", "mark": "ring", "points": places(real)},
            {"name": "samples", "mark": "dot", "points": places(samples)},
        ],
        "names": columns[:2],
        "x_ends": (f"{low[0]:.3g}", f"{high[0]:.3g}"),
        "y_ends": (f"{low[1]:.3g}", f"{high[1]:.3g}"),
    }


def _drawn(picture: Any, alt: str) -> dict[str, str]:
    """A Pillow image for the template."""
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True)
    return {"alt": alt, "kind": "png", "data": base64.b64encode(stream.getvalue()).decode()}


def _file(path: Path, alt: str) -> dict[str, str] | None:
    """A file of a picture for the template; None if there is none."""
    if not path.exists():
        return None
    data = base64.b64encode(path.read_bytes()).decode()
    return {"alt": alt, "kind": path.suffix[1:], "data": data}
