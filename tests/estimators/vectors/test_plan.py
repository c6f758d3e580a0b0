"""Plans of vectors: numbers of particles and knots, and memory."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models import LABELS, X, vectors
from sliceflow import SlicedWassersteinFlow, VectorOptions, frames, transports
from sliceflow.engine.encoded_y import ClassIndices, ContinuousY
from sliceflow.engine.frames import (
    Axis,
    MaxSliced,
    Orthogonal,
    Random,
    frame_bytes,
)
from sliceflow.errors import ParameterError
from sliceflow.estimators.vectors.costs import fit_bytes
from sliceflow.estimators.vectors.plan import resolve_n_flow_knots


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 4000), st.booleans())
def test_a_plan_has_what_was_asked_for(n, d, m, single):
    x = (
        np.random.default_rng(n)
        .normal(size=(n, d))
        .astype(np.float32 if single else np.float64)
    )
    plan = vectors(n_particles=m).plan(x)
    assert (plan.n_rows, plan.n_columns, plan.n_particles) == (n, d, m)
    assert plan.n_moved_particles == max(m, 2000)
    assert (plan.bandwidth is None) == (n >= 10)
    assert plan.dtype == str(x.dtype)
    assert vectors(n_particles=m + 2000).plan(x).nbytes >= plan.nbytes


def test_the_default_number_of_particles_is_a_multiple_of_the_rows():
    for n, m in ((300, 10_200), (3000, 12_000), (11_000, 11_000)):
        assert (
            SlicedWassersteinFlow(n_steps=1)
            .plan(np.arange(2.0 * n).reshape(-1, 2))
            .n_particles
            == m
        )


def test_a_rare_class_has_knots():
    rare = ClassIndices(torch.tensor([0] * 990 + [1] * 10))
    rarer = ClassIndices(torch.tensor([0] * 99_990 + [1] * 10))
    assert resolve_n_flow_knots(512, rare) == 3200
    assert resolve_n_flow_knots(512, rarer) == 4096  # no more
    assert resolve_n_flow_knots(512, ContinuousY(torch.zeros(100, 2))) == 512


def test_the_stages_end_with_exact_axis_steps():
    flow, axis = (
        vectors(3, n_steps=20, transport=transports.HistogramTransport(9))
        .plan(X)
        .stages()
    )
    assert (flow.frame_kind, flow.n_steps, flow.transport) == (
        Orthogonal(),
        20,
        transports.HistogramTransport(9),
    )
    assert (flow.is_axis_stage, flow.max_knots, flow.taper) == (False, 16, 0.5)
    assert (axis.frame_kind, axis.n_steps, axis.transport) == (
        Axis(),
        3,
        transports.SortedTransport(),
    )
    assert (axis.is_axis_stage, axis.max_knots, axis.taper) == (True, 16, 0)
    assert [stage.name for stage in vectors(0).plan(X).stages()] == ["flow"]
    assert vectors(0, n_steps=0).plan(X).stages() == []
    assert not hasattr(vectors().plan(X, X[:, :1]), "stages")  # nothing flows


def test_classes_of_their_own_are_planned_together():
    plan = vectors(amplifier=math.inf).plan(X, LABELS)
    assert (plan.method, plan.condition_kind, plan.condition_dim) == (
        "per class",
        "labels",
        3,
    )
    assert (plan.n_rows, plan.n_particles, plan.n_moved_particles) == (60, 80, 3000)
    many = vectors(amplifier=math.inf, n_steps=5000)
    of_one_class = many.plan(X, LABELS % 1).nbytes
    of_three_classes = many.plan(X, LABELS).nbytes
    maps_of_a_class = 8 * 2 * 16 * 3 * 5000  # the maps of all classes stay
    assert of_three_classes > of_one_class + 2 * maps_of_a_class


def test_an_estimate_grows_with_all_that_a_fit_has():
    def estimate(n=100, d=5, m=3000, **changes):
        return (
            vectors(n_particles=m, **changes)
            .plan(np.arange(1.0 * n * d).reshape(n, d))
            .nbytes
        )

    least = estimate()
    for more in (
        dict(n=10_000),
        dict(d=50),
        dict(m=30_000),
        dict(n_steps=3000),
        dict(options=VectorOptions(n_knots=1024)),
        dict(transport=transports.HistogramTransport(1 << 20)),
        dict(frame=frames.Random(5000)),
    ):
        assert estimate(**more) > least, more
    assert (
        vectors(transport=transports.SortedTransport()).plan(X).nbytes < 1 << 28
    )  # no bins are counted


def test_only_frames_that_are_drawn_take_memory():
    assert frame_bytes(Axis(), 10**6, 3, 8) == 0
    assert frame_bytes(Orthogonal(), 10, 0, 8) == 0
    assert frame_bytes(Random(10_000), 300, 2, 4) >= 10_000 * 302 * (8 + 4)
    assert frame_bytes(MaxSliced(), 300, 0, 4) > frame_bytes(Orthogonal(), 300, 0, 4)


def test_each_rank_has_its_share_of_the_particles_of_axis_steps():
    plan = vectors(2, n_particles=4000, n_steps=1).plan(np.zeros((4000, 3)))
    assert plan.n_fresh_particles == 65_536
    of_two = dataclasses.replace(plan, n_ranks=2)
    of_four = dataclasses.replace(plan, n_ranks=4)
    points_elsewhere = plan.n_fresh_particles // 4
    bytes_of_points = points_elsewhere * plan.n_columns * plan.torch_dtype.itemsize
    assert fit_bytes(of_two, 100, 100) - fit_bytes(of_four, 100, 100) >= bytes_of_points


def test_a_plan_counts_the_time_of_fresh_particles():
    """The flow moves 11,000 points, and the model 65,536: not for nothing."""
    X = np.random.default_rng(0).normal(size=(1000, 2))
    plan = vectors(2, n_particles=10_000, n_steps=200).plan(X)
    assert plan.n_fresh_particles == 65_536
    without = vectors(0, n_particles=10_000, n_steps=200).plan(X)
    assert plan.seconds > 1.5 * without.seconds
    more_steps = vectors(20, n_particles=10_000, n_steps=200).plan(X)
    assert more_steps.seconds > plan.seconds


def test_a_plan_counts_no_more_directions_than_a_step_has():
    """In two columns, max-sliced steps have one direction, and axis steps have two."""
    X = np.random.default_rng(0).normal(size=(1000, 2))
    few = vectors(2, n_steps=50, frame=frames.MaxSliced(1)).plan(X)
    many = vectors(2, n_steps=50, frame=frames.MaxSliced(32)).plan(X)
    assert many.seconds == few.seconds
    assert many.nbytes == few.nbytes
    assert many.n_fresh_particles == few.n_fresh_particles


class WithoutY(Orthogonal):
    """A user's kind of frame that ignores the condition."""

    def make_frame(self, seed, step_index, x_p, condition_dim=0, x_q=None):
        return super().make_frame(seed, step_index, x_p)


class WithY(Orthogonal):
    """A user's kind of frame that sees the condition."""


BLIND = ["axis", Axis(), "max-sliced", WithoutY()]


@pytest.mark.parametrize("frame", BLIND, ids=str)
def test_labels_that_share_maps_need_a_frame_that_sees_them(frame):
    flow = vectors(frame=frame)
    message = r"does not see y; use frame='orthogonal', or amplifier=math\.inf"
    with pytest.raises(ParameterError, match=message) as raised:
        flow.plan(X, LABELS)
    assert raised.value.parameter == "frame"
    assert flow.plan(X).method == "SWF"
    assert flow.set_params(amplifier=0).plan(X, LABELS).method == "SWF"


@pytest.mark.parametrize("frame", BLIND, ids=str)
def test_a_joint_y_needs_a_frame_that_sees_it(frame):
    flow = vectors(frame=frame, condition_mode="joint")
    message = r"does not see y; use frame='orthogonal', or condition_mode='local'"
    with pytest.raises(ParameterError, match=message):
        flow.plan(X, X[:, :2])


def test_conditions_that_share_maps_need_steps():
    message = "n_steps=0 leaves no steps that see y; use n_steps=1 or more, or "
    with pytest.raises(ParameterError, match=message + r"amplifier=math\.inf"):
        vectors(n_steps=0).plan(X, LABELS)
    with pytest.raises(ParameterError, match=message + "condition_mode='local'"):
        vectors(n_steps=0, condition_mode="joint").plan(X, X[:, :2])
    assert vectors(n_steps=0).plan(X).method == "SWF"


@pytest.mark.parametrize(
    "changes", [dict(frame="axis"), dict(frame=WithoutY()), dict(n_steps=0)], ids=str
)
def test_classes_with_maps_of_their_own_need_no_steps_that_see_y(changes):
    far = X.copy()
    far[LABELS == 1, 0] += 100
    flow = vectors(2, amplifier=math.inf, **changes).fit(far, LABELS)
    assert flow.sample(50, y=0)[:, 0].max() < 50
    assert flow.sample(50, y=1)[:, 0].min() > 50


def test_a_users_frame_that_sees_y_is_taken():
    assert vectors(frame=WithY()).plan(X, LABELS).method == "CSWF ξ=10"
