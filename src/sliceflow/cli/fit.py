"""``sliceflow fit``: from data to a run folder. It reads, fits, measures and writes, in this order.

Under torchrun every rank reads the data, keeps its share and fits; the first rank does the rest.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sliceflow.cli import evaluate, progress
from sliceflow.cli.data import Data, check_source, read
from sliceflow.cli.evaluate import Measures
from sliceflow.cli.failures import Failed, as_flags
from sliceflow.cli.info import installed_version
from sliceflow.cli.interrupts import DelayedInterrupt
from sliceflow.cli.run_folder import Lock, RunFolder
from sliceflow.cli.settings import Settings
from sliceflow.cli.table import write_csv
from sliceflow.metrics.floors import subsample

if TYPE_CHECKING:
    from sliceflow.engine.events import Event
    from sliceflow.models.ranks import Ranks

__all__ = ["fit"]

_KEPT = 10_000  # batched samples in samples.npz
_SHOWN = 400  # rows of a table beside them, for the report
_PACKAGES = ("sliceflow", "torch", "numpy", "scikit-learn", "numba", "safetensors", "Pillow")


def fit(
    settings: Settings,
    *,
    resume: bool = False,
    force: bool = False,
    dry_run: bool = False,
    as_json: bool = False,
    quiet: bool = False,
    show_progress: bool = True,
) -> None:
    """Fit what the settings describe into a run folder, and print what was written."""
    with closing(Lock(settings.folder)) as lock, _ranks(settings.device) as ranks:
        first = ranks is None or ranks.first

        def say(text: str) -> None:
            if first and not quiet and not as_json:
                print(text, flush=True)

        check_source(settings.source)  # a wrong name comes before anything wrong with the folder
        folder = RunFolder(settings.folder)
        if first and not dry_run:
            lock.take()
            folder.check_usable(force=force, resume=resume)
            if resume:
                settings.check_same(folder)
        fitted = resume and not dry_run and folder.fitted
        if fitted if ranks is None else ranks.broadcast(fitted):
            if first:
                say(f"note: the fit in {folder.path} has ended; measuring it now")
                root = settings.reading()["root"]
                again = partial(evaluate.evaluate_run, folder.path, None, root, settings.device)
                _measure_and_report(again, settings, folder, say, as_json=as_json)
            return
        train, test = read(settings.source, **settings.reading())
        settings.check(train)
        flow = settings.estimator(train)  # this imports torch
        job = _Job(settings, folder, ranks, train, test, flow, settings.labels(train))
        say(f"{train.name}: {train.what} to fit, {len(test.x) if test else 'none'} to measure with")
        for note in train.notes if first else ():  # even if quiet: data are missing from here on
            print(f"note: {note}", file=sys.stderr if quiet or as_json else sys.stdout, flush=True)
        completes = settings.observed or settings.mask
        if train.labels is not None and job.labels is None and train.pictures and not completes:
            say("note: the labels are not used; --conditional fits by class")
        from sliceflow.cli import plan

        planned = (flow, train, job.labels, settings)
        if dry_run:
            if first:
                with as_flags():
                    made = plan.plan(*planned)
                print(json.dumps(made.as_dict(), indent=2) if as_json else made)
            return
        if ranks is None and not (quiet or as_json or resume):
            with as_flags():
                warning = plan.long_fit(*planned)
            if warning:
                say(f"note: {warning}")
        if first:
            folder.create()
            lock.take()
            folder.check_usable(force=force, resume=resume)  # again: now nobody else writes to it
            if force and not resume:
                folder.remove_checkpoint()
            if resume and not folder.restore_checkpoint():
                say("note: there is no checkpoint yet; the fit starts from the beginning")
        delay = DelayedInterrupt()
        try:
            _run(job, delay, replace=force and not resume, show_progress=show_progress and not quiet)
        except BaseException as error:
            delay.release()
            if first:
                lock.close()
                folder.remove_failed()
            elif isinstance(error, KeyboardInterrupt):  # the first rank prints the message
                sys.exit(1)
            with as_flags():
                _raise_with_hint(error, settings, folder)
        if first:
            _measure_and_report(partial(_judge, job, delay), settings, folder, say, as_json=as_json)
        else:
            delay.release()


@dataclass(frozen=True, eq=False)
class _Job:
    """What is fitted, how, and where to; under torchrun, by which ranks."""

    settings: Settings
    folder: RunFolder
    ranks: Ranks | None
    train: Data
    test: Data | None
    flow: Any
    labels: Any

    @property
    def first(self) -> bool:
        return self.ranks is None or self.ranks.first


def _ranks(device: str) -> AbstractContextManager[Ranks | None]:
    """The ranks that torchrun started; None without it, and then torch is not imported yet."""
    if "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        return nullcontext()
    from sliceflow.models.ranks import joined

    return joined(device)


def _run(job: _Job, delay: DelayedInterrupt, *, replace: bool, show_progress: bool) -> None:
    """Fit, and write what cannot be made again. Of several ranks only the first writes."""
    flow, train, folder, ranks, labels = job.flow, job.train, job.folder, job.ranks, job.labels
    config, mine = _config(job), slice(None)
    listeners: list[Any] = []
    if ranks is not None:
        ranks.broadcast("the folder is ready")
        mine = ranks.share(len(train.x)).slice
    if job.first:
        listeners.append(_FolderListener(folder, config, replace=replace, keep=ranks is None))
        if show_progress:
            listeners += progress.listeners(flow, train)
    flow.fit(
        train.x[mine],
        None if labels is None else labels[mine],
        listeners=(*listeners, delay),
        checkpoint_dir=folder.checkpoint,
        checkpoint_every=job.settings.checkpoint_every,
        ranks=ranks,
    )
    config["particles"] = _gather_kept(flow, ranks)
    if job.first:
        _write_fit(job, config)


class _FolderListener:
    """At the first step it replaces an earlier run; at the last it keeps the checkpoint.

    So a fit that fails before its first step replaces nothing, and one that is killed while its files
    are written can be resumed.
    """

    def __init__(self, folder: RunFolder, config: dict[str, Any], *, replace: bool, keep: bool) -> None:
        self._folder, self._config, self._replace, self._keep = folder, config, replace, keep
        self._begun = False

    def __call__(self, event: Event) -> None:
        if not self._begun:
            self._folder.begin(self._config, force=self._replace)
            self._begun = True
        if self._keep and event.steps_done == event.steps_total:
            self._folder.keep_checkpoint()


def _gather_kept(flow: Any, ranks: Ranks | None) -> int:
    """How many particles there are. Ranks get the first of all, which one process would keep."""
    if ranks is None:
        return len(flow.particles_)
    place = ranks.place(len(flow.particles_))
    kept = slice(0, max(0, _KEPT - place.first))
    flow.particles_ = ranks.gather(flow.particles_[kept])
    if flow.particle_conditions_ is not None:
        flow.particle_conditions_ = ranks.gather(flow.particle_conditions_[kept])
    return place.total


def _raise_with_hint(error: BaseException, settings: Settings, folder: RunFolder) -> None:
    """Raise the error that ended a fit again, with what to do about it."""
    from sliceflow.errors import NotEnoughMemoryError
    from sliceflow.models.checkpoints import OtherFitError
    from sliceflow.models.ranks import LostRank

    if isinstance(error, LostRank):
        raise Failed(str(error), f"torchrun … -m {settings.command} --resume") from error
    if isinstance(error, KeyboardInterrupt):
        if not folder.restore_checkpoint():
            raise Failed("the fit was stopped before its first step", "run it again") from error
        done = str(error).split(";")[0] or "the fit was stopped"
        raise Failed(done, f"to resume it: {settings.command} --resume") from error
    if isinstance(error, NotEnoughMemoryError):
        columns = ", or leave columns out with --drop" if "columns" in error.fact else ""
        hint = f"lower --particles or --quality{columns}; --dry-run estimates the memory they need"
        raise Failed(error.fact, hint) from error
    if isinstance(error, OtherFitError):
        raise Failed(error.fact, "--force starts again, without the checkpoint") from error
    raise error


def _judge(job: _Job, delay: DelayedInterrupt) -> Measures:
    """Measure the samples of a fit that has just been written."""
    delay.check()
    flow, folder = job.flow, job.folder
    labels = None if flow.particle_conditions_ is None else flow.particle_conditions_[:_KEPT]
    batched = flow.particles_[:_KEPT]
    measures = evaluate.measure(flow, job.train, job.test, job.settings, batched=batched, labels=labels)
    folder.write_json("evaluation.json", measures.as_dict())
    path, mirror = folder / "neighbours.png", job.settings.mirror
    evaluate.draw_neighbours(flow.particles_, job.train, path, mirror=mirror)
    return measures


def _measure_and_report(
    judge: Callable[[], Measures],
    settings: Settings,
    folder: RunFolder,
    say: Callable[[str], None],
    *,
    as_json: bool,
) -> None:
    """What follows a fit that is written: measures, the report, a summary."""
    from sliceflow.cli.report import write_report

    try:
        measures = judge()
        write_report(folder)
    except KeyboardInterrupt as error:
        raise Failed(
            "interrupted; the fit itself is done and saved",
            f"to measure it: {settings.command} --resume",
        ) from error
    config = folder.read_json("config.json")
    written = [name for name in (*RunFolder.FILES, *RunFolder.STATE) if (folder / name).exists()]
    seconds = progress.seconds_text(config["seconds"])
    steps, planned = config["steps"], config.get("planned steps", config["steps"])
    spared = f" of {planned}, {planned - steps} spared" if steps < planned else ""
    say(f"{config['particles']} particles, {steps} steps{spared}, {seconds}")
    say(measures.text())
    say(f"wrote {folder.path}: {', '.join(written)}")
    if as_json:
        result = {"run": str(folder.path), "files": written, **config, **measures.as_dict()}
        print(json.dumps(result, indent=2))


def _write_fit(job: _Job, config: dict[str, Any]) -> None:
    """Write what cannot be made again: the model, its samples, its history."""
    from sliceflow.devices import resolve_device

    flow, folder = job.flow, job.folder
    flow.save(folder / "model.sliceflow")
    write_csv(folder / "history.csv", flow.history_)
    _write_samples(job)
    if job.train.pictures:
        from sliceflow.cli.evolution import write_evolution

        write_evolution(flow, job.train, folder / "evolution.gif", job.settings.seed)
    config |= {
        "finished": _now(),
        "seconds": flow.history_["seconds"][-1],
        "steps": flow.n_iter_,
        "planned steps": flow.plan_.n_steps + getattr(flow.plan_, "n_axis_steps", 0),
        "device": str(resolve_device(flow.device)),
        "classes": [str(c) for c in getattr(flow, "classes_", [])],
    }
    folder.write_json("config.json", config)
    folder.drop_kept_checkpoint()


def _write_samples(job: _Job) -> None:
    train, folder, target = job.train, job.folder, job.settings.target
    x, labels = job.flow.particles_[:_KEPT], job.flow.particle_conditions_
    labels = None if labels is None else labels[:_KEPT]
    given = {} if labels is None else {"labels": labels}
    if train.columns is None:
        from sliceflow.cli.grid import as_bytes, by_class, grid

        np.savez_compressed(folder / "samples.npz", images=x, **given)
        shown, _ = by_class(as_bytes(x, train.n_pixel_values), labels)
        grid(shown).save(folder / "samples.png", optimize=True)
        return
    names, some = np.array(train.columns), subsample(train.x, _SHOWN)
    np.savez_compressed(folder / "samples.npz", x=x, columns=names, data=some, **given)
    columns = dict(zip(train.columns, x.T.tolist(), strict=True))
    if labels is not None and target is not None:
        columns[target] = labels.tolist()
    write_csv(folder / "samples.csv", columns)


def _config(job: _Job) -> dict[str, Any]:
    """Everything needed to repeat the run."""
    settings, train, test = job.settings, job.train, job.test
    versions = {package: installed_version(package) for package in _PACKAGES}
    return {
        "command": settings.command,
        "settings": settings.as_json(),
        "data": {
            "name": train.name,
            "what": train.what,
            "kind": "pictures" if train.pictures else "table",
            "shape": list(train.x.shape),
            "dtype": str(train.x.dtype),
            "n_pixel_values": train.n_pixel_values,
            "columns": train.columns,
            "held_out": 0 if test is None else len(test.x),
            "notes": list(train.notes),
        },
        "versions": {"python": platform.python_version()} | versions,
        "machine": f"{platform.system()} {platform.machine()}",
        "started": _now(),
    }


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
