"""The steps after a fit: samples, their measures beside real rows, the report."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sliceflow.app.pictures import as_bytes
from sliceflow.cli import report
from sliceflow.cli.data import Data, make_table_flow, read_data
from sliceflow.cli.failures import CommandError, Output, UsageError
from sliceflow.cli.grids import (
    arrange_by_class,
    make_grid,
    write_arrays,
    write_evolution,
    write_image,
)
from sliceflow.cli.held_out import count_common_rows, read_held_out
from sliceflow.cli.progress import progress_bars
from sliceflow.cli.results import Result
from sliceflow.cli.run_folder import RunFolder, load_model
from sliceflow.cli.settings import DATASET_NAMES, TABLE, Settings
from sliceflow.errors import HintedError
from sliceflow.wording import format_duration

if TYPE_CHECKING:
    import pandas as pd

    from sliceflow import TableFlow
    from sliceflow.cli.run_folder import Model
    from sliceflow.metrics import Attacks, Report
    from sliceflow.metrics.rules import KeptRule

# The most samples of pictures that are drawn and measured: more cost time, and say
# little more.
_MAX_PICTURES = 2000
# What measures of pictures cost on one thread of a CPU, that of
# `devices.cpu_slowness`, where 60,000 pictures of 28×28 were measured: forests, per
# compared picture, the searches for copies, per value of each training picture and
# searched picture, and principal components, per picture and pair of values. Users are
# told an order of magnitude.
_SECONDS_OF_PICTURES = 0.5  # of any
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
_MIN_HELD_OUT_ROWS = 10
# evaluation.json lists this many of the worst pairs of columns, beside those of the
# heat maps.
_MAX_WORST_PAIRS = 50
# evaluation.json lists this many rules of a table, those that are kept least.
_MAX_RULES = 50
# What attacks cost beside fits, measured on 2 busy cores of an x86-64 machine.
_SECONDS_PER_ATTACKED_ROW = 0.02
# Shadow models of an attack, as many as `metrics.attack` takes by default.
N_SHADOWS = 60
# Fewer shadow models tell nothing; `metrics.attack` takes no fewer.
_MIN_SHADOWS = 8


class Samples(NamedTuple):
    """New rows of a model: pictures (n, h, w[, c]) or a DataFrame, and their labels."""

    x: Any
    labels: np.ndarray | None


class Evidence(NamedTuple):
    """The facts that a verdict needs beside a report."""

    attacks: Attacks | None = None
    notes: tuple[str, ...] = ()  # facts to know before samples are shared
    rules: tuple[KeptRule, ...] = ()  # rules that the model found
    from_mosaics: bool = False  # whether samples started as mosaics of fitted pictures


NO_EVIDENCE = Evidence()


def evaluate(
    output: Output,
    run: Path,
    against: str | None = None,
    attack: bool = False,
    shadows: int = N_SHADOWS,
    data_root: str | None = None,
    device: str = "auto",
) -> Result:
    """Measure a run's samples again, and write its report again.

    With --against the measures are only printed. With --attack a model of one half of
    the table is attacked, too: do its samples tell which rows it was fitted to?
    """
    folder = RunFolder(run)
    folder.check_fitted()
    settings = replace(Settings.from_folder(folder), device=device)
    if attack:
        _check_attack(settings, against, shadows)
    uses_named_set = settings.source in DATASET_NAMES or against in DATASET_NAMES
    if data_root is not None and not uses_named_set:
        fact = f"--data-root is for named sets, not for {settings.source}"
        raise UsageError(fact, "leave it out")
    output.say(f"reading {settings.source}")
    train, test = _read_again(settings, data_root)
    model = load_model(run, device)
    if against is None:
        settings = replace(settings, no_measure=False)
        attacks = None
        if attack:
            _check_held_out(test)
            _announce_attack(folder, train, shadows, output)
            attacks = attack_half(model, settings, train, shadows, output)
        return finish(settings, folder, model, train, test, output, attacks)
    fitted = replace(train, x=train.fitted_rows, full_table=None)
    other = read_held_out(settings, against, data_root, fitted)
    samples = draw_samples(model, settings, fitted, test)
    note = f"held-out rows are those of {against}"
    n_fitted = count_common_rows(other, fitted)
    if n_fitted:  # fitted rows say nothing about new ones
        note += f", of which {n_fitted} were fitted"
    return measure(settings, fitted, other, samples, output, note)


def _check_attack(settings: Settings, against: str | None, shadows: int) -> None:
    """Refuse --attack for what cannot be attacked."""
    if settings.kind != TABLE:
        fact = f"--attack is for tables, not for {settings.source}"
        raise UsageError(fact, "leave it out")
    if against is not None:
        fact = "--attack and --against exclude each other"
        raise UsageError(fact, "choose one")
    if 0 < shadows < _MIN_SHADOWS:
        fact = f"--shadows {shadows} are too few to tell anything"
        raise UsageError(fact, f"pass 0, or {_MIN_SHADOWS} or more")


def _check_held_out(test: Data | None) -> None:
    """Refuse --attack where nothing is measured."""
    if test is None or len(test.x) < _MIN_HELD_OUT_ROWS:
        fact = "--attack is for runs that are measured, and too few rows were held out"
        raise CommandError(fact, "sliceflow fit --holdout, for 100 rows or more")


def _announce_attack(
    folder: RunFolder, train: Data, shadows: int, output: Output
) -> None:
    """Print what an attack does, and about how long it takes."""
    n_rows = len(train.fitted_rows)
    text = f"attacking a model of {n_rows // 2} rows"
    if shadows:
        text += f", and {shadows} shadow models"
    fit_seconds = folder.read_json("config.json").get("seconds", 0) / 2
    seconds = (1 + shadows) * fit_seconds + _SECONDS_PER_ATTACKED_ROW * n_rows
    output.say(f"{text}: about {format_duration(seconds)} (--shadows 0 is quick)")


def attack_half(
    model: Model, settings: Settings, train: Data, shadows: int, output: Output
) -> Attacks:
    """Attack a model of one half of the table; the other half is not fitted.

    A model of fewer rows tells more of each row, so this overstates what the run tells.
    """
    from sliceflow import TableFlow, metrics

    assert isinstance(model, TableFlow), "only tables are attacked"
    shuffled = train.fitted_rows.sample(frac=1, random_state=settings.seed)
    half = len(shuffled) // 2
    fitted = shuffled.iloc[:half].reset_index(drop=True)
    others = shuffled.iloc[half:].reset_index(drop=True)
    attacked = make_table_flow(settings, train.free_text).set_params(
        tree_settings=model.plan_.tree_settings
    )
    attacked.fit(fitted, listeners=progress_bars(output))
    return metrics.attack(
        attacked,
        fitted,
        others,
        y=settings.target or default_target(model.columns_),
        n_shadows=shadows,
        seed=settings.seed,
        device=settings.device,
        notify=output.say,
    )


def _read_again(settings: Settings, data_root: str | None) -> tuple[Data, Data | None]:
    """The data of a run that was fitted before."""
    try:
        return read_data(settings, data_root)
    except (HintedError, ValueError, OSError) as error:
        reason = error.fact if isinstance(error, HintedError) else error
        hint = (
            "run this where the run was made, with its data in place "
            "(--data-root for a named set)"
        )
        fact = f"the data of the run cannot be read again: {reason}"
        raise CommandError(fact, hint) from error


def finish(
    settings: Settings,
    folder: RunFolder,
    model: Model,
    train: Data,
    test: Data | None,
    output: Output,
    attacks: Attacks | None = None,
) -> Result:
    """Draw samples of a fitted model, measure them, write all files but the model.

    The samples are written first: whoever cannot wait has them before the measures.
    """
    import pandas

    from sliceflow import ImageFlow, TableFlow
    from sliceflow.spaces.tables.files import write_table

    assert isinstance(model, ImageFlow | TableFlow), "runs fit pictures or tables"
    output.say("drawing samples")
    samples = draw_samples(model, settings, train, test)
    animation = None
    if isinstance(model, ImageFlow):
        _write_pictures(folder, train, samples)
        output.say(f"wrote {folder / 'samples.png'}")
        animation = folder / "evolution.gif"
        write_evolution(model, train.x, animation, settings.seed)
    else:
        write_table(samples.x, folder / "samples.csv", train.dialect)
        output.say(f"wrote {folder / 'samples.csv'}")
    write_table(pandas.DataFrame(model.history_), folder / "history.csv")
    if settings.no_measure:
        quoted = shlex.quote(str(folder.path))
        measures = _no_measures(f"not measured; sliceflow evaluate {quoted} does it")
    else:
        measures = measure_fit(model, settings, train, test, samples, output, attacks)
    folder.write_json("evaluation.json", measures.json)
    page = report.render(
        folder.read_json("config.json"),
        measures.json,
        model,
        train,
        samples,
        animation,
    )
    folder.write_text("report.html", page)
    return measures


def _write_pictures(folder: RunFolder, train: Data, samples: Samples) -> None:
    """Write samples of pictures as arrays and as a grid."""
    write_arrays(folder / "samples.npz", samples.labels, images=samples.x)
    pixels = as_bytes(samples.x, train.n_pixel_values)
    rows, _ = arrange_by_class(pixels, samples.labels)
    write_image(folder / "samples.png", make_grid(rows), optimize=True)


def estimate_seconds(
    train: Data, test: Data | None, fit_seconds: float, device: str
) -> float | None:
    """About how long the measures take on a CPU; None if that is not known.

    Those of a table begin with a second fit, which takes about `fit_seconds` as well.
    """
    from sliceflow.devices import cpu_slowness, resolve_device

    if test is None or resolve_device(device).type != "cpu":
        return None
    import torch

    n_train = len(train.x)
    n_compared = min(n_train, _MAX_PICTURES) + min(len(test.x), _MAX_PICTURES)
    if train.kind == TABLE:
        n_cells = n_compared * len(train.columns)
        return fit_seconds + _SECONDS_OF_TABLE + _SECONDS_PER_CELL * n_cells
    n_values = math.prod(train.x.shape[1:])
    n_components_of = min(n_train, _MAX_PICTURES)
    from sliceflow.metrics.picture_comparison import MAX_PICTURES_SEARCHED_ON_CPU

    n_searched = min(n_train, MAX_PICTURES_SEARCHED_ON_CPU)
    n_searched += min(len(test.x), MAX_PICTURES_SEARCHED_ON_CPU)
    seconds = _SECONDS_OF_PICTURES
    seconds += _SECONDS_PER_COMPARED_PICTURE * n_compared
    seconds += _SECONDS_PER_SEARCHED_VALUE * n_searched * n_train * n_values
    seconds += _SECONDS_OF_COMPONENTS * n_components_of * n_values**2
    return float(seconds) * cpu_slowness() / torch.get_num_threads()


def measure_fit(
    model: Model,
    settings: Settings,
    train: Data,
    test: Data | None,
    samples: Samples,
    output: Output,
    attacks: Attacks | None = None,
) -> Result:
    """Measure samples of a model.

    A table was fitted to all its rows. So its measures are those of a second fit, as
    fine as the first, without the held-out rows.
    """
    from sliceflow import ImageFlow, TableFlow

    if isinstance(model, TableFlow) and settings.target is None:
        settings = replace(settings, target=default_target(model.columns_))
    notes = notes_on_sharing(model)
    if attacks is None and isinstance(model, TableFlow):
        notes += ("sliceflow evaluate --attack attacks them",)
    from_mosaics = isinstance(model, ImageFlow) and model.plan_.mosaic_size > 0
    evidence = Evidence(attacks, notes, from_mosaics=from_mosaics)
    if train.full_table is None or test is None or not isinstance(model, TableFlow):
        return measure(settings, train, test, samples, output, evidence=evidence)
    n_held_out = len(test.x)
    output.say(
        f"fitting again without the {n_held_out} held-out rows, to measure with them"
    )
    train = replace(train, full_table=None)
    second = make_table_flow(settings, train.free_text).set_params(
        tree_settings=model.plan_.tree_settings
    )
    second.fit(train.x, listeners=progress_bars(output))
    samples = draw_samples(second, settings, train, test)
    rules = _model_rules(second, samples.x, len(train.x))
    evidence = evidence._replace(rules=rules)
    note = "measured by a second fit, without the held-out rows"
    return measure(settings, train, test, samples, output, note, evidence)


def _model_rules(model: TableFlow, samples: Any, n_rows: int) -> tuple[KeptRule, ...]:
    """The rules that a model of n rows found, and the shares of samples that keep them.

    The shares of real rows are those of the fitted ones.
    """
    from sliceflow.metrics.rules import KeptRule

    shares = model.rules_kept(samples)
    rules = []
    for rule in model.rules_:
        rules.append(KeptRule(rule.text, rule.share, shares[rule.text], n_rows))
    return tuple(rules)


def notes_on_sharing(model: Model) -> tuple[str, ...]:
    """Facts about a model of a table to know before its samples are shared."""
    from sliceflow import TableFlow

    if not isinstance(model, TableFlow):
        return ()
    notes = ["share samples, not the model file: it contains your rows"]
    for name, kind in model.kinds_.items():
        if kind == "identifier":
            notes.append(f"the column {name} tells who it is; its values are made up")
    return tuple(notes)


def default_target(columns: pd.DataFrame) -> str | None:
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


def draw_samples(
    model: Model, settings: Settings, train: Data, test: Data | None
) -> Samples:
    """As many samples as training rows, of pictures 2,000 at most.

    Samples of a model with classes have those of the training pictures. A model that
    completes pictures completes held-out ones.
    """
    from sliceflow import ImageFlow

    n = len(train.fitted_rows)
    seed = settings.seed
    if not isinstance(model, ImageFlow):
        return Samples(model.sample(n, random_state=seed), None)
    if model.known is not None:
        pictures = _spread(train.x if test is None else test.x, _MAX_PICTURES)
        completions = np.asarray(model.inpaint(pictures, random_state=seed))
        return Samples(completions[:, 0], None)
    labels = None
    if train.labels is not None:
        labels = _spread(train.labels, _MAX_PICTURES)
    x = model.sample(min(n, _MAX_PICTURES), y=labels, random_state=seed)
    return Samples(np.asarray(x), labels)


def _spread(rows: np.ndarray, n: int) -> np.ndarray:
    """At most n rows, at equal distances."""
    indices = np.linspace(0, len(rows) - 1, min(n, len(rows))).astype(int)
    return np.asarray(rows[indices])


def measure(
    settings: Settings,
    train: Data,
    test: Data | None,
    samples: Samples,
    output: Output,
    note: str = "",
    evidence: Evidence = NO_EVIDENCE,
) -> Result:
    """What `metrics.report` finds; `note` says which rows were measured."""
    from sliceflow import metrics
    from sliceflow.devices import resolve_device

    n_held_out = 0 if test is None else len(test.x)
    if test is None or n_held_out < _MIN_HELD_OUT_ROWS:
        return _not_measured(n_held_out)
    x = samples.x
    train_x = train.x
    test_x = test.x
    y: Any = None
    if train.kind == TABLE:
        names = [name for name in train_x.columns if name in x]  # without dropped ones
        x = x[names]
        train_x = train_x[names]
        test_x = test_x[names]
        y = settings.target
    elif samples.labels is not None and test.labels is not None:
        y = (samples.labels, train.labels, test.labels)
    found = metrics.report(
        x,
        train_x,
        test_x,
        y=y,
        kind="tables" if train.kind == TABLE else "pictures",
        device=str(resolve_device(settings.device)),
        notify=output.say,
    )
    found = _with_rules(found, evidence.rules)
    out = found.to_dict()
    pairs = out["details"].get("pairs")
    if pairs:
        out["details"]["pairs"] = _pairs_to_keep(pairs, train)
    if "rules" in out["details"]:
        out["details"]["rules"] = out["details"]["rules"][:_MAX_RULES]
    verdict = metrics.judge(
        found,
        evidence.attacks,
        evidence.notes,
        from_mosaics=evidence.from_mosaics,
    )
    out["verdict"] = verdict.to_dict()
    text = f"{verdict}\n{found.table}"
    if evidence.attacks is not None:
        out["attacks"] = evidence.attacks.to_dict()
        text += f"\n\n{evidence.attacks}"
    out["note"] = found.note
    if note:
        text += f"\n{note}"
        out["note"] += f"; {note}"
    return Result(out, text)


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
        f"and {_MIN_HELD_OUT_ROWS} are needed"
    )
    if n_held_out == 0:
        note += " (sliceflow fit --holdout, for 100 rows or more)"
    return _no_measures(note)


def _no_measures(note: str) -> Result:
    """Measures without numbers: a note that says why there are none."""
    return Result({"metrics": [], "details": {}, "verdict": None, "note": note}, note)


def _pairs_to_keep(pairs: list[report.Pair], train: Data) -> list[report.Pair]:
    """The worst pairs of columns, which come first, and those of the heat maps."""
    in_heat_maps = set(train.columns[: report.MAX_HEAT_MAP_COLUMNS])
    kept = []
    for i, pair in enumerate(pairs):
        if i < _MAX_WORST_PAIRS or {pair[0], pair[1]} <= in_heat_maps:
            kept.append(pair)
    return kept
