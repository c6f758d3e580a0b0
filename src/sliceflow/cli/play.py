"""``sliceflow play``: the server, and what the page needs of run folders and files."""

from __future__ import annotations

import threading
import time
import webbrowser
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sliceflow.app.pictures import Gallery, Run
from sliceflow.app.server import JsonObject, PlayServer, Route
from sliceflow.app.tables import TableTab
from sliceflow.cli.data import (
    PictureInput,
    TableInput,
    hold_out,
    make_image_flow,
    make_table_flow,
    read_picture_data,
)
from sliceflow.cli.failures import (
    CommandError,
    Output,
    UsageError,
    fact_in_file,
    join_hints,
)
from sliceflow.cli.grids import read_pictures
from sliceflow.cli.run_folder import RunFolder, load_model, model_file
from sliceflow.cli.settings import Settings
from sliceflow.errors import DataError
from sliceflow.table_files import Dialect

if TYPE_CHECKING:
    import pandas as pd

    from sliceflow import ImageFlow, TableFlow
    from sliceflow.app.tables import Stage
    from sliceflow.cli.table_run import TableRun
    from sliceflow.estimators.pictures.layout import Layout

# Bytes of an upload. The page's own scripts have the same limits.
TABLE_LIMIT = 64 << 20
PICTURE_LIMIT = 16 << 20


def play(
    runs: list[Path] | None = None,
    port: int | None = None,
    no_browser: bool = False,
    device: str = "auto",
) -> None:
    """Open a page in the browser: points, pictures, their completions, a table.

    Paint points and watch particles flow onto them, look at samples of pictures,
    complete pictures, fit a table of your own.
    """
    paths = runs or find_runs(Path("runs"))
    offered = [offer_run(path, device) for path in paths]
    if not offered:
        offered = [_offer_digits(device)]
    gallery = Gallery(offered, read_uploaded_picture)
    table = TableTab(TableWork, example_table())
    with closing(table), make_server(gallery, table, port) as server:
        print(f"open {server.address}", flush=True)
        print("Ctrl-C ends it.", flush=True)
        threading.Thread(target=_open_first, args=(gallery,), daemon=True).start()
        if not no_browser:
            arguments = (server.address,)
            threading.Thread(
                target=webbrowser.open, args=arguments, daemon=True
            ).start()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("\nended", flush=True)


def make_server(
    gallery: Gallery, table: TableTab, port: int | None = None
) -> PlayServer:
    """The server of the page, bound to a port; `serve_forever` runs it.

    A port of None is any that is free.
    """
    names = {"runs": [run.name for run in gallery.runs]}
    routes = {
        "runs": Route(lambda _: names),
        "about": Route(gallery.about),
        "samples": Route(gallery.samples),
        "chosen": Route(gallery.chosen),
        "complete": Route(gallery.completed),
        "picture": Route(gallery.upload, limit=PICTURE_LIMIT),
        "table": Route(table.status),
        "table/upload": Route(table.upload, limit=TABLE_LIMIT),
        "table/fit": Route(table.fit),
        "table/cancel": Route(table.cancel),
        "table/samples": Route(table.samples),
        "table/imputed": Route(table.imputed),
        "table/report": Route(table.report, is_post=False),
    }
    try:
        return PlayServer(routes, port or 0)
    except OSError as error:
        fact = f"--port {port} cannot be used: {error.strerror}"
        raise UsageError(fact, "pass another --port, or none: any free one") from error


def read_uploaded_picture(path: Path, layout: Layout) -> NDArray[Any]:
    """A picture of any size, resized to that of a layout."""
    return read_pictures(path, layout, resize=True)


class TableWork:
    """What the process of the tab Table does: the pipeline of ``sliceflow fit``."""

    def __init__(self) -> None:
        self._df: pd.DataFrame | None = None
        self._dialect = Dialect()
        self._model: TableFlow | None = None
        # Imported now, so that the first fit is fast. A missing package raises an error
        # later.
        with suppress(ImportError):
            import sliceflow.estimators.tables.estimator  # noqa: F401

    def read(self, path: str) -> JsonObject:
        """Read a file; returns what its columns were understood as."""
        from sliceflow.estimators.tables.files import read_file

        file = read_file(path)
        self._df = file.df
        self._dialect = file.dialect
        columns = describe_columns(file.df)
        for note in file.notes:
            for column in columns:
                if column["column"] == str(note.column):
                    column["note"] = f"{note.fact}; {column['note']}"
        return {"columns": columns, "rows": len(file.df)}

    def fit(
        self,
        kinds: dict[str, str],
        constraints: list[str],
        name: str,
        is_attacked: bool,
        set_stage: Callable[[Stage], None],
    ) -> JsonObject:
        """Fit all rows, and measure as ``sliceflow evaluate`` does."""
        from sliceflow.cli.table_run import TableRun

        columns = [f"{column}={kind}" for column, kind in kinds.items()]
        settings = Settings(
            name, column=columns or None, constraint=constraints or None
        )
        df = self._table()
        started_at = time.monotonic()
        set_stage("fitting")
        try:
            model = make_table_flow(settings).fit(df)
        except DataError as error:
            raise _as_page_error(error) from error
        seconds = time.monotonic() - started_at
        whole = TableInput(PurePath(name).stem, df)
        train, held_out = hold_out(whole, settings.holdout)
        silent = Output(silent=True, progress=False)
        run = TableRun(settings, train, held_out, silent, model)
        report = _report_on_run(run, seconds, is_attacked, set_stage)
        self._model = model
        return report

    def sample(self, n: int, seed: int, given: dict[str, str]) -> bytes:
        """New rows as CSV, with what is given in each of them."""
        from sliceflow.estimators.tables.files import as_csv

        model = self._fitted_model()
        values = {name: model.parse_given(name, text) for name, text in given.items()}
        rows = model.sample(n, given=values or None, random_state=seed)
        return as_csv(rows, self._dialect)

    def impute(self, seed: int) -> bytes:
        """The table with its missing cells filled, as CSV."""
        from sliceflow.estimators.tables.files import as_csv

        filled = self._fitted_model().impute(self._table(), random_state=seed)
        return as_csv(filled, self._dialect)

    def _table(self) -> pd.DataFrame:
        if self._df is None:
            raise ValueError("there is no table; read one first")
        return self._df

    def _fitted_model(self) -> TableFlow:
        if self._model is None:
            raise ValueError("there is no fitted table; fit one first")
        return self._model


def _report_on_run(
    run: TableRun, seconds: float, is_attacked: bool, set_stage: Callable[[Stage], None]
) -> JsonObject:
    """The report on a fit that took so many seconds, and its verdict."""
    from sliceflow.cli import evaluate, report

    set_stage("drawing")
    samples = run.draw_samples()
    attacks = None
    if is_attacked and run.held_out is not None:
        set_stage("attacking")
        attacks = evaluate.attack_half(run, evaluate.N_SHADOWS)
    set_stage("measuring")
    measured = run.measure(samples, attacks)
    config = {
        "data": run.train.summary(run.held_out),
        "command": run.settings.command,
        "seconds": seconds,
    }
    page = report.render(config, measured.json, run.train, run.describe(samples))
    return {"report": page, "verdict": measured.json["verdict"]}


def _as_page_error(error: DataError) -> CommandError:
    """An error about a table in the words of the page, on which kinds are chosen."""
    choices = [f"{kind} for {error.column}" for kind in error.suggested_kinds]
    return CommandError(fact_in_file(error), join_hints(error.hint, "choose", choices))


def describe_columns(df: pd.DataFrame) -> list[JsonObject]:
    """What every column was understood as.

    A column that cannot be used is to be left out, and its note says why.
    """
    from sliceflow.estimators.tables.columns.infer import infer_column
    from sliceflow.estimators.tables.describe_columns import describe_column
    from sliceflow.estimators.tables.rows.table_rows import read_dataframe

    described = []
    distinct_rows = np.flatnonzero(~df.duplicated().to_numpy())
    for column in read_dataframe(df).columns:
        try:
            described.append(describe_column(infer_column(column, distinct_rows)))
        except ValueError as error:
            note = fact_in_file(error) if isinstance(error, DataError) else str(error)
            described.append(
                {
                    "column": str(column.name),
                    "kind": "drop",
                    "missing": 0,
                    "distinct": 0,
                    "note": note,
                    "refused": True,
                }
            )
    return described


def example_table() -> tuple[str, bytes]:
    """A table to try: scikit-learn's wines, with some missing cells."""
    from sklearn.datasets import load_wine

    wine = load_wine(as_frame=True)
    names = {0: "Barolo", 1: "Grignolino", 2: "Barbera"}
    df = wine["data"].iloc[:, :6].round(2)
    df.insert(0, "kind", wine["target"].map(names))
    df.loc[::15, "magnesium"] = np.nan
    text: str = df.to_csv(index=False)
    return "wine.csv", text.encode()


def _offer_digits(device: str) -> Run:
    """A model of digits that is fitted when it is asked for, in some seconds."""
    settings = Settings(
        "digits",
        quality="draft",
        particles=2000,
        conditional=True,
        save_rows=True,
        device=device,
    )

    def load() -> ImageFlow:
        train, _ = read_picture_data(settings)
        return make_image_flow(settings, train).fit(train.x, train.labels)

    return Run("digits, fitted now", load, lambda: read_picture_data(settings))


def find_runs(folder: Path) -> list[Path]:
    """Runs of pictures in a folder, the last one first."""
    models = [
        model
        for model in folder.glob("*/model.sliceflow")
        if model.with_name("samples.png").exists()
    ]
    models.sort(key=lambda model: model.stat().st_mtime, reverse=True)
    return [model.parent for model in models]


def offer_run(path: Path, device: str = "auto") -> Run:
    """A run folder or a model file, which must exist, for the page."""
    model_file(path)

    def read() -> tuple[PictureInput, PictureInput | None]:
        if not path.is_dir():
            raise ValueError(
                "a model file does not say where they are; name its run folder"
            )
        return read_picture_data(Settings.from_folder(RunFolder(path)))

    return Run(str(path), lambda: load_model(path, device), read)


def _open_first(gallery: Gallery) -> None:
    """Open the first model; its errors are shown when it is asked for."""
    with suppress(Exception):
        gallery.open(0)
