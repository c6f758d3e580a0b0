"""Run the fast tests on every Python that this machine has, with old and new libraries.

    make test-matrix
    python scripts/test_matrix.py --only lowest

Each cell of the matrix gets a virtual environment of its own, in `.matrix/`:

pinned   the versions of constraints.txt, one cell for each Python from 3.11 on
lowest   the lowest versions that pyproject.toml declares, on the oldest Python

The first run downloads all packages; later runs reuse the environments unless
pyproject.toml or constraints.txt is newer. The script ends with status 1 if a cell
failed. What a machine does not have is named as missing, not skipped in silence.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".matrix"
# The versions that pyproject.toml names in its classifiers.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# Changes of these files make an environment out of date.
SOURCES = (ROOT / "pyproject.toml", ROOT / "constraints.txt")


@dataclass(frozen=True)
class Cell:
    """One environment of the matrix."""

    name: str
    python: str  # the interpreter
    install_options: tuple[str, ...]  # of uv: which versions to take

    @property
    def folder(self) -> Path:
        """The virtual environment."""
        return FOLDER / self.name


def find_interpreter(version: str) -> str | None:
    """The interpreter of a version such as "3.12", from PATH or from pyenv."""
    on_path = shutil.which(f"python{version}")
    if on_path is not None and _runs(on_path, version):
        return on_path
    pyenv_root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for folder in sorted(pyenv_root.glob(f"versions/{version}.*"), reverse=True):
        python = folder / "bin" / "python"
        if _runs(str(python), version):
            return str(python)
    return None


def _runs(python: str, version: str) -> bool:
    """Whether the interpreter starts, and has the version. Shims of pyenv may not."""
    show_version = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        shown = subprocess.run(
            [python, "-c", show_version], capture_output=True, text=True, check=False
        )
    except OSError:
        return False
    return shown.stdout.strip() == version


def find_cells() -> tuple[list[Cell], list[str]]:
    """The cells that this machine can run, and the versions of Python it lacks."""
    pinned = ("--constraint", str(ROOT / "constraints.txt"))
    cells = []
    missing = []
    for version in PYTHONS:
        python = find_interpreter(version)
        if python is None:
            missing.append(version)
            continue
        if not cells:
            lowest = ("--resolution", "lowest-direct")
            cells.append(Cell(f"{version}-lowest", python, lowest))
        cells.append(Cell(f"{version}-pinned", python, pinned))
    return cells, missing


def set_up(cell: Cell) -> None:
    """Install the package and what its tests need, unless that is up to date."""
    ready = cell.folder / ".ready"
    changed = max(source.stat().st_mtime for source in SOURCES)
    if ready.exists() and ready.stat().st_mtime > changed:
        return
    shutil.rmtree(cell.folder, ignore_errors=True)
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "-p", cell.python, cell.folder], check=True)
    install = [*uv, "pip", "install", "-q", "-p", cell.folder / "bin" / "python"]
    subprocess.run([*install, *cell.install_options, "-e", f"{ROOT}[dev]"], check=True)
    ready.touch()


def run_tests(cell: Cell, arguments: list[str]) -> tuple[str, float]:
    """The last line of pytest, and how many seconds it took."""
    command = [cell.folder / "bin" / "python", "-m", "pytest", "-n", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    started = time.monotonic()
    with (FOLDER / f"{cell.name}.log").open("w") as log:
        subprocess.run(
            [*command, "--dist", "worksteal", *arguments],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    lines = (FOLDER / f"{cell.name}.log").read_text().splitlines()
    return (lines or ["no output"])[-1].strip("= "), time.monotonic() - started


def run_cell(cell: Cell, arguments: list[str]) -> bool:
    """Set one cell up, run its tests, print the outcome; whether all passed."""
    print(f"{cell.name:<14} ", end="", flush=True)
    try:
        set_up(cell)
    except subprocess.CalledProcessError as error:
        print(f"could not be installed: {error}")
        return False
    outcome, seconds = run_tests(cell, arguments)
    print(f"{outcome} ({seconds:.0f} s, .matrix/{cell.name}.log)", flush=True)
    return "passed" in outcome and "failed" not in outcome and "error" not in outcome


def main() -> int:
    """Run the matrix; 1 if a cell failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a part of the names of cells")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    cells, missing = find_cells()
    for version in missing:
        print(f"{version:<14} missing: there is no Python {version} here")
    chosen = [cell for cell in cells if options.only in cell.name]
    if not chosen:
        print(f"no cell is named like {options.only!r}")
        return 1
    results = [run_cell(cell, options.pytest) for cell in chosen]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
