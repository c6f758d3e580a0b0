"""The server of the page: 127.0.0.1 only, a token in every path, limits on size, time and connections.

The host of a request must be this computer, so that no name elsewhere can be made to point here. Files
are served by name from a fixed list, so a path cannot lead elsewhere.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partialmethod
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

JSON_LIMIT = 16 << 20  # bytes
MOST_CONNECTIONS = 32  # a browser opens six
SECONDS = 60.0  # that a connection may be silent
_HERE = Path(__file__).parent
_TYPES = {".js": "text/javascript", ".css": "text/css"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; frame-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # the address has the token
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Request:
    """What a route gets: the words behind the question mark, and the body."""

    words: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        value = json.loads(self.body or b"{}")
        if not isinstance(value, dict):
            raise ValueError("the body is not a JSON object")
        return value

    def whole(self, name: str, most: int, least: int = 0) -> int:
        """A whole number of the body, or of the words, within bounds; text such as "3" is one."""
        value: Any = self.words[name] if name in self.words else self.json.get(name)
        try:
            if isinstance(value, bool) or int(value) != float(value):
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"{name} is not a whole number") from None
        if not least <= int(value) <= most:
            raise ValueError(f"{name}={value} is not in {least} to {most}")
        return int(value)

    @property
    def seed(self) -> int:
        return self.whole("seed", 2**32 - 1)


@dataclass(frozen=True)
class Answer:
    """Bytes of some type; `policy` replaces the page's own Content-Security-Policy."""

    body: bytes
    kind: str
    policy: str = _POLICY


@dataclass(frozen=True)
class Route:
    """What answers a request; returns an `Answer`, or a dict that is sent as JSON."""

    answer: Callable[[Request], Answer | dict[str, Any]]
    post: bool = True
    limit: int = JSON_LIMIT


def _files() -> dict[str, Answer]:
    """The files of the page by name; those of the flow are the ones of docs/play."""
    packaged = _HERE / "play"
    repository = _HERE.parents[2] / "docs" / "play"
    play = packaged if packaged.is_dir() else repository
    paths = [
        play / name
        for name in ("flow.js", "measures.js", "digits.js", "page.js", "play.css")
    ]
    paths += [
        _HERE / "page" / name
        for name in ("app.js", "pictures.js", "table.js", "app.css")
    ]
    files = {
        path.name: Answer(path.read_bytes(), _TYPES[path.suffix]) for path in paths
    }
    points = (
        (play / "index.html")
        .read_text(encoding="utf-8")
        .split("<!-- points: begin -->")[1]
    )
    points = points.split("<!-- points: end -->")[0]
    page = (_HERE / "page" / "index.html").read_text(encoding="utf-8")
    return files | {
        "": Answer(page.replace("<!-- points -->", points).encode(), "text/html")
    }


class PlayServer(ThreadingHTTPServer):
    """The server: a free port of 127.0.0.1, a fresh token, and routes by name."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self.routes = routes
        self.files = _files()
        self.token = secrets.token_urlsafe(24)
        self._lock = threading.Lock()
        self._open: dict[
            socket.socket, bool
        ] = {}  # whether a request with the token is answered now
        super().__init__(("127.0.0.1", 0), _Handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(
            self
        )  # without asking for the computer's name, which may take long
        self.server_name = "127.0.0.1"
        self.server_port = self.server_address[1]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Of too many connections close the oldest that is not being answered, else the new one."""
        with self._lock:
            if len(self._open) >= MOST_CONNECTIONS:
                gone = next(
                    (line for line, busy in self._open.items() if not busy), request
                )
                self._open.pop(gone, None)
                with suppress(OSError):
                    gone.shutdown(socket.SHUT_RDWR)
            if len(self._open) < MOST_CONNECTIONS:
                self._open[request] = False
                super().process_request(request, client_address)
            else:
                super().shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def mark(self, request: Any, *, busy: bool) -> None:
        """Whether a connection has shown the token, and waits for its answer."""
        with self._lock:
            if self._open.pop(request, None) is not None:
                self._open[request] = busy

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(
            sys.exception(), OSError
        ):  # a browser that went away is no error
            super().handle_error(request, client_address)


@dataclass
class _Refused(Exception):
    status: HTTPStatus
    why: str


class _Handler(BaseHTTPRequestHandler):
    server: PlayServer
    protocol_version = "HTTP/1.1"
    server_version = "sliceflow"
    sys_version = ""
    timeout = SECONDS  # without a byte

    def handle_one_request(self) -> None:
        super().handle_one_request()
        self.server.mark(self.connection, busy=False)

    def _checked(self, post: bool) -> tuple[str, dict[str, str]]:
        """The name of what is asked for and the words behind it, by someone who may."""
        host = self.headers.get("Host", "")
        if host not in {
            f"{name}:{self.server.server_port}" for name in ("127.0.0.1", "localhost")
        }:
            raise _Refused(
                HTTPStatus.FORBIDDEN, "this server answers to 127.0.0.1 only"
            )
        parts = urlsplit(self.path)
        token, _, name = parts.path.removeprefix("/").partition("/")
        if not secrets.compare_digest(
            token.encode("utf-8", "replace"), self.server.token.encode()
        ):
            raise _Refused(
                HTTPStatus.FORBIDDEN, "wrong token; open the printed address"
            )
        origin = self.headers.get("Origin")
        foreign = self.headers.get("Sec-Fetch-Site", "same-origin") not in (
            "same-origin",
            "none",
        )
        if post and (foreign or origin not in (None, f"http://{host}")):
            raise _Refused(HTTPStatus.FORBIDDEN, "the request comes from another page")
        self.server.mark(self.connection, busy=True)
        return unquote(name), {
            key: values[-1] for key, values in parse_qs(parts.query).items()
        }

    def _body(self, limit: int) -> bytes:
        """All of the body, if its length is said beforehand: half of a table looks like a table."""
        text = self.headers.get("Content-Length")
        if text is None or "Transfer-Encoding" in self.headers:
            raise _Refused(
                HTTPStatus.LENGTH_REQUIRED, "say how long the body is (Content-Length)"
            )
        if not (text.isascii() and text.isdigit()):
            raise _Refused(HTTPStatus.BAD_REQUEST, "Content-Length is not a number")
        if len(text) > 18 or int(text) > limit:
            raise _Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the limit is {limit / 2**20:g} MiB",
            )
        try:
            body = self.rfile.read(int(text))
        except TimeoutError as error:
            raise _Refused(
                HTTPStatus.REQUEST_TIMEOUT, "the body did not come"
            ) from error
        if len(body) < int(text):
            raise _Refused(HTTPStatus.BAD_REQUEST, "the body is shorter than it says")
        return body

    def _respond(self, post: bool) -> None:
        try:
            name, words = self._checked(post)
            if not post and name in self.server.files:
                return self._send(HTTPStatus.OK, self.server.files[name])
            route = self.server.routes.get(name.removeprefix("api/"))
            if route is None or not name.startswith("api/"):
                raise _Refused(HTTPStatus.NOT_FOUND, "there is nothing here")
            if route.post != post:
                raise _Refused(
                    HTTPStatus.METHOD_NOT_ALLOWED, "this is not how to ask for it"
                )
            body = self._body(route.limit) if post else b""
            self._send(HTTPStatus.OK, route.answer(Request(words, body)))
        except _Refused as refused:
            self.close_connection = True  # whatever comes is not read
            self._send(refused.status, {"error": refused.why, "hint": ""})
        except ConnectionError:
            self.close_connection = True
        except Exception as error:  # shown on the page, as the library says it
            known = isinstance(error, ValueError | ImportError | MemoryError | OSError)
            hint = getattr(error, "hint", "")
            text = (
                str(error)
                if (known or hint) and str(error)
                else f"{type(error).__name__}: {error}"
            )
            self._send(HTTPStatus.UNPROCESSABLE_ENTITY, {"error": text, "hint": hint})

    def _send(self, status: HTTPStatus, answer: Answer | dict[str, Any]) -> None:
        if isinstance(answer, dict):
            answer = Answer(
                json.dumps(answer, allow_nan=False).encode(), "application/json"
            )
        self.send_response(status)
        headers = {
            "Content-Type": f"{answer.kind}; charset=utf-8",
            "Content-Length": len(answer.body),
        }
        headers |= {"Content-Security-Policy": answer.policy, **_HEADERS}
        for name, value in headers.items():
            self.send_header(name, str(value))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(answer.body)

    do_GET = partialmethod(_respond, False)
    do_POST = partialmethod(_respond, True)

    def log_message(self, format: str, *args: Any) -> None:
        pass  # the terminal shows the address, and nothing else
