"""How the benchmarks report: command lines, Markdown tables, the machine, files."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import sliceflow

__all__ = [
    "Row",
    "add_device_argument",
    "command_line",
    "format_number",
    "machine_facts",
    "markdown_table",
    "script_parser",
    "signature",
    "table_of_rows",
    "write_report",
]

Row = dict[str, Any]  # what was measured once, by the names of the table's columns


def script_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose `--help` shows the module's docstring with its line breaks."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawTextHelpFormatter
    )


def add_device_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--device`, which `sliceflow.devices.resolve_device` understands."""
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda, or auto: a GPU if there is one"
    )


def command_line(script: str, arguments: Sequence[str] | None) -> str:
    """The command that runs a script with these arguments; None are those of now."""
    if arguments is None:
        arguments = sys.argv[1:]
    quoted = [shlex.quote(argument) for argument in arguments]
    return " ".join(["python", script, *quoted])


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An aligned Markdown table; all columns but the first are flush right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rules = ["-" * (widths[0] + 2)]
    for width in widths[1:]:
        rules.append("-" * (width + 1) + ":")
    lines = [_table_line(header, widths), "|" + "|".join(rules) + "|"]
    for row in rows:
        lines.append(_table_line(row, widths))
    return "\n".join(lines)


def _table_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """One line of a Markdown table, padded to the widths of its columns."""
    padded = [cells[0].ljust(widths[0])]
    for cell, width in zip(cells[1:], widths[1:], strict=True):
        padded.append(cell.rjust(width))
    return "| " + " | ".join(padded) + " |"


def table_of_rows(header: Sequence[str], rows: Sequence[Row]) -> str:
    """A Markdown table of what rows have under these names, empty where nothing."""
    cells = []
    for row in rows:
        cells.append([format_number(row.get(name)) for name in header])
    return markdown_table(header, cells)


def format_number(value: str | float | None) -> str:
    """Three digits, whole numbers as they are, or nothing where there is none."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}"


def machine_facts(device: torch.device) -> dict[str, str]:
    """The day, the machine and the versions that numbers belong to."""
    if device.type == "cuda":
        machine = torch.cuda.get_device_name(device)
    else:
        machine = platform.processor() or platform.machine()
    facts = {
        "date": datetime.date.today().isoformat(),
        "machine": machine,
        "python": platform.python_version(),
        "sliceflow": sliceflow.__version__,
    }
    for package in ("torch", "triton", "numpy", "numba"):
        with suppress(PackageNotFoundError):
            facts[package] = version(package)
    return facts


def signature(facts: dict[str, str], command: str) -> str:
    """The sentences below every table, from `machine_facts`."""
    versions = []
    for name, value in facts.items():
        if name not in ("date", "machine"):
            versions.append(f"{name} {value}")
    day_and_machine = f"{facts['date']}, one {facts['machine']}"
    return f"{day_and_machine}. {', '.join(versions)}. Command: `{command}`."


def write_report(
    path: Path, text: str, rows: Sequence[Row], device: torch.device, command: str
) -> None:
    """Print a table with its signature; write it to `path`.md, its rows to `path`.json.

    Parameters
    ----------
    path : without an ending; its folder is made
    text : the table, in Markdown
    rows : the numbers, which JSON can hold or `float` converts
    device : where they were measured
    command : how to measure them again
    """
    facts = machine_facts(device)
    text = f"{text}\n\n{signature(facts, command)}\n"
    contents = {"command": command, "machine": facts, "rows": list(rows)}
    as_json = json.dumps(contents, indent=1, ensure_ascii=False, default=float)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    path.with_suffix(".json").write_text(as_json + "\n", encoding="utf-8")
    print(f"\n{text}", flush=True)
