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
from sliceflow.dataframes import Form
from sliceflow.devices import projection_budget, resolve_device
from sliceflow.engine import conditions, frames
from sliceflow.engine.compact import compress_model
from sliceflow.engine.flow import Flow
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.errors import is_int, is_real, need
from sliceflow.pictures import plan as picture_parameters
from sliceflow.pictures.levels import DIRECTIONS, Walk
from sliceflow.pictures.pyramid import UPSAMPLINGS
from sliceflow.pictures.schedules import PictureStage
from sliceflow.pictures.tiles import Tiles
from sliceflow.storage.file import Fields, ModelFileError, read, write
from sliceflow.storage.limits import (
    Allowance,
    check_pictures,
    check_vectors,
    frame_bytes,
    model_bytes,
    tile_bytes,
)
from sliceflow.storage.schema import (
    FRAMES,
    TRANSPORTS,
    check_tensor,
    describe,
    describe_frame,
    pack_condition,
    pack_history,
    pack_particle_conditions,
    parameters_of,
    restore,
    restore_layout,
    restore_parameters,
    restore_seed,
    unpack_condition,
    unpack_history,
    unpack_particle_conditions,
)
from sliceflow.storage.tables import pack_tables, unpack_tables
from sliceflow.vectors.units import Units

__all__ = ["FORMAT", "ModelFileError", "Saved", "load"]

RUN_FILE = "model.sliceflow"  # the model in the folder of a run of the command line
FORMAT = 5  # a new number only where an old library would misread the file
_BENT = ("middle", "width")
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

        Values of the data can be read from maps that have a knot for every row: small sets, or many
        knots. `sliceflow.storage.disclosure.holds_data` tells, and ``sliceflow info``.

        Parameters
        ----------
        path : the file; one that is there is replaced, at once and only when all is written. It keeps
            its mode. Of a symbolic link the target is replaced; folders, pipes and devices are refused
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
            tensors["particles"] = _tensor(estimator.particles_, estimator)
            pack_particle_conditions(estimator.particle_conditions_, estimator._condition, tensors)
        text = {
            "format": FORMAT,
            "library": sliceflow.__version__,
            "parameters": parameters_of(estimator),
            "rows": getattr(estimator, "_n_rows", None),  # not known of the first files
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
    path: str | os.PathLike[str],
    device: str | torch.device = "auto",
    precision: str | None = None,
    *,
    max_memory: int | None = None,
) -> sliceflow.SlicedWassersteinFlow | sliceflow.ImageFlow:
    """The fitted estimator that ``flow.save(path)`` wrote, ready to sample.

    Parameters
    ----------
    path : the file, or the folder of a run of the command line, which has one
    device : where to sample, whatever the model was fitted on; "auto" takes a GPU where there is one
    precision : of an `ImageFlow` on a GPU, in place of the one it was fitted with: "float32" samples
        more slowly, and nearly what a CPU does
    max_memory : bytes that the model and the drawing of one sample may take. None judges by the file's
        size: no model that was saved after a fit of usual size is refused, and files made to fill the
        memory are

    Returns
    -------
    A `SlicedWassersteinFlow` or an `ImageFlow`, as saved. The same file, seed and device give the same
    samples, bit for bit.

    Raises
    ------
    ModelFileError
        If the file cannot be read, is damaged, is no model, needs a newer version or too much memory,
        or would give samples that are not finite.

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
    need(max_memory is None or is_int(max_memory, 1), "max_memory", max_memory, "None or bytes, an int")
    path = _in_folder(path)
    text, tensors = read(path)
    try:
        allowed = Allowance(os.path.getsize(path), max_memory)
        header = Fields(text)
        _check_version(header)
        name = header.text("estimator")
        kinds: dict[str, Any] = {
            "SlicedWassersteinFlow": _vectors_unpacked,
            "ImageFlow": _pictures_unpacked,
        }
        if name not in kinds:
            raise ValueError(f"estimator is {name!r}, not one of {list(kinds)}")
        flow = kinds[name](header, tensors, place, allowed)
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise ModelFileError(f"{os.fspath(path)}: {error}") from error
    flow.set_params(device=device)
    if precision is not None:
        _set_precision(flow, precision, place)
    flow._file = os.fspath(path)
    return cast("sliceflow.SlicedWassersteinFlow | sliceflow.ImageFlow", flow)


def _in_folder(path: str | os.PathLike[str]) -> str:
    """The model's file, also where a run's folder is given."""
    name = os.fspath(path)
    if not os.path.isdir(name):
        return name
    if not os.path.exists(inside := os.path.join(name, RUN_FILE)):
        raise ModelFileError(
            f"{name} is a folder without {RUN_FILE}; give the name of a file, or the folder of a run "
            "of sliceflow fit that has ended"
        )
    return inside


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
    check_vectors(flow)  # what cannot be read must not be written
    units = flow._units
    tensors["shift"], tensors["scale"] = map(torch.from_numpy, (units.shift, units.scale))
    if units.bent.any():
        tensors["middle"], tensors["width"] = map(torch.from_numpy, (units.middle, units.width))
    names = getattr(flow, "feature_names_in_", None)
    return {
        "estimator": "SlicedWassersteinFlow",
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


def _vectors_unpacked(
    header: Fields, tensors: dict[str, Tensor], device: torch.device, allowed: Allowance
) -> sliceflow.SlicedWassersteinFlow:
    size_of_maps = model_bytes(header, allowed)
    flow = sliceflow.SlicedWassersteinFlow(
        **restore_parameters(header, sliceflow.SlicedWassersteinFlow)
    )
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
    allowed.check(size_of_maps, frame_bytes(d, width, stages, rows))
    for i, (row, stage) in enumerate(zip(rows, stages, strict=True)):
        h = stage.frame.n_directions if isinstance(stage.frame, frames.Random) else d
        model += unpack_tables(row, i, i, tensors, stage.n_steps, lambda _, h=h: h, device)  # type: ignore[misc]
    amplifier, entropy = header.number("amplifier", 0), header.number("entropy", 0)
    budget = projection_budget(device)
    flow._flow = Flow(stages, restore_seed(header), width, amplifier, entropy, budget)
    flow._model = model
    check_vectors(flow)
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
    _restore_rest(flow, header, tensors, (d,), kind)
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


def _pictures_packed(flow: sliceflow.ImageFlow, tensors: dict[str, Tensor]) -> dict[str, Any]:
    flow._check_model()
    walk = flow._walk
    tables = pack_tables(flow._model, tensors)
    check_pictures(flow)  # what cannot be read must not be written
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
    header: Fields, tensors: dict[str, Tensor], device: torch.device, allowed: Allowance
) -> sliceflow.ImageFlow:
    size_of_maps, layout = model_bytes(header, allowed), restore_layout(header.inner("pictures"))
    c, h, w = layout.shape
    allowed.check(size_of_maps + layout.dimension)
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
    width = 0 if condition is None else condition.width
    apart = header.raw("amplifier") is None
    allowed.check(size_of_maps, tile_bytes(layout, stages, 0 if apart else width, rows))
    flow._walk = Walk(
        layout,
        stages,
        seed,
        n_conditions=width,
        amplifier=math.inf if apart else header.number("amplifier", 0),
        known=None if mask is None or not bool(mask.any()) else mask.to(device),
        upsampling=upsampling,
        directions=directions,
        clip=header.flag("clip"),
        dequantize=header.flag("dequantize"),
        start_noise=header.number("start_noise", 0),
        taper=header.number("taper", 0, 1),
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
    check_pictures(flow)
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
    flow._n_rows = header.whole("rows", 1) if header.value.get("rows") is not None else None
    flow.history_ = unpack_history(header)
    flow.n_iter_ = len(flow.history_["step"])
    if "particles" in tensors:
        flow.particles_ = check_tensor(
            tensors, "particles", getattr(torch, dtype, None), (None, *shape)
        ).numpy()
        m = len(flow.particles_)
        flow.particle_conditions_ = unpack_particle_conditions(flow._condition, m, tensors)


def _tensor(particles: Any, estimator: Any) -> Tensor:
    """Batched samples as a tensor; a DataFrame's columns may be of several types."""
    if getattr(estimator, "_form", None) is None:
        return torch.as_tensor(particles)
    return torch.tensor(np.asarray(particles, dtype=np.float64), dtype=estimator._type)
