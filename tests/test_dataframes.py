"""A DataFrame in gives a DataFrame out; a column that cannot be used is named."""

import pickle
import sys

import numpy as np
import pandas as pd
import pytest

import sliceflow
from sliceflow import SlicedWassersteinFlow
from sliceflow.dataframes import Form
from sliceflow.models.codec import pack, unpack
from sliceflow.models.limits import Allowance

X = np.random.default_rng(0).normal(size=(30, 3))
quick = dict(n_particles=40, n_steps=2, random_state=0)


@pytest.fixture(params=["pandas", "polars"])
def make(request):
    """What makes a DataFrame of columns by name."""
    library = pytest.importorskip(request.param)
    return library.DataFrame


def columns(**more):
    return {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]} | more


def fit(x, **parameters):
    return SlicedWassersteinFlow(**(quick | parameters)).fit(x)


def same(a, b):
    return type(a) is type(b) and list(a.columns) == list(b.columns) and a.equals(b)


def test_samples_and_particles_have_the_columns_of_the_data(make):
    given, plain = make(columns()), fit(X)
    flow = fit(given)
    assert flow.feature_names_in_.tolist() == ["a", "b", "c"]
    for drawn in (lambda flow: flow.particles_, lambda flow: flow.sample(5, random_state=1)):
        ours = drawn(flow)
        assert type(ours) is type(given)
        assert list(ours.columns) == ["a", "b", "c"]
        assert np.array_equal(ours.to_numpy(), drawn(plain))  # the same bits
    assert isinstance(plain.particles_, np.ndarray)
    assert isinstance(flow.fit(X).sample(2), np.ndarray)  # the last fit counts


def test_floats_keep_their_type_and_all_others_become_floats(make):
    narrow = {"single": X[:, 0].astype(np.float32), "half": X[:, 0].astype(np.float16)}
    given = make(columns(**narrow, whole=np.arange(30), flag=np.arange(30) % 2 == 0))
    kinds = [str(kind).lower() for kind in fit(given).sample(2).dtypes]
    assert kinds == ["float64"] * 3 + ["float32"] + ["float64"] * 3
    singles = make({name: column.astype(np.float32) for name, column in columns().items()})
    assert {str(kind).lower() for kind in fit(singles).sample(2).dtypes} == {"float32"}


@pytest.mark.parametrize(
    "names",
    [
        pd.Index([0, 1, 2]),
        pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)]),
        pd.Index([2.5, 3, 4]),
    ],
    ids=["whole", "pairs", "floats"],
)
def test_names_that_are_no_texts_come_back_too(tmp_path, names):
    flow = fit(pd.DataFrame(X.astype(np.float32), columns=names))
    assert flow.sample(2).columns.equals(names)
    flow.save(tmp_path / "flow")
    assert sliceflow.load(tmp_path / "flow").sample(2).columns.equals(names)


def test_the_form_survives_files_and_pickle(tmp_path, make):
    given = make(columns(single=X[:, 0].astype(np.float32), whole=np.arange(30)))
    flow = fit(given, keep_rows=True)
    flow.save(tmp_path / "flow", particles=True)
    for again in (sliceflow.load(tmp_path / "flow"), pickle.loads(pickle.dumps(flow))):
        assert same(again.sample(5, random_state=1), flow.sample(5, random_state=1))
        assert same(again.particles_, flow.particles_)
        assert type(again._model.rows.in_users_form("cpu")[0]) is type(given)
        assert again.feature_names_in_.tolist() == flow.feature_names_in_.tolist()


def test_without_the_library_there_are_arrays(tmp_path, monkeypatch, make):
    flow = fit(make(columns()))
    flow.save(tmp_path / "flow", particles=True)
    wanted = flow.sample(5, random_state=1).to_numpy()
    monkeypatch.setitem(sys.modules, type(flow.particles_).__module__.partition(".")[0], None)
    again = sliceflow.load(tmp_path / "flow")
    assert isinstance(again.particles_, np.ndarray)
    assert np.array_equal(again.sample(5, random_state=1), wanted)


def test_a_file_of_another_form_is_refused():
    good = pack(Form, Form.of(pd.DataFrame(X, columns=list("abc"))), {})
    assert unpack(Form, good, {}, Allowance(10**6)).names == ("a", "b", "c")
    for bad in (
        dict(library="os"),
        dict(library="os.path"),
        dict(dtypes=["float64"]),
        dict(dtypes=["object"] * 3),
        dict(names=["a", "a", "b"]),
    ):
        with pytest.raises(ValueError, match=r"must be|names"):
            unpack(Form, good | {"value": good["value"] | bad}, {}, Allowance(10**6))


def test_rows_that_are_added_give_a_dataframe(make):
    first, second = make(columns()), make({name: column + 1 for name, column in columns().items()})
    flow = SlicedWassersteinFlow(**quick).partial_fit(first).partial_fit(second)
    plain = SlicedWassersteinFlow(**quick).partial_fit(X).partial_fit(X + 1)
    assert type(flow.particles_) is type(first)
    assert list(flow.sample(2).columns) == ["a", "b", "c"]
    assert np.array_equal(flow.particles_.to_numpy(), plain.particles_)
    assert list(flow.forget(second).particles_.columns) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names should match"):
        flow.partial_fit(make({"a": X[:, 0], "b": X[:, 1], "z": X[:, 2]}))


def test_a_column_of_no_numbers_is_named(make):
    dates = np.arange("2020-01-01", "2020-01-31", dtype="M8[D]").astype("M8[us]")
    for what, column in (("dates", dates), ("words", ["x"] * 30), ("digits", ["1"] * 30)):
        message = rf"column '{what}' of X has dtype \w+.*; turn it into numbers.*leave the column out"
        for method in ("fit", "partial_fit"):
            with pytest.raises(ValueError, match=message):
                getattr(SlicedWassersteinFlow(**quick), method)(make(columns(**{what: column})))


def test_frames_of_polars_that_cannot_be_used_are_refused():
    pl = pytest.importorskip("polars")
    with pytest.raises(ValueError, match="contains NaN in row 7, column 'odd'"):
        fit(pl.DataFrame(columns(odd=[1.0] * 7 + [None] + [0.0] * 22)))
    with pytest.raises(ValueError, match=r"X is a LazyFrame.*; pass X.collect\(\)"):
        fit(pl.DataFrame(columns()).lazy())
