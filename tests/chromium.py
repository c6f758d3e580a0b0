"""Drives headless Chromium by its own protocol: pages, keys, the mouse, files.

Nothing is installed for it: messages are JSON, ended by a zero byte, through pipes that
are the file descriptors 3 and 4 of Chromium.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from importlib.util import find_spec
from pathlib import Path

__all__ = ["CHROMIUM", "NAMES", "Chromium", "Page"]

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)

# Chromium reads 3 and writes 4: puts the pipes there, and becomes Chromium.
_MOVE = """
import os, sys
high = [os.dup2(int(fd), 200 + i) for i, fd in enumerate(sys.argv[1:3])]
for fd, at in zip(high, (3, 4)): os.dup2(fd, at)
os.execv(sys.argv[3], sys.argv[3:])
"""
_KEYS = {
    "Tab": 9,
    "Enter": 13,
    " ": 32,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
}


class Chromium:
    """A running browser; `page` opens pages, each in a profile of its own."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read, self._out = os.pipe()
        self._in, write = os.pipe()
        words = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--remote-debugging-pipe",
            "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
            f"--user-data-dir={self._folder.name}",
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MOVE, str(read), str(write), str(CHROMIUM), *words],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self._number = 0
        self._answers = {}
        self.events = []
        self._came = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        rest = b""
        while part := os.read(self._in, 1 << 20):
            *messages, rest = (rest + part).split(b"\0")
            with self._came:
                for text in messages:
                    message = json.loads(text)
                    if "id" in message:
                        self._answers[message["id"]] = message
                    else:
                        self.events.append(message)
                self._came.notify_all()

    def send(self, method, session=None, seconds=60, **params):
        """Call a method of the protocol, and wait for its result."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params}
        message |= {} if session is None else {"sessionId": session}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        with self._came:
            if not self._came.wait_for(lambda: number in self._answers, seconds):
                raise TimeoutError(f"{method} had no answer in {seconds} seconds")
            answer = self._answers.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def page(self, address, width=1200, height=1000, scheme="light"):
        """A page in a new profile."""
        return Page(self, address, width, height, scheme)

    def close(self):
        self._process.terminate()
        self._process.wait(20)
        os.close(self._out)
        self._folder.cleanup()


class Page:
    """A tab of the browser."""

    def __init__(self, chromium, address, width, height, scheme):
        self._chromium = chromium
        self.address = address
        context = chromium.send("Target.createBrowserContext")["browserContextId"]
        target = chromium.send(
            "Target.createTarget", url="about:blank", browserContextId=context
        )
        attached = chromium.send(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        self._session = attached["sessionId"]
        self._target = target["targetId"]
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.send(f"{domain}.enable")
        self.resize(width, height)
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", features=media)
        self.open(address)

    def send(self, method, **params):
        return self._chromium.send(method, self._session, **params)

    def resize(self, width, height):
        size = {
            "width": width,
            "height": height,
            "deviceScaleFactor": 1,
            "mobile": False,
        }
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def open(self, address):
        """Go somewhere, and wait until the page has loaded."""
        self.send("Page.navigate", url=address)
        self.wait(
            "document.readyState === 'complete' && location.href !== 'about:blank'"
        )

    def reload(self):
        self.run("window.old = true")
        self.send("Page.reload")
        self.wait("!window.old && document.readyState === 'complete'")

    def run(self, script):
        """What the body of an async function returns on the page.

        One expression needs no return.
        """
        body = script if "return" in script or ";" in script else f"return {script}"
        answer = self.send(
            "Runtime.evaluate",
            expression=f"(async () => {{ {body} }})()",
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(
                answer["exceptionDetails"]["exception"].get("description")
            )
        return answer["result"].get("value")

    def wait(self, condition, seconds=60):
        """Wait until an expression is true."""
        until = time.monotonic() + seconds
        while True:
            try:
                if self.run(f"return Boolean({condition})"):
                    return
            except RuntimeError:  # the page is being replaced
                pass
            if time.monotonic() > until:
                shown = self.run("return document.body.innerText")[:2000]
                raise TimeoutError(f"never: {condition}; the page says {shown}")
            time.sleep(0.05)

    def text(self, id):
        return self.run(f"return document.getElementById({id!r}).textContent")

    def click(self, id):
        self.run(f"document.getElementById({id!r}).click(); return null")

    def drag(self, id, places):
        """Drag the mouse over an element, through places in [0, 1]²."""
        box = self.run(
            f"const element = document.getElementById({id!r});"
            "element.scrollIntoView({block: 'center'});"
            "const box = element.getBoundingClientRect();"
            "return [box.left, box.top, box.width, box.height]"
        )
        kinds = ["mousePressed"] + ["mouseMoved"] * (len(places) - 1)
        for kind, (x, y) in zip(kinds, places, strict=True):
            at = {"x": box[0] + x * box[2], "y": box[1] + y * box[3]}
            self.send(
                "Input.dispatchMouseEvent",
                type=kind,
                button="left",
                buttons=1,
                clickCount=1,
                **at,
            )
        self.send(
            "Input.dispatchMouseEvent",
            type="mouseReleased",
            button="left",
            clickCount=1,
            **at,
        )

    def key(self, key, times=1):
        """Press a key, as the keyboard would."""
        for _ in range(times):
            code = {"key": key, "windowsVirtualKeyCode": _KEYS[key]}
            text = {"Enter": "\r", " ": " "}.get(key)
            self.send(
                "Input.dispatchKeyEvent",
                type="keyDown",
                **code,
                **({"text": text} if text else {}),
            )
            self.send("Input.dispatchKeyEvent", type="keyUp", **code)

    def choose(self, id, file):
        """Choose a file."""
        node = self.send(
            "Runtime.evaluate", expression=f"document.getElementById({id!r})"
        )
        self.send(
            "DOM.setFileInputFiles",
            files=[str(file)],
            objectId=node["result"]["objectId"],
        )

    def downloads(self, folder):
        """Keep what is downloaded in a folder."""
        self.send(
            "Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder)
        )

    def picture(self, path):
        """A screenshot."""
        found = self.send("Page.captureScreenshot")
        Path(path).write_bytes(base64.b64decode(found["data"]))

    def accessible(self):
        """What axe-core complains about, which must be installed."""
        axe = Path(
            find_spec("axe_core_python").submodule_search_locations[0], "axe.min.js"
        )
        self.send("Runtime.evaluate", expression=axe.read_text(encoding="utf-8"))
        violations, passed = self.run(
            "return axe.run().then((r) => [r.violations, r.passes.length])"
        )
        assert passed > 15
        return [(v["id"], [node["html"] for node in v["nodes"]]) for v in violations]

    def errors(self):
        """What the browser complained about."""
        heard = [
            e for e in self._chromium.events if e.get("sessionId") == self._session
        ]
        thrown = [
            e["params"]["exceptionDetails"]["text"]
            for e in heard
            if e["method"] == "Runtime.exceptionThrown"
        ]
        logged = [
            e["params"]["entry"] for e in heard if e["method"] == "Log.entryAdded"
        ]
        return thrown + [entry["text"] for entry in logged if entry["level"] == "error"]

    def close(self):
        self._chromium.send("Target.closeTarget", targetId=self._target)
