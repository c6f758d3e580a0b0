"""Calibration: uniform ranks of right samples, the right verdict on others."""

import numpy as np
import pytest
from scipy.stats import norm

from sliceflow.metrics import calibration

RNG = np.random.default_rng(0)
TRUTH = RNG.normal(size=(800, 2))
SAMPLES = RNG.normal(size=(800, 60, 2))


def test_ranks_count_the_smaller_samples():
    found = calibration([[[0.0], [1.0], [2.0]]], [[1.5]])
    assert found.ranks.tolist() == [[2]]
    assert found.n_samples == 3
    assert calibration([[0.0, 1.0, 2.0]], [1.5]).ranks.tolist() == [[2]]


def test_right_samples_pass_and_cover_as_often_as_they_say():
    found = calibration(SAMPLES, TRUTH)
    assert found.verdict == "calibrated, as far as 800 conditions can tell"
    assert min(found.p_values.min(), found.tarp_p_value) > 0.01
    for share in (0.1, 0.5, 0.9):
        assert np.abs(found.coverage(share) - share).max() < 0.05


@pytest.mark.parametrize(
    ("scale", "shift", "verdict"),
    [(0.5, 0, "overconfident"), (2, 0, "underconfident"), (1, 0.15, "biased")],
)
def test_what_is_wrong_is_said(scale, shift, verdict):
    found = calibration(scale * SAMPLES + [0, shift], TRUTH)
    assert found.verdict.startswith(verdict)
    assert found.p_values.min() < 0.005
    if not shift:
        exact = 2 * norm.cdf(scale * norm.ppf(0.95)) - 1
        assert found.coverage(0.9) == pytest.approx(exact, abs=0.05)


def test_tarp_sees_what_no_column_alone_shows():
    """Truths are correlated, samples are not: every column by itself is right."""
    truth = TRUTH @ np.linalg.cholesky([[1, 0.95], [0.95, 1]]).T
    found = calibration(SAMPLES, truth)
    assert found.p_values.min() > 0.01
    assert found.tarp_p_value < 0.005
    assert "TARP" in found.verdict


def test_axes_are_told_from_their_lengths_and_refused_if_they_could_be_either(rng):
    """Swapped axes would pass an overconfident posterior: others would be ranked."""
    truth = rng.normal(size=(60, 2))
    posterior = (
        truth[:, None]
        + 0.05 * rng.normal(size=(60, 60, 2))
        + 0.2 * rng.normal(size=(60, 1, 2))
    )
    with pytest.raises(
        ValueError, match=r"\(60, 60, 2\).*pass first_axis='conditions', or 'samples'"
    ):
        calibration(posterior, truth)
    right = calibration(posterior, truth, first_axis="conditions")
    assert "overconfident" in right.verdict
    swapped = calibration(posterior.transpose(1, 0, 2), truth, first_axis="samples")
    assert np.array_equal(swapped.ranks, right.ranks)
    as_sample_batched = posterior[:, :50].transpose(1, 0, 2)
    found = calibration(as_sample_batched, truth)
    assert np.array_equal(found.ranks, calibration(posterior[:, :50], truth).ranks)


@pytest.mark.parametrize("shape", [(800, 2), (800, 60, 3), (7, 60, 2), (0, 60, 2)])
def test_shapes_that_do_not_fit_are_named(shape):
    with pytest.raises(
        ValueError, match=r"pass \(q, n, d\) or \(n, q, d\), and \(q, d\)"
    ):
        calibration(np.zeros(shape), TRUTH)
    with pytest.raises(ValueError, match=r"pass \(q, n, d\)"):
        calibration(SAMPLES, TRUTH, first_axis="samples")
    with pytest.raises(ValueError, match="share=2 must be a number from 0 to 1"):
        calibration(SAMPLES, TRUTH).coverage(2)
    with pytest.raises(ValueError, match="truth contain a NaN"):
        calibration(SAMPLES, TRUTH * np.nan)
