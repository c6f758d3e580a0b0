"""Any value of any parameter is documented, or refused by name before a fit begins."""

import copy
import dataclasses
import inspect
import math
import warnings
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sliceflow import (
    ImageFlow,
    ImageOptions,
    SlicedDensity,
    SlicedWassersteinFlow,
    TableFlow,
    TreeSettings,
    VectorOptions,
    frames,
    transports,
)
from sliceflow.errors import DataError, NotEnoughMemoryError, ParameterError
from sliceflow.estimators.pictures.known_parts import KNOWN_PARTS

RNG = np.random.default_rng(0)
# Few steps and particles: each value of each parameter is planned.
ESTIMATORS = {
    SlicedWassersteinFlow: dict(n_particles=40, n_steps=2, device="cpu"),
    ImageFlow: dict(
        schedule="1[1] 3[2]",
        n_particles=40,
        steps_per_stage=1,
        n_pixel_values=17,
        device="cpu",
    ),
    SlicedDensity: dict(device="cpu"),
    TableFlow: {},
}
ROWS = {
    SlicedWassersteinFlow: RNG.normal(size=(30, 3)),
    ImageFlow: RNG.integers(0, 17, (30, 5, 4)).astype(np.uint8),
    SlicedDensity: RNG.normal(size=(60, 2)),
    TableFlow: pd.DataFrame({"a": np.arange(60.0), "b": np.arange(60) % 3}),
}


def names_of(estimator):
    """The parameters of an estimator, and those of its options."""
    names = list(inspect.signature(estimator).parameters)
    if estimator._options_type is not None:
        fields = dataclasses.fields(estimator._options_type)
        names += [f"options__{field.name}" for field in fields]
    return names


PARAMETERS = [(kind, name) for kind in ESTIMATORS for name in names_of(kind)]


class Incomparable:
    """A value that cannot be compared or hashed."""

    __hash__ = None

    def __eq__(self, other):
        raise RuntimeError("no comparison")


# What users pass by mistake, and what is near the limits of numbers.
ODD_VALUES = [
    *(None, "", "nonsense", "auto", "3", "a" * 1000, b"auto", Path("x")),
    *(-1, 0, 1, 2, 2**31, 2**40 + 1, 2**63, 10**30, 10**400, True, False, 1j),
    *(3.5, -0.5, math.nan, math.inf, -math.inf, 1e300, Decimal("1.5"), Fraction(1, 2)),
    *(np.True_, np.int8(3), np.float32(2), np.datetime64("2020"), np.array(3)),
    *(np.ones(2), np.array([]), torch.tensor(3), torch.ones(2)),
    *(pd.NA, pd.NaT, pd.Series([1, 2]), pd.DataFrame({"a": [1]})),
    *([], [1], ["a"], (), (1,), (1, 2), (1, 0), ("a", "b"), {}, {1, 2}, {"a": 1}),
    *((math.inf, -math.inf), (-math.inf, math.nan), (10**400, 1), ([0], "1")),
    *({3: "category"}, {"a": 3}, {"a": "nonsense"}, {"nobody": "category"}),
    *((5, 2, 1, 1), (5.5, 2), (0, 1), (5, -1), (5, math.nan), (5, "x"), (10**30, 2)),
    *(int, str, object, np.random.RandomState, torch.device, print, lambda: None),
    *(transports.HistogramTransport, frames.Random, VectorOptions, ImageOptions),
    *(SlicedDensity, TreeSettings, SlicedDensity(), transports.Transport),
    *(object(), Incomparable(), ..., NotImplemented, slice(1), range(3)),
]


def is_number(value, low=0.0, high=math.inf):
    is_real = isinstance(value, int | float | np.integer | np.floating)
    return is_real and not isinstance(value, bool) and low <= value <= high


def is_whole(value, low):
    return is_number(value, low) and not isinstance(value, float | np.floating)


def is_flag(value):
    return isinstance(value, bool | np.bool)


def count(low, *words):
    return lambda value: is_whole(value, low) or is_word(value, words)


def number(*words, high=math.inf):
    return lambda value: is_number(value, 0, high) or is_word(value, words)


def is_word(value, words):
    return (value is None or isinstance(value, str)) and value in words


def word(*words):
    return lambda value: is_word(value, words)


def is_seed(value):
    states = (np.random.RandomState, np.random.Generator)
    return value is None or is_whole(value, 0) or isinstance(value, states)


def is_pair(value):
    return value is None or (not isinstance(value, str | Mapping) and len(value) == 2)


NAMES_OF_TRANSPORTS = ("auto", "sorted", "histogram", "paper")
SHARED = dict(
    device=word("auto", "cpu"),
    random_state=is_seed,
    verbose=lambda value: is_flag(value) or is_whole(value, 0),
    save_rows=is_flag,
    preset=word(None, "paper"),
    transport=word(*NAMES_OF_TRANSPORTS),
    n_particles=count(1, None),
)
# What the documentation allows, of the values of these tests.
DOCUMENTED = {
    SlicedWassersteinFlow: SHARED
    | dict(
        n_steps=count(0),
        frame=word("orthogonal", "random", "max-sliced", "axis"),
        amplifier=number(),
        entropy=number(),
        standardize=is_flag,
        condition_mode=word("auto", "joint", "local"),
        options=word(None),
        options__taper=number(high=1),
        options__n_axis_steps=count(0),
        options__n_knots=count(2),
        options__smoothing=number("auto"),
        options__n_neighbors=count(2),
        options__shrinkage=number(),
    ),
    ImageFlow: SHARED
    | dict(
        schedule=word("auto", "paper"),
        quality=word("draft", "standard", "best"),
        steps_per_stage=count(1, None),
        amplifier=number("auto"),
        n_pixel_values=count(2),
        mirror=is_flag,
        known=word(None, *KNOWN_PARTS),
        patch_basis=word("auto", "pixels", "cosines", "random"),
        n_clusters=count(1, "auto"),
        options=word(None),
        options__start=count(1, "auto", "noise"),
        options__locality=number(),
        options__start_noise=number(),
        options__clip=is_flag,
        options__dequantize_every=word("stage", "step"),
        options__n_directions=count(1, "auto"),
        options__taper=number(high=1),
        options__n_knots=count(0, "auto"),
        options__precision=word("auto", "float32", "float16", "bfloat16"),
        options__shrinkage=number("auto"),
    ),
    SlicedDensity: SHARED
    | dict(
        n_steps=count(0, "auto"),
        penalty=number("auto"),
        n_components=count(1, "auto"),
        bounds=is_pair,
    ),
    TableFlow: SHARED
    | dict(
        kinds=lambda value: value is None or value in ({}, {"a": "category"}),
        constraints=lambda value: isinstance(value, list | tuple) and not value,
        rules=word("auto", "off"),
        missing=word("model", "never"),
        tree_settings=lambda value: (
            value is None or (is_whole(value[0], 1) and is_number(value[1]))
        ),
        min_count=count(1),
        rare_levels=word("warn", "keep", "merge"),
    ),
}


def check(estimator, name, value):
    """Plan a fit with a value: it is documented, or the error names the parameter."""
    flow = estimator(**ESTIMATORS[estimator])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            flow.set_params(**{name: copy.copy(value)}).plan(ROWS[estimator])
        except ParameterError as error:
            named = error.parameter
        except NotEnoughMemoryError:
            named = "memory"
        except DataError as error:  # its type is right, but the rows do not fit it
            named = "known" if "known has shape" in str(error) else None
        else:
            named = None
    if named == "memory":
        assert is_whole(value, 2**20)
    elif named is not None:
        assert named == name.removeprefix("options__")
    else:
        assert DOCUMENTED[estimator][name](value), value


@pytest.mark.parametrize(("estimator", "name"), PARAMETERS)
def test_odd_values_are_documented_or_refused_by_name(estimator, name):
    for value in ODD_VALUES:
        check(estimator, name, value)


numbers = st.integers() | st.integers(2**60, 2**70) | st.floats() | st.booleans()
scalars = st.none() | numbers | st.text(max_size=5) | st.binary(max_size=3)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)


@pytest.mark.parametrize(("estimator", "name"), PARAMETERS)
@given(value=values)
@settings(max_examples=20)
def test_random_values_are_documented_or_refused_by_name(estimator, name, value):
    check(estimator, name, value)


@pytest.mark.parametrize("options", [3, "fast", VectorOptions, ImageOptions()])
def test_options_of_another_type_have_no_field_to_set(options):
    flow = SlicedWassersteinFlow(options=options)
    with pytest.raises(ParameterError, match=r"options=.* must be None or a sliceflow"):
        flow.set_params(options__taper=0.1)


def test_numbers_of_any_size_of_numpy_are_those_of_python():
    small = np.int8(100)  # twice this is beyond int8
    flow = SlicedWassersteinFlow(
        n_particles=small,
        n_steps=np.int8(3),
        amplifier=np.float16(10),
        transport=transports.HistogramTransport(n_bins=small),
        frame=frames.Random(n_directions=small),
        options=VectorOptions(
            n_knots=small, n_neighbors=np.int8(20), n_axis_steps=np.int8(1)
        ),
        random_state=0,
    )
    plain = SlicedWassersteinFlow(
        n_particles=100,
        n_steps=3,
        amplifier=10.0,
        transport=transports.HistogramTransport(n_bins=100),
        frame=frames.Random(n_directions=100),
        options=VectorOptions(n_knots=100, n_neighbors=20, n_axis_steps=1),
        random_state=0,
    )
    x = ROWS[SlicedWassersteinFlow]
    y = np.arange(30) % 3
    samples = flow.fit(x, y).sample(5, random_state=0)
    assert np.array_equal(samples, plain.fit(x, y).sample(5, random_state=0))


def test_limits_of_files_are_limits_of_parameters():
    # A model that could be fitted, but not loaded, would be lost.
    pictures = ROWS[ImageFlow]
    flow = ImageFlow(**ESTIMATORS[ImageFlow]).set_params(options__n_knots=2**16 + 1)
    with pytest.raises(ParameterError, match="n_knots=65537 must be at most 65536"):
        flow.fit(pictures)
    with pytest.raises(ParameterError, match="start=1025 must be at most 1024"):
        flow.set_params(options__n_knots=16, options__start=1025).fit(pictures)
