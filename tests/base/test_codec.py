"""The codec: what is written comes back, and what does not fit is refused."""

import math
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from sliceflow.base.codec import decode, encode
from sliceflow.saved_types import ArraySpec, Between, Label


def same(a, b):
    """Equal in type and value, to the last bit."""
    if type(a) is not type(b):
        return False
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, Tensor | np.ndarray):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        if a.dtype == object:
            return same(a.tolist(), b.tolist())
        return np.asarray(a).tobytes() == np.asarray(b).tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


def in_dataclass(annotation):
    """A dataclass with one field, `value`."""
    return make_dataclass("Holder", [("value", annotation)], frozen=True)


def comes_back(value):
    header, arrays = encode(value)
    return same(decode(type(value), header, arrays), value)


def decode_tree(kind, tree, arrays=None):
    """The object of a header that holds this tree of dicts and lists."""
    return decode(kind, msgspec.msgpack.encode(tree), arrays or {})


# Round trips

LABELS = st.recursive(
    st.text(max_size=3)
    | st.integers()
    | st.floats()
    | st.booleans()
    | st.none()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=2).map(tuple),
    max_leaves=3,
)
SCALARS = {
    int: st.integers(),
    float: st.floats(),
    bool: st.booleans(),
    str: st.text(max_size=5),
    bytes: st.binary(max_size=5),
    type(None): st.none(),
    torch.dtype: st.sampled_from([torch.float32, torch.int16]),
    Literal["a", "b"]: st.sampled_from(["a", "b"]),
    Annotated[int, Between(3, 5)]: st.integers(3, 5),
    Annotated[float, Between()]: st.floats(allow_nan=False, allow_infinity=False),
    Annotated[float, Between(0, math.inf)]: st.floats(0),
    float | Literal["auto"] | None: st.floats() | st.just("auto") | st.none(),
}
LABEL_FIELDS = {
    Label: LABELS,
    tuple[Label, ...]: st.lists(LABELS, max_size=3).map(tuple),
    tuple[Label, ...] | None: st.lists(LABELS, max_size=3).map(tuple) | st.none(),
}
DTYPES = ("bool", "float32", "float64", "int16", "int64", "uint8")


@st.composite
def array_kinds(draw):
    """A dataclass with an array, and a strategy of its objects."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    differences = 0
    if np.issubdtype(dtype, np.integer):
        differences = draw(st.sampled_from([0, 1]))
    rank = draw(st.integers(1, 3))
    shapes = st.tuples(*[st.integers(0, 3)] * rank)
    values = shapes.flatmap(lambda shape: arrays(dtype, shape))
    dims = " ".join("abc"[:rank])
    about = ArraySpec(dims, dtype.name, finite=False, n_difference_axes=differences)
    container = np.ndarray
    if draw(st.booleans()):
        container = Tensor
        values = values.map(torch.from_numpy)
    holder = in_dataclass(Annotated[container, about])
    return holder, st.builds(holder, values)


@st.composite
def label_kinds(draw):
    """A dataclass with labels, and a strategy of its objects."""
    annotation, values = draw(st.sampled_from(list(LABEL_FIELDS.items())))
    holder = in_dataclass(annotation)
    return holder, st.builds(holder, values)


def containers(inner):
    """Annotations of containers of others, each with a strategy of values."""

    @st.composite
    def containers_of_inner(draw):
        annotation, values = draw(inner)
        which = draw(st.integers(0, 4))
        if which == 0:
            return tuple[annotation, ...], st.lists(values, max_size=3).map(tuple)
        if which == 1:
            keys = st.text(max_size=3)
            return dict[str, annotation], st.dictionaries(keys, values, max_size=3)
        if which == 2:
            other, other_values = draw(inner)
            return tuple[annotation, other], st.tuples(values, other_values)
        if which == 3:
            return annotation | None, values | st.none()
        parts = [draw(inner) for _ in range(draw(st.integers(0, 2)))]
        parts.append((annotation, values))
        names = [(f"f{i}", part[0]) for i, part in enumerate(parts)]
        several = make_dataclass("Several", names, frozen=True)
        return several, st.builds(several, *[part[1] for part in parts])

    return containers_of_inner()


KINDS = st.recursive(
    st.sampled_from(list(SCALARS.items())) | array_kinds() | label_kinds(),
    containers,
    max_leaves=5,
)


@settings(max_examples=30)
@given(KINDS, st.data())
def test_what_is_written_comes_back(kind, data):
    annotation, values = kind
    holder = in_dataclass(tuple[annotation, ...])
    items = data.draw(st.lists(values, max_size=4).map(tuple))
    assert comes_back(holder(items))


@pytest.mark.parametrize(
    "labels",
    [
        np.array([3, 1, 2]),
        np.array([0.5, -0.0]),
        np.array([True, False]),
        np.array(["a", "bc"]),
        np.array([b"a", b"bc"]),
        np.array(["2020-01-01", "2021-01-01"], "datetime64[D]"),
        np.array([None, "a", 1, 1.5, b"x", 1 << 100], object),
    ],
)
def test_arrays_of_labels_come_back(labels):
    holder = in_dataclass(Annotated[np.ndarray, Label])
    assert comes_back(holder(labels))


def test_several_forms_of_tuples_are_one_field():
    """msgspec itself knows only one."""
    holder = in_dataclass(tuple[int, float] | tuple[int, float, int] | None)
    for value in (None, (5, 2.0), (5, 2.0, 0)):
        assert comes_back(holder(value))
    with pytest.raises(ValueError, match=r"Expected `int \| float \| object`"):
        encode(holder((5, "x")))


def test_numbers_of_numpy_are_read_as_those_of_python():
    holder = make_dataclass("Numbers", [("n", int), ("x", float), ("y", float)])
    header, _ = encode(holder(np.int64(3), np.float32(0.5), 2))
    assert same(decode(holder, header, {}), holder(3, 0.5, 2.0))


@dataclass(frozen=True)
class SortedTransport:
    batch_size: int | None


@dataclass(frozen=True)
class Counted:
    n_bins: Annotated[int, Between(1, 100)]


@dataclass(frozen=True)
class Maps:
    knots: Annotated[Tensor, ArraySpec("h k", ("float32", "float64"))]
    neighbors: Annotated[np.ndarray, ArraySpec("h", "int64", ge=0, n_difference_axes=1)]
    n: int
    theta: Annotated[Tensor, ArraySpec("h d", "float64")] | None = None
    note: str = field(default="", metadata={"saved": False})

    def check_saved(self):
        if self.knots.shape[1] < 2:
            raise ValueError(f"maps have {self.knots.shape[1]} knots")


@dataclass(frozen=True)
class Model:
    name: str
    steps: tuple[Maps, ...]
    transport: SortedTransport | Counted | None
    labels: tuple[Label, ...]
    parameters: dict[str, float | tuple[int, ...]]
    pictures: (
        Annotated[np.ndarray, ArraySpec("n c h w", "uint8", n_difference_axes=3)] | None
    )


def maps(k, rng):
    """Some maps; their shapes and dtypes depend on k."""
    dtype = torch.float64 if k > 3 else torch.float32
    knots = torch.from_numpy(rng.normal(size=(3, 2 + k % 2))).to(dtype)
    theta = torch.eye(3, 4, dtype=torch.float64) if k % 2 else None
    return Maps(knots, rng.integers(0, 5 + k, 3), 5 + k, theta)


def model(n_steps=6):
    rng = np.random.default_rng(0)
    return Model(
        name="m",
        steps=tuple(maps(k, rng) for k in range(n_steps)),
        transport=Counted(7),
        labels=("a", 1, 1.0, True, None, b"x", ("a", (1, -0.0))),
        parameters={"amplifier": math.inf, "kinds": (1, 2)},
        pictures=rng.integers(0, 9, (4, 3, 5, 2)).astype(np.uint8),
    )


def test_arrays_are_named_by_their_path():
    _, arrays = encode(model(2))
    assert sorted(arrays) == [
        "pictures",
        "steps.0.knots",
        "steps.0.neighbors",
        "steps.1.knots",
        "steps.1.neighbors",
        "steps.1.theta",
    ]
    assert comes_back(model(100))


# What cannot be written

KNOTS = torch.zeros(2, 2)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Counted(0), r"a file cannot hold this: Expected `int` >= 1 - at `\$.n_bins`"),
        (
            in_dataclass(SortedTransport | Counted)(Maps),
            "value is <class .*, which a file cannot hold",
        ),
        (
            in_dataclass(SortedTransport | Counted)(3),
            r"Expected `object`, got `int` - at `\$.value`",
        ),
        (
            in_dataclass(SortedTransport)(Counted(3)),
            r"Invalid value 'Counted' - at `\$.value.class`",
        ),
        (in_dataclass(tuple[int, ...])((1, True)), r"got `bool` - at `\$.value\[1\]`"),
        (
            Maps(KNOTS, np.zeros(3, np.int64), 3),
            r"neighbors has shape \(3,\), but h is 2",
        ),
        (Maps(KNOTS, np.array([0, -1]), 3), "neighbors holds values below 0"),
        (
            Maps(KNOTS.half(), np.array([0, 1]), 3),
            "knots has dtype float16; it must be one of",
        ),
        (
            Maps(torch.full((2, 2), math.nan), np.array([0, 1]), 3),
            "knots holds NaN or infinity",
        ),
        (Maps(KNOTS[0], np.array([0, 1]), 3), "its dimensions must be"),
        (Maps(KNOTS.numpy(), np.array([0, 1]), 3), r"knots is array\(\[\[0"),
        (Maps(torch.zeros(2, 1), np.array([0, 1]), 3), "maps have 1 knots"),
    ],
)
def test_what_could_not_be_read_is_not_written(value, message):
    with pytest.raises(ValueError, match=message):
        encode(value)


def test_a_class_of_the_users_own_is_refused_even_by_the_name_of_one_of_ours():
    encode(in_dataclass(SortedTransport | Counted)(Counted(3)))
    own = make_dataclass("Counted", [("n_bins", int)])
    with pytest.raises(ValueError, match="which a file cannot hold"):
        encode(in_dataclass(SortedTransport | Counted)(own(3)))


# What does not fit


@pytest.mark.parametrize(
    ("annotation", "tree", "message"),
    [
        (Counted, {"class": "Counted"}, "missing required field `n_bins`"),
        (
            Counted,
            {"class": "Counted", "n_bins": 3, "color": 1},
            "unknown field `color`",
        ),
        (SortedTransport | Counted, {"n_bins": 3}, "missing required field `class`"),
        (Counted, 3, "Expected `object`, got `int`"),
        (Counted, {"class": "Counted", "n_bins": 3.0}, "Expected `int`, got `float`"),
        (SortedTransport | Counted, {"class": "Bomb"}, "Invalid value 'Bomb'"),
        (tuple[int, str], [1], "Expected `array` of length 2, got 1"),
        (tuple[int, ...], 1, "Expected `array`, got `int`"),
        (dict[str, int], {1: 1}, "Expected `str`, got `int`"),
        (float, "1e400", "Expected `float`, got `str`"),
        (int, {"class": "int", "digits": "zz"}, "invalid literal"),
        (int, {"class": "int", "digits": "1" * 2000}, "length <= 1000"),
        (torch.dtype, "load", "Invalid enum value 'load'"),
        (Label, [1], "got `array`"),
    ],
)
def test_what_does_not_fit_is_named(annotation, tree, message):
    with pytest.raises(ValueError, match=message):
        decode_tree(in_dataclass(annotation), {"class": "Holder", "value": tree})


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(2, np.float32), "has dtype float32; it must be"),
        (np.zeros((1, 1)), "its dimensions must be"),
        (np.zeros(2, "m8[s]"), "has dtype timedelta64"),
        (np.array([np.inf]), "holds NaN or infinity"),
        (None, "the array value is missing"),
    ],
)
def test_arrays_that_do_not_fit_are_named(array, message):
    holder = in_dataclass(Annotated[Tensor, ArraySpec("n", "float64")])
    arrays = {} if array is None else {"value": array}
    tree = {"class": "Holder", "value": {"class": "array"}}
    with pytest.raises(ValueError, match=message):
        decode_tree(holder, tree, arrays)


def test_arrays_that_nothing_uses_are_an_error():
    header, arrays = encode(model())
    with pytest.raises(ValueError, match=r"arrays that nothing uses: \['x'\]"):
        decode(Model, header, arrays | {"x": np.zeros(1, np.uint8)})


def test_objects_are_checked_when_they_are_read():
    header, arrays = encode(Maps(KNOTS, np.array([0, 1]), 3))
    arrays["knots"] = np.zeros((2, 1), np.float32)
    with pytest.raises(ValueError, match="Maps: maps have 1 knots"):
        decode(Maps, header, arrays)


TREES = st.recursive(
    st.none() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text() | st.floats(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(TREES, st.sampled_from([Model, Maps]))
def test_any_other_header_is_refused(tree, kind):
    with pytest.raises(ValueError, match=r"Expected|Object missing|unknown field"):
        decode_tree(kind, tree)


@given(st.binary(), st.sampled_from([Model, Maps]))
def test_any_bytes_are_refused(header, kind):
    with pytest.raises(msgspec.DecodeError):
        decode(kind, header, {})


def test_annotations_that_no_file_can_hold_are_an_error():
    with pytest.raises(TypeError, match="cannot be written to a file"):
        encode(in_dataclass(Any)(3))
