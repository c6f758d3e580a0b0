"""What follows a fit: samples, their measures with a floor beside each, and the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sliceflow.app.pictures import as_bytes
from sliceflow.cli import progress, report
from sliceflow.cli.data import Data, estimator, read
from sliceflow.cli.draw import (
    by_class,
    grid,
    write_arrays,
    write_evolution,
    write_picture,
)
from sliceflow.cli.failures import Failed, Say, WrongUsage
from sliceflow.cli.run_folder import RunFolder, load_model
from sliceflow.cli.settings import NAMES, PICTURES, TABLE, Settings

_MOST_PICTURES = 2000  # samples of pictures that are drawn and measured
_LEAST = 10  # held-out rows; with fewer, no measure is meaningful
_SHOWN = 30  # columns in heat maps

Drawn = tuple[Any, np.ndarray | None]  # samples, and their labels
Measures = tuple[dict[str, Any], str]  # as JSON, and as text


def evaluate(
    say: Say,
    run: Path,
    against: str | None = None,
    data_root: str | None = None,
    device: str = "auto",
) -> Measures:
    """Measure a run's samples and write its report again; with --against only print the measures."""
    folder = RunFolder(run)
    folder.check_fitted()
    settings = Settings.from_folder(folder)
    if data_root is not None and not {settings.source, against} & set(NAMES):
        raise WrongUsage(
            f"--data-root is for named sets, not for {settings.source}", "leave it out"
        )
    say(f"reading {settings.source}")
    try:
        train, test = read(settings, data_root)
    except (Failed, ValueError, OSError) as error:
        hint = "run this where the run was made, with its data in place (--data-root for a named set)"
        raise Failed(
            f"the data of the run cannot be read again: {error}", hint
        ) from error
    flow = load_model(run, device)
    if against is None:
        return finish(settings, folder, flow, train, test, say)
    fitted = replace(train, x=train.all_rows, whole=None)
    other = _read_against(settings, against, data_root, fitted)
    drawn = draw(flow, settings, fitted, test)
    note = f"held-out rows are those of {against}{_known(other, fitted)}"
    return measure(flow, settings, fitted, other, drawn, say, note)


def finish(
    settings: Settings,
    folder: RunFolder,
    flow: Any,
    train: Data,
    test: Data | None,
    say: Say,
) -> Measures:
    """Draw samples of a fitted model, measure them, and write all files but the model."""
    import pandas

    from sliceflow.spaces.tables.files import write_table

    say("drawing samples")
    drawn = draw(flow, settings, train, test)
    if train.kind == TABLE:
        write_table(drawn[0], folder / "samples.csv")
    else:
        write_arrays(folder / "samples.npz", drawn[1], images=drawn[0])
        shown, _ = by_class(as_bytes(drawn[0], train.n_pixel_values), drawn[1])
        write_picture(folder / "samples.png", grid(shown), optimize=True)
        write_evolution(flow, train.x, folder / "evolution.gif", settings.seed)
    write_table(pandas.DataFrame(flow.history_), folder / "history.csv")
    measures, text = measure_fit(flow, settings, train, test, drawn, say)
    folder.write_json("evaluation.json", measures)
    film = folder / "evolution.gif" if train.kind == PICTURES else None
    page = report.page(
        folder.read_json("config.json"), measures, flow, train, drawn, film
    )
    folder.write_text("report.html", page)
    return measures, text


def measure_fit(
    flow: Any,
    settings: Settings,
    train: Data,
    test: Data | None,
    drawn: Drawn,
    say: Say,
) -> Measures:
    """Measure the samples; those of a table come from a second fit, as fine, without the held-out rows."""
    if train.whole is None or test is None:
        return measure(flow, settings, train, test, drawn, say)
    say(f"fitting again without the {len(test.x)} held-out rows, to measure with them")
    train = replace(train, whole=None)
    listeners = [progress.Progress([])] if say.progress else []
    other = estimator(settings, train).set_params(
        tree_settings=flow.plan_.tree_settings
    )
    flow = other.fit(train.x, listeners=listeners)
    note = "measured by a second fit, without the held-out rows"
    return measure(
        flow, settings, train, test, draw(flow, settings, train, test), say, note
    )


def draw(flow: Any, settings: Settings, train: Data, test: Data | None) -> Drawn:
    """As many samples as training rows, of pictures 2,000 at most; of their classes; or completions."""
    n = len(train.all_rows)
    seed = settings.seed
    if train.kind == TABLE:
        return flow.sample(n, random_state=seed), None
    if flow.observed is not None:
        given = _spread(train.x if test is None else test.x, _MOST_PICTURES)
        return np.asarray(flow.inpaint(given, random_state=seed))[:, 0], None
    labels = train.labels if settings.conditional else None
    labels = None if labels is None else _spread(labels, _MOST_PICTURES)
    return np.asarray(
        flow.sample(min(n, _MOST_PICTURES), y=labels, random_state=seed)
    ), labels


def _spread(rows: Any, n: int) -> Any:
    """At most n rows, from all over."""
    return rows[np.linspace(0, len(rows) - 1, min(n, len(rows))).astype(int)]


def measure(  # many: what is measured, and what is said of it
    flow: Any,
    settings: Settings,
    train: Data,
    test: Data | None,
    drawn: Drawn,
    say: Say,
    note: str = "",
) -> Measures:
    """What `metrics.report` finds, with a note on the rows that were measured."""
    from sliceflow import metrics
    from sliceflow.devices import resolve_device

    samples, labels = drawn
    held_out = 0 if test is None else len(test.x)
    if test is None or held_out < _LEAST:
        hint = "" if held_out else " (sliceflow fit --holdout, for 100 rows or more)"
        note = f"not measured: {held_out} rows were held out, and {_LEAST} are needed{hint}"
        return {"numbers": [], "details": {}, "verdict": "", "note": note}, note
    x = samples
    fitted = train.x
    other = test.x
    y: Any = None
    if train.kind == TABLE:
        known = [name for name in fitted.columns if name in samples]
        x = samples[known]
        fitted = fitted[known]
        other = other[known]
        y = settings.target
    elif labels is not None and test.labels is not None:
        y = labels, train.labels, test.labels
    kind = "tables" if train.kind == TABLE else "pictures"
    device = str(resolve_device(flow.device))
    found = metrics.report(x, fitted, other, y=y, kind=kind, device=device, notify=say)
    out = found.to_dict() | {"note": "; ".join(filter(None, (found.note, note)))}
    if pairs := out["details"].get("pairs"):  # the worst, and those of the heat maps
        shown = set(train.columns[:_SHOWN])
        out["details"]["pairs"] = [
            p for k, p in enumerate(pairs) if k < 50 or {p[0], p[1]} <= shown
        ]
    return out, "\n".join(filter(None, (str(found), note)))


def _read_against(
    settings: Settings, against: str, root: str | None, train: Data
) -> Data:
    """Data to compare with: the test split of a set, all of anything else."""
    size = settings.size if against == "celeba" or Path(against).is_dir() else None
    how = Settings(against, size=size, holdout=0.1 if against in NAMES else 0.0)
    if train.kind == TABLE:
        how = replace(settings, source=against, target=None, drop=None, holdout=0.0)
    try:
        whole, held_out = read(how, root)
    except Failed as error:
        raise WrongUsage(
            f"--against {against}: {error}", "pass data like the fitted ones"
        ) from error
    test = whole if held_out is None else held_out
    alike = test.kind == train.kind and set(train.columns) <= set(test.columns)
    if alike and train.kind == PICTURES:
        whole_pixels = train.x.dtype.kind != "f"
        alike = test.x.shape[1:] == train.x.shape[1:] and whole_pixels == (
            test.x.dtype.kind != "f"
        )
        alike = alike and (not whole_pixels or test.x.max() < train.n_pixel_values)
    if not alike:
        fact = f"--against {against} has {test.what}, the run {train.what}"
        raise WrongUsage(
            fact, "pass data like those that were fitted: size, pixel values, columns"
        )
    if train.kind == PICTURES:
        return replace(
            test, x=test.x.astype(train.x.dtype), n_pixel_values=train.n_pixel_values
        )
    return replace(test, x=test.x[list(train.x.columns)])


def _known(test: Data, train: Data) -> str:
    """A note on rows that were fitted: they say nothing about new ones."""

    def keys(x: Any) -> list[Any]:
        if train.kind == TABLE:
            return list(map(tuple, x.astype(object).map(str).to_numpy()))
        return [row.tobytes() for row in np.ascontiguousarray(x)]

    known = set(keys(train.x))
    both = sum(key in known for key in keys(test.x))
    return f", of which {both} were fitted" if both else ""
