"""Dataclasses as a header and arrays, and back, by their type annotations.

The header is MessagePack, written and read by msgspec. It holds everything but arrays;
those are named by the path of their field, such as ``model.steps.3.maps.knots``. For
example,

    @dataclass(frozen=True)
    class Line:
        name: str
        color: Annotated[Shade, Gray | Rgb]  # an object of one of these dataclasses
        x: Annotated[NDArray[Any], ArraySpec("n", "float64")]
        y: Annotated[NDArray[Any], ArraySpec("n", "float64")] | None = None

        def check_saved(self) -> None:
            if self.name == "":
                raise ValueError("a line has no name")

has the header ``{"class": "Line", "name": …, "color": {"class": "Gray", …}, "x":
{"class": "array"}, "y": None}``, and one array, "x". `Shade` may be a Protocol.

Nothing that is read is trusted. Every dataclass becomes a type of msgspec with the same
fields, which checks classes, types and ranges as the annotations say. Arrays are
checked by their `ArraySpec`. An object that is `SelfChecking` then raises a ValueError
if its fields contradict each other.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import numpy as np
from numpy.typing import NDArray

from sliceflow.base import packing
from sliceflow.devices import resolve_device
from sliceflow.saved_types import ArraySpec, DTypeName, Label, SelfChecking
from sliceflow.validation import from_tensor

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")

# The most bytes of an array of labels. The dtype says how much memory each label takes,
# so a few bytes of a file could stand for gigabytes. Real labels take some kilobytes.
MAX_LABEL_BYTES = 1 << 28
# The most digits of whole numbers beyond 64 bits, such as seeds. Converting a number of
# a million digits would take long.
MAX_DIGITS = 1000
# How a header names a dtype of torch.
_TorchDtype = Enum(  # type: ignore[misc]
    "_TorchDtype", {name: name for name in get_args(DTypeName)}
)
_PLAIN_TYPES = (str, int, float, bool, bytes, types.NoneType)
# The kinds of dtypes of dates and durations, which numpy counts by integers.
_DATE_KINDS = "mM"
_LABEL_DTYPE = re.compile(r"[<>|=]?[biufUSmMO]\d{0,9}(\[\d{0,9}[a-zA-Z]{1,2}\])?")


def encode(value: object) -> tuple[bytes, dict[str, NDArray[Any]]]:
    """The header and the packed arrays of a dataclass's object.

    Raises a ValueError for what `decode` would not accept.
    """
    schema = _struct(type(value))
    arrays: dict[str, NDArray[Any]] = {}
    header = msgspec.msgpack.encode(_object_to_node(value, "", arrays))
    try:
        msgspec.msgpack.decode(header, type=schema)
    except msgspec.ValidationError as error:
        raise ValueError(f"a file cannot hold this: {error}") from error
    return header, arrays


def decode(
    cls: type[T],
    header: bytes,
    arrays: Mapping[str, NDArray[Any]],
    device: torch.device | str = "cpu",
) -> T:
    """The object of the dataclass `cls`, its tensors on `device` (`resolve_device`).

    Raises a ValueError that says what does not fit.
    """
    node = msgspec.msgpack.decode(header, type=_struct(cls))
    reader = _Reader(dict(arrays), device)
    value = reader.saved_object(node, "")
    assert isinstance(value, cls)
    if reader.unread:
        raise ValueError(f"it has arrays that nothing uses: {_short([*reader.unread])}")
    return value


# Nodes: what stands in a header for values that MessagePack does not know


class _Node(msgspec.Struct, forbid_unknown_fields=True, tag_field="class"):
    """A node of a header, with a tag. No field of a dataclass can be named "class"."""


class _ArrayNode(_Node, tag="array"):
    """An array of numbers; it is stored under the path of its field."""


class _LargeIntNode(_Node, tag="int"):
    """A whole number beyond 64 bits, in hexadecimal digits."""

    digits: Annotated[str, msgspec.Meta(max_length=MAX_DIGITS)]


class _BytesNode(_Node, tag="bytes"):
    """Bytes; msgspec knows no union of them with a text."""

    content: bytes


class _LabelTupleNode(_Node, tag="tuple"):
    """A label that is a tuple."""

    labels: tuple[_LabelNode, ...]


_LabelNode = (
    str | int | float | bool | None | _LargeIntNode | _BytesNode | _LabelTupleNode
)


class _LabelArrayNode(_Node, tag="labels"):
    """An array of labels: the name of its dtype, and the labels, dates as integers."""

    dtype: str
    labels: tuple[_LabelNode, ...]


class _ObjectNode(_Node):
    """An object of a dataclass; `_struct` makes a subclass for each."""

    saved_class: ClassVar[type]


# From annotations to types of msgspec

# What msgspec takes as the type of a node: a class, or what typing makes of several.
# Python has no type for these, nor for annotations, from which they are made.
_Schema: TypeAlias = Any


@cache
def _saved_fields(cls: type) -> dict[str, Any]:
    """The annotations of the fields that are in files, by name."""
    annotations = get_type_hints(cls, include_extras=True)
    return {
        field.name: annotations[field.name]
        for field in fields(cls)
        if field.metadata.get("saved", True)
    }


# The type of nodes of each dataclass that a file may hold. `encode` refuses objects of
# other classes, such as a user's own.
_STRUCTS: dict[type, type[_ObjectNode]] = {}


def _struct(cls: type) -> type[_ObjectNode]:
    """The type of nodes of a dataclass: the same fields, all required."""
    if cls not in _STRUCTS:
        schemas = [
            (name, _schema(annotation))
            for name, annotation in _saved_fields(cls).items()
        ]
        struct: Any = msgspec.defstruct(
            cls.__name__,
            schemas,
            bases=(_ObjectNode,),
            namespace={"saved_class": cls},
            tag=cls.__name__,
        )
        _STRUCTS[cls] = struct
    return _STRUCTS[cls]


_SCHEMAS: dict[Any, _Schema] = {
    str: str,
    int: int | _LargeIntNode,
    float: float,
    bool: bool,
    types.NoneType: None,
    bytes: _BytesNode,
    Label: _LabelNode,
}


def _schema(annotation: Any) -> _Schema:
    """The type by which msgspec checks the nodes of an annotation."""
    if annotation in _SCHEMAS:
        return _SCHEMAS[annotation]
    if _is_torch_dtype_class(annotation):
        return _TorchDtype
    if isinstance(annotation, type) and is_dataclass(annotation):
        return _struct(annotation)
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Literal:
        return annotation
    if origin is Annotated:
        return _annotated_schema(annotation, *arguments)
    if origin in (Union, types.UnionType):
        return _union_schema(arguments)
    if origin is Sequence or (origin is tuple and arguments[-1] is ...):
        return types.GenericAlias(tuple, (_schema(arguments[0]), ...))
    if origin is tuple:
        return types.GenericAlias(tuple, tuple(map(_schema, arguments)))
    if origin in (dict, Mapping):
        return types.GenericAlias(dict, tuple(map(_schema, arguments)))
    raise TypeError(f"{annotation!r} cannot be written to a file")


def _is_torch_dtype_class(type_: object) -> bool:
    """Whether `type_` is `torch.dtype`, found out without importing torch."""
    torch = sys.modules.get("torch")  # without it, nothing is of its classes
    return torch is not None and type_ is torch.dtype


def _annotated_schema(annotation: Any, value_type: Any, metadata: object) -> _Schema:
    """The type for ``Annotated[value_type, metadata]``."""
    if isinstance(metadata, ArraySpec):
        return _ArrayNode
    if metadata == Label:
        return _LabelArrayNode
    if isinstance(metadata, msgspec.Meta):
        return annotation
    return _schema(metadata)  # `metadata` has the dataclasses that the field may hold


def _union_schema(options: Sequence[Any]) -> _Schema:
    """The type of a union.

    msgspec allows one type of tuples in it. Several become tuples of any length with
    items of any of their types: ``tuple[int, float] | tuple[int, float, int]``, which
    `TableFlow` has, becomes ``tuple[int | float, ...]``.
    """
    tuples = [option for option in options if get_origin(option) is tuple]
    schemas = [_schema(option) for option in options if option not in tuples]
    if len(tuples) == 1:
        schemas.append(_schema(tuples[0]))
    if len(tuples) > 1:
        items: list[Any] = []
        for option in tuples:
            items.extend(item for item in get_args(option) if item is not ...)
        schemas.append(types.GenericAlias(tuple, (_union_schema(items), ...)))
    return Union[tuple(schemas)]  # noqa: UP007 - they are known only now


# Arrays of numbers


class _ArrayKind(NamedTuple):
    """What the annotation of a field says about the arrays that it may hold."""

    container: type  # np.ndarray or Tensor
    spec: ArraySpec


@cache
def _array_kinds(cls: type) -> dict[str, _ArrayKind]:
    """The fields of a dataclass that may hold arrays of numbers."""
    kinds = {}
    for name, annotation in _saved_fields(cls).items():
        for option in _options(annotation):
            spec = getattr(option, "__metadata__", [None])[0]
            if isinstance(spec, ArraySpec):
                container = get_args(option)[0]
                if not isinstance(container, type):  # numpy's NDArray[...]
                    container = np.ndarray
                kinds[name] = _ArrayKind(container, spec)
    return kinds


def _options(annotation: Any) -> Sequence[Any]:
    """The types of a union, or the one type that it is."""
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return [annotation]


def _has_label_arrays(options: Sequence[Any]) -> bool:
    """Whether arrays of labels are among the types that a field may hold."""
    return any(getattr(option, "__metadata__", None) == (Label,) for option in options)


def _check_arrays(cls: type, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise a ValueError unless the arrays of an object, by field, fit `ArraySpec`."""
    sizes: dict[str, int] = {}
    for name, array in arrays.items():
        spec = _array_kinds(cls)[name].spec
        if array.dtype.name not in spec.dtypes:
            raise ValueError(
                f"{name} has dtype {array.dtype}; it must be one of {spec.dtypes}"
            )
        _check_shape(name, array.shape, spec.dims.split(), sizes)
        if spec.finite and array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"{name} holds NaN or infinity")
        if spec.ge is not None and array.size and array.min() < spec.ge:
            raise ValueError(f"{name} holds values below {spec.ge}")


def _check_shape(
    name: str, shape: tuple[int, ...], dims: Sequence[str], sizes: dict[str, int]
) -> None:
    """Compare a shape with its dimensions; `sizes` are those of the object so far."""
    if len(shape) != len(dims):
        raise ValueError(f"{name} has shape {shape}; its dimensions must be {dims}")
    for dim, size in zip(dims, shape, strict=True):
        if dim.isdigit():
            expected = int(dim)
        else:
            expected = sizes.setdefault(dim, size)
        if size != expected:
            raise ValueError(f"{name} has shape {shape}, but {dim} is {expected}")


# Writing


def _object_to_node(
    value: object, path: str, arrays: dict[str, NDArray[Any]]
) -> _ObjectNode:
    """The node of a dataclass's object; its arrays are added to `arrays`, by path."""
    cls: type = type(value)
    own_arrays = {
        name: np.asarray(from_tensor(getattr(value, name)))
        for name, kind in _array_kinds(cls).items()
        if isinstance(getattr(value, name), kind.container)
    }
    _check_arrays(cls, own_arrays)
    _check_object(value)
    for name, array in own_arrays.items():
        spec = _array_kinds(cls)[name].spec
        arrays[_join(path, name)] = packing.pack(array, spec.n_difference_axes)

    nodes: dict[str, object] = {}
    for name, annotation in _saved_fields(cls).items():
        item = getattr(value, name)
        item_path = _join(path, name)
        options = _options(annotation)
        if name in own_arrays:
            nodes[name] = _ArrayNode()
        elif annotation == Label:
            nodes[name] = _label_to_node(item, item_path)
        elif tuple[Label, ...] in options and isinstance(item, tuple | list):
            nodes[name] = [_label_to_node(label, item_path) for label in item]
        elif _has_label_arrays(options) and isinstance(item, np.ndarray):
            nodes[name] = _label_array_to_node(item, item_path)
        else:
            nodes[name] = _to_node(item, item_path, arrays)
    return _STRUCTS[cls](**nodes)


def _to_node(value: object, path: str, arrays: dict[str, NDArray[Any]]) -> object:
    """The node of any value but an array or a label."""
    if type(value) in _STRUCTS:
        return _object_to_node(value, path, arrays)
    if _is_torch_dtype_class(type(value)):
        return str(value).removeprefix("torch.")
    if isinstance(value, tuple | list):
        return [
            _to_node(item, _join(path, str(i)), arrays) for i, item in enumerate(value)
        ]
    if isinstance(value, dict):
        return {
            key: _to_node(item, _join(path, key), arrays) for key, item in value.items()
        }
    return _scalar_to_node(value, path)


def _label_to_node(label: object, path: str) -> _LabelNode:
    """The node of one label. A label that is a tuple has a node of its own kind."""
    if isinstance(label, tuple):
        return _LabelTupleNode(tuple(_label_to_node(item, path) for item in label))
    return _scalar_to_node(label, path)


def _scalar_to_node(value: object, path: str) -> _LabelNode:
    """A number or text as Python's own type."""
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) not in _PLAIN_TYPES:
        raise ValueError(f"{path} is {_short(value)}, which a file cannot hold")
    if isinstance(value, bytes):
        return _BytesNode(value)
    if type(value) is int and not -(1 << 63) <= value < 1 << 64:
        return _LargeIntNode(f"{value:x}")
    assert value is None or isinstance(value, str | int | float)
    return value


def _label_array_to_node(array: NDArray[Any], path: str) -> _LabelArrayNode:
    """The node of an array of labels."""
    labels = tuple(_label_to_node(label, path) for label in _as_labels(array))
    node = _LabelArrayNode(array.dtype.str, labels)
    _label_array(node)  # raises a ValueError for labels that could not be read again
    return node


# Reading


@dataclass(eq=False)
class _Reader:
    """Makes objects from the nodes of a header."""

    unread: dict[str, NDArray[Any]]  # the packed arrays that no object has taken yet
    device: torch.device | str  # of tensors

    def saved_object(self, node: _ObjectNode, path: str) -> object:
        """The object of a dataclass, checked."""
        cls = node.saved_class
        arrays = {
            name: self._array(_join(path, name), kind.spec)
            for name, kind in _array_kinds(cls).items()
            if isinstance(getattr(node, name), _ArrayNode)
        }
        values = {}
        try:
            _check_arrays(cls, arrays)
            for name in _saved_fields(cls):
                if name not in arrays:
                    values[name] = self.value(getattr(node, name), _join(path, name))
                elif _array_kinds(cls)[name].container is np.ndarray:
                    values[name] = arrays[name]
                else:
                    values[name] = self._tensor(arrays[name])
            value = cls(**values)
            _check_object(value)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{cls.__name__}: {error}") from error
        return value

    def value(self, node: object, path: str) -> object:
        """The value of any node."""
        if isinstance(node, _ObjectNode):
            return self.saved_object(node, path)
        if isinstance(node, tuple):
            return tuple(
                self.value(item, _join(path, str(i))) for i, item in enumerate(node)
            )
        if isinstance(node, dict):
            return {
                key: self.value(item, _join(path, str(key)))
                for key, item in node.items()
            }
        if isinstance(node, _TorchDtype):
            return _torch_dtype(node.value)
        if isinstance(node, _LabelArrayNode):
            return _label_array(node)
        return _label(node)

    def _array(self, path: str, spec: ArraySpec) -> NDArray[Any]:
        if path not in self.unread:
            raise ValueError(f"the array {path} is missing")
        return packing.unpack(self.unread.pop(path), spec.n_difference_axes)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        import torch  # files of tables have no tensors, and torch takes long to import

        return torch.from_numpy(array).to(resolve_device(self.device))


def _torch_dtype(name: str) -> torch.dtype:
    """The dtype of torch of this name."""
    import torch  # as above

    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _label(node: object) -> object:
    """The label, number or text of a node."""
    if isinstance(node, _LargeIntNode):
        return int(node.digits, 16)
    if isinstance(node, _LabelTupleNode):
        return tuple(map(_label, node.labels))
    if isinstance(node, _BytesNode):
        return node.content
    return node


def _label_array(node: _LabelArrayNode) -> NDArray[Any]:
    """The array of labels of a node; a ValueError if labels are not of its dtype."""
    # numpy would accept more than names of types: lists of them, and worse.
    if not _LABEL_DTYPE.fullmatch(node.dtype):
        raise ValueError(f"{node.dtype!r:.60} is not a dtype of labels")
    dtype = np.dtype(node.dtype)
    labels = list(map(_label, node.labels))
    if dtype.itemsize * len(labels) > MAX_LABEL_BYTES:
        raise ValueError(f"{len(labels)} labels of dtype {dtype} are too many")
    array: NDArray[Any]
    if dtype.kind in _DATE_KINDS:
        array = np.array(labels, np.int64).view(dtype)
    else:
        array = np.empty(len(labels), dtype)
        array[:] = labels
    read_again = [(type(label), label) for label in _as_labels(array)]
    if read_again != [(type(label), label) for label in labels]:
        raise ValueError(f"it has labels that are not of dtype {dtype}")
    return array


def _as_labels(array: NDArray[Any]) -> list[object]:
    """The labels of an array as Python's objects, dates as integers."""
    if array.dtype.kind in _DATE_KINDS:
        array = array.view(np.int64)
    labels: list[object] = []
    for label in array.tolist():
        if isinstance(label, np.generic):  # in an array of objects
            label = label.item()
        labels.append(label)
    return labels


def _check_object(value: object) -> None:
    """Check an object, if it is `SelfChecking`."""
    if isinstance(value, SelfChecking):
        value.check_saved()


def _join(path: str, name: str) -> str:
    if not path:
        return name
    return f"{path}.{name}"


def _short(value: object) -> str:
    return f"{value!r:.60}"
