"""Rows and conditions that are refused, with what is wrong, and odd legal ones."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

from sliceflow import SlicedWassersteinFlow

X = np.random.default_rng(0).normal(size=(30, 3))
Y = np.arange(30) % 3
WORDS = np.array(["a", "b", "c"])[Y].tolist()


def fit(x=X, y=None, **parameters):
    parameters = dict(n_particles=40, n_steps=2, random_state=0) | parameters
    return SlicedWassersteinFlow(**parameters).fit(x, y)


def having(value, at=(4, 1), array=X):
    changed = array.astype(
        object if value is None else np.result_type(array, type(value))
    )
    changed[at] = value
    return changed


def frame(odd):
    return pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "odd": odd})


def hidden(array):
    return np.ma.masked_array(
        array, mask=np.arange(array.size).reshape(array.shape) == 7
    )


def refused(message, *calls, error=ValueError):
    return error, message, calls


def legal(*calls):
    return None, "", calls


OBJECTS = pd.Series([1.0] * 9 + ["x"] * 21, dtype=object)
dated = np.arange(90).reshape(30, 3)
ROWS = {
    "X": {
        "NaN, infinity, or None among numbers": refused(
            r"^row 4, column 1: Input X contains (NaN|infinity); .*: drop or fill",
            *(lambda v=v: fit(having(v)) for v in (np.nan, np.inf, -np.inf, None)),
        ),
        "a masked array": refused(
            r"a value of X is masked at \[2, 1\]", lambda: fit(hidden(X))
        ),
        "one-dimensional, or three": refused(
            "Expected 2D|dim 3", lambda: fit(X[:, 0]), lambda: fit(X[None])
        ),
        "no rows": refused("0 sample", lambda: fit(X[:0])),
        "text, also text that says numbers": refused(
            r"X contains (the )?text.*with X.astype\(float\), and encode any other",
            *(
                lambda x=x: fit(x)
                for x in (X.astype(str), X.astype("S"), X.astype(str).astype(object))
            ),
            lambda: fit(X.astype(str).tolist()),
            lambda: fit([["a", 1.0], ["b", 2.0]]),
            lambda: fit(X.astype(np.dtypes.StringDType())),
        ),
        "dates, durations": refused(
            r"X has dtype (datetime|timedelta)64\[D\]; convert dates to numbers",
            lambda: fit(dated.astype("M8[D]")),
            lambda: fit(dated.astype("m8[D]")),
        ),
        "sparse": refused(
            r"Use '\.toarray\(\)'",
            lambda: fit(scipy.sparse.csr_array(X)),
            error=TypeError,
        ),
        "a column too large to standardize": refused(
            "column 1 of X", lambda: fit(having(1e300))
        ),
        "what has no rows": refused(
            "X is a (NoneType|str|dict|set|generator); pass an array",
            *(lambda v=v: fit(v) for v in (None, "rows", {"a": X[:, 0]}, {1, 2})),
            lambda: fit(row for row in X),
        ),
        "rows of different lengths": refused(
            "pass rows of one length", lambda: fit([[1.0, 2.0], [3.0]])
        ),
        "a structured array": refused(
            "X is a structured array, .*pandas.DataFrame",
            lambda: fit(np.rec.fromarrays(X.T, names="a,b,c")),
        ),
        "tensors without numbers to read": refused(
            "pass a dense tensor",
            lambda: fit(torch.tensor(X).to_sparse()),
            lambda: fit(torch.empty((30, 3), device="meta")),
        ),
    },
    "X as a DataFrame": {
        "a column of text, categories, dates or durations": refused(
            r"column 'odd': X has dtype (str|object|category|datetime|timedelta).*"
            "turn it into numbers.* or leave the column out",
            lambda: fit(frame(WORDS)),
            lambda: fit(frame(pd.array(WORDS, dtype="string"))),
            lambda: fit(frame(pd.Categorical(Y))),
            lambda: fit(frame(pd.date_range("2020", periods=30, tz="UTC"))),
            lambda: fit(frame(pd.timedelta_range("1s", periods=30))),
        ),
        "a column of objects that are not all numbers": refused(
            "row 9, column 'odd': X has dtype object and holds 'x'",
            lambda: fit(frame(OBJECTS)),
        ),
        "a missing value: NaN, None, NA, null": refused(
            r"row 4, column 'odd'",
            lambda: fit(frame(having(np.nan, 4, X[:, 0]))),
            lambda: fit(frame(having(None, 4, X[:, 0]))),
            lambda: fit(frame(pd.array(having(None, 4, Y), dtype="Int64"))),
        ),
        "sparse columns": refused(
            r"column 'odd': X has dtype Sparse.*; make it dense: X.sparse.to_dense\(\)",
            lambda: fit(frame(pd.arrays.SparseArray(Y))),
        ),
        "no columns": refused(
            "X has no columns",
            lambda: fit(pd.DataFrame()),
            lambda: fit(pd.DataFrame(index=range(5))),
        ),
        "two columns of one name": refused(
            "two columns named 'b'", lambda: fit(frame(Y).rename(columns={"odd": "b"}))
        ),
        "names of which only some are text": refused(
            r"some names of columns are text, but 3 is not.* X\.columns\.astype\(str\)",
            lambda: fit(frame(Y).rename(columns={"odd": 3})),
        ),
        "integers, booleans": legal(lambda: fit(frame(Y)), lambda: fit(frame(Y == 1))),
    },
    "y": {
        "infinity": refused(
            "row 4(, column 1)?: y contains inf",
            lambda: fit(X, having(np.inf)),
            lambda: fit(X, having(np.inf, 4, Y)),
        ),
        "a column too large or too small to standardize": refused(
            "column 0: y cannot be standardized: its standard deviation is (inf|0.0)",
            *(
                lambda scale=scale, mode=mode: fit(
                    X, X[:, :1] * scale, condition_mode=mode
                )
                for scale in (1e300, 1e-310)
                for mode in ("local", "joint")
            ),
        ),
        "rows of different lengths": refused(
            "y cannot be read as an array; pass one label",
            lambda: fit(X, [[1.0, 2.0]] * 29 + [[1.0]]),
        ),
        "two-dimensional text": refused("labels 1-D", lambda: fit(X, X.astype(str))),
        "three-dimensional, or no columns": refused(
            "y has", lambda: fit(X, X[..., None]), lambda: fit(X, X[:, :0])
        ),
        'text of numbers, `"1"`': legal(lambda: fit(X, Y.astype(str)).sample(2, y="1")),
    },
    "sample": {
        "a masked `y`": refused(
            r"a value of y is masked at \[(7|2, 1)\]",
            lambda: fit(X, Y).sample(30, y=hidden(Y)),
            lambda: fit(X, X).sample(30, y=hidden(X)),
        ),
    },
}


@pytest.mark.parametrize(
    ("section", "row"), [(s, row) for s in ROWS for row in ROWS[s]]
)
def test_what_is_wrong_is_refused_and_the_rest_is_legal(section, row):
    error, message, calls = ROWS[section][row]
    for call in calls:
        if error is None:
            call()
        else:
            with pytest.raises(error, match=message):
                call()


def test_what_is_legal_has_the_result_that_is_said():
    for kind in (int, bool, np.float16, object):
        assert fit(X.astype(kind)).sample(2).dtype == np.float64
    nothing_hidden = fit(np.ma.masked_array(X), np.ma.masked_array(Y))
    assert np.array_equal(nothing_hidden.particles_, fit(X, Y).particles_)
    assert type(nothing_hidden.classes_) is np.ndarray
