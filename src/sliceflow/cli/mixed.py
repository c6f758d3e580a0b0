"""Tables of mixed columns on the command line: fit, sample, impute, evaluate, report.

A run of one has the files config.json, model.sliceflow, samples.csv, evaluation.json and report.html.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sliceflow.cli.data import held_out
from sliceflow.cli.failures import OPTIONAL, Failed, WrongUsage, as_flags
from sliceflow.cli.run_folder import Lock, RunFolder, check_new

if TYPE_CHECKING:
    from sliceflow.cli.settings import Settings

__all__ = [
    "SUFFIXES",
    "described",
    "evaluate",
    "fit",
    "impute",
    "is_mixed",
    "is_run",
    "measured",
    "rebuild",
    "sample",
    "split",
    "text_of",
]

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq", ".xlsx", ".xls")
_LEAST_TO_MEASURE = 10  # held-out rows
_FLAGS_OF_VECTORS = ("target", "keep", "particles", "quality", "amplifier")


def is_table(source: str) -> bool:
    """Whether a source is the file of a table."""
    return Path(source).suffix.lower() in SUFFIXES


def is_mixed(settings: Settings) -> bool:
    """Whether a fit is one of a `TableFlow`: of a table, without flags that fit numbers as vectors."""
    if not is_table(settings.source) or settings.vectors:
        return False
    return not any(name in settings.changed() for name in _FLAGS_OF_VECTORS)


def is_run(run: Path) -> bool:
    """Whether a folder is a run of a table of mixed columns."""
    config = run / "config.json"
    if not config.exists():
        return False
    return bool(RunFolder(run).read_json("config.json").get("data", {}).get("kind") == "mixed table")


@contextmanager
def _told(path: Path | str) -> Iterator[None]:
    """Errors of the library as those of a command."""
    try:
        with as_flags():
            yield
    except (ValueError, ImportError, FileNotFoundError) as error:
        if isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name in OPTIONAL:
            raise error.__cause__ from None
        message, _, hint = str(error).rpartition("; ")
        hint = hint if message else "check the table, the columns and the flags"
        if isinstance(error, FileNotFoundError):
            hint = "put it back, or run this in the folder where the table was fitted"
        hint = re.sub(r"columns={['\"](.*?)['\"]: '(\w+)'}", r"--column '\1=\2'", hint)
        raise Failed(message or str(error), hint) from error


def fit(
    settings: Settings,
    *,
    force: bool = False,
    resume: bool = False,
    dry_run: bool = False,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Fit a table into a run folder, and print what was written."""
    from sliceflow.cli.settings import PICTURES_ONLY

    if resume or "checkpoint_every" in settings.changed():
        flag = "--resume" if resume else "--checkpoint-every"
        raise WrongUsage(f"{flag} is not for tables, whose fits are short", "leave it out")
    for name in settings.changed():
        if name in (*PICTURES_ONLY, "skip_broken"):
            flag = f"--{name.replace('_', '-')}"
            raise WrongUsage(f"{flag} is for pictures; {settings.source} is a table", "leave it out")

    def say(text: str) -> None:
        if not quiet and not as_json:
            print(text, flush=True)

    flow, train, test = _read(settings)
    folder = RunFolder(settings.folder)
    if dry_run:
        with _told(settings.source):
            columns = flow.set_params(n_steps=0, smoothing=1.0).fit(train).columns_
        print(
            columns.to_json(orient="records", indent=2) if as_json else columns.to_string(index=False)
        )
        return
    with closing(Lock(folder.path)) as lock:
        lock.take()
        folder.check_usable(force=force, resume=False)
        say(f"{Path(settings.source).name}: {len(train)} rows of {len(train.columns)} columns to fit, "
            f"{len(test) if test is not None else 'none'} to measure with")  # fmt: skip
        begun = time.perf_counter()
        with _told(settings.source):
            flow.fit(train)
        say(flow.columns_.to_string(index=False))
        made = flow.sample(len(train), random_state=settings.seed)
        seconds = time.perf_counter() - begun
        folder.create()
        lock.take()
        folder.begin(_config(settings, flow, train, test, seconds), force=force)
        flow.save(folder / "model.sliceflow")
        made.to_csv(folder / "samples.csv", index=False)
        measures = _measured(folder, train, test, made)
        write_page(folder, train, test, made, measures)
    say(f"fitted and sampled in {seconds:.1f} s")
    say(text_of(measures))
    say(f"wrote {folder.path}: config.json, model.sliceflow, samples.csv, evaluation.json, report.html")
    if as_json:
        print(
            json.dumps(
                {"run": str(folder.path), **folder.read_json("config.json"), **measures}, indent=2
            )
        )


def _read(settings: Settings) -> tuple[Any, Any, Any]:
    """The estimator, the rows to fit, and those to measure with or None."""
    from sliceflow import TableFlow
    from sliceflow.errors import rows_of_the_file
    from sliceflow.spaces.tables.files import read_table

    with _told(settings.source):
        frame = read_table(Path(settings.source).expanduser())
    kinds = dict.fromkeys(settings.drop, "drop")
    for name in settings.drop:
        if name not in frame:
            raise WrongUsage(f"{settings.source} has no column {name!r}", f"it has {', '.join(frame)}")
    for text in settings.column:
        name, equals, kind = text.rpartition("=")
        if not equals:
            raise WrongUsage(
                f"--column {text} is not name=kind", "pass --column zip=category, for example"
            )
        kinds[name] = kind
    flow = TableFlow(
        columns=kinds or None,
        constraints=settings.constraint,
        device=settings.device,
        random_state=settings.seed,
    )
    with _told(settings.source), rows_of_the_file():
        flow.check(frame)
    return flow, *split(frame, settings.holdout)


def split(frame: Any, holdout: float = 0.1) -> tuple[Any, Any]:
    """The rows to fit, and those to measure with or None."""
    rows = held_out(len(frame), holdout)
    if rows is None:
        return frame, None
    train, test = (frame.iloc[some].reset_index(drop=True) for some in rows)
    return train, test


def _config(settings: Settings, flow: Any, train: Any, test: Any, seconds: float) -> dict[str, Any]:
    from sliceflow.cli.info import installed_version

    return {
        "command": settings.command,
        "settings": settings.as_json(),
        "data": described(Path(settings.source).stem, train, test, flow.kinds_),
        "versions": {
            name: installed_version(name) for name in ("sliceflow", "torch", "numpy", "pandas")
        },
        "seconds": seconds,
        "smoothing": flow.smoothing_,
    }


def described(name: str, train: Any, test: Any, kinds: dict[str, str]) -> dict[str, Any]:
    """What config.json says about the data."""
    return {
        "name": name,
        "what": f"{len(train)} rows of {len(train.columns)} columns",
        "kind": "mixed table",
        "columns": [str(column) for column in train.columns],
        "kinds": kinds,
        "held_out": 0 if test is None else len(test),
    }


def _measured(folder: RunFolder, train: Any, test: Any, made: Any) -> dict[str, Any]:
    """The measures, written to evaluation.json."""
    out = measured(train, test, made)
    folder.write_json("evaluation.json", out)
    return out


def measured(train: Any, test: Any, made: Any) -> dict[str, Any]:
    """The measures of samples."""
    from sliceflow.metrics.tables import table_report

    known = [name for name in train.columns if name in made]
    if test is None or len(test) < _LEAST_TO_MEASURE:
        out: dict[str, Any] = {"scores": {}, "floors": {}, "columns": {}, "pairs": []}
        held = "no" if test is None else f"only {len(test)}"
        out["note"] = f"not measured: {held} rows were held out (--holdout, for 100 rows or more)"
    else:
        report = table_report(train[known], test[known], made[known])
        out = {
            "scores": _plain(report.scores),
            "floors": _plain(report.floors),
            "columns": _plain(report.columns),
            "pairs": [list(pair) for pair in report.pairs[:200]],
            "note": f"{len(made)} samples and {len(test)} held-out rows; utility predicts "
            f"{report.target!r}; floor: one half of the held-out rows against the other",
        }
    return out


def _plain(scores: dict[str, float]) -> dict[str, float | None]:
    return {name: None if value != value else round(value, 5) for name, value in scores.items()}


def text_of(measures: dict[str, Any]) -> str:
    """The measures as lines."""

    def shown(value: float | None) -> str:
        return "–" if value is None else f"{value:.3f}"

    lines = [f"{'measure':10} {'samples':>8} {'floor':>8}"] if measures["scores"] else []
    for name, score in measures["scores"].items():
        lines.append(f"{name:10} {shown(score):>8} {shown(measures['floors'][name]):>8}")
    return "\n".join([*lines, measures["note"]])


def sample(flow: Any, out: Path, *, n: int, given: Sequence[str], seed: int) -> dict[str, Any]:
    """Write n new rows to a file."""
    from sliceflow.spaces.tables.files import write_table

    if out.suffix.lower() not in SUFFIXES:
        raise WrongUsage(f"--out {out} is not a table", f"end it with one of {', '.join(SUFFIXES)}")
    wanted = dict(_given(flow, text) for text in given)
    with _told(out):
        write_table(flow.sample(n, given=wanted or None, random_state=seed), out)
    return {"out": str(out), "n": n, "given": list(given), "seed": seed}


def _given(flow: Any, text: str) -> tuple[str, Any]:
    """A column and its value from text such as plan=gold."""
    name, equals, value = text.partition("=")
    names = list(flow.feature_names_in_)
    if not equals or name not in names:
        raise WrongUsage(
            f"--given {text} does not name a column", f"pass column=value; there are {', '.join(names)}"
        )
    try:
        return name, flow.value_of(name, value)
    except ValueError as error:
        fact, _, hint = str(error).partition("; ")
        raise WrongUsage(f"--given {text}: {fact}", hint or "pass another value") from error


def impute(
    source: Path, out: Path, *, run: Path | None, n: int, device: str, seed: int, force: bool
) -> dict[str, Any]:
    """Fill the missing cells of a table; n > 1 writes that many files."""
    from sliceflow import TableFlow
    from sliceflow.spaces.tables.files import read_table, write_table

    if out.suffix.lower() not in SUFFIXES:
        raise WrongUsage(f"--out {out} is not a table", f"end it with one of {', '.join(SUFFIXES)}")
    outs = [out] if n == 1 else [out.with_stem(f"{out.stem}-{i}") for i in range(1, n + 1)]
    for path in outs:
        check_new(path, force=force)
    with _told(source):
        frame = read_table(source)
        if run is None:
            flow: Any = TableFlow(device=device, random_state=seed).fit(frame)
        else:
            flow = RunFolder.model(run, device)
            if type(flow).__name__ != "TableFlow":
                raise WrongUsage(f"{run} is not a model of a table", "fit one, or leave --run out")
        filled = flow.impute(frame, n_samples=n, random_state=seed)
    for path, table in zip(outs, [filled] if n == 1 else filled, strict=True):
        write_table(table, path)
    cells = int(frame.isna().sum().sum())
    return {"out": [str(path) for path in outs], "cells": cells, "seed": seed}


def evaluate(run: Path, against: str | None, device: str) -> dict[str, Any]:
    """Measure the samples of a run again; against other rows without writing."""
    from sliceflow.cli.settings import Settings
    from sliceflow.metrics.tables import table_report
    from sliceflow.spaces.tables.files import read_table

    folder = RunFolder(run)
    settings = Settings.of(folder)
    _, train, test = _read(settings)
    with _told(run):
        made = RunFolder.model(run, device)
        samples: Any = made.sample(len(train), random_state=settings.seed)
        if against is None:
            measures = _measured(folder, train, test, samples)
            write_page(folder, train, test, samples, measures)
            return measures
        other = read_table(Path(against).expanduser())
        known = [name for name in train.columns if name in samples]
        missing = [name for name in known if name not in other]
        if missing:
            raise WrongUsage(
                f"{against} has no column {missing[0]!r}", "pass rows like those that were fitted"
            )
        report = table_report(train[known], other[known], samples[known])
    note = f"{len(samples)} samples and {len(other)} rows of {against}"
    return {"scores": _plain(report.scores), "floors": _plain(report.floors), "note": note}


def rebuild(run: Path) -> Path:
    """Write report.html again."""
    from sliceflow.cli.settings import Settings

    folder = RunFolder(run)
    settings = Settings.of(folder)
    _, train, test = _read(settings)
    with _told(run):
        made: Any = RunFolder.model(run, "cpu")
        samples = made.sample(len(train), random_state=settings.seed)
    write_page(folder, train, test, samples, folder.read_json("evaluation.json"))
    return folder / "report.html"


def write_page(folder: RunFolder, train: Any, test: Any, made: Any, measures: dict[str, Any]) -> None:
    """report.html of a run."""
    from sliceflow.cli.mixed_page import page

    folder.write_text("report.html", page(folder.read_json("config.json"), train, test, made, measures))
