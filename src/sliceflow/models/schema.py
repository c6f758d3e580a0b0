"""The small parts of a model as JSON and tensors, and back: parameters, seeds, conditions, and so on.

What is read has been checked. The tables, which are most of a model, are in `tables`.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, fields
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine import conditions, frames, transports
from sliceflow.engine.random import Seed
from sliceflow.models.old_file import Fields

__all__ = [
    "FRAMES",
    "TRANSPORTS",
    "check_tensor",
    "describe",
    "describe_frame",
    "pack_condition",
    "pack_history",
    "pack_particle_conditions",
    "parameters_of",
    "restore",
    "restore_parameters",
    "restore_seed",
    "unpack_condition",
    "unpack_history",
    "unpack_particle_conditions",
]

FRAMES = (frames.Random, frames.Orthogonal, frames.Axis, frames.MaxSliced)
TRANSPORTS = (transports.Sorted, transports.Interpolated, transports.Histogram, transports.Auto)
_MOST = 1 << 28  # bytes of class labels
_PATH = 100  # the most names in the path of a seed, and letters of a name


def pack_history(history: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The columns of a history as JSON, which has no NaN and no infinities."""
    return {
        name: [None if isinstance(v, float) and not math.isfinite(v) else v for v in column]
        for name, column in history.items()
    }


def unpack_history(header: Fields) -> dict[str, list[Any]]:
    """The history: stage, step, distance, share of moving maps and seconds of every step."""
    row = header.inner("history")
    names = ("stage", "step", "distance", "moving", "seconds")
    if "moving" not in row.value:  # formats up to 6 have no shrinkage
        row = Fields({**row.value, "moving": [1.0] * len(row.rows("step"))}, "history")
    columns = {name: row.rows(name) for name in names}
    kinds: dict[str, type | tuple[type, ...]] = {"stage": str, "step": int}
    for name, column in columns.items():
        kind = kinds.get(name, (int, float, type(None)))
        if len(column) != len(columns["step"]) or not all(isinstance(v, kind) for v in column):
            raise ValueError(f"history.{name} does not have one {name} for every step")
    for name in ("distance", "moving", "seconds"):
        columns[name] = [math.nan if v is None else float(v) for v in columns[name]]
    return columns


def describe(piece: Any, known: tuple[type[Any], ...]) -> dict[str, Any] | None:
    """One of the `known` classes by its name and fields; None for anything else."""
    return {"kind": type(piece).__name__, **asdict(piece)} if type(piece) in known else None


def describe_frame(frame: Any) -> dict[str, Any]:
    """The same for a frame, which replaying needs: a ValueError for a user's own frame."""
    described = describe(frame, FRAMES)
    if described is None:
        raise ValueError(
            f"frame={frame!r} cannot be saved: samples need the frames again, and a file can only name "
            f"{', '.join(kind.__name__ for kind in FRAMES)}; fit with one of these"
        )
    return described


def restore(row: Fields, known: tuple[type[Any], ...]) -> Any:
    """The object that `describe` described."""
    name = row.text("kind")
    kind = next((k for k in known if k.__name__ == name), None)
    if kind is None:
        raise ValueError(f"{name!r} is not one of {[k.__name__ for k in known]}")
    values: dict[str, Any] = {}
    for field in fields(kind):
        if field.name not in row.value:
            continue
        value = row.value[field.name]
        if isinstance(field.default, bool):
            values[field.name] = row.flag(field.name)
        elif value is None and field.name == "most":
            values[field.name] = None
        else:
            values[field.name] = row.whole(field.name, 0)
    return kind(**values)


def parameters_of(estimator: Any) -> dict[str, Any]:
    """The constructor's parameters as JSON, without the device."""
    out = {}
    for name, value in estimator.get_params(deep=False).items():
        value = value.item() if isinstance(value, np.generic) else value
        if name == "random_state":
            value = value if isinstance(value, int) else None
        elif name == "transport" and not isinstance(value, str):
            value = describe(value, TRANSPORTS)
        elif name == "frame" and not isinstance(value, str):
            value = describe_frame(value)
        elif name == "options":
            value = None if value is None else asdict(value)
        elif name == "observed" and value is not None and not isinstance(value, str):
            value = {"kind": "mask"}
        elif value == math.inf:
            value = "inf"  # JSON has no infinity
        if name != "device":
            out[name] = value
    return out


def restore_parameters(header: Fields, kind: type[Any], options: type[Any]) -> dict[str, Any]:
    """Parameters for the constructor; those missing in the file have their defaults."""
    row, out = header.inner("parameters"), {}
    defaults = kind().get_params(deep=False)
    for name, value in row.value.items():
        if name not in defaults:
            raise ValueError(f"parameters.{name} is not a parameter of {kind.__name__}")
        if isinstance(defaults[name], bool):
            value = row.flag(name)
        elif name == "transport" and not isinstance(value, str):
            value = "auto" if value is None else restore(row.inner(name), TRANSPORTS)
        elif name == "frame" and not isinstance(value, str):
            value = restore(row.inner(name), FRAMES)
        elif name == "options" and value is not None:
            value = _options(row.inner(name), options)
        elif value == "inf":
            value = math.inf
        elif isinstance(value, (dict, list)) and value != {"kind": "mask"}:
            raise ValueError(f"parameters.{name} is a {type(value).__name__}")
        out[name] = value
    return out


def _options(row: Fields, kind: type[Any]) -> Any:
    """The options of an estimator; those missing in the file have their defaults."""
    defaults, out = asdict(kind()), {}
    for name, value in row.value.items():
        if name not in defaults:
            raise ValueError(f"parameters.options.{name} is not one of {kind.__name__}")
        out[name] = row.flag(name) if isinstance(defaults[name], bool) else value
        if isinstance(value, (dict, list)):
            raise ValueError(f"parameters.options.{name} is a {type(value).__name__}")
    return kind(**out)


def restore_seed(row: Fields) -> Seed:
    """The root of the frames' seeds."""
    entropy, path = row.raw("entropy"), row.rows("path")
    short = len(path) <= _PATH and all(len(name) <= _PATH for name in path if isinstance(name, str))
    if type(entropy) is not int or not short or not all(type(name) in (int, str) for name in path):
        raise ValueError("seed must be an integer entropy and a short path of names and integers")
    return Seed(entropy, tuple(path))


def check_tensor(
    tensors: dict[str, Tensor], name: str, dtype: torch.dtype | None, shape: tuple[int | None, ...]
) -> Tensor:
    """A finite tensor of the file, of the given type (None: any float) and shape (None: any)."""
    if name not in tensors:
        raise ValueError(f"the tensor {name} is missing")
    t = tensors[name]
    fits = t.dim() == len(shape) and all(n in (None, m) for n, m in zip(shape, t.shape, strict=True))
    if not fits or not (t.dtype == dtype if dtype is not None else t.is_floating_point()):
        raise ValueError(
            f"the tensor {name} is {t.dtype} of shape {tuple(t.shape)}, not {dtype} of {shape}"
        )
    if t.is_floating_point() and not bool(torch.isfinite(t).all()):
        raise ValueError(f"the tensor {name} holds NaN or infinity")
    return t


# Conditions


def pack_condition(
    condition: conditions.Condition | None, codes: Tensor | None, tensors: dict[str, Tensor]
) -> dict[str, Any] | None:
    """The condition, and the data's codes: samples have their proportions unless y is given."""
    if condition is None or codes is None:
        return None
    if isinstance(condition, conditions.Labels):
        # Sorted: only the proportions matter, and a file should not say which row had which label.
        tensors["codes"] = codes.sort().values.to(torch.int32)
        classes = condition.classes
        row = {
            "kind": "labels",
            "dtype": classes.dtype.str,
            "classes": [_label(v) for v in _plain(classes)],
            "hidden": condition.hidden,
        }
        _classes(Fields(row))  # check that it can be read
        return row
    row = {"kind": "columns"}
    if isinstance(condition, conditions.Mixed):
        classes = condition.labels.classes
        row = {
            "kind": "mixed",
            "dtype": classes.dtype.str,
            "classes": [_label(v) for v in _plain(classes)],
            "labelled": list(condition.labelled),
        }
        _classes(Fields(row))
        condition = condition.columns
    columns = cast(conditions.Columns, condition)
    tensors["codes"] = codes
    tensors["condition.mean"], tensors["condition.scale"] = map(
        torch.from_numpy, (columns.mean, columns.scale)
    )
    return row


def pack_particle_conditions(
    y: np.ndarray | None, condition: conditions.Condition | None, tensors: dict[str, Tensor]
) -> None:
    """The conditions of the batched samples."""
    if y is None or condition is None:
        return
    labels = isinstance(condition, conditions.Labels) and np.ndim(y) == 1
    if labels or isinstance(condition, conditions.Mixed):
        tensors["particle_conditions"] = condition.encode(y)
    else:
        tensors["particle_conditions"] = torch.from_numpy(np.asarray(y, dtype=np.float64))


def unpack_particle_conditions(
    condition: conditions.Condition | None, m: int, tensors: dict[str, Tensor]
) -> np.ndarray | None:
    """The conditions of m batched samples, as the user passed them."""
    if "particle_conditions" not in tensors:
        return None
    y = tensors["particle_conditions"]
    if condition is None or len(y) != m:
        raise ValueError(f"particle_conditions has {len(y)} rows for {m} particles")
    if y.dtype == torch.int64 and isinstance(condition, conditions.Labels):
        if y.dim() != 1 or (m and not 0 <= int(y.min()) <= int(y.max()) < condition.width):
            raise ValueError("particle_conditions are not numbers of the classes")
        return cast(np.ndarray, condition.classes[y.numpy()])
    y = check_tensor(tensors, "particle_conditions", torch.float64, (m, condition.width))
    if not isinstance(condition, conditions.Mixed):
        return y.numpy()
    _check_combinations(y, condition.labels, "particle_conditions")
    return condition.decode(y)


def _check_combinations(codes: Tensor, labels: conditions.Labels, name: str) -> None:
    """Raise a ValueError if the first column does not number combinations of labels."""
    numbers = codes[:, 0]
    if not bool(((numbers == numbers.round()) & (numbers >= 0) & (numbers < labels.width)).all()):
        raise ValueError(f"{name} are not numbers of the combinations of labels")


def unpack_condition(header: Fields, tensors: dict[str, Tensor]) -> tuple[Any, Tensor | None]:
    """The condition, or None, and the data's codes."""
    if header.raw("condition") is None:
        return None, None
    row = header.inner("condition")
    kind = row.text("kind")
    if kind in ("columns", "mixed"):
        mean = check_tensor(tensors, "condition.mean", torch.float64, (None,))
        scale = check_tensor(tensors, "condition.scale", torch.float64, mean.shape)
        codes = check_tensor(tensors, "codes", torch.float64, (None, len(mean) + (kind == "mixed")))
        if 0 in codes.shape or not bool((scale > 0).all()):
            raise ValueError("condition has no rows, or a scale that is not positive")
        columns = conditions.Columns(mean.numpy(), scale.numpy())
        if kind == "columns":
            return columns, codes
        labels, labelled = conditions.Labels(_classes(row)), tuple(row.rows("labelled"))
        _check_combinations(codes, labels, "codes")
        widths = {(type(label), len(label)) for label in labels.classes if isinstance(label, tuple)}
        flags = all(type(flag) is bool for flag in labelled)
        if (
            not flags
            or widths != {(tuple, sum(labelled))}
            or len(labelled) - sum(labelled) != len(mean)
        ):
            raise ValueError("condition.labelled does not fit the labels and the columns")
        if len(torch.unique(codes[:, 0])) != labels.width:
            raise ValueError("condition has a combination of labels without rows")
        return conditions.Mixed(labels, columns, labelled), codes
    if kind != "labels":
        raise ValueError(f"condition.kind is {kind!r}; it must be 'labels', 'columns' or 'mixed'")
    hidden = "hidden" in row.value and row.flag("hidden")
    labels = conditions.Labels(_classes(row), hidden)
    codes = check_tensor(tensors, "codes", torch.int32, (None,)).long()
    if len(codes) == 0 or not 0 <= int(codes.min()) <= int(codes.max()) < labels.width:
        raise ValueError("codes are not numbers of the classes")
    return labels, codes


def _plain(classes: np.ndarray) -> list[Any]:
    """Labels as Python objects; dates as numpy's integers."""
    return cast(list[Any], (classes.view(np.int64) if classes.dtype.kind in "mM" else classes).tolist())


def _label(label: Any) -> Any:
    """A label as JSON; tuples and bytes are marked."""
    if isinstance(label, np.generic):
        label = label.item()
    if isinstance(label, tuple):
        return {"tuple": [_label(v) for v in label]}
    if isinstance(label, bytes):
        return {"bytes": label.hex()}
    if (
        label is None
        or type(label) in (bool, int, str)
        or (type(label) is float and math.isfinite(label))
    ):
        return label
    raise ValueError(
        f"the label {conditions.format_label(label)} is a {type(label).__name__}, which a file cannot "
        "store; use strings, numbers or tuples of them"
    )


def _restored_label(label: Any) -> Any:
    if not isinstance(label, dict):
        if isinstance(label, list):
            raise ValueError("condition.classes holds a list; labels are hashable")
        return label
    if isinstance(label.get("tuple"), list):
        return tuple(_restored_label(v) for v in label["tuple"])
    if isinstance(label.get("bytes"), str):
        return bytes.fromhex(label["bytes"])
    raise ValueError("condition.classes holds an object that is not a label")


def _classes(row: Fields) -> np.ndarray:
    """The array of classes, with its dtype."""
    labels = [_restored_label(v) for v in row.rows("classes")]
    text = row.text("dtype")
    # numpy would accept more than names of types: lists of them, and worse.
    if re.fullmatch(r"[<>|=]?[biufUSmMO]\d{0,9}(\[\d{0,9}[a-zA-Z]{1,2}\])?", text) is None:
        raise ValueError(f"condition.dtype is {text!r}, which is not a type of labels")
    dtype = np.dtype(text)
    size = dtype.itemsize * len(labels)
    if not labels or dtype.kind not in "biufUSmMO" or size > _MOST:
        raise ValueError(f"condition has {len(labels)} labels of dtype {dtype}, {size} bytes")
    classes = np.empty(len(labels), dtype=np.int64 if dtype.kind in "mM" else dtype)
    if dtype.kind == "O":
        classes[:] = labels
    else:
        kinds: dict[str, type] = {"b": bool, "f": float, "U": str, "S": bytes}
        if not all(type(v) is kinds.get(dtype.kind, int) for v in labels):
            raise ValueError(f"condition.classes are not all of dtype {dtype}")
        classes[:] = labels
    classes = classes.view(dtype) if dtype.kind in "mM" else classes
    if _plain(classes) != labels or len(set(labels)) != len(labels):
        raise ValueError(f"condition.classes are not distinct labels of dtype {dtype}")
    return classes
