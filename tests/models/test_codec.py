"""The codec: what is written comes back, and what does not fit is refused before it is made."""

import json
import math
import tracemalloc
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from typing import Annotated, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from sliceflow.fields import Array, Between, Label
from sliceflow.models import packing
from sliceflow.models.codec import pack, unpack
from sliceflow.models.limits import Allowance


def same(a, b):
    """Equal in type and value, to the last bit."""
    if type(a) is not type(b):
        return False
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, Tensor | np.ndarray):
        left = np.asarray(a)
        right = np.asarray(b)
        return (a.dtype, a.shape) == (
            b.dtype,
            b.shape,
        ) and left.tobytes() == right.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


def written(kind, value):
    """The JSON and the tensors, through text."""
    tensors: dict = {}
    node = pack(kind, value, tensors)
    return json.loads(json.dumps(node, allow_nan=False)), tensors


def again(kind, value):
    node, tensors = written(kind, value)
    return unpack(kind, node, tensors, Allowance(10**6))


# Round trips

SCALARS = {
    int: st.integers(),
    float: st.floats(),
    bool: st.booleans(),
    str: st.text(max_size=5),
    type(None): st.none(),
    torch.dtype: st.sampled_from([torch.float32, torch.int16]),
    Literal["a", "b"]: st.sampled_from(["a", "b"]),
    Annotated[int, Between(3, 5)]: st.integers(3, 5),
    Annotated[float, Between()]: st.floats(allow_nan=False, allow_infinity=False),
    float | Literal["auto"] | None: st.floats() | st.just("auto") | st.none(),
    Label: st.recursive(
        st.text(max_size=3)
        | st.integers()
        | st.floats()
        | st.booleans()
        | st.none()
        | st.binary(),
        lambda inner: st.lists(inner, max_size=2).map(tuple),
        max_leaves=3,
    ),
}
DTYPES = {np.float32: torch.float32, np.float64: torch.float64, np.int64: torch.int64}
DTYPES |= {np.uint8: torch.uint8, np.int16: torch.int16, np.bool_: torch.bool}


@st.composite
def array_kinds(draw):
    """The annotation of a dataclass with an array, and a strategy of its objects."""
    dtype = draw(st.sampled_from(sorted(DTYPES, key=str)))
    strategy = draw(st.sampled_from(["", "planes"]))
    if np.issubdtype(dtype, np.integer):
        strategy = draw(st.sampled_from(["", "planes", "delta"]))
    rank = draw(st.integers(1, 3))
    values = st.tuples(*[st.integers(0, 3)] * rank).flatmap(
        lambda shape: arrays(dtype, shape)
    )
    about = Array(" ".join("abc"[:rank]), DTYPES[dtype], finite=False, packed=strategy)
    kind = np.ndarray
    if draw(st.booleans()):
        kind = Tensor
        values = values.map(torch.from_numpy)
    made = make_dataclass("Held", [("array", Annotated[kind, about])], frozen=True)
    return made, st.builds(made, values)


def containers(inner):
    """Annotations of containers of other annotations, each with a strategy of values."""

    @st.composite
    def made(draw):
        kind, values = draw(inner)
        which = draw(st.integers(0, 4))
        if which == 0:
            return tuple[kind, ...], st.lists(values, max_size=3).map(tuple)
        if which == 1:
            return dict[str, kind], st.dictionaries(
                st.text(max_size=3), values, max_size=3
            )
        if which == 2:
            other, others = draw(inner)
            return tuple[kind, other], st.tuples(values, others)
        if which == 3 and not isinstance(kind, str):
            return kind | None, values | st.none()
        parts = [draw(inner) for _ in range(draw(st.integers(0, 2)))] + [(kind, values)]
        made = make_dataclass(
            "Made", [(f"f{i}", k) for i, (k, _) in enumerate(parts)], frozen=True
        )
        return made, st.builds(made, *[v for _, v in parts])

    return made()


KINDS = st.recursive(
    st.sampled_from(list(SCALARS.items())) | array_kinds(), containers, max_leaves=5
).map(lambda pair: (tuple[pair[0], ...], st.lists(pair[1], max_size=4).map(tuple)))


@settings(max_examples=30)
@given(KINDS, st.data())
def test_what_is_written_comes_back(kind, data):
    annotation, values = kind
    value = data.draw(values)
    assert same(again(annotation, value), value)


@dataclass(frozen=True)
class Sorted:
    max_samples: int | None


@dataclass(frozen=True)
class Counted:
    n_bins: Annotated[int, Between(1, 100)]


@dataclass(frozen=True)
class Maps:
    knots: Annotated[Tensor, Array("h k", (torch.float32, torch.float64))]
    near: Annotated[np.ndarray, Array("h", torch.int64, ge=0, packed="delta")]
    n: int
    theta: Annotated[Tensor, Array("h d", torch.float64)] | None = None
    note: str = field(default="", metadata={"saved": False})

    def check(self):
        if self.knots.shape[1] < 2:
            raise ValueError(f"maps have {self.knots.shape[1]} knots")


@dataclass(frozen=True)
class Model:
    name: str
    steps: tuple[Maps, ...]
    transport: Sorted | Counted | None
    labels: tuple[Label, ...]
    parameters: dict[str, float | tuple[int, ...]]
    pictures: (
        Annotated[np.ndarray, Array("n c h w", torch.uint8, packed="pictures")] | None
    )


def model(n_steps=6):
    rng = np.random.default_rng(0)
    steps = [
        Maps(
            torch.from_numpy(rng.normal(size=(3, 2 + k % 2))).to(
                (torch.float32, torch.float64)[k > 3]
            ),
            rng.integers(0, 5 + k, 3),
            5 + k,
            torch.eye(3, 4, dtype=torch.float64) if k % 2 else None,
        )
        for k in range(n_steps)
    ]
    pictures = rng.integers(0, 9, (4, 3, 5, 2)).astype(np.uint8)
    parameters = {"amplifier": math.inf, "kinds": (1, 2)}
    labels = ("a", 1, 1.0, True, None, b"x", ("a", (1, -0.0)))
    return Model("m", tuple(steps), Counted(7), labels, parameters, pictures)


NODE, TENSORS = written(Model, model())


def test_a_model_of_many_steps_has_few_tensors():
    few = written(Model, model(10))
    many = written(Model, model(1000))
    assert many[1].keys() == few[1].keys()
    assert len(many[1]) == 4
    assert same(again(Model, model(1000)), model(1000))


# What cannot be written


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (Counted, Counted(0), "n_bins is 0; it must be int from 1 to 100"),
        (
            Counted,
            Sorted(None),
            r"it is Sorted\(max_samples=None\); it must be a Counted",
        ),
        (Sorted | Counted, 3, "which a file cannot hold; it holds Sorted, Counted"),
        (
            Maps,
            Maps(torch.zeros(2, 2), np.zeros(3, np.int64), 3),
            r"near has shape \(3,\), but h is 2",
        ),
        (
            Maps,
            Maps(torch.zeros(2, 2), np.array([0, -1]), 3),
            "near holds values below 0",
        ),
        (
            Maps,
            Maps(torch.zeros(2, 2).half(), np.array([0, 1]), 3),
            "dtype float16; it must be",
        ),
        (
            Maps,
            Maps(torch.full((2, 2), math.nan), np.array([0, 1]), 3),
            "holds NaN or infinity",
        ),
        (Maps, Maps(torch.zeros(2, 1), np.array([0, 1]), 3), "maps have 1 knots"),
        (tuple[int, ...], (1, True), "is True; it must be int"),
    ],
)
def test_what_could_not_be_read_is_not_written(kind, value, words):
    with pytest.raises(ValueError, match=words):
        pack(kind, value, {})


# What does not fit


@pytest.mark.parametrize(
    ("kind", "node", "words"),
    [
        (Counted, {}, "n_bins is missing"),
        (Counted, {"n_bins": 3, "colour": 1}, "colour is not known"),
        (Counted, 3, "it is 3; it must be a JSON object"),
        (Counted, {"n_bins": 3.0}, "n_bins is 3.0; it must be int from 1 to 100"),
        (Sorted | Counted, {"Bomb": {}}, "holds a value of unknown kind"),
        (Sorted | Counted, {"Counted": {"n_bins": 3}, "x": 1}, "x is not known"),
        (tuple[int, str], [1], "has 1 values instead of 2"),
        (tuple[int, ...], 1, "must be a list"),
        (dict[str, int], [["a"]], "has 1 values instead of 2"),
        (float, {"float": "1e400"}, "unknown kind"),
    ],
)
def test_what_does_not_fit_is_named(kind, node, words):
    with pytest.raises(ValueError, match=words):
        unpack(kind, {"value": node, "arrays": {}}, {}, Allowance(1000))


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ([], "there are 8 bytes instead of 0"),
        ([["float64", 3]], "there are 8 bytes instead of 24"),
        ([["float64", -1]], "instead of a type and a shape"),
        ([["complex64", 1]], "instead of a type and a shape"),
        ([["float32", 2]], "has dtype float32; it must be"),
        ([["float64", 1, 1]], "its dimensions must be"),
        (7, "instead of a type and a shape"),
    ],
)
def test_arrays_that_do_not_fit_are_named(listed, words):
    kind = make_dataclass(
        "Held", [("array", Annotated[Tensor, Array("n", torch.float64)])]
    )
    node = {"value": {"array": 0}, "arrays": {"array": listed}}
    with pytest.raises(ValueError, match=words):
        unpack(kind, node, {"array": np.zeros(8, np.uint8)}, Allowance(1000))


def test_tensors_that_nothing_uses_are_an_error():
    with pytest.raises(ValueError, match=r"the tensors are .* but the text names"):
        unpack(Model, NODE, TENSORS | {"x": np.zeros(1, np.uint8)}, Allowance(1000))
    listed = NODE | {"arrays": NODE["arrays"] | {"x": [["uint8", 1]]}}
    with pytest.raises(ValueError, match="tensors that nothing uses: "):
        unpack(Model, listed, TENSORS | {"x": np.zeros(1, np.uint8)}, Allowance(1000))


@given(
    st.recursive(st.none() | st.integers() | st.text(), st.lists),
    st.sampled_from([Model, Maps]),
)
def test_any_json_is_refused(node, kind):
    for body in (node, {"value": node, "arrays": {}}):
        with pytest.raises(ValueError, match=r"must be|names"):
            unpack(kind, body, {}, Allowance(1000))


# Bombs


@pytest.mark.parametrize("strategy", ["", "planes", "delta", "pictures"])
def test_sizes_are_counted_before_anything_is_made(strategy):
    bomb = np.zeros((2000, 1, 100, 100), np.uint8)
    packed = packing.pack([bomb], strategy)
    about = Array("n c h w", torch.uint8, packed=strategy)
    kind = make_dataclass("Held", [("array", Annotated[np.ndarray, about])])
    for shape, allowance, words in (
        ((2000, 1, 100, 100), Allowance(10**5, 10**7), r"max_memory is 9\.5 MiB"),
        (
            (1 << 32, 1 << 32, 1, 1),
            Allowance(10**5),
            r"a file of 97\.7 KiB may take 305\.2 MiB",
        ),
        (
            (1, 1, 100, 100),
            Allowance(10**5),
            "bytes instead of|does not have|there are",
        ),
        ((3000, 1, 100, 100), Allowance(10**5), "instead of|does not have|cannot hold"),
    ):
        node = {"value": {"array": 0}, "arrays": {"array": [["uint8", *shape]]}}
        tracemalloc.start()
        with pytest.raises(ValueError, match=words):
            unpack(kind, node, {"array": packed}, allowance)
        assert tracemalloc.get_traced_memory()[1] < 3 * 10**7 + 10**6
        tracemalloc.stop()
    node["arrays"]["array"] = [["uint8", *bomb.shape]]
    back = unpack(kind, node, {"array": packed}, Allowance(len(packed), 10**8))
    assert np.array_equal(back.array, bomb)
