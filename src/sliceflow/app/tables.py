"""The tab of tables: one table, read, fitted and sampled in a process, which can be cancelled."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path, PurePath
from typing import Any

from sliceflow.app.server import Answer, Request

_ENDINGS = (".csv", ".tsv", ".txt")
_STAGES = ("reading", "fitting", "drawing as many new rows", "measuring them")
_KNOWN = ("name", "columns", "rows", "kinds", "constraints")
_MOST_ROWS = 100_000
_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"


class TableTab:
    """The table of the page: nothing, a file with its columns, a fit under way, a fitted model.

    `work` is the class that the process works with, such as `cli.play.TableWork`; `example` is the name
    and the bytes of the table that is there at first.
    """

    def __init__(self, work: type[Any], example: tuple[str, bytes]) -> None:
        self._work = work
        self._lock = threading.RLock()
        self._folder = tempfile.TemporaryDirectory(prefix="sliceflow-play-")
        self._path = Path()
        self._html = ""
        self._begun = 0.0
        self._process: Any = None
        self._pipe: Connection | None = None
        self._next: tuple[str, bytes] | None = example  # a file that waits its turn
        self._shown: dict[str, Any] = {"state": "empty"}

    @property
    def busy(self) -> bool:
        return self._shown["state"] in ("reading", "fitting")

    def status(self, request: Request | None = None) -> dict[str, Any]:
        """What the page shows; opening the tab starts the process."""
        with self._lock:
            self._worker()
            self._hear()
            seconds = (
                {"seconds": round(time.monotonic() - self._begun, 1)}
                if self.busy
                else {}
            )
            return (
                self._shown | seconds | ({"next": self._next[0]} if self._next else {})
            )

    def upload(self, request: Request) -> dict[str, Any]:
        """Have a file read, or wait its turn. Of its name only the ending is used."""
        name = PurePath(request.words.get("name", "").replace("\\", "/")).name[:100]
        if PurePath(name).suffix.lower() not in _ENDINGS:
            raise ValueError(
                f"{name or 'the file'} is not a table; pass a {', '.join(_ENDINGS)} file"
            )
        with self._lock:
            self._next = (name, request.body)
            return self.status()

    def fit(self, request: Request) -> dict[str, Any]:
        """Fit the table, with the kinds of columns and the constraints that the page names."""
        kinds = request.json.get("columns") or {}
        constraints = request.json.get("constraints") or []
        texts = isinstance(constraints, list) and all(
            isinstance(text, str) for text in constraints
        )
        if not isinstance(kinds, dict) or not texts:
            raise ValueError(
                "columns is no object of names and kinds, or constraints no list of texts"
            )
        with self._lock:
            if self.status()["state"] not in ("columns", "fitted"):
                raise ValueError("there is no table to fit; drop a file first")
            shown = self._table() | {"state": "fitting", "stage": 1, "kinds": kinds}
            self._begin(
                shown | {"constraints": constraints},
                "fit",
                kinds,
                constraints,
                shown["name"],
            )
            return self.status()

    def cancel(self, request: Request) -> dict[str, Any]:
        """End the process, and with it what it does; the table and its columns stay."""
        with self._lock:
            if self.busy:
                self._end()
                self._shown = self._table() | {"note": "Cancelled."}
            return self.status()

    def samples(self, request: Request) -> Answer:
        texts = {
            str(name): str(value)
            for name, value in dict(request.json.get("given") or {}).items()
        }
        return self._answer(
            "sample", request.whole("n", _MOST_ROWS, 1), request.seed, texts
        )

    def imputed(self, request: Request) -> Answer:
        return self._answer("impute", request.seed)

    def report(self, request: Request) -> Answer:
        return Answer(self._html.encode(), "text/html", _REPORT_POLICY)

    def close(self) -> None:
        with self._lock:
            self._end()
            self._folder.cleanup()

    def _answer(self, *job: Any) -> Answer:
        """What the process answers at once, as CSV."""
        with self._lock:
            if self.status()["state"] != "fitted":
                raise ValueError("there is no fitted table; fit one first")
            try:
                self._worker().send(job)
                kind, value = self._worker().recv()
            except (EOFError, OSError):
                self._lost()
                raise ValueError(self._shown["error"]) from None
        if kind == "error":
            raise ValueError(value)
        return Answer(value, "text/csv")

    def _begin(self, shown: dict[str, Any], *job: Any) -> None:
        self._shown = shown
        self._begun = time.monotonic()
        self._worker().send(job)

    def _worker(self) -> Connection:
        """The pipe to the process, which is started if there is none."""
        if self._pipe is None:
            spawn = multiprocessing.get_context("spawn")  # threads are running: no fork
            self._pipe, other = spawn.Pipe()
            self._process = spawn.Process(
                target=_run, args=(other, self._work), daemon=True
            )
            self._process.start()
            other.close()
            if "columns" in self._shown:  # after a cancelled fit
                self._pipe.send(("read again", str(self._path)))
        return self._pipe

    def _end(self) -> None:
        if self._process is not None and self._pipe is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
        self._pipe = self._process = None

    def _lost(self) -> None:
        self._end()
        self._shown = self._table() | {
            "error": "the process ended by itself; is the table too large?"
        }

    def _hear(self) -> None:
        """Take over what the process has said, and give it the file that waits."""
        try:
            while self._pipe is not None and self._pipe.poll():
                self._take(*self._pipe.recv())
        except (EOFError, OSError):
            self._lost()
        if self._next is not None and not self.busy:
            name, body = self._next
            self._next = None
            self._path = Path(
                self._folder.name, f"table{PurePath(name).suffix.lower()}"
            )
            self._path.write_bytes(body)
            self._begin({"state": "reading", "name": name}, "read", str(self._path))

    def _take(self, kind: str, value: Any) -> None:
        if kind == "stage":
            self._shown = self._shown | {"stage": value, "text": _STAGES[value]}
        elif kind == "read":
            self._shown = {"state": "columns", "name": self._shown["name"], **value}
        elif kind == "fit":
            self._html = value
            seconds = round(time.monotonic() - self._begun, 1)
            self._shown = self._table() | {"state": "fitted", "seconds": seconds}
        elif kind == "error":
            self._shown = self._table() | {"error": value}

    def _table(self) -> dict[str, Any]:
        """What is known of the table, without what is done with it."""
        known = {key: value for key, value in self._shown.items() if key in _KNOWN}
        return (
            known | {"state": "columns"} if "columns" in known else {"state": "empty"}
        )


def _run(pipe: Connection, kind_of_work: type[Any]) -> None:
    """The process: does one job after the other, until the pipe is closed."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C ends the server, which ends this
    work = kind_of_work()
    path = ""
    while True:
        try:
            job, *values = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            if job == "fit":
                values.append(lambda stage: pipe.send(("stage", stage)))
            path = values[0] if job.startswith("read") else path
            pipe.send((job, getattr(work, job.split()[0])(*values)))
        except Exception as error:
            text = (
                str(error)
                if isinstance(error, ValueError | ImportError | MemoryError)
                else ""
            )
            text = text or f"{type(error).__name__}: {error}"
            with suppress(OSError):
                pipe.send(("error", text.replace(path or os.devnull, "the file")))
