"""Update the pages in docs/commands: real output of every command, and a table of its flags.

    python examples/command_pages.py            # runs every command on the pages: minutes
    python examples/command_pages.py fit        # up to that page
    python examples/command_pages.py --flags    # only the tables of flags

Lines of a ```console block that begin with "$ " are run in a temporary folder, page after page. Their
output replaces the lines below them.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parent.parent / "docs" / "commands"
# A page may use the files of the pages before it.
ORDER = (
    "fit",
    "sample",
    "impute",
    "inpaint",
    "evaluate",
    "info",
    "play",
)
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FLAGS = re.compile(r"(?<=<!-- flags -->\n).*?(?=<!-- end of flags -->)", re.DOTALL)
_MADE = re.compile(r"^\*Real output: .*\*$", re.MULTILINE)


def flags(verb: str) -> str:
    """The table of a command's flags."""
    import typer

    from sliceflow.cli.commands import app

    group: Any = typer.main.get_command(app)
    rows = ["", "| flag | meaning |", "|---|---|"]
    for param in group.commands[verb].params:
        if param.param_type_name != "option" or param.name == "help":
            continue
        names = ", ".join(f"`{name}`" for name in param.opts)
        none = param.default is None or param.default is False or param.required
        shown = "" if none else f" Default: `{param.default}`."
        if isinstance(param.show_default, str):
            shown = f" Default: {param.show_default}."
        needed = " Required." if param.required else ""
        rows.append(f"| {names} | {param.help}{shown}{needed} |")
    return "\n".join([*rows, "", ""])


def run(text: str, folder: Path) -> str:
    """A block with fresh output of its commands, run in the folder."""
    out = []
    for line in text.splitlines():
        if not line.startswith("$ "):
            continue  # old output
        words = line[2:].split("  #")[0]
        print(words, flush=True)
        here = os.environ | {
            "COLUMNS": "100",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        result = subprocess.run(
            words,
            shell=True,
            cwd=folder,
            env=here,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said = result.stdout.decode().replace(str(Path.home()), "~").rstrip()
        said = said.replace(platform.release(), platform.release().split("-")[0])
        out += [line, *([said] if said else [])]
    return "\n".join(out) + "\n"


def prepare(folder: Path) -> None:
    """Make the input of the commands: half of a picture, and a table."""
    import numpy as np
    from PIL import Image

    from sliceflow.datasets import load

    test = load("digits", "test")
    Image.fromarray((test.images[3] * (255 / 16)).round().astype(np.uint8)).save(
        folder / "half.png"
    )
    with (folder / "patients.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("age", "sex", "pressure", "visits"))
        for i, (age, pressure) in enumerate(
            np.random.default_rng(1).normal((50, 90), 9, (300, 2))
        ):
            shown = "" if i % 100 == 7 else f"{pressure + age / 5:.1f}"
            writer.writerow((int(age), "ab"[i % 2], shown, i * i % 7))


def main() -> None:
    """Rewrite the pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--flags", action="store_true", help="only the tables; nothing is run"
    )
    parser.add_argument(
        "last", nargs="?", choices=ORDER, default=ORDER[-1], help="the last page"
    )
    arguments = parser.parse_args()
    only_flags = arguments.flags
    from sliceflow import __version__

    made = (
        f"*Real output: {datetime.date.today():%-d %B %Y}, sliceflow {__version__}, "
        f"{os.cpu_count()} cores of a shared {platform.machine()} machine.*"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not only_flags:
            prepare(folder)
        for verb in ORDER[: ORDER.index(arguments.last) + 1]:
            page = PAGES / f"{verb}.md"
            text = page.read_text(encoding="utf-8")
            text = _FLAGS.sub(lambda _, verb=verb: flags(verb), text)
            if not only_flags:
                text = _BLOCK.sub(lambda m: f"```console\n{run(m[1], folder)}```", text)
                text = _MADE.sub(made, text)
            page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
