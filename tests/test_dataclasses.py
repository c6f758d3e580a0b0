"""The generated `==` of a dataclass compares arrays, and so raises: ours have none."""

import dataclasses
import importlib
import pkgutil
import re
import typing
from collections.abc import Callable

import numpy as np
import torch

import sliceflow

ARRAYS = {torch.Tensor, np.ndarray}
ARRAY_NAMES = re.compile(r"\b(Tensor|NDArray|ndarray)\b")


def dataclasses_of_the_package():
    found = []
    for module in pkgutil.walk_packages(sliceflow.__path__, "sliceflow."):
        if module.name.endswith("__main__"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if not isinstance(value, type) or not dataclasses.is_dataclass(value):
                continue
            if value.__module__.startswith("sliceflow."):  # not imported ones
                found.append(value)
    return set(found)


def types_in(hint):
    """The types of which a type hint is made, without those that functions take."""
    origin = typing.get_origin(hint)
    if origin is Callable or getattr(origin, "_is_protocol", False):
        return set()
    found = {origin, hint}
    for part in typing.get_args(hint):
        if not isinstance(part, list):
            found |= types_in(part)
    return {one for one in found if isinstance(one, type)}


def field_types(cls):
    """The types in the annotations of a dataclass."""
    try:
        hints = typing.get_type_hints(cls)
    except NameError:  # of what is only imported for types
        text = " ".join(str(field.type) for field in dataclasses.fields(cls))
        return ARRAYS if ARRAY_NAMES.search(text) else set()
    found = set()
    for field in dataclasses.fields(cls):
        found |= types_in(hints[field.name])
    return found


def test_dataclasses_that_hold_arrays_are_not_compared_by_value():
    """`==` of two of them raised: "Boolean value of Tensor ... is ambiguous"."""
    types_of = {cls: field_types(cls) for cls in dataclasses_of_the_package()}
    holders = set(ARRAYS)
    while True:
        more = {cls for cls, types in types_of.items() if types & holders} - holders
        if not more:
            break
        holders |= more
    holders -= ARRAYS
    assert len(holders) > 50
    compared = [cls for cls in holders if cls.__dataclass_params__.eq]
    names = sorted(f"{cls.__module__}.{cls.__name__}" for cls in compared)
    assert names == [], "these need eq=False"
