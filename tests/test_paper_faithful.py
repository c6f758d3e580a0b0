"""The benchmark of the paper's own method: it runs, scores, and names the method of every number."""

import json
import math

import numpy as np
import paper_faithful
import pytest

TINY = ["digits", "--pictures", "150", "--particles", "150", "--steps", "1", "--our-steps", "1"]
SMALL = ["--directions", "20", "--epochs", "4", "--device", "cpu"]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("faithful")


@pytest.fixture(scope="module")
def rows(out):
    methods = ["--methods", "swf", "cswf", "clusters", "classes"]
    return paper_faithful.main([*TINY, *SMALL, *methods, "--out", str(out)])


def test_every_row_names_its_method(rows, out):
    """150 digits are too few for maps of their own: our defaults do not pretend to have them."""
    named = [(row["method"], row["flow"]) for row in rows]
    assert named == [
        ("SWF", "as printed"), ("CSWF ξ=10", "as printed"), ("SWF", "ours"), ("CSWF ξ=10", "ours"),
    ]  # fmt: skip
    lines = (out / "paper_faithful.md").read_text().splitlines()
    header, _, *table = ([cell.strip() for cell in line.split("|")] for line in lines[:6])
    assert [(line[header.index("method")], line[header.index("flow")]) for line in table] == named
    assert json.loads((out / "paper_faithful.json").read_text())["rows"] == rows


def test_steps_as_printed_are_those_of_table_2_and_scored(rows):
    for row in rows[:2]:
        assert (row["steps"], row["H"], row["particles"]) == (11, 20, 150)
        assert all(math.isfinite(row[key]) for key in ("FD", "FD floor", "NN ratio", "seconds"))
    assert [("recognised" in row) for row in rows] == [False, True, False, True]


def test_samples_are_kept_with_their_labels(rows, out):
    images, labels = (np.load(out / f"digits-{name}.npy") for name in ("cswf", "cswf-labels"))
    assert images.shape == (150, 8, 8)
    assert images.dtype == np.uint8
    assert int(images.max()) <= 16
    assert set(labels) == set(range(10))


def test_a_subset_of_the_particles_can_be_looked_at(out):
    (row,) = paper_faithful.main(
        [*TINY, *SMALL, "--methods", "cswf", "--most", "60", "--amplifier", "5", "--out", str(out)]
    )
    assert row["method"] == "CSWF ξ=5"
    assert math.isfinite(row["FD"])
