"""The server of the page.

It listens on 127.0.0.1 only, has a token in every path, and limits on size, time and
connections. The host of a request must be this computer, so that no name elsewhere can
be made to point here. Files are served by name from a fixed list, so that a path cannot
lead elsewhere.
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

from sliceflow.errors import HintedError

# A JSON object; its values have no common type.
JsonObject = dict[str, Any]

# The most bytes of a request. The known part of 1,000×1,000 pixels is 5 MB of JSON.
JSON_LIMIT = 16 << 20
# A browser opens six connections at a time.
MAX_CONNECTIONS = 32
# Seconds that a connection may be silent.
SILENCE_LIMIT = 60.0
# Digits of a Content-Length: no honest body has more, and int() takes long for many.
_MAX_LENGTH_DIGITS = 18
MAX_SEED = 2**32 - 1

_APP_FOLDER = Path(__file__).parent
_PLAY_FILES = ("flow.js", "measures.js", "digits.js", "page.js", "play.css")
_PAGE_FILES = ("app.js", "pictures.js", "table.js", "app.css")
_CONTENT_TYPES = {".js": "text/javascript", ".css": "text/css"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; frame-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # the address contains the token
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Request:
    """A request to a route: the query behind the question mark, and the body."""

    query: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> JsonObject:
        """The body as an object; an empty body is an empty one."""
        value = json.loads(self.body or b"{}")
        if not isinstance(value, dict):
            raise ValueError("the body is not a JSON object")
        return value

    def integer(self, name: str, maximum: int, minimum: int = 0) -> int:
        """A whole number of the query, or of the body; text such as "3" is one."""
        if name in self.query:
            value: object = self.query[name]
        else:
            value = self.json.get(name)
        number = _as_integer(value)
        if number is None:
            raise ValueError(f"{name} is not a whole number")
        if not minimum <= number <= maximum:
            raise ValueError(f"{name}={value} is not in {minimum} to {maximum}")
        return number

    @property
    def seed(self) -> int:
        return self.integer("seed", MAX_SEED)


def _as_integer(value: object) -> int | None:
    """A whole number, or a text for one; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = int(value)
        is_whole = number == float(value)
    except (ValueError, OverflowError):
        return None
    if not is_whole:
        return None
    return number


@dataclass(frozen=True)
class Response:
    """Bytes of some type; `policy` is the Content-Security-Policy of the page."""

    body: bytes
    content_type: str
    policy: str = _POLICY


@dataclass(frozen=True)
class Route:
    """The handler of a request; a dict that it returns is sent as JSON."""

    handler: Callable[[Request], Response | JsonObject]
    is_post: bool = True
    limit: int = JSON_LIMIT  # bytes of the body


def _read_files() -> dict[str, Response]:
    """The files of the page by name; the page itself has the name ""."""
    # The tab Points is the page of docs/play, which works without a server.
    play_folder = _APP_FOLDER / "play"  # as it is installed
    if not play_folder.is_dir():
        play_folder = _APP_FOLDER.parents[2] / "docs" / "play"  # in the repository
    page_folder = _APP_FOLDER / "page"
    paths = [play_folder / name for name in _PLAY_FILES]
    paths += [page_folder / name for name in _PAGE_FILES]
    files = {}
    for path in paths:
        files[path.name] = Response(path.read_bytes(), _CONTENT_TYPES[path.suffix])
    play_page = (play_folder / "index.html").read_text(encoding="utf-8")
    _, _, behind = play_page.partition("<!-- points: begin -->")
    points, _, _ = behind.partition("<!-- points: end -->")
    page = (page_folder / "index.html").read_text(encoding="utf-8")
    page = page.replace("<!-- points -->", points)
    files[""] = Response(page.encode(), "text/html")
    return files


class PlayServer(ThreadingHTTPServer):
    """The server: a port of 127.0.0.1, a fresh token, and routes by name.

    The port 0 stands for any that is free.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, routes: Mapping[str, Route], port: int = 0) -> None:
        self.routes = routes
        self.files = _read_files()
        self.token = secrets.token_urlsafe(24)
        self._lock = threading.Lock()
        # The open connections, the oldest first, and whether a request with the token
        # is answered now.
        self._connections: dict[Any, bool] = {}
        super().__init__(("127.0.0.1", port), _Handler)

    def server_bind(self) -> None:
        """Bind without asking for the computer's name, which may take long."""
        TCPServer.server_bind(self)
        self.server_name = "127.0.0.1"
        self.server_port = self.server_address[1]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection, unless there are too many.

        If there are, the oldest connection that waits for no answer is closed. If all
        wait, the new one is closed.
        """
        with self._lock:
            if len(self._connections) >= MAX_CONNECTIONS:
                self._close_oldest_idle()
            if len(self._connections) < MAX_CONNECTIONS:
                self._connections[request] = False
                super().process_request(request, client_address)
            else:
                super().shutdown_request(request)

    def _close_oldest_idle(self) -> None:
        """Close the oldest connection that waits for no answer, if there is one."""
        for connection, is_busy in self._connections.items():
            if not is_busy:
                del self._connections[connection]
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                return

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that ends."""
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def mark_connection(self, connection: Any, *, is_busy: bool) -> None:
        """Note whether a connection has shown the token and waits for its answer."""
        with self._lock:
            if connection in self._connections:
                del self._connections[connection]  # it becomes the youngest
                self._connections[connection] = is_busy

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error, unless a browser went away."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _RefusedError(Exception):
    """A request that is not answered, with the status of HTTP and the reason."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: PlayServer
    protocol_version = "HTTP/1.1"
    server_version = "sliceflow"
    sys_version = ""
    timeout = SILENCE_LIMIT

    def handle_one_request(self) -> None:
        super().handle_one_request()
        self.server.mark_connection(self.connection, is_busy=False)

    def _respond(self, is_post: bool) -> None:
        """Answer a request, with the error if there is one."""
        try:
            self._check_sender(is_post)
            response = self._find_response(is_post)
            self._send(HTTPStatus.OK, response)
        except _RefusedError as error:
            self.close_connection = True  # whatever comes is not read
            self._send(error.status, {"error": error.reason, "hint": ""})
        except ConnectionError:
            self.close_connection = True
        except Exception as error:
            self._send(HTTPStatus.UNPROCESSABLE_ENTITY, describe_error(error))

    do_GET = partialmethod(_respond, False)
    do_POST = partialmethod(_respond, True)

    def _check_sender(self, is_post: bool) -> None:
        """Refuse other computers, other web pages, and requests without the token."""
        port = self.server.server_port
        host = self.headers.get("Host", "")
        if host not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            reason = "this server answers to 127.0.0.1 only"
            raise _RefusedError(HTTPStatus.FORBIDDEN, reason)
        token, _ = self._token_and_name()
        expected = self.server.token.encode()
        if not secrets.compare_digest(token.encode("utf-8", "replace"), expected):
            reason = "wrong token; open the printed address"
            raise _RefusedError(HTTPStatus.FORBIDDEN, reason)
        site = self.headers.get("Sec-Fetch-Site", "same-origin")
        origin = self.headers.get("Origin", f"http://{host}")
        is_own_page = site in ("same-origin", "none") and origin == f"http://{host}"
        if is_post and not is_own_page:
            reason = "the request comes from another page"
            raise _RefusedError(HTTPStatus.FORBIDDEN, reason)
        self.server.mark_connection(self.connection, is_busy=True)

    def _token_and_name(self) -> tuple[str, str]:
        """The token of the path, and the name behind it."""
        path = urlsplit(self.path).path.removeprefix("/")
        token, _, name = path.partition("/")
        return token, unquote(name)

    def _find_response(self, is_post: bool) -> Response | JsonObject:
        """A file of the page, or what a route answers."""
        _, name = self._token_and_name()
        if not is_post and name in self.server.files:
            return self.server.files[name]
        route = None
        if name.startswith("api/"):
            route = self.server.routes.get(name.removeprefix("api/"))
        if route is None:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "there is nothing here")
        if route.is_post != is_post:
            reason = "this is not how to ask for it"
            raise _RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, reason)
        body = b""
        if is_post:
            body = self._read_body(route.limit)
        all_values = parse_qs(urlsplit(self.path).query)
        query = {key: values[-1] for key, values in all_values.items()}
        return route.handler(Request(query, body))

    def _read_body(self, limit: int) -> bytes:
        """All of the body, whose length must be known: half a table looks like one."""
        length = self.headers.get("Content-Length")
        if length is None or "Transfer-Encoding" in self.headers:
            reason = "say how long the body is (Content-Length)"
            raise _RefusedError(HTTPStatus.LENGTH_REQUIRED, reason)
        if not (length.isascii() and length.isdigit()):
            reason = "Content-Length is not a number"
            raise _RefusedError(HTTPStatus.BAD_REQUEST, reason)
        if len(length) > _MAX_LENGTH_DIGITS or int(length) > limit:
            reason = f"the limit is {limit / 2**20:g} MiB"
            raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        try:
            body = self.rfile.read(int(length))
        except TimeoutError as error:
            reason = "the body did not come"
            raise _RefusedError(HTTPStatus.REQUEST_TIMEOUT, reason) from error
        if len(body) < int(length):
            reason = "the body is shorter than it says"
            raise _RefusedError(HTTPStatus.BAD_REQUEST, reason)
        return body

    def _send(self, status: HTTPStatus, response: Response | JsonObject) -> None:
        """Send a response with its headers."""
        if isinstance(response, dict):
            text = json.dumps(response, allow_nan=False)
            response = Response(text.encode(), "application/json")
        self.send_response(status)
        self.send_header("Content-Type", f"{response.content_type}; charset=utf-8")
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Content-Security-Policy", response.policy)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(response.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the terminal shows the address only."""


def describe_error(error: Exception) -> dict[str, str]:
    """What the page shows of an error: what is wrong, and what to do."""
    if isinstance(error, HintedError):
        return {"error": error.where + error.fact, "hint": error.full_hint}
    is_for_users = isinstance(error, ValueError | ImportError | MemoryError | OSError)
    if is_for_users and str(error):
        return {"error": str(error), "hint": ""}
    return {"error": f"{type(error).__name__}: {error}", "hint": ""}
