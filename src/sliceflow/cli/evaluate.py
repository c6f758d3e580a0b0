"""What follows a fit: samples, their measures with a floor beside each, and the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sliceflow.app.pictures import as_bytes
from sliceflow.cli import progress, report
from sliceflow.cli.data import Data, labels_of, read
from sliceflow.cli.draw import write_arrays, write_rows
from sliceflow.cli.failures import Failed, Say, WrongUsage
from sliceflow.cli.run_folder import RunFolder, load_model
from sliceflow.cli.settings import PICTURES, TABLE, VECTORS, Settings

_MOST_PICTURES = 2000  # samples of pictures that are drawn and measured
_LEAST = 10  # held-out rows; with fewer, no measure is meaningful
_SHOWN = 30  # columns in heat maps

Drawn = tuple[Any, np.ndarray | None]  # samples, and their labels


def evaluate(
    run: Path, against: str | None, data_root: Path | None, device: str, say: Say
) -> tuple[dict[str, Any], str]:
    """Measure a run, and write its report again; with `against`, other data, nothing is written."""
    folder = RunFolder(run)
    folder.check_fitted()
    settings = Settings.from_folder(folder)
    say(f"reading {settings.source}")
    try:
        train, test = read(settings, data_root)
    except (Failed, FileNotFoundError) as error:
        hint = "run this where the run was made, with its data in place (--data-root for a named set)"
        raise Failed(f"the data of the run cannot be read again: {error}", hint) from error
    flow = load_model(run, device)
    if against is None:
        measures = finish(settings, folder, flow, train, test, say)
        return measures, as_text(measures)
    fitted = replace(train, x=train.all_rows, whole=None)
    other = _read_against(settings, against, data_root, fitted)
    say("measuring")
    measures = measure(flow, settings, fitted, other, draw(flow, settings, fitted, test))
    measures["note"] += f" of {against}{_fitted_rows(other, fitted)}"
    return measures, as_text(measures)


def finish(
    settings: Settings, folder: RunFolder, flow: Any, train: Data, test: Data | None, say: Say
) -> dict[str, Any]:
    """Draw samples of a fitted model, measure them, and write all files but the model."""
    say("drawing samples")
    drawn = draw(flow, settings, train, test)
    write_samples(folder, settings, train, drawn)
    if getattr(flow, "history_", None):
        import pandas

        from sliceflow.spaces.tables.files import write_table

        write_table(pandas.DataFrame(flow.history_), folder / "history.csv")
    film = folder / "evolution.gif" if train.kind == PICTURES else None
    if film is not None:
        from sliceflow.cli.pictures import write_evolution

        write_evolution(flow, train.x, film, settings.seed)
    measures = measure_fit(flow, settings, train, test, drawn, say)
    folder.write_json("evaluation.json", measures)
    page = report.page(folder.read_json("config.json"), measures, flow, train, drawn, film)
    folder.write_text("report.html", page)
    return measures


def measure_fit(
    flow: Any, settings: Settings, train: Data, test: Data | None, drawn: Drawn, say: Say
) -> dict[str, Any]:
    """Measure the samples; those of a table come from a second fit, without the held-out rows."""
    from sklearn.base import clone

    note = ""
    if train.whole is not None and test is not None:
        note = "; measured by a second fit, without the held-out rows"
        say(f"fitting again without the {len(test.x)} held-out rows, to measure with them")
        train = replace(train, whole=None)
        listeners = [progress.Progress([])] if say.progress else []
        flow = clone(flow).fit(train.x, listeners=listeners)
        drawn = draw(flow, settings, train, test)
    say("measuring the samples")
    found = measure(flow, settings, train, test, drawn)
    return found | {"note": found["note"] + note}


def draw(flow: Any, settings: Settings, train: Data, test: Data | None) -> Drawn:
    """As many samples as fitted rows, in the proportions of the classes; or completions."""
    from sliceflow.errors import from_tensor

    n, seed = len(train.all_rows), settings.seed
    if train.kind == TABLE:
        return flow.sample(n, random_state=seed), None
    n = min(n, _MOST_PICTURES) if train.kind == PICTURES else n
    if getattr(flow, "observed", None) is not None:
        given = _spread(train.x if test is None else test.x, n)
        return np.asarray(flow.inpaint(given, random_state=seed))[:, 0], None
    labels = labels_of(settings, train)
    labels = None if labels is None else _spread(labels, n)
    return np.asarray(from_tensor(flow.sample(n, y=labels, random_state=seed))), labels


def _spread(rows: Any, n: int) -> Any:
    """At most n rows, from all over."""
    return rows[np.linspace(0, len(rows) - 1, min(n, len(rows))).astype(int)]


def write_samples(folder: RunFolder, settings: Settings, train: Data, drawn: Drawn) -> None:
    """samples.csv of rows; samples.npz and samples.png of pictures."""
    samples, labels = drawn
    if train.kind == TABLE:
        from sliceflow.spaces.tables.files import write_table

        write_table(samples, folder / "samples.csv")
    elif train.kind == VECTORS:
        write_rows(folder / "samples.csv", samples, train.columns or [], settings.target or "", labels)
    else:
        from sliceflow.cli.pictures import by_class, grid, write_picture

        write_arrays(folder / "samples.npz", labels, images=samples)
        shown, _ = by_class(as_bytes(samples, train.n_pixel_values), labels)
        write_picture(folder / "samples.png", grid(shown), optimize=True)


def measure(
    flow: Any, settings: Settings, train: Data, test: Data | None, drawn: Drawn
) -> dict[str, Any]:
    """What `metrics.report` finds, as JSON, with a note; its verdict says where samples start."""
    from sliceflow import metrics
    from sliceflow.devices import resolve_device

    (samples, labels), held_out = drawn, 0 if test is None else len(test.x)
    start = f"Particles start as {flow.plan_.start}. " if train.kind == PICTURES else ""
    if test is None or held_out < _LEAST:
        note = f"not measured: {held_out} rows were held out, and {_LEAST} are needed"
        hint = "" if held_out else " (--holdout, for 100 rows or more)"
        return {"numbers": [], "details": {}, "verdict": start, "note": note + hint}
    x, fitted, other = samples, train.x, test.x
    y: Any = None
    if train.kind == TABLE:
        known = [name for name in fitted.columns if name in samples]
        x, fitted, other, y = samples[known], fitted[known], other[known], settings.target
    elif labels is not None and test.labels is not None:
        y = labels, train.labels, test.labels
    kind, device = {TABLE: "tables"}.get(train.kind, train.kind), str(resolve_device(flow.device))
    found = metrics.report(x, fitted, other, y=y, kind=kind, device=device).to_dict()
    for one in found["numbers"]:
        one |= {name: None if one[name] != one[name] else one[name] for name in ("value", "floor")}
    if pairs := found["details"].get("pairs"):  # the worst, and those of the heat maps
        shown = {str(name) for name in train.columns[:_SHOWN]} if train.columns else set()
        kept = [p for k, p in enumerate(pairs) if k < 50 or {p[0], p[1]} <= shown]
        found["details"] = found["details"] | {"pairs": kept}
    note = f"{len(samples)} samples and {held_out} held-out rows"
    return found | {"verdict": f"{start}{found['verdict']}.", "note": note}


def as_text(measures: dict[str, Any]) -> str:
    """The verdict, a plain table of the numbers, and a note."""
    lines = [measures["verdict"].strip()]
    if rows := measures["numbers"]:
        wide = max(len(row["name"]) for row in rows)
        lines.append(f"{'':{wide}} {'samples':>8} {'floor':>8}")
        for row in rows:
            value, floor = report.number(row["value"]), report.number(row["floor"])
            lines.append(f"{row['name']:{wide}} {value:>8} {floor:>8}")
    return "\n".join(filter(None, [*lines, measures["note"]]))


def _read_against(settings: Settings, against: str, root: Path | None, train: Data) -> Data:
    """Data to compare with: the test split of a set, all of anything else."""
    size = settings.size if Path(against).expanduser().is_dir() or against == "celeba" else None
    how = replace(settings, source=against, size=size, holdout=0.0, target=None, conditional=False)
    try:
        whole, held_out = read(how, root)
    except Failed as error:
        raise WrongUsage(f"--against {against}: {error}", "pass data like the fitted ones") from error
    test = whole if held_out is None else held_out
    alike = test.kind == train.kind and set(train.columns or ()) <= set(test.columns or ())
    if alike and train.kind == PICTURES:
        whole_pixels = train.x.dtype.kind != "f"
        alike = test.x.shape[1:] == train.x.shape[1:] and whole_pixels == (test.x.dtype.kind != "f")
        alike = alike and (not whole_pixels or test.x.max() < train.n_pixel_values)
    if not alike:
        fact = f"--against {against} has {test.what}, the run {train.what}"
        raise WrongUsage(fact, "pass data like those that were fitted: size, pixel values, columns")
    if train.kind == PICTURES:
        return replace(test, x=test.x.astype(train.x.dtype), n_pixel_values=train.n_pixel_values)
    if train.kind == TABLE:
        return replace(test, x=test.x[list(train.x.columns)])
    order = [(test.columns or []).index(name) for name in train.columns or ()]
    return replace(test, x=test.x[:, order], columns=train.columns)


def _fitted_rows(test: Data, train: Data) -> str:
    """A note on rows that were fitted: they say nothing about new ones."""

    def keys(x: Any) -> list[Any]:
        if train.kind == TABLE:
            return list(map(tuple, x.astype(object).map(str).to_numpy()))
        return [row.tobytes() for row in np.ascontiguousarray(x.astype(train.x.dtype))]

    known = set(keys(train.x))
    both = sum(key in known for key in keys(test.x))
    return f"; not held out: {both} of them were fitted" if both else ""
