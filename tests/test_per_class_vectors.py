"""`SlicedWassersteinFlow(amplifier=math.inf)`: every class of vectors is fitted by itself.

The flow of class number c is that of its rows alone, with ``Seed.from_random_state(random_state).child("class", c)``
for its seed and the class's share of the particles. Its samples have the same child of their own seed.
"""

import math
import pickle
import re
import signal

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sliceflow
from sliceflow import SlicedWassersteinFlow, VectorOptions, frames, metrics, transports
from sliceflow.engine.random import Seed
from sliceflow.errors import NotEnoughMemoryError
from sliceflow.models.ranks import Ranks
from sliceflow.spaces.vectors import fit as fitting

RNG = np.random.default_rng(0)
X = np.concatenate((RNG.normal(size=(60, 2)), RNG.normal(5, 3, (30, 2)) ** 2))
Y = np.array(["cat"] * 60 + ["dog"] * 30)
ORDER = RNG.permutation(90)
X, Y = X[ORDER], Y[ORDER]
quick = dict(n_particles=150, n_steps=5, device="cpu", options=VectorOptions(n_knots=16))


def flow(**parameters):
    return SlicedWassersteinFlow(**{**quick, "amplifier": math.inf, "random_state": 3} | parameters)


def alone(c, n_particles, **parameters):
    """The flow of class number c, to be fitted to its rows alone."""
    seed = Seed.from_random_state(parameters.pop("random_state", 3)).child("class", c)
    return flow(**parameters, n_particles=n_particles, random_state=seed)


# What equals what


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        dict(transport="sorted"),
        dict(transport=transports.Histogram(16, most=40)),
        dict(frame=frames.Random(7), entropy=0.01),
        dict(standardize=False),
        dict(early_stopping=True, n_steps=30),
        dict(options=VectorOptions(n_axis_steps=0)),
        dict(preset="paper", frame=frames.Random(9)),
    ],
    ids=str,
)
def test_every_class_is_the_flow_of_its_rows_alone(parameters):
    together = flow(**parameters).fit(X, Y)
    samples, labels = together.sample(50, random_state=8, return_y=True)
    for c, name in enumerate(["cat", "dog"]):
        of_particles, of_samples = together.particle_conditions_ == name, labels == name
        own = alone(c, int(of_particles.sum()), **parameters).fit(X[name == Y])
        assert np.array_equal(together.particles_[of_particles], own.particles_)
        seed = Seed(8).child("class", c)
        drawn = own.sample(int(of_samples.sum()), random_state=seed)
        assert np.array_equal(samples[of_samples], drawn)
        assert np.array_equal(
            together.sample(9, y=name, random_state=8), own.sample(9, random_state=seed)
        )


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=30),
    st.integers(3, 40),
    st.integers(0, 2**32),
)
def test_shares_are_the_datas_and_no_class_is_left_out(labels, m, seed):
    x, names = np.arange(2.0 * len(labels)).reshape(-1, 2), np.array(labels)
    parameters = flow(n_particles=m, random_state=seed, n_steps=1)._parameters()
    jobs, y, codes = fitting.prepare_classes(
        parameters,
        flow()._read(x, names, Ranks())[0],
        None,
        Seed(seed),
        torch.device("cpu"),
        Ranks(),
    )
    assert [job.name for job in jobs] == sorted(set(labels))
    assert len(y) == m
    for c, job in enumerate(jobs):
        share = int((y == job.name).sum())
        assert share == int((codes == c).sum()) == job.plan.n_particles >= 1
        assert abs(share - m * labels.count(job.name) / len(labels)) <= len(jobs)
        assert np.allclose(job.units.decode(job.rows.x.T), x[names == job.name])


def test_the_plan_says_so():
    plan = flow().plan(X, Y)
    assert (plan.method, plan.condition, plan.n_conditions) == ("per class", "labels", 2)
    assert (plan.n_rows, plan.n_particles, plan.n_moved) == (90, 150, 4000)
    assert plan.amplifier == math.inf
    fitted = flow().fit(X, Y)
    assert fitted.plan_ == plan
    assert fitted.plan_.n_particles == len(fitted.particles_)
    assert flow().plan(X).method == "SWF"


def test_without_a_condition_it_is_an_ordinary_flow():
    wanted = flow(amplifier=10.0).fit(X)
    assert np.array_equal(flow().fit(X).particles_, wanted.particles_)


def test_a_single_class_is_a_class():
    fitted = flow().fit(X, ["only"] * 90)
    x, y = fitted.sample(5, random_state=1, return_y=True)
    assert y.tolist() == ["only"] * 5
    assert np.array_equal(x, fitted.sample(5, y="only", random_state=1))
    assert np.array_equal(fitted.particles_, alone(0, 150).fit(X).particles_)


# Particles of the user's own classes


def test_particles_have_the_conditions_that_are_asked_for():
    wanted = np.array(["dog", "dog", "cat", "dog"] * 10)
    fitted = flow(n_particles=None).fit(X, Y, particle_conditions=wanted)
    assert fitted.particle_conditions_.tolist() == wanted.tolist()
    for c, (name, n) in enumerate([("cat", 10), ("dog", 30)]):
        own = alone(c, n).fit(X[name == Y])
        assert np.array_equal(fitted.particles_[wanted == name], own.particles_)


def test_a_class_without_particles_can_be_sampled_from():
    fitted = flow(n_particles=None).fit(X, Y, particle_conditions=["dog"] * 20)
    assert fitted.particles_.shape == (20, 2)
    assert fitted.plan_.n_particles == 20
    x = fitted.sample(500, y="cat", random_state=0)
    assert np.abs(x.mean(0) - X[Y == "cat"].mean(0)).max() < 0.3


def test_a_class_of_one_row_comes_back_as_that_row():
    x, y = np.concatenate((X, [[100.0, -7.0]])), [*Y, "emu"]
    fitted = flow().fit(x, y)
    assert (fitted.particle_conditions_ == "emu").sum() >= 1
    assert np.allclose(fitted.particles_[fitted.particle_conditions_ == "emu"], [100, -7])
    assert np.allclose(fitted.sample(4, y="emu"), [100, -7])


# Kinds of X


def test_float32_stays_float32():
    fitted = flow().fit(X.astype(np.float32), Y)
    assert fitted.particles_.dtype == fitted.sample(3).dtype == np.float32
    assert fitted.plan_.dtype == "float32"


def test_tensors_come_back_as_tensors():
    fitted, wanted = flow().fit(torch.from_numpy(X), Y), flow().fit(X, Y)
    assert isinstance(fitted.particles_, torch.Tensor)
    assert np.array_equal(fitted.particles_.numpy(), wanted.particles_)
    drawn = fitted.sample(20, random_state=0)
    assert isinstance(drawn, torch.Tensor)
    assert np.array_equal(drawn.numpy(), wanted.sample(20, random_state=0))


def test_data_frames_come_back_as_data_frames():
    frame = pd.DataFrame({"length": X[:, 0].astype(np.float32), "width": X[:, 1]})
    fitted = flow().fit(frame, pd.Series(Y))
    for out in (fitted.particles_, fitted.sample(20)):
        assert out.columns.tolist() == ["length", "width"]
        assert [str(dtype) for dtype in out.dtypes] == ["float32", "float64"]


# Events and history


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("n_axis_steps", [0, 2])
def test_steps_of_all_classes_are_counted_as_one_fit(early, n_axis_steps):
    heard = []
    options = VectorOptions(n_axis_steps=n_axis_steps, n_iter_no_change=2, tol=0.1)
    parameters = dict(early_stopping=early, n_steps=15, options=options)
    fitted = flow(**parameters).fit(X, Y, listeners=heard.append)
    assert [event.steps_done for event in heard] == list(range(1, len(heard) + 1))
    assert heard[0].steps_total == 2 * (15 + n_axis_steps)
    assert heard[-1].steps_done == fitted.n_iter_ == len(heard)
    if n_axis_steps or not early:  # the step that ends a stage is told before the others are spared
        assert heard[-1].steps_total == fitted.n_iter_
    assert (fitted.n_iter_ < heard[0].steps_total) == early
    assert fitted.history_["stage"] == [event.stage for event in heard]
    assert fitted.history_["step"] == [event.step for event in heard]
    names = [f"{name}: {stage}" for name in ("cat", "dog") for stage in ("flow", "axis")]
    assert list(dict.fromkeys(fitted.history_["stage"])) == [
        name for name in names if n_axis_steps or "flow" in name
    ]
    # A stage has a number of its own: listeners that keep a state for each can tell them apart.
    of = {event.stage_index: event.stage for event in heard}
    assert [of[event.stage_index] for event in heard] == [event.stage for event in heard]
    assert list(of) == list(range(len(of)))
    for seconds in ([event.seconds for event in heard], fitted.history_["seconds"]):
        assert np.all(np.diff(seconds) >= 0)


def test_a_listener_ends_the_stage_of_one_class():
    fitted = flow().fit(X, Y, listeners=lambda event: event.stage == "cat: flow" and event.step == 1)
    assert fitted.history_["stage"].count("cat: flow") == 2
    assert fitted.history_["stage"].count("dog: flow") == 5


# Checkpoints


class Killed(Exception):
    pass


def killer(step):
    """A listener that breaks the fit after so many steps."""

    def kill(event):
        if event.steps_done > step:
            raise Killed

    return kill


def same(a, b):
    assert np.array_equal(a.particles_, b.particles_)
    assert np.array_equal(a.sample(20, random_state=0), b.sample(20, random_state=0))
    for name in ("stage", "step", "distance"):
        assert a.history_[name] == b.history_[name]


@pytest.mark.parametrize(("early", "every"), [(False, 0), (True, 0), (False, 1000)])
def test_a_fit_killed_in_the_second_class_goes_on_to_the_same_bits(tmp_path, early, every):
    parameters = dict(early_stopping=early)
    whole = flow(**parameters).fit(X, Y)
    for step in (9, 12):
        kept = dict(checkpoint_dir=tmp_path, checkpoint_every=every)
        with pytest.raises(Killed):
            flow(**parameters).fit(X, Y, **kept, listeners=killer(step))
        heard = []
        again = flow(**parameters).fit(X, Y, **kept, listeners=heard.append)
        same(again, whole)
        # The first class is not moved again; axis steps are few, and done again.
        assert not [event for event in heard if event.stage == "cat: flow"]
        assert heard[-1].steps_done == heard[-1].steps_total == whole.n_iter_
        assert not list(tmp_path.iterdir())  # nothing is left of a fit that ended well


def test_a_random_seed_is_that_of_the_class_that_was_killed(tmp_path):
    kept = dict(checkpoint_dir=tmp_path, checkpoint_every=0)
    before, after = [], []
    with pytest.raises(Killed):
        flow(random_state=None).fit(
            X, Y, **kept, listeners=(lambda e: before.append(e.particles.clone()), killer(9))
        )
    again = flow(random_state=None).fit(
        X, Y, **kept, listeners=lambda e: after.append((e.steps_done, e.particles.clone()))
    )
    at_kill = dict(after)[10]
    assert torch.equal(at_kill, before[-1])  # the step that was lost, done again
    assert torch.equal(dict(after)[7], before[6])  # the axis steps of the first class, done again
    assert np.isfinite(again.particles_).all()


def test_ctrl_c_says_how_to_go_on(tmp_path):
    def press(event):
        if event.stage == "dog: flow" and event.step == 2:
            signal.raise_signal(signal.SIGINT)

    folder = tmp_path / "kept"
    message = f"stopped after 3 steps of class-1; .* and checkpoint_dir={re.escape(repr(str(folder)))}$"
    with pytest.raises(KeyboardInterrupt, match=message):
        flow().fit(X, Y, checkpoint_dir=folder, listeners=press)
    heard = []
    again = flow().fit(X, Y, checkpoint_dir=folder, listeners=heard.append)
    same(again, flow().fit(X, Y))
    assert [event.step for event in heard if event.stage == "dog: flow"] == [3, 4]


def test_a_checkpoint_of_another_plan_is_refused(tmp_path):
    kept = dict(checkpoint_dir=tmp_path, checkpoint_every=0)
    with pytest.raises(Killed):
        flow().fit(X, Y, **kept, listeners=killer(9))
    with pytest.raises(ValueError, match=r"another fit: n_steps was 5 and is 6; repeat"):
        flow(n_steps=6).fit(X, Y, **kept)


# Files


@pytest.mark.parametrize("labels", [Y, np.arange(90) % 4, ["only"] * 90], ids=["2", "4", "1"])
@pytest.mark.parametrize("n_axis_steps", [0, 2])
def test_a_saved_model_draws_the_same_samples(tmp_path, labels, n_axis_steps):
    options = VectorOptions(n_axis_steps=n_axis_steps, n_knots=16)
    fitted = flow(options=options).fit(X, labels)
    fitted.save(tmp_path / "model", particles=True)
    again = sliceflow.load(tmp_path / "model", device="cpu")
    assert again.amplifier == math.inf
    assert np.array_equal(again.classes_, fitted.classes_)
    assert np.array_equal(again.particles_, fitted.particles_)
    assert np.array_equal(again.particle_conditions_, fitted.particle_conditions_)
    assert again.history_ == fitted.history_
    x, y = again.sample(30, random_state=1, return_y=True)
    wanted, names = fitted.sample(30, random_state=1, return_y=True)
    assert np.array_equal(x, wanted)
    assert np.array_equal(y, names)
    assert again.score(X, labels) == fitted.score(X, labels)


def test_files_keep_heavy_tails_of_one_class(tmp_path):
    """A class whose columns are bent, beside one whose columns are not."""
    x = np.where((Y == "cat")[:, None], np.exp(3 * X), X)
    fitted = flow().fit(x, Y)
    fitted.save(tmp_path / "model")
    again = sliceflow.load(tmp_path / "model", device="cpu")
    assert np.array_equal(again.sample(30, random_state=1), fitted.sample(30, random_state=1))


def test_pickles_draw_the_same_samples():
    fitted = flow().fit(X, Y)
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.sample(30, random_state=1), fitted.sample(30, random_state=1))
    assert again.plan_ == fitted.plan_


# What is refused


def test_columns_are_refused():
    message = r"^amplifier=inf fits each class separately, but y is continuous; use a finite amplifier"
    for call in (flow().fit, flow().plan):
        with pytest.raises(ValueError, match=message):
            call(X, X[:, :1])


def test_several_ranks_are_refused():
    with pytest.raises(
        ValueError, match="which several ranks cannot do together; use a finite amplifier"
    ):
        fitting.prepare_classes(
            flow()._parameters(),
            flow()._read(X, Y, Ranks())[0],
            None,
            Seed(0),
            torch.device("cpu"),
            Ranks(0, 2),
        )


def test_one_rank_is_no_obstacle():
    wanted, alone = flow().fit(X, Y), flow().fit(X, Y, ranks=Ranks())
    assert alone.plan_ == wanted.plan_
    assert np.allclose(alone.particles_, wanted.particles_)


def test_weights_of_classes_are_refused():
    fitted, weights = flow().fit(X, Y), np.full((4, 2), 0.5)
    with pytest.raises(ValueError, match="y must be class labels, not weights"):
        fitted.sample(4, y=weights)
    with pytest.raises(ValueError, match="needs class labels as particle_conditions, not weights"):
        flow(n_particles=None).fit(X, Y, particle_conditions=weights)


def test_unknown_labels_are_refused():
    fitted = flow().fit(X, Y)
    with pytest.raises(ValueError, match="unknown label 'emu'; the model knows 'cat', 'dog'"):
        fitted.sample(4, y="emu")
    with pytest.raises(ValueError, match="n_particles=1 is fewer than the 2 classes of y"):
        flow(n_particles=1).fit(X, Y)


def test_a_class_too_small_to_hold_rows_out_is_named():
    with pytest.raises(ValueError, match="holds out 1 of 1 rows of class emu and leaves none"):
        flow(early_stopping=True).fit(np.concatenate((X, X[:1])), [*Y, "emu"])


def test_too_many_particles_are_refused_at_once():
    messages = []
    for call in (flow(n_particles=10**13).plan, flow(n_particles=10**13).fit):
        with pytest.raises(NotEnoughMemoryError, match=r"^n_particles=\d+ with 60 rows") as caught:
            call(X, Y)
        messages.append(str(caught.value).split(" but ")[0])
    assert messages[0] == messages[1]


def test_the_models_of_all_classes_need_memory(monkeypatch):
    """One class after the other is fitted, but what was fitted stays."""
    x, options = np.random.default_rng(0).normal(size=(400, 2)), VectorOptions(n_knots=16, smoothing=0)
    many = flow(n_steps=5000, n_particles=400, options=options)
    one, forty = (many.plan(x, np.arange(400) % n).nbytes for n in (1, 40))
    assert forty > one + 38 * 2 * 8 * 16 * 2 * 5000  # 16 knots a map, 2 maps a step
    monkeypatch.setattr("sliceflow.devices.free_memory", lambda device: forty - 1)
    assert many.plan(x, [0] * 400).nbytes == one
    with pytest.raises(NotEnoughMemoryError, match="400 with 40 classes, each with maps of its own"):
        many.fit(x, np.arange(400) % 40)


# Rows that come one after the other


def test_partial_fit_has_maps_of_every_class(tmp_path):
    whole = flow().partial_fit(X, Y)
    assert whole.plan_.method == "per class"
    parts = flow().partial_fit(X[:40], Y[:40], refresh=False).partial_fit(X[40:], Y[40:])
    assert np.array_equal(whole.particles_, parts.particles_)
    whole.save(tmp_path / "model")
    again = sliceflow.load(tmp_path / "model", device="cpu")
    assert np.array_equal(again.sample(30, random_state=0), whole.sample(30, random_state=0))
    for name in ("cat", "dog"):
        own = X[name == Y]
        gap = np.abs(whole.sample(2000, y=name, random_state=0).mean(0) - own.mean(0)) / own.std(0)
        assert gap.max() < 0.3


# What it is good for


def test_classes_of_very_different_scales_come_out_better_than_together():
    rng = np.random.default_rng(1)
    x = np.concatenate((rng.normal(0, 100, (300, 2)), rng.uniform(0, 0.1, (300, 2))))
    y = np.arange(600) // 300
    far = {}
    for xi in (10.0, math.inf):
        options = VectorOptions(smoothing=0)
        fitted = SlicedWassersteinFlow(2000, 40, amplifier=xi, random_state=0, options=options).fit(
            x, y
        )
        for c in (0, 1):
            own = x[y == c]
            drawn = fitted.sample(1000, y=c, random_state=0)
            far[xi, c] = metrics.sliced_wasserstein(drawn / own.std(0), own / own.std(0))
    assert far[math.inf, 1] < 0.1 < far[10.0, 1]
    assert far[math.inf, 0] < 1.2 * far[10.0, 0]
