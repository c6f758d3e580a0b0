"""``sliceflow fit``: from data to a run folder. It reads, fits, measures and writes, in this order.

Under torchrun every rank reads the data, keeps its share and fits; the first one does everything else.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from sliceflow.cli import again, evaluate
from sliceflow.cli.about import version_of
from sliceflow.cli.data import Data, check_source, read
from sliceflow.cli.display import display, seconds_text
from sliceflow.cli.evaluate import Measures
from sliceflow.cli.failures import Failed, in_flags
from sliceflow.cli.lock import Lock
from sliceflow.cli.run_folder import RunFolder
from sliceflow.cli.settings import Settings
from sliceflow.cli.signals import Unbroken
from sliceflow.cli.table import write_csv
from sliceflow.metrics.floors import few

if TYPE_CHECKING:
    from sliceflow.cli.evolution import Evolution
    from sliceflow.engine.events import Event
    from sliceflow.ranks.ranks import Ranks

__all__ = ["fit"]

T = TypeVar("T")

_KEPT = 10_000  # batched samples in samples.npz
_FRAMES = 40  # of evolution.gif
_SHOWN = 400  # rows of a table beside them, for the report


def fit(
    settings: Settings,
    *,
    resume: bool = False,
    force: bool = False,
    dry_run: bool = False,
    as_json: bool = False,
    quiet: bool = False,
    progress: bool = True,
) -> None:
    """Fit what the settings describe into a run folder, and say what was written."""
    lock = Lock(settings.folder)
    try:
        with _ranks(settings.device) as ranks:
            _fit(
                settings,
                resume=resume,
                force=force,
                dry_run=dry_run,
                as_json=as_json,
                quiet=quiet,
                progress=progress,
                ranks=ranks,
                lock=lock,
            )
    finally:
        lock.give_back()


def _ranks(device: str) -> AbstractContextManager[Ranks | None]:
    """The ranks that torchrun has started; None without it, and then torch is not imported yet."""
    if "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        return nullcontext()
    from sliceflow.ranks.ranks import joined

    return joined(device)


def _fit(
    settings: Settings,
    *,
    resume: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    progress: bool,
    ranks: Ranks | None,
    lock: Lock,
) -> None:
    first = ranks is None or ranks.first

    def say(text: str) -> None:
        if first and not quiet and not as_json:
            print(text, flush=True)

    check_source(settings.source)  # a wrong name comes before what is wrong with the folder
    folder = RunFolder(settings.folder)
    if first and not dry_run:
        lock.take()
        folder.check(force=force, resume=resume)
        if resume:
            settings.check_same(folder)
    fitted = resume and not dry_run and folder.fitted
    if fitted if ranks is None else ranks.told_by_first(fitted):
        if first:
            say(f"note: the fit in {folder.path} has ended; it is measured now")
            root = None if settings.data_root is None else Path(settings.data_root).expanduser()
            judged_again = partial(again.evaluate, folder.path, None, root, settings.device)
            _end(settings, folder, judged_again, say, as_json=as_json)
        return
    train, test = read(
        settings.source,
        root=None if settings.data_root is None else Path(settings.data_root).expanduser(),
        size=settings.size,
        target=settings.target,
        drop=settings.drop,
        keep=settings.keep,
        skip_broken=settings.skip_broken,
        holdout=settings.holdout,
    )
    settings.check(train)
    flow: Any = settings.estimator(train)  # and now torch is imported
    labels = settings.labels(train)
    measured = "none" if test is None else str(len(test.x))
    from sliceflow.cli import plan

    say(f"{train.name}: {train.what} to fit, {measured} to measure with")
    for note in train.notes if first else ():  # also when quiet: something is missing from here on
        print(f"note: {note}", file=sys.stderr if quiet or as_json else sys.stdout, flush=True)
    if train.labels is not None and labels is None and train.pictures and settings.observed is None:
        say("note: the labels are not used; --conditional fits by class")
    if dry_run:
        if first:
            made = _planned(plan.plan, flow, train, labels, settings)
            print(json.dumps(made.as_dict(), indent=2) if as_json else made)
        return
    if ranks is None and not (quiet or as_json or resume):
        long = _planned(plan.long_fit, flow, train, labels, settings)
        if long:
            say(f"note: {long}")

    config = _config(settings, train, test)
    if first:
        folder.make()
        lock.take()
        folder.check(force=force, resume=resume)  # once more: now nobody else writes to it
        if force and not resume:
            folder.forget_checkpoint()
        if resume and not folder.go_on():
            say("note: there is no checkpoint yet; the fit starts anew")
    mine = slice(None)
    if ranks is not None:
        ranks.told_by_first("the folder is ready")
        mine = ranks.share(len(train.x)).slice
    unbroken, begun = Unbroken(), _Begun(folder if first else None, config, force and not resume)
    try:
        evolution = _evolution(flow, train, folder) if first and train.pictures else None
        last = [_Last(folder)] if ranks is None else []
        shown = display(flow, train, quiet=quiet or not first, progress=progress)
        flow.fit(
            train.x[mine],
            None if labels is None else labels[mine],
            listeners=(*shown, *([evolution] if evolution else []), begun, *last, unbroken),
            checkpoint_dir=folder.checkpoint,
            checkpoint_every=settings.checkpoint_every,
            ranks=ranks,
        )
        config["particles"] = _kept_of_all(flow, ranks)
        if not first:
            unbroken.release()
            return
        _write_fit(flow, train, evolution, config, folder)
    except BaseException as error:
        unbroken.release()
        if first:
            lock.give_back()
            folder.clear_failed()
        elif isinstance(error, KeyboardInterrupt):  # the first rank says so
            sys.exit(1)
        told = _told(error, settings, folder)
        if told is error:
            raise
        raise told from error

    def judged() -> Measures:
        unbroken.check()
        of = None if flow.particle_conditions_ is None else flow.particle_conditions_[:_KEPT]
        measures = evaluate.measure(flow, train, test, batched=flow.particles_[:_KEPT], labels=of)
        folder.write_json("evaluation.json", measures.as_dict())
        page = folder / "neighbours.png"
        evaluate.draw_neighbours(flow.particles_, train, page, mirror=settings.mirror)
        return measures

    _end(settings, folder, judged, say, as_json=as_json)


def _end(
    settings: Settings,
    folder: RunFolder,
    judged: Callable[[], Measures],
    say: Callable[[str], None],
    *,
    as_json: bool,
) -> None:
    """What comes after a fit that is written: measures, the report, word of all that."""
    from sliceflow.cli.report import write_report

    try:
        measures = judged()
        write_report(folder)
    except KeyboardInterrupt as error:
        raise Failed(
            "interrupted; the fit itself is done and saved",
            f"to measure it: {settings.command} --resume",
        ) from error
    config = folder.read_json("config.json")
    written = [name for name in (*RunFolder.FILES, *RunFolder.STATE) if (folder / name).exists()]
    say(f"{config['particles']} particles, {config['steps']} steps, {seconds_text(config['seconds'])}")
    say(measures.text())
    say(f"wrote {folder.path}: {', '.join(written)}")
    if as_json:
        told = {"run": str(folder.path), "files": written, **config, **measures.as_dict()}
        json.dump(told, sys.stdout, indent=2)
        print()


def _planned(make: Callable[..., T], *of: Any) -> T:
    """A plan, or what is wrong in the words of flags."""
    from sliceflow.errors import ParameterError

    try:
        return make(*of)
    except ParameterError as error:
        raise in_flags(error) from error


class _Last:
    """A listener: with the last step the checkpoint is kept, until all of the run is written."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def __call__(self, event: Event) -> None:
        if event.steps_done == event.steps_total:
            self._folder.keep_checkpoint()


class _Begun:
    """A listener: with the first step a run replaces what was there; one that is refused does not."""

    def __init__(self, folder: RunFolder | None, config: dict[str, Any], force: bool) -> None:
        self._folder, self._config, self._force = folder, config, force

    def __call__(self, _: object) -> None:
        if self._folder is not None:
            self._folder.begin(self._config, force=self._force)
            self._folder = None


def _kept_of_all(flow: Any, ranks: Ranks | None) -> int:
    """How many particles there are. Ranks get the first ones of all, which one process would keep."""
    if ranks is None:
        return len(flow.particles_)
    place = ranks.place(len(flow.particles_))
    kept = slice(0, max(0, _KEPT - place.first))
    flow.particles_ = ranks.gather(flow.particles_[kept])
    if flow.particle_conditions_ is not None:
        flow.particle_conditions_ = ranks.gather(flow.particle_conditions_[kept])
    return place.total


def _told(error: BaseException, settings: Settings, folder: RunFolder) -> BaseException:
    """What ended a fit, with what to do about it."""
    from sliceflow.errors import NotEnoughMemoryError, ParameterError
    from sliceflow.ranks.ranks import LostRank
    from sliceflow.storage.checkpoints import OtherFitError

    if isinstance(error, LostRank):
        return Failed(str(error), f"torchrun … -m {settings.command} --resume")
    if isinstance(error, KeyboardInterrupt):
        if not folder.go_on():
            return Failed("the fit was stopped before its first step", "run it again")
        done = str(error).split(";")[0] or "the fit was stopped"
        return Failed(done, f"to go on: {settings.command} --resume")
    if isinstance(error, ParameterError):
        return in_flags(error)
    if isinstance(error, NotEnoughMemoryError):
        columns = ", or leave columns out with --drop" if "columns" in error.fact else ""
        cure = f"lower --particles or --quality{columns}; --dry-run estimates what they take"
        return Failed(error.fact, cure)
    if isinstance(error, OtherFitError):
        return Failed(error.fact, "--force fits anew, without the checkpoint")
    return error


def _write_fit(
    flow: Any, train: Data, evolution: Evolution | None, config: dict[str, Any], folder: RunFolder
) -> None:
    """What cannot be made again: the model, its samples, how it went."""
    from sliceflow.devices import resolve_device

    flow.save(folder / "model.sliceflow")
    write_csv(folder / "history.csv", flow.history_)
    _write_samples(flow, train, config["settings"]["target"], folder)
    if evolution is not None:
        _write_evolution(evolution, train, folder)
    config |= {
        "finished": _now(),
        "seconds": flow.history_["seconds"][-1],
        "steps": flow.n_iter_,
        "device": str(resolve_device(flow.device)),
        "classes": [str(c) for c in getattr(flow, "classes_", [])],
    }
    folder.write_json("config.json", config)
    folder.drop_checkpoint()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _config(settings: Settings, train: Data, test: Data | None) -> dict[str, Any]:
    """Everything needed to repeat the run."""
    packages = ("sliceflow", "torch", "numpy", "scikit-learn", "numba", "safetensors", "Pillow")
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
        "versions": {"python": platform.python_version()} | {p: version_of(p) for p in packages},
        "machine": f"{platform.system()} {platform.machine()}",
        "started": _now(),
    }


def _evolution(flow: Any, train: Data, folder: RunFolder) -> Evolution:
    from sliceflow.cli.evolution import Evolution
    from sliceflow.pictures.layout import Layout

    layout = Layout.of(train.x, flow.n_pixel_values)
    return Evolution(
        layout,
        [(stage.h, stage.w) for stage in flow.stages(layout.height, layout.width)],
        start_noise=flow._options.start_noise,
        upsampling=flow._options.upsampling,
        keep=folder.checkpoint / "evolution.npz",
    )


def _write_samples(flow: Any, train: Data, target: str, folder: RunFolder) -> None:
    x, labels = flow.particles_[:_KEPT], flow.particle_conditions_
    labels = None if labels is None else labels[:_KEPT]
    given = {} if labels is None else {"labels": labels}
    if train.columns is None:
        from sliceflow.cli.grid import as_bytes, by_class, grid

        np.savez_compressed(folder / "samples.npz", images=x, **given)
        shown, _ = by_class(as_bytes(x, train.n_pixel_values), labels)
        grid(shown).save(folder / "samples.png", optimize=True)
        return
    names, some = np.array(train.columns), few(train.x, _SHOWN)
    np.savez_compressed(folder / "samples.npz", x=x, columns=names, data=some, **given)
    columns: dict[str, list[object]] = {c: x[:, i].tolist() for i, c in enumerate(train.columns)}
    if labels is not None:
        columns[target] = labels.tolist()
    write_csv(folder / "samples.csv", columns)


def _write_evolution(evolution: Evolution, train: Data, folder: RunFolder) -> None:
    from sliceflow.cli.grid import animation, as_bytes, by_class, grid

    taken = evolution.pictures()
    # Colours make a .gif large: fewer frames, and fewer pictures.
    taken = [taken[i] for i in np.unique(np.linspace(0, len(taken) - 1, _FRAMES).round().astype(int))]
    side, n = 8 if train.x.ndim == 3 else 6, len(taken[-1])
    some = np.arange(min(n, side**2)) * n // min(n, side**2)  # spread: they may come class by class
    shown = (by_class(as_bytes(p[some], train.n_pixel_values), None, side)[0] for p in taken)
    frames = [grid(p, 32, ground=128) for p in shown]  # a .gif has no page's colour: grey
    animation(folder / "evolution.gif", frames)
