"""Changes to the parts of a model file: a decoded header, and arrays."""

from __future__ import annotations

import copy
import math
import random
from typing import Any

import numpy as np

WRONG_VALUES = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    255,
    1 << 31,
    1 << 40,
    1 << 62,
    -5.5,
    1e308,
    math.inf,
    math.nan,
    "",
    "x",
    "float32",
    b"x",
    [],
    {},
    [1],
    [[1, 2]],
    {"class": "array"},
    {"class": "bytes", "content": b"x"},
    "int64",
    {"class": "int", "digits": "-1" + 20 * "0"},
    {"class": "int", "digits": "zz"},
    {"class": "tuple", "labels": [1]},
    {"class": "labels", "dtype": "<U99999999", "labels": ["a"]},
    {"class": "HistogramTransport", "n_bins": 1 << 40, "batch_size": None},
)
WRONG_NAMES = ("x", "class", "labels", "dtype", "n", "")
WRONG_NUMBERS = (np.nan, np.inf, 1e30, -1.0, 0.0)


def places(node: Any) -> list[tuple[Any, Any]]:
    """Every container in a header, with every key or index of it."""
    if isinstance(node, dict):
        keys = list(node)
    elif isinstance(node, list):
        keys = list(range(len(node)))
    else:
        keys = []
    found = [(node, key) for key in keys]
    for key in keys:
        found.extend(places(node[key]))
    return found


def change_header(header: Any, rng: random.Random) -> Any:
    """A copy with up to three values changed, removed, doubled or renamed."""
    root = copy.deepcopy({"header": header})
    for _ in range(rng.randint(1, 3)):
        all_places = places(root)
        node, key = rng.choice(all_places)
        change = rng.randrange(6)
        if change < 2 or node is root:
            node[key] = copy.deepcopy(rng.choice(WRONG_VALUES))
        elif change == 2 and type(node[key]) in (int, float):
            node[key] = rng.choice([node[key] + 1, node[key] - 1, -node[key]])
        elif change == 3:
            del node[key]
        elif change == 4:
            other_node, other_key = rng.choice(all_places)
            node[key] = copy.deepcopy(_get(other_node, other_key))
        elif isinstance(node, list):
            node.insert(key, copy.deepcopy(node[key]))
        else:
            node[rng.choice(WRONG_NAMES)] = node.pop(key)
    return root["header"]


def _get(node: Any, key: Any) -> Any:
    """A value of a container, or 0 if it was removed."""
    try:
        return node[key]
    except LookupError:
        return 0


def change_arrays(
    arrays: dict[str, np.ndarray], rng: random.Random
) -> dict[str, np.ndarray]:
    """A copy with one array changed: a byte, a number, its shape, dtype or name.

    Or it is removed, or there is one more.
    """
    arrays = {name: array.copy() for name, array in arrays.items()}
    if not arrays:
        return {"x": np.zeros(1)}
    name = rng.choice(sorted(arrays))
    array = arrays[name]
    all_bytes = array.reshape(-1).view(np.uint8)  # shares the memory of the array
    change = rng.randrange(9)
    if change < 2 and all_bytes.size:
        all_bytes[rng.randrange(all_bytes.size)] = rng.randrange(256)
    elif change < 4 and all_bytes.size >= 8:
        dtype = rng.choice([np.float32, np.float64])
        number = np.array([rng.choice(WRONG_NUMBERS)], dtype).view(np.uint8)
        first = rng.randrange(all_bytes.size // number.size) * number.size
        all_bytes[first : first + number.size] = number
    elif change == 4:
        arrays[name] = rng.choice(
            [array[:-1], np.concatenate([array, array]), array[:0], array[:1]]
        )
    elif change == 5:
        arrays[name] = rng.choice([array[None], array.reshape(-1), array.T])
    elif change == 6:
        with np.errstate(all="ignore"):  # packed bytes are no sensible numbers
            as_float32 = array.astype(np.float32)
        arrays[name] = rng.choice([all_bytes, as_float32, array != 0])
    elif change == 7:
        del arrays[name]
    else:
        if rng.random() < 0.5:
            del arrays[name]
        arrays[rng.choice(["x", f"{name}.x"])] = array
    return arrays
