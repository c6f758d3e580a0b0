"""The tab of tables: an uploaded file is read, fitted and sampled in a process of its own.

A process, and not a thread, because a fit can be cancelled then: the process ends. Each browser has
its own, which starts when the tab is opened, so that its imports are done when a file arrives.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path, PurePath
from typing import Any

from sliceflow.app.server import MOST_SEED, Answer, Request, whole
from sliceflow.errors import rows_of_the_file

__all__ = ["ENDINGS", "TableState"]

ENDINGS = (".csv", ".tsv", ".txt")
_STAGES = ("reading", "fitting", "drawing as many new rows", "measuring them")
_KNOWN = ("name", "columns", "rows", "kinds")
_MOST_ROWS = 100_000
_PYTHON = re.compile(r"pass columns={['\"](.*?)['\"]: '(\w+)'}")
_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"

# (flow, frame, name, tell) → the samples' page; `tell` takes the number of a stage
Report = Callable[[Any, Any, str, Callable[[int], None]], str]


class TableState:
    """The table of one browser: nothing, a file with its columns, a fit under way, a fitted model.

    Parameters
    ----------
    report : fits a table and writes the page about it; a function of a module, for the process
    """

    def __init__(self, report: Report) -> None:
        self._report, self._lock, self._sampling = report, threading.RLock(), threading.Lock()
        self._closed = False
        self._folder: str | None = None
        self._path = Path()
        self._process: Any = None
        self._pipe: Connection | None = None
        self._waiting: queue.Queue[bytes | Exception] | None = None  # of who waits for new rows
        self._html = ""
        self._shown: dict[str, Any] = {"state": "empty"}
        self._begun = 0.0

    @property
    def busy(self) -> bool:
        return self._shown["state"] in ("reading", "fitting")

    def status(self, request: Request) -> dict[str, Any]:
        """What the page shows; opening the tab starts the process."""
        with self._lock:
            self._worker()
            seconds = {"seconds": round(time.monotonic() - self._begun, 1)} if self.busy else {}
            return self._shown | seconds

    def upload(self, request: Request) -> dict[str, Any]:
        """Keep a file, and have its columns read. Of its name only the ending is used."""
        name = PurePath(request.words.get("name", "").replace("\\", "/")).name[:100]
        ending = PurePath(name).suffix.lower()
        if ending not in ENDINGS:
            raise ValueError(f"{name or 'the file'} is not a table; pass a {', '.join(ENDINGS)} file")
        with self._lock:
            if self.busy:
                raise ValueError("the last table is still being worked on; cancel that first")
            self._worker()
            self._folder = self._folder or tempfile.mkdtemp(prefix="sliceflow-play-")
            self._path = Path(self._folder, f"table{ending}")
            self._path.write_bytes(request.body)
            self._begin({"state": "reading", "name": name}, ("read", str(self._path)))
            return self.status(request)

    def fit(self, request: Request) -> dict[str, Any]:
        """Fit the table, with the kinds of columns that the page names."""
        kinds = request.json.get("columns", {})
        if not isinstance(kinds, dict):
            raise ValueError("columns is not an object of names and kinds")
        with self._lock:
            if self.busy or "columns" not in self._shown:
                raise ValueError("there is no table to fit; drop a file first")
            kept = self._table() | {"state": "fitting", "stage": 1, "kinds": kinds}
            self._begin(kept, ("fit", kinds, kept["name"]))
            return self.status(request)

    def cancel(self, request: Request) -> dict[str, Any]:
        """End the process, and with it what it does; the table and its columns stay."""
        with self._lock:
            if self.busy:
                self._end()
                self._shown = self._table() | {"note": "Cancelled."}
            return self.status(request)

    def samples(self, request: Request) -> Answer:
        """New rows as CSV."""
        n = whole(request.json, "n", 1, _MOST_ROWS)
        seed = whole(request.json, "seed", 0, MOST_SEED)
        with self._sampling:
            with self._lock:
                if self._shown["state"] != "fitted" or self._pipe is None:
                    raise ValueError("there is no fitted table; fit one first")
                waiting: queue.Queue[bytes | Exception] = queue.Queue()
                self._waiting = waiting
                self._pipe.send(("sample", n, seed))
            found = waiting.get()
        if isinstance(found, Exception):
            raise found
        return Answer(found, "text/csv")

    def report(self, request: Request) -> Answer:
        """The page about the fit, for a frame."""
        with self._lock:
            return Answer(self._html.encode(), "text/html", _REPORT_POLICY)

    def close(self) -> None:
        """End the process, and remove the file."""
        with self._lock:
            self._closed = True
            self._end()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    def _begin(self, shown: dict[str, Any], job: tuple[Any, ...]) -> None:
        self._shown, self._begun = shown, time.monotonic()
        self._worker().send(job)

    def _worker(self) -> Connection:
        """The pipe to the process, which is started if there is none."""
        if self._closed:
            raise ValueError("this session has ended; reload the page")
        if self._pipe is None:
            spawn = multiprocessing.get_context("spawn")  # threads are running: no fork
            self._pipe, other = spawn.Pipe()
            self._process = spawn.Process(target=_work, args=(other, self._report), daemon=True)
            self._process.start()
            other.close()
            if "columns" in self._shown:  # after a cancelled fit
                self._pipe.send(("read again", str(self._path)))
            threading.Thread(target=self._listen, args=(self._pipe,), daemon=True).start()
        return self._pipe

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._pipe = self._process = None  # the thread that listens closes the pipe
        self._answer(ValueError("the process that draws new rows was ended"))

    def _answer(self, rows: bytes | Exception) -> None:
        """To whoever waits for new rows."""
        if self._waiting is not None:
            self._waiting.put(rows)
            self._waiting = None

    def _listen(self, pipe: Connection) -> None:
        """Take over what the process says, until it ends."""
        with suppress(EOFError, OSError), pipe:
            while True:
                kind, value = pipe.recv()
                with self._lock:
                    if pipe is self._pipe:  # else: cancelled
                        self._hear(kind, value)
        with self._lock:
            if pipe is self._pipe:
                gone = "the process ended by itself; the table may be too large for this computer"
                self._answer(ValueError(gone))
                self._end()
                self._fail(gone)

    def _hear(self, kind: str, value: Any) -> None:
        if kind == "stage":
            self._shown = self._shown | {"stage": value, "text": _STAGES[value]}
        elif kind == "columns":
            self._shown = {"state": "columns", "name": self._shown["name"], **value}
        elif kind == "fitted":
            self._html, seconds = value, round(time.monotonic() - self._begun, 1)
            self._shown = self._table() | {"state": "fitted", "seconds": seconds}
        elif kind == "sample":
            self._answer(value)
        else:
            self._fail(value)

    def _fail(self, text: str) -> None:
        self._shown = self._table() | {"error": text}

    def _table(self) -> dict[str, Any]:
        """What is known of the table, without what is done with it."""
        known = {key: value for key, value in self._shown.items() if key in _KNOWN}
        return known | {"state": "columns"} if "columns" in known else {"state": "empty"}


def _work(pipe: Connection, report: Report) -> None:
    """The process: reads, fits and samples what it is told to, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the server, which ends this
    frame, flow, path = None, None, ""
    with suppress(ImportError):  # is told when it is needed
        import pandas  # noqa: F401

        import sliceflow.spaces.tables.estimator  # noqa: F401
    while True:
        try:
            kind, *values = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            from sliceflow import TableFlow
            from sliceflow.spaces.tables.files import read_table

            if kind in ("read", "read again"):
                (path,) = values
                frame = read_table(path)
                if kind == "read":
                    pipe.send(("columns", {"columns": _columns(frame), "rows": len(frame)}))
            elif kind == "fit":
                kinds, name = values
                flow = TableFlow(columns=kinds or None, random_state=0)
                with rows_of_the_file():  # a fit has some of the rows only
                    flow.check(frame)
                html = report(flow, frame, name, lambda k: pipe.send(("stage", k)))
                pipe.send(("fitted", html))
            else:
                n, seed = values
                assert flow is not None
                pipe.send(("sample", flow.sample(n, random_state=seed).to_csv(index=False).encode()))
        except Exception as error:
            text = str(error) if isinstance(error, ValueError | ImportError | MemoryError) else ""
            text = (text or f"{type(error).__name__}: {error}").replace(path or os.devnull, "the file")
            text = _PYTHON.sub(r"choose \2 for \1", text)
            pipe.send(("sample", ValueError(text)) if kind == "sample" else ("error", text))


def _columns(frame: Any) -> list[dict[str, Any]]:
    """What every column was understood as; one that cannot be used is to be left out, and says why."""
    from sliceflow.cells import read_cells
    from sliceflow.spaces.tables.columns import understood

    out = []
    for cells in read_cells(frame)[0]:
        try:
            with rows_of_the_file():
                column = understood(cells)
            out.append(column.told(column.numbers(cells)))
        except ValueError as error:
            missing = round(float(cells.missing.mean()), 4) if len(cells.missing) else 0.0
            told = {"column": cells.kept.name, "kind": "drop", "missing": missing, "distinct": 0}
            out.append(told | {"note": str(error).split("; ")[0], "refused": True})
    return out
