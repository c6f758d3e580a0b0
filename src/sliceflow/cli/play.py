"""``sliceflow play``: what the page needs of run folders and files, and the server until Ctrl-C.

torch is imported in the background, so that the page is there at once.
"""

from __future__ import annotations

import threading
import time
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from sliceflow.app.pictures import Gallery, Run
from sliceflow.app.points import gif
from sliceflow.app.server import PlayServer, Route
from sliceflow.app.sessions import Sessions
from sliceflow.app.tables import TableState
from sliceflow.cli.failures import Failed, WrongUsage
from sliceflow.cli.run_folder import RunFolder

__all__ = ["PICTURE_LIMIT", "TABLE_LIMIT", "fit_and_report", "play", "run_of", "runs_in", "server"]

TABLE_LIMIT, PICTURE_LIMIT = 64 << 20, 16 << 20  # bytes


def play(runs: Sequence[Path], *, open_browser: bool, device: str) -> None:
    """Serve the page until Ctrl-C."""
    models = [run_of(path, device) for path in runs or runs_in(Path("runs"))]
    with server(models) as serving:
        print(f"open {serving.address}", "Ctrl-C ends it.", sep="\n", flush=True)
        threading.Thread(target=_warm, args=(models,), daemon=True).start()
        if open_browser:
            threading.Thread(target=webbrowser.open, args=(serving.address,), daemon=True).start()
        try:
            serving.serve_forever()
        except KeyboardInterrupt:
            print("\nended", flush=True)


def server(runs: Sequence[Run]) -> PlayServer:
    """The server of the page, bound to a free port; `serve_forever` runs it."""
    gallery = Gallery(runs, _read_picture)
    sessions: Sessions[TableState] = Sessions(lambda: TableState(fit_and_report))
    routes = {
        "gif": Route(gif),
        "runs": Route(gallery.names),
        "about": Route(gallery.about),
        "samples": Route(gallery.samples),
        "chosen": Route(gallery.chosen),
        "picture": Route(gallery.upload, limit=PICTURE_LIMIT),
        "complete": Route(gallery.completed),
        "table": Route(lambda request: request.session.status(request)),
        "table/upload": Route(lambda request: request.session.upload(request), limit=TABLE_LIMIT),
        "table/fit": Route(lambda request: request.session.fit(request)),
        "table/cancel": Route(lambda request: request.session.cancel(request)),
        "table/samples": Route(lambda request: request.session.samples(request)),
        "table/report": Route(lambda request: request.session.report(request), post=False),
    }
    return PlayServer(routes, sessions)


def fit_and_report(flow: Any, frame: Any, name: str, tell: Callable[[int], None]) -> str:
    """Fit a table, all but the rows held out to measure with; the page of its report."""
    from sliceflow.cli.mixed import described, measured, split
    from sliceflow.cli.mixed_page import page
    from sliceflow.cli.settings import Settings

    train, test = split(frame)
    begun = time.perf_counter()
    tell(1)
    flow.fit(train)
    tell(2)
    made = flow.sample(len(train), random_state=0)
    seconds = time.perf_counter() - begun
    tell(3)
    kinds = tuple(f"{column}={kind}" for column, kind in (flow.columns or {}).items())
    config = {
        "data": described(PurePath(name).stem, train, test, flow.kinds_),
        "command": Settings(name, column=kinds).command,
        "seconds": seconds,
    }
    return page(config, train, test, made, measured(train, test, made))


def runs_in(folder: Path) -> list[Path]:
    """Runs of pictures in a folder, those of the last fit first."""
    models = sorted(folder.glob("*/model.sliceflow"), key=lambda path: -path.stat().st_mtime)
    return [model.parent for model in models if _may_be_of_pictures(model.parent)]


def _may_be_of_pictures(run: Path) -> bool:
    """Whether no config.json says that a run is of something else."""
    with suppress(Failed, AttributeError):
        kind = RunFolder(run).read_json("config.json").get("data", {}).get("kind", "pictures")
        return bool(kind == "pictures")
    return True


def run_of(path: Path, device: str = "auto") -> Run:
    """A run folder or a model file, for the page."""
    model = path / "model.sliceflow" if path.is_dir() else path
    if not model.is_file():
        raise WrongUsage(f"{model} does not exist", "name a run folder or a .sliceflow file")

    def read() -> tuple[Any, Any]:
        from sliceflow.cli.data import read
        from sliceflow.cli.settings import Settings

        if not path.is_dir():
            raise ValueError("a model file does not say where they are; name its run folder")
        settings = Settings.of(RunFolder(path))
        return read(settings.source, **settings.reading())

    return Run(str(path), lambda: RunFolder.model(path, device), read)


def _read_picture(file: Path, layout: Any) -> np.ndarray:
    from sliceflow.cli.sample import read_pictures

    return read_pictures(file, layout, resize=True)


def _warm(runs: Sequence[Run]) -> None:
    """Import what the tabs will need, and load the first model; its errors are told when asked for."""
    with suppress(Exception):
        import sliceflow.loading  # noqa: F401

        for run in runs[:1]:
            _ = run.flow
