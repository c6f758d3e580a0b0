"""What follows a fit: samples, their measures beside real rows, the report."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sliceflow.app.pictures import as_bytes
from sliceflow.cli import report
from sliceflow.cli.data import Input, PictureInput, TableInput, make_table_flow
from sliceflow.cli.drawn_samples import PictureSamples, Samples, TableSamples
from sliceflow.cli.failures import Output
from sliceflow.cli.grids import (
    arrange_by_class,
    make_grid,
    write_arrays,
    write_evolution,
    write_image,
)
from sliceflow.cli.progress import progress_bars
from sliceflow.cli.results import Result
from sliceflow.cli.run_folder import RunFolder
from sliceflow.cli.settings import Settings

if TYPE_CHECKING:
    import pandas as pd

    from sliceflow import TableFlow
    from sliceflow.app.server import JsonObject
    from sliceflow.cli.run_folder import Model
    from sliceflow.metrics import Attacks, Report
    from sliceflow.metrics.rules import KeptRule
    from sliceflow.metrics.table_comparison import ColumnPair

# The most samples of pictures that are drawn and measured: more cost time, and say
# little more.
_MAX_PICTURES = 2000
# What measures of pictures cost on one thread of a CPU, that of
# `devices.cpu_slowness`, where 60,000 pictures of 28×28 were measured: forests, per
# compared picture, the searches for copies, per value of each training picture and
# searched picture, and principal components, per picture and pair of values. Users are
# told an order of magnitude.
_SECONDS_OF_PICTURES = 0.5  # for any number of them
_SECONDS_PER_COMPARED_PICTURE = 1.4e-3
_SECONDS_PER_SEARCHED_VALUE = 1.1e-10
_SECONDS_OF_COMPONENTS = 8.5e-10
# What measures of tables cost on one thread of an aarch64 machine, with 300 to 2,000
# compared rows of 5 to 20 columns.
_SECONDS_OF_TABLE = 0.7
_SECONDS_PER_CELL = 2.5e-5
# A category with more levels is probably a code or a place, which nobody would predict.
_MAX_LEVELS_OF_TARGET = 20
# Names of columns that hold codes, whatever their cells look like: zip, user_id, PLZ.
_NAME_OF_CODE = re.compile(
    r"(^|[\W_])(zip|zipcode|postal|postcode|plz|id|ids|code|key|uuid|phone|tel)([\W_]|$)",
    re.IGNORECASE,
)
# With fewer held-out rows than this, no measure is meaningful.
MIN_HELD_OUT_ROWS = 10
# evaluation.json lists this many of the worst pairs of columns, beside those of the
# heat maps.
_MAX_WORST_PAIRS = 50
# evaluation.json lists this many rules of a table, those that are kept least.
_MAX_RULES = 50


class FittedRun(NamedTuple):
    """A fitted model, its data, and where messages go."""

    settings: Settings
    model: Model
    train: Input
    held_out: Input | None
    output: Output


class Evidence(NamedTuple):
    """The facts that a verdict needs beside a report."""

    attacks: Attacks | None = None
    notes: tuple[str, ...] = ()  # facts to know before samples are shared
    rules: tuple[KeptRule, ...] = ()  # rules that the model found
    from_mosaics: bool = False  # whether samples started as mosaics of fitted pictures


NO_EVIDENCE = Evidence()


def measure_and_report(
    run: FittedRun, folder: RunFolder, attacks: Attacks | None = None
) -> Result:
    """Draw samples of a fitted model, measure them, write all files but the model.

    The samples are written first, for users who do not want to wait for the measures.
    """
    from sliceflow import ImageFlow, TableFlow

    model = run.model
    assert isinstance(model, ImageFlow | TableFlow), "runs fit pictures or tables"
    run.output.say("drawing samples")
    samples = draw_samples(run)
    animation = _write_samples(run, samples, folder)
    if run.settings.no_measure:
        quoted = shlex.quote(str(folder.path))
        measures = _no_measures(f"not measured; sliceflow evaluate {quoted} does it")
    else:
        measures = measure_fit(run, samples, attacks)
    folder.write_json("evaluation.json", measures.json)
    page = report.render(
        folder.read_json("config.json"),
        measures.json,
        model,
        run.train,
        samples,
        animation,
    )
    folder.write_text("report.html", page)
    return measures


def _write_samples(run: FittedRun, samples: Samples, folder: RunFolder) -> Path | None:
    """Write samples and the history of the fit; returns the animation of pictures."""
    import pandas as pd

    from sliceflow import ImageFlow
    from sliceflow.estimators.tables.files import write_table

    animation = None
    train = run.train
    if isinstance(run.model, ImageFlow):
        assert isinstance(train, PictureInput), "the model is one of pictures"
        assert isinstance(samples, PictureSamples), "the model is one of pictures"
        _write_pictures(folder, train, samples)
        run.output.say(f"wrote {folder / 'samples.png'}")
        animation = folder / "evolution.gif"
        write_evolution(run.model, train.x, animation, run.settings.seed)
    else:
        assert isinstance(train, TableInput), "the model is one of a table"
        assert isinstance(samples, TableSamples), "the model is one of a table"
        write_table(samples.x, folder / "samples.csv", train.dialect)
        run.output.say(f"wrote {folder / 'samples.csv'}")
    write_table(pd.DataFrame(run.model.history_), folder / "history.csv")
    return animation


def _write_pictures(
    folder: RunFolder, train: PictureInput, samples: PictureSamples
) -> None:
    """Write samples of pictures as arrays and as a grid."""
    write_arrays(folder / "samples.npz", samples.labels, images=samples.x)
    pixels = as_bytes(samples.x, train.n_pixel_values)
    rows, _ = arrange_by_class(pixels, samples.labels)
    write_image(folder / "samples.png", make_grid(rows), optimize=True)


def estimate_seconds(
    train: Input, held_out: Input | None, fit_seconds: float, device: str
) -> float | None:
    """About how long the measures take on a CPU; None if that is not known.

    Measures of a table begin with a second fit, which takes about `fit_seconds` again.
    """
    from sliceflow.devices import resolve_device

    if held_out is None or resolve_device(device).type != "cpu":
        return None
    n_train = train.n_rows
    n_held_out = held_out.n_rows
    n_compared = min(n_train, _MAX_PICTURES) + min(n_held_out, _MAX_PICTURES)
    if not isinstance(train, PictureInput):
        n_cells = n_compared * len(train.columns)
        return fit_seconds + _SECONDS_OF_TABLE + _SECONDS_PER_CELL * n_cells
    n_values = math.prod(train.x.shape[1:])
    return _seconds_of_pictures(n_train, n_held_out, n_compared, n_values)


def _seconds_of_pictures(
    n_train: int, n_held_out: int, n_compared: int, n_values: int
) -> float:
    """About how long the measures of pictures of this many values take on a CPU."""
    import torch

    from sliceflow.devices import cpu_slowness
    from sliceflow.metrics.picture_comparison import MAX_PICTURES_SEARCHED_ON_CPU

    n_searched = min(n_train, MAX_PICTURES_SEARCHED_ON_CPU)
    n_searched += min(n_held_out, MAX_PICTURES_SEARCHED_ON_CPU)
    n_decomposed = min(n_train, _MAX_PICTURES)  # into principal components
    seconds = _SECONDS_OF_PICTURES
    seconds += _SECONDS_PER_COMPARED_PICTURE * n_compared
    seconds += _SECONDS_PER_SEARCHED_VALUE * n_searched * n_train * n_values
    seconds += _SECONDS_OF_COMPONENTS * n_decomposed * n_values**2
    return float(seconds) * cpu_slowness() / torch.get_num_threads()


def measure_fit(
    run: FittedRun, samples: Samples, attacks: Attacks | None = None
) -> Result:
    """Measure samples of a model, beside held-out rows."""
    from sliceflow import ImageFlow, TableFlow

    model = run.model
    if isinstance(model, TableFlow):
        return _measure_table_fit(run, model, samples, attacks)
    from_mosaics = isinstance(model, ImageFlow) and model.plan_.mosaic_size > 0
    return measure_and_judge(run, samples, evidence=Evidence(from_mosaics=from_mosaics))


def _measure_table_fit(
    run: FittedRun, model: TableFlow, samples: Samples, attacks: Attacks | None
) -> Result:
    """Measure samples of a table's model.

    If the model was fitted to all rows, the measures are those of a second fit, as fine
    as the first, without the held-out rows.
    """
    if run.settings.target is None:
        settings = replace(run.settings, target=choose_target(model.columns_))
        run = run._replace(settings=settings)
    notes = _notes_on_sharing(model)
    if attacks is None:
        notes.append("sliceflow evaluate --attack attacks them")
    evidence = Evidence(attacks, tuple(notes))
    train = run.train
    assert isinstance(train, TableInput), "its model is one of a table"
    if train.full_table is None or run.held_out is None:
        return measure_and_judge(run, samples, evidence=evidence)
    n_held_out = run.held_out.n_rows
    run.output.say(
        f"fitting again without the {n_held_out} held-out rows, to measure with them"
    )
    second_model = _fit_without_held_out_rows(run, model, train)
    second_train = replace(train, full_table=None)
    second_run = run._replace(model=second_model, train=second_train)
    second_samples = draw_samples(second_run)
    assert isinstance(second_samples, TableSamples), "the model is one of a table"
    rules = _model_rules(second_model, second_samples.x, train.n_rows)
    note = "measured by a second fit, without the held-out rows"
    return measure_and_judge(
        second_run, second_samples, note, evidence._replace(rules=rules)
    )


def _fit_without_held_out_rows(
    run: FittedRun, model: TableFlow, train: TableInput
) -> TableFlow:
    """A second model of a table, as fine as the first, of the training rows alone."""
    second_model = make_table_flow(run.settings, train.free_text)
    second_model.set_params(tree_settings=model.plan_.tree_settings)
    second_model.fit(train.x, listeners=progress_bars(run.output))
    return second_model


def _model_rules(
    model: TableFlow, samples: pd.DataFrame, n_rows: int
) -> tuple[KeptRule, ...]:
    """The rules that a model of n rows found, and the shares of samples that keep them.

    The shares of real rows are those of the fitted ones.
    """
    from sliceflow.metrics.rules import KeptRule

    shares = model.rules_kept(samples)
    rules = []
    for rule in model.rules_:
        rules.append(KeptRule(rule.text, rule.share, shares[rule.text], n_rows))
    return tuple(rules)


def _notes_on_sharing(model: TableFlow) -> list[str]:
    """Facts about a model of a table to know before its samples are shared."""
    notes = ["share samples, not the model file: it contains your rows"]
    for name, kind in model.kinds_.items():
        if kind == "identifier":
            notes.append(f"the column {name} tells who it is; its values are made up")
    return notes


def choose_target(columns: pd.DataFrame) -> str | None:
    """The column that utility predicts, from a model's `columns_`; None if none suits.

    It is the last one that somebody would want to predict: neither an identifier nor a
    code, such as a zip code, nor a category of many levels, nor a date.
    """
    for kind, name, n_distinct in zip(
        columns["kind"][::-1],
        columns["column"][::-1],
        columns["distinct"][::-1],
        strict=True,
    ):
        is_label = kind in ("boolean", "category", "ordered")
        is_small_label = is_label and n_distinct <= _MAX_LEVELS_OF_TARGET
        is_number = kind in ("continuous", "integer")
        if (is_small_label or is_number) and not _NAME_OF_CODE.search(name):
            return str(name)
    return None


def draw_samples(run: FittedRun) -> Samples:
    """As many samples as training rows, of pictures 2,000 at most.

    Samples of a model with classes have those of the training pictures. A model that
    completes pictures completes held-out ones.
    """
    from sliceflow import ImageFlow, TableFlow

    model = run.model
    train = run.train
    n = len(train.fitted_rows)
    seed = run.settings.seed
    if isinstance(model, TableFlow):
        return TableSamples(model.sample(n, random_state=seed))
    assert isinstance(model, ImageFlow), "runs fit pictures or tables"
    assert isinstance(train, PictureInput), "the model is one of pictures"
    if model.known is not None:
        to_complete = train
        if isinstance(run.held_out, PictureInput):
            to_complete = run.held_out
        pictures = _evenly_spaced(to_complete.x, _MAX_PICTURES)
        completions = np.asarray(model.inpaint(pictures, random_state=seed))
        return PictureSamples(completions[:, 0], None)
    labels = None
    if train.labels is not None:
        labels = _evenly_spaced(train.labels, _MAX_PICTURES)
    x = model.sample(min(n, _MAX_PICTURES), y=labels, random_state=seed)
    return PictureSamples(np.asarray(x), labels)


def _evenly_spaced(rows: NDArray[Any], n: int) -> NDArray[Any]:
    """At most n rows, at equal distances."""
    indices = np.linspace(0, len(rows) - 1, min(n, len(rows))).astype(int)
    return np.asarray(rows[indices])


def measure_and_judge(
    run: FittedRun,
    samples: Samples,
    note: str = "",
    evidence: Evidence = NO_EVIDENCE,
) -> Result:
    """Compare samples with held-out rows, and judge them by this and other evidence.

    `note` says which rows were measured.
    """
    from sliceflow import metrics

    n_held_out = 0 if run.held_out is None else run.held_out.n_rows
    if run.held_out is None or n_held_out < MIN_HELD_OUT_ROWS:
        return _not_measured(n_held_out)
    compared = _with_rules(_compare(run, run.held_out, samples), evidence.rules)
    verdict = metrics.judge(
        compared,
        evidence.attacks,
        evidence.notes,
        from_mosaics=evidence.from_mosaics,
    )
    json = compared.to_dict()
    _limit_details(json["details"], run.train)
    json["verdict"] = verdict.to_dict()
    json["note"] = compared.note
    text = f"{verdict}\n{compared.table}"
    if evidence.attacks is not None:
        json["attacks"] = evidence.attacks.to_dict()
        text += f"\n\n{evidence.attacks}"
    if note:
        json["note"] += f"; {note}"
        text += f"\n{note}"
    return Result(json, text)


def _compare(run: FittedRun, held_out: Input, samples: Samples) -> Report:
    """The report on samples beside the training and the held-out rows of a run."""
    from sliceflow import metrics
    from sliceflow.devices import resolve_device

    train = run.train
    device = str(resolve_device(run.settings.device))
    notify = run.output.say
    if isinstance(train, TableInput):
        assert isinstance(held_out, TableInput), "they are held out of the table"
        assert isinstance(samples, TableSamples), "they are of the same model"
        # Samples are without the columns that were dropped.
        names = [name for name in train.x.columns if name in samples.x]
        return metrics.report(
            samples.x[names],
            train.x[names],
            held_out.x[names],
            y=run.settings.target,
            kind="tables",
            device=device,
            notify=notify,
        )
    assert isinstance(held_out, PictureInput), "they are held out of the pictures"
    assert isinstance(samples, PictureSamples), "they are of the same model"
    labels = None
    if samples.labels is not None and held_out.labels is not None:
        assert train.labels is not None, "samples have the labels of training pictures"
        labels = (samples.labels, train.labels, held_out.labels)
    return metrics.report(
        samples.x,
        train.x,
        held_out.x,
        y=labels,
        kind="pictures",
        device=device,
        notify=notify,
    )


def _limit_details(details: JsonObject, train: Input) -> None:
    """Leave pairs and rules out of evaluation.json that nobody would read."""
    if details.get("pairs"):
        details["pairs"] = _pairs_to_report(details["pairs"], train)
    if "rules" in details:
        details["rules"] = details["rules"][:_MAX_RULES]


def _with_rules(found: Report, rules: Sequence[KeptRule]) -> Report:
    """A report whose rules begin with those that a model found, each of them once."""
    if not rules:
        return found
    texts = {rule.text for rule in rules}
    others = [r for r in found.details.get("rules", []) if r.text not in texts]
    details = found.details.copy()
    details["rules"] = [*rules, *others]
    return replace(found, details=details)


def _not_measured(n_held_out: int) -> Result:
    """The note in place of measures if too few rows were held out."""
    note = (
        f"not measured: {n_held_out} rows were held out, "
        f"and {MIN_HELD_OUT_ROWS} are needed"
    )
    if n_held_out == 0:
        note += " (sliceflow fit --holdout, for 100 rows or more)"
    return _no_measures(note)


def _no_measures(note: str) -> Result:
    """Measures without numbers: a note that says why there are none."""
    return Result({"metrics": [], "details": {}, "verdict": None, "note": note}, note)


def _pairs_to_report(pairs: list[ColumnPair], train: Input) -> list[ColumnPair]:
    """The worst pairs of columns, which come first, and those of the heat maps."""
    in_heat_maps = set(train.columns[: report.MAX_HEAT_MAP_COLUMNS])
    kept = []
    for i, pair in enumerate(pairs):
        if i < _MAX_WORST_PAIRS or {pair.first, pair.second} <= in_heat_maps:
            kept.append(pair)
    return kept
