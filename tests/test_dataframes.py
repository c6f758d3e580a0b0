"""A DataFrame in gives a DataFrame out; a column that cannot be used is named."""

import pickle
import sys

import numpy as np
import pandas as pd
import pytest

import sliceflow
from sliceflow import SlicedWassersteinFlow
from sliceflow.dataframes import check_columns, column_kind
from sliceflow.errors import DataError

X = np.random.default_rng(0).normal(size=(30, 3))
quick = dict(n_particles=40, n_steps=2, random_state=0)


def columns(**more):
    return {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]} | more


def fit(x, **parameters):
    return SlicedWassersteinFlow(**(quick | parameters)).fit(x)


def same(a, b):
    return type(a) is type(b) and list(a.columns) == list(b.columns) and a.equals(b)


def test_samples_and_particles_have_the_columns_of_the_data():
    given = pd.DataFrame(columns())
    plain = fit(X)
    flow = fit(given)
    assert flow.feature_names_in_.tolist() == ["a", "b", "c"]
    for drawn in (
        lambda flow: flow.particles_,
        lambda flow: flow.sample(5, random_state=1),
    ):
        ours = drawn(flow)
        assert type(ours) is type(given)
        assert list(ours.columns) == ["a", "b", "c"]
        assert np.array_equal(ours.to_numpy(), drawn(plain))  # the same bits
    assert isinstance(plain.particles_, np.ndarray)
    assert isinstance(flow.fit(X).sample(2), np.ndarray)  # the last fit counts


def test_samples_have_the_type_of_the_fit_in_all_columns():
    narrow = {"single": X[:, 0].astype(np.float32), "half": X[:, 0].astype(np.float16)}
    given = pd.DataFrame(
        columns(**narrow, whole=np.arange(30), flag=np.arange(30) % 2 == 0)
    )
    assert set(fit(given).sample(2).dtypes) == {np.dtype("float64")}
    assert set(fit(pd.DataFrame(X.astype(np.float32))).sample(2).dtypes) == {
        np.dtype("float32")
    }


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


def test_the_form_survives_files_and_pickle(tmp_path):
    given = pd.DataFrame(
        columns(single=X[:, 0].astype(np.float32), whole=np.arange(30))
    )
    flow = fit(given, save_rows=True)
    flow.save(tmp_path / "flow", particles=True)
    for again in (sliceflow.load(tmp_path / "flow"), pickle.loads(pickle.dumps(flow))):
        assert same(again.sample(5, random_state=1), flow.sample(5, random_state=1))
        assert same(again.particles_, flow.particles_)
        assert type(again._record.rows.user_X_and_y("cpu")[0]) is type(given)
        assert again.feature_names_in_.tolist() == flow.feature_names_in_.tolist()


def test_without_pandas_there_are_arrays(tmp_path, monkeypatch):
    flow = fit(pd.DataFrame(columns()))
    flow.save(tmp_path / "flow", particles=True)
    wanted = flow.sample(5, random_state=1).to_numpy()
    monkeypatch.setitem(sys.modules, "pandas", None)
    again = sliceflow.load(tmp_path / "flow")
    assert isinstance(again.particles_, np.ndarray)
    assert np.array_equal(again.sample(5, random_state=1), wanted)


def test_rows_that_are_added_give_a_dataframe():
    first = pd.DataFrame(columns())
    second = first + 1
    flow = SlicedWassersteinFlow(**quick).partial_fit(first).partial_fit(second)
    plain = SlicedWassersteinFlow(**quick).partial_fit(X).partial_fit(X + 1)
    assert type(flow.particles_) is type(first)
    assert list(flow.sample(2).columns) == ["a", "b", "c"]
    assert np.array_equal(flow.particles_.to_numpy(), plain.particles_)
    assert list(flow.forget(second).particles_.columns) == ["a", "b", "c"]


def test_frames_of_polars_are_refused():
    frame = pytest.importorskip("polars").DataFrame(columns())
    for other in (frame, frame.lazy()):
        with pytest.raises(
            ValueError, match=r"X is a \w+ of polars; pass .* X.to_pandas\(\)"
        ):
            fit(other)


@pytest.mark.parametrize(
    ("kind", "dtypes"),
    [
        ("boolean", ["bool", "boolean", "bool[pyarrow]"]),
        ("integer", ["int8", "uint64", "Int64", "int64[pyarrow]", "Sparse[int64]"]),
        ("float", ["float32", "Float64", "double[pyarrow]"]),
        ("datetime", ["datetime64[s]", "datetime64[ns, UTC]", "date32[pyarrow]"]),
        ("timedelta", ["timedelta64[ns]", "duration[us][pyarrow]"]),
        ("category", ["category"]),
        ("object", ["object"]),
        ("text", ["string", "string[pyarrow]"]),
        ("other", ["period[M]", "interval[int64]", "complex128"]),
    ],
)
def test_the_kind_of_a_column_is_that_of_its_dtype(kind, dtypes):
    for dtype in dtypes:
        assert column_kind(pd.Series([], dtype=dtype)) == kind


def test_an_object_that_is_no_number_is_named_by_its_row_and_column():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": pd.Series([3, "x"], dtype=object)})
    with pytest.raises(DataError, match="holds 'x'") as caught:
        check_columns(frame)
    assert caught.value.row == 1
    assert caught.value.column == "b"
