"""``sliceflow info``, ``datasets`` and ``doctor``: they only look, and write nothing."""

from __future__ import annotations

import importlib.util
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sliceflow import __version__
from sliceflow.cli.progress import last_distance
from sliceflow.cli.run_folder import RunFolder

__all__ = ["datasets_found", "installed_version", "run_info", "system_info"]

_EXTRAS = {
    "images": {"Pillow": "PIL"},
    "tables": {"narwhals": "narwhals", "pandas": "pandas"},
    "cli": {"typer": "typer", "rich": "rich", "jinja2": "jinja2"},
    "metrics": {"torch-fidelity": "torch_fidelity"},
    "demo": {"matplotlib": "matplotlib", "tqdm": "tqdm"},
}
_CORE = ("torch", "numpy", "scikit-learn", "safetensors", "numba")
_SIZES = {
    "digits": "1297 + 500, 8×8 grey",
    "mnist": "60,000 + 10,000, 28×28 grey",
    "fashion-mnist": "60,000 + 10,000, 28×28 grey",
    "cifar10": "50,000 + 10,000, 32×32 colour",
    "celeba": "aligned faces, 64×64 colour",
}


def run_info(run: Path) -> dict[str, Any]:
    """What a run folder or a model file holds."""
    flow: Any = RunFolder.model(run, "cpu")
    path = run / "model.sliceflow" if run.is_dir() else run
    from sliceflow.models.disclosure import holds_rows

    table, keeps = hasattr(flow, "kinds_"), holds_rows(flow)
    stage, distance = None, None
    if not keeps:
        stage, distance = last_distance(flow.history_["stage"], flow.history_["distance"])
    out: dict[str, Any] = {
        "model": str(path),
        "bytes": path.stat().st_size,
        "estimator": type(flow).__name__,
        "conditions": "local" if keeps and not table else None,
        "steps": None if table else flow.n_iter_,
        "rows": flow.n_rows_ if table else None,
        "last sliced distance": distance,
        "in stage": stage,
        "classes": None if table else [str(c) for c in getattr(flow, "classes_", ())],
        "kinds": flow.kinds_ if table else None,
        "values of the data": _values_of_the_data(flow),
    }
    out = {name: value for name, value in out.items() if value is not None}
    if hasattr(flow, "schedule_"):
        layout = flow.layout_
        colour = "" if layout.shape[0] == 1 else " in colour"
        out["pictures"] = f"{layout.height}×{layout.width}{colour}"
        out["stages"] = [str(stage) for stage in flow.schedule_]
        out["observed"] = flow.observed if isinstance(flow.observed, (str, type(None))) else "a mask"
    else:
        out["columns"] = [str(c) for c in getattr(flow, "feature_names_in_", ())] or flow.n_features_in_
    if run.is_dir() and (run / "config.json").exists():
        config = RunFolder(run).read_json("config.json")
        keys = ("command", "started", "finished", "seconds", "particles", "device")
        out |= {key: config[key] for key in keys if key in config}
        out["data"] = config["data"]["what"]
        if config["data"]["columns"] is not None:
            out["columns"] = config["data"]["columns"]
        out["versions"] = config["versions"]
    if run.is_dir() and (run / "evaluation.json").exists():
        found = RunFolder(run).read_json("evaluation.json")
        out["measures of samples" if table else "measures of batched samples"] = (
            found["scores"] if table else {m["name"]: m["batched"] for m in found["measures"]}
        )
        if found.get("copying"):
            out["warning"] = found["copying"]
    return out


def _values_of_the_data(flow: Any) -> str:
    """Whether values of the data can be read from the model."""
    from sliceflow.models.disclosure import holds_data, holds_rows, knots_and_rows

    if hasattr(flow, "kinds_"):
        return "all: the file holds the rows of the table"
    knots, rows = knots_and_rows(flow)
    if holds_rows(flow):
        if hasattr(flow, "schedule_"):
            return "all: the model keeps the pictures, which samples start from"
        return f"all: the model of local conditions keeps its {rows} rows and their y"
    if rows is None:
        return "unknown whether the maps hold any: an early version saved the model"
    counts = f"{knots} knots of a map for {rows} rows"
    if holds_data(flow):
        return f"in the maps: {counts}"
    ends = "" if hasattr(flow, "schedule_") else ", and the ends of every column exactly"
    return f"averaged: {counts}{ends}"


def datasets_found(root: Path | None) -> dict[str, Any]:
    """The named sets, where they are looked for, and which are found."""
    from sliceflow.datasets import available
    from sliceflow.datasets.sets import root_folder

    found = available(root)
    return {
        "root": str(root_folder(root)),
        "sets": [{"name": n, "pictures": _SIZES[n], "found": here} for n, here in found.items()],
    }


def system_info(root: Path | None) -> dict[str, Any]:
    """Versions, devices, memory, data sets, and missing extras with the command that installs them."""
    import torch

    from sliceflow.devices import free_memory, total_memory

    def memory(device: torch.device) -> str:
        free, total = free_memory(device), total_memory(device)
        if free is None or total is None:
            return "unknown"
        return f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"

    cpu = f"cpu, {os.cpu_count()} cores, {torch.get_num_threads()} used"
    devices = {cpu: memory(torch.device("cpu"))}
    for i in range(torch.cuda.device_count()):
        devices[f"cuda:{i}, {torch.cuda.get_device_name(i)}"] = memory(torch.device("cuda", i))
    packages = [*_CORE, *(package for extra in _EXTRAS.values() for package in extra), "triton"]
    return {
        "versions": {"sliceflow": __version__, "python": platform.python_version()}
        | {package: installed_version(package) for package in packages},
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "devices": devices,
        "data": datasets_found(root),
        "missing": {
            extra: f'pip install "sliceflow[{extra}]"'
            for extra, modules in _EXTRAS.items()
            if any(importlib.util.find_spec(module) is None for module in modules.values())
        },
    }


def installed_version(package: str) -> str:
    """The version that is installed, or "missing"."""
    try:
        return __version__ if package == "sliceflow" else version(package)
    except PackageNotFoundError:
        return "missing"
