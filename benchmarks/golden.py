"""Hashes of small models of all kinds: a refactoring that changes no bit changes none.

    python benchmarks/golden.py --save before.json
    python benchmarks/golden.py --compare before.json

Every case fits one small model on one thread of the CPU, from fixed seeds. Hashes
belong to a machine and its versions of torch, numpy and scikit-learn: save and compare
on one machine. ``--only`` takes a part of names, such as ``tables`` or ``class``.

samples  of all that the case drew, and of the batched samples `particles_`, if any
file     of the bytes that `save` wrote
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from report import markdown_table, script_parser
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

from sliceflow import (
    ImageFlow,
    ImageOptions,
    SlicedDensity,
    SlicedWassersteinFlow,
    TableFlow,
    VectorOptions,
)
from sliceflow.inference import posterior

HEADER = ("name", "samples", "file", "seconds")
HASH_BYTES = 6  # 12 hexadecimal digits: equal by chance once in 10¹⁴ pairs, and short
SEED = 3  # of every fit
DRAW_SEED = 5  # of every draw
N_DRAWN = 40  # samples of a model: enough to meet every class and most cells
# Leaves of 5 rows, splits worth twice their noise, no neighbors: cases that look at
# something else need no search for these.
TREES_ONLY = (5, 2.0, 0)

Hashes = dict[str, list[str]]  # by name: of the samples, and of the file


class Outcome(NamedTuple):
    """A fitted model, and what was drawn from it."""

    model: Any
    drawn: Sequence[Any]


Case = Callable[[], Outcome]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Register a case by the name of its function."""
    CASES[function.__name__.replace("_", " ")] = function
    return function


# --- data ----------------------------------------------------------------------------


def random_rows(n: int = 120, seed: int = 0) -> np.ndarray:
    """Correlated rows (n, 3); the first column tells the classes of `cyclic_labels`."""
    rng = np.random.default_rng(seed)
    mixing = np.array([[1.0, 0.5, 0.0], [0.0, 1.0, -0.8], [0.0, 0.0, 0.6]])
    rows = rng.normal(size=(n, 3)) @ mixing
    rows[:, 0] += 2 * cyclic_labels(n)
    return rows


def cyclic_labels(n: int = 120, n_classes: int = 3) -> np.ndarray:
    """The labels 0, 1, 2, 0, 1, 2, …"""
    return np.arange(n) % n_classes


def continuous_conditions(rows: np.ndarray) -> np.ndarray:
    """Two columns (n, 2) that follow from the rows up to noise."""
    noise = np.random.default_rng(1).normal(size=(len(rows), 2))
    return rows[:, :2] + 0.3 * noise


def small_digits(n: int = 150) -> tuple[np.ndarray, np.ndarray]:
    """Gray pictures (n, 8, 8) of 17 values, and their labels."""
    digits = load_digits()
    return digits.images[:n].astype(np.uint8), digits.target[:n]


def color_pictures(n: int = 120) -> np.ndarray:
    """Smooth pictures (n, 8, 8, 3): random colors in the corners, blended between."""
    rng = np.random.default_rng(2)
    corners = rng.uniform(0, 255, (n, 2, 2, 3))
    falling = np.linspace(1, 0, 8)
    weights = np.stack((falling, 1 - falling))
    pictures = np.einsum("nabc,ay,bx->nyxc", corners, weights, weights)
    return pictures.round().astype(np.uint8)


def number_table(n: int = 150) -> pd.DataFrame:
    """Numbers: smooth, skewed, rounded, whole, and one that follows from others."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"a": rng.normal(size=n), "b": rng.gamma(2, 3, n)})
    frame["c"] = (frame["a"] * 2 + rng.normal(size=n)).round(1)
    frame["d"] = rng.poisson(frame["b"])
    frame["e"] = 2 * frame["a"] - frame["b"] + 0.01 * rng.normal(size=n)
    return frame


def mixed_table(n: int = 150) -> pd.DataFrame:
    """A column of every kind, some with missing cells."""
    rng = np.random.default_rng(4)
    plan = rng.choice(["basic", "gold", "free"], n)
    age = rng.integers(18, 80, n)
    level = rng.choice(["low", "middle", "high"], n)
    spent = rng.gamma(2, 20 + (plan == "gold") * age)
    start = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), "D")
    frame = pd.DataFrame(
        {
            "id": [f"C-{number:06}" for number in rng.permutation(10**6)[:n]],
            "plan": plan,
            "age": age,
            "height": rng.normal(170, 10, n).round(1),
            "level": pd.Categorical(level, ["low", "middle", "high"], ordered=True),
            "colour": pd.Categorical(rng.choice(["red", "blue"], n)),
            "spent": [Decimal(f"{amount:.2f}") for amount in spent],
            "price": [f"{amount:,.2f} €" for amount in rng.gamma(2, 900, n)],
            "churn": rng.random(n) < 0.3,
            "start": start.tz_localize("Europe/Berlin"),
            "end": start + pd.to_timedelta(age, "D"),
            "written": [f"{day:%d.%m.%Y}" for day in start],
            "visits": pd.array(age // 5, "Int64"),
            "same": 7,
            "score": rng.normal(size=n),
        }
    )
    frame.loc[rng.random(n) < 0.2, "visits"] = pd.NA
    frame.loc[rng.random(n) < 0.1, "score"] = np.nan
    frame.loc[rng.random(n) < 0.1, "plan"] = None
    return frame


def factor_table(n: int = 200) -> pd.DataFrame:
    """Five smooth numbers of two factors, few enough to be drawn from neighbors."""
    rng = np.random.default_rng(5)
    factors = rng.normal(size=(n, 2)) @ rng.normal(size=(2, 5))
    return pd.DataFrame(factors + 0.3 * rng.normal(size=(n, 5)), columns=list("abcde"))


def line_table(n: int = 200) -> pd.DataFrame:
    """Numbers that follow from two others with less and more noise, and a product.

    The noise is graded, so that some columns are close between a line and leaves.
    """
    rng = np.random.default_rng(11)
    frame = pd.DataFrame({"a": rng.gamma(3, 1, n), "b": rng.gamma(3, 1, n)})
    frame["product"] = frame["a"] * frame["b"] * np.exp(0.05 * rng.normal(size=n))
    for percent in (20, 30, 50):
        noise = percent / 100 * rng.normal(size=n)
        frame[f"sum, {percent} % noise"] = frame["a"] + frame["b"] + noise
    return frame


def labeled_table(n: int = 1_200) -> pd.DataFrame:
    """A label of two frequent levels, that three numbers predict well."""
    rng = np.random.default_rng(6)
    is_signal = np.arange(n) % 2 == 0
    numbers = rng.normal(size=(n, 3))
    numbers[:, 0] += 3 * is_signal
    numbers[:, 1] += numbers[:, 0] * np.where(is_signal, 1, -1)
    frame = pd.DataFrame(numbers, columns=list("xyz"))
    frame["kind"] = np.where(is_signal, "signal", "noise")
    return frame


# --- vectors -------------------------------------------------------------------------


def vector_flow(**changes: Any) -> SlicedWassersteinFlow:
    """Six steps of 200 particles, not fitted yet."""
    settings: dict[str, Any] = {
        "n_particles": 200,
        "n_steps": 6,
        "random_state": SEED,
        "device": "cpu",
    }
    return SlicedWassersteinFlow(**settings | changes)


def vectors_of(X: Any, y: Any = None, **changes: Any) -> Outcome:
    """A flow fitted to rows, and samples in the data's proportions of conditions."""
    flow = vector_flow(**changes).fit(X, y)
    return Outcome(flow, flow.sample(N_DRAWN, random_state=DRAW_SEED, return_y=True))


def vectors_at(y0: Any, X: Any, y: Any, **changes: Any) -> Outcome:
    """The same, and samples at one condition."""
    flow, drawn = vectors_of(X, y, **changes)
    at_condition = flow.sample(N_DRAWN, y=y0, random_state=DRAW_SEED)
    return Outcome(flow, [*drawn, at_condition])


@case
def vectors_plain() -> Outcome:
    """The defaults."""
    return vectors_of(random_rows())


@case
def vectors_float32() -> Outcome:
    """Single precision is kept."""
    return vectors_of(random_rows().astype(np.float32))


@case
def vectors_tensor() -> Outcome:
    """A tensor gives tensors."""
    return vectors_of(torch.from_numpy(random_rows()))


@case
def vectors_dataframe() -> Outcome:
    """Names of columns are kept."""
    return vectors_of(pd.DataFrame(random_rows(), columns=["a", "b", "c"]))


@case
def vectors_not_standardized() -> Outcome:
    """Columns in their own units."""
    return vectors_of(random_rows(), standardize=False)


@case
def vectors_labels() -> Outcome:
    """Classes that share maps."""
    return vectors_at(1, random_rows(), cyclic_labels())


@case
def vectors_labels_of_text() -> Outcome:
    """Classes with names."""
    names = np.array(["red", "green", "blue"])[cyclic_labels()]
    return vectors_at("green", random_rows(), names)


@case
def vectors_per_class() -> Outcome:
    """ξ = ∞: every class has maps of its own."""
    return vectors_at(1, random_rows(), cyclic_labels(), amplifier=math.inf)


@case
def vectors_labels_ignored() -> Outcome:
    """ξ = 0: labels do not count."""
    return vectors_at(1, random_rows(), cyclic_labels(), amplifier=0)


@case
def vectors_local_condition() -> Outcome:
    """Continuous conditions, answered by near rows."""
    X = random_rows()
    return vectors_at([0.5, -0.5], X, continuous_conditions(X), condition_mode="local")


@case
def vectors_joint_condition() -> Outcome:
    """Continuous conditions, in one flow of rows and conditions."""
    X = random_rows()
    return vectors_at([0.5, -0.5], X, continuous_conditions(X), condition_mode="joint")


@case
def vectors_mixed_condition() -> Outcome:
    """A label and a number as condition."""
    X = random_rows()
    kinds = np.array(["even", "odd"])[cyclic_labels(n_classes=2)]
    y = pd.DataFrame({"kind": kinds, "value": continuous_conditions(X)[:, 0]})
    return vectors_at(["odd", 0.5], X, y)


@case
def vectors_max_sliced() -> Outcome:
    """Directions fitted to particles and data."""
    return vectors_of(random_rows(), frame="max-sliced")


@case
def vectors_random_frame() -> Outcome:
    """Independent directions."""
    return vectors_of(random_rows(), frame="random")


@case
def vectors_axis_frame() -> Outcome:
    """Directions along the columns."""
    return vectors_of(random_rows(), frame="axis")


@case
def vectors_histogram() -> Outcome:
    """Transport between histograms."""
    return vectors_of(random_rows(), transport="histogram")


@case
def vectors_histogram_labels() -> Outcome:
    """Transport between histograms, of classes that share maps."""
    return vectors_at(1, random_rows(), cyclic_labels(), transport="histogram")


@case
def vectors_sorted() -> Outcome:
    """Transport between sorted samples."""
    return vectors_of(random_rows(), transport="sorted")


@case
def vectors_shrinkage() -> Outcome:
    """Maps within their noise are shrunk."""
    return vectors_of(random_rows(), options=VectorOptions(shrinkage=1.0))


@case
def vectors_smoothing() -> Outcome:
    """Rows spread along their nearest rows, as far as the user says."""
    options = VectorOptions(smoothing=0.7, n_neighbors=8)
    return vectors_at(1, random_rows(), cyclic_labels(), options=options)


@case
def vectors_without_smoothing() -> Outcome:
    """The rows themselves, few knots and no axis steps."""
    options = VectorOptions(smoothing=0.0, n_knots=16, n_axis_steps=0, taper=0.0)
    return vectors_of(random_rows(), options=options)


@case
def vectors_entropy() -> Outcome:
    """Noise in every step."""
    return vectors_of(random_rows(), entropy=0.01)


@case
def vectors_paper() -> Outcome:
    """The paper's Algorithm 1, with labels."""
    return vectors_at(1, random_rows(), cyclic_labels(), preset="paper")


@case
def vectors_heavy_tails() -> Outcome:
    """Columns that an asinh compresses, which takes many rows; and one of 0 and 1."""
    rng = np.random.default_rng(7)
    n = 600
    cauchy = rng.standard_cauchy(n)
    lognormal = np.exp(2 * rng.normal(size=n))
    binary = rng.random(n) < 0.5
    return vectors_of(np.column_stack((cauchy, lognormal, binary)))


@case
def vectors_add_and_forget() -> Outcome:
    """Rows of a new class join, some of the first are forgotten."""
    X = random_rows()
    y = cyclic_labels()
    flow = vector_flow(save_rows=True).fit(X, y)
    flow.partial_fit(random_rows(40, seed=8) + 4, np.full(40, 3), refit=False)
    flow.forget(X[:20], y[:20])
    return Outcome(flow, flow.sample(N_DRAWN, random_state=DRAW_SEED, return_y=True))


# --- pictures ------------------------------------------------------------------------


def picture_flow(**changes: Any) -> ImageFlow:
    """Four stages of two steps, of 200 particles, not fitted yet."""
    settings: dict[str, Any] = {
        "schedule": "1[1] 3[3] 8[8,3]",
        "steps_per_stage": 2,
        "n_particles": 200,
        "n_pixel_values": 17,
        "random_state": SEED,
        "device": "cpu",
    }
    return ImageFlow(**settings | changes)


def pictures_of(X: np.ndarray, y: Any = None, **changes: Any) -> Outcome:
    """A flow fitted to pictures, and samples in the data's proportions of classes."""
    flow = picture_flow(**changes).fit(X, y)
    return Outcome(flow, flow.sample(N_DRAWN, random_state=DRAW_SEED, return_y=True))


def digits_by_class(**changes: Any) -> Outcome:
    """A flow fitted to digits with their labels, and samples, also of the threes."""
    X, y = small_digits()
    flow, drawn = pictures_of(X, y, **changes)
    threes = flow.sample(N_DRAWN, y=3, random_state=DRAW_SEED)
    return Outcome(flow, [*drawn, threes])


@case
def pictures_gray() -> Outcome:
    """Digits without labels, and samples on their way."""
    X, _ = small_digits()
    flow, drawn = pictures_of(X)
    evolution = flow.evolution(5, random_state=DRAW_SEED, n_snapshots=3)
    return Outcome(flow, [*drawn, evolution])


@case
def pictures_auto_schedule() -> Outcome:
    """The schedule that is chosen for the size of the pictures."""
    X, _ = small_digits()
    return pictures_of(X, schedule="auto", steps_per_stage=1)


@case
def pictures_mirrored_floats() -> Outcome:
    """Pixels from 0 to 1, with mirror images."""
    X, _ = small_digits()
    return pictures_of((X / 16).astype(np.float32), mirror=True)


@case
def pictures_by_class() -> Outcome:
    """Digits of classes that share maps."""
    return digits_by_class(amplifier=10.0)


@case
def pictures_per_class() -> Outcome:
    """Digits of classes with maps of their own."""
    return digits_by_class(amplifier=math.inf, transport="histogram")


@case
def pictures_clusters() -> Outcome:
    """Digits without labels, in clusters with maps of their own."""
    X, _ = small_digits()
    return pictures_of(X, n_clusters=3, transport="histogram")


@case
def pictures_cosines() -> Outcome:
    """Directions of a few cosines, and shrinkage."""
    X, _ = small_digits()
    options = ImageOptions(shrinkage=1.0)
    return pictures_of(X, patch_basis="cosines", options=options)


@case
def pictures_color() -> Outcome:
    """Color pictures, which start as mosaics; and their right halves completed."""
    X = color_pictures()
    flow, drawn = pictures_of(X[:-3], n_pixel_values=256)
    completed = flow.inpaint(X[-3:], "left", n=2, random_state=DRAW_SEED)
    return Outcome(flow, [*drawn, completed])


@case
def pictures_color_per_class() -> Outcome:
    """Mosaics of pictures of one class."""
    X = color_pictures()
    y = cyclic_labels(len(X), 2)
    return pictures_of(
        X, y, n_pixel_values=256, amplifier=math.inf, transport="histogram"
    )


@case
def pictures_color_from_noise() -> Outcome:
    """Color pictures that start as noise."""
    options = ImageOptions(start="noise")
    return pictures_of(color_pictures(), n_pixel_values=256, options=options)


@case
def pictures_observed() -> Outcome:
    """A flow for one known part, which moves the hidden pixels."""
    X, _ = small_digits()
    flow = picture_flow(known="top").fit(X[:-4])
    completed = flow.inpaint(X[-4:], n=3, random_state=DRAW_SEED)
    return Outcome(flow, [completed])


@case
def pictures_inpaint() -> Outcome:
    """Any part completed by similar pictures that the model keeps, also of a class."""
    X, y = small_digits()
    flow = picture_flow(save_rows=True).fit(X[:-4], y[:-4])
    left_known = flow.inpaint(X[-4:], "left", n=3, random_state=DRAW_SEED)
    odd_rows = np.arange(8)[:, None] % 2 + np.zeros((8, 8)) > 0
    as_class = flow.inpaint(X[-4:], odd_rows, y=y[-4:], random_state=DRAW_SEED)
    return Outcome(flow, [left_known, as_class])


@case
def pictures_add_and_forget() -> Outcome:
    """Digits join, and others are forgotten."""
    X, y = small_digits()
    flow = picture_flow(save_rows=True).fit(X[:100], y[:100])
    flow.partial_fit(X[100:], y[100:], refit=False)
    flow.forget(X[:10], y[:10])
    return Outcome(flow, flow.sample(N_DRAWN, random_state=DRAW_SEED, return_y=True))


@case
def pictures_paper() -> Outcome:
    """The paper's flow, with few directions and steps."""
    options = ImageOptions(n_directions=50)
    return digits_by_class(preset="paper", options=options)


# --- tables --------------------------------------------------------------------------


def table_flow(frame: pd.DataFrame, **changes: Any) -> TableFlow:
    """A chain of trees, fitted."""
    return TableFlow(random_state=SEED, **changes).fit(frame)


def table_of(frame: pd.DataFrame, given: Any = None, **changes: Any) -> Outcome:
    """A chain fitted to a table, and samples, all with what is `given`."""
    flow = table_flow(frame, **changes)
    return Outcome(flow, [flow.sample(N_DRAWN, random_state=DRAW_SEED, given=given)])


@case
def tables_numbers() -> Outcome:
    """Numbers only, all from trees."""
    return table_of(number_table(), tree_settings=TREES_ONLY)


@case
def tables_mixed_kinds() -> Outcome:
    """A column of every kind, and missing cells; the rows choose how fine trees are."""
    return table_of(mixed_table())


@case
def tables_without_missing() -> Outcome:
    """No missing cells are drawn, and kinds of columns are given."""
    kinds = {"age": "category", "written": "drop"}
    frame = mixed_table()
    return table_of(frame, kinds=kinds, missing="never", tree_settings=TREES_ONLY)


@case
def tables_given() -> Outcome:
    """Rows with a value, a range and one of a list."""
    given = {"plan": "gold", "age": (30, 60), "level": ["low", "high"]}
    return table_of(mixed_table(), given, tree_settings=TREES_ONLY)


@case
def tables_constraints() -> Outcome:
    """What must hold between columns."""
    frame = number_table()
    frame["total"] = frame["c"] + frame["d"]
    frame["most"] = frame["b"] + frame["a"].abs()
    rules = ["total = c + d", "b <= most", "d >= 0"]
    return table_of(frame, constraints=rules, tree_settings=TREES_ONLY)


@case
def tables_impute() -> Outcome:
    """Missing cells filled, twice."""
    frame = mixed_table()
    flow = table_flow(frame, tree_settings=TREES_ONLY)
    return Outcome(flow, flow.impute(frame[:60], n=2, random_state=DRAW_SEED))


@case
def tables_impute_numbers() -> Outcome:
    """Hidden numbers filled."""
    frame = number_table()
    flow = table_flow(frame, tree_settings=TREES_ONLY)
    hidden = np.random.default_rng(9).random(frame.shape) < 0.2
    filled = flow.impute(frame.mask(hidden), random_state=DRAW_SEED)
    return Outcome(flow, [filled])


@case
def tables_lines() -> Outcome:
    """Numbers drawn along regressions, and hidden ones filled along them."""
    frame = line_table()
    flow = table_flow(frame, tree_settings=TREES_ONLY)
    hidden = np.random.default_rng(12).random(frame.shape) < 0.2
    filled = flow.impute(frame.mask(hidden), random_state=DRAW_SEED)
    return Outcome(flow, [flow.sample(N_DRAWN, random_state=DRAW_SEED), filled])


@case
def tables_label_levels() -> Outcome:
    """Every level of a label has trees of its own."""
    return table_of(labeled_table(), tree_settings=TREES_ONLY)


@case
def tables_near_rows() -> Outcome:
    """Smooth numbers of few rows; the rows choose to draw them from neighbors."""
    return table_of(factor_table())


@case
def tables_near_rows_given() -> Outcome:
    """Neighbors beside a category, under a condition."""
    frame = factor_table()
    frame["side"] = np.where(frame["a"] > 0, "right", "left")
    return table_of(
        frame, {"side": "left", "b": (-1.0, 1.0)}, tree_settings=(5, 2.0, 12)
    )


@case
def tables_add_and_forget() -> Outcome:
    """Rows join, and others are forgotten."""
    frame = mixed_table()
    flow = table_flow(frame[:100], tree_settings=TREES_ONLY)
    flow.partial_fit(frame[100:], refit=False)
    flow.forget(frame[:20])
    return Outcome(flow, [flow.sample(N_DRAWN, random_state=DRAW_SEED)])


# --- posteriors ----------------------------------------------------------------------


def simulations(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Parameters (n, 2) from a uniform prior, and what was simulated with each."""
    rng = np.random.default_rng(10)
    theta = rng.uniform(-1, 1, (n, 2))
    return theta, theta**2 + 0.1 * rng.normal(size=(n, 2))


@case
def posteriors_bounded() -> Outcome:
    """Samples between bounds, at one observation and at several, and their mode."""
    theta, x = simulations()
    fitted = posterior(theta, x, bounds=(-1, 1)).set_default_x([0.25, 0.25])
    samples = fitted.sample((N_DRAWN,), random_state=DRAW_SEED)
    batched = fitted.sample_batched((N_DRAWN,), x[:3], random_state=DRAW_SEED)
    return Outcome(fitted, [samples, batched, fitted.map()])


@case
def posteriors_float32() -> Outcome:
    """Tensors of single precision, without bounds."""
    theta, x = simulations()
    fitted = posterior(torch.from_numpy(theta).float(), torch.from_numpy(x).float())
    samples = fitted.sample((N_DRAWN,), x=[0.25, 0.25], random_state=DRAW_SEED)
    return Outcome(fitted, [samples])


@case
def posteriors_by_likelihood() -> Outcome:
    """Chains over parameters, along a likelihood that is fitted to all simulations."""
    theta, x = simulations()
    fitted = posterior(theta, x, bounds=(-1, 1), method="likelihood")
    samples = fitted.sample((N_DRAWN,), x=[0.25, 0.25], random_state=DRAW_SEED)
    batched = fitted.sample_batched((N_DRAWN,), x[:2], random_state=DRAW_SEED)
    return Outcome(fitted, [samples, batched])


# --- densities -----------------------------------------------------------------------


def density_of(X: Any, y: Any = None, y0: Any = None, **changes: Any) -> Outcome:
    """A density fitted to rows; samples, and log-densities and noise of the rows.

    `y0` is the condition of the samples. None takes those of the data.
    """
    model = SlicedDensity(random_state=SEED, device="cpu", **changes).fit(X, y)
    drawn = model.sample(N_DRAWN, y=y0, random_state=DRAW_SEED)
    scores = model.score_samples(X, y)
    return Outcome(model, [drawn, scores, model.transform(X, y)])


@case
def densities_plain() -> Outcome:
    """All settings chosen by cross-validation."""
    return density_of(random_rows())


@case
def densities_of_many_rows() -> Outcome:
    """All settings chosen by one split of the rows."""
    return density_of(random_rows(1_200))


@case
def densities_steps() -> Outcome:
    """Single precision in a DataFrame, and settings that are given."""
    frame = pd.DataFrame(random_rows().astype(np.float32), columns=["a", "b", "c"])
    return density_of(frame, n_steps=6, n_components=2, penalty=30.0)


@case
def densities_labels() -> Outcome:
    """Classes with densities of their own, and one of too few rows for that."""
    y = cyclic_labels()
    y[:5] = 3
    model, drawn = density_of(random_rows(), y, n_steps=4)
    at_class = model.sample(N_DRAWN, y=1, random_state=DRAW_SEED)
    any_class = model.score_samples(random_rows(20, seed=8))
    return Outcome(model, [*drawn, at_class, any_class])


@case
def densities_continuous_y() -> Outcome:
    """Means and scales that follow numbers, and residuals that are not normal."""
    rng = np.random.default_rng(13)
    y = rng.uniform(-1, 1, (500, 2))
    noise = rng.gamma(0.7, 1, (500, 2)) * np.exp(0.5 * y[:, :1])
    rows = np.sin(3 * y) + noise
    return density_of(rows, y, y0=[0.2, -0.4])


@case
def densities_bounds() -> Outcome:
    """Columns between two bounds."""
    rows = np.random.default_rng(14).beta(0.8, 1.5, (200, 2))
    return density_of(rows, bounds=(0, 1), n_steps=4)


@case
def densities_mixed_columns() -> Outcome:
    """Columns with no bound, one and two, a heavy tail, and one with many ties."""
    rng = np.random.default_rng(15)
    n = 600
    columns = [
        rng.normal(size=n),
        np.exp(rng.normal(size=n)),
        -np.exp(rng.normal(size=n)),
        rng.random(n),
        rng.standard_cauchy(n),
        rng.poisson(2, n),
    ]
    infinite = np.inf
    low = [-infinite, 0, -infinite, 0, -infinite, -infinite]
    high = [infinite, infinite, 0, 1, infinite, infinite]
    return density_of(np.column_stack(columns), bounds=(low, high), n_steps=4)


# --- hashes --------------------------------------------------------------------------


def digest(parts: Iterable[bytes]) -> str:
    """A short hash of bytes in their order."""
    state = hashlib.blake2b(digest_size=HASH_BYTES)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()


def as_bytes(value: Any) -> bytes:
    """All bits of an array, tensor, DataFrame or None, with its types and shape."""
    if value is None:
        return b"None"
    if isinstance(value, pd.DataFrame):
        types = [repr(dtype) for dtype in value.dtypes]
        return f"{list(value.columns)} {types}\n{value.to_csv()}".encode()
    kind = type(value).__name__
    array = np.asarray(value)
    if array.dtype == object:
        return f"{kind} {array.shape} {array.tolist()!r}".encode()
    return f"{kind} {array.dtype} {array.shape} ".encode() + array.tobytes()


def samples_hash(outcome: Outcome) -> str:
    """The hash of what was drawn, and of the batched samples."""
    model = outcome.model
    batched = [getattr(model, "particles_", None)]
    batched.append(getattr(model, "particle_conditions_", None))
    return digest(as_bytes(value) for value in [*outcome.drawn, *batched])


def file_hash(model: Any) -> str:
    """The hash of the model's file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model")
        model.save(path)
        return digest([path.read_bytes()])


def run_case(name: str) -> tuple[list[str], float]:
    """Both hashes of a case, and its seconds."""
    started_at = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # few rows are copied, or are far
        outcome = CASES[name]()
    hashes = [samples_hash(outcome), file_hash(outcome.model)]
    return hashes, time.perf_counter() - started_at


def differences(before: Hashes, after: Hashes) -> list[str]:
    """A line for every name whose hashes are not the same in both."""
    lines = []
    for name in sorted(before.keys() | after.keys()):
        if name not in before:
            lines.append(f"{name}: not among the saved ones")
        elif name not in after:
            lines.append(f"{name}: no such case any more")
        elif before[name] != after[name]:
            pairs = zip(HEADER[1:3], before[name], after[name], strict=True)
            changed = [part for part, old, new in pairs if old != new]
            lines.append(f"{name}: other {' and '.join(changed)}")
    return lines


def run_cases(only: str) -> tuple[Hashes, list[list[str]]]:
    """The hashes of all cases with `only` in their name, and lines of a table."""
    hashes: Hashes = {}
    lines = []
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums of several threads differ in their last bits
    try:
        with threadpool_limits(1):
            for name in CASES:
                if only in name:
                    hashes[name], seconds = run_case(name)
                    lines.append([name, *hashes[name], f"{seconds:.2f}"])
    finally:
        torch.set_num_threads(n_threads)
    return hashes, lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases and print their hashes; 1 if any is not the saved one, else 0."""
    parser = script_parser(__doc__)
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--save", type=Path, help="JSON file for the hashes")
    parser.add_argument("--compare", type=Path, help="JSON file of an earlier --save")
    args = parser.parse_args(arguments)
    saved: Hashes = {}
    if args.compare is not None:
        saved = json.loads(args.compare.read_text("utf-8"))

    hashes, lines = run_cases(args.only)
    total = sum(float(line[-1]) for line in lines)
    print(markdown_table(HEADER, lines))
    print(f"\n{len(lines)} cases, {total:.0f} seconds")

    if args.save is not None:
        args.save.write_text(json.dumps(hashes, indent=1) + "\n", encoding="utf-8")
    if args.compare is None:
        return 0
    expected = {name: saved[name] for name in saved if args.only in name}
    changes = differences(expected, hashes)
    print("\n".join(changes) or "all hashes are the saved ones")
    return int(bool(changes))


if __name__ == "__main__":
    sys.exit(main())
