"""``sliceflow fit``: from data to a run folder.

Under torchrun every rank reads the data, keeps its share and fits. The first rank does
the rest.
"""

from __future__ import annotations

import datetime
import platform
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from sliceflow.base.ranks import Communicator, LostRankError, joined
from sliceflow.cli.data import (
    Input,
    PictureInput,
    TableInput,
    make_image_flow,
    make_table_flow,
    read_data,
)
from sliceflow.cli.failures import (
    CommandError,
    Output,
    UsageError,
    as_command_error,
    errors_with_file_rows,
)
from sliceflow.cli.info import CORE_PACKAGES, installed_versions
from sliceflow.cli.measure_costs import estimate_seconds
from sliceflow.cli.messy_tables import report_on_all_columns
from sliceflow.cli.picture_run import PictureRun
from sliceflow.cli.progress import progress_bars
from sliceflow.cli.results import Result
from sliceflow.cli.run_folder import RunFolder, load_model
from sliceflow.cli.run_kinds import as_fitted_run
from sliceflow.cli.settings import TABLE, Settings
from sliceflow.cli.table_run import TableRun
from sliceflow.wording import format_bytes, format_duration

if TYPE_CHECKING:
    from sliceflow import ImageFlow, TableFlow
    from sliceflow.app.server import JsonObject
    from sliceflow.base.prepared_fit import PreparedFit
    from sliceflow.base.protocols import AnyPlannedFit


@dataclass(frozen=True, eq=False)
class _PlannedRun:
    """A run whose fit is planned: data, estimator and ranks."""

    settings: Settings
    train: Input
    held_out: Input | None
    estimator: ImageFlow | TableFlow
    prepared: PreparedFit[AnyPlannedFit]
    ranks: Communicator
    started_at: float


def fit(
    output: Output,
    settings: Settings,
    *,
    resume: bool = False,
    dry_run: bool = False,
    force: bool = False,
) -> Result | None:
    """Fit data into a run folder: model, samples, measures, a report.

    Pictures are fitted by a flow of particles (ImageFlow). Tables are fitted column
    after column, each given those before it, by trees (TableFlow).
    """
    if resume and force:
        raise UsageError("--resume and --force exclude each other", "choose one")
    # What is wrong with the data comes before anything that is wrong with the folder.
    settings.check()
    folder = RunFolder(settings.folder)
    with joined(settings.device) as ranks:
        if not ranks.is_main:
            output = Output(silent=True, progress=False)
        if dry_run:
            planned_run = _prepare(settings, ranks, output)
            return _estimate_cost(planned_run) if ranks.is_main else None
        lock: AbstractContextManager[None] = nullcontext()
        if ranks.is_main:
            lock = folder.locked(force=force, resume=resume)
        with lock:
            if resume:
                return _resume(settings, folder, ranks, output)
            return _start(settings, folder, ranks, output, replace=force)


def _resume(
    settings: Settings, folder: RunFolder, ranks: Communicator, output: Output
) -> Result | None:
    """Continue an interrupted run: its fit, or only its measures."""
    if ranks.is_main:
        settings.check_resumes(folder)
    is_fitted = ranks.broadcast(folder.is_fitted)
    if not is_fitted:
        if settings.kind == TABLE:
            output.say("note: a table has no checkpoints; it is fitted again")
        elif not folder.has_checkpoint:
            output.say("note: there is no checkpoint yet; the fit starts again")
        return _start(settings, folder, ranks, output, replace=False)
    if not ranks.is_main:
        return None
    output.say(f"note: the fit in {folder.path} has ended; measuring it now")
    model = load_model(folder.path, settings.device)
    train, held_out = read_data(settings)
    return _measure_and_summarize(
        as_fitted_run(settings, model, train, held_out, output), folder
    )


def _start(
    settings: Settings,
    folder: RunFolder,
    ranks: Communicator,
    output: Output,
    *,
    replace: bool,
) -> Result | None:
    """Fit the data, from the last checkpoint if there is one, and measure the model."""
    planned_run = _prepare(settings, ranks, output)
    try:
        _fit_and_save(planned_run, folder, output, replace=replace)
    except BaseException as error:
        if ranks.is_main:
            folder.remove_failed()
        elif isinstance(error, KeyboardInterrupt):
            sys.exit(1)  # the first rank prints the message
        explained = _explain_failure(error, settings, folder)
        if explained is None:
            raise
        raise explained from error
    if not ranks.is_main:
        return None
    fitted_run = as_fitted_run(
        settings, planned_run.estimator, planned_run.train, planned_run.held_out, output
    )
    return _measure_and_summarize(fitted_run, folder)


def _prepare(settings: Settings, ranks: Communicator, output: Output) -> _PlannedRun:
    """Read the data, choose the estimator, and plan its fit."""
    output.say(f"reading {settings.source}")
    train, held_out = read_data(settings)
    _say_what_was_read(train, held_out, output, says_notes=ranks.is_main)
    if ranks.size > 1 and isinstance(train, TableInput):
        fact = "a table is fitted by one process, not by several"
        raise UsageError(fact, "run sliceflow fit without torchrun")
    output.say("planning the fit")
    from sliceflow.devices import resolve_device

    resolve_device(settings.device)  # imports torch; an error for a wrong device
    started_at = time.perf_counter()
    estimator: ImageFlow | TableFlow
    prepared: PreparedFit[AnyPlannedFit]
    if isinstance(train, TableInput):
        estimator = make_table_flow(settings, train.free_text)
        prepared = _prepare_table(estimator, train)
    else:
        estimator = make_image_flow(settings, train)
        prepared = _prepare_pictures(estimator, train, ranks)
    return _PlannedRun(
        settings, train, held_out, estimator, prepared, ranks, started_at
    )


def _prepare_table(
    estimator: TableFlow, train: TableInput
) -> PreparedFit[AnyPlannedFit]:
    """Plan the fit of a table; an error tells of all columns that cannot be used."""
    table = train.fitted_rows
    with (
        errors_with_file_rows(),
        report_on_all_columns(table, estimator.kinds or {}),
    ):
        return estimator.prepare(table)


def _prepare_pictures(
    estimator: ImageFlow, train: PictureInput, ranks: Communicator
) -> PreparedFit[AnyPlannedFit]:
    """Plan the fit of pictures, of which each of several ranks has its share."""
    pictures = train.x
    labels = train.labels
    if ranks.size > 1:
        pictures = ranks.own_rows(pictures)
        if labels is not None:
            labels = ranks.own_rows(labels)
    return estimator.prepare(pictures, labels, ranks=ranks)


def _say_what_was_read(
    train: Input, held_out: Input | None, output: Output, *, says_notes: bool
) -> None:
    """Print how many rows there are, and in notes what was left out of the data."""
    n_held_out = "none" if held_out is None else held_out.n_rows
    text = f"{train.name}: {train.description} to fit, {n_held_out} to measure with"
    if isinstance(train, TableInput) and train.full_table is not None:
        text += ", by a second fit without them"
    output.say(text)
    if says_notes:
        for note in train.notes:
            output.say_always(f"note: {note}")  # the fit goes on without these data


def _estimate_cost(planned_run: _PlannedRun) -> Result:
    """What the fit would do, and what it costs."""
    from sliceflow.devices import free_memory, resolve_device

    plan = planned_run.prepared.plan
    free = free_memory(resolve_device(plan.device))
    lines = [str(plan), *_describe_time(planned_run)]
    if free is not None:
        lines.append(f"{format_bytes(free)} of memory are free")
    lines.append("nothing was written")
    found = {
        "kind": planned_run.train.kind,
        "data": planned_run.train.description,
        "plan": str(plan),
        "bytes": plan.nbytes,
        "free_bytes": free,
        "seconds": plan.seconds,
        "measure_seconds": _seconds_to_measure(planned_run),
    }
    return Result(found, "\n".join(lines))


def _seconds_to_measure(planned_run: _PlannedRun) -> float | None:
    """About how long the measures take; None if there are none, or nobody knows."""
    if planned_run.settings.no_measure:
        return None
    seconds = planned_run.prepared.plan.seconds
    device = planned_run.prepared.plan.device
    return estimate_seconds(planned_run.train, planned_run.held_out, seconds, device)


def _describe_time(planned_run: _PlannedRun) -> list[str]:
    """A line with the times of the fit and the measures, as far as they are known."""
    times = []
    seconds = planned_run.prepared.plan.seconds
    if seconds:
        times.append(f"about {format_duration(seconds)} to fit")
    seconds_to_measure = _seconds_to_measure(planned_run)
    if seconds_to_measure is not None:
        measuring = f"about {format_duration(seconds_to_measure)} to measure"
        times.append(f"{measuring} (--no-measure leaves that out)")
    if not times:
        return []
    return [", then ".join(times)]


def _fit_and_save(
    planned_run: _PlannedRun, folder: RunFolder, output: Output, *, replace: bool
) -> None:
    """Fit, and write the model. Of several ranks only the first one writes."""
    config = _describe_run(planned_run)
    if planned_run.ranks.is_main:
        folder.begin(config, replace=replace)
        for line in _describe_time(planned_run):
            output.say(line)
    planned_run.ranks.broadcast("the folder is ready")  # other ranks wait for it
    _fit_estimator(planned_run, folder, output)
    if not planned_run.ranks.is_main:
        return
    model = planned_run.estimator
    model.save(folder / "model.sliceflow")
    folder.write_json("config.json", config | _describe_fit(planned_run))
    folder.remove_checkpoint()


def _fit_estimator(planned_run: _PlannedRun, folder: RunFolder, output: Output) -> None:
    """Fit, with a progress bar. Flows write checkpoints; tables are fitted fast."""
    from sliceflow import TableFlow
    from sliceflow.estimators.pictures.plan import PicturePlan

    model = planned_run.estimator
    if isinstance(model, TableFlow):
        model.fit(planned_run.prepared, listeners=progress_bars(output))
        kinds = [f"{name} ({kind})" for name, kind in model.kinds_.items()]
        output.say(f"columns: {', '.join(kinds)}")
        return
    plan = planned_run.prepared.plan
    stages = plan.picture_stages if isinstance(plan, PicturePlan) else ()
    model.fit(
        planned_run.prepared,
        listeners=progress_bars(output, stages),
        checkpoint_dir=folder.checkpoint,
        checkpoint_every=planned_run.settings.checkpoint_every,
        keep_checkpoint=True,  # until the model is saved: a disk may be full
    )


def _describe_run(planned_run: _PlannedRun) -> JsonObject:
    """What config.json says when the fit begins: everything needed to repeat it."""
    return {
        "command": planned_run.settings.command,
        "settings": asdict(planned_run.settings),
        "data": planned_run.train.summary(planned_run.held_out),
        "versions": installed_versions(*CORE_PACKAGES, "Pillow", "pandas"),
        "machine": f"{platform.system()} {platform.machine()}",
        "started": _now(),
    }


def _describe_fit(planned_run: _PlannedRun) -> JsonObject:
    """What config.json also says when the fit has ended."""
    from sliceflow import TableFlow
    from sliceflow.devices import resolve_device

    out = {"finished": _now(), "seconds": time.perf_counter() - planned_run.started_at}
    model = planned_run.estimator
    if isinstance(model, TableFlow):
        return out | {"device": "cpu", "classes": []}
    return out | {
        "device": str(resolve_device(planned_run.settings.device)),
        "steps": model.n_iter_,
        "start": model.plan_.start,
        "classes": [str(label) for label in getattr(model, "classes_", ())],
    }


def _explain_failure(
    error: BaseException, settings: Settings, folder: RunFolder
) -> CommandError | None:
    """The error that ended a fit, with a hint at what to do, where that is known."""
    from sliceflow.base.checkpoints import CheckpointMismatchError, FitInterrupted

    if isinstance(error, LostRankError):
        return CommandError(str(error), f"torchrun … -m {settings.command} --resume")
    if isinstance(error, CheckpointMismatchError):
        return CommandError(error.fact, "--force starts again, without the checkpoint")
    if isinstance(error, OSError) and folder.has_checkpoint:
        failure = as_command_error(error, ())
        hint = f"{failure.hint}; to resume it: {settings.command} --resume"
        return CommandError(failure.fact, hint)
    if not isinstance(error, KeyboardInterrupt):
        return None
    if not folder.has_checkpoint:
        fact = "the fit was stopped before its first checkpoint"
        if settings.kind == TABLE:
            fact = "the fit was stopped"
        return CommandError(fact, "run it again")
    fact = "the fit was stopped"
    if isinstance(error, FitInterrupted):
        fact = error.fact
    return CommandError(fact, f"to resume it: {settings.command} --resume")


def _measure_and_summarize(
    fitted_run: PictureRun | TableRun, folder: RunFolder
) -> Result:
    """What follows a fit that is written: samples, measures, the report, a summary."""
    try:
        measures = fitted_run.measure_and_report(folder)
    except KeyboardInterrupt as error:
        fact = "interrupted; the fit itself is done and saved"
        hint = f"to measure it: {fitted_run.settings.command} --resume"
        raise CommandError(fact, hint) from error
    files = folder.files
    found = {
        "run": str(folder.path),
        "files": files,
        **folder.read_json("config.json"),
        **measures.json,
    }
    text = (
        f"{measures.text}\n"
        f"wrote {folder.path}: {', '.join(files)}\n"
        f"open {folder / 'report.html'} in a browser"
    )
    return Result(found, text)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
