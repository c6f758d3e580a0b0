"""Tables as numbers: what a column becomes, textbook associations, utility."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ks_2samp

from sliceflow.metrics.table_encoding import as_numbers, encode_tables
from sliceflow.metrics.tables import association_matrix, column_shape, utility


def test_a_column_becomes_numbers_or_codes():
    frame = pd.DataFrame(
        {
            "number": [1.5, None, 3.0],
            "money": ["$1,200.50", "$3", None],
            "zip": ["01234", "56789", "01234"],
            "flag": [True, False, True],
            "day": pd.to_datetime(["2024-01-01", "2024-01-03", None]),
            "text day": ["17.05.2024", "18.05.2024", "19.05.2024"],
            "kind": pd.Categorical(["b", "a", None], categories=["a", "b", "c"]),
            "big": pd.array([2**60, None, 5], dtype="Int64"),
            7: ["x", "y", "x"],
        }
    )
    read = encode_tables(frame, frame, frame[::-1])
    assert read.names == [
        "number",
        "money",
        "zip",
        "flag",
        "day",
        "text day",
        "kind",
        "big",
        "7",
    ]
    kinds = dict(zip(read.names, read.is_categorical, strict=True))
    assert {name for name, category in kinds.items() if category} == {
        "zip",
        "flag",
        "kind",
        "7",
    }
    rows = dict(zip(read.names, read.samples.T, strict=True))
    assert rows["money"][:2].tolist() == [1200.5, 3]
    assert np.isnan(rows["money"][2])
    assert np.diff(rows["day"])[0] == 2
    assert np.diff(rows["text day"]).tolist() == [1, 1]
    assert rows["kind"][:2].tolist() == [1, 0]
    assert np.isnan([rows["kind"][2], rows["day"][2], rows["big"][1]]).all()
    assert np.array_equal(read.others[0], read.samples[::-1], equal_nan=True)


def test_columns_that_identify_rows_are_left_out_and_real_values_counted():
    train = pd.DataFrame(
        {"mail": [f"p{i}@x.org" for i in range(98)] + ["p0@x.org"] * 2, "a": range(100)}
    )
    made = train.assign(
        mail=[f"p{i}@x.org" for i in range(50)] + [f"q{i}@x.org" for i in range(50)]
    )
    read = encode_tables(made, train, train)
    assert read.names == ["a"]
    assert read.revealed == {"mail": 0.5}


def test_other_columns_are_named_and_other_frames_are_refused():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]})
    with pytest.raises(ValueError, match="'b' is not in all"):
        encode_tables(frame[["a"]], frame, frame)
    assert np.array_equal(encode_tables(frame, frame, frame).samples, [[1, 0], [2, 1]])
    other = pytest.importorskip("polars").DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]})
    with pytest.raises(TypeError, match="DataFrames of pandas, not of polars"):
        encode_tables(other, frame, other)


def test_shapes_are_kolmogorovs_and_total_variation_with_missing_cells(rng):
    a = rng.normal(size=200)
    b = rng.normal(size=150) + 0.5
    assert column_shape(a, b, False) == pytest.approx(1 - ks_2samp(a, b).statistic)
    assert (
        column_shape(a, np.where(np.arange(200) < 100, np.nan, a), False) == 0.5
    )  # half are missing
    assert column_shape(
        np.array([0.0, 0, 1, np.nan]), np.array([0.0, 1, 1, 1]), True
    ) == pytest.approx(0.5)
    assert column_shape(np.array([np.nan]), np.array([np.nan]), False) == 1


def test_associations_are_those_of_the_textbook():
    a = np.array([0.0, 0, 1, 1])
    rows = np.column_stack(
        (a, a, [1.0, 2, 3, 4], [0.0, 1, 0, 1], -np.array([1.0, 2, 3, 4]))
    )
    found = association_matrix(rows, [True, True, False, True, False])
    assert found[0, 1] == pytest.approx(1)  # Cramér's V of a column with itself
    assert found[0, 3] == pytest.approx(0)
    assert (
        found[0, 2] == found[2, 0] == pytest.approx(np.sqrt(4 / 5))
    )  # between over total: 4 of 5
    assert found[2, 4] == pytest.approx(-1)


def test_utility_is_what_the_columns_say_about_the_target(rng):
    x = rng.normal(size=(800, 2))
    rows = np.column_stack((x, x[:, 0] + 0.5 * rng.normal(size=800), x[:, 0] > 0))
    kinds = [False, False, False, True]
    assert utility(rows[:400], rows[400:], kinds, 2) == pytest.approx(
        0.8, abs=0.12
    )  # R² of 1/1.25
    assert utility(rows[:400], rows[400:], kinds, 3) > 0.97
    assert np.isnan(utility(rows[:, 3:], rows[:, 3:], [True], 0)), (
        "nothing to learn from"
    )
    assert np.isnan(utility(rows[rows[:, 3] == 1], rows, kinds, 3)), "one class"


@pytest.mark.parametrize(
    "date_format", ["%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y-%m-%d", "%d-%m-%Y %H:%M"]
)
def test_dates_of_any_order_are_days(date_format):
    days = pd.date_range("2023-05-09", periods=300)
    numbers, is_category = as_numbers(pd.Series(days.strftime(date_format)))
    assert not is_category
    assert (np.diff(numbers) == 1).all()
