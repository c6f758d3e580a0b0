"""The model file of a `SlicedWassersteinFlow`: what of it is written, and how it is read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from sliceflow.dataframes import Form
from sliceflow.devices import projection_budget
from sliceflow.engine import frames
from sliceflow.engine.compact import Step
from sliceflow.engine.flow import Flow
from sliceflow.engine.schedule import Stage
from sliceflow.storage.file import Fields
from sliceflow.storage.limits import (
    Allowance,
    check_reach,
    grid_bytes,
    model_bytes,
    offset_of,
    rotation_bytes,
)
from sliceflow.storage.models import restore_rest
from sliceflow.storage.schema import (
    FRAMES,
    TRANSPORTS,
    check_tensor,
    describe,
    describe_frame,
    restore,
    restore_parameters,
    restore_seed,
    unpack_condition,
)
from sliceflow.storage.tables import pack_tables, unpack_tables
from sliceflow.vectors.options import VectorOptions
from sliceflow.vectors.units import Units

if TYPE_CHECKING:
    from sliceflow.vectors.estimator import SlicedWassersteinFlow

__all__ = ["packed", "unpacked"]

F = TypeVar("F", bound="SlicedWassersteinFlow")

_BENT = ("middle", "width")


def packed(flow: SlicedWassersteinFlow, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The fitted model as JSON, its arrays in `tensors`."""
    engine = flow._flow
    tables = pack_tables(
        [[s for s in flow._model if s.stage == i] for i in range(len(engine.schedule))], tensors
    )
    _check(flow)  # what cannot be read must not be written
    units = flow._units
    tensors["shift"], tensors["scale"] = map(torch.from_numpy, (units.shift, units.scale))
    if units.bent.any():
        tensors["middle"], tensors["width"] = map(torch.from_numpy, (units.middle, units.width))
    names = getattr(flow, "feature_names_in_", None)
    return {
        "columns": None if names is None else [str(name) for name in names],
        "frame": None if flow._form is None else flow._form.packed(),
        "type": str(flow._type).removeprefix("torch."),
        "tensors_on": None if flow._given_device is None else flow._given_device.type,
        "seed": asdict(engine.seed),
        "amplifier": engine.amplifier,
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
            for i, stage in enumerate(engine.schedule)
        ],
    }


def unpacked(
    kind_of: type[F],
    header: Fields,
    tensors: dict[str, Tensor],
    device: torch.device,
    allowed: Allowance,
) -> F:
    """The model that `packed` described, checked: a ValueError names what is wrong with it."""
    size_of_maps = model_bytes(header, allowed)
    flow = kind_of(**restore_parameters(header, kind_of, VectorOptions))
    flow._check_parameters()
    flow._units = _units(tensors)
    d = len(flow._units.shift)
    kind = header.text("type")
    if kind not in ("float32", "float64"):
        raise ValueError(f"type is {kind!r}; it must be float32 or float64")
    flow._type, flow._device = getattr(torch, kind), device
    on = header.raw("tensors_on")
    flow._given_device = None if on is None else torch.device("cpu") if on == "cpu" else device
    condition, flow._codes = unpack_condition(header, tensors)
    flow._condition = condition
    stages, model, rows = [], [], header.inners("schedule")
    for row in rows:
        frame = cast(frames.FrameKind, restore(row.inner("frame"), FRAMES))
        transport = (
            None if row.raw("transport") is None else restore(row.inner("transport"), TRANSPORTS)
        )
        size, taper = row.number("step_size", 0), row.number("taper", 0, 1)
        stages.append(Stage(row.text("name"), frame, row.whole("n_steps", 1), size, taper, transport))
    width = 0 if condition is None else condition.width
    allowed.check(size_of_maps, _frame_bytes(d, width, stages, rows))
    for i, (row, stage) in enumerate(zip(rows, stages, strict=True)):
        h = stage.frame.n_directions if isinstance(stage.frame, frames.Random) else d
        model += unpack_tables(row, i, i, tensors, stage.n_steps, lambda _, h=h: h, device)  # type: ignore[misc]
    amplifier, entropy = header.number("amplifier", 0), header.number("entropy", 0)
    budget = projection_budget(device)
    flow._flow = Flow(stages, restore_seed(header), width, amplifier, entropy, budget)
    flow._model = model
    _check(flow)
    flow.n_features_in_ = d
    if header.raw("columns") is not None:
        names = [str(name) for name in header.rows("columns")]
        if len(names) != d:
            raise ValueError(f"columns has {len(names)} names for {d} columns")
        flow.feature_names_in_ = np.array(names, dtype=object)
    if header.value.get("frame") is not None:  # files of earlier versions have none
        row = header.inner("frame")
        flow._form = Form.unpacked(row.text("library"), row.rows("names"), row.rows("dtypes"))
        if len(flow._form.names) != d:
            raise ValueError(f"frame.names has {len(flow._form.names)} names for {d} columns")
    restore_rest(flow, header, tensors, (d,), kind)
    if flow._given_device is not None and "particles_" in vars(flow):
        flow.particles_ = torch.from_numpy(flow.particles_).to(flow._given_device)
    elif flow._form is not None and "particles_" in vars(flow):
        flow.particles_ = flow._form.made(flow.particles_)
    return flow


def _units(tensors: dict[str, Tensor]) -> Units:
    """The units of the columns of X."""
    shift = check_tensor(tensors, "shift", torch.float64, (None,)).numpy()
    d = len(shift)
    scale = check_tensor(tensors, "scale", torch.float64, (d,)).numpy()
    if d == 0 or not (scale > 0).all():
        raise ValueError("scale holds numbers that are not positive")
    if "width" not in tensors:  # no column has heavy tails
        return Units.linear(shift, scale)
    middle, width = (check_tensor(tensors, name, torch.float64, (d,)).numpy() for name in _BENT)
    if not (np.isfinite(middle) & np.isfinite(width) & (width >= 0)).all():
        raise ValueError("middle and width hold numbers that are no places and sizes")
    return Units(shift, scale, middle, width)


def _frame_bytes(d: int, width: int, stages: Sequence[Stage], rows: Sequence[Fields]) -> int:
    """What drawing one vector takes: its frames, the condition's directions, maps made grids again."""
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


def _check(flow: SlicedWassersteinFlow) -> None:
    """Refuse a model whose samples may not be finite."""
    engine, dtype = flow._flow, flow._type
    stages: list[tuple[float, list[Step]]] = [(stage.step_size, []) for stage in engine.schedule]
    for step in flow._model:
        stages[step.stage][1].append(step)
    units, offset = flow._units, offset_of(engine.amplifier, flow._codes)
    d, straight = len(units.shift), ~units.bent  # of a bent column every number is finite
    reach = check_reach(stages, d, dtype, entropy=engine.entropy, offset=offset)
    end = reach * float(units.scale[straight].max(initial=0.0))
    end += float(np.abs(units.shift[straight]).max(initial=0.0))
    if not end < torch.finfo(dtype).max:
        raise ValueError(
            f"its samples may not stay finite: scale and shift bring them to {end:.1e}, and "
            f"{str(dtype).removeprefix('torch.')} ends at {torch.finfo(dtype).max:.1e}; "
            "fit with rescaled columns, or in float64"
        )
