"""How the benchmarks say what they measured: tables, numbers with units, straight lines."""

import datetime
import json
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sliceflow

__all__ = ["Line", "facts", "keep", "seconds_text", "signature", "table"]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An aligned Markdown table; all columns but the first are flush right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *others = (cell.ljust(w) for cell, w in zip(cells, widths, strict=True))
        others = [cell.strip().rjust(w) for cell, w in zip(others, widths[1:], strict=True)]
        return "| " + " | ".join((first, *others)) + " |"

    rule = "|" + "|".join(["-" * (widths[0] + 2), *("-" * (w + 1) + ":" for w in widths[1:])]) + "|"
    return "\n".join([line(header), rule, *map(line, rows)])


def seconds_text(seconds: float) -> str:
    """Three digits and a unit."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


@dataclass(frozen=True)
class Line:
    """The straight line a + b·x closest to some points, and R², the share of their variance it has."""

    a: float
    b: float
    r2: float

    @classmethod
    def through(cls, x: Sequence[float], y: Sequence[float]) -> "Line":
        """The least-squares line."""
        b, a = np.polyfit(x, y, 1)
        rest, whole = np.asarray(y) - (a + b * np.asarray(x)), np.asarray(y) - np.mean(y)
        return cls(float(a), float(b), float(1 - rest @ rest / (whole @ whole)))

    def at(self, x: float) -> float:
        """The line's value."""
        return self.a + self.b * x


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
    """The sentences below every set of tables, from `facts`."""
    versions = ", ".join(f"{k} {v}" for k, v in about.items() if k not in ("date", "machine"))
    return f"{about['date']}, one {about['machine']}. {versions}. Command: `{command}`."


def keep(path: Path, shown: str, rows: list[Any], device: torch.device, command: str) -> None:
    """Write tables with their signature to `path`.md and the rows to `path`.json; print the former."""
    about = facts(device)
    text = f"{shown}{signature(about, command)}\n"
    kept = {"command": command, "machine": about, "rows": rows}
    written = json.dumps(kept, indent=1, ensure_ascii=False, default=float)
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    path.with_suffix(".json").write_text(written + "\n", encoding="utf-8")
    print(f"\n{text}")
