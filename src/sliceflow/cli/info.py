"""``sliceflow info``: it only looks, and writes nothing."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sliceflow import __version__
from sliceflow.cli.run_folder import RunFolder, load_model, model_file

_EXTRAS = {  # packages beside those that are always installed
    "images": ("Pillow",),
    "tables": ("pandas",),
    "cli": ("typer", "rich", "jinja2"),
    "metrics": ("torch-fidelity",),
    "demo": ("matplotlib",),
}
CORE = ("torch", "numpy", "scikit-learn", "safetensors", "numba")


def info(run: Path | None = None) -> tuple[dict[str, Any], str]:
    """Show what a run or a model file holds; without one: versions, devices, memory, data sets."""
    found = _system() if run is None else _run(run)
    return found, "\n".join(_lines(found))


def _run(run: Path) -> dict[str, Any]:
    """What a run folder or a model file holds."""
    flow = load_model(run, "cpu")
    path = model_file(run)
    out: dict[str, Any] = {"model": str(path), "bytes": path.stat().st_size}
    out["estimator"] = type(flow).__name__
    if run.is_dir() and (run / "evaluation.json").exists():
        found = RunFolder(run).read_json("evaluation.json")
        out["verdict"] = found["verdict"] or found["note"]
        out["measures"] = {row["name"]: row["value"] for row in found["numbers"]}
    summed, near = (
        getattr(flow.plan_, name, 0) for name in ("mosaic_size", "neighbours")
    )
    keeps = getattr(flow, "keep_rows", True) or summed or near
    in_maps = "in its maps: single ones, or means of several"
    out["values of the data"] = "all: the model keeps its rows" if keeps else in_maps
    out["classes"] = list(map(str, getattr(flow, "classes_", ())))
    if type(flow).__name__ == "ImageFlow":
        layout = flow.plan_.layout
        colour = "" if layout.shape[0] == 1 else " in colour"
        out["pictures"] = f"{layout.height}×{layout.width}{colour}"
        out["observed"] = (
            flow.observed if isinstance(flow.observed, (str, type(None))) else "a mask"
        )
    else:
        out["columns"] = getattr(flow, "kinds_", flow.n_features_in_)
    if run.is_dir() and (run / "config.json").exists():
        config = RunFolder(run).read_json("config.json")
        out["data"] = config["data"]["what"]
        keys = (
            "command",
            "started",
            "finished",
            "seconds",
            "steps",
            "start",
            "device",
            "versions",
        )
        out |= {key: config[key] for key in keys if key in config}
    return {name: value for name, value in out.items() if value not in (None, [], {})}


def _lines(value: dict[str, Any], indent: str = "") -> Iterator[str]:
    """A dict as lines, with inner dicts indented."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield f"{indent}{key}:"
            yield from _lines(item, indent + "  ")
        elif item not in (None, []):
            shown = ", ".join(map(str, item)) if isinstance(item, list) else item
            yield f"{indent}{key}: {f'{shown:.4g}' if isinstance(shown, float) else shown}"


def _system() -> dict[str, Any]:
    """Versions, devices, memory, data sets, and missing extras with the command that installs them."""
    import torch

    from sliceflow.datasets import available
    from sliceflow.datasets.sets import root_folder
    from sliceflow.devices import free_memory, total_memory

    def memory(device: torch.device) -> str:
        free = free_memory(device)
        total = total_memory(device)
        if free is None or total is None:
            return "unknown"
        return f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"

    cpu = f"cpu, {os.cpu_count()} cores, {torch.get_num_threads()} used"
    devices = {cpu: memory(torch.device("cpu"))}
    for i in range(torch.cuda.device_count()):
        devices[f"cuda:{i}, {torch.cuda.get_device_name(i)}"] = memory(
            torch.device("cuda", i)
        )
    versions = installed(
        "sliceflow", *CORE, *(p for extra in _EXTRAS.values() for p in extra), "triton"
    )
    lacking = [
        e
        for e, packages in _EXTRAS.items()
        if any(versions[p] == "missing" for p in packages)
    ]
    return {
        "versions": versions,
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "devices": devices,
        f"data sets in {root_folder(None)}": {
            name: "found" if there else "missing" for name, there in available().items()
        },
        "missing extras": f"pip install 'sliceflow[{','.join(lacking)}]'"
        if lacking
        else "none",
    }


def installed(*packages: str) -> dict[str, str]:
    """The versions of Python and of packages, or "missing"."""
    out = {"python": platform.python_version()}
    for package in packages:
        try:
            out[package] = __version__ if package == "sliceflow" else version(package)
        except PackageNotFoundError:
            out[package] = "missing"
    return out
