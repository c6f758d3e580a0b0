"""``sliceflow info``: it only looks, and writes nothing."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from sliceflow import __version__
from sliceflow.app.server import JsonObject
from sliceflow.cli.results import Result
from sliceflow.cli.run_folder import RunFolder, load_model, model_file
from sliceflow.wording import format_bytes

if TYPE_CHECKING:
    import torch

    from sliceflow.cli.run_folder import Model

# Packages that are always installed.
CORE_PACKAGES = (
    "torch",
    "numpy",
    "scikit-learn",
    "safetensors",
    "msgspec",
    "zstandard",
    "numba",
)
# Packages of each extra.
_EXTRAS = {
    "images": ("Pillow",),
    "tables": ("pandas",),
    "excel": ("openpyxl",),
    "cli": ("typer", "rich", "jinja2"),
    "metrics": ("torch-fidelity",),
    "demo": ("matplotlib",),
}
# The entries of config.json that `info` shows.
_SHOWN_OF_CONFIG = (
    "command",
    "started",
    "finished",
    "seconds",
    "steps",
    "start",
    "device",
    "versions",
)


def info(run: Path | None = None) -> Result:
    """Show what a run or a model file holds; without one, what is installed.

    That is: versions, devices, memory, data sets, and how to install what is missing.
    """
    found = _describe_system() if run is None else _describe_run(run)
    return Result(found, "\n".join(_as_lines(found)))


def _describe_run(run: Path) -> JsonObject:
    """What a run folder or a model file holds."""
    model = load_model(run, "cpu")
    path = model_file(run)
    out: JsonObject = {
        "model": str(path),
        "bytes": path.stat().st_size,
        "estimator": type(model).__name__,
    }
    if run.is_dir() and (run / "evaluation.json").exists():
        measures = RunFolder(run).read_json("evaluation.json")
        out["verdict"] = _describe_verdict(measures)
        out["measures"] = {row["name"]: row["value"] for row in measures["metrics"]}
    out |= _describe_model(model)
    if run.is_dir() and (run / "config.json").exists():
        config = RunFolder(run).read_json("config.json")
        out["data"] = config["data"]["what"]
        for key in _SHOWN_OF_CONFIG:
            if key in config:
                out[key] = config[key]
    return {name: value for name, value in out.items() if value not in (None, [], {})}


def _describe_verdict(measures: JsonObject) -> JsonObject | str:
    """The answers of a verdict with their reasons; a note if there is none."""
    if not measures["verdict"]:
        return str(measures["note"])
    answers = {}
    for answer in measures["verdict"].values():
        texts = "; ".join(finding["text"] for finding in answer["findings"])
        answers[answer["question"]] = f"{answer['grade']}: {texts}"
    return answers


def _describe_model(model: Model) -> JsonObject:
    """What a model holds of the data, their classes, and their shape."""
    from sliceflow import ImageFlow, TableFlow

    out: JsonObject = {
        "values of the data": "in its maps: single ones, or means of several"
    }
    if _has_fitted_rows(model):
        out["values of the data"] = "all: the model keeps its rows"
    out["classes"] = [str(label) for label in getattr(model, "classes_", ())]
    if isinstance(model, TableFlow):
        out["columns"] = model.kinds_
    elif isinstance(model, ImageFlow):
        layout = model.plan_.layout
        color = "" if layout.shape[0] == 1 else " in color"
        out["pictures"] = f"{layout.height}×{layout.width}{color}"
        is_name = model.known is None or isinstance(model.known, str)
        out["known"] = model.known if is_name else "a part of its own"
    else:
        out["columns"] = model.n_features_in_
    return out


def _has_fitted_rows(model: Model) -> bool:
    """Whether the file of a model contains the rows to which it was fitted."""
    from sliceflow import ImageFlow, TableFlow

    if isinstance(model, TableFlow) or model.save_rows:
        return True
    if isinstance(model, ImageFlow):
        return bool(model.plan_.mosaic_size)  # mosaics are made of training pictures
    return bool(model.plan_.method == "local")  # local conditions look for rows


def _as_lines(value: JsonObject, indent: str = "") -> Iterator[str]:
    """A dict as lines, with inner dicts indented."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield f"{indent}{key}:"
            yield from _as_lines(item, indent + "  ")
        elif isinstance(item, list):
            if item:
                yield f"{indent}{key}: {', '.join(str(part) for part in item)}"
        elif isinstance(item, float):
            yield f"{indent}{key}: {item:.4g}"
        elif item is not None:
            yield f"{indent}{key}: {item}"


def _describe_system() -> JsonObject:
    """Versions, devices, memory, data sets, and missing extras."""
    from sliceflow.datasets import available
    from sliceflow.datasets.sets import root_folder

    of_extras = [package for packages in _EXTRAS.values() for package in packages]
    versions = installed_versions(*CORE_PACKAGES, *of_extras, "triton")
    missing_extras = []
    for extra, packages in _EXTRAS.items():
        if any(versions[package] == "missing" for package in packages):
            missing_extras.append(extra)
    install = "none"
    if missing_extras:
        install = f"pip install 'sliceflow[{','.join(missing_extras)}]'"
    datasets = {}
    for name, is_complete in available().items():
        datasets[name] = "found" if is_complete else "missing"
    return {
        "versions": versions,
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "devices": _describe_devices(),
        f"data sets in {root_folder(None)}": datasets,
        "missing extras": install,
    }


def _describe_devices() -> dict[str, str]:
    """The memory of the CPU and of every GPU, by their names."""
    import torch

    cpu = f"cpu, {os.cpu_count()} cores, {torch.get_num_threads()} used"
    devices = {cpu: _describe_memory(torch.device("cpu"))}
    for i in range(torch.cuda.device_count()):
        name = f"cuda:{i}, {torch.cuda.get_device_name(i)}"
        devices[name] = _describe_memory(torch.device("cuda", i))
    return devices


def _describe_memory(device: torch.device) -> str:
    """Such as "12.0 GiB of 16.0 GiB free"."""
    from sliceflow.devices import free_memory, total_memory

    free = free_memory(device)
    total = total_memory(device)
    if free is None or total is None:
        return "unknown"
    return f"{format_bytes(free)} of {format_bytes(total)} free"


def installed_versions(*packages: str) -> dict[str, str]:
    """The versions of Python, sliceflow and these packages, or "missing"."""
    versions = {"python": platform.python_version(), "sliceflow": __version__}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "missing"
    return versions
