"""Rows that come and go: a model that forgot rows never saw them, byte for byte."""

import copy
import functools
import math
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

import sliceflow
from models import interrupt, pictures, saved, vectors
from sliceflow import SlicedDensity
from sliceflow.base.estimator import NoRowsError
from sliceflow.base.rows import Conditions, concatenate_y, row_keys
from sliceflow.base.vector_rows import VectorRows
from sliceflow.estimators.pictures.layout import Layout
from sliceflow.estimators.pictures.rows import PictureRows

RNG = np.random.default_rng(0)
N = 14  # rows to choose from
POINTS = RNG.normal(size=(N, 2)).round(1)
POINTS[3] = POINTS[2]  # equal rows
GRAY = RNG.integers(0, 17, (N, 4, 4)).astype(np.uint8)
GRAY[3] = GRAY[2]
COLORS = RNG.integers(0, 256, (N, 4, 4, 3)).astype(np.uint8)
COLORS[3] = COLORS[2]
NUMBERS = np.arange(N) % 3
NAMES = np.array(["a", "bb", "ccc"])[NUMBERS]
TUPLES = np.empty(N, dtype=object)
TUPLES[:] = [("a", c) if c else True for c in NUMBERS.tolist()]
ANY = np.array([(1, "1", True)[c] for c in NUMBERS], dtype=object)  # three labels
COLUMNS = RNG.normal(size=(N, 2)).round(1)
MIXED = np.array([*zip(NAMES.tolist(), COLUMNS[:, 0], strict=True)], dtype=object)
# Files have the rows, too. Without axis steps, which take most of the time.
FLAT = functools.partial(vectors, 0, save_rows=True)


@dataclass
class Rows:
    """Rows of one kind: the estimator, all of X and y, and the form of the user's X."""

    make: Any
    X: np.ndarray
    y: np.ndarray | None = None
    form: Any = np.asarray
    least: int = 1  # rows that a model needs

    def at(self, numbers):
        x = self.form(self.X[numbers])
        if self.y is None:
            return (x,)
        y = self.y[numbers]
        if y.dtype.kind == "U":
            y = np.array(y.tolist())  # as short as these texts are
        return x, y


small = dict(schedule="1[1] 4[3]", n_particles=20, save_rows=True)
KINDS = {
    "vectors": Rows(FLAT, POINTS),
    "float32": Rows(FLAT, POINTS.astype(np.float32)),
    "tensors": Rows(FLAT, POINTS, NUMBERS, torch.from_numpy),
    "axis steps": Rows(lambda: vectors(save_rows=True), POINTS, NUMBERS),
    "DataFrames": Rows(
        FLAT, POINTS, NAMES, lambda rows: pd.DataFrame(rows, columns=["a", "b"])
    ),
    "tuples": Rows(FLAT, POINTS, TUPLES),
    "labels of any type": Rows(FLAT, POINTS, ANY),
    "classes apart": Rows(lambda: FLAT(amplifier=math.inf), POINTS, NAMES),
    "joint columns": Rows(lambda: FLAT(condition_mode="joint"), POINTS, COLUMNS),
    "local columns": Rows(
        lambda: vectors(n_particles=3), POINTS, COLUMNS[:, :1], least=4
    ),
    "local labels and columns": Rows(
        lambda: vectors(n_particles=3), POINTS, MIXED, least=4
    ),
    "gray": Rows(lambda: pictures(**small), GRAY),
    "gray labels": Rows(lambda: pictures(**small), GRAY, NAMES),
    "gray floats": Rows(
        lambda: pictures(**small, mirror=True), (GRAY / 16).astype(np.float32)
    ),
    "gray classes apart": Rows(
        lambda: pictures(**small, amplifier=math.inf, transport="histogram"),
        GRAY,
        NUMBERS,
    ),
    "a known part": Rows(lambda: pictures(**small, known="left"), GRAY),
    "color": Rows(
        lambda: pictures(**small | {"n_pixel_values": 256}),
        COLORS,
        form=torch.from_numpy,
    ),
    "color labels": Rows(
        lambda: pictures(**small | {"n_pixel_values": 256}), COLORS, TUPLES
    ),
}


@st.composite
def histories(draw, least, alike):
    """Numbers of rows that come (True) and go (False), and those that remain."""
    steps = []
    remaining = []
    for _ in range(draw(st.integers(1, 5))):
        if len(remaining) > least and draw(st.booleans()):
            places = st.sampled_from(range(len(remaining)))
            most = len(remaining) - least
            chosen = draw(st.lists(places, min_size=1, max_size=most, unique=True))
            removed = [remaining[place] for place in chosen]
            steps.append((False, removed))
            for number in removed:  # of equal rows the last goes
                keys = [alike(other) for other in remaining]
                last = max(i for i, key in enumerate(keys) if key == alike(number))
                del remaining[last]
        else:
            new = draw(st.lists(st.integers(0, N - 1), min_size=least, max_size=8))
            steps.append((True, new))
            remaining = remaining + new
    return steps, remaining


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
@settings(max_examples=2)
def test_what_went_was_never_there(kind, data):
    rows = KINDS[kind]

    def alike(number):
        """Rows 2 and 3 are equal, but for their labels."""
        return 2 if number == 3 and rows.y is None else number

    steps, remaining = data.draw(histories(rows.least, alike))
    flow = rows.make()
    for i, (comes, numbers) in enumerate(steps):
        last = i == len(steps) - 1
        change = flow.partial_fit if comes else flow.forget
        change(*rows.at(numbers), refit=last or data.draw(st.booleans()))
    never = rows.make().partial_fit(*rows.at(remaining))
    assert saved(flow) == saved(never)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_forgets_as_the_model_does(kind, tmp_path):
    rows = KINDS[kind]
    flow = rows.make().partial_fit(*rows.at(np.arange(N)))
    flow.save(tmp_path / "model")
    loaded = sliceflow.load(tmp_path / "model", device="cpu")
    new = [1, 12]
    last_equal = 3 if rows.y is None else 2  # rows 2 and 3 are equal, but for labels
    remaining = np.setdiff1d(np.arange(N), [5, last_equal, 0])
    for model in (flow, loaded):
        model.forget(*rows.at([5, 2, 0]), refit=False).partial_fit(*rows.at(new))
    never = rows.make().partial_fit(*rows.at([*remaining, *new]))
    assert saved(loaded) == saved(flow) == saved(never)


# Interrupted, and refused


def state(flow):
    """What a failed change must leave as it was."""
    attributes = {
        name: value for name, value in vars(flow).items() if name != "_pending_rows"
    }
    return saved(flow), attributes, flow._pending_rows


@pytest.mark.parametrize(
    "kind", ["DataFrames", "classes apart", "gray labels", "color"]
)
@pytest.mark.parametrize("call", ["partial_fit", "forget", "refit"])
def test_an_interrupted_change_leaves_the_model_unchanged(kind, call):
    rows = KINDS[kind]
    flow = rows.make().partial_fit(*rows.at(np.arange(9)))
    before = state(flow)
    more = () if call == "refit" else rows.at([0, 1])
    with pytest.raises(KeyboardInterrupt):
        getattr(flow, call)(*more, listeners=interrupt)
    assert state(flow) == before
    assert saved(flow.refit()) == before[0]


@pytest.mark.parametrize(
    "kind", ["DataFrames", "local columns", "gray labels", "color"]
)
def test_rows_that_do_not_fit_are_refused_and_change_nothing(kind):
    rows = KINDS[kind]
    flow = rows.make().partial_fit(*rows.at(np.arange(9)))
    before = state(flow)
    unknown = rows.at([0, 12])
    twice = rows.at([1, 1])
    for wrong in (unknown, twice):
        with pytest.raises(
            ValueError, match=r"^row 1: it is not in the model, or X has it more often"
        ):
            flow.forget(*wrong)
    with pytest.raises(ValueError, match="would forget all 9 rows"):
        flow.forget(*rows.at(np.arange(9)))
    other = (rows.X[:4], NUMBERS[:4]) if rows.y is None else (rows.form(rows.X[:4]),)
    with pytest.raises(
        ValueError, match=r"rows have y and the .* rows have none; pass y for all rows"
    ):
        flow.partial_fit(*other)
    if rows.X.ndim == 2:
        with pytest.raises(ValueError, match="feature"):
            flow.partial_fit(RNG.normal(size=(4, 3)), rows.y[:4])
    else:
        with pytest.raises(
            ValueError, match=r"pictures are .* but the model was fitted on"
        ):
            flow.partial_fit(rows.X[:, :3], *rows.at(np.arange(N))[1:])
    assert state(flow) == before


def test_a_row_goes_only_with_its_own_label():
    flow = FLAT().partial_fit(POINTS[[0, 0, 1]], np.array([1, True, "1"], dtype=object))
    with pytest.raises(ValueError, match="row 0: it is not in the model"):
        flow.forget(POINTS[:1], ["1"])
    flow.forget(POINTS[:1], np.array([1], dtype=object))
    assert flow._record.rows.y.tolist() == [True, "1"]


def test_before_a_fit_there_are_no_rows():
    for make, X in ((FLAT, POINTS), (lambda: pictures(**small), GRAY)):
        flow = make()
        for call in (lambda flow=flow, X=X: flow.forget(X), flow.refit):
            with pytest.raises(
                NoRowsError, match="no rows yet; call fit or partial_fit first"
            ):
                call()


@pytest.mark.parametrize("kind", ["tensors", "local columns", "gray labels", "color"])
def test_an_estimator_has_its_rows_after_any_fit(kind):
    rows = KINDS[kind]
    flow = rows.make().set_params(save_rows=False).fit(*rows.at(np.arange(9)))
    flow.partial_fit(*rows.at([10, 11])).forget(*rows.at([0, 10]))
    remaining = [*range(1, 9), 11]
    once = rows.make().set_params(save_rows=False).fit(*rows.at(remaining))
    assert saved(flow) == saved(once)
    assert saved(flow.refit()) == saved(once)


def test_a_file_and_a_pickle_have_rows_only_if_these_are_kept(tmp_path):
    for make, X in ((FLAT, POINTS), (lambda: pictures(**small), GRAY)):
        flow = make().set_params(save_rows=False).fit(X)
        flow.save(tmp_path / "model")
        for model in (
            sliceflow.load(tmp_path / "model"),
            pickle.loads(pickle.dumps(flow)),
        ):
            for change in (model.partial_fit, model.forget):
                with pytest.raises(
                    NoRowsError, match=r"does not have its rows.*with save_rows=True$"
                ):
                    change(X[:3])
        keeping = make().fit(X)
        again = pickle.loads(pickle.dumps(keeping))
        assert saved(again.forget(X[:1])) == saved(keeping.forget(X[:1]))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_has_the_rows_whether_or_not_files_have_them(copied):
    for make, X in ((FLAT, POINTS), (lambda: pictures(**small), GRAY)):
        for save_rows in (False, True):
            flow = make().set_params(save_rows=save_rows).fit(X)
            again = copied(flow)
            assert saved(again) == saved(flow)
            again.forget(X[:1], refit=False)
            assert flow._pending_rows is None  # the original does not change
            assert copied(again)._pending_rows is not None
            assert saved(again.refit()) == saved(flow.forget(X[:1]))


def test_a_copy_of_a_density_has_its_rows():
    density = SlicedDensity(n_steps=1, penalty=1, n_components=1, random_state=0)
    rows = np.random.default_rng(1).normal(size=(60, 2))
    again = copy.deepcopy(density.fit(rows))
    once = clone(density).fit(np.concatenate((rows, rows[:5] + 1)))
    assert saved(again.partial_fit(rows[:5] + 1)) == saved(once)
    assert len(density._record.rows) == 60


# Rows that wait


@pytest.mark.parametrize("kind", ["vectors", "gray"])
def test_rows_wait_for_a_refit_and_files_do_not_lose_them(kind, tmp_path):
    rows = KINDS[kind]
    flow = rows.make().partial_fit(*rows.at([0, 1]), refit=False)
    with pytest.raises(ValueError, match="not fitted"):
        flow.sample() if kind == "vectors" else flow.save(tmp_path / "model")
    flow.partial_fit(*rows.at([4, 5, 6]), refit=False).forget(
        *rows.at([1]), refit=False
    ).refit()
    assert saved(flow) == saved(rows.make().partial_fit(*rows.at([0, 4, 5, 6])))
    flow.forget(*rows.at([5]), refit=False)
    with pytest.raises(
        ValueError, match="call refit"
    ):  # else the file would still hold row 5
        flow.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    flow.partial_fit(*rows.at([5]))
    assert saved(flow) == saved(rows.make().partial_fit(*rows.at([0, 4, 6, 5])))
    flow.partial_fit(*rows.at([7]), refit=False).fit(
        *rows.at([0, 1])
    )  # a fit begins again
    assert flow._pending_rows is None
    assert len(flow.set_params(save_rows=True).fit(*rows.at([0, 1]))._record.rows) == 2


@pytest.mark.parametrize("save_rows", [False, True])
def test_a_pickle_has_waiting_rows_or_is_refused(save_rows):
    flow = vectors(0, save_rows=save_rows).fit(POINTS[:8])
    flow.forget(POINTS[:1], refit=False)
    waiting = vectors(0, save_rows=save_rows).partial_fit(POINTS, refit=False)
    for changed in (flow, waiting):
        refitted = saved(copy.deepcopy(changed).refit())
        if save_rows:
            assert saved(pickle.loads(pickle.dumps(changed)).refit()) == refitted
        else:  # a pickle without rows would lose them without a word
            with pytest.raises(ValueError, match=r"call refit\(\) before pickle"):
                pickle.dumps(changed)
        assert clone(changed)._pending_rows is None


def test_a_pickle_has_no_rows_unless_they_are_saved():
    flow = vectors(0).fit(POINTS[:8])
    row = POINTS[5].astype(flow.plan_.dtype).tobytes()
    assert row not in pickle.dumps(flow)
    with pytest.raises(NoRowsError, match="does not have its rows"):
        pickle.loads(pickle.dumps(flow)).refit()


def test_columns_by_name_wait_in_one_order():
    first = pd.DataFrame(POINTS[:4], columns=["a", "b"])
    second = pd.DataFrame(POINTS[:4], columns=["b", "a"])
    flow = FLAT().partial_fit(first, refit=False)
    for _ in range(2):
        with pytest.raises(ValueError, match="feature names"):
            flow.partial_fit(second)
        flow.partial_fit(first)


def test_a_refit_takes_todays_parameters_and_the_same_seed():
    flow = FLAT(random_state=None).partial_fit(POINTS)
    before = flow.sample(5, random_state=0)
    seed = flow._record.seed
    assert np.array_equal(flow.refit().sample(5, random_state=0), before)
    assert flow.set_params(n_steps=1).refit().n_iter_ == 1
    assert flow._record.seed == seed


@pytest.mark.parametrize("dtypes", [("f4", "f8"), ("f8", "f4"), ("f4", "i8")])
def test_the_first_rows_decide_the_type(dtypes):
    """So that rows of another type leave no trace when they go."""
    whole = POINTS.round()
    first = whole[:6].astype(dtypes[0])
    second = (whole[6:]).astype(dtypes[1])
    flow = FLAT().partial_fit(first).partial_fit(second)
    assert flow.particles_.dtype == first.dtype
    assert saved(flow.forget(second)) == saved(FLAT().partial_fit(first))
    images = [(GRAY[part] / 16).astype("f4") for part in (slice(6), slice(6, 9))]
    model = pictures(**small)
    model.partial_fit(images[0]).partial_fit(images[1].astype("f8")).forget(
        images[1].astype("f8")
    )
    assert saved(model) == saved(pictures(**small).partial_fit(images[0]))


def test_whole_numbers_of_other_types_are_the_same_pictures():
    flow = (
        pictures(**small).partial_fit(GRAY[:6]).partial_fit(GRAY[6:9].astype(np.int64))
    )
    assert flow.particles_.dtype == np.uint8
    assert saved(flow.forget(GRAY[6:9].astype("i2"))) == saved(
        pictures(**small).partial_fit(GRAY[:6])
    )
    with pytest.raises(ValueError, match="but the model was fitted on integers"):
        flow.partial_fit(GRAY[:2] / 16)


def test_labels_of_another_type_leave_no_trace():
    for first, second in (
        ([1, 2], ["1", "2"]),
        (["a", "b"], ["a long one", "b"]),
        ([1, 2], np.array([1, 2], np.int8)),
        (np.array([1, 2], np.int8), [1, 3]),
        ([1, 2], [True, False]),
    ):
        flow = FLAT().partial_fit(POINTS[:2], first).partial_fit(POINTS[4:6], second)
        assert saved(flow.forget(POINTS[4:6], second)) == saved(
            FLAT().partial_fit(POINTS[:2], first)
        )


def test_the_rows_of_a_model_are_its_own_and_one_file_is_of_all_ways_to_them():
    for make, rows in (
        (FLAT, POINTS.copy()),
        (functools.partial(pictures, **small), GRAY.copy()),
    ):
        models = [make().partial_fit(rows), make().fit(rows)]
        waiting = make().partial_fit(rows, refit=False)
        files = {saved(model) for model in models}
        rows[:] = rows[::-1].copy()
        assert {saved(model.refit()) for model in (*models, waiting)} == files
        assert len(files) == 1


# The pieces


def test_numbers_are_joined_without_rounding_and_labels_not_with_columns():
    assert concatenate_y(np.array([1]), np.array([1.5])).tolist() == [1, 1.5]
    with pytest.raises(ValueError, match="pass y of the same kind for all rows"):
        concatenate_y(np.array([1]), np.array([[1.0]]))


def test_keys_tell_rows_apart_and_not_types():
    zero = np.array([[0.0, -0.0]])
    assert (
        row_keys(zero, None)
        == row_keys(-zero, None)
        == row_keys(zero.astype("f4"), None)
    )
    assert row_keys(zero, np.array([1])) != row_keys(zero, np.array(["1"]))
    assert row_keys(zero, np.array([1])) == row_keys(zero, np.array([1.0]))
    assert row_keys(zero, np.array([True])) != row_keys(zero, np.array([1]))


def test_rows_of_a_file_have_one_condition_each():
    conditions = Conditions.infer(np.array(["a", "b"]), 2)
    VectorRows(POINTS[:2], conditions).check_saved()
    with pytest.raises(ValueError, match="there are 2 y for 3 rows"):
        VectorRows(POINTS[:3], conditions).check_saved()
    with pytest.raises(ValueError, match="there are 1 names for 2 columns"):
        VectorRows(POINTS, names=("a",)).check_saved()
    pixels = GRAY[:3, None]
    with pytest.raises(ValueError, match="there are 2 labels for 3 rows"):
        PictureRows(Layout.infer(GRAY, 17), pixels, conditions).check_saved()
