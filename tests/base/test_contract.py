"""What every estimator promises, whatever its data: vectors, pictures, tables."""

import dataclasses
import pickle
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import sliceflow
from sliceflow import ImageFlow, SlicedDensity, SlicedWassersteinFlow, TableFlow
from sliceflow.estimators.density.progress import DensityTrialEvent
from sliceflow.estimators.tables.events import TableTrialEvent


class Case(NamedTuple):
    """An estimator that is not fitted, and its data in two parts."""

    estimator: Any
    first: Any
    second: Any

    @property
    def all_rows(self) -> Any:
        if isinstance(self.first, pd.DataFrame):
            return pd.concat([self.first, self.second], ignore_index=True)
        return np.concatenate((self.first, self.second))


def vectors() -> Case:
    x = np.random.default_rng(0).normal(size=(60, 3))
    flow = SlicedWassersteinFlow(
        n_particles=80, n_steps=3, save_rows=True, random_state=0, device="cpu"
    )
    return Case(flow, x[:40], x[40:])


def pictures() -> Case:
    x = np.random.default_rng(0).integers(0, 17, (40, 5, 4)).astype(np.uint8)
    flow = ImageFlow(
        n_pixel_values=17,
        n_particles=60,
        steps_per_stage=1,
        save_rows=True,
        random_state=0,
        device="cpu",
    )
    return Case(flow, x[:30], x[30:])


def table() -> Case:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "plan": rng.choice(["basic", "gold"], 90),
            "age": rng.integers(18, 80, 90),
            "spent": rng.gamma(2, 20, 90).round(2),
        }
    )
    return Case(TableFlow(random_state=0), frame[:60], frame[60:])


def density() -> Case:
    x = np.random.default_rng(0).normal(size=(60, 3))
    estimator = SlicedDensity(
        n_steps=3,
        penalty=100.0,
        n_components=1,
        save_rows=True,
        random_state=0,
        device="cpu",
    )
    return Case(estimator, x[:40], x[40:])


CASES = {
    "vectors": vectors,
    "pictures": pictures,
    "table": table,
    "density": density,
}


# Fields of plans that may be None until the fit has chosen them.
CHOSEN_BY_TRIAL = ("bandwidth", "strategies", "n_neighbors")


def has_none(value):
    """Whether a field of a plan, or one of its items, is None."""
    return value is None or (isinstance(value, tuple) and None in value)


@pytest.fixture(params=CASES, scope="module")
def name(request):
    return request.param


@pytest.fixture
def case(name):
    return CASES[name]()


@pytest.fixture(scope="module")
def fitted_flow(name):
    """The estimator of a case, fitted to its first rows. Tests change nothing of it."""
    case = CASES[name]()
    return case.estimator.fit(case.first)


def as_array(rows):
    return np.asarray(rows.to_numpy() if isinstance(rows, pd.DataFrame) else rows)


def assert_same_samples(one, other):
    samples = as_array(one.sample(7, random_state=1))
    np.testing.assert_array_equal(samples, as_array(other.sample(7, random_state=1)))


def test_a_clone_has_the_same_parameters_and_is_not_fitted(fitted_flow):
    copy = clone(fitted_flow)
    assert copy.get_params() == fitted_flow.get_params()
    with pytest.raises(NotFittedError):
        copy.sample(1)


def test_the_same_seed_gives_the_same_model(case, fitted_flow):
    assert_same_samples(case.estimator.fit(case.first), fitted_flow)


def test_a_fit_is_tuned_once(case):
    """`run` tunes, too: after `tune`, trials ran again for some kinds of data."""
    tuned = case.estimator.prepare(case.first).planned_fit.tune(())
    trials = []
    assert tuned.tune([trials.append]).plan == tuned.plan
    assert trials == []


def test_the_plan_is_what_the_fit_does(case, fitted_flow):
    plan = case.estimator.plan(case.first)
    fitted_plan = fitted_flow.plan_
    if isinstance(
        case.estimator, SlicedDensity
    ):  # trials choose how mixtures are fitted
        assert plan.classes[0].n_steps == fitted_plan.classes[0].n_steps == 3
        plan = dataclasses.replace(plan, classes=fitted_plan.classes)
    chosen = {}
    for name in CHOSEN_BY_TRIAL:
        if has_none(getattr(plan, name, 0)):
            chosen[name] = getattr(fitted_plan, name)
            assert not has_none(chosen[name])
    assert dataclasses.replace(plan, **chosen) == fitted_plan
    assert "<table" in plan._repr_html_()


def test_a_loaded_model_and_a_pickled_one_give_the_same_samples(fitted_flow, tmp_path):
    fitted_flow.save(tmp_path / "model")
    assert_same_samples(fitted_flow, sliceflow.load(tmp_path / "model"))
    assert_same_samples(fitted_flow, pickle.loads(pickle.dumps(fitted_flow)))


def test_rows_that_are_added_are_as_if_fitted_together(case):
    grown = clone(case.estimator).fit(case.first).partial_fit(case.second)
    assert_same_samples(grown, case.estimator.fit(case.all_rows))


def test_rows_that_are_forgotten_are_as_if_never_seen(case, fitted_flow):
    shrunk = case.estimator.fit(case.all_rows).forget(case.second)
    assert_same_samples(shrunk, fitted_flow)


def test_a_single_row_is_added_and_forgotten(case, fitted_flow):
    flow = case.estimator.fit(case.first)
    flow.partial_fit(case.second[:1]).forget(case.second[:1])
    assert_same_samples(flow, fitted_flow)


def test_a_fit_that_fails_leaves_the_old_model(case):
    flow = case.estimator.fit(case.first)
    before = as_array(flow.sample(5, random_state=0))
    with pytest.raises((ValueError, TypeError, OSError)):
        flow.fit("there is no such file")
    np.testing.assert_array_equal(as_array(flow.sample(5, random_state=0)), before)


def test_listeners_hear_of_every_step_and_the_history_has_them(case):
    heard = []
    flow = case.estimator.fit(case.first, listeners=heard.append)
    assert [event.steps_done for event in heard][-1] == heard[-1].steps_total
    assert all(event.describe() for event in heard)
    trial_types = TableTrialEvent | DensityTrialEvent
    steps = [event for event in heard if not isinstance(event, trial_types)]
    assert len(steps) == len(next(iter(flow.history_.values())))


@pytest.mark.parametrize("n", [0, -1, 1.5, "three"])
def test_a_number_of_samples_that_is_none_is_refused(fitted_flow, n):
    with pytest.raises(ValueError, match="n="):
        fitted_flow.sample(n)
