"""The tab Table: one table is read, fitted and sampled in a process of its own.

A process can be cancelled at any moment, and the page stays responsive.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple, Protocol

from sliceflow.app.server import JsonObject, Request, Response, describe_error
from sliceflow.errors import DataError

_ENDINGS = (".csv", ".tsv", ".txt", ".xlsx")
Stage = Literal["fitting", "drawing", "attacking", "measuring"]
# The stages of a fit in their order, in the words of the page.
_STAGE_TEXTS: dict[Stage, str] = {
    "fitting": "fitting",
    "drawing": "drawing as many new rows",
    "attacking": "attacking a model of half the rows",
    "measuring": "measuring them",
}
# The parts of the state that stay true when a job ends or is cancelled.
_TABLE_KEYS = ("name", "columns", "rows", "kinds", "constraints")
# The most characters of the name of a file that the page shows.
_MAX_NAME_LENGTH = 100
# The most new rows of one download: some megabytes.
_MAX_ROWS = 100_000
_REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "frame-ancestors 'self'"
)


class TableBackend(Protocol):
    """The work that the process can do; `cli.play.TableWork` implements it.

    The process makes one of these objects, and calls the method that a job names.
    """

    def read(self, path: str) -> JsonObject:
        """Read a file; returns its columns and its number of rows."""
        ...

    def fit(
        self,
        kinds: dict[str, str],
        constraints: list[str],
        name: str,
        is_attacked: bool,
        set_stage: Callable[[Stage], None],
    ) -> JsonObject:
        """Fit the table, attack its samples if that is wanted, measure the model.

        Returns the "report" as HTML, and its "verdict" (None if nothing was measured).
        """
        ...

    def sample(self, n: int, seed: int, given: dict[str, str]) -> bytes:
        """New rows as CSV."""
        ...

    def impute(self, seed: int) -> bytes:
        """The table with its missing cells filled, as CSV."""
        ...


class Job(NamedTuple):
    """A method of `TableBackend` that the process is to call, and its arguments."""

    method: Literal["read", "fit", "sample", "impute"]
    arguments: tuple[object, ...]
    is_answered: bool = True  # whether the process sends the result


class Message(NamedTuple):
    """What the process sends: its stage, the result of a job, or an error in words."""

    kind: Literal["stage", "read", "fit", "sample", "impute", "error"]
    value: Any


class TableTab:
    """The state of the tab: nothing, a table with its columns, a fit, a fitted model.

    Parameters
    ----------
    make_backend : makes the `TableBackend` of the process
    example : the name and the bytes of the table that is there at first
    """

    def __init__(
        self, make_backend: Callable[[], TableBackend], example: tuple[str, bytes]
    ) -> None:
        self._make_backend = make_backend
        self._lock = threading.RLock()
        self._folder = tempfile.TemporaryDirectory(prefix="sliceflow-play-")
        self._path = Path()
        self._report = ""
        self._started_at = 0.0
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None
        # A file that waits until the process has time for it.
        self._waiting_file: tuple[str, bytes] | None = example
        self._state: JsonObject = {"state": "empty"}

    @property
    def is_busy(self) -> bool:
        return self._state["state"] in ("reading", "fitting")

    def status(self, request: Request | None = None) -> JsonObject:
        """What the page shows. Opening the tab starts the process."""
        with self._lock:
            self._connect()
            self._receive()
            self._read_waiting_file()
            shown = dict(self._state)
            if self.is_busy:
                shown["seconds"] = round(time.monotonic() - self._started_at, 1)
            if self._waiting_file is not None:
                shown["next"] = self._waiting_file[0]
            return shown

    def upload(self, request: Request) -> JsonObject:
        """Have a file read, or wait its turn. Of its name only the ending is used."""
        path = request.query.get("name", "").replace("\\", "/")
        name = PurePath(path).name[:_MAX_NAME_LENGTH]
        if PurePath(name).suffix.lower() not in _ENDINGS:
            fact = f"{name or 'the file'} is not a table"
            raise DataError(fact, f"pass a {', '.join(_ENDINGS)} file")
        with self._lock:
            self._waiting_file = (name, request.body)
            return self.status()

    def fit(self, request: Request) -> JsonObject:
        """Fit the table, with the kinds of columns and the constraints of the page."""
        kinds = request.json.get("columns") or {}
        constraints = request.json.get("constraints") or []
        if not isinstance(kinds, dict) or not _is_list_of_texts(constraints):
            raise ValueError(
                "columns is no object of names and kinds, "
                "or constraints no list of texts"
            )
        with self._lock:
            if self.status()["state"] not in ("columns", "fitted"):
                raise DataError("there is no table to fit", "drop a file first")
            state = self._idle_state()
            state["state"] = "fitting"
            state["stage"] = _stage_number("fitting")
            state["kinds"] = kinds
            state["constraints"] = constraints
            is_attacked = bool(request.json.get("attack"))
            arguments = (kinds, constraints, state["name"], is_attacked)
            self._begin(state, Job("fit", arguments))
            return self.status()

    def cancel(self, request: Request) -> JsonObject:
        """End the process, and with it its job; the table and its columns stay."""
        with self._lock:
            if self.is_busy:
                self._end()
                self._state = self._idle_state() | {"note": "Cancelled."}
            return self.status()

    def samples(self, request: Request) -> Response:
        """New rows of the fitted model, as CSV."""
        n = request.integer("n", _MAX_ROWS, minimum=1)
        given = dict(request.json.get("given") or {})
        texts = {str(name): str(value) for name, value in given.items()}
        return self._ask(Job("sample", (n, request.seed, texts)))

    def imputed(self, request: Request) -> Response:
        """The table with its missing cells filled, as CSV."""
        return self._ask(Job("impute", (request.seed,)))

    def report(self, request: Request) -> Response:
        """The report of the last fit."""
        return Response(self._report.encode(), "text/html", _REPORT_POLICY)

    def close(self) -> None:
        """End the process, and remove its files."""
        with self._lock:
            self._end()
            self._folder.cleanup()

    def _ask(self, job: Job) -> Response:
        """Have the process do a job, and wait for its answer."""
        with self._lock:
            if self.status()["state"] != "fitted":
                raise DataError("there is no fitted table", "fit one first")
            try:
                pipe = self._connect()
                pipe.send(job)
                answer: Message = pipe.recv()
            except (EOFError, OSError):
                self._handle_lost_process()
                raise ValueError(self._state["error"]) from None
        if answer.kind == "error":
            raise ValueError(answer.value)
        return Response(answer.value, "text/csv")

    def _begin(self, state: JsonObject, job: Job) -> None:
        """Have the process begin a job, whose messages `_receive` takes later."""
        self._state = state
        self._started_at = time.monotonic()
        self._connect().send(job)

    def _connect(self) -> Connection:
        """The pipe to the process, which is started if there is none."""
        if self._pipe is None:
            spawn = multiprocessing.get_context("spawn")  # threads are running: no fork
            self._pipe, other_end = spawn.Pipe()
            self._process = spawn.Process(
                target=_run_jobs, args=(other_end, self._make_backend), daemon=True
            )
            self._process.start()
            other_end.close()
            if "columns" in self._state:
                # A fit was cancelled: the new process needs the table, whose columns
                # are known.
                job = Job("read", (str(self._path),), is_answered=False)
                self._pipe.send(job)
        return self._pipe

    def _end(self) -> None:
        """End the process, if there is one."""
        if self._process is not None and self._pipe is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
        self._pipe = None
        self._process = None

    def _handle_lost_process(self) -> None:
        """Say that the process ended by itself: systems kill what is too large."""
        self._end()
        error = "the process ended by itself; is the table too large?"
        self._state = self._idle_state() | {"error": error}

    def _receive(self) -> None:
        """Update the state by what the process has sent."""
        try:
            while self._pipe is not None and self._pipe.poll():
                self._take_message(self._pipe.recv())
        except (EOFError, OSError):
            self._handle_lost_process()

    def _read_waiting_file(self) -> None:
        """Give the process the file that waits, unless it is busy."""
        if self._waiting_file is None or self.is_busy:
            return
        name, body = self._waiting_file
        self._waiting_file = None
        ending = PurePath(name).suffix.lower()
        self._path = Path(self._folder.name, f"table{ending}")
        self._path.write_bytes(body)
        job = Job("read", (str(self._path),))
        self._begin({"state": "reading", "name": name}, job)

    def _take_message(self, message: Message) -> None:
        """Change the state by what the process sent."""
        kind, value = message
        if kind == "stage":
            text = _STAGE_TEXTS[value]
            self._state = self._state | {"stage": _stage_number(value), "text": text}
        elif kind == "read":
            self._state = {"state": "columns", "name": self._state["name"], **value}
        elif kind == "fit":
            self._report = value["report"]
            self._state = self._idle_state() | {
                "state": "fitted",
                "seconds": round(time.monotonic() - self._started_at, 1),
                "verdict": value["verdict"],
            }
        elif kind == "error":
            self._state = self._idle_state() | {"error": value}

    def _idle_state(self) -> JsonObject:
        """The facts about the table, without what is being done with it."""
        if "columns" not in self._state:
            return {"state": "empty"}
        state: JsonObject = {"state": "columns"}
        for key in _TABLE_KEYS:
            if key in self._state:
                state[key] = self._state[key]
        return state


def _stage_number(stage: Stage) -> int:
    """The place of a stage of a fit, from 1, for the page's bar."""
    return 1 + list(_STAGE_TEXTS).index(stage)


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _run_jobs(pipe: Connection, make_backend: Callable[[], TableBackend]) -> None:
    """Do one job after the other in the process, until the pipe is closed."""
    # Ctrl-C ends the server, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def set_stage(stage: Stage) -> None:
        pipe.send(Message("stage", stage))

    backend = make_backend()
    path = os.devnull
    while True:
        try:
            job: Job = pipe.recv()
        except (EOFError, OSError):
            return
        arguments = job.arguments
        if job.method == "read":
            path = str(arguments[0])
        if job.method == "fit":
            arguments = (*arguments, set_stage)
        try:
            result = getattr(backend, job.method)(*arguments)
            if job.is_answered:
                pipe.send(Message(job.method, result))
        except Exception as error:
            # The page does not show where on this computer the file is.
            text = _error_text(error).replace(path, "the file")
            with suppress(OSError):
                pipe.send(Message("error", text))


def _error_text(error: Exception) -> str:
    """An error in words, with its hint if it has one."""
    described = describe_error(error)
    if not described["hint"]:
        return str(described["error"])
    return f"{described['error']}; {described['hint']}"
