"""Changes to the parts of a file: a text of JSON and tensors by name."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np

WRONG = (
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
    1 << 70,
    -5.5,
    1e308,
    "",
    "x",
    "float32",
    [],
    {},
    [1],
    [[1, 2]],
    {"float": "inf"},
    {"float": "nan"},
    {"bytes": "zz"},
    {"tuple": [1]},
    {"dtype": "int64"},
    {"array": 0},
    {"list": [1]},
    ["float64", 1 << 30],
    ["int8", 1 << 32, 0],
)


def places(node: Any) -> list[tuple[Any, Any]]:
    """Every container of a JSON value, with every key or index of it."""
    keys = (
        list(node)
        if isinstance(node, dict)
        else range(len(node) if isinstance(node, list) else 0)
    )
    return [(node, key) for key in keys] + [
        p for key in keys for p in places(node[key])
    ]


def change_text(text: Any, rng: random.Random) -> Any:
    """A copy with one to three values changed, removed, doubled, exchanged or renamed."""
    text = copy.deepcopy({"it": text})
    for _ in range(rng.randint(1, 3)):
        everywhere = places(text)
        node, key = rng.choice(everywhere)
        how = rng.randrange(6)
        if how < 2 or node is text:
            node[key] = copy.deepcopy(rng.choice(WRONG))
        elif how == 2 and type(node[key]) in (int, float):
            node[key] = rng.choice([node[key] + 1, node[key] - 1, -node[key]])
        elif how == 3:
            del node[key]
        elif how == 4:
            other, where = rng.choice(everywhere)
            node[key] = (
                copy.deepcopy(other[where])
                if where in other or isinstance(other, list)
                else 0
            )
        elif isinstance(node, list):
            node.insert(key, copy.deepcopy(node[key]))
        else:
            node[rng.choice(["x", "arrays", "array", "list", "value"])] = node.pop(key)
    return text["it"]


def change_tensors(
    tensors: dict[str, np.ndarray], rng: random.Random
) -> dict[str, np.ndarray]:
    """A copy with one tensor changed: a byte, a number, its size or its name; or removed, or added."""
    tensors = {name: t.copy() for name, t in tensors.items()}
    name = rng.choice(sorted(tensors))
    t = tensors[name]
    how = rng.randrange(7)
    if how < 2 and len(t):
        t[rng.randrange(len(t))] = rng.randrange(256)
    elif how < 4 and len(t) >= 8:
        dtype = rng.choice([np.float32, np.float64])
        number = np.array(rng.choice([np.nan, np.inf, 1e30, -1.0, 0.0]), dtype)
        at = rng.randrange(len(t) // number.itemsize) * number.itemsize
        t[at : at + number.itemsize] = np.frombuffer(number.tobytes(), np.uint8)
    elif how == 4:
        tensors[name] = rng.choice([t[:-1], np.concatenate([t, t]), t[:0], t[:1]])
    elif how == 5:
        del tensors[name]
    else:
        tensors[rng.choice(["x", f"{name}.x"])] = (
            t if rng.random() < 0.5 else tensors.pop(name)
        )
    return tensors
