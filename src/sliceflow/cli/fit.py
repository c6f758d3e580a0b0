"""``sliceflow fit``: from data to a run folder.

Under torchrun every rank reads the data, keeps its share and fits; the first rank does the rest.
"""

from __future__ import annotations

import datetime
import os
import platform
import sys
import time
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sliceflow.cli import evaluate, progress
from sliceflow.cli.data import Data, check_source, estimator, labels_of, read
from sliceflow.cli.failures import Failed, Say, uninterrupted
from sliceflow.cli.info import installed_version
from sliceflow.cli.run_folder import Lock, RunFolder, load_model
from sliceflow.cli.settings import PICTURES, TABLE, Settings

if TYPE_CHECKING:
    from sliceflow.models.ranks import Ranks

_PACKAGES = ("sliceflow", "torch", "numpy", "scikit-learn", "numba", "safetensors", "Pillow", "pandas")
_LONG = 120.0  # seconds: for longer fits, a shorter one is suggested


@dataclass(frozen=True, eq=False)
class _Job:
    """What is fitted, and where to; under torchrun, by which ranks."""

    settings: Settings
    folder: RunFolder
    ranks: Ranks | None
    train: Data
    test: Data | None
    flow: Any
    plan: Any


def run(
    say: Say, *, resume: bool, force: bool, dry_run: bool, **flags: Any
) -> tuple[dict[str, Any], str] | None:
    """Fit with the values of all flags."""
    flags |= {name: tuple(flags[name] or ()) for name in ("drop", "column", "constraint")}
    flags |= {name: flags[name] and str(flags[name]) for name in ("out", "data_root", "mask")}
    return fit(Settings(**flags), say, resume=resume, force=force, dry_run=dry_run)


def demo(say: Say, out: Path, device: str, force: bool) -> tuple[dict[str, Any], str] | None:
    """Fit digits by class, and say which page to open."""
    settings = Settings("digits", str(out), conditional=True, particles=5000, device=device)
    found = fit(settings, say, force=force)
    return found and (found[0], f"{found[1]}\nopen {out / 'report.html'} in a browser")


def fit(
    settings: Settings, say: Say, *, resume: bool = False, force: bool = False, dry_run: bool = False
) -> tuple[dict[str, Any], str] | None:
    """Fit into a run folder; what was found, and that as text. Ranks but the first return nothing."""
    with closing(Lock(settings.folder)) as lock, _ranks(settings.device) as ranks:
        first = ranks is None or ranks.first
        say = say if first else Say(silent=True, progress=False)
        check_source(settings.source)  # a wrong name comes before anything wrong with the folder
        settings.check()
        folder = RunFolder(settings.folder)
        if first and not dry_run:
            lock.take()
            folder.check_usable(force=force, resume=resume)
            if resume:
                settings.check_resumes(folder)
        fitted = resume and not dry_run and folder.fitted
        if fitted if ranks is None else ranks.broadcast(fitted):
            if not first:
                return None
            say(f"note: the fit in {folder.path} has ended; measuring it now")
            flow = load_model(folder.path, settings.device)
            return _finish(settings, folder, flow, read(settings), say)
        job = _prepare(settings, folder, ranks, say, first)
        if dry_run:
            return _cost(job) if first else None
        if first:
            folder.create()
            lock.take()
            folder.check_usable(force=force, resume=resume)  # again: now nobody else writes to it
            if force and not resume:
                folder.remove_checkpoint()
            if resume and not folder.has_checkpoint:
                say("note: there is no checkpoint yet; the fit starts from the beginning")
        try:
            _run(job, say, replace=force and not resume)
        except BaseException as error:
            if first:
                lock.close()
                folder.remove_failed()
            elif isinstance(error, KeyboardInterrupt):  # the first rank prints the message
                sys.exit(1)
            if failed := _with_hint(error, settings, folder):
                raise failed from error
            raise
        return _finish(settings, folder, job.flow, (job.train, job.test), say) if first else None


def _prepare(settings: Settings, folder: RunFolder, ranks: Ranks | None, say: Say, first: bool) -> _Job:
    """Read the data, choose the estimator, and make its plan."""
    say(f"reading {settings.source}")
    train, test = read(settings)
    held_out = "none" if test is None else len(test.x)
    second = "" if train.whole is None else ", by a second fit without them"
    say(f"{train.name}: {train.what} to fit, {held_out} to measure with{second}")
    for note in train.notes:  # even if silent: data are missing from here on
        say(f"note: {note}", always=first)
    labels = labels_of(settings, train)
    completes = settings.observed or settings.mask
    if train.kind == PICTURES and train.labels is not None and labels is None and not completes:
        say("note: the labels are not used; --conditional fits by class")
    flow = estimator(settings, train)
    plan = flow.plan(train.all_rows, labels)
    if plan.seconds > _LONG:
        less = "; --quality draft takes less" if train.kind != TABLE else ""
        say(f"note: this takes about {progress.seconds_text(plan.seconds)}{less}")
    return _Job(settings, folder, ranks, train, test, flow, plan)


def _cost(job: _Job) -> tuple[dict[str, Any], str]:
    """What the fit would do, and what it costs."""
    from sliceflow.devices import free_memory, resolve_device

    plan, free = job.plan, free_memory(resolve_device(job.flow.device))
    out = {"kind": job.train.kind, "data": job.train.what, "plan": str(plan), "bytes": plan.nbytes}
    memory = [] if free is None else [f"{free / 2**30:.1f} GiB of memory are free"]
    text = "\n".join([str(plan), *memory, "nothing was written"])
    return out | {"free_bytes": free, "seconds": plan.seconds}, text


def _ranks(device: str) -> AbstractContextManager[Ranks | None]:
    """The ranks that torchrun started; None without it, and then torch is not imported yet."""
    if "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        return nullcontext()
    from sliceflow.models.ranks import joined

    return joined(device)


def _run(job: _Job, say: Say, *, replace: bool) -> None:
    """Fit, and write the model. Of several ranks only the first writes."""
    from sliceflow.devices import resolve_device

    flow, train, ranks = job.flow, job.train, job.ranks
    labels, config = labels_of(job.settings, train), _config(job)
    first, x = ranks is None or ranks.first, train.all_rows
    if ranks is not None:
        ranks.broadcast("the folder is ready")
        mine = ranks.share(len(x)).slice
        x, labels = x[mine], None if labels is None else labels[mine]
    begun = False

    def begin(_: object = None) -> None:
        """Replace an earlier run at the first step: a fit that fails before it replaces nothing."""
        nonlocal begun
        if not begun:
            begun = True
            job.folder.begin(config, replace=replace)

    listeners: list[Any] = [begin] if first else []
    if say.progress:
        stages = getattr(job.plan, "stages", ())  # of pictures: their steps differ in cost
        named = [] if callable(stages) else [(stage.name, stage.n_steps) for stage in stages]
        listeners.append(progress.Progress(named))
    began = time.perf_counter()
    flow.fit(x, labels, listeners=listeners, checkpoint_dir=job.folder.checkpoint,
             checkpoint_every=job.settings.checkpoint_every, ranks=ranks)  # fmt: skip
    if not first:
        return
    if train.kind == TABLE:
        say("columns: " + ", ".join(f"{name} ({kind})" for name, kind in flow.kinds_.items()))
    with uninterrupted():
        begin()  # a fit without steps
        flow.save(job.folder / "model.sliceflow")
        device, seconds = str(resolve_device(flow.device)), time.perf_counter() - began
        config |= {"finished": _now(), "device": device, "seconds": seconds, "steps": flow.n_iter_}
        config |= {"start": flow.plan_.start} if hasattr(flow.plan_, "start") else {}
        config["classes"] = [str(c) for c in getattr(flow, "classes_", ())]
        job.folder.write_json("config.json", config)
        job.folder.remove_checkpoint()


def _with_hint(error: BaseException, settings: Settings, folder: RunFolder) -> Failed | None:
    """The error that ended a fit, with what to do about it, where that is known."""
    from sliceflow.models.checkpoints import OtherFitError
    from sliceflow.models.ranks import LostRank

    if isinstance(error, LostRank):
        return Failed(str(error), f"torchrun … -m {settings.command} --resume")
    if isinstance(error, OtherFitError):
        return Failed(error.fact, "--force starts again, without the checkpoint")
    if not isinstance(error, KeyboardInterrupt):
        return None
    if folder.fitted:
        return _interrupted(settings)
    if not folder.has_checkpoint:
        return Failed("the fit was stopped before its first step", "run it again")
    done = str(error).split(";")[0] or "the fit was stopped"
    return Failed(done, f"to resume it: {settings.command} --resume")


def _finish(
    settings: Settings, folder: RunFolder, flow: Any, data: tuple[Data, Data | None], say: Say
) -> tuple[dict[str, Any], str]:
    """What follows a fit that is written: samples, measures, the report, a summary."""
    try:
        measures = evaluate.finish(settings, folder, flow, *data, say)
    except KeyboardInterrupt as error:
        raise _interrupted(settings) from error
    files = folder.written
    out = {"run": str(folder.path), "files": files, **folder.read_json("config.json"), **measures}
    return out, f"{evaluate.as_text(measures)}\nwrote {folder.path}: {', '.join(files)}"


def _interrupted(settings: Settings) -> Failed:
    hint = f"to measure it: {settings.command} --resume"
    return Failed("interrupted; the fit itself is done and saved", hint)


def _config(job: _Job) -> dict[str, Any]:
    """Everything needed to repeat the run."""
    return {
        "command": job.settings.command,
        "settings": asdict(job.settings),
        "data": job.train.about(job.test),
        "versions": {"python": platform.python_version()}
        | {package: installed_version(package) for package in _PACKAGES},
        "machine": f"{platform.system()} {platform.machine()}",
        "started": _now(),
    }


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
