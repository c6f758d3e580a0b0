"""benchmarks/online.py runs, measures what it says, and writes its animations."""

import json
from functools import partial

import numpy as np
import online
import pytest
import torch
from PIL import Image

from sliceflow import datasets, metrics


def run(out, epochs, **settings):
    settings |= {"scale": "small", "schedule": "1[1] 4[4] 8[8,5]", "out": out}
    arguments = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        small = partial(metrics.train_classifier, epochs=epochs, width=8)
        patch.setattr(metrics, "train_classifier", small)
        online.main(arguments)
    torch.set_num_threads(threads)
    return json.loads((out / "online.json").read_text())


def test_it_runs_at_tiny_sizes(tmp_path):
    tiny = {"steps": 1, "particles": 100, "per-class": 20}
    results = run(tmp_path, 1, part="refresh", **tiny)
    assert {row["stages"] for row in results["refresh"]} == {0, 1, 2, 4}
    assert "### Refresh" in (tmp_path / "online.md").read_text()


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    out = tmp_path_factory.mktemp("online")
    return out, run(out, 5, steps=2, particles=400, classes=6)


@pytest.mark.slow
def test_old_classes_are_kept_as_a_fit_from_scratch_keeps_them(ran):
    _, results = ran
    points = results["conditional"]["points"]
    assert [p["arrived"] for p in points] == ["5 classes", "5"]
    for point in points[1:]:
        assert point["accuracy, old"] > point["accuracy, old, scratch"] - 0.05
    for point in results["unconditional"]["points"]:
        assert point["distance"] < point["distance, scratch"] + 0.01


@pytest.mark.slow
def test_a_forgotten_class_leaves_the_samples(ran):
    _, results = ran
    assert results["conditional"]["share before"] > 0.1
    assert results["conditional"]["share after"] < 0.02
    assert results["unconditional"]["share after"] < results["unconditional"]["share before"] / 2


@pytest.mark.slow
def test_more_stages_done_again_come_closer_to_new_classes(ran):
    _, results = ran
    rows = [row for row in results["refresh"] if row["second half"] == "new classes"]
    assert [row["stages"] for row in rows] == [0, 1, 2, 4]
    far = [row["batched"] for row in rows]
    assert far == sorted(far, reverse=True)


@pytest.mark.slow
def test_it_writes_animations_and_tables(ran):
    out, _ = ran
    for name, frames in (("unconditional", 7), ("conditional", 3)):
        with Image.open(out / f"{name}.gif") as animation:
            assert animation.n_frames == frames
            animation.seek(frames - 1)
            assert len(animation.convert("L").getcolors()) <= online.GREYS
        assert (out / f"{name}.png").stat().st_size > 0
    text = (out / "online.md").read_text()
    assert "### Unconditional" in text and "Forgetting 0" in text  # noqa: PT018


def test_what_is_kept_of_a_class_is_at_most_its_own_share():
    shares, real = np.array([0.5, 0.1, 0.4]), np.array([0.25, 0.25, 0.5])
    assert online.kept(shares, real, [0]) == 1
    assert online.kept(shares, real, [0, 1]) == pytest.approx(0.7)


@pytest.mark.slow
def test_the_recogniser_knows_digits(ran):
    _, results = ran
    assert results["recogniser"] > 0.9
    assert len(datasets.load("digits", split="test").labels) == 500
