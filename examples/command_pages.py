"""Update the pages in docs/commands: real output of every command, and its flags.

    python examples/command_pages.py            # runs every command on the pages
    python examples/command_pages.py fit        # up to that page
    python examples/command_pages.py --flags    # only the tables of flags

Lines of a ```console block that begin with "$ " are run in a temporary folder, page
after page, which takes minutes. Their output replaces the lines below them.
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
CONSOLE_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FLAGS_TABLE = re.compile(
    r"(?<=<!-- flags -->\n).*?(?=<!-- end of flags -->)", re.DOTALL
)
ORIGIN_LINE = re.compile(r"^\*Real output: .*\*$", re.MULTILINE)


def flags(verb: str) -> str:
    """The table of a command's flags."""
    import typer

    from sliceflow.cli.commands import app

    group: Any = typer.main.get_command(app)
    rows = ["", "| flag | meaning |", "|---|---|"]
    for option in group.commands[verb].params:
        if option.param_type_name == "option" and option.name != "help":
            names = ", ".join(
                f"`{name}`" for name in option.opts + option.secondary_opts
            )
            rows.append(f"| {names} | {option.help}{_default(option)} |")
    return "\n".join([*rows, "", ""])


def _default(option: Any) -> str:
    """What the table says of the default of an option of click."""
    required = " Required." if option.required else ""
    if isinstance(option.show_default, str):
        return f" Default: {option.show_default}.{required}"
    if option.required:
        return required
    if option.default is None or option.default is False:
        return ""
    return f" Default: `{option.default}`."


def run(text: str, folder: Path) -> str:
    """A block with fresh output of its commands, run in the folder."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("$ "):
            continue  # old output
        command, _, _ = line.removeprefix("$ ").partition("  #")
        print(command, flush=True)
        lines.append(line)
        output = _output(command, folder)
        if output:
            lines.append(output)
    return "\n".join(lines) + "\n"


def _output(command: str, folder: Path) -> str:
    """What a command prints, without what is private to this machine."""
    scripts = Path(sys.executable).parent  # where `sliceflow` is
    result = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=os.environ
        | {"COLUMNS": "100", "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output = result.stdout.decode().replace(str(Path.home()), "~").rstrip()
    release, _, _ = platform.release().partition("-")
    return output.replace(platform.release(), release)


def prepare(folder: Path) -> None:
    """Make the input of the commands: half of a picture, and two tables."""
    import numpy as np
    from PIL import Image

    from sliceflow.datasets import load

    digit = load("digits", "test").images[3]  # pixels are 0..16
    gray = (digit * (255 / 16)).round().astype(np.uint8)
    Image.fromarray(gray).save(folder / "half.png")

    numbers = np.random.default_rng(1).normal((50, 90), 9, (300, 2))
    with (folder / "patients.csv").open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("age", "sex", "pressure", "visits"))
        for i, (age, noise) in enumerate(numbers):
            pressure = f"{noise + age / 5:.1f}"
            if i % 100 == 7:
                pressure = ""  # some are missing
            writer.writerow((int(age), "ab"[i % 2], pressure, i * i % 7))

    with (folder / "messy.csv").open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("age", "seen", "notes"))
        for i, (age, _) in enumerate(numbers):
            cell = str(int(age))
            if i in (3, 50):
                cell = ("unknown", "fifty")[i // 50]
            seen = f"0{i % 9 + 1}/0{i % 8 + 1}/2026"
            notes = f"came {i} days after the last visit and stayed for {2 * i} min"
            writer.writerow((cell, seen, notes))


def main() -> None:
    """Rewrite the pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--flags", action="store_true", help="only the tables; nothing is run"
    )
    parser.add_argument(
        "last", nargs="?", choices=ORDER, default=ORDER[-1], help="the last page"
    )
    args = parser.parse_args()
    from sliceflow import __version__

    origin = (
        f"*Real output: {datetime.date.today():%-d %B %Y}, sliceflow {__version__}, "
        f"{os.cpu_count()} cores of a shared {platform.machine()} machine.*"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def with_fresh_output(block: re.Match[str]) -> str:
            return f"```console\n{run(block[1], folder)}```"

        if not args.flags:
            prepare(folder)
        for verb in ORDER[: ORDER.index(args.last) + 1]:
            page = PAGES / f"{verb}.md"
            text = page.read_text(encoding="utf-8")
            text = FLAGS_TABLE.sub(lambda _, verb=verb: flags(verb), text)
            if not args.flags:
                text = CONSOLE_BLOCK.sub(with_fresh_output, text)
                text = ORIGIN_LINE.sub(origin, text)
            page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
