"""Local conditions of `SlicedWassersteinFlow`: y continuous, or labels and columns."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from sliceflow import SlicedWassersteinFlow, VectorOptions
from sliceflow.errors import DataWarning
from sliceflow.estimators.vectors import local
from sliceflow.estimators.vectors.parameters import VectorParameters

RNG = np.random.default_rng(0)
Y = RNG.uniform(-2, 2, (400, 1))
X = np.concatenate((np.sin(Y), np.cos(Y)), 1) + 0.1 * RNG.normal(size=(400, 2))
LABELS = RNG.choice(["a", "b"], 400)
MIXED = pd.DataFrame({"kind": LABELS, "angle": Y[:, 0]})
FAR = 4.0 * (LABELS == "b")[:, None]


@pytest.fixture(scope="module")
def flow():
    return SlicedWassersteinFlow(random_state=0).fit(X, Y)


@pytest.fixture(scope="module")
def mixed():
    return SlicedWassersteinFlow(random_state=0).fit(X + FAR, MIXED)


def test_columns_are_local_by_default_and_the_plan_says_so(flow):
    assert flow.plan_.method == "local"
    assert 50 <= flow.plan_.n_local_neighbors < 400
    text = str(flow.plan_)
    assert "nearest of 400 rows" in text
    assert "by BIC" in text
    assert "exact, of 1 of 1 columns, weighted by relevance" in text
    before = flow.plan(X, Y)  # without a trial
    assert before.n_local_neighbors is None
    assert "auto nearest of 400 rows" in str(before)
    assert flow.particles_.shape == (200, 2)
    assert np.isin(flow.particle_conditions_.round(9), Y.round(9)).all()


def test_samples_lie_where_the_condition_says(flow):
    samples = flow.sample(2_000, y=1.0, random_state=0)
    assert np.abs(samples.mean(axis=0) - [np.sin(1), np.cos(1)]).max() < 0.04
    assert np.abs(samples.std(axis=0) - 0.1).max() < 0.03
    several = flow.sample(y=[[0.0], [1.0], [-1.0]], random_state=0)
    assert several.shape == (3, 2)
    assert (
        np.abs(
            several - [[0, 1], [np.sin(1), np.cos(1)], [-np.sin(1), np.cos(1)]]
        ).max()
        < 0.5
    )


def test_a_far_condition_warns_at_the_users_line(flow):
    with pytest.warns(UserWarning, match="extrapolated") as found:
        flow.sample(5, y=50.0, random_state=0)
    assert found[0].filename == __file__


def test_joint_and_the_paper_stay_joint():
    joint = SlicedWassersteinFlow(
        n_steps=3, condition_mode="joint", random_state=0
    ).fit(X, Y)
    assert joint.plan_.method == "CSWF ξ=10"
    paper = SlicedWassersteinFlow(n_steps=3, preset="paper").plan(X, Y)
    assert paper.method == "CSWF ξ=10"
    ignoring = SlicedWassersteinFlow(n_steps=3, amplifier=0, random_state=0).plan(X, Y)
    assert ignoring.method == "SWF"
    labels = SlicedWassersteinFlow(n_steps=3).plan(X, LABELS)
    assert labels.method == "CSWF ξ=10"


def test_labels_and_columns_in_one_y(mixed):
    assert "same labels" in str(mixed.plan_)
    for kind, far in (("a", 0), ("b", 4)):
        samples = mixed.sample(1_000, y=(kind, 1.0), random_state=0)
        assert np.abs(samples.mean(axis=0) - far - [np.sin(1), np.cos(1)]).max() < 0.08
    asked = pd.DataFrame({"kind": ["b", "a"], "angle": [0.0, 0.0]})
    for y in (asked, asked.to_numpy(), [("b", 0.0), ("a", 0.0)]):
        x, got = mixed.sample(y=y, random_state=0, return_y=True)
        assert x[0, 1] > 3 > x[1, 1]
        assert got.tolist() == [["b", 0.0], ["a", 0.0]]
    with pytest.raises(ValueError, match=r"unknown label \('c',\)"):
        mixed.sample(y=("c", 0.0))
    with pytest.raises(ValueError, match="2 columns, 1 of them labels"):
        mixed.sample(y=[("a", 0.0, 1.0)])


def test_objects_that_are_all_numbers_are_columns(flow):
    again = SlicedWassersteinFlow(random_state=0).fit(X, Y.astype(object))
    assert (again.particles_ == flow.particles_).all()


def test_tensors_and_frames_come_back_as_they_went():
    samples = SlicedWassersteinFlow(random_state=0).fit(torch.from_numpy(X).float(), Y)
    assert samples.sample(3, y=0.0).dtype == torch.float32
    frame = SlicedWassersteinFlow(random_state=0).fit(
        pd.DataFrame(X, columns=["s", "c"]), Y
    )
    assert list(frame.sample(3, y=0.0).columns) == ["s", "c"]


def test_a_value_of_a_constant_column_that_was_never_seen_warns():
    y = np.concatenate((Y, np.full_like(Y, 5.0)), 1)
    samples = SlicedWassersteinFlow(random_state=0).fit(X, y)
    with pytest.warns(UserWarning, match="standard deviations"):
        samples.sample(y=[[0.0, 7.0]])


@pytest.mark.parametrize(
    ("parameters", "y", "message"),
    [
        (
            dict(condition_mode="local"),
            LABELS,
            "needs continuous columns in y; pass y of shape",
        ),
        (dict(condition_mode="local"), None, "needs continuous columns in y"),
        (dict(condition_mode="joint"), MIXED, "y has labels and columns"),
        ({}, MIXED.assign(angle=np.nan), "y contains nan"),
        ({}, MIXED[["kind", "kind"]], "2 columns, all of them labels"),
    ],
)
def test_bad_input_is_named(parameters, y, message):
    with pytest.raises(ValueError, match=message):
        SlicedWassersteinFlow(**parameters).fit(X, y)


def test_many_samples_of_a_joint_flow_at_one_condition_warn(rng):
    x = rng.normal(size=(60, 2))
    y = x[:, :1]
    flow = SlicedWassersteinFlow(n_steps=3, condition_mode="joint", random_state=0)
    flow.fit(x, y)
    with pytest.warns(DataWarning, match="gather on a few spots"):
        flow.sample(100, y=[0.5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flow.sample(y=y)


@pytest.mark.parametrize(
    "changes",
    [
        dict(n_steps=5),
        dict(frame="random"),
        dict(transport="sorted", entropy=0.1),
        dict(amplifier=3.0),
        dict(options=VectorOptions(smoothing=0.2)),
    ],
    ids=lambda changes: "-".join(changes),
)
def test_parameters_of_the_flow_that_local_conditions_ignore_warn(changes):
    flow = SlicedWassersteinFlow(n_particles=5, random_state=0, **changes)
    names = ", ".join(changes)
    with pytest.warns(DataWarning, match=f"{names} ha.* no effect.*'joint'"):
        flow.fit(X, Y)


def test_parameters_that_local_conditions_use_do_not_warn():
    flow = SlicedWassersteinFlow(
        n_particles=5, random_state=0, standardize=False, options=VectorOptions()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flow.fit(X, Y)


def test_default_parameters_are_those_of_the_constructor():
    defaults = SlicedWassersteinFlow()._validated_parameters()
    assert defaults == VectorParameters()


def test_a_tuned_fit_tries_no_more(monkeypatch):
    """`run` fitted the samplers of a tuned fit again."""
    tuned = SlicedWassersteinFlow(random_state=0).prepare(X, Y).planned_fit.tune()
    monkeypatch.setattr(local, "fit_local_sampler", None)
    assert tuned.tune() is tuned
    assert len(tuned.run(()).particles.X) == tuned.plan.n_particles
