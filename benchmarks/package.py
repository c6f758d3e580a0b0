"""The package: bytes of sdist and wheel, of the installed package, and seconds to import it.

    python benchmarks/package.py --out package

writes package.md and package.json.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import report
import torch

ROOT = Path(__file__).parent.parent
STATEMENTS = (
    "pass",
    "import sliceflow",
    "import torch",
    "from sliceflow import SlicedWassersteinFlow",
    "from sliceflow import ImageFlow",
    "from sliceflow import TableFlow",
)


def sizes() -> list[dict[str, object]]:
    """Bytes of what is built and installed."""
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, str(ROOT)]
        subprocess.run(build, check=True, capture_output=True)
        (sdist,), (wheel,) = Path(folder).glob("*.tar.gz"), Path(folder).glob("*.whl")
        there = Path(folder, "there")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile"]
        subprocess.run([*pip, "--target", str(there), str(wheel)], check=True, capture_output=True)
        installed = sum(file.stat().st_size for file in there.rglob("*") if file.is_file())
        found = {"sdist": sdist.stat().st_size, "wheel": wheel.stat().st_size, "installed": installed}
    return [{"what": what, "bytes": size} for what, size in found.items()]


def import_seconds(statement: str, repeats: int) -> float:
    """The median time of a new process that executes `statement`, after one that does not count."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True, env=environment)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def main() -> None:
    """Measure, print, and write what --out names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("package"))
    args = parser.parse_args()
    built = sizes()
    times = [{"what": s, "seconds": import_seconds(s, args.repeats)} for s in STATEMENTS]
    shown = report.table(["", "kB"], [[str(r["what"]), f"{int(r['bytes']) / 1000:.0f}"] for r in built])
    seconds = [[f"`{r['what']}`", f"{r['seconds']:.2f}"] for r in times]
    shown += "\n\n" + report.table(["a new process", "seconds, median"], seconds) + "\n\n"
    report.keep(args.out, shown, [*built, *times], torch.device("cpu"), "python benchmarks/package.py")


if __name__ == "__main__":
    main()
