"""Saved flows: what of a fitted estimator is in its file, and how it comes out again.

A model is data: the seed from which its frames are drawn again, and the tables of its steps. Its pieces
are written as `packing` says, and the file itself, whole and checked, is `container`'s.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

import sliceflow
from sliceflow import conditions, frames, picture_parameters
from sliceflow.checks import is_real, need, projection_budget, resolve_device
from sliceflow.compact import compress_model
from sliceflow.container import Fields, ModelFileError, read, write
from sliceflow.flow import Flow
from sliceflow.local import Tiles
from sliceflow.packing import (
    FRAMES,
    TRANSPORTS,
    check_tensor,
    describe,
    describe_frame,
    pack_condition,
    pack_history,
    parameters_of,
    restore,
    restore_layout,
    restore_parameters,
    restore_seed,
    unpack_condition,
    unpack_history,
)
from sliceflow.pyramid import UPSAMPLINGS
from sliceflow.rng import Seed
from sliceflow.schedule import PictureStage, Stage
from sliceflow.table_packing import pack_tables, unpack_tables
from sliceflow.walk import DIRECTIONS, Walk

__all__ = ["FORMAT", "ModelFileError", "Saved", "load"]

FORMAT = 4  # a new number only where an old library would misread the file
_BATCHED = ("particles_", "particle_conditions_")


class Saved:
    """What makes an estimator one that can be saved."""

    def compress(self, error: float = 0.1) -> Self:
        """Keep the maps in few bytes, with an error: smaller models, in memory and as files.

        Fit with ``n_knots=1024`` what is to be compressed: knots are few afterwards, and stand where
        maps bend. Maps of sorted particles, and maps that have few knots already, as an `ImageFlow`
        keeps them unless told otherwise, stay as they are.

        Parameters
        ----------
        error : what the errors of all steps add up to for a particle, as a root mean square, if they
            are independent of each other. In the units of the engine: pixels from -1 to 1, columns
            of X standardised. Smaller is larger

        Examples
        --------
        >>> import sliceflow
        >>> X = np.random.default_rng(0).gamma(2, size=(500, 2))
        >>> flow = sliceflow.SlicedWassersteinFlow(2000, 5, transport="histogram", random_state=0)
        >>> before = flow.fit(X).sample(500, random_state=0)
        >>> after = flow.compress(0.01).sample(500, random_state=0)
        >>> bool(np.sqrt(((after - before) ** 2).mean()) < 0.02)
        True
        """
        check_is_fitted(self, "history_")
        need(is_real(error, 0) and error > 0, "error", error, "a positive finite number")
        estimator = cast(Any, self)
        if isinstance(self, sliceflow.ImageFlow):
            estimator._check_model()
            estimator._model = compress_model(estimator._model, error)
        else:
            (estimator._model,) = compress_model([estimator._model], error)
        return self

    def save(self, path: str | os.PathLike[str], *, particles: bool = False) -> None:
        """Write the fitted model to one file, which `sliceflow.load` opens on any machine.

        Parameters
        ----------
        path : the file; one that is there is replaced, at once and only when all is written
        particles : also keep the batched samples, `particles_` and `particle_conditions_`
        """
        check_is_fitted(self, "history_")
        cast(Any, self)._warn_if_stale("the model to be saved")
        tensors: dict[str, Tensor] = {}
        if isinstance(self, sliceflow.ImageFlow):
            body = _pictures_packed(self, tensors)
        else:
            body = _vectors_packed(cast("sliceflow.SlicedWassersteinFlow", self), tensors)
        estimator = cast(Any, self)
        if particles:
            tensors["particles"] = torch.as_tensor(estimator.particles_)
            _pack_particle_conditions(estimator, tensors)
        text = {
            "format": FORMAT,
            "library": sliceflow.__version__,
            "parameters": parameters_of(estimator),
            "condition": pack_condition(estimator._condition, estimator._codes, tensors),
            "history": pack_history(estimator.history_),
            **body,
        }
        write(path, text, tensors)

    if not TYPE_CHECKING:  # or every misspelt attribute would pass

        def __getattr__(self, name: str) -> Any:
            if name in _BATCHED and "_file" in self.__dict__:
                raise AttributeError(
                    f"{name} is not in {self.__dict__['_file']}, which was saved without the batched "
                    "samples; draw new ones with sample(), or save with particles=True"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def load(
    path: str | os.PathLike[str], device: str | torch.device = "auto", precision: str | None = None
) -> sliceflow.SlicedWassersteinFlow | sliceflow.ImageFlow:
    """The fitted estimator that ``flow.save(path)`` wrote, ready to sample.

    Parameters
    ----------
    path : the file
    device : where to sample, whatever the model was fitted on; "auto" takes a GPU where there is one
    precision : of an `ImageFlow` on a GPU, in place of the one it was fitted with: "float32" samples
        more slowly, and nearly what a CPU does

    Returns
    -------
    A `SlicedWassersteinFlow` or an `ImageFlow`, as saved. The same file, seed and device give the same
    samples, bit for bit.

    Raises
    ------
    ModelFileError
        If the file cannot be read, is damaged, is no model, or needs a newer version.

    Examples
    --------
    >>> import tempfile
    >>> import sliceflow
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> flow = sliceflow.SlicedWassersteinFlow(n_particles=200, n_steps=5, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     flow.save(f"{folder}/normal.sliceflow")
    ...     again = sliceflow.load(f"{folder}/normal.sliceflow")
    >>> bool((again.sample(5, random_state=0) == flow.sample(5, random_state=0)).all())
    True
    """
    place = resolve_device(device)
    text, tensors = read(path)
    try:
        header = Fields(text)
        _check_version(header)
        name = header.text("estimator")
        kinds: dict[str, Any] = {
            "SlicedWassersteinFlow": _vectors_unpacked,
            "ImageFlow": _pictures_unpacked,
        }
        if name not in kinds:
            raise ValueError(f"estimator is {name!r}, not one of {list(kinds)}")
        flow = kinds[name](header, tensors, place)
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise ModelFileError(f"{os.fspath(path)}: {error}") from error
    flow.set_params(device=device)
    if precision is not None:
        _set_precision(flow, precision, place)
    flow._file = os.fspath(path)
    return cast("sliceflow.SlicedWassersteinFlow | sliceflow.ImageFlow", flow)


def _set_precision(flow: Any, precision: str, device: torch.device) -> None:
    if not isinstance(flow, sliceflow.ImageFlow):
        raise ValueError(
            f"precision={precision!r} is of pictures; this model is of vectors: leave it out"
        )
    flow.set_params(precision=precision)._check_parameters()
    operands = picture_parameters.choose_operands(precision, device)
    flow._walk = replace(flow._walk, precision=operands)


def _check_version(header: Fields) -> None:
    version = header.whole("format", 1)
    if version > FORMAT:
        library = header.text("library")
        raise ValueError(
            f"it has format {version}, by sliceflow {library}; this is sliceflow "
            f"{sliceflow.__version__}, which reads formats up to {FORMAT}: install sliceflow {library} "
            "or newer"
        )


# The two estimators


def _vectors_packed(
    flow: sliceflow.SlicedWassersteinFlow, tensors: dict[str, Tensor]
) -> dict[str, Any]:
    engine = flow._flow
    tables = pack_tables(
        [[s for s in flow._model if s.stage == i] for i in range(len(engine.schedule))], tensors
    )
    tensors["shift"], tensors["scale"] = map(torch.from_numpy, (flow._shift, flow._scale))
    names = getattr(flow, "feature_names_in_", None)
    return {
        "estimator": "SlicedWassersteinFlow",
        "columns": None if names is None else [str(name) for name in names],
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


def _vectors_unpacked(
    header: Fields, tensors: dict[str, Tensor], device: torch.device
) -> sliceflow.SlicedWassersteinFlow:
    flow = sliceflow.SlicedWassersteinFlow(
        **restore_parameters(header, sliceflow.SlicedWassersteinFlow)
    )
    flow._check_parameters()
    flow._shift = check_tensor(tensors, "shift", torch.float64, (None,)).numpy()
    d = len(flow._shift)
    flow._scale = check_tensor(tensors, "scale", torch.float64, (d,)).numpy()
    if d == 0 or not (flow._scale > 0).all():
        raise ValueError("scale holds numbers that are not positive")
    kind = header.text("type")
    if kind not in ("float32", "float64"):
        raise ValueError(f"type is {kind!r}; it must be float32 or float64")
    flow._type, flow._device = getattr(torch, kind), device
    on = header.raw("tensors_on")
    flow._given_device = None if on is None else torch.device("cpu") if on == "cpu" else device
    condition, flow._codes = unpack_condition(header, tensors)
    flow._condition = condition
    stages, model = [], []
    for i, row in enumerate(header.inners("schedule")):
        frame = cast(frames.FrameKind, restore(row.inner("frame"), FRAMES))
        h = frame.n_directions if isinstance(frame, frames.Random) else d
        n_steps = row.whole("n_steps", 1)
        transport = (
            None if row.raw("transport") is None else restore(row.inner("transport"), TRANSPORTS)
        )
        size, taper = row.number("step_size"), row.number("taper")
        stages.append(Stage(row.text("name"), frame, n_steps, size, taper, transport))
        model += unpack_tables(row, i, i, tensors, n_steps, lambda _, h=h: h, device)  # type: ignore[misc]
    width = 0 if condition is None else condition.width
    amplifier, entropy = header.number("amplifier"), header.number("entropy")
    budget = projection_budget(device)
    flow._flow = Flow(stages, restore_seed(header), width, amplifier, entropy, budget)
    flow._model = model
    flow.n_features_in_ = d
    if header.raw("columns") is not None:
        names = [str(name) for name in header.rows("columns")]
        if len(names) != d:
            raise ValueError(f"columns has {len(names)} names for {d} columns")
        flow.feature_names_in_ = np.array(names, dtype=object)
    _restore_rest(flow, header, tensors, (d,), kind)
    if flow._given_device is not None and "particles_" in vars(flow):
        flow.particles_ = torch.from_numpy(flow.particles_).to(flow._given_device)
    return flow


def _pictures_packed(flow: sliceflow.ImageFlow, tensors: dict[str, Tensor]) -> dict[str, Any]:
    flow._check_model()
    walk = flow._walk
    tables = pack_tables(flow._model, tensors)
    if flow._mask is not None:
        tensors["observed"] = flow._mask.view(walk.layout.shape)[0]
    return {
        "estimator": "ImageFlow",
        "pictures": asdict(walk.layout),
        "seed": asdict(walk.seed),
        "amplifier": None if walk.apart else walk.amplifier,  # JSON has no infinity
        "upsampling": walk.upsampling,
        "directions": walk.directions,
        "clip": walk.clip,
        "dequantize": walk.dequantize,
        "start_noise": walk.start_noise,
        "taper": walk.taper,
        "schedule": [{**asdict(stage), "tables": tables[i]} for i, stage in enumerate(walk.stages)],
    }


def _pictures_unpacked(
    header: Fields, tensors: dict[str, Tensor], device: torch.device
) -> sliceflow.ImageFlow:
    layout = restore_layout(header.inner("pictures"))
    c, h, w = layout.shape
    mask = None
    if "observed" in tensors:
        seen = check_tensor(tensors, "observed", torch.bool, (h, w))
        mask = seen.reshape(1, h * w).repeat(c, 1).view(-1, 1)
    parameters = restore_parameters(header, sliceflow.ImageFlow)
    if mask is not None and parameters.get("observed") == {"kind": "mask"}:
        parameters["observed"] = tensors["observed"].numpy()
    elif mask is None and parameters.get("observed") is not None:
        raise ValueError("the tensor observed is missing")
    flow = sliceflow.ImageFlow(**parameters)
    flow._check_parameters()
    condition, flow._codes = unpack_condition(header, tensors)
    flow._condition = condition
    if isinstance(condition, conditions.Columns):
        raise ValueError("condition.kind is 'columns'; pictures have labels or none")
    seed, upsampling = restore_seed(header), header.text("upsampling")
    if upsampling not in UPSAMPLINGS:
        raise ValueError(f"upsampling is {upsampling!r}, not one of {sorted(UPSAMPLINGS)}")
    directions = "pixels" if header.whole("format", 1) == 1 else header.text("directions")
    if directions not in DIRECTIONS:
        raise ValueError(f"directions is {directions!r}, not one of {DIRECTIONS}")
    rows = header.inners("schedule")
    stages = [
        PictureStage(
            row.whole("h", 1, h), row.whole("w", 1, w), row.whole("patch", 1), row.whole("n_steps", 1)
        )
        for row in rows
    ]
    flow._walk = Walk(
        layout,
        stages,
        seed,
        n_conditions=0 if condition is None else condition.width,
        amplifier=math.inf if header.raw("amplifier") is None else header.number("amplifier"),
        known=None if mask is None or not bool(mask.any()) else mask.to(device),
        upsampling=upsampling,
        directions=directions,
        clip=header.flag("clip"),
        dequantize=header.flag("dequantize"),
        start_noise=header.number("start_noise"),
        taper=header.number("taper"),
        budget=projection_budget(device),
        precision=picture_parameters.choose_operands(flow.precision, device),
    )
    flow._model = []
    for i, (row, stage) in enumerate(zip(rows, stages, strict=True)):
        tiles, place = Tiles(c, stage.h, stage.w, stage.patch), seed.child("level", i, "frame", 0)

        def n_maps(k: int, tiles: Tiles = tiles, place: Seed = place) -> int:
            return tiles.geometry(place, k).n_directions * max(1, flow._walk.apart)

        # Every level of a walk is a flow of a single stage.
        flow._model.append(unpack_tables(row, i, 0, tensors, stage.n_steps, n_maps, device))
    if not any(flow._model):
        raise ValueError("there are no tables; the model is empty")
    flow._layout, flow._mask, flow._device = layout, mask, device
    flow.schedule_ = stages
    shape = (h, w, c) if layout.channels else (h, w)
    _restore_rest(flow, header, tensors, shape, layout.dtype)
    if layout.tensor and "particles_" in vars(flow):
        flow.particles_ = torch.from_numpy(flow.particles_)
    return flow


def _restore_rest(
    flow: Any, header: Fields, tensors: dict[str, Tensor], shape: tuple[int, ...], dtype: str
) -> None:
    """History, classes, and the batched samples if they were saved."""
    if isinstance(flow._condition, conditions.Labels) and not flow._condition.hidden:
        flow.classes_ = flow._condition.classes
    flow.history_ = unpack_history(header)
    flow.n_iter_ = len(flow.history_["step"])
    if "particles" in tensors:
        flow.particles_ = check_tensor(
            tensors, "particles", getattr(torch, dtype, None), (None, *shape)
        ).numpy()
        flow.particle_conditions_ = _unpack_particle_conditions(flow, tensors)


def _pack_particle_conditions(estimator: Any, tensors: dict[str, Tensor]) -> None:
    y = estimator.particle_conditions_
    if y is None:
        return
    if isinstance(estimator._condition, conditions.Labels) and np.ndim(y) == 1:
        tensors["particle_conditions"] = estimator._condition.encode(y)
    else:
        tensors["particle_conditions"] = torch.from_numpy(np.asarray(y, dtype=np.float64))


def _unpack_particle_conditions(flow: Any, tensors: dict[str, Tensor]) -> np.ndarray | None:
    if "particle_conditions" not in tensors:
        return None
    y, m = tensors["particle_conditions"], len(flow.particles_)
    if flow._condition is None or len(y) != m:
        raise ValueError(f"particle_conditions has {len(y)} rows for {m} particles")
    if y.dtype == torch.int64 and isinstance(flow._condition, conditions.Labels):
        if y.dim() != 1 or (m and not 0 <= int(y.min()) <= int(y.max()) < flow._condition.width):
            raise ValueError("particle_conditions are not numbers of the classes")
        return cast(np.ndarray, flow._condition.classes[y.numpy()])
    return check_tensor(
        tensors, "particle_conditions", torch.float64, (m, flow._condition.width)
    ).numpy()
