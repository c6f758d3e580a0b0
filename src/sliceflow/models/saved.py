"""Saved models: what the files of both estimators have in common.

A model is data: the seed of its frames, and the tables of its steps. Each estimator packs its own state
and is restored from it. `schema` and `tables` pack the parts; `file` writes and checks the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

import sliceflow
from sliceflow.engine import conditions
from sliceflow.errors import is_int, need
from sliceflow.models.old_file import Fields, ModelFileError, read, write
from sliceflow.models.old_limits import Allowance
from sliceflow.models.schema import (
    check_tensor,
    pack_condition,
    pack_history,
    pack_particle_conditions,
    parameters_of,
    unpack_history,
    unpack_particle_conditions,
)

__all__ = ["FORMAT", "OLDEST", "RUN_FILE", "Saved", "read_model", "restore_rest"]

RUN_FILE = "model.sliceflow"  # the model in the folder of a run of the command line
FORMAT = 11  # a new number only where an old library would misread the file
OLDEST = 4  # the oldest format that is read
_RENAMED = {"levels": "n_pixel_values", "directions": "patch_basis", "clusters": "n_clusters"}  # in 6
_RARE = (  # parameters before format 6, options since
    "taper", "n_axis_steps", "n_knots", "validation_fraction", "n_iter_no_change", "tol",
    "start_noise", "clip", "dequantize", "upsampling", "precision",
)  # fmt: skip
_BATCHED = ("particles_", "particle_conditions_")


class Saved:
    """What makes an estimator one that can be saved: it packs its own state, and is made from it."""

    _fitted: Any
    _file: str  # which it was loaded from

    def _packed(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """The model as JSON, its arrays in `tensors`; what could not be read again is an error."""
        raise NotImplementedError

    @classmethod
    def _unpacked(
        cls, header: Fields, tensors: dict[str, Tensor], device: torch.device, allowed: Allowance
    ) -> Self:
        """The fitted estimator that `_packed` described; a ValueError names what is wrong."""
        raise NotImplementedError

    def _particle_tensor(self) -> Tensor:
        """The batched samples as a tensor."""
        return torch.as_tensor(cast(Any, self).particles_)

    def _warn_if_stale(self, what: str) -> None:
        """Warn that `what` holds maps of rows that were forgotten since."""

    def save(self, path: str | os.PathLike[str], *, particles: bool = False) -> None:
        """Write the fitted model to one file, which `sliceflow.load` opens on any machine.

        Values of the data can be read from maps that have a knot for every row: small sets, or many
        knots. A model of local conditions holds all rows. `sliceflow.models.disclosure.holds_data`
        tells, and ``sliceflow info``.

        Parameters
        ----------
        path : the file; one that is there is replaced, at once and only when all is written. It keeps
            its mode. Of a symbolic link the target is replaced; folders, pipes and devices are refused
        particles : also keep the batched samples, `particles_` and `particle_conditions_`
        """
        check_is_fitted(self, "history_")
        self._warn_if_stale("the model to be saved")
        tensors: dict[str, Tensor] = {}
        body = self._packed(tensors)
        estimator, fitted = cast(Any, self), self._fitted
        if particles:
            tensors["particles"] = self._particle_tensor()
            pack_particle_conditions(estimator.particle_conditions_, fitted.condition, tensors)
        text = {
            "format": FORMAT,
            "library": sliceflow.__version__,
            "estimator": type(self).__name__,
            "parameters": parameters_of(estimator),
            "rows": fitted.n_rows,
            "condition": pack_condition(fitted.condition, fitted.codes, tensors),
            "history": pack_history(estimator.history_),
            **body,
        }
        write(path, text, tensors)

    if not TYPE_CHECKING:  # or every misspelt attribute would pass

        def __getattr__(self, name: str) -> Any:
            if name == "plan_" and "_file" in self.__dict__:
                raise AttributeError(f"plan_ is of a fit; {self.__dict__['_file']} does not hold it")
            if name in _BATCHED and "_file" in self.__dict__:
                raise AttributeError(
                    f"{name} is not in {self.__dict__['_file']}, which was saved without the batched "
                    "samples; draw new ones with sample(), or save with particles=True"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def read_model(
    path: str | os.PathLike[str],
    kinds: Mapping[str, type[Saved]],
    device: torch.device,
    max_memory: int | None = None,
) -> Any:
    """The fitted estimator of a file, one of these `kinds`; a `ModelFileError` names what is wrong."""
    need(max_memory is None or is_int(max_memory, 1), "max_memory", max_memory, "None or bytes, an int")
    path = _in_folder(path)
    text, tensors = read(path)
    try:
        allowed = Allowance(os.path.getsize(path), max_memory)
        header = Fields(text)
        _check_version(header)
        if header.whole("format", 1) < 6:
            header, tensors = _as_today(header, tensors)
        name = header.text("estimator")
        if name not in kinds:
            raise ValueError(f"estimator is {name!r}, not one of {list(kinds)}")
        flow = kinds[name]._unpacked(header, tensors, device, allowed)
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise ModelFileError(f"{os.fspath(path)}: {error}") from error
    cast(Any, flow)._file = os.fspath(path)
    return flow


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


def _check_version(header: Fields) -> None:
    version = header.whole("format", 1)
    if version > FORMAT:
        library = header.text("library")
        raise ValueError(
            f"it has format {version}, by sliceflow {library}; this is sliceflow "
            f"{sliceflow.__version__}, which reads formats up to {FORMAT}: install sliceflow {library} "
            "or newer"
        )
    if version < OLDEST:
        raise ValueError(
            f"it has format {version}; sliceflow {sliceflow.__version__} reads formats {OLDEST} to "
            f"{FORMAT}: fit the model again"
        )


def _as_today(header: Fields, tensors: dict[str, Tensor]) -> tuple[Fields, dict[str, Tensor]]:
    """The text and the tensors of a file of format 4 or 5, by the names and shapes of today."""
    value, tensors = dict(header.value), dict(tensors)
    for part in ("parameters", "pictures"):
        if isinstance(value.get(part), dict):
            value[part] = {_RENAMED.get(name, name): v for name, v in value[part].items()}
    old = value.get("parameters")
    if isinstance(old, dict):
        rare = {name: old.pop(name) for name in _RARE if name in old}
        old["options"] = rare or None
    if "directions" in value:
        value["patch_basis"] = value.pop("directions")
    if value.get("estimator") == "SlicedWassersteinFlow":
        value["seeds"] = [value.pop("seed", None)]
        value.setdefault("frame", None)
        for name in {"middle", "width", "shift", "scale"} & set(tensors):
            tensors[name] = tensors[name][None]
    return Fields(value), tensors


def restore_rest(
    flow: Any, header: Fields, tensors: dict[str, Tensor], shape: tuple[int, ...], dtype: str
) -> None:
    """History, classes, and the batched samples if they were saved."""
    condition = flow._fitted.condition
    if isinstance(condition, conditions.Labels) and not condition.hidden:
        flow.classes_ = condition.classes
    flow.history_ = unpack_history(header)
    flow.n_iter_ = len(flow.history_["step"])
    if "particles" in tensors:
        flow.particles_ = check_tensor(
            tensors, "particles", getattr(torch, dtype, None), (None, *shape)
        ).numpy()
        m = len(flow.particles_)
        flow.particle_conditions_ = unpack_particle_conditions(condition, m, tensors)
