"""Local conditions of vectors: the rows are kept, and every condition asks those nearest to it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.devices import need_memory
from sliceflow.engine.conditions import Condition, Labels, Mixed, as_array, even_rows
from sliceflow.engine.neighbourhoods import COMPONENTS, Neighbourhoods, work_bytes
from sliceflow.engine.random import Seed
from sliceflow.errors import ParameterError
from sliceflow.models.ranks import Ranks
from sliceflow.spaces.vectors.data import FitInput, read_input
from sliceflow.spaces.vectors.plan import VectorPlan, count_particles, make_plan
from sliceflow.spaces.vectors.units import Units

__all__ = [
    "LocalModel",
    "check_width",
    "is_local",
    "joined",
    "local_plan",
    "particle_conditions",
    "without",
]

PARTICLES = 200  # of a fit unless the user says how many: each needs a neighbourhood


@dataclass(frozen=True)
class LocalModel:
    """The rows of a fit, ready to be asked for x given y.

    Parameters
    ----------
    x : (n, d), all rows in the engine's units, float64
    near : the neighbourhoods of all rows; with labels in y, of the rows of each combination of them
    given : the same rows as the user passed them, for `grown` and `without`
    """

    x: Tensor
    near: tuple[Neighbourhoods, ...]
    given: FitInput

    @property
    def labelled(self) -> bool:
        """Whether the first column of codes is the number of a combination of labels."""
        return isinstance(self.given.condition, Mixed)

    @classmethod
    def of(cls, given: FitInput, units: Units) -> LocalModel:
        """The model of rows; finds k, K and what matters."""
        x, parts = _parts(given, units)
        return cls(x, tuple(Neighbourhoods.of(*part) for part in parts), given)

    @classmethod
    def again(cls, given: FitInput, units: Units, settings: Any) -> LocalModel:
        """The model of a file: `settings` has k, h, whether y is seen as it is, and the projection."""
        x, parts = _parts(given, units)
        if len(parts) != len(settings):
            raise ValueError(f"local has settings for {len(settings)} parts of {len(parts)}")
        near = []
        for (own, y), ((k, spread, plain), projection) in zip(parts, settings, strict=True):
            if k > len(own):
                raise ValueError(f"local has {k} neighbours among {len(own)} rows")
            near.append(Neighbourhoods.again(own, y, k, projection, spread, plain))
        return cls(x, tuple(near), given)

    @property
    def distances(self) -> str:
        """What distances see of y, in words; with labels, in most parts."""
        text = max(words := [near.words for near in self.near], key=words.count)
        return text if len(set(words)) == 1 else f"in most parts {text}"

    def sample(self, codes: Tensor, seed: Seed) -> Tensor:
        """One row x (n, d) for each of the codes (n, l); equal ones share a neighbourhood."""
        out = torch.empty(len(codes), self.x.shape[1], dtype=torch.float64)
        part = codes[:, 0].long() if self.labelled else torch.zeros(len(codes), dtype=torch.int64)
        for c in torch.unique(part).tolist():
            at = torch.nonzero(part == c)[:, 0]
            y = codes[at, 1:] if self.labelled else codes[at]
            out[at] = _one_each(self.near[c], y, seed.child(c))
        return out

    def warn_of_far(self, codes: Tensor, stacklevel: int) -> None:
        """Warn of conditions that are farther from all rows than rows are from each other."""
        part = codes[:, 0].long() if self.labelled else torch.zeros(len(codes), dtype=torch.int64)
        for c in torch.unique(part).tolist():
            at, near = torch.nonzero(part == c)[:, 0], self.near[c]
            distance = near.distances(codes[at, 1:] if self.labelled else codes[at])
            i = int(distance.argmax())
            if distance[i] > near.reach:
                warnings.warn(
                    f"y[{int(at[i])}] is {float(distance[i]):.3g} standard deviations of y from the "
                    f"nearest row, where rows have ten neighbours within {near.reach:.3g}: its samples "
                    "are extrapolated",
                    UserWarning,
                    stacklevel=stacklevel,
                )


def joined(parts: Sequence[FitInput]) -> FitInput:
    """All rows in one, in the form of the first."""
    X, y = (np.concatenate([_pair(part)[i] for part in parts]) for i in (0, 1))
    return read_input(X, y, parts[0].device, parts[0].form, Ranks())


def check_width(y: Any, known: FitInput) -> np.ndarray:
    """y as an array with as many columns as that of the rows of a model."""
    width = _pair(known)[1].shape[1]
    array = np.empty(0) if y is None else as_array(y)
    if array.ndim != 2 or array.shape[1] != width:
        raise ValueError(
            f"y {'is missing' if y is None else f'has shape {array.shape}'}, but a model of local "
            f"conditions keeps every row with its y, here of {width} columns; pass y of shape "
            f"(n, {width})"
        )
    return array


def without(known: FitInput, X: np.ndarray, y: np.ndarray) -> FitInput:
    """The rows that are left when those of X and y go; of equal rows the last go first."""
    left: dict[tuple[Any, ...], list[int]] = {}
    for i, key in enumerate(_keys(*_pair(known))):
        left.setdefault(key, []).append(i)
    keep = np.ones(len(known.X), dtype=bool)
    for i, key in enumerate(_keys(X, y)):
        if not left.get(key):
            raise ValueError(
                f"row {i} of X, with its y, is not in the model, or X has it more often; nothing was "
                "forgotten"
            )
        keep[left[key].pop()] = False
    if keep.sum() < 2:
        raise ValueError(
            f"forgetting {(~keep).sum()} rows would leave {keep.sum()}; delete the model instead"
        )
    X, y = (a[keep] for a in _pair(known))
    return read_input(X, y, known.device, known.form, Ranks())


def _pair(rows: FitInput) -> tuple[np.ndarray, np.ndarray]:
    assert rows.y is not None
    return rows.X, rows.y


def _keys(X: np.ndarray, y: np.ndarray) -> Iterator[tuple[Any, ...]]:
    """Something to look each row up by; equal for equal numbers of any type."""
    if len(X) != len(y):
        raise ValueError(f"X has {len(X)} rows but y has {len(y)}; pass one y for every row of X")
    return ((*x, *values) for x, values in zip(X.tolist(), y.tolist(), strict=True))


def _parts(given: FitInput, units: Units) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """All rows in the engine's units; and those of each combination of labels, with their columns."""
    assert given.codes is not None
    x, codes = units.encode(given.X).double(), given.codes
    if not isinstance(given.condition, Mixed):
        return x, [(x, codes)]
    part = codes[:, 0].long()
    return x, [(x[part == c], codes[part == c, 1:]) for c in range(int(part.max()) + 1)]


def _one_each(near: Neighbourhoods, y: Tensor, seed: Seed) -> Tensor:
    """One sample (n, d) for each row of y."""
    if len(y) == 1 or bool((y == y[0]).all()):
        return near.sample(y[:1], len(y), seed)[0]
    distinct, own, counts = torch.unique(y, dim=0, return_inverse=True, return_counts=True)
    order = torch.argsort(own, stable=True)
    first = torch.cumsum(counts, 0) - counts
    out = torch.empty(len(y), near.x.shape[1], dtype=torch.float64)
    for n in torch.unique(counts).tolist():  # conditions that are there equally often
        some = torch.nonzero(counts == n)[:, 0]
        at = order[(first[some][:, None] + torch.arange(n)).flatten()]
        out[at] = near.sample(distinct[some], n, seed.child("times", n)).flatten(0, 1)
    return out


def is_local(parameters: Mapping[str, Any], condition: Condition | None, ranks: Ranks) -> bool:
    """Whether a fit is local; an error if it shall be and cannot."""
    mode = parameters["condition"]
    continuous = condition is not None and not isinstance(condition, Labels)
    obstacle = (
        "needs continuous columns in y; pass y of shape (n, l)"
        if not continuous
        else "keeps all rows in one process; fit without ranks, or set condition='joint'"
        if ranks.size > 1
        else "has no steps that could stop early; set early_stopping=False, or condition='joint'"
        if parameters["early_stopping"]
        else ""
    )
    if mode == "local" and obstacle:
        fact, advice = obstacle.split("; ", 1)
        raise ParameterError("condition", mode, fact, advice)
    xi = parameters["amplifier"]
    local = mode == "local" or (mode == "auto" and not obstacle and 0 < xi < float("inf"))
    if isinstance(condition, Mixed) and not local:
        raise ValueError(
            f"y has labels and columns, which condition={mode!r} cannot fit here; use "
            "condition='local', or pass labels (n,) or columns (n, l)"
        )
    return local


def local_plan(
    parameters: Mapping[str, Any],
    inputs: FitInput,
    y_p: np.ndarray | None,
    device: torch.device,
) -> tuple[VectorPlan, Units, LocalModel]:
    """The plan of a local fit, its units, and its model: to know k is to have fitted it."""
    assert inputs.codes is not None
    units = Units.of(inputs.X, parameters["standardize"])
    n, d = inputs.X.shape
    given = parameters["n_particles"] or (PARTICLES if y_p is None else None)
    dtype = torch.float32 if inputs.X.dtype == np.float32 else torch.float64
    still = replace(parameters["options"], n_axis_steps=0)
    plan = make_plan(
        {**parameters, "n_steps": 0, "options": still},
        shape=(n, d),
        dtype=dtype,
        n_particles=count_particles(given, n, inputs.condition, y_p),
        condition=inputs.condition,
        codes=None,
        device=device,
    )
    columns = inputs.codes.shape[1]
    nbytes = plan.nbytes + 8 * 4 * n * (d + columns) + work_bytes(n, columns)
    need_memory(
        nbytes, device, f"{n} rows of {d} columns, kept for condition='local', need", "keep fewer"
    )
    model = LocalModel.of(inputs, units)
    most, words = max(near.k for near in model.near), model.distances
    plan = replace(plan, neighbours=most, distances=words, components=COMPONENTS, nbytes=nbytes)
    return plan, units, model


def particle_conditions(
    inputs: FitInput, m: int, y_p: np.ndarray | None, seed: Seed
) -> tuple[np.ndarray, Tensor]:
    """y of m particles and its codes: the user's, or those of rows, each equally often."""
    assert inputs.codes is not None
    assert inputs.condition is not None
    assert inputs.y is not None
    if y_p is not None:
        return y_p, inputs.condition.encode(y_p)
    rows = even_rows(len(inputs.codes), m, seed)
    return inputs.y[rows.numpy()], inputs.codes[rows]
