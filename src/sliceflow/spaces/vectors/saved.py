"""Convert the fitted state of a `SlicedWassersteinFlow` to JSON and tensors, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from sliceflow.dataframes import Form
from sliceflow.devices import projection_budget
from sliceflow.engine import frames
from sliceflow.engine.compact import Step
from sliceflow.engine.conditions import Labels, Mixed
from sliceflow.engine.flow import Flow
from sliceflow.engine.schedule import Stage
from sliceflow.models.file import Fields
from sliceflow.models.limits import (
    Allowance,
    check_reach,
    grid_bytes,
    model_bytes,
    offset_of,
    rotation_bytes,
)
from sliceflow.models.ranks import Place
from sliceflow.models.schema import (
    FRAMES,
    TRANSPORTS,
    check_tensor,
    describe,
    describe_frame,
    restore,
    restore_seed,
    unpack_condition,
)
from sliceflow.models.tables import pack_tables, unpack_tables
from sliceflow.neighbours.local import LocalSettings
from sliceflow.spaces.vectors.data import FitInput
from sliceflow.spaces.vectors.fitted import FittedVectors, Part
from sliceflow.spaces.vectors.local import LocalModel
from sliceflow.spaces.vectors.units import Units

__all__ = ["packed", "unpacked"]

_UNITS = ("shift", "scale", "middle", "width")


def packed(fitted: FittedVectors, names: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The fitted model as JSON; adds its arrays to `tensors`. `names` are column names, or None."""
    stages = [(part, i) for part in fitted.parts for i in range(len(part.flow.schedule))]
    tables = pack_tables([[s for s in part.model if s.stage == i] for part, i in stages], tensors)
    for part in fitted.parts:
        _check(part, fitted)  # never write a model that cannot be read
    heavy_tailed = any(part.units.heavy_tailed.any() for part in fitted.parts)
    for name in _UNITS if heavy_tailed else _UNITS[:2]:
        tensors[name] = torch.from_numpy(np.stack([getattr(part.units, name) for part in fitted.parts]))
    engine = fitted.parts[0].flow
    local = None if fitted.local is None else _packed_local(fitted, tensors)
    return ({} if local is None else {"local": local}) | {
        "columns": None if names is None else [str(name) for name in names],
        "frame": None if fitted.form is None else fitted.form.packed(),
        "type": str(fitted.dtype).removeprefix("torch."),
        "tensors_on": None if fitted.given_device is None else fitted.given_device.type,
        "seeds": [asdict(part.flow.seed) for part in fitted.parts],
        "amplifier": None if math.isinf(engine.amplifier) else engine.amplifier,  # JSON has no infinity
        "entropy": engine.entropy,
        "schedule": [
            {
                "name": stage.name,
                "frame": describe_frame(stage.frame),
                "n_steps": stage.n_steps,
                "step_size": stage.step_size,
                "taper": stage.taper,
                "transport": describe(stage.transport, TRANSPORTS),
                "tables": tables[i],
            }
            for i, stage in enumerate(part.flow.schedule[k] for part, k in stages)
        ],
    }


def unpacked(
    header: Fields, tensors: dict[str, Tensor], device: torch.device, allowed: Allowance
) -> tuple[FittedVectors, list[str] | None]:
    """The model that `packed` wrote, and its column names; raises a ValueError if it is not valid."""
    size_of_maps = model_bytes(header, allowed)
    units = _units(tensors)
    d, kind = len(units[0].shift), header.text("type")
    if kind not in ("float32", "float64"):
        raise ValueError(f"type is {kind!r}; it must be float32 or float64")
    on = header.raw("tensors_on")
    condition, codes = unpack_condition(header, tensors)
    width = 0 if condition is None else condition.width
    rows, seeds = header.inners("schedule"), header.inners("seeds")
    if len(seeds) != len(units) or len(rows) % len(seeds) or len(seeds) not in (1, width):
        raise ValueError(
            f"found {len(seeds)} seeds for {len(units)} units, {len(rows)} stages, {width} classes"
        )
    stages = [_stage(row) for row in rows]
    several = len(seeds) > 1
    apart = header.raw("amplifier") is None
    width = 0 if several else width
    allowed.check(size_of_maps, _frame_bytes(d, 0 if apart else width, stages, rows))
    amplifier = math.inf if apart else header.number("amplifier", 0)
    parts, each = [], len(rows) // len(seeds)
    for k, seed in enumerate(seeds):
        model: list[Step] = []
        for i in range(each):
            at = k * each + i
            frame, n_steps = stages[at].frame, stages[at].n_steps
            h = frame.n_directions if isinstance(frame, frames.Random) else d
            h = frame.count(d) if isinstance(frame, frames.MaxSliced) else h
            h *= width if apart and width else 1
            model += unpack_tables(rows[at], at, i, tensors, n_steps, lambda _, h=h: h, device)  # type: ignore[misc]
        for step in model:
            fitted_here = isinstance(stages[k * each + step.stage].frame, frames.MaxSliced)
            if (0 if step.theta is None else step.theta.shape[1]) != (d if fitted_here else 0):
                raise ValueError(
                    f"step {step.step} of part {k} does not have directions in {d} columns"
                )
        flow = Flow(
            stages[k * each : (k + 1) * each],
            restore_seed(seed),
            width,
            amplifier,
            header.number("entropy", 0),
            projection_budget(device),
        )
        parts.append(Part(flow, model, units[k]))
    dtype, form = getattr(torch, kind), _form(header, d)
    given_device = None if on is None else torch.device("cpu") if on == "cpu" else device
    fitted = FittedVectors(
        tuple(parts),
        condition,
        codes,
        None if header.value.get("rows") is None else header.whole("rows", 1),
        dtype,
        device,
        given_device,
        form,
        *_local(header, tensors, units[0], condition, codes, (dtype, given_device, form)),
    )
    for part in parts:
        _check(part, fitted)
    names = None
    if header.raw("columns") is not None:
        names = [str(name) for name in header.rows("columns")]
        if len(names) != d:
            raise ValueError(f"columns has {len(names)} names for {d} columns")
    return fitted, names


def _packed_local(fitted: FittedVectors, tensors: dict[str, Tensor]) -> list[dict[str, Any]]:
    """The rows and columns of y as given, and for each part how many neighbours count, and what."""
    given, local = fitted.given, fitted.local
    assert given is not None
    assert given.y is not None
    assert local is not None
    of_numbers = ~np.array(given.condition.labelled) if isinstance(given.condition, Mixed) else ...
    tensors["local.rows"] = torch.from_numpy(np.ascontiguousarray(given.X))
    tensors["local.y"] = torch.from_numpy(np.array(given.y[:, of_numbers], dtype=np.float64))
    for i, part in enumerate(local.parts):
        tensors[f"local.projection.{i}"] = part.settings.projection
    return [
        {"k": own.k, "spread": own.spread, "features": own.n_features}
        for own in (part.settings for part in local.parts)
    ]


def _local(
    header: Fields,
    tensors: dict[str, Tensor],
    units: Units,
    condition: Any,
    codes: Tensor | None,
    given: tuple[torch.dtype, torch.device | None, Form | None],
) -> tuple[LocalModel, FitInput] | tuple[None, None]:
    """The rows of a model whose conditions are local; `given` has the type and form of X."""
    if header.value.get("local") is None:
        return None, None
    if codes is None or isinstance(condition, Labels) or codes.dim() != 2:
        raise ValueError("local needs a condition with columns")
    parts, (n, columns), (dtype, device, form) = header.inners("local"), codes.shape, given
    mixed = isinstance(condition, Mixed)
    columns -= mixed
    X = check_tensor(tensors, "local.rows", dtype, (n, len(units.shift))).numpy()
    y = check_tensor(tensors, "local.y", torch.float64, (n, columns)).numpy()
    if mixed:
        numbers, y = y, condition.decode(codes)
        y[:, ~np.array(condition.labelled)] = numbers
    rows = FitInput(X, Place(0, n, n), device, form, y, condition, codes)
    settings = [
        LocalSettings(
            part.whole("k", 1),
            part.number("spread", 0, 100),
            check_tensor(tensors, f"local.projection.{i}", torch.float64, (None, None)),
            part.whole("features", 0),
        )
        for i, part in enumerate(parts)
    ]
    return LocalModel.fit_to(units.encode(X), codes, mixed, settings), rows


def _stage(row: Fields) -> Stage:
    frame = cast(frames.FrameKind, restore(row.inner("frame"), FRAMES))
    known = row.raw("transport") is not None
    transport = restore(row.inner("transport"), TRANSPORTS) if known else None
    size, taper = row.number("step_size", 0), row.number("taper", 0, 1)
    return Stage(row.text("name"), frame, row.whole("n_steps", 1), size, taper, transport)


def _form(header: Fields, d: int) -> Form | None:
    """The columns of the fitted DataFrame."""
    if header.raw("frame") is None:
        return None
    row = header.inner("frame")
    form = Form.unpacked(row.text("library"), row.rows("names"), row.rows("dtypes"))
    if len(form.names) != d:
        raise ValueError(f"frame.names has {len(form.names)} names for {d} columns")
    return form


def _units(tensors: dict[str, Tensor]) -> list[Units]:
    """The units of each part."""
    shape = tuple(check_tensor(tensors, "shift", torch.float64, (None, None)).shape)
    values = [
        check_tensor(tensors, name, torch.float64, shape).numpy()
        if name in tensors
        else np.zeros(shape)
        for name in _UNITS
    ]
    if 0 in shape or not (values[1] > 0).all():
        raise ValueError("scale has values that are not positive")
    if not (values[3] >= 0).all():
        raise ValueError("width has negative values")
    return [Units(*columns) for columns in zip(*values, strict=True)]


def _frame_bytes(d: int, width: int, stages: Sequence[Stage], rows: Sequence[Fields]) -> int:
    """Memory to draw one vector: frames, directions of the condition, maps expanded to grids."""
    most = 0
    for stage, row in zip(stages, rows, strict=True):
        if not row.rows("tables") or isinstance(stage.frame, frames.Axis):
            frame = 0
        elif isinstance(stage.frame, frames.Random):
            frame = 32 * stage.frame.n_directions * (d + width)
        else:
            frame = rotation_bytes(d) + 24 * d * width
        most = max(most, frame + grid_bytes(row))
    return most + 48 * d


def _check(part: Part, fitted: FittedVectors) -> None:
    """Raise a ValueError if samples may not be finite."""
    engine, units, dtype = part.flow, part.units, fitted.dtype
    stages: list[tuple[float, list[Step]]] = [(stage.step_size, []) for stage in engine.schedule]
    for step in part.model:
        stages[step.stage][1].append(step)
    offset = offset_of(engine.amplifier, fitted.codes) if engine.n_conditions else 0.0
    d, linear = len(units.shift), ~units.heavy_tailed  # `decode` clamps heavy-tailed columns
    reach = check_reach(stages, d, dtype, entropy=engine.entropy, offset=offset)
    end = reach * float(units.scale[linear].max(initial=0.0))
    end += float(np.abs(units.shift[linear]).max(initial=0.0))
    if not end < torch.finfo(dtype).max:
        raise ValueError(
            f"samples may not stay finite: scale and shift can take them to {end:.1e}, and the largest "
            f"{str(dtype).removeprefix('torch.')} is {torch.finfo(dtype).max:.1e}; "
            "fit with rescaled columns, or in float64"
        )
