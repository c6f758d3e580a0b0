"""``sliceflow fit``: from data to a run folder.

Under torchrun every rank reads the data, keeps its share and fits; the first rank does the rest.
"""

from __future__ import annotations

import datetime
import os
import platform
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sliceflow.cli import evaluate, progress
from sliceflow.cli.data import Data, estimator, read
from sliceflow.cli.failures import Failed, Say, WrongUsage
from sliceflow.cli.info import CORE, installed
from sliceflow.cli.run_folder import RunFolder, load_model
from sliceflow.cli.settings import TABLE, Settings
from sliceflow.errors import rows_of_the_file

if TYPE_CHECKING:
    from sliceflow.models.estimator import PreparedFit
    from sliceflow.models.ranks import Ranks

_PACKAGES = ("sliceflow", *CORE, "Pillow", "pandas")


@dataclass(frozen=True, eq=False)
class _Job:
    """What is fitted, and to which data."""

    settings: Settings
    train: Data
    test: Data | None
    prepared: PreparedFit
    ranks: Ranks | None  # of a flow
    began: float


def fit(
    say: Say,
    *,
    resume: bool = False,
    dry_run: bool = False,
    force: bool = False,
    **flags: Any,
) -> tuple[dict[str, Any], str] | None:
    """Fit data into a run folder: model, samples, measures, a report."""
    if resume and force:
        raise WrongUsage("--resume and --force exclude each other", "choose one")
    settings = Settings(**flags)
    settings.check()  # what is wrong with the data comes before anything wrong with the folder
    folder = RunFolder(settings.folder)
    with _ranks(settings.device) as ranks:
        first = ranks is None or ranks.first
        say = say if first else Say(silent=True, progress=False)
        if dry_run:
            job = _prepare(settings, ranks, say)
            return _cost(job) if first else None
        with folder.locked(force=force, resume=resume) if first else nullcontext():
            return _fit(settings, folder, ranks, say, resume=resume, force=force)


def _fit(
    settings: Settings,
    folder: RunFolder,
    ranks: Ranks | None,
    say: Say,
    *,
    resume: bool,
    force: bool,
) -> tuple[dict[str, Any], str] | None:
    first = ranks is None or ranks.first
    if resume and first:
        settings.check_resumes(folder)
    fitted = resume and folder.fitted
    if fitted if ranks is None else ranks.broadcast(fitted):
        if not first:
            return None
        say(f"note: the fit in {folder.path} has ended; measuring it now")
        flow = load_model(folder.path, settings.device)
        return _finish(settings, folder, flow, read(settings), say)
    job = _prepare(settings, ranks, say)
    if resume and not folder.has_checkpoint:
        say("note: there is no checkpoint yet; the fit starts from the beginning")
    try:
        _run(job, folder, say, replace=force)
    except BaseException as error:
        if first:
            folder.remove_failed()
        elif isinstance(error, KeyboardInterrupt):  # the first rank prints the message
            sys.exit(1)
        if failed := _with_hint(error, settings, folder):
            raise failed from error
        raise
    flow = job.prepared.estimator
    data = (job.train, job.test)
    return _finish(settings, folder, flow, data, say) if first else None


def _prepare(settings: Settings, ranks: Ranks | None, say: Say) -> _Job:
    """Read the data, choose the estimator, and plan its fit."""
    say(f"reading {settings.source}")
    train, test = read(settings)
    held_out = "none" if test is None else len(test.x)
    second = "" if train.whole is None else ", by a second fit without them"
    say(f"{train.name}: {train.what} to fit, {held_out} to measure with{second}")
    for note in train.notes:  # even if silent: data are missing from here on
        say(f"note: {note}", always=ranks is None or ranks.first)
    x = train.all_rows
    labels = train.labels if settings.conditional else None
    completes = settings.observed or settings.mask
    if train.labels is not None and labels is None and not completes:
        say("note: the labels are not used; --conditional fits by class")
    if ranks is not None:
        x = ranks.mine(x)
        labels = None if labels is None else ranks.mine(labels)
    say("planning the fit")
    began = time.perf_counter()
    with rows_of_the_file() if train.kind == TABLE else nullcontext():
        flow = estimator(settings, train)
        if train.kind == TABLE:
            prepared = flow.prepare(x, labels)
        else:
            prepared = flow.prepare(x, labels, ranks=ranks)
    return _Job(settings, train, test, prepared, ranks, began)


def _cost(job: _Job) -> tuple[dict[str, Any], str]:
    """What the fit would do, and what it costs."""
    from sliceflow.devices import free_memory, resolve_device

    plan = job.prepared.plan
    free = free_memory(resolve_device(plan.device))
    out = {
        "kind": job.train.kind,
        "data": job.train.what,
        "plan": str(plan),
        "bytes": plan.nbytes,
    }
    memory = [] if free is None else [f"{free / 2**30:.1f} GiB of memory are free"]
    text = "\n".join([str(plan), *memory, "nothing was written"])
    return out | {"free_bytes": free, "seconds": plan.seconds}, text


def _ranks(device: str) -> AbstractContextManager[Ranks | None]:
    """The ranks that torchrun started; None without it, and then torch is not imported yet."""
    if "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        return nullcontext()
    from sliceflow.models.ranks import joined

    return joined(device)


def _run(job: _Job, folder: RunFolder, say: Say, *, replace: bool) -> None:
    """Fit, and write the model. Of several ranks only the first writes."""
    from sliceflow.devices import resolve_device

    ranks = job.ranks
    first = ranks is None or ranks.first
    config: dict[str, Any] = {  # everything needed to repeat the run
        "command": job.settings.command,
        "settings": asdict(job.settings),
        "data": job.train.about(job.test),
        "versions": installed(*_PACKAGES),
        "machine": f"{platform.system()} {platform.machine()}",
        "started": _now(),
    }
    if first:
        folder.begin(config, replace=replace)
    if ranks is not None:
        ranks.broadcast("the folder is ready")
    listeners: list[Any] = []
    if say.progress:
        stages = getattr(
            job.prepared.plan, "stages", ()
        )  # of pictures: their steps differ in cost
        named = (
            []
            if callable(stages)
            else [(stage.name, stage.n_steps) for stage in stages]
        )
        listeners.append(progress.Progress(named))
    flow = job.prepared.estimator
    more: dict[str, Any] = {}
    if job.train.kind != TABLE:  # which is fitted too fast for checkpoints
        more["checkpoint_dir"] = folder.checkpoint
        more["checkpoint_every"] = job.settings.checkpoint_every
    flow.fit(job.prepared, listeners=listeners, **more)
    if not first:
        return
    if job.train.kind == TABLE:
        say(
            "columns: "
            + ", ".join(f"{name} ({kind})" for name, kind in flow.kinds_.items())
        )
    flow.save(folder / "model.sliceflow")
    device = str(resolve_device(flow.device))
    seconds = time.perf_counter() - job.began
    config |= {
        "finished": _now(),
        "device": device,
        "seconds": seconds,
        "steps": flow.n_iter_,
    }
    config |= {"start": flow.plan_.start} if hasattr(flow.plan_, "start") else {}
    config["classes"] = [str(c) for c in getattr(flow, "classes_", ())]
    folder.write_json("config.json", config)
    folder.remove_checkpoint()


def _with_hint(
    error: BaseException, settings: Settings, folder: RunFolder
) -> Failed | None:
    """The error that ended a fit, with what to do about it, where that is known."""
    from sliceflow.models.checkpoints import OtherFitError
    from sliceflow.models.ranks import LostRankError

    if isinstance(error, LostRankError):
        return Failed(str(error), f"torchrun … -m {settings.command} --resume")
    if isinstance(error, OtherFitError):
        return Failed(error.fact, "--force starts again, without the checkpoint")
    if not isinstance(error, KeyboardInterrupt):
        return None
    if not folder.has_checkpoint:
        return Failed("the fit was stopped before its first checkpoint", "run it again")
    done = str(error).split(";")[0] or "the fit was stopped"
    return Failed(done, f"to resume it: {settings.command} --resume")


def _finish(
    settings: Settings,
    folder: RunFolder,
    flow: Any,
    data: tuple[Data, Data | None],
    say: Say,
) -> tuple[dict[str, Any], str]:
    """What follows a fit that is written: samples, measures, the report, a summary."""
    try:
        measures, text = evaluate.finish(settings, folder, flow, *data, say)
    except KeyboardInterrupt as error:
        hint = f"to measure it: {settings.command} --resume"
        raise Failed("interrupted; the fit itself is done and saved", hint) from error
    files = folder.written
    out = {
        "run": str(folder.path),
        "files": files,
        **folder.read_json("config.json"),
        **measures,
    }
    said = f"wrote {folder.path}: {', '.join(files)}\nopen {folder / 'report.html'} in a browser"
    return out, f"{text}\n{said}"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
