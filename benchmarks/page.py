"""The page `docs/play`: frames a second, and milliseconds for a step, in headless Chromium.

    python benchmarks/page.py --out page

writes page.md and page.json.
"""

import argparse
import subprocess
from pathlib import Path

import report
import torch
from browser import CHROMIUM, measured

SCRIPT = """
const find = (id) => document.getElementById(id);
const set = (id, value) => {
  find(id).value = value;
  find(id).dispatchEvent(new Event("input", { bubbles: true }));
};
set("particles", %d); set("steps", 400); set("rate", %d);
find("play").click();
await pause(300);  // compiled by then
const began = performance.now(), first = parseInt(find("number").textContent);
let frames = 0, now = began;
while (now < began + 1000 * %g) { now = await new Promise(requestAnimationFrame); frames++; }
find("play").click();
const seconds = (now - began) / 1000, played = parseInt(find("number").textContent) - first;
const normal = () => Float64Array.from({ length: 2 * %d }, () => Math.random() + Math.random());
const points = normal(), data = normal(), start = performance.now();
for (let i = 0; i < 50; i++) Flow.step(points, data, [0.6, 0.8, -0.8, 0.6]);
return { fps: frames / seconds, rate: played / seconds, step: (performance.now() - start) / 50 };
"""


def rows_of(sizes: list[int], rate: int, seconds: float) -> list[dict[str, float]]:
    """What a browser measured, for each number of particles."""
    return [
        {"particles": m, **measured(SCRIPT % (m, rate, seconds, m), seconds=60 + 2 * seconds)}
        for m in sizes
    ]


def main() -> None:
    """Measure, print, and write what --out names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--particles", type=int, nargs="+", default=[500, 2000, 4000])
    parser.add_argument("--rate", type=int, default=30, help="steps per second asked for, 1 to 60")
    parser.add_argument("--seconds", type=float, default=5, help="to play")
    parser.add_argument("--out", type=Path, default=Path("page"))
    args = parser.parse_args()
    rows = rows_of(args.particles, args.rate, args.seconds)
    version = subprocess.run(
        [str(CHROMIUM), "--version"], capture_output=True, text=True
    ).stdout.strip()
    header = ["particles", "frames a second", "steps a second", "ms for a step, as many data"]
    cells = [[f"{r['particles']:,}", *(f"{r[k]:.2f}" for k in ("fps", "rate", "step"))] for r in rows]
    about = (
        f"{version}, headless, without a GPU; two moons, 400 data; {args.rate} steps a second wanted."
    )
    words = f" --rate {args.rate}" if args.rate != 30 else ""
    command = f"python benchmarks/page.py{words}"
    shown = f"{about}\n\n{report.table(header, cells)}\n\n"
    report.keep(args.out, shown, rows, torch.device("cpu"), command)


if __name__ == "__main__":
    main()
