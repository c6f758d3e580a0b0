"""Fingerprints: short texts of all that the result of a fit depends on.

A checkpoint holds these texts: it can be resumed only by a fit with the same ones. The
ranks of a fit compare them, too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import sliceflow
from sliceflow.base.ranks import ONE_PROCESS, Communicator, Shard
from sliceflow.engine.random import Seed
from sliceflow.validation import from_tensor, is_int

# Parameters that are left out: the device and the seed have texts of their own, and
# printing changes no result.
_LEFT_OUT_PARAMETERS = ("device", "verbose", "random_state")
# Sums of hashes are taken modulo this number, so that they fit into 64 bits.
_MODULUS = 1 << 62


def fingerprint(
    estimator_name: str,
    settings: Mapping[str, Any],
    device: torch.device,
    seed: Seed | None,
    **digests: str,
) -> dict[str, str]:
    """The texts, by name, of everything that the result of a fit depends on.

    Parameters
    ----------
    estimator_name : the class of the estimator
    settings : parameters and what a plan made of them, by name
    device : the device of the fit; only its type counts
    seed : the seed of the fit, or None if it is random
    digests : texts that identify the data, see `digest`
    """
    texts = {
        "library": sliceflow.__version__,
        "estimator": estimator_name,
        "device": device.type,
        "random_state": repr(seed),
    }
    for name, value in settings.items():
        if name not in _LEFT_OUT_PARAMETERS:
            texts[name] = _setting_as_text(value)
    return texts | digests


def _setting_as_text(value: Any) -> str:
    """A text that is the same in every process for equal settings."""
    value = from_tensor(value)
    if isinstance(value, np.ndarray):  # whose repr omits the middle
        value = digest(value)
    elif isinstance(value, np.generic):
        value = value.item()
    # Objects without a repr of their own show their address in memory.
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def require_same_parameters(
    ranks: Communicator,
    estimator_name: str,
    parameters: Mapping[str, Any],
    device: torch.device,
) -> None:
    """Raise a `RankMismatchError` if the parameters of an estimator differ by rank.

    Generators given as `random_state` may differ: all ranks take the seed of rank 0.
    """
    texts = fingerprint(estimator_name, parameters, device, seed=None)
    random_state = parameters["random_state"]
    if random_state is None or is_int(random_state, 0):
        texts["random_state"] = repr(random_state)
    else:
        texts["random_state"] = type(random_state).__name__
    ranks.require_equal(texts)


def digest(
    array: NDArray[Any] | None,
    ranks: Communicator = ONE_PROCESS,
    shard: Shard | None = None,
) -> str:
    """A short text that identifies an array of rows: dtype, shape and a hash.

    The rows may be spread over `ranks`: then `shard` says which of all rows this rank
    has. Every row is hashed together with its index, and the hashes are added. So the
    text does not depend on how rows are spread.
    """
    if array is None:
        return "None"
    if shard is None:
        shard = Shard(0, len(array), len(array))
    own_sum = 0
    for index, content in enumerate(_row_contents(array), shard.first):
        row_hash = hashlib.blake2b(b"%d " % index + content, digest_size=7)
        own_sum += int.from_bytes(row_hash.digest())
    sum_of_all = int(ranks.sum_(torch.tensor([own_sum % _MODULUS])))
    shape = (shard.total, *array.shape[1:])
    return f"{array.dtype} {shape} #{sum_of_all % _MODULUS:016x}"


def _row_contents(array: NDArray[Any]) -> list[bytes]:
    """The bytes of every row. Objects, such as texts, give the bytes of their repr."""
    if array.dtype == object:
        # Text may have surrogates, which UTF-8 cannot encode otherwise.
        return [repr(row).encode("utf-8", "surrogatepass") for row in array.tolist()]
    return [row.tobytes() for row in array]
