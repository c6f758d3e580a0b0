"""Dataclasses as JSON and tensors, and back, by their type annotations.

A value is a *column* of one. A column of dataclasses is a column of each field, of tuples their sizes
and all items, of arrays one tensor named by its path: few tensors and a short text for thousands of
steps. Reading trusts nothing: types, ranges, shapes and classes follow from the annotations alone, and
sizes are counted before anything is made of them.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from itertools import accumulate, groupby, pairwise
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from sliceflow.models import packing
from sliceflow.models.limits import Allowance

_SCALAR, _OBJECT, _VIEW = 64, 256, 512  # bytes of a number or text, a dataclass, a tensor's own object
_MOST_SIZE = 1 << 32  # of a dimension
_INFINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_PLAIN = (int, float, bool, str, bytes, None, types.NoneType, torch.dtype)
CODES = {  # what safetensors calls the dtypes of arrays
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.uint16: "U16",
    torch.int32: "I32", torch.uint32: "U32", torch.int64: "I64", torch.uint64: "U64",
    torch.float16: "F16", torch.float32: "F32", torch.float64: "F64",
}  # fmt: skip
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in CODES}


@dataclass(frozen=True)
class Array:
    """What an array or tensor must be: ``Annotated[Tensor, Array("h k", torch.float32)]``."""

    dims: str  # names or sizes of the dimensions; a name has one size within one object
    dtype: torch.dtype | tuple[torch.dtype, ...]  # that it has, or several that it may have
    ge: float | None = None  # bounds of the values
    lt: float | str | None = None  # may be the name of a dimension or of an int field
    finite: bool = True  # whether NaN and infinities are errors
    packed: Literal["", "planes", "delta", "pictures"] = ""  # see `packing.pack`; "" is as it is


@dataclass(frozen=True)
class Between:
    """Bounds of a number, both included: ``Annotated[int, Between(1)]``. By default, it is finite."""

    low: float = -sys.float_info.max
    high: float = sys.float_info.max


class Label:
    """Annotates a label of a class: a str, int, float, bool, None, bytes, or a tuple of labels."""


@dataclass(frozen=True, eq=False)
class Record:
    """A dict with these keys, each of its own kind: ``Annotated[dict[str, Any], Record({…})]``."""

    kinds: Mapping[str, Any]


def pack(kind: Any, value: Any, tensors: dict[str, Tensor]) -> Any:
    """`value` as JSON, its arrays in `tensors`; a ValueError for what could not be read again."""
    return _need(kind).pack([value], _At(tensors))


def unpack(
    kind: Any, node: Any, tensors: Mapping[str, Tensor], allowance: Allowance, device: Any = "cpu"
) -> Any:
    """The value that `pack` wrote, its tensors on `device`. A ValueError says what does not fit."""
    at = _At(dict(tensors), allowance, torch.device(device))
    (value,) = _need(kind).unpack(node, 1, at)
    at.need(not at.tensors, "has tensors that nothing uses: %s", sorted(at.tensors))
    return value


def store_as(kind: Any, stored: Any, to: _Convert | None = None, back: _Convert | None = None) -> None:
    """Write values of `kind` as `to` gives and `back` takes them; without these, under another name."""
    _STORED[kind] = stored, to, back
    _kind.cache_clear()


_Convert = Callable[[Any], Any]
_STORED: dict[Any, tuple[Any, _Convert | None, _Convert | None]] = {}
_Scope = Mapping[str, Sequence[Any]]  # sizes of dimensions and int fields of the objects of a column


@dataclass(frozen=True)
class _At:
    """Where in the value a column is; the tensors written so far, or not yet read; and the scope."""

    tensors: dict[str, Tensor]
    allowance: Allowance = field(default_factory=lambda: Allowance(0, 0))
    device: torch.device | None = None
    path: str = ""
    scope: _Scope = field(default_factory=dict)

    def inside(self, name: str, scope: _Scope | None = None) -> _At:
        path = f"{self.path}.{name}" if self.path else name
        return replace(self, path=path, scope=scope or {})

    def of(self, name: str, chosen: Sequence[int]) -> _At:
        """Inside, for some of the objects."""
        return self.inside(name, {dim: [sizes[i] for i in chosen] for dim, sizes in self.scope.items()})

    def need(self, ok: bool, what: str, value: Any = None) -> None:
        """Raise a ValueError unless `ok`; in `what` the `value` takes the place of "%s"."""
        if not ok:
            raise ValueError(f"{self.path or 'it'} {what}".replace("%s", _short(value)))

    def items(self, node: Any, names: Sequence[str]) -> list[Any]:
        """The values of a JSON object that must have these names."""
        self.need(isinstance(node, dict), "is %s; it must be a JSON object", node)
        for name in [*names, *node]:
            self.inside(name).need(name in node, "is missing")
            self.inside(name).need(name in names, "is not known")
        return [node[name] for name in names]

    def column(self, node: Any, n: int) -> list[Any]:
        """The n encoded values of `_column`."""
        self.allowance.take(_SCALAR * n)
        if isinstance(node, dict) and node.keys() == {"runs"}:
            runs: Any = node["runs"]
            pairs = isinstance(runs, list) and all(isinstance(r, list) and len(r) == 2 for r in runs)
            self.need(pairs and sum(self.sizes([r[1] for r in runs])) == n, f"has not {n} values")
            return [value for value, times in runs for _ in range(times)]
        values = node if isinstance(node, list) else [node] * n
        self.need(len(values) == n, f"has {len(values)} values instead of {n}")
        return values

    def sizes(self, values: Any) -> list[int]:
        self.need(isinstance(values, list), "is %s; it must be a list of sizes", values)
        for value in values:
            self.need(type(value) is int and 0 <= value <= _MOST_SIZE, "has a size of %s", value)
        return list(values)


def _short(value: Any) -> str:
    try:
        return f"{value!r:.60}"
    except (ValueError, RecursionError):  # integers of thousands of digits, deep nesting
        return f"a {type(value).__name__} too long to show"


def _column(values: Sequence[Any]) -> Any:
    """Encoded values as a list or as {"runs": [[value, times], …]}; as one value if all are equal."""
    groups = (list(group) for _, group in groupby(values, repr))
    runs = [[group[0], len(group)] for group in groups]
    if len(runs) == 1:
        return runs[0][0]
    return {"runs": runs} if 3 * len(runs) < len(values) else list(values)


def _places(names: Sequence[str]) -> dict[str, list[int]]:
    """Where each name is."""
    out: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        out.setdefault(name, []).append(i)
    return out


# Numbers and texts


def _encode(value: Any) -> Any:
    """A number, text, label or dtype as JSON, which has no infinities and no bytes."""
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, tuple):
        return {"tuple": [_encode(v) for v in value]}
    return {"dtype": _name(value)} if isinstance(value, torch.dtype) else value


def _decode(node: Any) -> Any:
    """The value of `_encode`; a KeyError, TypeError or ValueError for anything else."""
    if not isinstance(node, dict):
        return node
    ((mark, inner),) = node.items()
    if mark == "tuple":
        return tuple(map(_decode, [*inner]))
    known = {"float": _INFINITE.__getitem__, "bytes": bytes.fromhex, "dtype": _DTYPES.__getitem__}
    return known[mark](inner)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _is_label(value: Any) -> bool:
    plain = type(value) in (str, int, float, bool, bytes, types.NoneType)
    return plain or (isinstance(value, tuple) and all(map(_is_label, value)))


@dataclass(frozen=True)
class _Scalar:
    """Numbers, texts and the like, of some types or some values."""

    types: Mapping[type, Between | None]
    literals: tuple[Any, ...] = ()
    tag = "value"

    def holds(self, value: Any) -> bool:
        return self._fits(self._own(value))

    def _own(self, value: Any) -> Any:
        """A number of numpy as Python's, and an int where only a float can be as a float."""
        if isinstance(value, tuple):
            return tuple(map(self._own, value)) if Label in self.types else value
        value = value.item() if isinstance(value, np.generic) else value
        as_float = type(value) is int and float in self.types and int not in self.types
        return float(value) if as_float and value not in self.literals else value

    def _fits(self, value: Any) -> bool:
        if any(type(value) is type(literal) and value == literal for literal in self.literals):
            return True
        bounds = self.types.get(type(value))
        known = type(value) in self.types or (Label in self.types and _is_label(value))
        return known and (bounds is None or bounds.low <= value <= bounds.high)

    def _checked(self, values: list[Any], at: _At) -> list[Any]:
        names = [t.__name__ for t in self.types] + [repr(v) for v in self.literals]
        limits = [f" from {b.low} to {b.high}" for b in self.types.values() if b is not None][:1]
        wanted = " or ".join(names) + "".join(limits)
        for value in values:
            at.need(self._fits(value), f"is %s; it must be {wanted}", value)
        return values

    def pack(self, values: Sequence[Any], at: _At) -> Any:
        return _column([_encode(v) for v in self._checked([self._own(v) for v in values], at)])

    def unpack(self, node: Any, n: int, at: _At) -> list[Any]:
        try:
            values = list(map(_decode, at.column(node, n)))
        except (KeyError, TypeError) as error:
            raise ValueError(f"{at.path} holds a value of unknown kind: {_short(node)}") from error
        return self._checked(values, at)


# Arrays


@dataclass(frozen=True)
class _Arrays:
    """Arrays or tensors, whose shapes are in the scope: one tensor of all values of each dtype."""

    array: Array
    numpy: bool
    tag = "array"

    @property
    def dims(self) -> list[str]:
        return self.array.dims.split()

    def holds(self, value: Any) -> bool:
        return isinstance(value, np.ndarray if self.numpy else Tensor)

    def pack(self, values: Sequence[Any], at: _At) -> Any:
        if self.numpy:
            values = [torch.from_numpy(np.require(v, None, ["C", "W"])) for v in values]
        own = [v.detach() for v in values]
        names = [_name(t.dtype) for t in own]
        node = {"dtype": _column(names)}
        for name, chosen in _places(names).items():
            flat, here = torch.cat([own[i].reshape(-1) for i in chosen]).cpu(), at.of(name, chosen)
            counts = [own[i].numel() for i in chosen]
            self._check(flat, counts, here)
            if self.array.packed:
                parts = zip(chosen, torch.split(flat, counts), strict=True)
                arrays = [part.reshape(own[i].shape).numpy() for i, part in parts]
                packed, node[name] = packing.pack(arrays, self.array.packed)
                flat = torch.from_numpy(packed)
            at.tensors[here.path] = flat
        return node if self.array.packed else node["dtype"]

    def unpack(self, node: Any, n: int, at: _At) -> list[Any]:
        at.allowance.take(_VIEW * n)
        dtypes = node.get("dtype") if self.array.packed and isinstance(node, dict) else node
        names, out = at.column(dtypes, n), list[Any]([None] * n)
        at.need(all(type(name) is str and name in _DTYPES for name in names), "has no known dtype")
        sizes = [at.scope[dim] if dim in at.scope else [int(dim)] * n for dim in self.dims]
        shapes = list(zip(*sizes, strict=True)) if sizes else [()] * n
        places = _places(names)
        blocks = at.items(node, ["dtype", *places])[1:] if self.array.packed else [()] * len(places)
        for (name, chosen), packed in zip(places.items(), blocks, strict=True):
            own, here = [shapes[i] for i in chosen], at.of(name, chosen)
            flat, counts = self._read(_DTYPES[name], own, packed, here), [math.prod(s) for s in own]
            self._check(flat, counts, here)
            parts = torch.split(flat if self.numpy else flat.to(at.device), counts)
            for i, part, shape in zip(chosen, parts, own, strict=True):
                out[i] = part.reshape(shape).numpy() if self.numpy else part.reshape(shape)
        return out

    def _read(self, dtype: torch.dtype, shapes: list[Any], blocks: Any, at: _At) -> Tensor:
        """All values of this dtype, from a tensor of the file."""
        at.need(at.path in at.tensors, "is a tensor that is missing")
        stored = at.tensors.pop(at.path)
        right = stored.dim() == 1 and stored.dtype == (torch.uint8 if self.array.packed else dtype)
        at.need(right, f"has {stored.dim()} dimensions of {stored.dtype}")
        if not self.array.packed:
            at.allowance.take(stored.nbytes)
            total = sum(map(math.prod, shapes))
            at.need(len(stored) == total, f"has {len(stored)} values instead of {total}")
            return stored
        kind = torch.empty(0, dtype=dtype).numpy().dtype
        at.allowance.take(packing.unpacked_bytes(shapes, kind))
        try:
            arrays = packing.unpack(stored.numpy(), at.sizes(blocks), self.array.packed, shapes, kind)
        except ValueError as error:
            raise ValueError(f"{at.path}: {error}") from error
        return torch.cat([torch.from_numpy(array).reshape(-1) for array in arrays])

    def _check(self, flat: Tensor, counts: list[int], at: _At) -> None:
        """Raise a ValueError for values of another dtype, or out of bounds."""
        array = self.array
        allowed = array.dtype if isinstance(array.dtype, tuple) else (array.dtype,)
        at.need(flat.dtype in allowed, f"has dtype {flat.dtype}; it must be one of %s", allowed)
        if array.finite and flat.is_floating_point():
            at.need(bool(torch.isfinite(flat).all()), "holds NaN or infinity")
        if array.ge is not None:
            at.need(not bool((flat < array.ge).any()), f"holds values below {array.ge}")
        if array.lt is not None:
            limits = at.scope[array.lt] if isinstance(array.lt, str) else [array.lt]
            parts = [flat] if len(set(limits)) == 1 else torch.split(flat, counts)
            for part, limit in zip(parts, limits, strict=False):
                at.need(not bool((part >= limit).any()), f"holds values of {limit} or more")


# Dataclasses, tuples and unions


@dataclass(frozen=True)
class _Struct:
    """Objects of one class, with a column for each field and one for each dimension of their arrays."""

    tag: str
    kinds: Mapping[str, Any]
    holds: Callable[[Any], bool]
    take: Callable[[Any, str], Any]
    make: Callable[[dict[str, Any]], Any]

    def arrays(self) -> dict[str, _Arrays]:
        found = {name: _array_in(kind) for name, kind in self.kinds.items()}
        return {name: kind for name, kind in found.items() if kind is not None}

    def dims(self) -> list[str]:
        every = (dim for kind in self.arrays().values() for dim in kind.dims if not dim.isdigit())
        return list(dict.fromkeys(every))

    def pack(self, values: Sequence[Any], at: _At) -> Any:
        for value in values:
            at.need(self.holds(value), f"is %s; it must be a {self.tag}", value)
            getattr(value, "check", lambda: None)()
        columns = {name: [self.take(value, name) for value in values] for name in self.kinds}
        scope: dict[str, Any] = {dim: [None] * len(values) for dim in self.dims()}
        for name, kind in self.arrays().items():
            for i, array in enumerate(columns[name]):
                if kind.holds(array):
                    _match(array, kind.dims, i, scope, at.inside(name))
        scope = {dim: [size or 0 for size in column] for dim, column in scope.items()}
        node: dict[str, Any] = {"dims": {dim: _column(c) for dim, c in scope.items()}} if scope else {}
        scope |= {name: columns[name] for name, kind in self.kinds.items() if _is_int(kind)}
        for name, kind in self.kinds.items():
            node[name] = kind.pack(columns[name], at.inside(name, scope))
        return node

    def unpack(self, node: Any, n: int, at: _At) -> list[Any]:
        at.allowance.take(_OBJECT * n)
        dims, scope, columns = self.dims(), dict[str, Any](), dict[str, list[Any]]()
        given = at.items(node, [*self.kinds, *(["dims"] if dims else [])])
        if dims:
            for dim, column in zip(dims, at.items(given.pop(), dims), strict=True):
                scope[dim] = at.inside(dim).sizes(at.inside(dim).column(column, n))
        nodes, arrays = dict(zip(self.kinds, given, strict=True)), self.arrays()
        for name in sorted(self.kinds, key=arrays.__contains__):  # ints may bound arrays
            columns[name] = self.kinds[name].unpack(nodes[name], n, at.inside(name, scope))
            if _is_int(self.kinds[name]):
                scope[name] = columns[name]
        return [self._new({name: columns[name][i] for name in self.kinds}, at) for i in range(n)]

    def _new(self, values: dict[str, Any], at: _At) -> Any:
        try:
            value = self.make(values)
            getattr(value, "check", lambda: None)()
            return value
        except (ValueError, TypeError) as error:
            raise ValueError(f"{at.path}: {error}" if at.path else str(error)) from error


def _is_int(kind: Any) -> bool:
    return isinstance(kind, _Scalar) and set(kind.types) == {int} and not kind.literals


def _array_in(kind: Any) -> _Arrays | None:
    """The arrays of a field that has them, always or not."""
    return next((option for option in _options(kind) if isinstance(option, _Arrays)), None)


def _options(kind: Any) -> list[Any]:
    return [*kind.options.values()] if isinstance(kind, _Union) else [kind]


def _match(array: Any, dims: list[str], i: int, sizes: dict[str, Any], at: _At) -> None:
    """Note the sizes of the dimensions of object i; a ValueError if they are others than before."""
    shape = tuple(getattr(array, "shape", ()))
    at.need(len(shape) == len(dims), f"has shape {shape}; its dimensions must be {dims}")
    for dim, size in zip(dims, shape, strict=True):
        known = int(dim) if dim.isdigit() else sizes[dim][i]
        at.need(known in (None, size), f"has shape {shape}, but {dim} is {known}")
        if not dim.isdigit():
            sizes[dim][i] = size


@dataclass(frozen=True)
class _Sequence:
    """Tuples or lists of items of one kind."""

    items: Any
    make: Callable[[Any], Any]
    tag = "sequence"

    def holds(self, value: Any) -> bool:
        return isinstance(value, tuple | list)

    def pack(self, values: Sequence[Any], at: _At) -> Any:
        for value in values:
            at.need(self.holds(value), "is %s; it must be a tuple or a list", value)
        items = [item for value in values for item in value]
        sizes = _column([len(value) for value in values])
        return {"sizes": sizes, "items": self.items.pack(items, at) if items else []}

    def unpack(self, node: Any, n: int, at: _At) -> list[Any]:
        column, inner = at.items(node, ("sizes", "items"))
        sizes = at.sizes(at.column(column, n))
        at.allowance.take(_SCALAR * sum(sizes))
        at.need(any(sizes) or inner == [], "is %s; it must be empty", inner)
        items = self.items.unpack(inner, sum(sizes), at) if any(sizes) else []
        return [self.make(items[a:b]) for a, b in pairwise([0, *accumulate(sizes)])]


@dataclass(frozen=True)
class _Mapped:
    """Values that are written as those of another kind."""

    tag: str
    inner: Any
    holds: Callable[[Any], bool]
    to: Callable[[Any], Any]
    back: Callable[[Any], Any]

    def pack(self, values: Sequence[Any], at: _At) -> Any:
        for value in values:
            at.need(self.holds(value), f"is %s; it must be a {self.tag}", value)
        return self.inner.pack([self.to(v) for v in values], at)

    def unpack(self, node: Any, n: int, at: _At) -> list[Any]:
        return [self.back(v) for v in self.inner.unpack(node, n, at)]


@dataclass(frozen=True)
class _Union:
    """Values of several kinds: the name of each one's kind, and a column for every kind."""

    options: Mapping[str, Any]

    def pack(self, values: Sequence[Any], at: _At) -> Any:
        tags, names = [], ", ".join(self.options)
        for value in values:
            tags.append(next((tag for tag, kind in self.options.items() if kind.holds(value)), ""))
            at.need(tags[-1] != "", f"is %s, which a file cannot hold; it holds {names}", value)
        node = {"is": _column(tags)}
        for tag, own in _places(tags).items():
            node[tag] = self.options[tag].pack([values[i] for i in own], at.of(tag, own))
        return node

    def unpack(self, node: Any, n: int, at: _At) -> list[Any]:
        tags = at.column(node.get("is") if isinstance(node, dict) else None, n)
        right = all(isinstance(tag, str) and tag in self.options for tag in tags)
        at.need(right, f"is not one of {', '.join(self.options)}")
        places, out = _places(tags), list[Any]([None] * n)
        for (tag, own), column in zip(places.items(), at.items(node, ["is", *places])[1:], strict=True):
            values = self.options[tag].unpack(column, len(own), at.of(tag, own))
            for i, value in zip(own, values, strict=True):
                out[i] = value
        return out


# From annotations to kinds


@cache
def _kind(annotation: Any) -> Any:
    """What reads and writes values of an annotation; None for a class that no file can hold."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in _STORED:
        stored, to, back = _STORED[annotation]
        if to is None or back is None:
            return _need(stored)
        return _Mapped(annotation.__name__, _need(stored), lambda v: type(v) is annotation, to, back)
    if origin is Annotated:
        annotation, what = args
        if isinstance(what, Array):
            return _Arrays(what, annotation is np.ndarray)
        if isinstance(what, Record):
            return _kind(what)
        kinds = _need(annotation).types.items()  # it is Between
        return _Scalar({t: what if t in (int, float) else b for t, b in kinds})
    if origin in (Union, types.UnionType):
        return _union([_kind(arg) for arg in args])
    if origin is Literal:
        return _Scalar({}, args)
    if annotation in _PLAIN or annotation is Label:
        return _Scalar({annotation or types.NoneType: None})
    if isinstance(annotation, Record):
        kinds, same = {k: _need(kind) for k, kind in annotation.kinds.items()}, annotation.kinds.keys()
        holds = lambda v: isinstance(v, dict) and v.keys() == same  # noqa: E731
        return _Struct("record", kinds, holds, dict.__getitem__, dict)
    if is_dataclass(annotation):
        hints, new = get_type_hints(annotation, include_extras=True), cast(Any, annotation)
        saved = [f.name for f in fields(annotation) if f.metadata.get("saved", True)]
        kinds = {name: _need(hints[name]) for name in saved}
        holds = lambda v: type(v) is annotation  # noqa: E731
        return _Struct(new.__name__, kinds, holds, getattr, lambda values: new(**values))
    return _generic(origin, args)


def _need(annotation: Any) -> Any:
    if (kind := _kind(annotation)) is None:
        raise TypeError(f"{annotation!r} cannot be written to a file; see store_as")
    return kind


def _union(kinds: Sequence[Any]) -> Any:
    """All numbers and texts are one option: JSON tells them apart."""
    flat = [option for kind in kinds for option in _options(kind) if option is not None]
    scalars = [kind for kind in flat if isinstance(kind, _Scalar)]
    options = [kind for kind in flat if not isinstance(kind, _Scalar)]
    if scalars:
        merged = {t: b for kind in scalars for t, b in kind.types.items()}
        options.insert(0, _Scalar(merged, tuple(v for kind in scalars for v in kind.literals)))
    known = {option.tag: option for option in options}
    if len(known) < len(options):
        raise TypeError(f"a union has two kinds with the same name, of {', '.join(known)}")
    return options[0] if len(options) == 1 else _Union(known)


def _generic(origin: Any, args: tuple[Any, ...]) -> Any:
    """The kind of a list, tuple or dict."""
    if origin in (list, Sequence) or (origin is tuple and args[-1:] == (...,)):
        items = _need(args[0])
        if _array_in(items) is not None:  # in an object each, which has their shapes
            take, make = (lambda v, _: v), (lambda values: values["array"])
            items = _Struct("item", {"array": items}, lambda v: True, take, make)
        return _Sequence(items, list if origin is list else tuple)
    if origin is tuple:
        kinds = {str(i): _need(arg) for i, arg in enumerate(args)}
        holds = lambda v: isinstance(v, tuple) and len(v) == len(args)  # noqa: E731
        take, make = (lambda v, i: v[int(i)]), (lambda values: tuple(values.values()))
        return _Struct("tuple", kinds, holds, take, make)
    if origin in (dict, Mapping) and args[0] is str:

        def back(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
            if len(dict(pairs)) != len(pairs):
                raise ValueError("a dict has a key twice")
            return dict(pairs)

        pairs = _kind(types.GenericAlias(tuple, (types.GenericAlias(tuple, (str, args[1])), ...)))
        return _Mapped("dict", pairs, lambda v: isinstance(v, dict), lambda v: tuple(v.items()), back)
    return None
