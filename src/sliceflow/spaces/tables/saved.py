"""A fitted `TableFlow` as JSON and tensors, and back. The file holds the rows of the table."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import sliceflow
from sliceflow.cells import Kept
from sliceflow.devices import projection_budget
from sliceflow.engine.compact import ModelStep
from sliceflow.engine.flow import Flow
from sliceflow.engine.frames import Orthogonal
from sliceflow.engine.schedule import flat
from sliceflow.models.old_file import Fields, write
from sliceflow.models.old_limits import Allowance, check_reach, model_bytes
from sliceflow.models.saved import FORMAT
from sliceflow.models.schema import check_tensor, parameters_of, restore_seed
from sliceflow.models.tables import pack_tables, unpack_tables
from sliceflow.spaces.tables.columns import Column
from sliceflow.spaces.tables.constraints import Rule
from sliceflow.spaces.tables.fitted import FittedTable
from sliceflow.spaces.tables.local import LocalFlow
from sliceflow.spaces.tables.scores import Coordinate, Scores
from sliceflow.written import Written

__all__ = ["parameters", "unpacked", "write_table"]

_FLOW = ("z", "mean", "turn", "scale")
_SCORES = ("precision", "ends")
_WITH_GAPS = ("numbers", "modelled", "fixed")  # NaN where missing


def write_table(path: str | os.PathLike[str], estimator: Any, fitted: FittedTable) -> None:
    """Write the fitted estimator."""
    flow, scores = fitted.flow, fitted.scores
    tensors = {name: torch.from_numpy(np.ascontiguousarray(getattr(flow, name))) for name in _FLOW}
    tensors |= {name: torch.from_numpy(np.ascontiguousarray(getattr(scores, name))) for name in _SCORES}
    tensors["near"] = torch.from_numpy(flow.near.astype(np.int32))
    for name, x in zip(_WITH_GAPS, (fitted.numbers, fitted.modelled, scores.fixed), strict=True):
        tensors[name] = torch.from_numpy(np.nan_to_num(x, nan=0.0))
        tensors[f"{name}.missing"] = torch.from_numpy(np.isnan(x))
    for name in ("levels", "cum"):
        of_all = [getattr(coordinate, name) for coordinate in scores.coordinates]
        tensors[name] = torch.from_numpy(np.concatenate([np.empty(0), *of_all]))
    tensors["knots"] = torch.from_numpy(
        np.concatenate([np.empty((2, 0)), *(c.knots for c in scores.coordinates)], 1)
    )
    for c, column in enumerate(fitted.columns):
        if column.hashes is not None:
            tensors[f"hashes.{c}"] = torch.from_numpy(column.hashes)
    for i, (_, kinds) in enumerate(fitted.rules):
        tensors[f"kinds.{i}"] = torch.from_numpy(np.ascontiguousarray(kinds))
    (tables,) = pack_tables([list(flow.model)], tensors)
    own = parameters_of(estimator)
    own["columns"] = None if own["columns"] is None else dict(own["columns"])
    own["constraints"] = list(own["constraints"])
    text = {
        "format": FORMAT,
        "library": sliceflow.__version__,
        "estimator": type(estimator).__name__,
        "parameters": own,
        "rows": len(fitted.numbers),
        "frame": fitted.library,
        "columns": [_packed(column) for column in fitted.columns],
        "modelled_columns": [_packed(column) for column in scores.columns],
        "coordinates": [
            {"column": k.column, "flag": k.flag, "levels": len(k.levels), "knots": k.knots.shape[1]}
            for k in scores.coordinates
        ],
        "rules": [asdict(rule) for rule, _ in fitted.rules],
        "smoothing": flow.h,
        "seed": asdict(fitted.seed),
        "flow_seed": asdict(flow.flow.seed),
        "schedule": [{"n_steps": stage.n_steps, "tables": tables} for stage in flow.flow.stages],
    }
    write(path, text, tensors)


def parameters(header: Fields, defaults: Any) -> dict[str, Any]:
    """The constructor's parameters."""
    row, known = header.inner("parameters"), defaults.get_params(deep=False)
    for name in row.value:
        if name not in known:
            raise ValueError(f"parameters.{name} is not a parameter of {type(defaults).__name__}")
    return {**row.value, "constraints": tuple(row.rows("constraints"))}


def unpacked(
    header: Fields, tensors: dict[str, Tensor], device: torch.device, allowed: Allowance
) -> FittedTable:
    """The model that `write_table` wrote; a ValueError says what is wrong."""
    model_bytes(header, allowed)
    n, columns = header.whole("rows", 2), [_column(row) for row in header.inners("columns")]
    rows = header.inners("coordinates")
    d, c = len(rows), len(columns)
    floats = torch.float64

    def array(name: str, *shape: int | None) -> np.ndarray:
        return np.asarray(check_tensor(tensors, name, floats, shape).numpy())

    def with_gaps(name: str, *shape: int) -> np.ndarray:
        gone = check_tensor(tensors, f"{name}.missing", torch.bool, shape).numpy()
        return np.where(gone, np.nan, array(name, *shape))

    levels, cum, knots = array("levels", None), array("cum", None), array("knots", 2, None)
    coordinates, at, at_cum, at_knots = [], 0, 0, 0
    for row in rows:
        size, n_knots = row.whole("levels", 1), row.whole("knots", 0)
        column = row.whole("column", 0, c - 1)
        own = (
            levels[at : at + size],
            cum[at_cum : at_cum + size + 1],
            knots[:, at_knots : at_knots + n_knots],
        )
        if len(own[0]) != size or len(own[1]) != size + 1 or own[2].shape[1] != n_knots:
            raise ValueError("levels, cum and knots do not fit the coordinates")
        coordinates.append(Coordinate(column, row.flag("flag"), *own))
        at, at_cum, at_knots = at + size, at_cum + size + 1, at_knots + n_knots
    modelled_columns = tuple(_column(row) for row in header.inners("modelled_columns"))
    if len(modelled_columns) != c:
        raise ValueError(f"there are {len(modelled_columns)} modelled columns for {c} columns")
    scores = Scores(
        modelled_columns,
        tuple(coordinates),
        array("precision", d, d),
        array("ends", d, None),
        with_gaps("fixed", c),
    )
    near = check_tensor(tensors, "near", torch.int32, (n, None)).numpy().astype(np.int64)
    if near.size and not (near.min() >= 0 and near.max() < n):
        raise ValueError(f"near names rows beyond {n}")
    scale = array("scale", None)
    m = len(scale)
    model: list[ModelStep] = []
    stages = []
    for i, row in enumerate(header.inners("schedule")):
        stages += flat(Orthogonal(), n_steps=row.whole("n_steps", 1), n_axis_steps=0)
        model += unpack_tables(row, i, i, tensors, stages[-1].n_steps, lambda _: m, device)
    steps: list[tuple[float, list[ModelStep]]] = [(stage.step_size, []) for stage in stages]
    for step in model:
        steps[step.stage][1].append(step)
    check_reach(steps, m, floats)
    engine = Flow(stages, restore_seed(header.inner("flow_seed")), budget=projection_budget(device))
    flow = LocalFlow(
        array("z", n, d),
        near,
        header.number("smoothing", 0, 1),
        array("mean", d),
        array("turn", d, m),
        scale,
        engine,
        tuple(model),
    )
    for i, own_column in enumerate(columns):
        if own_column.kind == "identifier":
            found = check_tensor(tensors, f"hashes.{i}", torch.int64, (None,)).numpy()
            columns[i] = replace(own_column, hashes=found)
    rules = []
    for i, row in enumerate(header.inners("rules")):
        rule = Rule(
            row.text("text"), row.text("kind"), tuple(row.wholes("columns", 0)),
            tuple(row.wholes("signs", -1)), row.number("bound"),
        )  # fmt: skip
        if any(k >= c for k in rule.columns):
            raise ValueError(f"rules[{i}].columns names a column beyond {c}")
        rules.append((rule, array(f"kinds.{i}", None, len(rule.columns))))
    return FittedTable(
        header.text("frame"),
        tuple(columns),
        with_gaps("numbers", n, c),
        tuple(rules),
        with_gaps("modelled", n, c),
        scores,
        flow,
        restore_seed(header.inner("seed")),
    )


def _packed(column: Column) -> dict[str, Any]:
    kept = asdict(column.kept)
    kept["categories"] = None if column.kept.categories is None else list(column.kept.categories)
    return {
        "kept": kept,
        "kind": column.kind,
        "labels": list(column.labels),
        "step": column.step,
        "offset": column.offset,
        "months": column.months,
        "written": None if column.written is None else asdict(column.written),
        "pattern": column.pattern,
    }


def _column(row: Fields) -> Column:
    kept = row.inner("kept")
    categories = None if kept.raw("categories") is None else tuple(kept.rows("categories"))
    zone = None if kept.raw("zone") is None else kept.text("zone")
    written = None
    if row.raw("written") is not None:
        way = row.inner("written")
        written = Written(
            way.text("decimal"),
            way.text("thousands"),
            way.text("prefix"),
            way.text("suffix"),
            way.whole("decimals", -1, 30),
        )
    return Column(
        Kept(
            kept.text("name"), kept.text("form"), kept.text("dtype"), categories, kept.flag("ordered"),
            kept.text("unit"), zone,
        ),
        row.text("kind"),
        tuple(row.rows("labels")),
        row.number("step"),
        row.number("offset"),
        row.flag("months"),
        written,
        None,
        row.text("pattern"),
    )  # fmt: skip
