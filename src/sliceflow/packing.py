"""The pieces of a model as JSON and tensors, and back: tables, frames, transports, seeds, conditions.

What comes back has been checked: whatever a file says, its tensors and its frames fit together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

import sliceflow
from sliceflow import conditions, frames, transports
from sliceflow.compact import CompactTable, from_bytes, to_bytes
from sliceflow.container import Fields
from sliceflow.flow import Step
from sliceflow.pictures import Layout
from sliceflow.rng import Seed
from sliceflow.transports import Table

__all__ = [
    "FRAMES",
    "TRANSPORTS",
    "check_tensor",
    "describe",
    "describe_frame",
    "pack_condition",
    "pack_history",
    "pack_tables",
    "restore",
    "restore_layout",
    "restore_seed",
    "unpack_condition",
    "unpack_history",
    "unpack_tables",
]

FRAMES = (frames.Random, frames.Orthogonal, frames.Axis)
TRANSPORTS = (transports.Sorted, transports.Histogram, transports.Auto)
_TABLES: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "grid": (transports.GridTable, ("lo", "hi", "values")),
    "knots": (transports.KnotTable, ("knots", "values")),
    "compact": (CompactTable, ("packed",)),
}
_MOST = 1 << 28  # bytes of class labels, and values of a picture


# Tables


def pack_tables(
    model: Sequence[Sequence[Step]], tensors: dict[str, Tensor], *, weights: bool = False
) -> list[list[dict[str, Any]]]:
    """Put the tables of every stage into `tensors`; what `unpack_tables` must be told of them.

    Steps whose tables are alike (kind, number of knots, type) lie one after the other along the
    directions, of which every step may have another number. The grids' `weights` are left out unless
    asked for: only who goes on fitting needs them.
    """
    out = []
    for i, steps in enumerate(model):
        alike: dict[tuple[str, int, torch.dtype], list[Step]] = {}
        for step in steps:
            kind = next((name for name, (t, _) in _TABLES.items() if type(step.table) is t), None)
            if kind is None:
                raise ValueError(
                    f"a {type(step.table).__name__} cannot be saved; transports whose models are saved "
                    "return GridTable, KnotTable or CompactTable"
                )
            if isinstance(step.table, CompactTable):
                alike.setdefault((kind, step.table.n_bins, step.table.dtype), []).append(step)
            else:
                values = cast(Any, step.table).values
                alike.setdefault((kind, values.shape[1], values.dtype), []).append(step)
        groups = []
        for j, ((kind, n_bins, dtype), some) in enumerate(alike.items()):
            group: dict[str, Any] = {"kind": kind, "steps": [s.step for s in some]}
            tables = [cast(Any, step.table) for step in some]
            if kind == "compact":
                packed = np.frombuffer(bytearray(to_bytes(tables)), np.uint8)
                tensors[f"tables.{i}.{j}.packed"] = torch.from_numpy(packed)
                group |= {
                    "directions": [len(t.lo) for t in tables],
                    "exponents": [t.exponent for t in tables],
                    "bins": n_bins,
                    "knots": sum(len(t.at) for t in tables),
                    "type": str(dtype).removeprefix("torch."),
                }
                groups.append(group)
                continue
            parts = {}
            for name in _TABLES[kind][1]:
                whole = torch.cat([getattr(t, name).cpu() for t in tables])
                parts[name] = tensors[f"tables.{i}.{j}.{name}"] = whole
            _check_maps(f"tables.{i}.{j}", parts)
            if weights and kind == "grid" and all(t.weights is not None for t in tables):
                tensors[f"tables.{i}.{j}.weights"] = torch.cat([t.weights.cpu() for t in tables])
            groups.append({**group, "directions": [len(t.values) for t in tables]})
        out.append(groups)
    return out


def unpack_tables(
    row: Fields,
    i: int,
    stage: int,
    tensors: dict[str, Tensor],
    n_steps: int | None,
    directions: Callable[[int], int] | None,
    device: torch.device,
) -> list[Step]:
    """The steps that `pack_tables` wrote for entry i of the schedule, `row`.

    Parameters
    ----------
    stage : the number that the steps are to bear
    n_steps, directions : of the stage, and how many directions the frame of a step has; None where the
        file can only be our own
    """
    out: dict[int, Step] = {}
    for j, group in enumerate(row.inners("tables")):
        kind, steps, sizes = group.text("kind"), group.wholes("steps", 0), group.wholes("directions", 1)
        if kind not in _TABLES:
            raise ValueError(
                f"it has tables of kind {kind!r}; sliceflow {sliceflow.__version__} knows "
                f"{list(_TABLES)}: install a newer one"
            )
        if len(steps) != len(sizes):
            raise ValueError(f"tables.{i}.{j} has {len(steps)} steps but {len(sizes)} sizes")
        for k, h in zip(steps, sizes, strict=True):
            if k in out or (n_steps is not None and k >= n_steps):
                raise ValueError(
                    f"tables.{i}.{j} has step {k}, which is twice there or beyond {n_steps}"
                )
            if directions is not None and h != directions(k):
                raise ValueError(
                    f"step {k} of stage {i} has {h} maps but its frame has {directions(k)} directions"
                )
        if len(set(steps)) != len(steps):
            raise ValueError(f"tables.{i}.{j} has a step twice")
        unpack = _unpack_compact if kind == "compact" else _unpack_whole
        tables = unpack(group, f"tables.{i}.{j}", kind, sizes, tensors, device)
        out |= {k: Step(stage, k, table) for k, table in zip(steps, tables, strict=True)}
    return [out[k] for k in sorted(out)]


def _unpack_whole(
    group: Fields,
    name: str,
    kind: str,
    sizes: list[int],
    tensors: dict[str, Tensor],
    device: torch.device,
) -> list[Table]:
    """Tables whose tensors are in the file as they are."""
    parts, (table, fields) = {}, _TABLES[kind]
    for field in fields:
        shape = (sum(sizes),) if field in ("lo", "hi") else (sum(sizes), None)
        parts[field] = check_tensor(tensors, f"{name}.{field}", None, shape)
    _check_maps(name, parts)
    if f"{name}.weights" in tensors and kind == "grid":
        bins = parts["values"].shape[1] - 1
        parts["weights"] = check_tensor(tensors, f"{name}.weights", torch.uint8, (sum(sizes), bins))
    split = {field: torch.split(t.to(device), sizes) for field, t in parts.items()}
    return [table(**{f: t[i] for f, t in split.items()}) for i in range(len(sizes))]


def _unpack_compact(
    group: Fields,
    name: str,
    kind: str,
    sizes: list[int],
    tensors: dict[str, Tensor],
    device: torch.device,
) -> list[Table]:
    """Tables that are one stream of bytes."""
    if group.text("type") not in ("float32", "float64"):
        raise ValueError(f"{name} has numbers of type {group.text('type')!r}")
    tables = from_bytes(
        check_tensor(tensors, f"{name}.packed", torch.uint8, (None,)).numpy().tobytes(),
        sizes,
        group.wholes("exponents", -1000),
        group.whole("bins", 1),
        group.whole("knots", 0),
        getattr(torch, group.text("type")),
    )
    return [table.to(device) for table in tables]


def _check_maps(name: str, parts: dict[str, Tensor]) -> None:
    """Refuse maps that are not finite or not ascending, and tensors that do not belong together."""
    exact, pair = {torch.float32, torch.float64}, ("lo", "hi") if "lo" in parts else ("knots", "values")
    if not {t.dtype for t in parts.values()} <= exact or parts[pair[0]].dtype != parts[pair[1]].dtype:
        raise ValueError(f"{name} mixes types of numbers, or they are neither float32 nor float64")
    shape = parts["values"].shape
    if shape[1] < (1 if "knots" in parts else 2) or parts.get("knots", parts["values"]).shape != shape:
        raise ValueError(f"{name} has maps of {shape[1]} values, or other numbers of knots")
    for field, t in parts.items():
        if not bool(torch.isfinite(t).all()):
            raise ValueError(f"{name}.{field} holds NaN or infinity: the flow did not stay finite")
    falls = parts["lo"] - parts["hi"] if "lo" in parts else -parts["knots"].diff(dim=1)
    # Averages of equal numbers may differ in the last digit.
    slack = 1e-5 * parts["knots" if "knots" in parts else "hi"].abs().amax() if falls.numel() else 0.0
    if bool((falls > slack).any()):
        raise ValueError(f"{name} holds maps whose knots do not ascend")


# Small pieces


def pack_history(history: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The columns of a history as JSON, which has no NaN and no infinities."""
    return {
        name: [None if isinstance(v, float) and not math.isfinite(v) else v for v in column]
        for name, column in history.items()
    }


def unpack_history(header: Fields) -> dict[str, list[Any]]:
    """The history: stage, step, distance and seconds of every step."""
    row = header.inner("history")
    columns = {name: row.rows(name) for name in ("stage", "step", "distance", "seconds")}
    kinds: dict[str, type | tuple[type, ...]] = {"stage": str, "step": int}
    for name, column in columns.items():
        kind = kinds.get(name, (int, float, type(None)))
        if len(column) != len(columns["step"]) or not all(isinstance(v, kind) for v in column):
            raise ValueError(f"history.{name} does not have one {name} for every step")
    for name in ("distance", "seconds"):
        columns[name] = [math.nan if v is None else float(v) for v in columns[name]]
    return columns


def describe(piece: Any, known: tuple[type[Any], ...]) -> dict[str, Any] | None:
    """A piece of ours by its name and fields; None for none, and for one of the user's own."""
    return {"kind": type(piece).__name__, **asdict(piece)} if type(piece) in known else None


def describe_frame(frame: Any) -> dict[str, Any]:
    """The same for a frame, without which nothing can be replayed: one of the user's own is refused."""
    described = describe(frame, FRAMES)
    if described is None:
        raise ValueError(
            f"frame={frame!r} cannot be saved: samples need frames drawn again, and a file can only "
            f"name {', '.join(kind.__name__ for kind in FRAMES)}; fit with one of these"
        )
    return described


def restore(row: Fields, known: tuple[type[Any], ...]) -> Any:
    """What `describe` described."""
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
            values[field.name] = row.whole(field.name, 1)
    return kind(**values)


def restore_seed(header: Fields) -> Seed:
    """The root of the frames' seeds."""
    row = header.inner("seed")
    entropy, path = row.raw("entropy"), row.rows("path")
    if type(entropy) is not int or not all(type(name) in (int, str) for name in path):
        raise ValueError("seed must be an integer entropy and a path of names and integers")
    return Seed(entropy, tuple(path))


def restore_layout(row: Fields) -> Layout:
    """The pictures' layout."""
    channels = None if row.raw("channels") is None else row.whole("channels", 1)
    levels = None if row.raw("levels") is None else row.whole("levels", 2)
    layout = Layout(
        row.whole("height", 1),
        row.whole("width", 1),
        channels,
        row.text("dtype"),
        levels,
        row.flag("tensor"),
    )
    if layout.dimension > _MOST:
        raise ValueError(f"pictures has {layout.dimension} values; at most {_MOST} are possible")
    if np.dtype(layout.dtype).kind not in ("f" if levels is None else "iub"):
        raise ValueError(f"pictures.dtype is {layout.dtype!r}, which does not go with its levels")
    return layout


def check_tensor(
    tensors: dict[str, Tensor], name: str, dtype: torch.dtype | None, shape: tuple[int | None, ...]
) -> Tensor:
    """A tensor of the file, of the given type (None: any float) and shape (None: any), all finite."""
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
    """What y is; the data's codes too, whose proportions samples have where no y is given."""
    if condition is None or codes is None:
        return None
    if isinstance(condition, conditions.Labels):
        # Sorted: only the proportions matter, and whose label it was is nobody's business.
        tensors["codes"] = codes.sort().values.to(torch.int32)
        classes = condition.classes
        row = {
            "kind": "labels",
            "dtype": classes.dtype.str,
            "classes": [_label(v) for v in _plain(classes)],
        }
        _classes(Fields(row))  # what cannot be read must not be written
        return row
    columns = cast(conditions.Columns, condition)
    tensors["codes"] = codes
    tensors["condition.mean"], tensors["condition.scale"] = map(
        torch.from_numpy, (columns.mean, columns.scale)
    )
    return {"kind": "columns"}


def unpack_condition(header: Fields, tensors: dict[str, Tensor]) -> tuple[Any, Tensor | None]:
    """The condition, or None, and the data's codes."""
    if header.raw("condition") is None:
        return None, None
    row = header.inner("condition")
    kind = row.text("kind")
    if kind == "columns":
        mean = check_tensor(tensors, "condition.mean", torch.float64, (None,))
        scale = check_tensor(tensors, "condition.scale", torch.float64, mean.shape)
        codes = check_tensor(tensors, "codes", torch.float64, (None, len(mean)))
        if 0 in codes.shape or not bool((scale > 0).all()):
            raise ValueError("condition has no rows, or a scale that is not positive")
        return conditions.Columns(mean.numpy(), scale.numpy()), codes
    if kind != "labels":
        raise ValueError(f"condition.kind is {kind!r}; it must be 'labels' or 'columns'")
    labels = conditions.Labels(_classes(row))
    codes = check_tensor(tensors, "codes", torch.int32, (None,)).long()
    if len(codes) == 0 or not 0 <= int(codes.min()) <= int(codes.max()) < labels.width:
        raise ValueError("codes are not numbers of the classes")
    return labels, codes


def _plain(classes: np.ndarray) -> list[Any]:
    """Labels as Python's own objects; dates as the numbers that numpy counts them by."""
    return cast(list[Any], (classes.view(np.int64) if classes.dtype.kind in "mM" else classes).tolist())


def _label(label: Any) -> Any:
    """A label as JSON: tuples and bytes say what they are."""
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
        f"the label {label!r} is a {type(label).__name__}, which a file cannot keep; "
        "use strings, numbers or tuples of them"
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
    raise ValueError("condition.classes holds an object that is no label")


def _classes(row: Fields) -> np.ndarray:
    """The array of classes, of its own dtype."""
    labels = [_restored_label(v) for v in row.rows("classes")]
    dtype = np.dtype(row.text("dtype"))
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
