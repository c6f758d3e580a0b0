"""``sliceflow play``: what the page needs of run folders and files, and the server until Ctrl-C."""

from __future__ import annotations

import threading
import time
import webbrowser
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from sliceflow.app.pictures import Gallery, Run
from sliceflow.app.server import PlayServer, Route
from sliceflow.app.tables import TableTab
from sliceflow.cli import data
from sliceflow.cli.draw import read_pictures
from sliceflow.cli.failures import KIND_IN_PYTHON, Say
from sliceflow.cli.run_folder import RunFolder, load_model, model_file
from sliceflow.cli.settings import TABLE, Settings
from sliceflow.errors import rows_of_the_file

TABLE_LIMIT = 64 << 20
PICTURE_LIMIT = 16 << 20  # bytes
_read_picture = partial(read_pictures, resize=True)


def play(
    runs: list[Path] | None = None, no_browser: bool = False, device: str = "auto"
) -> None:
    """Open a page in the browser: paint points, look at pictures, complete them, fit a table."""
    models = [run_of(path, device) for path in runs or runs_in(Path("runs"))] or [
        _digits(device)
    ]
    gallery = Gallery(models, _read_picture)
    table = TableTab(TableWork, _example())
    with closing(table), server(gallery, table) as serving:
        print(f"open {serving.address}", "Ctrl-C ends it.", sep="\n", flush=True)
        threading.Thread(target=_warm, args=(gallery,), daemon=True).start()
        if not no_browser:
            threading.Thread(
                target=webbrowser.open, args=(serving.address,), daemon=True
            ).start()
        try:
            serving.serve_forever()
        except KeyboardInterrupt:
            print("\nended", flush=True)


def server(gallery: Gallery, table: TableTab) -> PlayServer:
    """The server of the page, bound to a free port; `serve_forever` runs it."""
    names = {"runs": [run.name for run in gallery.runs]}
    plain: dict[str, Any] = {"runs": lambda _: names, "about": gallery.about}
    plain |= {
        "samples": gallery.samples,
        "chosen": gallery.chosen,
        "complete": gallery.completed,
    }
    plain["table"] = table.status
    for name in ("fit", "cancel", "samples", "imputed"):
        plain[f"table/{name}"] = getattr(table, name)
    routes = {name: Route(answer) for name, answer in plain.items()}
    routes["picture"] = Route(gallery.upload, limit=PICTURE_LIMIT)
    routes["table/upload"] = Route(table.upload, limit=TABLE_LIMIT)
    routes["table/report"] = Route(table.report, post=False)
    return PlayServer(routes)


class TableWork:
    """What the process of the tab Table does: the pipeline of ``sliceflow fit``, step by step."""

    def __init__(self) -> None:
        self._frame: Any = None
        self._flow: Any = None
        with suppress(ImportError):  # is told when it is needed
            import sliceflow.spaces.tables.estimator  # noqa: F401

    def read(self, path: str) -> dict[str, Any]:
        """Read a file; what its columns were understood as."""
        from sliceflow.spaces.tables.files import read_table

        self._frame = read_table(path)
        return {"columns": infer_schema(self._frame), "rows": len(self._frame)}

    def fit(
        self,
        kinds: dict[str, str],
        constraints: list[str],
        name: str,
        notify: Callable[[int], None],
    ) -> str:
        """Fit all rows, and measure as ``sliceflow fit`` does; the page of the report."""
        from sliceflow.cli import evaluate, report

        column = [f"{name}={kind}" for name, kind in kinds.items()]
        settings = Settings(name, column=column or None, constraint=constraints or None)
        begun = time.monotonic()
        notify(1)
        try:
            whole = data.Data(PurePath(name).stem, TABLE, self._frame)
            with rows_of_the_file():
                flow = data.estimator(settings, whole).fit(self._frame)
        except ValueError as error:
            raise ValueError(
                KIND_IN_PYTHON.sub(r"choose \2 for \1", str(error))
            ) from error
        seconds = time.monotonic() - begun
        notify(2)
        train, test = data.split(whole, settings.holdout)
        drawn = evaluate.draw(flow, settings, train, test)
        notify(3)
        say = Say(silent=True, progress=False)
        measures, _ = evaluate.measure_fit(flow, settings, train, test, drawn, say)
        self._flow = flow
        config = {
            "data": train.about(test),
            "command": settings.command,
            "seconds": seconds,
        }
        return report.page(config, measures, flow, train, drawn)

    def sample(self, n: int, seed: int, given: dict[str, str]) -> bytes:
        values = {name: self._flow.value_of(name, text) for name, text in given.items()}
        return _csv(self._flow.sample(n, given=values or None, random_state=seed))

    def impute(self, seed: int) -> bytes:
        return _csv(self._flow.impute(self._frame, random_state=seed))


def infer_schema(frame: Any) -> list[dict[str, Any]]:
    """What every column was understood as; one that cannot be used is to be left out, and says why."""
    from sliceflow.spaces.tables import cells, columns

    out = []
    distinct = np.flatnonzero(~frame.duplicated().to_numpy())
    for column in cells.read_frame(frame).cells:
        try:
            with rows_of_the_file():
                out.append(columns.infer_schema(column, distinct).describe())
        except ValueError as error:
            row = {
                "column": str(column.name),
                "kind": "drop",
                "missing": 0,
                "distinct": 0,
            }
            out.append(row | {"note": str(error).split("; ")[0], "refused": True})
    return out


def _csv(frame: Any) -> bytes:
    return bytes(frame.to_csv(index=False), "utf-8")


def _example() -> tuple[str, bytes]:
    """A table to try: scikit-learn's wines, with their kinds as words and some missing cells."""
    from sklearn.datasets import load_wine

    wine = load_wine(as_frame=True)
    frame = wine["data"].iloc[:, :6].round(2)
    frame.insert(
        0, "kind", wine["target"].map({0: "Barolo", 1: "Grignolino", 2: "Barbera"})
    )
    frame.loc[::15, "magnesium"] = np.nan
    return "wine.csv", _csv(frame)


def _digits(device: str) -> Run:
    """A model of digits that is fitted when it is asked for, in some seconds."""
    settings = Settings(
        "digits",
        quality="draft",
        particles=2000,
        conditional=True,
        keep_rows=True,
        device=device,
    )

    def load() -> Any:
        train, _ = data.read(settings)
        return data.estimator(settings, train).fit(train.x, train.labels)

    return Run("digits, fitted now", load, lambda: data.read(settings))


def runs_in(folder: Path) -> list[Path]:
    """Runs of pictures in a folder, the last first."""
    models = sorted(
        folder.glob("*/model.sliceflow"), key=lambda model: -model.stat().st_mtime
    )
    return [model.parent for model in models if model.with_name("samples.png").exists()]


def run_of(path: Path, device: str = "auto") -> Run:
    """A run folder or a model file, for the page."""
    model_file(path)  # must be there

    def read() -> tuple[Any, Any]:
        if not path.is_dir():
            raise ValueError(
                "a model file does not say where they are; name its run folder"
            )
        return data.read(Settings.from_folder(RunFolder(path)))

    return Run(str(path), lambda: load_model(path, device), read)


def _warm(gallery: Gallery) -> None:
    """Open the first model; its errors are told when it is asked for."""
    with suppress(Exception):
        gallery.open(0)
