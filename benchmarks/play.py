"""`sliceflow play`: seconds until its page is there and painted points are learnt; beside Gradio.

    python benchmarks/play.py --python fresh/bin/python --gradio other/bin/python --out play
    python benchmarks/play.py --screens docs/images

writes play.md and play.json, or the pictures of docs/how-to/play.md. `--python` is an environment with
``sliceflow[app]``, and `--gradio` one with Gradio; without them, this one and nothing to compare with.
An audit hook in the server's process notes which hosts it asks for.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import report
import torch
from browser import CHROMIUM
from chromium import Chromium, Page

HOOK = """
import os, sys
def hook(event, words):
    if event in ("socket.getaddrinfo", "socket.connect"):
        host = words[0] if event == "socket.getaddrinfo" else words[1][0]
        with open(os.environ["HOSTS"], "a") as file:
            file.write(f"{host}\\n")
sys.addaudithook(hook)
"""
# Four tabs with the parts that the page of sliceflow play has.
GRADIO = """
import gradio
with gradio.Blocks() as page:
    with gradio.Tab("Points"): gradio.Plot()
    with gradio.Tab("Pictures"): gradio.Gallery(); gradio.Slider(0, 1)
    with gradio.Tab("Complete"): gradio.ImageEditor()
    with gradio.Tab("Table"): gradio.File(); gradio.Dataframe()
page.launch(server_name="127.0.0.1")
"""
# The distributions that one needs, with some extras, and their bytes.
NEEDED = """
import json, re, sys
from importlib.metadata import distribution
from packaging.requirements import Requirement
done, sizes = set(), {}
def visit(name, extras):
    key = re.sub("[-_.]+", "-", name).lower()
    for extra in {"", *extras} - {extra for other, extra in done if other == key}:
        done.add((key, extra))
        here = distribution(name)
        files = (file.locate() for file in here.files or ())
        sizes[key] = sum(path.stat().st_size for path in files if path.is_file())
        for need in map(Requirement, here.requires or ()):
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                visit(need.name, need.extras)
visit(sys.argv[1], sys.argv[2:])
print(json.dumps(sizes))
"""


@contextmanager
def started(words: list[str], folder: Path) -> Iterator[tuple[str, float, Path]]:
    """A server: its address, the seconds until it answered, and the file of hosts it asks for."""
    (folder / "sitecustomize.py").write_text(HOOK)
    hosts = folder / "hosts"
    hosts.unlink(missing_ok=True)
    paths = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    more = {"HOSTS": str(hosts), "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
    began = time.perf_counter()
    process = subprocess.Popen(
        words, cwd=folder, env=os.environ | more, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    try:
        address = None
        while address is None:
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                raise RuntimeError(f"{words} said no address")
            address = re.search(r"http://127\.0\.0\.1:\d+\S*", line)
        urllib.request.urlopen(address[0], timeout=60).read()
        yield address[0], time.perf_counter() - began, hosts
    finally:
        process.terminate()
        process.wait(30)


def learnt(page: Page) -> None:
    """Paint points with the mouse, press play, and wait for 40 steps and a tenth of the distance."""
    page.click("clear")
    page.drag("canvas", [(0.2 + 0.03 * i, 0.3 + 0.1 * np.sin(i / 2)) for i in range(20)])
    page.run("document.querySelector('[name=colour][value=\"1\"]').click(); return null")
    page.drag("canvas", [(0.2 + 0.03 * i, 0.7 + 0.1 * np.cos(i / 2)) for i in range(20)])
    page.click("step")
    first = float(page.text("distance"))
    page.click("play")
    shown = "parseFloat(document.getElementById('%s').textContent)"
    page.wait(
        f"{shown % 'number'} >= 40 && {shown % 'distance'} < {first / 10}"
    )  # one pair of directions may mislead


def row_of(
    name: str, words: list[str], repeats: int, paints: bool, listen: float = 4
) -> dict[str, Any]:
    """Seconds of a server, and the hosts that it asks for until `listen` seconds later."""
    times, watched, asked = [], [], set()
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder, started(words, Path(folder)) as found:
            address, seconds, hosts = found
            times.append(seconds)
            if paints and CHROMIUM is not None:
                chromium = Chromium()
                began = time.perf_counter()
                page = chromium.page(address)
                learnt(page)
                watched.append(seconds + time.perf_counter() - began)
                chromium.close()
            time.sleep(listen)
            with suppress(FileNotFoundError):
                asked |= set(hosts.read_text().split()) - {"127.0.0.1", "localhost"}
    return {
        "server": name,
        "seconds": statistics.median(times),
        "watched": statistics.median(watched) if watched else None,
        "hosts": sorted(asked),
    }


def sizes(python: str, *what: str) -> dict[str, int]:
    """Bytes of the distributions that one needs, with some extras."""
    with tempfile.TemporaryDirectory() as folder:
        found = subprocess.run(
            [python, "-c", NEEDED, *what], capture_output=True, text=True, check=True, cwd=folder
        )
    return {str(name): int(size) for name, size in json.loads(found.stdout).items()}


def more(found: dict[str, int], known: dict[str, int]) -> int:
    """Bytes of distributions beside those that are known."""
    return sum(size for name, size in found.items() if name not in known)


def screens(folder: Path, runs: Path) -> None:
    """The pictures of docs/how-to/play.md: every tab, of a run of digits and a made-up table."""
    from PIL import Image

    from sliceflow.cli.play import run_of, server

    serving = server([run_of(runs)])
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    chromium = Chromium()
    page = chromium.page(serving.address, width=1100, height=880)

    def says(id: str, words: str) -> None:
        page.wait(f"document.getElementById({id!r}).textContent.includes({words!r})")

    def keep(name: str) -> None:
        page.run("document.activeElement.blur(); return new Promise((done) => setTimeout(done, 300))")
        path = folder / f"play-{name}.png"
        page.picture(path)
        with Image.open(path) as picture:
            small = picture.convert("RGB").quantize(96, dither=Image.Dither.NONE)
        small.save(path, optimize=True)

    page.run("const s = document.getElementById('smoothing'); s.value = 0.5;"
             "s.dispatchEvent(new Event('input', { bubbles: true })); return null")  # fmt: skip
    learnt(page)
    page.click("play")
    keep("points")
    page.click("tab-pictures")
    says("pictures-status", "samples in")
    page.run("document.querySelectorAll('#grid button')[3].click(); return null")
    says("pictures-status", "Sample 4.")
    page.run("const t = document.getElementById('time'); t.value = 16;"
             "t.dispatchEvent(new Event('input')); scrollTo(0, 0); return null")  # fmt: skip
    keep("pictures")
    page.click("tab-complete")
    says("complete-status", "Hide any")
    page.click("complete")
    says("complete-status", "8 completions")
    keep("complete")
    page.click("tab-table")
    with tempfile.TemporaryDirectory() as name:
        file = Path(name, "customers.csv")
        file.write_text(customers())
        page.choose("csv", file)
        says("table-status", "Correct what")
        page.click("fit")
        says("table-status", "Fitted and")
        page.run("return new Promise((done) => setTimeout(done, 1000))")
    keep("table")
    page.run("""
    const report = document.getElementById("report");
    const titles = [...report.contentDocument.querySelectorAll("h2")];
    const at = titles.find((title) => title.textContent === "Columns").offsetTop;
    scrollTo(0, scrollY + report.getBoundingClientRect().top + at);
    return null;""")
    keep("table-report")
    chromium.close()
    serving.shutdown()
    serving.server_close()


def customers(n: int = 500) -> str:
    """A table as CSV: an identifier, numbers, a category, dates, missing cells, free text."""
    rng = np.random.default_rng(0)
    age = rng.normal(45, 14, n).clip(18, 90).round().astype(int)
    gold = rng.random(n) < 0.2 + 0.006 * age
    income = np.exp(7 + 0.01 * age + 0.4 * gold + 0.4 * rng.normal(size=n)).round(2)
    day = np.datetime64("2023-01-01") + rng.integers(0, 700, n).astype("timedelta64[D]")
    lines = ["customer,age,plan,income,joined,visits,comment"]
    for i in range(n):
        cells = [f"C{10000 + 7 * i}", age[i], "gold" if gold[i] else "basic"]
        cells += ["" if i % 17 == 0 else income[i], day[i], rng.poisson(2 + 2 * gold[i])]
        lines.append(",".join(map(str, [*cells, f"on day {i} all was well with order {i * i}"])))
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print, and write what --out names; or take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--python", default=sys.executable, help="of an environment with sliceflow[app]"
    )
    parser.add_argument("--gradio", default=None, help="Python of an environment with Gradio")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--screens", type=Path, default=None, help="take the pictures of the docs")
    parser.add_argument(
        "--run", type=Path, default=Path("runs/digits"), help="a run of digits, for them"
    )
    parser.add_argument("--out", type=Path, default=Path("play"))
    args = parser.parse_args()
    if args.screens is not None:
        screens(args.screens, args.run)
        return
    known = sizes(args.python, "sliceflow", "cli")
    ours = more(sizes(args.python, "sliceflow", "app"), known)
    words = [args.python, "-m", "sliceflow", "play", "--no-browser"]
    rows = [row_of("sliceflow play", words, args.repeats, True) | {"bytes": ours}]
    command = "python benchmarks/play.py --python fresh/bin/python"
    if args.gradio is not None:
        theirs = more(sizes(args.gradio, "gradio"), known)
        version = subprocess.run(
            [args.gradio, "-c", "from importlib.metadata import version; print(version('gradio'))"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        row = row_of(f"Gradio {version}, empty tabs", [args.gradio, "-c", GRADIO], args.repeats, False)
        rows.append(row | {"bytes": theirs})
        command += " --gradio other/bin/python"
    header = ["", "s until the page answers", "s until painted points are learnt",
              "MB of packages besides sliceflow[cli]", "hosts asked for"]  # fmt: skip
    cells = [
        [
            r["server"],
            f"{r['seconds']:.2f}",
            "" if r["watched"] is None else f"{r['watched']:.1f}",
            f"{r['bytes'] / 1e6:.0f}",
            ", ".join(r["hosts"]) or "none",
        ]
        for r in rows
    ]
    report.keep(args.out, report.table(header, cells) + "\n\n", rows, torch.device("cpu"), command)


if __name__ == "__main__":
    main()
