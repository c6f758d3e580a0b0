"""Changes to the parts of a file: a text of JSON and tensors by name."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
from torch import Tensor

WRONG = (
    None, True, False, 0, 1, -1, 2, 255, 1 << 31, 1 << 40, 1 << 70, -5.5, 1e308, "", "x", "float32", [],
    {}, [1], [[1, 2]], {"runs": [[1, 1 << 31]]}, {"float": "inf"}, {"float": "nan"}, {"bytes": "zz"},
    {"tuple": [1]}, {"dtype": "int64"}, {"is": "x"}, {"sizes": 1 << 30, "items": []},
)  # fmt: skip
DTYPES = (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool)


def places(node: Any) -> list[tuple[Any, Any]]:
    """Every container of a JSON value, with every key or index of it."""
    keys = list(node) if isinstance(node, dict) else range(len(node) if isinstance(node, list) else 0)
    return [(node, key) for key in keys] + [p for key in keys for p in places(node[key])]


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
            node[key] = copy.deepcopy(other[where]) if where in other or isinstance(other, list) else 0
        elif isinstance(node, list):
            node.insert(key, copy.deepcopy(node[key]))
        else:
            node[rng.choice(["x", "dims", "is", "items", "value"])] = node.pop(key)
    return text["it"]


def change_tensors(tensors: dict[str, Tensor], rng: random.Random) -> dict[str, Tensor]:
    """A copy with one tensor changed: its bytes, dtype, shape or name; or removed, or added."""
    tensors = {name: t.clone() for name, t in tensors.items()}
    name = rng.choice(sorted(tensors))
    t, how = tensors[name], rng.randrange(8)
    if how < 3 and t.numel():
        at = rng.randrange(t.nbytes)
        high = 2 if t.dtype == torch.bool else 256
        t.reshape(-1).view(torch.uint8)[at] = rng.randrange(high)
    elif how == 3:
        tensors[name] = t.to(rng.choice(DTYPES))
    elif how == 4:
        tensors[name] = rng.choice([t[:-1], torch.cat([t, t]), t[:0], t[None], t[:1]]).contiguous()
    elif how == 5:
        del tensors[name]
    elif how == 6 and t.is_floating_point() and t.numel():
        wrong = rng.choice([float("nan"), float("inf"), 1e30, -1.0, 0.0])
        t.reshape(-1)[rng.randrange(t.numel())] = wrong
    else:
        tensors[rng.choice(["x", f"{name}.x"])] = t if rng.random() < 0.5 else tensors.pop(name)
    return tensors
