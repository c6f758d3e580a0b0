"""``sliceflow fit``: from data to a run folder, the same way for pictures, vectors and tables.

It reads, plans, fits and saves; `evaluate.finish` then draws samples, measures and reports. Under
torchrun every rank reads the data, keeps its share and fits; the first rank does the rest.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sliceflow.cli import evaluate, progress
from sliceflow.cli.data import Data, check_source, estimator, labels_of, read
from sliceflow.cli.failures import Failed
from sliceflow.cli.info import installed_version
from sliceflow.cli.interrupts import uninterrupted
from sliceflow.cli.run_folder import Lock, RunFolder, load_model
from sliceflow.cli.settings import PICTURES, TABLE, Settings

if TYPE_CHECKING:
    from sliceflow.models.ranks import Ranks

__all__ = ["fit"]

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


def fit(
    settings: Settings,
    *,
    resume: bool = False,
    force: bool = False,
    dry_run: bool = False,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Fit what the settings describe into a run folder, and print what was written."""
    with closing(Lock(settings.folder)) as lock, _ranks(settings.device) as ranks:
        first = ranks is None or ranks.first

        def say(text: str) -> None:
            if first and not quiet and not as_json:
                print(text, flush=True)

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
            if first:
                say(f"note: the fit in {folder.path} has ended; measuring it now")
                flow = load_model(folder.path, settings.device)
                _finish(settings, folder, flow, *read(settings), say, as_json=as_json)
            return
        job = _prepare(settings, folder, ranks, say, aloud=first and (quiet or as_json))
        if dry_run:
            if first:
                _print_plan(job, as_json)
            return
        if first:
            folder.create()
            lock.take()
            folder.check_usable(force=force, resume=resume)  # again: now nobody else writes to it
            if force and not resume:
                folder.remove_checkpoint()
            if resume and not folder.has_checkpoint:
                say("note: there is no checkpoint yet; the fit starts from the beginning")
        try:
            _run(job, replace=force and not resume, show_progress=first and not quiet)
        except BaseException as error:
            if first:
                lock.close()
                folder.remove_failed()
            elif isinstance(error, KeyboardInterrupt):  # the first rank prints the message
                sys.exit(1)
            _raise_with_hint(error, settings, folder)
        if first:
            _finish(settings, folder, job.flow, job.train, job.test, say, as_json=as_json)


def _prepare(
    settings: Settings, folder: RunFolder, ranks: Ranks | None, say: Callable[[str], None], aloud: bool
) -> _Job:
    """Read the data, choose the estimator, and make its plan; `aloud` notes go to stderr."""
    say(f"reading {settings.source}")
    train, test = read(settings)
    held_out = "none" if test is None else len(test.x)
    say(f"{train.name}: {train.what} to fit, {held_out} to measure with")
    for note in train.notes:  # even if quiet: data are missing from here on
        print(f"note: {note}", file=sys.stderr, flush=True) if aloud else say(f"note: {note}")
    labels = labels_of(settings, train)
    completes = settings.observed or settings.mask
    if train.kind == PICTURES and train.labels is not None and labels is None and not completes:
        say("note: the labels are not used; --conditional fits by class")
    flow = estimator(settings, train)
    plan = flow.plan(train.x, labels)
    if plan.seconds > _LONG:
        less = "; --quality draft takes less" if train.kind != TABLE else ""
        say(f"note: this takes about {progress.seconds_text(plan.seconds)}{less}")
    return _Job(settings, folder, ranks, train, test, flow, plan)


def _print_plan(job: _Job, as_json: bool) -> None:
    """What the fit would do, and what it costs."""
    from sliceflow.devices import free_memory, resolve_device

    plan, free = job.plan, free_memory(resolve_device(job.flow.device))
    if as_json:
        out: dict[str, Any] = {"kind": job.train.kind, "data": job.train.what, "plan": str(plan)}
        out |= {"bytes": plan.nbytes, "free_bytes": free, "seconds": plan.seconds}
        print(json.dumps(out, indent=2))
        return
    print(plan)
    if free is not None:
        print(f"{free / 2**30:.1f} GiB of memory are free")
    print("nothing was written")


def _ranks(device: str) -> AbstractContextManager[Ranks | None]:
    """The ranks that torchrun started; None without it, and then torch is not imported yet."""
    if "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        return nullcontext()
    from sliceflow.models.ranks import joined

    return joined(device)


def _run(job: _Job, *, replace: bool, show_progress: bool) -> None:
    """Fit, and write the model. Of several ranks only the first writes."""
    flow, train, ranks = job.flow, job.train, job.ranks
    labels, config = labels_of(job.settings, train), _config(job)
    first, x = ranks is None or ranks.first, train.x
    if ranks is not None:
        ranks.broadcast("the folder is ready")
        mine = ranks.share(len(train.x)).slice
        x, labels = x[mine], None if labels is None else labels[mine]
    begin = _Beginning(job.folder, config, replace=replace)
    listeners: list[Any] = [begin] if first else []
    if show_progress:
        listeners.append(progress.Progress(_stages(job.plan)))
    began = time.perf_counter()
    flow.fit(
        x,
        labels,
        listeners=listeners,
        checkpoint_dir=job.folder.checkpoint,
        checkpoint_every=job.settings.checkpoint_every,
        ranks=ranks,
    )
    if not first:
        return
    with uninterrupted():
        begin()  # a fit without steps
        flow.save(job.folder / "model.sliceflow")
        job.folder.write_json("config.json", config | _outcome(flow, time.perf_counter() - began))
        job.folder.remove_checkpoint()


def _stages(plan: Any) -> list[tuple[str, int]]:
    """Name and steps of the stages of pictures, whose steps differ in cost; else nothing."""
    stages = getattr(plan, "stages", ())
    return [] if callable(stages) else [(stage.name, stage.n_steps) for stage in stages]


class _Beginning:
    """Replaces an earlier run at the first step: a fit that fails before it replaces nothing."""

    def __init__(self, folder: RunFolder, config: dict[str, Any], *, replace: bool) -> None:
        self._folder, self._config, self._replace = folder, config, replace
        self._begun = False

    def __call__(self, _: object = None) -> None:
        if not self._begun:
            self._folder.begin(self._config, replace=self._replace)
            self._begun = True


def _raise_with_hint(error: BaseException, settings: Settings, folder: RunFolder) -> None:
    """Raise the error that ended a fit again, with what to do about it."""
    from sliceflow.models.checkpoints import OtherFitError
    from sliceflow.models.ranks import LostRank

    if isinstance(error, LostRank):
        raise Failed(str(error), f"torchrun … -m {settings.command} --resume") from error
    if isinstance(error, KeyboardInterrupt):
        if folder.fitted:
            raise _interrupted(settings) from error
        if not folder.has_checkpoint:
            raise Failed("the fit was stopped before its first step", "run it again") from error
        done = str(error).split(";")[0] or "the fit was stopped"
        raise Failed(done, f"to resume it: {settings.command} --resume") from error
    if isinstance(error, OtherFitError):
        raise Failed(error.fact, "--force starts again, without the checkpoint") from error
    raise error


def _finish(
    settings: Settings,
    folder: RunFolder,
    flow: Any,
    train: Data,
    test: Data | None,
    say: Callable[[str], None],
    *,
    as_json: bool,
) -> None:
    """What follows a fit that is written: samples, measures, the report, a summary."""
    try:
        measures = evaluate.finish(settings, folder, flow, train, test, say)
    except KeyboardInterrupt as error:
        raise _interrupted(settings) from error
    say(evaluate.as_text(measures))
    say(f"wrote {folder.path}: {', '.join(folder.written)}")
    if as_json:
        config = folder.read_json("config.json")
        out = {"run": str(folder.path), "files": folder.written, **config, **measures}
        print(json.dumps(out, indent=2))


def _interrupted(settings: Settings) -> Failed:
    hint = f"to measure it: {settings.command} --resume"
    return Failed("interrupted; the fit itself is done and saved", hint)


def _config(job: _Job) -> dict[str, Any]:
    """Everything needed to repeat the run."""
    train, test = job.train, job.test
    return {
        "command": job.settings.command,
        "settings": asdict(job.settings),
        "data": {
            "name": train.name,
            "kind": train.kind,
            "what": train.what,
            "columns": train.columns,
            "held_out": 0 if test is None else len(test.x),
            "notes": list(train.notes),
        },
        "versions": {"python": platform.python_version()}
        | {package: installed_version(package) for package in _PACKAGES},
        "machine": f"{platform.system()} {platform.machine()}",
        "started": _now(),
    }


def _outcome(flow: Any, seconds: float) -> dict[str, Any]:
    """What is known when the fit has ended."""
    from sliceflow.devices import resolve_device

    out: dict[str, Any] = {"finished": _now(), "device": str(resolve_device(flow.device))}
    out |= {"seconds": seconds, "steps": flow.n_iter_}
    if hasattr(flow.plan_, "start"):
        out["start"] = flow.plan_.start
    return out | {"classes": [str(c) for c in getattr(flow, "classes_", ())]}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
