"""What a fit is of: its settings and the data. A checkpoint of another fit cannot be resumed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

import sliceflow
from sliceflow.engine.random import Seed
from sliceflow.errors import from_tensor, is_int
from sliceflow.models.ranks import Place, Ranks

__all__ = ["digest", "identity", "same_on_all"]


def identity(
    name: str, settings: Mapping[str, Any], device: torch.device, seed: Seed | None, **data: str
) -> dict[str, str]:
    """What a fit is of: whatever its result depends on, by name.

    Parameters
    ----------
    name : of the estimator
    settings : of the fit: those of its plan, or the parameters
    device : which it runs on
    seed : of its random_state; None where it is drawn anew for every fit
    data : the `digest` of everything it is given
    """
    out = {
        "library": sliceflow.__version__,
        "estimator": name,
        "device": device.type,
        "random_state": repr(seed),
    }
    for name, value in settings.items():
        value = from_tensor(value)
        if isinstance(value, np.ndarray):  # its repr omits the middle
            value = digest(value)
        elif isinstance(value, np.generic):
            value = value.item()
        if name not in ("device", "verbose", "random_state"):
            out[name] = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    return out | data


def same_on_all(
    ranks: Ranks,
    name: str,
    parameters: Mapping[str, Any],
    device: torch.device,
    checkpoint_dir: Any,
    **data: str,
) -> None:
    """Raise a ValueError if parameters differ between ranks. All use the seed of the first rank.

    Parameters
    ----------
    name, parameters : of the estimator
    checkpoint_dir : of the fit; whether there is one is all that matters
    data : the `digest` of what all ranks must be given alike
    """
    if ranks.size == 1:
        return
    facts = identity(name, parameters, device, None, **data)
    state = parameters["random_state"]
    facts["random_state"] = repr(state) if state is None or is_int(state, 0) else type(state).__name__
    ranks.agree(facts | {"checkpoint_dir": "None" if checkpoint_dir is None else "a folder"})


def digest(
    array: np.ndarray | None,
    ranks: Ranks = Ranks(),  # noqa: B008, it is frozen
    place: Place | None = None,
) -> str:
    """A short text that identifies an array, however its rows are spread over ranks.

    Parameters
    ----------
    array : the rows of this rank
    place : of these rows among those of all `ranks`
    """
    if array is None:
        return "None"
    place = place or Place(0, len(array), len(array))
    count = max(1, (1 << 23) // max(1, array[:1].nbytes))  # rows at a time
    with np.errstate(over="ignore"):  # all modulo 2⁶⁴: sums may be taken in any order
        total = np.uint64(0)
        for first in range(0, len(array), count):
            words = _words(array[first : first + count])
            column = np.arange(words.shape[1], dtype=np.uint64)
            rows = _mixed(words + _mixed(column + np.uint64(1))).sum(1, dtype=np.uint64)
            number = np.arange(len(rows), dtype=np.uint64) + np.uint64(place.first + first)
            total += _mixed(rows ^ _mixed(~number)).sum(dtype=np.uint64)
    whole = ranks.sum(torch.from_numpy(np.array([total]).view(np.int64)))
    shape = (place.total, *array.shape[1:])
    return f"{array.dtype} {shape} #{_hash(f'{array.dtype} {shape} {int(whole)}').hex()}"


def _words(array: np.ndarray) -> np.ndarray:
    """The rows as 64-bit words."""
    if array.dtype.kind == "O":
        return np.array([int.from_bytes(_hash(repr(v))) for v in array.tolist()], np.uint64)[:, None]
    rows = np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)
    return np.pad(rows, ((0, 0), (0, -rows.shape[1] % 8))).view(np.uint64)


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _mixed(v: np.ndarray) -> np.ndarray:
    """A pseudorandom bijection: the final mixing of splitmix64 (Steele et al. 2014)."""
    v = (v ^ (v >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    v = (v ^ (v >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(v ^ (v >> np.uint64(31)))
