"""How the benchmarks say what they measured: tables, what numbers belong to, files."""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import sliceflow

__all__ = ["facts", "keep", "number", "signature", "table"]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An aligned Markdown table; all columns but the first are flush right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *others = (cell.ljust(w) for cell, w in zip(cells, widths, strict=True))
        others = [
            cell.strip().rjust(w) for cell, w in zip(others, widths[1:], strict=True)
        ]
        return "| " + " | ".join((first, *others)) + " |"

    rule = (
        "|"
        + "|".join(["-" * (widths[0] + 2), *("-" * (w + 1) + ":" for w in widths[1:])])
        + "|"
    )
    return "\n".join([line(header), rule, *map(line, rows)])


def number(value: Any) -> str:
    """Three digits, whole numbers as they are, or nothing where there is none."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def facts(device: torch.device) -> dict[str, str]:
    """The day, the machine and the versions that numbers belong to."""
    out = {"date": datetime.date.today().isoformat()}
    out["machine"] = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else platform.processor() or platform.machine()
    )
    out |= {"python": platform.python_version(), "sliceflow": sliceflow.__version__}
    for name in ("torch", "triton", "numpy", "numba"):
        with suppress(PackageNotFoundError):
            out[name] = version(name)
    return out


def signature(about: dict[str, str], command: str) -> str:
    """The sentences below every table, from `facts`."""
    versions = ", ".join(
        f"{k} {v}" for k, v in about.items() if k not in ("date", "machine")
    )
    return f"{about['date']}, one {about['machine']}. {versions}. Command: `{command}`."


def keep(
    path: Path, text: str, rows: list[Any], device: torch.device, command: str
) -> None:
    """Write a table with its signature to `path`.md and the rows to `path`.json; print
    the former.
    """
    about = facts(device)
    text = f"{text}\n\n{signature(about, command)}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = {"command": command, "machine": about, "rows": rows}
    written = json.dumps(numbers, indent=1, ensure_ascii=False, default=float)
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    path.with_suffix(".json").write_text(written + "\n", encoding="utf-8")
    print(f"\n{text}", flush=True)
