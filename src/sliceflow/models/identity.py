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
from sliceflow.models.ranks import Ranks, Shard
from sliceflow.validation import from_tensor, is_int


def identity(
    name: str,
    settings: Mapping[str, Any],
    device: torch.device,
    seed: Seed | None,
    **data: str,
) -> dict[str, str]:
    """What a fit depends on, by name. `seed` is None if random; `data` has digests of what is given."""
    out = {"library": sliceflow.__version__, "estimator": name}
    out |= {"device": device.type, "random_state": repr(seed)}
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
    ranks: Ranks, name: str, parameters: Mapping[str, Any], device: Any
) -> None:
    """Raise a ValueError if parameters differ between ranks."""
    facts = identity(name, parameters, device, None)
    state = parameters["random_state"]
    facts["random_state"] = (
        repr(state) if state is None or is_int(state, 0) else type(state).__name__
    )
    ranks.agree(facts)


def digest(
    array: np.ndarray | None, ranks: Ranks | None = None, shard: Shard | None = None
) -> str:
    """A short text that identifies an array, of which this rank has the rows at its `shard` among `ranks`."""
    if array is None:
        return "None"
    shard = shard or Shard(0, len(array), len(array))
    total = 0
    for i, row in enumerate(
        array.tolist() if array.dtype == object else array, shard.first
    ):
        content = (
            repr(row).encode("utf-8", "surrogatepass")
            if array.dtype == object
            else row.tobytes()
        )
        total += int.from_bytes(
            hashlib.blake2b(b"%d " % i + content, digest_size=7).digest()
        )
    whole = int(
        (ranks or Ranks()).sum(torch.tensor([total % (1 << 62)]))
    )  # in any order
    return f"{array.dtype} {(shard.total, *array.shape[1:])} #{whole % (1 << 62):016x}"
