"""Calibration: uniform ranks where samples are right, and told apart where they are not."""

import numpy as np
import pytest

from sliceflow.metrics import calibration

RNG = np.random.default_rng(0)
TRUTH, SAMPLES = RNG.normal(size=(800, 2)), RNG.normal(size=(800, 60, 2))


def test_ranks_count_the_smaller_samples():
    found = calibration([[[0.0], [1.0], [2.0]]], [[1.5]])
    assert found.ranks.tolist() == [[2]]
    assert found.n_samples == 3


def test_right_samples_have_uniform_ranks_and_the_coverage_that_they_say():
    found = calibration(SAMPLES, TRUTH)
    assert found.p_values.min() > 0.01
    for share in (0.1, 0.5, 0.9):
        assert np.abs(found.coverage(share) - share).max() < 0.05


@pytest.mark.parametrize(("made", "covers"), [(0.5 * SAMPLES, 0.6), (2 * SAMPLES, 1.0)])
def test_narrow_and_wide_samples_are_found(made, covers):
    found = calibration(made, TRUTH)
    assert found.p_values.max() < 1e-4
    assert found.coverage(0.9) == pytest.approx(covers, abs=0.05)


def test_shifted_samples_are_found():
    assert calibration(SAMPLES + 0.5, TRUTH).p_values.max() < 1e-4


def test_the_figure_has_a_histogram_and_a_coverage_plot(tmp_path):
    figure = calibration(SAMPLES, TRUTH).plot(["a", "b"])
    left, right = figure.axes
    assert left.get_xlabel() == "rank of the truth / number of samples"
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["99 %", "a", "b"]
    figure.savefig(tmp_path / "c.png")
    assert (tmp_path / "c.png").stat().st_size > 1_000


@pytest.mark.parametrize("shape", [(800, 2), (800, 60, 3), (7, 60, 2)])
def test_shapes_that_do_not_fit_are_named(shape):
    with pytest.raises(ValueError, match=r"pass \(q, n, d\) and \(q, d\)"):
        calibration(np.zeros(shape), TRUTH)
    with pytest.raises(ValueError, match="share=2 must be from 0 to 1"):
        calibration(SAMPLES, TRUTH).coverage(2)
