"""The simulators of the benchmark have the posteriors that they say, and the benchmark runs."""

import bz2
import json
import zipfile

import numpy as np
import posteriors
import pytest
import torch
from posterior_tasks import TASKS, published
from two_samples import c2st, c2st_many

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


def test_the_benchmark_writes_a_table_and_resumes(tmp_path, capsys):
    words = ["--simulations", "250", "--observations", "2", "--compared", "1", "--samples", "50"]
    words += ["--epochs", "3", "--device", "cpu", "--resume", "--out", str(tmp_path / "made")]
    posteriors.main(["--tasks", "Gaussian mixture", *words])
    before = json.loads((tmp_path / "made.json").read_text())["rows"]
    posteriors.main(["--tasks", "two moons", "Gaussian mixture", *words])
    text = (tmp_path / "made.md").read_text()
    cells = text.split("| two moons, 250")[1].split("\n")[0].split("|")
    assert [cell.strip() for cell in cells[-3:]] == ["2, 1", "50, 3", ""]
    row, kept = json.loads((tmp_path / "made.json").read_text())["rows"]
    assert [kept] == before
    assert len(row["local"]) == 2
    assert len(row["z"]) == len(row["adjusted"]) == 1
    assert row["NN"] > 0.5
    assert "two moons" in capsys.readouterr().out


def test_many_classifiers_at_once_are_scikit_learns():
    rng = np.random.default_rng(0)
    true, samples = rng.normal(size=(2, 2, 500, 2))
    samples[0, :, 0] *= 0.3
    samples[1] += 1.5
    one_by_one = [c2st(a, b, epochs=40) for a, b in zip(samples, true, strict=True)]
    together = c2st_many(torch.from_numpy(samples), torch.from_numpy(true), epochs=40)
    np.testing.assert_allclose(together, one_by_one, atol=0.04)


def test_sbibms_files_are_read(tmp_path):
    task, n = TASKS["Bernoulli GLM, raw"], 3
    with zipfile.ZipFile(tmp_path / "wheel", "w") as wheel:
        for i in range(1, 11):
            place = f"sbibm/tasks/bernoulli_glm/files/num_observation_{i}/"
            wheel.writestr(place + "observation_raw.csv", f"data_1,data_2\n{i},0\n")
            draws = "\n".join(["parameter_1", *(f"{i}.5" for _ in range(n))])
            wheel.writestr(place + "reference_posterior_samples.csv.bz2", bz2.compress(draws.encode()))
    x0, true = published(task, tmp_path / "wheel")
    assert x0.tolist() == [[i, 0] for i in range(1, 11)]
    assert true.shape == (10, n, 1)
    assert true[3].tolist() == [[4.5]] * n


def test_adjustment_beats_rejection_where_the_regression_is_linear():
    task = TASKS["Gaussian linear"]
    theta, x = task.draw(2_000, 0)
    x0 = np.full((1, 10), 0.5)
    plain, adjusted = (posteriors.rejection(theta, x, x0, 500, linear)[0] for linear in (False, True))
    assert abs(adjusted.mean() - 0.25) < 0.05 < abs(plain.mean() - 0.25)
