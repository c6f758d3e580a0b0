"""What the result of a fit depends on: its settings and its data.

A checkpoint of another fit cannot be resumed, and ranks must agree on the settings.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

import sliceflow
from sliceflow.engine.random import Seed
from sliceflow.models.ranks import SINGLE, Ranks, Shard
from sliceflow.validation import from_tensor, is_int

# Parameters that the identity has in another form, or that change no result.
_NOT_SETTINGS = ("device", "verbose", "random_state")
# Digests of rows are summed in 62 bits, so that sums of ranks do not overflow 64.
_DIGEST_MODULUS = 1 << 62


def identity(
    name: str,
    settings: Mapping[str, Any],
    device: torch.device,
    seed: Seed | None,
    **data: str,
) -> dict[str, str]:
    """What a fit depends on, as texts by name.

    Parameters
    ----------
    name : of the estimator
    settings : parameters, and the resolved settings of a plan
    seed : None if it is random
    data : digests of X and y
    """
    facts = {
        "library": sliceflow.__version__,
        "estimator": name,
        "device": device.type,
        "random_state": repr(seed),
    }
    for setting, value in settings.items():
        if setting not in _NOT_SETTINGS:
            facts[setting] = _as_text(value)
    return facts | data


def _as_text(value: Any) -> str:
    """A text of a setting, the same in every process."""
    value = from_tensor(value)
    if isinstance(value, np.ndarray):  # its repr omits the middle
        value = digest(value)
    elif isinstance(value, np.generic):
        value = value.item()
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))  # without memory addresses


def same_on_all(
    ranks: Ranks, name: str, parameters: Mapping[str, Any], device: torch.device
) -> None:
    """Raise a ValueError if the parameters of an estimator differ between ranks."""
    facts = identity(name, parameters, device, None)
    random_state = parameters["random_state"]
    if random_state is None or is_int(random_state, 0):
        facts["random_state"] = repr(random_state)
    else:  # the states of generators may differ: all take the seed of the first rank
        facts["random_state"] = type(random_state).__name__
    ranks.agree(facts)


def digest(
    array: np.ndarray | None, ranks: Ranks = SINGLE, shard: Shard | None = None
) -> str:
    """A short text that identifies the rows of all ranks, in their order.

    `array` has this rank's rows, at its `shard` among all; it may be None.
    """
    if array is None:
        return "None"
    if shard is None:
        shard = Shard(0, len(array), len(array))
    if array.dtype == object:
        contents = [
            repr(row).encode("utf-8", "surrogatepass") for row in array.tolist()
        ]
    else:
        contents = [row.tobytes() for row in array]
    total = 0
    for number, content in enumerate(contents, shard.first):
        row_digest = hashlib.blake2b(b"%d " % number + content, digest_size=7).digest()
        total += int.from_bytes(row_digest)
    sum_of_ranks = ranks.sum(torch.tensor([total % _DIGEST_MODULUS]))
    number = int(sum_of_ranks) % _DIGEST_MODULUS
    shape = (shard.total, *array.shape[1:])
    return f"{array.dtype} {shape} #{number:016x}"
