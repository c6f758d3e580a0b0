"""One report for all kinds: fresh rows score as real rows, bad ones do not."""

import json

import numpy as np
import pandas as pd
import pytest

from sliceflow.metrics import report

TRAIN, TEST, FRESH = np.random.default_rng(0).normal(size=(3, 400, 4)) * [1, 10, 0.1, 1]


def table(n, seed):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=n)
    town = rng.integers(0, 6, n)
    frame = {
        "a": a,
        "b": np.where(rng.random(n) < 0.1, np.nan, 2 * a + rng.normal(size=n)),
    }
    frame |= {"town": [f"t{i}" for i in town], "land": [f"l{i // 2}" for i in town]}
    kind = np.where(a + rng.normal(size=n) > 0, "u", "v")
    return pd.DataFrame(
        frame | {"id": [f"r{seed}-{k}" for k in range(n)], "kind": kind}
    )


ROWS = [table(250, seed) for seed in (1, 2, 3)]


@pytest.fixture(scope="module", autouse=True)
def few_trees():
    """Small forests: these tests are about the report, not about its classifiers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sliceflow.metrics.comparisons.N_TREES", 8)
        patch.setattr("sliceflow.metrics.picture_comparison.N_TREES", 8)
        patch.setattr("sliceflow.metrics.tables._BOOSTING_ITERATIONS", 25)
        yield


@pytest.fixture(scope="module")
def fresh():
    said = []
    found = report(FRESH, TRAIN, TEST, device="cpu", notify=said.append)
    assert said[0] == "measuring 400 samples"
    assert len(said) == 3
    return found


def test_fresh_vectors_score_as_real_rows_and_each_fault_moves_its_number(fresh):
    assert fresh.kind == "vectors"
    for metric in fresh.metrics:
        if metric.name == "copy rate":
            assert metric.value < 0.03
            assert metric.reference == 0.01
        else:
            assert metric.value == pytest.approx(metric.reference, rel=0.35), (
                metric.name
            )
    wide = report(2 * FRESH, TRAIN, TEST, device="cpu")
    for name in ("sliced distance", "two-sample accuracy", "NN ratio"):
        assert wide[name].value > 1.2 * fresh[name].value
    narrow = report(0.2 * FRESH, TRAIN, TEST, device="cpu")
    assert narrow["coverage"].value < 0.7 * narrow["coverage"].reference
    copied = report(TRAIN, TRAIN, TEST, device="cpu")
    assert (copied["copy rate"].value, copied["NN ratio"].value) == (1, 0)
    assert copied["sliced distance"].value == pytest.approx(
        fresh["sliced distance"].reference, rel=0.2
    )
    assert copied.verdict.sharing.grade == "red"
    assert "samples copy training rows (copy rate 1, NN ratio 0)" in str(
        copied.verdict.sharing
    )
    assert wide.verdict.use.grade == "red"
    assert "easily tells samples" in str(wide.verdict.use)
    assert fresh.verdict.use.grade == "green"
    assert "samples are no copies" in str(fresh.verdict.sharing)


def test_columns_count_alike_whatever_their_units(fresh):
    unit = np.array([1e3, 1e-2, 5, 1])
    moved = report(FRESH * unit, TRAIN * unit, TEST * unit, device="cpu")
    for a, b in zip(fresh.metrics, moved.metrics, strict=True):
        assert a.value == pytest.approx(b.value, abs=0.03)


def test_a_report_prints_a_table_and_is_json(fresh):
    lines = str(fresh).splitlines()
    assert lines[:2] == str(fresh.verdict).splitlines()
    assert lines[2].split() == ["samples", "real", "rows", "ideal"]
    assert len(lines) == 4 + len(fresh.metrics)
    assert "400 samples, 400 training rows and 400 held-out rows" in lines[-1]
    told = json.loads(json.dumps(fresh.to_dict()))
    assert [n["name"] for n in told["metrics"]] == [n.name for n in fresh.metrics]
    assert all(n.meaning for n in fresh.metrics)
    assert "rough" not in lines[0]
    rough = report(FRESH, TRAIN, TEST[:20], device="cpu").verdict.use
    assert rough.grade == "amber"
    assert "with 20 held-out rows all numbers are rough" in str(rough)
    with pytest.raises(KeyError):
        fresh["no such number"]


def test_classes_are_recognized(digits):
    train, test = digits
    n = 200
    y = (test.labels[:200], train.labels, test.labels)
    found = report(
        test.images[:n], train.images, test.images[n:], y=(*y[:2], test.labels[n:])
    )
    assert found["recognized"].value == pytest.approx(
        found["recognized"].reference, abs=0.05
    )
    assert found["recognized"].reference > 0.9
    wrong = report(FRESH, TRAIN, TEST, y=[np.arange(400) % 2] * 3, device="cpu")
    assert wrong["recognized"].value == pytest.approx(0.5, abs=0.1)
    with pytest.raises(ValueError, match="a class for each row"):
        report(FRESH, TRAIN, TEST, y=([0], [0], [0]))


def test_pictures_have_numbers_of_their_own(rng):
    blocks = rng.random((3, 150, 4, 4, 1, 1)) * np.ones((1, 1, 1, 1, 4, 4))
    train, test, new = (
        blocks.transpose(0, 1, 2, 4, 3, 5).reshape(3, 150, 16, 16) * 200 // 1
    )
    train = train + rng.integers(0, 9, train.shape)
    test = test + rng.integers(0, 9, test.shape)
    new = new + rng.integers(0, 9, new.shape)
    good = report(new, train, test, device="cpu")
    assert good.kind == "pictures"
    assert good["FD-PCA32"].value == pytest.approx(good["FD-PCA32"].reference, rel=0.3)
    assert good["coverage"].value > 0.8
    assert "samples cover" in str(good.verdict.use)
    noisy = train + rng.integers(-20, 21, train.shape)  # copies under noise
    bad = report(noisy, train, test, device="cpu")
    assert bad["copy rate, thumbnails"].value > 0.9
    assert str(bad.verdict.sharing).startswith(
        "May I share it? Red: samples copy training rows (copy rate"
    )
    pasted = new.copy()
    pasted[:, :8, :8] = train[:, :8, :8]  # one of nine patches
    memorized = report(pasted, train, test, device="cpu")["memorized, halves"]
    assert memorized.value == pytest.approx(1 / 9 + 0.01, abs=0.02)
    turned = report(train[:, :, ::-1], train, test, device="cpu")
    assert turned["copy rate"].value == 1, "mirror images are copies, too"
    assert (
        report(0.5 * new, train, test, device="cpu")["FD-PCA32"].value
        > 3 * good["FD-PCA32"].reference
    )


def test_fresh_tables_score_as_real_rows():
    train, test, new = ROWS
    found = report(new, train, test)
    assert found.kind == "tables"
    assert found["detection"].value == pytest.approx(0.5, abs=0.1)
    assert found["shape"].value > 0.9
    assert found["trend error"].value == pytest.approx(
        found["trend error"].reference, abs=0.05
    )
    assert found["utility"].value == pytest.approx(found["utility"].reference, abs=0.1)
    assert found["rules kept"].value == found["rules kept"].reference == 1
    assert found["copy rate"].value < 0.05
    assert found["exact copies"].value == 0
    assert 0.8 < found["NN ratio"].value < 1.2
    assert found.details["target"] == "kind"
    assert "AUC of kind in held-out rows" in found["utility"].meaning
    assert set(found.details["columns"]) == {"a", "b", "town", "land", "kind"}
    assert "no real value of id, which identify a row" in str(found.verdict.sharing)
    rules = [rule.text for rule in found.details["rules"]]
    assert rules == ["land follows from town"]
    assert len(found.details["riskiest"]) == 3


def test_the_order_of_rows_says_nothing():
    train, test, new = ROWS
    turned = [
        frame.sort_values("town", ignore_index=True) for frame in (train, test[:60])
    ]
    found = report(new, *turned)
    assert found["trend error"].reference < 0.2
    assert found.note == "250 samples, 250 training rows and 60 held-out rows"


def test_bad_tables_are_found_out(rng):
    train, test, new = ROWS
    loose = pd.DataFrame({name: rng.permutation(new[name]) for name in new})
    loose["id"] = train["id"].to_numpy()
    found = report(loose, train, test, y="kind")
    assert found["detection"].value > 0.7
    assert found["shape"].value > 0.9
    assert {"a", "b"} == set(found.details["pairs"][0][:2]) or found[
        "trend error"
    ].value > 0.1
    assert found["utility"].value < found["utility"].reference - 0.15
    assert 0.2 < found["rules kept"].value < 0.6
    assert found.verdict.use.grade == found.verdict.sharing.grade == "red"
    assert "1 of 1 rules is lost: land follows from town" in str(found.verdict.use)
    assert "REAL VALUES of id" in str(found.verdict.sharing)
    copied = report(train, train, test)
    assert copied["copy rate"].value == copied["exact copies"].value == 1
    assert copied.verdict.sharing.grade == "red"
    sample, row, ratio = copied.details["riskiest"][0]
    assert sample == row
    assert ratio == 0


def test_copies_are_searched_among_all_rows_of_a_table():
    frame = pd.DataFrame(
        np.random.default_rng(0).normal(size=(9000, 3)), columns=["a", "b", "c"]
    )
    frame["d"] = np.where(frame["a"] > 0, "u", "v")
    train = frame[:6000]
    test = frame[6000:6500]
    new = frame[6500:].copy()
    new.iloc[:250] = train.iloc[-250:]  # one in ten
    found = report(new, train, test)
    assert found["exact copies"].value == pytest.approx(0.1, abs=0.02)
    assert found["copy rate"].value == pytest.approx(0.11, abs=0.02)
    assert found.counts == {"samples": 2500, "train": 6000, "held_out": 500}
    assert found.note.endswith("500 held-out rows, of each at most 2000")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: report(FRESH[:, :2], TRAIN, TEST),
            r"of samples have shape \(2,\), of train \(4,\)",
        ),
        (
            lambda: report(FRESH, TRAIN, TEST, kind="pictures"),
            r"of train \(4,\); pass pictures",
        ),
        (
            lambda: report(FRESH, TRAIN, TEST, kind="rows"),
            "kind='rows' must be 'auto', 'vectors'",
        ),
        (lambda: report(FRESH[:9], TRAIN, TEST), "too few rows, {'samples': 9"),
        (lambda: report(*ROWS[::-1], y="z"), "y='z' must be the name of a column"),
        (
            lambda: report(FRESH, *ROWS[:2], kind="auto"),
            "samples=.* must be a DataFrame",
        ),
    ],
)
def test_what_cannot_be_compared_is_named(call, said):
    with pytest.raises(ValueError, match=said):
        call()
