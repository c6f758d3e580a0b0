"""report.html: one page that needs nothing else, made of nothing but a run folder's files."""

from __future__ import annotations

import base64
import io
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from sliceflow.cli.chart import distance_chart, scatter_chart
from sliceflow.cli.display import seconds_text
from sliceflow.cli.evaluate import Measures, number
from sliceflow.cli.run_folder import RunFolder
from sliceflow.metrics.floors import subsample

__all__ = ["write_report"]

_MOST_CLASSES, _STILLS, _POINTS = 20, 6, 400
# Browsers hold the page to its promise: no scripts, and nothing from elsewhere.
_ALONE = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_STYLE = """
:root{color-scheme:light dark;--ink:#1b1e23;--soft:#5c6470;--page:#fff;--box:#f3f5f8;--rule:#d9dee6;
--line:#0060a8;--dot:#b34700}
@media(prefers-color-scheme:dark){:root{--ink:#e7eaf0;--soft:#a3acba;--page:#14171c;--box:#1e232b;
--rule:#363d49;--line:#63b3f2;--dot:#ffab66}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
main{max-width:50rem;margin:auto;padding:1.25rem 1rem 4rem}
h1{font-size:1.7rem;margin:.2rem 0}h2{font-size:1.2rem;margin:2.2rem 0 .6rem}
.note{color:var(--soft);font-size:.9rem;margin:.4rem 0}
img{display:block;max-width:100%;height:auto;image-rendering:pixelated}
svg{display:block;width:100%;height:auto;font-size:13px}
svg text{fill:var(--ink)}svg .small{font-size:11px;fill:var(--soft)}
.band{fill:var(--box)}.rule{stroke:var(--rule)}.line{fill:none;stroke:var(--line);stroke-width:2}
.ring{fill:none;stroke:var(--line);stroke-width:1.3}.dot{fill:var(--dot);fill-opacity:.75}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .7rem .3rem 0;text-align:left;vertical-align:top;
border-bottom:1px solid var(--rule)}
td.n,th.n{text-align:right}tr.of td{border:0;padding-bottom:0}
tr.say td{color:var(--soft);font-size:.9rem;padding-top:0}
figure{margin:0}.classes{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:.3rem .8rem;
align-items:center}
.stills{display:grid;grid-template-columns:repeat(auto-fill,minmax(7rem,1fr));gap:.6rem;
margin-top:.8rem}.stills img{width:100%}
figcaption{color:var(--soft);font-size:.85rem}
pre{background:var(--box);padding:.8rem;white-space:pre-wrap;overflow-wrap:anywhere;
border-radius:.4rem}
@media(max-width:36rem){svg{font-size:20px}svg .small{display:none}}
"""


def write_report(folder: RunFolder) -> Path:
    """Write the page of a finished run into its folder."""
    folder.check_finished()
    config = folder.read_json("config.json")
    measures = folder.read_json("evaluation.json") if (folder / "evaluation.json").exists() else None
    data = config["data"]
    title = f"{data['name']}: a sliced-Wasserstein flow"
    sections = [
        _head(title, config),
        _samples(folder, config),
        _evolution(folder),
        _distance(folder),
        _measures(measures),
        _neighbours(folder),
        _settings(config),
    ]
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<link rel="icon" href="data:,">'  # or a browser asks for favicon.ico
        f'<meta http-equiv="Content-Security-Policy" content="{_ALONE}">'
        f"<style>{_STYLE}</style></head>\n<body><main>\n{''.join(sections)}</main></body></html>\n"
    )
    folder.write_text("report.html", page)
    return folder / "report.html"


def _head(title: str, config: dict[str, Any]) -> str:
    said = [f"Fitted on {config['data']['what']}"]
    if "seconds" in config:
        said.append(
            f"{config['particles']:,} particles, {config['steps']:,} steps, "
            f"{seconds_text(config['seconds'])} on {config['device']}"
        )
    if config["data"]["held_out"]:
        said.append(f"{config['data']['held_out']:,} more kept for measuring")
    notes = "".join(f'<p class="note">{escape(note)}.</p>' for note in config["data"]["notes"])
    return f"<h1>{escape(title)}</h1><p>{escape('; '.join(said))}.</p>{notes}\n"


def _samples(folder: RunFolder, config: dict[str, Any]) -> str:
    arrays = folder.samples()
    if config["data"]["kind"] == "table":
        return _rows(arrays)
    from sliceflow.cli.grid import as_bytes, by_class, grid, png

    images, labels = as_bytes(arrays["images"], config["data"]["n_pixel_values"]), arrays.get("labels")
    shown, names = by_class(images, labels)
    note = "Batched samples: the particles at the end of the fit. The first ones, not the best."
    if not names:
        picture = _image(
            png(grid(shown, ground=None)), f"A grid of {shown.shape[0]} by {shown.shape[1]} samples"
        )
        return f'<h2>Samples</h2><figure>{picture}</figure><p class="note">{note}</p>\n'
    cells = [
        f"<div>{escape(name)}</div>"
        f"{_image(png(grid(row[None], ground=None)), f'{len(row)} samples of class {name}')}"
        for name, row in list(zip(names, shown, strict=True))[:_MOST_CLASSES]
    ]
    if len(names) > _MOST_CLASSES:
        note += f" {_MOST_CLASSES} of {len(names)} classes are shown."
    rows = f'<div class="classes">{"".join(cells)}</div>'
    return f'<h2>Samples by class</h2>{rows}<p class="note">{note}</p>\n'


def _rows(arrays: dict[str, np.ndarray]) -> str:
    x, columns, labels = arrays["x"], [str(c) for c in arrays["columns"]], arrays.get("labels")
    head = "".join(f'<th class="n">{escape(c)}</th>' for c in columns)
    body = [
        "".join(f'<td class="n">{v:.4g}</td>' for v in row)
        + ("" if labels is None else f"<td>{escape(str(labels[i]))}</td>")
        for i, row in enumerate(x[:8])
    ]
    head += "" if labels is None else "<th>label</th>"
    table = f"<tr>{head}</tr>" + "".join(f"<tr>{cells}</tr>" for cells in body)
    chart = ""
    if len(columns) > 1 and "data" in arrays:
        groups = [
            (name, [(float(a), float(b)) for a, b in subsample(rows[:, :2], _POINTS)])
            for name, rows in (("real rows", arrays["data"]), ("samples", x))
        ]
        chart = scatter_chart((columns[0], columns[1]), groups)
    return f'<h2>Samples</h2>{chart}<div class="wide"><table>{table}</table></div>\n'


def _evolution(folder: RunFolder) -> str:
    path = folder / "evolution.gif"
    if not path.exists():
        return ""
    from PIL import Image, ImageSequence

    raw = path.read_bytes()
    with Image.open(io.BytesIO(raw)) as film:
        frames = [frame.convert("RGB").copy() for frame in ImageSequence.Iterator(film)]
    chosen = np.unique(np.linspace(0, len(frames) - 1, _STILLS).round().astype(int))
    from sliceflow.cli.grid import png

    stills = []
    for i in chosen:
        way = f"{i / max(len(frames) - 1, 1):.0%} of the way"
        part = frames[i].crop((0, 0, frames[i].width // 2, frames[i].height // 2))  # 16 of the 64
        picture = _image(png(part), f"Some of the particles at {way}")
        stills.append(f"<figure>{picture}<figcaption>{way}</figcaption></figure>")
    # Whoever wants no motion sees its end.
    still = base64.b64encode(png(frames[-1])).decode()
    film_ = _image(raw, "The same particles from noise to pictures, as an animation", "gif")
    return (
        '<h2>From noise to pictures</h2><picture><source media="(prefers-reduced-motion: reduce)" '
        f'srcset="data:image/png;base64,{still}">{film_}</picture>'
        f'<div class="stills">{"".join(stills)}</div>\n'
    )


def _distance(folder: RunFolder) -> str:
    history = folder.history()
    stages, distances = [row["stage"] for row in history], [row["distance"] for row in history]
    rows, first = [], 0
    for i in range(1, len(history) + 1):
        if i < len(history) and stages[i] == stages[first]:
            continue
        rows.append(
            f'<tr><td>{escape(stages[first])}</td><td class="n">{i - first}</td>'
            f'<td class="n">{distances[first]:.3g}</td><td class="n">{distances[i - 1]:.3g}</td></tr>'
        )
        first = i
    table = (
        '<tr><th>stage</th><th class="n">steps</th><th class="n">first</th><th class="n">last</th></tr>'
    )
    return (
        f"<h2>Distance per stage</h2>{distance_chart(stages, distances)}<details><summary>As a table"
        f'</summary><div class="wide"><table>{table}{"".join(rows)}</table></div></details>\n'
    )


def _measures(value: dict[str, Any] | None) -> str:
    if value is None:
        return "<h2>Measures</h2><p>Not measured yet: <code>sliceflow evaluate</code>.</p>\n"
    measures = Measures.of(value)
    if not measures.measures:
        return f"<h2>Measures</h2><p>{escape(measures.note)}.</p>\n"
    head = "".join(f'<th class="n">{name}</th>' for name in ("batched", "offline", "floor", "ideal"))
    rows = "".join(
        f'<tr class="of"><td>{escape(m.name)}</td><td class="n">{number(m.batched)}</td>'
        f'<td class="n">{number(m.offline)}</td><td class="n">{number(m.floor)}</td>'
        f'<td class="n">{escape(m.ideal)}</td></tr>'
        f'<tr class="say"><td colspan="5">{escape(m.what)}</td></tr>'
        for m in measures.measures
    )
    return (
        '<h2>Measures</h2><div class="wide"><table>'
        f"<tr><th>measure</th>{head}</tr>"
        f'{rows}</table></div><p class="note">{escape(measures.note)}. Offline samples are new noise '
        "moved by the saved model.</p>\n"
    )


def _neighbours(folder: RunFolder) -> str:
    path = folder / "neighbours.png"
    if not path.exists():
        return ""
    picture = _image(path.read_bytes(), "Each row: a sample, then its nearest training pictures")
    return (
        f"<h2>Are they copies?</h2><figure>{picture}</figure>"
        '<p class="note">Each row: a sample on the left, then the training pictures nearest to it. '
        "Alike is good, the same is a copy: then use fewer steps or more data.</p>\n"
    )


def _settings(config: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name.replace('_', ' '))}</td><td>{escape(str(value))}</td></tr>"
        for group in (config["settings"], config["versions"])
        for name, value in group.items()
        if value is not None
    )
    made = config.get("finished", config["started"])
    return (
        f"<h2>Do it again</h2><pre>{escape(config['command'])}</pre>"
        "<details><summary>Settings and versions</summary>"
        f'<div class="wide"><table>{rows}</table></div>'
        f'</details><p class="note">{escape(made)}, {escape(config["machine"])}.</p>\n'
    )


def _image(raw: bytes, words: str, kind: str = "png") -> str:
    encoded = base64.b64encode(raw).decode()
    return f'<img alt="{escape(words)}" src="data:image/{kind};base64,{encoded}">'
