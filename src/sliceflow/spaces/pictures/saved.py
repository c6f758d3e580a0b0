"""Convert the fitted state of an `ImageFlow` to JSON and tensors, and back."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.devices import projection_budget
from sliceflow.engine import conditions
from sliceflow.engine.compact import ModelStep
from sliceflow.engine.random import Seed
from sliceflow.models.old_file import Fields
from sliceflow.models.old_limits import (
    Allowance,
    check_reach,
    grid_bytes,
    model_bytes,
    offset_of,
    rotation_bytes,
)
from sliceflow.models.picture_bytes import from_bytes, to_bytes
from sliceflow.models.schema import check_tensor, restore_seed, unpack_condition
from sliceflow.models.tables import by_stage, pack_tables, unpack_tables
from sliceflow.spaces.pictures.fitted import FittedPictures
from sliceflow.spaces.pictures.layout import Layout
from sliceflow.spaces.pictures.levels import PATCH_BASES, LevelFlow
from sliceflow.spaces.pictures.plan import choose_operands
from sliceflow.spaces.pictures.pyramid import UPSAMPLINGS
from sliceflow.spaces.pictures.schedules import PictureStage
from sliceflow.spaces.pictures.sums import Sums
from sliceflow.spaces.pictures.tiles import RandomPatches, Tiles

__all__ = ["packed", "unpacked", "with_mask"]

_MAX_VALUES = 1 << 28  # maximum number of values of a picture


def packed(fitted: FittedPictures, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The fitted model as JSON; adds its arrays to `tensors`."""
    levels = fitted.levels
    tables = pack_tables(by_stage(fitted.model, len(levels.stages)), tensors)
    _check(fitted)  # never write a model that cannot be read
    if fitted.observed is not None:
        tensors["observed"] = torch.from_numpy(fitted.observed)
    return {
        "pictures": asdict(levels.layout),
        "seed": asdict(levels.seed),
        "amplifier": None if levels.apart else levels.amplifier,  # JSON has no infinity
        "upsampling": levels.upsampling,
        "patch_basis": levels.patch_basis,
        "n_directions": levels.n_directions if levels.patch_basis == "random" else None,
        "clip": levels.clip,
        "dequantize": levels.dequantize,
        "start_noise": levels.start_noise,
        "summed": _pack_sums(fitted, tensors),
        "taper": levels.taper,
        "schedule": [{**asdict(stage), "tables": tables[i]} for i, stage in enumerate(levels.stages)],
    }


def _pack_sums(fitted: FittedPictures, tensors: dict[str, Tensor]) -> dict[str, Any] | None:
    """The pictures that particles start from, without mirror images, and their classes."""
    sums = fitted.sums
    if sums is None:
        return None
    n, total, layout = fitted.n_rows, sums.raw.shape[1], sums.layout
    pictures = sums.raw[:, :n].T.contiguous().cpu()
    row: dict[str, Any] = {"size": sums.size, "locality": sums.locality, "mirror": total != n}
    if pictures.dtype == torch.uint8:
        blocks = to_bytes(pictures.view(-1, *layout.shape).numpy())
        tensors["summed.packed"] = torch.frombuffer(bytearray(b"".join(blocks)), dtype=torch.uint8)
        row |= {"blocks": [len(block) for block in blocks], "values": layout.n_pixel_values}
    else:
        tensors["summed.pictures"] = pictures
    if sums.codes is not None:
        tensors["summed.codes"] = sums.codes.to(torch.int32).cpu()
    return row


def _unpack_sums(
    header: Fields,
    tensors: dict[str, Tensor],
    layout: Layout,
    n_classes: int,
    device: torch.device,
    allowed: Allowance,
) -> Sums | None:
    if header.value.get("summed") is None:  # also of format 8 and less
        return None
    row, n = header.inner("summed"), header.whole("rows", 1)
    if "blocks" in row.value:
        layout = replace(layout, n_pixel_values=row.whole("values", 2, 256))
        raw = _unpack_pictures(row.wholes("blocks", 1), tensors, n, layout, allowed)
    else:  # not 8 bits a value; also all of format 10 and less
        raw = check_tensor(tensors, "summed.pictures", layout.raw_dtype, (n, layout.dimension))
    raw = raw.T.contiguous()
    low, high = float(raw.min()), float(raw.max())
    if low < 0 or high > (layout.n_pixel_values or 2) - 1:
        raise ValueError(f"the summed pictures have pixels from {low:g} to {high:g}")
    raw = layout.mirrored(raw) if row.flag("mirror") else raw
    codes = None
    if n_classes:
        codes = check_tensor(tensors, "summed.codes", torch.int32, (raw.shape[1],)).long()
        counts = torch.bincount(codes.clamp(0, n_classes - 1), minlength=n_classes)
        if int(codes.min()) < 0 or int(codes.max()) >= n_classes or not bool((counts > 0).all()):
            raise ValueError(f"summed.codes are not the numbers of {n_classes} classes")
        codes = codes.to(device)
    size, beta = row.whole("size", 1, 1000), 0.0
    if "locality" in row.value:  # not in format 9
        beta = row.number("locality", 0.0)
    return Sums(size, beta, layout, raw.to(device), codes, max(1, n_classes))


def _unpack_pictures(
    sizes: list[int], tensors: dict[str, Tensor], n: int, layout: Layout, allowed: Allowance
) -> Tensor:
    """The pictures of summed.packed, (n, d)."""
    packed = check_tensor(tensors, "summed.packed", torch.uint8, (sum(sizes),)).numpy()
    allowed.check(n * layout.dimension)
    ends = np.cumsum([0, *sizes])
    blocks = [packed[a:b].tobytes() for a, b in pairwise(ends.tolist())]
    return torch.from_numpy(from_bytes(blocks, (n, *layout.shape))).reshape(n, -1)


def with_mask(parameters: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The estimator's parameters; a mask given as an array comes from `tensors`."""
    mask_tensor = tensors.get("observed")
    if mask_tensor is None and parameters.get("observed") is not None:
        raise ValueError("the tensor observed is missing")
    if mask_tensor is not None and parameters.get("observed") == {"kind": "mask"}:
        return parameters | {"observed": mask_tensor.numpy()}
    return parameters


def unpacked(
    header: Fields,
    tensors: dict[str, Tensor],
    device: torch.device,
    allowed: Allowance,
    precision: str,
) -> FittedPictures:
    """The model that `packed` wrote; raises a ValueError if it is not valid."""
    size_of_maps, layout = model_bytes(header, allowed), _layout(header.inner("pictures"))
    c, h, w = layout.shape
    allowed.check(size_of_maps + layout.dimension)
    mask = None
    if "observed" in tensors:
        mask_tensor = check_tensor(tensors, "observed", torch.bool, (h, w))
        mask = mask_tensor.reshape(1, h * w).repeat(c, 1).view(-1, 1)
    condition, codes = unpack_condition(header, tensors)
    if isinstance(condition, conditions.Columns):
        raise ValueError("condition.kind is 'columns'; pictures have labels or no condition")
    seed, upsampling = restore_seed(header.inner("seed")), header.text("upsampling")
    if upsampling not in UPSAMPLINGS:
        raise ValueError(f"upsampling is {upsampling!r}, not one of {sorted(UPSAMPLINGS)}")
    patch_basis = header.text("patch_basis")
    if patch_basis not in PATCH_BASES:
        raise ValueError(f"patch_basis is {patch_basis!r}, not one of {PATCH_BASES}")
    rows = header.inners("schedule")
    stages = [
        PictureStage(
            row.whole("h", 1, h), row.whole("w", 1, w), row.whole("patch", 1), row.whole("n_steps", 1)
        )
        for row in rows
    ]
    n_random = header.whole("n_directions", 1) if patch_basis == "random" else None
    width = 0 if condition is None else condition.width
    apart = header.raw("amplifier") is None
    allowed.check(size_of_maps, _tile_bytes(layout, stages, 0 if apart else width, rows, n_random))
    levels = LevelFlow(
        layout,
        stages,
        seed,
        n_conditions=width,
        amplifier=math.inf if apart else header.number("amplifier", 0),
        known=None if mask is None or not bool(mask.any()) else mask.to(device),
        upsampling=upsampling,
        patch_basis=patch_basis,
        clip=header.flag("clip"),
        dequantize=header.flag("dequantize"),
        start_noise=header.number("start_noise", 0),
        taper=header.number("taper", 0, 1),
        budget=projection_budget(device),
        precision=choose_operands(precision, device),
        n_directions=n_random or 1,
    )
    model: list[ModelStep] = []
    for i, (row, stage) in enumerate(zip(rows, stages, strict=True)):
        kind, place = levels.directions(i), seed.child("level", i, "frame", 0)

        def n_maps(k: int, kind: Tiles | RandomPatches = kind, place: Seed = place) -> int:
            h = kind.geometry(place, k).n_directions if isinstance(kind, Tiles) else kind.n_directions
            return h * max(1, levels.apart)

        model += unpack_tables(row, i, i, tensors, stage.n_steps, n_maps, device)
    if not model:
        raise ValueError("there are no tables; the model is empty")
    n_rows = None if header.value.get("rows") is None else header.whole("rows", 1)
    sums = _unpack_sums(header, tensors, layout, levels.apart, device, allowed)
    fitted = FittedPictures(levels, model, condition, codes, n_rows, device, mask, sums)
    _check(fitted)
    return fitted


def _layout(row: Fields) -> Layout:
    """The pictures' layout."""
    channels = None if row.raw("channels") is None else row.whole("channels", 1)
    values = None if row.raw("n_pixel_values") is None else row.whole("n_pixel_values", 2)
    layout = Layout(
        row.whole("height", 1),
        row.whole("width", 1),
        channels,
        row.text("dtype"),
        values,
        row.flag("tensor"),
    )
    if layout.dimension > _MAX_VALUES:
        raise ValueError(f"pictures has {layout.dimension} values; the maximum is {_MAX_VALUES}")
    kind = re.fullmatch(
        r"float(16|32|64)" if values is None else r"bool|u?int(8|16|32|64)", layout.dtype
    )
    if kind is None:
        raise ValueError(f"pictures.dtype is {layout.dtype!r}, which does not match n_pixel_values")
    return layout


def _tile_bytes(
    layout: Layout,
    stages: Sequence[PictureStage],
    width: int,
    rows: Sequence[Fields],
    n_random: int | None,
) -> int:
    """Memory to draw one picture.

    `width` is the width of the condition, if it shifts projections. `n_random` is the number of random
    patches; None for tiles.
    """
    (c, height, width_of_all), most, sides = layout.shape, 0, set()
    for stage, row in zip(stages, rows, strict=True):
        if not row.rows("tables"):
            continue
        tiles = Tiles(c, stage.h, stage.w, stage.patch)
        side = c * min(stage.patch, stage.h) * min(stage.patch, stage.w)
        basis_bytes = 24 * (stage.h * (height + stage.h) + stage.w * (width_of_all + stage.w))
        tables = tiles.most_directions * (24 * width + 32)
        if n_random is not None:
            tables = n_random * (24 * width + 32 + 32 * c * stage.h * stage.w)
        most = max(most, basis_bytes + tables + grid_bytes(row))
        sides.add(side)
    return most + sum(map(rotation_bytes, sides)) + 64 * layout.dimension


def _check(fitted: FittedPictures) -> None:
    """Raise a ValueError if samples may not be finite."""
    levels, stages = fitted.levels, [(1.0, steps) for steps in by_stage(fitted.model)]
    offset = offset_of(levels.amplifier, fitted.codes)
    start = levels.start_noise if fitted.sums is None else 2 * math.sqrt(fitted.sums.size)
    check_reach(stages, levels.layout.dimension, torch.float32, start=start, offset=offset)
