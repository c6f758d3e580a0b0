"""``sliceflow fit``: from data to a run folder. It reads, fits, measures and writes, in this order.

Under torchrun every rank reads the data, keeps its share and fits; the first one does everything else.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sliceflow.cli import evaluate
from sliceflow.cli.about import version_of
from sliceflow.cli.data import Data, read
from sliceflow.cli.display import display, seconds_text
from sliceflow.cli.failures import Failed
from sliceflow.cli.run_folder import RunFolder
from sliceflow.cli.settings import Settings
from sliceflow.cli.table import write_csv

if TYPE_CHECKING:
    from sliceflow.cli.evolution import Evolution
    from sliceflow.distributed import Ranks

__all__ = ["fit"]

_KEPT = 10_000  # batched samples in samples.npz
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
        )


def _ranks(device: str) -> AbstractContextManager[Ranks | None]:
    """The ranks that torchrun has started; None without it, and then torch is not imported yet."""
    if "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        return nullcontext()
    from sliceflow.distributed import joined

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
) -> None:
    first = ranks is None or ranks.first

    def say(text: str) -> None:
        if first and not quiet and not as_json:
            print(text, flush=True)

    folder = RunFolder(settings.folder)
    if first and not dry_run:
        folder.check(force=force, resume=resume)
    train, test = read(
        settings.source,
        root=None if settings.data_root is None else Path(settings.data_root).expanduser(),
        size=settings.size,
        target=settings.target,
        skip_broken=settings.skip_broken,
        holdout=settings.holdout,
    )
    settings.check(train)
    if first and not dry_run:
        folder.make(force=force and not resume)
    flow: Any = settings.estimator(train)  # and now torch is imported
    labels = settings.labels(train)
    measured = "none" if test is None else str(len(test.x))
    say(f"{train.name}: {train.what} to fit, {measured} to measure with")
    for note in train.notes:
        say(f"note: {note}")
    if train.labels is not None and labels is None and train.pictures and settings.observed is None:
        say("note: the labels are not used; --conditional fits by class")
    if dry_run:
        from sliceflow.cli.plan import plan

        if first:
            made = plan(flow, train, labels)
            print(json.dumps(made.as_dict(), indent=2) if as_json else made)
        return

    config = _config(settings, train, test)
    if first:
        folder.write_json("config.json", config)
    evolution = _evolution(flow, train, folder) if first and train.pictures else None
    mine = slice(None)
    if ranks is not None:
        ranks.told_by_first("the folder is ready")
        mine = ranks.share(len(train.x)).slice
    if resume and not (folder.checkpoint / "fit.checkpoint").exists():
        say("note: there is no checkpoint yet; the fit starts anew")
    try:
        flow.fit(
            train.x[mine],
            None if labels is None else labels[mine],
            listeners=(
                *display(quiet=quiet or not first, progress=progress),
                *([evolution] if evolution else []),
            ),
            checkpoint_dir=folder.checkpoint,
            checkpoint_every=settings.checkpoint_every,
            ranks=ranks,
        )
    except KeyboardInterrupt as error:
        if not first:
            sys.exit(1)
        done = str(error).split(";")[0] or "the fit was stopped"
        raise KeyboardInterrupt(f"{done}; to go on: {settings.command} --resume") from error
    except Exception as error:
        if first:
            folder.clear_failed()
        if type(error).__name__ == "LostRank":
            raise Failed(str(error), f"torchrun … -m {settings.command} --resume") from error
        raise
    particles = _kept_of_all(flow, ranks)
    if not first:
        return
    folder.drop_checkpoint()

    flow.save(folder / "model.sliceflow")
    _write_history(flow.history_, folder)
    _write_samples(flow, train, folder)
    if evolution is not None:
        _write_evolution(evolution, train, folder)
    seconds = flow.history_["seconds"][-1]
    config |= {
        "finished": _now(),
        "seconds": seconds,
        "particles": particles,
        "steps": flow.n_iter_,
        "device": str(flow._device),
        "classes": [str(c) for c in getattr(flow, "classes_", [])],
    }
    folder.write_json("config.json", config)
    measures = evaluate.measure(flow, train, test, batched=flow.particles_[:_KEPT])
    folder.write_json("evaluation.json", measures.as_dict())
    evaluate.draw_neighbours(flow.particles_, train, folder / "neighbours.png")
    from sliceflow.cli.report import write_report

    write_report(folder)
    written = [name for name in RunFolder.NAMES if (folder / name).exists()]
    say(f"{particles} particles, {flow.n_iter_} steps, {seconds_text(seconds)}")
    say(measures.text())
    say(f"wrote {folder.path}: {', '.join(written)}")
    if as_json:
        json.dump(
            {"run": str(folder.path), "files": written, **config, **measures.as_dict()},
            sys.stdout,
            indent=2,
        )
        print()


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


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _config(settings: Settings, train: Data, test: Data | None) -> dict[str, Any]:
    """Everything needed to repeat the run."""
    packages = ("sliceflow", "torch", "numpy", "scikit-learn", "numba", "safetensors", "Pillow")
    return {
        "command": settings.command,
        "settings": asdict(settings),
        "data": {
            "name": train.name,
            "what": train.what,
            "kind": "pictures" if train.pictures else "table",
            "shape": list(train.x.shape),
            "dtype": str(train.x.dtype),
            "levels": train.levels,
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
    from sliceflow.pictures import Layout

    layout = Layout.of(train.x, flow.levels)
    return Evolution(
        layout,
        [(stage.h, stage.w) for stage in flow._stages(layout)],
        start_noise=flow.start_noise,
        upsampling=flow.upsampling,
        keep=folder.checkpoint / "evolution.npz",
    )


def _write_history(history: dict[str, list[Any]], folder: RunFolder) -> None:
    write_csv(folder / "history.csv", history)


def _write_samples(flow: Any, train: Data, folder: RunFolder) -> None:
    x, labels = flow.particles_[:_KEPT], flow.particle_conditions_
    labels = None if labels is None else labels[:_KEPT]
    given = {} if labels is None else {"labels": labels}
    if train.columns is None:
        from sliceflow.cli.grid import as_bytes, by_class, grid

        np.savez_compressed(folder / "samples.npz", images=x, **given)
        shown, _ = by_class(as_bytes(x, train.levels), labels)
        grid(shown).save(folder / "samples.png", optimize=True)
        return
    names, some = np.array(train.columns), train.x[:_SHOWN]
    np.savez_compressed(folder / "samples.npz", x=x, columns=names, data=some, **given)
    columns: dict[str, list[object]] = {c: x[:, i].tolist() for i, c in enumerate(train.columns)}
    if labels is not None:
        columns["label"] = labels.tolist()
    write_csv(folder / "samples.csv", columns)


def _write_evolution(evolution: Evolution, train: Data, folder: RunFolder) -> None:
    from sliceflow.cli.grid import animation, as_bytes, by_class, grid

    frames = [grid(by_class(as_bytes(p, train.levels), None, 8)[0], 32) for p in evolution.pictures()]
    animation(folder / "evolution.gif", frames)
