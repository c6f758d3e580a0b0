"""Dataclasses as a header and arrays, and back, by their type annotations.

The header is MessagePack, written and read by msgspec. It holds everything but arrays.
An array is named by the path of its field, such as ``model.steps.3.maps.knots``. For
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

A *node* is what stands in a header for a value. For every dataclass there is a
`_SavedClass`, and for every field a `_FieldType`, made of the field's annotation. Most
values are plain: MessagePack has them, or they are large integers or bytes. For every
other kind of values there is a `_Kind`, which says what the nodes of these values are,
and converts values to nodes and back. Arrays of numbers have no `_Kind`: the
`_SavedClass` converts them, because it compares the dimensions of an object's arrays.
"""

from __future__ import annotations

import re
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeGuard,
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
ValueT = TypeVar("ValueT")
NodeT = TypeVar("NodeT")

# The most bytes of an array of labels. The dtype says how much memory each label takes,
# so a few bytes of a file could stand for gigabytes. Real labels take some kilobytes.
MAX_LABEL_BYTES = 1 << 28
# The most digits of whole numbers beyond 64 bits, such as seeds. Converting a number of
# a million digits would take long.
MAX_DIGITS = 1000
# How a header names a dtype of torch.
_TorchDtypeNode = Enum(  # type: ignore[misc]
    "_TorchDtypeNode", {name: name for name in get_args(DTypeName)}
)
_PLAIN_TYPES = (str, int, float, bool, bytes, types.NoneType)
# The kinds of dtypes of dates and durations, which numpy counts by integers.
_DATE_KINDS = "mM"
_LABEL_DTYPE = re.compile(r"[<>|=]?[biufUSmMO]\d{0,9}(\[\d{0,9}[a-zA-Z]{1,2}\])?")


def encode(value: object) -> tuple[bytes, dict[str, NDArray[Any]]]:
    """The header and the packed arrays of a dataclass's object.

    Raises a ValueError for what `decode` would not accept.
    """
    saved_class = _saved_class(type(value))
    arrays: _Arrays = {}
    header = msgspec.msgpack.encode(saved_class.to_node(value, "", arrays))
    try:
        msgspec.msgpack.decode(header, type=saved_class.struct)
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
    saved_class = _saved_class(cls)
    node = msgspec.msgpack.decode(header, type=saved_class.struct)
    source = _ArraySource(dict(arrays), device)
    value = saved_class.to_object(node, "", source)
    assert isinstance(value, cls)
    if source.unread:
        raise ValueError(f"it has arrays that nothing uses: {_short([*source.unread])}")
    return value


# Nodes of values that MessagePack does not know


class _Node(msgspec.Struct, forbid_unknown_fields=True, tag_field="class"):
    """A node of a header, with a tag. No field of a dataclass can be named "class"."""


class _ArrayNode(_Node, tag="array"):
    """An array of numbers; it is stored under the path of its field."""


class _LargeIntNode(_Node, tag="int"):
    """A whole number beyond 64 bits, in hexadecimal digits."""

    digits: Annotated[str, msgspec.Meta(max_length=MAX_DIGITS)]


class _BytesNode(_Node, tag="bytes"):
    """Bytes; msgspec knows no union of bytes and text."""

    content: bytes


class _LabelTupleNode(_Node, tag="tuple"):
    """A label that is a tuple."""

    labels: tuple[_LabelNode, ...]


_PlainNode = str | int | float | bool | None | _LargeIntNode | _BytesNode
_LabelNode = _PlainNode | _LabelTupleNode


class _LabelArrayNode(_Node, tag="labels"):
    """An array of labels: the name of its dtype, and the labels, dates as integers."""

    dtype: str
    labels: tuple[_LabelNode, ...]


class _ObjectNode(_Node):
    """An object of a dataclass; each `_SavedClass` makes a subclass."""

    saved_class: ClassVar[_SavedClass]


# What msgspec takes as the type of a node: a class, or what typing makes of several.
# Python has no type for these, nor for annotations, from which they are made.
_Schema: TypeAlias = Any

# The packed arrays of a file, by the path of their field.
_Arrays: TypeAlias = dict[str, NDArray[Any]]


@dataclass(eq=False)
class _ArraySource:
    """The arrays of a file, from which objects take theirs."""

    unread: _Arrays  # the arrays that no object has taken yet
    device: torch.device | str  # the device of tensors

    def take(self, path: str, spec: ArraySpec) -> NDArray[Any]:
        """The array of the field at this path; a ValueError if it is missing."""
        if path not in self.unread:
            raise ValueError(f"the array {path} is missing")
        return packing.unpack(self.unread.pop(path), spec.n_difference_axes)

    def to_tensor(self, array: NDArray[Any]) -> Tensor:
        """A tensor of an array that was taken."""
        import torch  # files of tables have no tensors, and torch takes long to import

        return torch.from_numpy(array).to(resolve_device(self.device))


# Kinds of values


class _Kind(ABC, Generic[ValueT, NodeT]):
    """A kind of values that are not plain.

    Values and nodes are told apart by their form only. What they hold is checked by
    msgspec, as the `schema` says.

    Attributes
    ----------
    schema : the type of the nodes of these values
    value_types : the Python types of the values
    node_type : the Python type of the nodes
    """

    schema: _Schema
    value_types: tuple[type, ...]
    node_type: type

    def has_value(self, value: object) -> TypeGuard[ValueT]:
        """Whether a value is of this kind."""
        return isinstance(value, self.value_types)

    @abstractmethod
    def to_node(self, value: ValueT, path: str, arrays: _Arrays) -> NodeT:
        """The node of a value at a path; arrays inside of it are added to `arrays`."""

    def has_node(self, node: object) -> TypeGuard[NodeT]:
        """Whether a node stands for a value of this kind."""
        return isinstance(node, self.node_type)

    @abstractmethod
    def to_value(self, node: NodeT, path: str, source: _ArraySource) -> ValueT:
        """The value of a node at a path; arrays inside of it come from `source`."""


_AnyKind: TypeAlias = _Kind[Any, Any]


class _FieldType(NamedTuple):
    """What the annotation of a field, or of an item of a tuple, allows.

    Attributes
    ----------
    schema : the type of the field's nodes
    kinds : the kinds of values, other than plain ones, that the field may hold
    array_kind : the arrays of numbers that the field may hold; None if it holds none
    """

    schema: _Schema
    kinds: tuple[_AnyKind, ...] = ()
    array_kind: _ArrayKind | None = None

    @classmethod
    def of_kind(cls, kind: _AnyKind) -> _FieldType:
        """The type of a field with values of one kind."""
        return cls(kind.schema, (kind,))

    def to_node(self, value: object, path: str, arrays: _Arrays) -> object:
        """The node of a value that is not an array of numbers."""
        for kind in self.kinds:
            if kind.has_value(value):
                return kind.to_node(value, path, arrays)
        return _plain_to_node(value, path)

    def to_value(self, node: object, path: str, source: _ArraySource) -> object:
        """The value of a node that does not stand for an array of numbers."""
        for kind in self.kinds:
            if kind.has_node(node):
                return kind.to_value(node, path, source)
        return _to_plain(node)


class _TupleKind(_Kind[Sequence[object], tuple[object, ...]]):
    """Tuples. Lists are written, too, and read as tuples.

    Parameters
    ----------
    item_types : the type of each item, or one type for all items if `any_length`
    any_length : whether there may be any number of items
    """

    value_types = (tuple, list)
    node_type = tuple

    def __init__(self, item_types: Sequence[_FieldType], *, any_length: bool) -> None:
        self.item_types = item_types
        self.any_length = any_length
        schemas = [item_type.schema for item_type in item_types]
        if any_length:
            schemas.append(...)
        self.schema = types.GenericAlias(tuple, tuple(schemas))

    def has_value(self, value: object) -> TypeGuard[Sequence[object]]:
        if not isinstance(value, tuple | list):
            return False
        return self.any_length or len(value) == len(self.item_types)

    def to_node(
        self, value: Sequence[object], path: str, arrays: _Arrays
    ) -> tuple[object, ...]:
        return tuple(
            item_type.to_node(item, item_path, arrays)
            for item_type, item, item_path in self._typed_items(value, path)
        )

    def to_value(
        self, node: tuple[object, ...], path: str, source: _ArraySource
    ) -> tuple[object, ...]:
        return tuple(
            item_type.to_value(item, item_path, source)
            for item_type, item, item_path in self._typed_items(node, path)
        )

    def _typed_items(
        self, items: Sequence[object], path: str
    ) -> Iterator[tuple[_FieldType, object, str]]:
        """The items with their types and paths."""
        item_types = self.item_types
        if self.any_length:
            item_types = [item_types[0]] * len(items)
        for i, (item_type, item) in enumerate(zip(item_types, items, strict=True)):
            yield item_type, item, _join(path, str(i))


class _DictKind(_Kind[dict[object, object], dict[object, object]]):
    """Dictionaries with plain keys."""

    value_types = (dict,)
    node_type = dict

    def __init__(self, key_type: _FieldType, item_type: _FieldType) -> None:
        self.item_type = item_type
        self.schema = types.GenericAlias(dict, (key_type.schema, item_type.schema))

    def to_node(
        self, value: dict[object, object], path: str, arrays: _Arrays
    ) -> dict[object, object]:
        return {
            key: self.item_type.to_node(item, _join(path, str(key)), arrays)
            for key, item in value.items()
        }

    def to_value(
        self, node: dict[object, object], path: str, source: _ArraySource
    ) -> dict[object, object]:
        return {
            key: self.item_type.to_value(item, _join(path, str(key)), source)
            for key, item in node.items()
        }


class _ObjectKind(_Kind[object, _ObjectNode]):
    """Objects of a dataclass; msgspec checks that the field may hold it."""

    node_type = _ObjectNode

    def __init__(self, cls: type) -> None:
        self.schema = _saved_class(cls).struct

    def has_value(self, value: object) -> TypeGuard[object]:
        return type(value) in _SAVED_CLASSES

    def to_node(self, value: object, path: str, arrays: _Arrays) -> _ObjectNode:
        return _SAVED_CLASSES[type(value)].to_node(value, path, arrays)

    def to_value(self, node: _ObjectNode, path: str, source: _ArraySource) -> object:
        return node.saved_class.to_object(node, path, source)


class _TorchDtypeKind(_Kind["torch.dtype", _TorchDtypeNode]):
    """Dtypes of torch, by name."""

    schema = _TorchDtypeNode
    node_type = _TorchDtypeNode

    def has_value(self, value: object) -> TypeGuard[torch.dtype]:
        return _is_torch_dtype_class(type(value))

    def to_node(
        self, value: torch.dtype, path: str, arrays: _Arrays
    ) -> _TorchDtypeNode:
        return _TorchDtypeNode(str(value).removeprefix("torch."))

    def to_value(
        self, node: _TorchDtypeNode, path: str, source: _ArraySource
    ) -> torch.dtype:
        import torch  # files of tables have no such dtypes; see `_ArraySource`

        dtype: torch.dtype = getattr(torch, node.value)
        return dtype


class _LabelKind(_Kind[object, _LabelNode]):
    """Labels: plain values, and tuples of labels."""

    schema = _LabelNode
    value_types = (object,)
    node_type = object

    def to_node(self, value: object, path: str, arrays: _Arrays) -> _LabelNode:
        return _label_to_node(value, path)

    def to_value(self, node: _LabelNode, path: str, source: _ArraySource) -> object:
        return _to_label(node)


class _LabelArrayKind(_Kind[NDArray[Any], _LabelArrayNode]):
    """Arrays of labels."""

    schema = _LabelArrayNode
    value_types = (np.ndarray,)
    node_type = _LabelArrayNode

    def to_node(
        self, value: NDArray[Any], path: str, arrays: _Arrays
    ) -> _LabelArrayNode:
        labels = tuple(_label_to_node(label, path) for label in _as_labels(value))
        node = _LabelArrayNode(value.dtype.str, labels)
        _to_label_array(node)  # raises a ValueError for labels that cannot be read
        return node

    def to_value(
        self, node: _LabelArrayNode, path: str, source: _ArraySource
    ) -> NDArray[Any]:
        return _to_label_array(node)


def _is_torch_dtype_class(type_: object) -> bool:
    """Whether `type_` is `torch.dtype`, found out without importing torch."""
    torch = sys.modules.get("torch")  # without it, nothing is of its classes
    return torch is not None and type_ is torch.dtype


# Plain values and labels


def _plain_to_node(value: object, path: str) -> _PlainNode:
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


def _to_plain(node: object) -> object:
    """The number or text of a node."""
    if isinstance(node, _LargeIntNode):
        return int(node.digits, 16)
    if isinstance(node, _BytesNode):
        return node.content
    return node


def _label_to_node(label: object, path: str) -> _LabelNode:
    """The node of one label. A label that is a tuple has a node of its own kind."""
    if isinstance(label, tuple):
        return _LabelTupleNode(tuple(_label_to_node(item, path) for item in label))
    return _plain_to_node(label, path)


def _to_label(node: object) -> object:
    """The label of a node."""
    if isinstance(node, _LabelTupleNode):
        return tuple(map(_to_label, node.labels))
    return _to_plain(node)


def _to_label_array(node: _LabelArrayNode) -> NDArray[Any]:
    """The array of labels of a node; a ValueError if labels are not of its dtype."""
    # numpy would accept more than the name of a type: lists of types, and worse.
    if not _LABEL_DTYPE.fullmatch(node.dtype):
        raise ValueError(f"{node.dtype!r:.60} is not a dtype of labels")
    dtype = np.dtype(node.dtype)
    labels = list(map(_to_label, node.labels))
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


# From annotations to types of fields


_SIMPLE_TYPES: dict[object, _FieldType] = {
    str: _FieldType(str),
    int: _FieldType(int | _LargeIntNode),
    float: _FieldType(float),
    bool: _FieldType(bool),
    types.NoneType: _FieldType(None),
    bytes: _FieldType(_BytesNode),
    Label: _FieldType.of_kind(_LabelKind()),
}


def _field_type(annotation: Any) -> _FieldType:
    """The type of a field with this annotation."""
    if annotation in _SIMPLE_TYPES:
        return _SIMPLE_TYPES[annotation]
    if _is_torch_dtype_class(annotation):
        return _FieldType.of_kind(_TorchDtypeKind())
    if isinstance(annotation, type) and is_dataclass(annotation):
        return _FieldType.of_kind(_ObjectKind(annotation))
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Literal:
        return _FieldType(annotation)
    if origin is Annotated:
        return _annotated_type(annotation, *arguments)
    if origin in (Union, types.UnionType):
        return _union_type(arguments)
    if origin is Sequence or (origin is tuple and arguments[-1] is ...):
        item_type = _field_type(arguments[0])
        return _FieldType.of_kind(_TupleKind([item_type], any_length=True))
    if origin is tuple:
        item_types = [_field_type(argument) for argument in arguments]
        return _FieldType.of_kind(_TupleKind(item_types, any_length=False))
    if origin in (dict, Mapping):
        return _FieldType.of_kind(_DictKind(*map(_field_type, arguments)))
    raise TypeError(f"{annotation!r} cannot be written to a file")


def _annotated_type(annotation: Any, value_type: Any, metadata: object) -> _FieldType:
    """The type of a field of ``Annotated[value_type, metadata]``."""
    if isinstance(metadata, ArraySpec):
        container = value_type
        if not isinstance(container, type):  # numpy's NDArray[...]
            container = np.ndarray
        return _FieldType(_ArrayNode, array_kind=_ArrayKind(container, metadata))
    if metadata == Label:
        return _FieldType.of_kind(_LabelArrayKind())
    if isinstance(metadata, msgspec.Meta):
        return _FieldType(annotation)
    return _field_type(metadata)  # the dataclasses that the field may hold


def _union_type(options: Sequence[Any]) -> _FieldType:
    """The type of a field that may hold values of several types.

    msgspec allows only one type of tuples in a field. So several types of tuples become
    one, of any length, with items of all their types. `TableFlow` has
    ``tuple[int, float] | tuple[int, float, int]``, for example, which becomes
    ``tuple[int | float, ...]``.
    """
    tuples = [option for option in options if get_origin(option) is tuple]
    option_types = [_field_type(option) for option in options if option not in tuples]
    if len(tuples) == 1:
        option_types.append(_field_type(tuples[0]))
    if len(tuples) > 1:
        items: list[Any] = []
        for option in tuples:
            items.extend(item for item in get_args(option) if item is not ...)
        several_tuples = _TupleKind([_union_type(items)], any_length=True)
        option_types.append(_FieldType.of_kind(several_tuples))

    schemas = []
    kinds: list[_AnyKind] = []
    array_kind = None
    for option_type in option_types:
        schemas.append(option_type.schema)
        kinds.extend(option_type.kinds)
        array_kind = option_type.array_kind or array_kind
    schema: _Schema = Union[tuple(schemas)]  # noqa: UP007 - they are known only now
    return _FieldType(schema, tuple(kinds), array_kind)


# Dataclasses and their arrays of numbers


class _ArrayKind(NamedTuple):
    """The arrays of numbers that a field may hold."""

    container: type  # np.ndarray or Tensor
    spec: ArraySpec


class _SavedClass:
    """A dataclass that a file may hold.

    Attributes
    ----------
    cls : the dataclass
    field_types : the types of the dataclass's fields that files hold, by name
    array_kinds : the arrays of numbers that these fields may hold, by name
    struct : the type of the nodes of objects: it has these fields, all required
    """

    def __init__(self, cls: type) -> None:
        self.cls = cls
        annotations = get_type_hints(cls, include_extras=True)
        self.field_types = {
            field.name: _field_type(annotations[field.name])
            for field in fields(cls)
            if field.metadata.get("saved", True)
        }
        self.array_kinds = {
            name: field_type.array_kind
            for name, field_type in self.field_types.items()
            if field_type.array_kind is not None
        }
        struct: Any = msgspec.defstruct(
            cls.__name__,
            [(name, type_.schema) for name, type_ in self.field_types.items()],
            bases=(_ObjectNode,),
            namespace={"saved_class": self},
            tag=cls.__name__,
        )
        self.struct: type[_ObjectNode] = struct

    def to_node(self, value: object, path: str, arrays: _Arrays) -> _ObjectNode:
        """The node of an object; its arrays are added to `arrays`, by path."""
        own_arrays = {
            name: np.asarray(from_tensor(getattr(value, name)))
            for name, kind in self.array_kinds.items()
            if isinstance(getattr(value, name), kind.container)
        }
        self._check_arrays(own_arrays)
        _check_object(value)
        nodes: dict[str, object] = {}
        for name, field_type in self.field_types.items():
            field_path = _join(path, name)
            if name in own_arrays:
                n_difference_axes = self.array_kinds[name].spec.n_difference_axes
                arrays[field_path] = packing.pack(own_arrays[name], n_difference_axes)
                nodes[name] = _ArrayNode()
            else:
                item = getattr(value, name)
                nodes[name] = field_type.to_node(item, field_path, arrays)
        return self.struct(**nodes)

    def to_object(self, node: _ObjectNode, path: str, source: _ArraySource) -> object:
        """The object of a node, checked."""
        own_arrays = {
            name: source.take(_join(path, name), kind.spec)
            for name, kind in self.array_kinds.items()
            if isinstance(getattr(node, name), _ArrayNode)
        }
        values: dict[str, object] = {}
        try:
            self._check_arrays(own_arrays)
            for name, field_type in self.field_types.items():
                if name not in own_arrays:
                    values[name] = field_type.to_value(
                        getattr(node, name), _join(path, name), source
                    )
                elif self.array_kinds[name].container is np.ndarray:
                    values[name] = own_arrays[name]
                else:
                    values[name] = source.to_tensor(own_arrays[name])
            value: object = self.cls(**values)
            _check_object(value)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.cls.__name__}: {error}") from error
        return value

    def _check_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Raise a ValueError unless an object's arrays, by field, fit `ArraySpec`."""
        sizes: dict[str, int] = {}
        for name, array in arrays.items():
            spec = self.array_kinds[name].spec
            if array.dtype.name not in spec.dtypes:
                raise ValueError(
                    f"{name} has dtype {array.dtype}; it must be one of {spec.dtypes}"
                )
            _check_shape(name, array.shape, spec.dims.split(), sizes)
            if spec.finite and array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ValueError(f"{name} holds NaN or infinity")
            if spec.ge is not None and array.size and array.min() < spec.ge:
                raise ValueError(f"{name} holds values below {spec.ge}")


# The dataclasses that a file may hold. `encode` refuses objects of other classes, such
# as a user's own.
_SAVED_CLASSES: dict[type, _SavedClass] = {}


def _saved_class(cls: type) -> _SavedClass:
    """The `_SavedClass` of a dataclass, made once."""
    if cls not in _SAVED_CLASSES:
        _SAVED_CLASSES[cls] = _SavedClass(cls)
    return _SAVED_CLASSES[cls]


def _check_shape(
    name: str, shape: tuple[int, ...], dims: Sequence[str], sizes: dict[str, int]
) -> None:
    """Raise a ValueError unless a shape has the dimensions `dims`.

    `sizes` has the sizes of the dimensions of the object so far, by name. New ones are
    added to it.
    """
    if len(shape) != len(dims):
        raise ValueError(f"{name} has shape {shape}; its dimensions must be {dims}")
    for dim, size in zip(dims, shape, strict=True):
        if dim.isdigit():
            expected = int(dim)
        else:
            expected = sizes.setdefault(dim, size)
        if size != expected:
            raise ValueError(f"{name} has shape {shape}, but {dim} is {expected}")


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
