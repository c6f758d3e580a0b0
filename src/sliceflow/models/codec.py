"""Dataclasses as JSON and tensors of bytes, and back, by their type annotations.

The arrays of a field are one tensor, named by the path of the field, for all objects that have it: a
thousand steps need few tensors. Reading trusts nothing: types, ranges, shapes and classes follow from
the annotations alone, and sizes are counted before anything is made of them.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import torch
from torch import Tensor

from sliceflow.fields import Array, Between, Label
from sliceflow.models import packing
from sliceflow.models.limits import Allowance

_VIEW = 512  # bytes of an array's own object
_MOST_SIZE = 1 << 32  # of a dimension
_MOST_LABELS = 1 << 28  # bytes of an array of labels
_INFINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_NUMBERS = (
    "bool",
    "uint8",
    "int16",
    "int32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
)
_DTYPES = {name: getattr(torch, name) for name in _NUMBERS}


def pack(kind: Any, value: Any, tensors: dict[str, np.ndarray]) -> Any:
    """`value` as JSON, its arrays in `tensors`; a ValueError for what could not be read again."""
    arrays = _Arrays()
    node = _kind(kind).write(value, _At(arrays, "", {}))
    shapes = {
        path: [[a.dtype.name, *a.shape] for a in own]
        for path, own in arrays.known.items()
    }
    tensors |= {
        path: packing.pack(own, arrays.strategies[path])
        for path, own in arrays.known.items()
    }
    return {"value": node, "arrays": shapes}


def unpack(
    kind: Any,
    node: Any,
    tensors: Mapping[str, np.ndarray],
    allowance: Allowance,
    device: Any = "cpu",
) -> Any:
    """The value that `pack` wrote, its tensors on `device`. A ValueError says what does not fit."""
    value, listed = _At(_Arrays(), "", {}).items(node, ("value", "arrays"))
    if not isinstance(listed, dict) or listed.keys() != tensors.keys():
        raise ValueError(
            f"the tensors are {_short([*tensors])}, but the text names {_short(listed)}"
        )
    forms = {path: _forms(path, own) for path, own in listed.items()}
    each = [
        dtype.itemsize * math.prod(shape)
        for own in forms.values()
        for dtype, shape in own
    ]
    allowance.take(
        3 * sum(each) + _VIEW * len(each)
    )  # packed, unpacked, and what they are made of
    arrays = _Arrays(forms, tensors, torch.device(device))
    out = _kind(kind).read(value, _At(arrays, "", {}))
    if unused := sorted(forms.keys() - arrays.known.keys()):
        raise ValueError(f"it has tensors that nothing uses: {_short(unused)}")
    return out


def _forms(path: str, listed: Any) -> list[packing.Form]:
    """The types and shapes of the arrays of a field."""
    forms = []
    for form in listed if isinstance(listed, list) else [listed]:
        name, *shape = form if isinstance(form, list) and form else [None]
        sizes = all(type(size) is int and 0 <= size <= _MOST_SIZE for size in shape)
        if not isinstance(name, str) or name not in _DTYPES or not sizes:
            raise ValueError(f"{path} has {_short(form)} instead of a type and a shape")
        forms.append((np.dtype(name), tuple(shape)))
    return forms


@dataclass(frozen=True)
class _Arrays:
    """The arrays of a value, by the path of their field, as they are written or read."""

    forms: Mapping[str, list[packing.Form]] = field(
        default_factory=dict
    )  # of those in `tensors`
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
    device: torch.device | None = None
    known: dict[str, list[np.ndarray]] = field(default_factory=dict)
    strategies: dict[str, str] = field(default_factory=dict)  # to pack them

    def add(self, at: _At, array: np.ndarray, strategy: str) -> int:
        """The number of the array among those of its field."""
        own = self.known.setdefault(at.path, [])
        self.strategies[at.path] = strategy
        own.append(array)
        return len(own) - 1

    def take(self, at: _At, number: Any, strategy: str) -> np.ndarray:
        """An array by its number; the first one of a field unpacks all of them."""
        if at.path not in self.known:
            try:
                packed = self.tensors[at.path]
                forms = self.forms[at.path]
                self.known[at.path] = packing.unpack(packed, strategy, forms)
            except (KeyError, ValueError) as error:
                raise at.error(f"cannot be read: {error}") from error
        own = self.known[at.path]
        if type(number) is not int or not 0 <= number < len(own):
            raise at.error(f"is number %s of {len(own)} arrays", number)
        return own[number]


class _At(NamedTuple):
    """Where in a value: the path of fields, and the sizes of the dimensions of the object."""

    arrays: _Arrays
    path: str
    sizes: dict[str, int]

    def inside(self, name: str, sizes: dict[str, int] | None = None) -> _At:
        path = f"{self.path}.{name}" if self.path else name
        return _At(self.arrays, path, self.sizes if sizes is None else sizes)

    def error(self, what: str, value: Any = None) -> ValueError:
        """In `what` the `value` takes the place of "%s"."""
        return ValueError(f"{self.path or 'it'} {what}".replace("%s", _short(value)))

    def items(self, node: Any, names: Collection[str]) -> list[Any]:
        """The values of a JSON object that must have these names."""
        if not isinstance(node, dict):
            raise self.error("is %s; it must be a JSON object", node)
        for name in {*node} ^ {*names}:
            raise self.inside(name).error(
                "is not known" if name in node else "is missing"
            )
        return [node[name] for name in names]


def _short(value: Any) -> str:
    try:
        return f"{value!r:.60}"
    except (
        ValueError,
        RecursionError,
    ):  # integers of thousands of digits, deep nesting
        return f"a {type(value).__name__} too long to show"


# Numbers and texts


def _encode(value: Any) -> Any:
    """A number, text, label or dtype as JSON, which has no infinities and no bytes."""
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, tuple):
        return {"tuple": [_encode(v) for v in value]}
    return (
        {"dtype": str(value)[len("torch.") :]}
        if isinstance(value, torch.dtype)
        else value
    )


def _decode(node: Any) -> Any:
    """The value of `_encode`; a KeyError, TypeError or ValueError for anything else."""
    if not isinstance(node, dict):
        return node
    ((mark, inner),) = node.items()
    if mark == "tuple":
        return tuple(map(_decode, [*inner]))
    known = {
        "float": _INFINITE.__getitem__,
        "bytes": bytes.fromhex,
        "dtype": _DTYPES.__getitem__,
    }
    return known[mark](inner)


def _is_label(value: Any) -> bool:
    plain = type(value) in (str, int, float, bool, bytes, types.NoneType)
    return plain or (isinstance(value, tuple) and all(map(_is_label, value)))


@dataclass(frozen=True)
class _Scalar:
    """Numbers, texts and the like, of some types or some values."""

    types: Mapping[type, Between | None]
    literals: tuple[Any, ...] = ()

    def holds(self, value: Any) -> bool:
        if any(
            type(value) is type(literal) and value == literal
            for literal in self.literals
        ):
            return True
        bounds = self.types.get(type(value))
        known = type(value) in self.types or (Label in self.types and _is_label(value))
        return known and (bounds is None or bounds.low <= value <= bounds.high)

    def plain(self, value: Any) -> Any:
        """A number of numpy as Python's, and an int where only a float can be as a float."""
        if isinstance(value, tuple):
            return tuple(map(self.plain, value)) if Label in self.types else value
        value = value.item() if isinstance(value, np.generic) else value
        as_float = type(value) is int and float in self.types and int not in self.types
        return float(value) if as_float and value not in self.literals else value

    def _checked(self, value: Any, at: _At) -> Any:
        if self.holds(value):
            return value
        names = [t.__name__ for t in self.types] + [repr(v) for v in self.literals]
        limits = [
            f" from {b.low} to {b.high}" for b in self.types.values() if b is not None
        ][:1]
        raise at.error(
            f"is %s; it must be {' or '.join(names)}{''.join(limits)}", value
        )

    def write(self, value: Any, at: _At) -> Any:
        return _encode(self._checked(self.plain(value), at))

    def read(self, node: Any, at: _At) -> Any:
        try:
            value = _decode(node)
        except (KeyError, TypeError, ValueError) as error:
            raise at.error("holds a value of unknown kind: %s", node) from error
        return self._checked(value, at)


# Arrays


@dataclass(frozen=True)
class _Array:
    """Arrays or tensors: the number of each among those of its field."""

    about: Array
    numpy: bool
    tag = "array"

    def holds(self, value: Any) -> bool:
        return isinstance(value, np.ndarray if self.numpy else Tensor)

    def write(self, value: Any, at: _At) -> Any:
        if not self.holds(value):
            raise at.error("is %s; it must be an array", value)
        array = value if self.numpy else value.detach().cpu().numpy()
        self._check(array, at)
        return at.arrays.add(at, array, self.about.packed)

    def read(self, node: Any, at: _At) -> Any:
        array = at.arrays.take(at, node, self.about.packed)
        self._check(array, at)
        return array if self.numpy else torch.from_numpy(array).to(at.arrays.device)

    def _check(self, array: np.ndarray, at: _At) -> None:
        """Raise a ValueError for another type or shape, or values out of bounds."""
        about = self.about
        dims = self.about.dims.split()
        shape = array.shape
        allowed = about.dtype if isinstance(about.dtype, tuple) else (about.dtype,)
        if _DTYPES.get(array.dtype.name) not in allowed:
            raise at.error(f"has dtype {array.dtype}; it must be one of %s", allowed)
        if len(shape) != len(dims):
            raise at.error(f"has shape {shape}; its dimensions must be {dims}")
        for dim, size in zip(dims, shape, strict=True):
            known = int(dim) if dim.isdigit() else at.sizes.setdefault(dim, size)
            if size != known:
                raise at.error(f"has shape {shape}, but {dim} is {known}")
        if about.finite and array.dtype.kind == "f" and not np.isfinite(array).all():
            raise at.error("holds NaN or infinity")
        if about.ge is not None and array.size and array.min() < about.ge:
            raise at.error(f"holds values below {about.ge}")


class _Labels:
    """Arrays of labels: their dtype, and the labels as Python's objects, dates as integers."""

    tag = "labels"

    def holds(self, value: Any) -> bool:
        return isinstance(value, np.ndarray)

    def write(self, value: Any, at: _At) -> Any:
        if not self.holds(value):
            raise at.error("is %s; it must be an array of labels", value)
        node = {"dtype": value.dtype.str, "labels": [*map(_encode, _as_labels(value))]}
        self.read(node, at)
        return node

    def read(self, node: Any, at: _At) -> Any:
        name, listed = at.items(node, ("dtype", "labels"))
        # numpy would accept more than names of types: lists of them, and worse.
        if (
            re.fullmatch(
                r"[<>|=]?[biufUSmMO]\d{0,9}(\[\d{0,9}[a-zA-Z]{1,2}\])?", str(name)
            )
            is None
        ):
            raise at.error("has dtype %s, which is not a type of labels", name)
        dtype = np.dtype(name)
        labels = _LABELS.read(listed, at)
        if dtype.itemsize * len(labels) > _MOST_LABELS:
            raise at.error(f"has {len(labels)} labels of dtype {dtype}")
        array = np.empty(len(labels), dtype=np.int64 if dtype.kind in "mM" else dtype)
        array[:] = list(labels)
        array = array.view(dtype) if dtype.kind in "mM" else array
        if [(type(v), v) for v in _as_labels(array)] != [(type(v), v) for v in labels]:
            raise at.error(f"has labels that are not of dtype {dtype}")
        return array


def _as_labels(array: np.ndarray) -> list[Any]:
    plain = (array.view(np.int64) if array.dtype.kind in "mM" else array).tolist()
    return [_LABEL.plain(label) for label in plain]


# Dataclasses, tuples, dicts and unions


@dataclass(frozen=True)
class _Class:
    """Objects of one dataclass; its method `check`, if it has one, raises a ValueError if one is wrong."""

    tag: str
    cls: Any
    kinds: Mapping[str, Any]  # of the fields

    def holds(self, value: Any) -> bool:
        return type(value) is self.cls

    def write(self, value: Any, at: _At) -> Any:
        if not self.holds(value):
            raise at.error(f"is %s; it must be a {self.tag}", value)
        getattr(value, "check", lambda: None)()
        sizes: dict[str, int] = {}
        return {
            name: kind.write(getattr(value, name), at.inside(name, sizes))
            for name, kind in self.kinds.items()
        }

    def read(self, node: Any, at: _At) -> Any:
        nodes = zip(self.kinds.items(), at.items(node, self.kinds), strict=True)
        sizes: dict[str, int] = {}
        values = {
            name: kind.read(inner, at.inside(name, sizes))
            for (name, kind), inner in nodes
        }
        try:
            value = self.cls(**values)
            getattr(value, "check", lambda: None)()
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{at.path}: {error}" if at.path else str(error)
            ) from error
        return value


@dataclass(frozen=True)
class _Items:
    """Tuples, lists, which are read as tuples, and dicts: items of the same kind, or of a kind each."""

    tag: Literal["list", "dict"]
    kinds: tuple[Any, ...]
    same: bool = True

    def holds(self, value: Any) -> bool:
        return isinstance(value, dict if self.tag == "dict" else tuple | list)

    def write(self, value: Any, at: _At) -> Any:
        if not self.holds(value):
            raise at.error(f"is %s; it must be a {self.tag}", value)
        items = [*value.items()] if self.tag == "dict" else value
        return [kind.write(item, at) for kind, item in self._with_kinds(items, at)]

    def read(self, node: Any, at: _At) -> Any:
        if not isinstance(node, list):
            raise at.error("is %s; it must be a list", node)
        items = (kind.read(item, at) for kind, item in self._with_kinds(node, at))
        return dict(items) if self.tag == "dict" else tuple(items)

    def _with_kinds(self, items: Sequence[Any], at: _At) -> Iterable[tuple[Any, Any]]:
        kinds = self.kinds * len(items) if self.same else self.kinds
        if len(kinds) != len(items):
            raise at.error(f"has {len(items)} values instead of {len(kinds)}")
        return zip(kinds, items, strict=True)


_LABEL = _Scalar({Label: None})
_LABELS = _Items("list", (_LABEL,))


@dataclass(frozen=True)
class _Union:
    """Values of several kinds: numbers and texts as they are, others with the name of their kind."""

    scalar: _Scalar
    options: Mapping[str, Any]

    def write(self, value: Any, at: _At) -> Any:
        for tag, kind in self.options.items():
            if kind.holds(value):
                return {tag: kind.write(value, at.inside(tag))}
        if not self.scalar.holds(self.scalar.plain(value)):
            known = ", ".join(self.options)
            raise at.error(f"is %s, which a file cannot hold; it holds {known}", value)
        return self.scalar.write(value, at)

    def read(self, node: Any, at: _At) -> Any:
        tag = str(next(iter(node), "")) if isinstance(node, dict) else ""
        if tag not in self.options:
            return self.scalar.read(node, at)
        (inner,) = at.items(node, (tag,))
        return self.options[tag].read(inner, at.inside(tag))


# From annotations to kinds


@cache
def _kind(annotation: Any) -> Any:
    """What reads and writes values of an annotation."""
    origin = get_origin(annotation)
    args = get_args(annotation)
    if isinstance(annotation, type) and is_dataclass(annotation):
        hints = get_type_hints(annotation, include_extras=True)
        own = fields(annotation)
        kinds = {
            f.name: _kind(hints[f.name]) for f in own if f.metadata.get("saved", True)
        }
        return _Class(annotation.__name__, annotation, kinds)
    if origin is Annotated:
        return _annotated(*args)
    if origin in (Union, types.UnionType):
        return _union([*map(_kind, args)])
    if origin is Literal:
        return _Scalar({}, args)
    if annotation in (int, float, bool, str, bytes, types.NoneType, torch.dtype, Label):
        return _Scalar({annotation: None})
    if origin is Sequence or (origin is tuple and args[-1:] == (...,)):
        return _Items("list", (_kind(args[0]),))
    if origin is tuple:
        return _Items("list", tuple(map(_kind, args)), same=False)
    if origin in (dict, Mapping):
        return _Items("dict", (_Items("list", tuple(map(_kind, args)), same=False),))
    raise TypeError(f"{annotation!r} cannot be written to a file")


def _annotated(kind: Any, about: Any) -> Any:
    if isinstance(about, Array):
        return _Array(about, kind is np.ndarray)
    if isinstance(about, Between):
        return _Scalar({kind: about})
    return _Labels() if about is Label else _kind(about)  # the classes for a protocol


def _union(kinds: Sequence[Any]) -> Any:
    """All numbers and texts are one option: JSON tells them apart."""
    scalars = [kind.scalar if isinstance(kind, _Union) else kind for kind in kinds]
    scalars = [kind for kind in scalars if isinstance(kind, _Scalar)]
    types = {t: bounds for kind in scalars for t, bounds in kind.types.items()}
    scalar = _Scalar(types, tuple(v for kind in scalars for v in kind.literals))
    options: dict[str, Any] = {}
    for kind in kinds:
        if not isinstance(kind, _Scalar):
            options |= kind.options if isinstance(kind, _Union) else {kind.tag: kind}
    return _Union(scalar, options) if options else scalar
