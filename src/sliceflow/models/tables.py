"""The tables of a model as JSON and tensors, and back.

What is read has been checked: whatever a file says, its tensors and its frames fit together.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

import sliceflow
from sliceflow.engine.compact import CompactTable, ModelStep
from sliceflow.engine.transports import GridTable, KnotTable, Table
from sliceflow.models.compact_bytes import PACKING, from_bytes, to_bytes
from sliceflow.models.old_file import Fields
from sliceflow.models.schema import check_tensor

__all__ = ["by_stage", "farthest", "pack_tables", "unpack_tables"]

_KINDS: dict[str, type[Any]] = {"grid": GridTable, "knots": KnotTable, "compact": CompactTable}
_ORTHONORMAL = 1e-3  # how far products of fitted directions may be from 0 and 1
_FIELDS = {"grid": ("lo", "hi", "values"), "knots": ("knots", "values")}


def by_stage(model: Sequence[ModelStep], n_stages: int = 0) -> list[list[ModelStep]]:
    """The steps of each stage, of at least `n_stages`."""
    n = max([n_stages, *(step.stage + 1 for step in model)])
    out: list[list[ModelStep]] = [[] for _ in range(n)]
    for step in model:
        out[step.stage].append(step)
    return out


def pack_tables(
    model: Sequence[Sequence[ModelStep]], tensors: dict[str, Tensor]
) -> list[list[dict[str, Any]]]:
    """Put the tables of every stage into `tensors`; return what `unpack_tables` needs besides.

    Tables that are alike (kind, number of bins and knots, type) are concatenated along their
    directions, whose number may differ from step to step. Such groups are packed side by side: zlib
    takes longer than a fit on a GPU.
    """

    def pack(group: tuple[str, str, list[ModelStep]]) -> tuple[dict[str, Any], dict[str, Tensor]]:
        name, kind, steps = group
        tables, own = [cast(Any, step.table) for step in steps], dict[str, Tensor]()
        about = (_pack_compact if kind == "compact" else _pack_whole)(name, kind, tables, own)
        thetas = [step.theta.cpu() for step in steps if step.theta is not None]
        if thetas:
            own[f"{name}.theta"] = torch.cat(thetas)
        return {"kind": kind, "steps": [step.step for step in steps], **about}, own

    groups: list[list[tuple[str, str, list[ModelStep]]]] = []
    for i, steps in enumerate(model):
        alike: dict[tuple[Any, ...], list[ModelStep]] = {}
        for step in steps:
            alike.setdefault(_likeness(step.table), []).append(step)
        kinds = enumerate(alike.items())
        groups.append([(f"tables.{i}.{j}", kind, some) for j, ((kind, *_), some) in kinds])
    out: list[list[dict[str, Any]]] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        packed = pool.map(pack, [group for stage in groups for group in stage])
        for stage in groups:
            out.append([])
            for about, own in islice(packed, len(stage)):
                out[-1].append(about)
                tensors |= own
    return out


def _likeness(table: Table) -> tuple[Any, ...]:
    """Kind, number of values or of bins and knots, and type."""
    if isinstance(table, CompactTable):
        return "compact", table.n_bins, table.at.shape[1], table.dtype
    if isinstance(table, (GridTable, KnotTable)):
        kind = "grid" if isinstance(table, GridTable) else "knots"
        return kind, table.values.shape[1], table.values.dtype
    raise ValueError(
        f"a {type(table).__name__} cannot be saved; transports whose models are saved return GridTable "
        "or KnotTable"
    )


def _pack_whole(name: str, kind: str, tables: list[Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The tensors themselves."""
    parts = {field: torch.cat([getattr(t, field).cpu() for t in tables]) for field in _FIELDS[kind]}
    _check_maps(name, parts)
    tensors |= {f"{name}.{field}": t for field, t in parts.items()}
    return {"directions": [len(t.values) for t in tables]}


def _pack_compact(
    name: str, kind: str, tables: list[Any], tensors: dict[str, Tensor]
) -> dict[str, Any]:
    """A stream of bytes for the maps that move anything, and a bit for every map: does it?"""
    moving = [table.moving() for table in tables]
    bits = [torch.zeros(t.n_maps, dtype=torch.bool).index_fill_(0, t.numbers, True) for t in moving]
    packed = np.frombuffer(bytearray(to_bytes(moving)), np.uint8)
    tensors[f"{name}.packed"] = torch.from_numpy(packed)
    tensors[f"{name}.moving"] = torch.from_numpy(np.packbits(torch.cat(bits).numpy()))
    return {
        "directions": [t.n_maps for t in tables],
        "moving": sum(len(t.lo) for t in moving),
        "exponents": [t.exponent for t in tables],
        "bins": tables[0].n_bins,
        "knots": sum(t.n_maps * t.at.shape[1] for t in tables),
        "packing": PACKING,
        "type": str(tables[0].dtype).removeprefix("torch."),
    }


def unpack_tables(
    row: Fields,
    i: int,
    stage: int,
    tensors: dict[str, Tensor],
    n_steps: int | None,
    maps: Callable[[int], int] | None,
    device: torch.device,
) -> list[ModelStep]:
    """The steps that `pack_tables` wrote for entry i of the schedule, `row`.

    Parameters
    ----------
    stage : the number of the steps' stage
    n_steps, maps : the steps of the stage, and the number of maps of a step; None skips these checks
    """
    groups, seen = row.inners("tables"), set[int]()
    for j, group in enumerate(groups):
        kind, steps, sizes = group.text("kind"), group.wholes("steps", 0), group.wholes("directions", 1)
        if kind not in _KINDS:
            raise ValueError(
                f"it has tables of kind {kind!r}; sliceflow {sliceflow.__version__} knows "
                f"{list(_KINDS)}: install a newer one"
            )
        if len(steps) != len(sizes) or not steps:
            raise ValueError(f"tables.{i}.{j} has {len(steps)} steps but {len(sizes)} sizes")
        for k in steps:
            if k in seen or (n_steps is not None and k >= n_steps):
                raise ValueError(
                    f"tables.{i}.{j} has step {k}, which is twice there or beyond {n_steps}"
                )
            seen.add(k)
    if seen and max(seen) != len(seen) - 1:  # a fit may end early, and leaves nothing out
        raise ValueError(f"stage {i} has {len(seen)} steps, but step {max(seen)} is one of them")
    out: list[ModelStep | None] = [None] * len(seen)
    for j, group in enumerate(groups):
        kind, steps, sizes = group.text("kind"), group.wholes("steps", 0), group.wholes("directions", 1)
        for k, h in zip(steps, sizes, strict=True):
            if maps is not None and h != maps(k):
                raise ValueError(f"step {k} of stage {i} has {h} maps but its frame needs {maps(k)}")
        unpack = _unpack_compact if kind == "compact" else _unpack_whole
        tables = unpack(group, f"tables.{i}.{j}", kind, sizes, tensors, device)
        thetas = _thetas(f"tables.{i}.{j}.theta", sizes, tensors, device)
        for k, table, theta in zip(steps, tables, thetas, strict=True):
            out[k] = ModelStep(stage, k, table, theta)
    return cast(list[ModelStep], out)


def _thetas(
    name: str, sizes: list[int], tensors: dict[str, Tensor], device: torch.device
) -> Sequence[Tensor | None]:
    """The fitted directions of some steps: orthonormal rows. None for each if they are drawn."""
    if name not in tensors:
        return [None] * len(sizes)
    thetas = torch.split(check_tensor(tensors, name, None, (sum(sizes), None)), sizes)
    for theta in thetas:
        if theta.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{name} has numbers of type {theta.dtype}")
        off = theta @ theta.T - torch.eye(len(theta), dtype=theta.dtype)
        if not bool((off.abs() < _ORTHONORMAL).all()):
            raise ValueError(f"{name} has directions that are not orthonormal")
    return [theta.to(device) for theta in thetas]


def _unpack_whole(
    group: Fields,
    name: str,
    kind: str,
    sizes: list[int],
    tensors: dict[str, Tensor],
    device: torch.device,
) -> list[Table]:
    parts = {}
    for field in _FIELDS[kind]:
        shape = (sum(sizes),) if field in ("lo", "hi") else (sum(sizes), None)
        parts[field] = check_tensor(tensors, f"{name}.{field}", None, shape)
    _check_maps(name, parts)
    split = {field: torch.split(t.to(device), sizes) for field, t in parts.items()}
    return [_KINDS[kind](**{f: t[n] for f, t in split.items()}) for n in range(len(sizes))]


def _unpack_compact(
    group: Fields,
    name: str,
    kind: str,
    sizes: list[int],
    tensors: dict[str, Tensor],
    device: torch.device,
) -> list[Table]:
    packing = group.whole("packing", PACKING - 1, PACKING)
    if group.text("type") not in ("float32", "float64"):
        raise ValueError(f"{name} has numbers of type {group.text('type')!r}")
    knots, numbers = group.whole("knots", 0), [torch.arange(h) for h in sizes]
    if packing == PACKING:
        numbers = _moving(name, sizes, tensors)
    n_moving = [len(some) for some in numbers]
    if knots % sum(sizes):
        raise ValueError(f"{sum(sizes)} compact maps have {knots} knots")
    if "moving" in group.value and group.whole("moving", 0) != sum(n_moving):  # not in format 10
        raise ValueError(f"{name}.moving has {sum(n_moving)} maps, not {group.whole('moving', 0)}")
    tables = from_bytes(
        check_tensor(tensors, f"{name}.packed", torch.uint8, (None,)).numpy().tobytes(),
        n_moving,
        group.wholes("exponents", -1000),
        group.whole("bins", 1),
        knots // sum(sizes),
        getattr(torch, group.text("type")),
        device,
    )
    return [
        table if len(some) == h else replace(table, numbers=some.to(device), n_all=h)
        for table, some, h in zip(tables, numbers, sizes, strict=True)
    ]


def _moving(name: str, sizes: list[int], tensors: dict[str, Tensor]) -> list[Tensor]:
    """The numbers of the maps of each table that move anything."""
    total = sum(sizes)
    packed = check_tensor(tensors, f"{name}.moving", torch.uint8, (-(-total // 8),))
    bits = torch.from_numpy(np.unpackbits(packed.numpy(), count=total).astype(bool))
    return [some.nonzero()[:, 0] for some in torch.split(bits, sizes)]


def farthest(steps: Sequence[ModelStep]) -> float:
    """An upper bound of the numbers in the maps of some steps."""
    most = 0.0
    for table in (cast(Any, step.table) for step in steps):
        if isinstance(table, CompactTable):
            most = max(most, math.ldexp(1.0, table.exponent + 15))
        names = ("knots", "values") if isinstance(table, KnotTable) else ("lo", "hi")
        parts = [getattr(table, name) for name in names]
        if isinstance(table, GridTable):
            parts.append(table.values)
        most = max([most, *(float(part.abs().amax()) for part in parts if part.numel())])
    return most


def _check_maps(name: str, parts: dict[str, Tensor]) -> None:
    """Raise a ValueError for maps that are not finite or not ascending, or tensors that do not fit."""
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
