"""The simulators of the benchmark have the posteriors that they say, and the benchmark runs."""

import json

import numpy as np
import posteriors
import pytest
from posterior_tasks import TASKS

from sliceflow.metrics import calibration

FAST = ("two moons", "Gaussian linear", "Gaussian mixture")


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in TASKS]
)
def test_the_truth_is_one_more_draw_of_its_posterior(name):
    task, rng = TASKS[name], np.random.default_rng(0)
    truth, x = task.draw(200 if name in FAST else 25, seed=1)
    made = np.stack([task.posterior(at, 60, rng) for at in x])
    if task.bounds is not None:
        assert made.min() >= task.low
        assert made.max() <= task.high
    assert calibration(made, truth).p_values.min() > 0.1 / made.shape[2] / len(TASKS)


def test_the_benchmark_writes_a_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(posteriors, "EPOCHS", 3)
    words = ["--tasks", "two moons", "--simulations", "250", "--observations", "2", "--samples", "50"]
    posteriors.main([*words, "--out", str(tmp_path / "made")])
    text = (tmp_path / "made.md").read_text()
    assert "| two moons, 250" in text
    assert "mean of 2 observations" in text
    (row,) = json.loads((tmp_path / "made.json").read_text())["rows"]
    assert len(row["local"]) == 2
    assert row["NN"] > 0.5
    assert "two moons" in capsys.readouterr().out


def test_adjustment_beats_rejection_where_the_regression_is_linear():
    task = TASKS["Gaussian linear"]
    theta, x = task.draw(2_000, 0)
    x0 = np.full((1, 10), 0.5)
    plain, adjusted = (posteriors.rejection(theta, x, x0, 500, linear)[0] for linear in (False, True))
    assert abs(adjusted.mean() - 0.25) < 0.05 < abs(plain.mean() - 0.25)
