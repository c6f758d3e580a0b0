"""Runs JavaScript on the page `docs/play` in headless Chromium, without a driver.

A server on 127.0.0.1 hands out the page with one more script, which sends back what it found.
"""

import json
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

__all__ = ["CHROMIUM", "NAMES", "measured"]

DOCS = Path(__file__).parent.parent / "docs"
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
PAGE = "/play/index.html"
LISTEN = """
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const send = (all) => fetch("/found", { method: "POST", body: JSON.stringify(all) });
addEventListener("error", (event) => send({ error: event.message }));
addEventListener("securitypolicyviolation", (event) => send({ error: event.violatedDirective }));
"""
SEND = (
    "(async () => { %s })().then((found) => send({ found }), (error) => send({ error: error.stack }));"
)


def measured(
    script: str, width: int = 1200, scheme: str = "light", seconds: float = 60, libraries: str = ""
) -> Any:
    """What `script`, the body of an async function, returns on the page.

    Parameters
    ----------
    width : of the page, in pixels
    scheme : "light" or "dark"
    seconds : to wait for it
    libraries : JavaScript that runs before
    """
    sent: queue.Queue[dict[str, Any]] = queue.Queue()
    files = {
        "/before.js": (LISTEN, "text/javascript"),
        "/script.js": (libraries + SEND % script, "text/javascript"),
        # An iframe, as a window of Chromium is never narrower than 500 pixels.
        "/frame.html": (f'<iframe src="{PAGE}" width="{width}" height="1000"></iframe>', "text/html"),
    }
    page = (DOCS / PAGE[1:]).read_text(encoding="utf-8")
    page = page.replace("default-src 'none'", "default-src 'none'; connect-src 'self'")
    page = page.replace("<head>", '<head><script src="/before.js"></script>')
    files[PAGE] = (page.replace("</body>", '<script src="/script.js"></script></body>'), "text/html")

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path not in files:
                return super().do_GET()
            text, kind = files[self.path]
            self.send_response(200)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())
            return None

        def do_POST(self) -> None:
            sent.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with _served(lambda *a: Handler(*a, directory=str(DOCS))) as address, _opened(address, scheme):
        try:
            answer = sent.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(f"the page said nothing in {seconds:g} seconds") from None
    if "error" in answer:
        raise RuntimeError(f"the page had an error: {answer['error']}")
    return answer.get("found")


@contextmanager
def _served(handler: Any) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/frame.html"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def _opened(address: str, scheme: str) -> Iterator[None]:
    if CHROMIUM is None:
        raise FileNotFoundError(f"no browser: none of {', '.join(NAMES)} is installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = subprocess.Popen(
            [
                CHROMIUM,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
                "--remote-debugging-port=0",  # else it would end when the page has loaded
                f"--user-data-dir={profile}",
                f"--blink-settings=preferredColorScheme={int(scheme == 'light')}",
                "--window-size=1300,1100",
                address,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            browser.terminate()
            browser.wait(20)
