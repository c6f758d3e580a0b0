"""All metrics at once: floors for every number, equal counts, copies seen."""

import json

import numpy as np
import pytest
from sklearn.svm import SVC

from sliceflow.metrics import Battery, energy_distance, sliced_wasserstein, with_floor
from sliceflow.metrics.battery import MEANING

rng = np.random.default_rng(0)
TRAIN, TEST, FRESH = rng.normal(size=(3, 400, 5))


def test_fresh_rows_score_like_the_floor_and_others_do_not():
    battery = Battery(TRAIN, TEST, n_trees=20, device="cpu")
    fresh, copies, far = (battery.score(x) for x in (FRESH, TRAIN, FRESH * 2 + 1))
    floors = battery.floors
    assert fresh.keys() == floors.keys() == MEANING.keys() - {"FD", "accuracy"}
    for name, (ideal, _) in MEANING.items():
        if name in ("copies", "strays"):  # shares of few rows
            assert abs(fresh[name] - floors[name]) < 0.01, name
        elif name in fresh:
            assert fresh[name] == pytest.approx(floors[name], rel=0.5), name
            best = floors[name] if ideal == "floor" else float(ideal)
            assert abs(far[name] - best) > 2 * abs(fresh[name] - best), name
    assert (copies["NN ratio"], copies["copies"], copies["strays"]) == (0, 1, 0)
    assert far["copies"] == 0
    assert far["strays"] > 0.1
    assert floors["copies"] == 0.01
    assert floors["strays"] == 1 / 401
    assert copies["sliced distance"] == pytest.approx(floors["sliced distance"], rel=0.2)


def test_everything_can_be_told_as_a_table_and_as_json():
    battery = Battery(TRAIN, TEST, n_trees=0, device="cpu")
    score = battery.score(FRESH[:100])
    lines = battery.table(batched=score, offline={"NN ratio": 1.0}).splitlines()
    assert lines[0].split() == ["batched", "offline", "floor", "ideal"]
    assert len(lines) == 1 + len(score)
    assert len({len(line) for line in lines}) == 1
    assert "–" in lines[1]
    told = json.loads(json.dumps(battery.as_dict(batched=score)))
    assert told["floors"].keys() == told["scores"]["batched"].keys()
    assert told["held-out rows"] == 400


def test_features_and_classes_are_used_where_there_are_any():
    labels = (TRAIN[:, 0] > 0).astype(int)
    svm = SVC().fit(TRAIN, labels)
    battery = Battery(
        TRAIN, TEST, features=lambda x: x[:, :2], predict=svm.predict,
        test_labels=(TEST[:, 0] > 0).astype(int), n_trees=0, device="cpu",
    )  # fmt: skip
    right = battery.score(FRESH, (FRESH[:, 0] > 0).astype(int))
    wrong = battery.score(FRESH, (FRESH[:, 0] < 0).astype(int))
    assert right["accuracy"] > 0.9 > 0.1 > wrong["accuracy"]
    assert battery.floors["accuracy"] > 0.9
    assert "FD-PCA32" not in right
    shifted = FRESH + np.array([0, 0, 9, 9, 9])
    assert battery.score(shifted)["FD"] == pytest.approx(
        right["FD"]
    )  # in the features, nothing changed


def test_rows_beyond_most_are_left_out_of_both_kinds():
    battery = Battery(TRAIN, TEST, n_trees=0, most=50, neighbours_of=20, device="cpu")
    assert battery.as_dict()["held-out rows"] == battery.n == 50
    assert battery.score(FRESH)["sliced distance"] > 0.15  # of 50 rows; .1 of 400


def test_few_rows_leave_out_what_needs_more():
    battery = Battery(TRAIN[:4], TEST[:4], n_trees=0, device="cpu")
    assert "precision" in battery.score(FRESH[:4])
    assert "density" not in battery.score(FRESH[:4])
    same = Battery(TRAIN, TRAIN, n_trees=0, device="cpu")
    for score in (same.score(FRESH), same.floors):
        assert not {"NN ratio", "copies", "strays"} & score.keys()


def test_neighbours_are_searched_once_and_agree_with_the_metrics(monkeypatch):
    from sliceflow.metrics import copies, neighbours, nn_ratio, strays

    mixed = np.concatenate((TRAIN[:40], FRESH, 3 * FRESH[:40]))
    battery = Battery(TRAIN, TEST, n_trees=0, most=100, device="cpu")
    searched = []
    monkeypatch.setattr(
        neighbours,
        "nearest",
        lambda *rows, search=neighbours.nearest, **more: searched.append(1) or search(*rows, **more),
    )
    score = battery.score(mixed)
    assert len(searched) == 2  # for test rows and samples
    for name, metric in (("NN ratio", nn_ratio), ("copies", copies), ("strays", strays)):
        assert score[name] == metric(mixed, TRAIN, TEST, device="cpu")


def test_mirror_images_are_copies_too():
    train, test = rng.normal(size=(2, 60, 4, 5))
    turned = train[:, :, ::-1]
    plain, mirrored = (
        Battery(train, test, n_trees=0, mirror=mirror, device="cpu").score(turned)
        for mirror in (False, True)
    )
    assert plain["copies"] < 0.1 < mirrored["copies"] == 1
    assert mirrored["NN ratio"] == 0


def test_the_floor_is_of_equally_many_real_rows():
    score = with_floor(sliced_wasserstein, FRESH[:30], TRAIN, TEST)
    many = with_floor(sliced_wasserstein, FRESH, TRAIN, TEST)
    assert score.n_samples == 30
    assert score.floor > 1.5 * many.floor
    assert score.name == "sliced_wasserstein"
    assert with_floor(energy_distance, FRESH, TRAIN, TEST, name="energy").as_dict()["name"] == "energy"
