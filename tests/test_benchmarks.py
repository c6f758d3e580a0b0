"""The benchmarks: what they count is right, and every one of them runs in a tiny mode."""

import json

import completions
import cpu
import fixed_point
import gpu_kernels
import imputing
import joining
import numpy as np
import pandas as pd
import posteriors
import pytest
import scores
import table_sets
import tables
import today
import unet
from judge import Judge
from paper import __main__ as paper
from posterior_tasks import TASKS

from sliceflow.metrics import calibration

FAST = ("two moons", "Gaussian linear", "Gaussian mixture")


def test_distances_of_gaussians_have_their_closed_forms():
    a, b = np.random.default_rng(0).normal(size=(2, 20_000, 2))
    b = 2 * b + [3, 0]
    assert scores.frechet(a, b) == pytest.approx(9 + 2, rel=0.03)
    # mean over directions of (mean shift)² + (2 − 1)²
    assert scores.sliced_distance(a, b) == pytest.approx(np.sqrt(9 / 2 + 1), rel=0.05)
    assert scores.sliced_distance(a, a[::-1]) == 0


def test_tables_travel_as_csv_files(tmp_path):
    table_sets.write_csv(["wine"], tmp_path)
    frame, target = table_sets.load_table("wine", str(tmp_path))
    assert (frame.shape, target) == ((178, 14), "target")
    first, second = table_sets.halves(frame, 0)
    assert len(pd.concat([first, second]).drop_duplicates()) == len(
        frame.drop_duplicates()
    )
    cell = tables.measured("wine", "independent columns", 0, None, str(tmp_path), 10)
    assert cell["scores"][0] > 0.7


def test_filled_cells_are_nearer_to_the_hidden_ones_than_means(tmp_path):
    table_sets.write_csv(["wine"], tmp_path)
    means = imputing.main(["--sets", "wine", "--seeds", "1", "--csv", str(tmp_path)])[
        "error"
    ]
    assert len(means) == 8
    assert (
        means.drop("mean, mode", level="method")
        < 0.8 * means["wine", False, "mean, mode"]
    ).all()


def test_the_judge_prefers_real_pictures_and_knows_copies(digits):
    train, test = digits
    judge = Judge(train, test, epochs=3, width=4)
    noise = np.random.default_rng(0).integers(0, 17, test.images.shape).astype(np.uint8)
    real, random, copied = (judge.score(x) for x in (test.images, noise, train.images))
    assert 2 * real["FD"] < random["FD"]
    assert copied["copies"] == 1
    assert real["NN ratio"] == 1
    few = judge.among(np.array([3, 7]))
    assert set(np.unique(few.train.labels)) == {3, 7}
    assert few.score(few.test.images, few.test.labels)["recognised"] > 0.5


@pytest.mark.parametrize(
    "name",
    [
        name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
        for name in TASKS
    ],
)
def test_the_truth_is_one_more_draw_of_its_posterior(name):
    task = TASKS[name]
    rng = np.random.default_rng(0)
    truth, x = task.draw(200 if name in FAST else 25, seed=1)
    drawn = np.stack([task.posterior(at, 60, rng) for at in x])
    if task.bounds is not None:
        assert drawn.min() >= task.low
        assert drawn.max() <= task.high
    assert calibration(drawn, truth).p_values.min() > 0.1 / drawn.shape[2] / len(TASKS)


@pytest.mark.slow
def test_posteriors_write_a_table_and_resume(tmp_path):
    words = "--simulations 250 --observations 2 --compared 1 --samples 50 --epochs 3 --device cpu --resume"
    words = [*words.split(), "--out", str(tmp_path / "found")]
    posteriors.main(["--tasks", "Gaussian mixture", *words])
    before = json.loads((tmp_path / "found.json").read_text())["rows"]
    posteriors.main(["--tasks", "two moons", "Gaussian mixture", *words])
    row, kept = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert [kept] == before
    assert len(row["local"]) == 2
    assert "two moons, 250" in (tmp_path / "found.md").read_text()


def quick(out, *words):
    today.main([*words, "--out", str(out), "--quick", "--seeds", "0"])
    return json.loads(out.read_text())["rows"]


@pytest.mark.slow
def test_rows_are_kept_and_not_measured_again(tmp_path, capsys):
    out = tmp_path / "before.json"
    (kept,) = quick(out, "cpu", "--only", "vectors/wine")
    assert 0 <= kept["copies"] <= 1
    rows = quick(out, "cpu", "--only", "vectors/wine", "tables/wine")
    assert rows[0] == kept
    assert [row["name"] for row in rows] == ["vectors/wine", "tables/wine"]
    assert rows[1]["detection"] < 1
    capsys.readouterr()
    today.main(["table", str(out), str(out)])
    text = capsys.readouterr().out
    assert text.count("| wine, before ") == 4
    assert "### tables" in text


@pytest.mark.slow
def test_the_other_rows_of_a_cpu_are_measured(tmp_path):
    names = [
        "completions/digits",
        "pictures on a CPU/digits",
        "posteriors/two moons 1000",
    ]
    found = {
        row["name"]: row
        for row in quick(tmp_path / "rows.json", "cpu", "--only", *names)
    }
    assert found["completions/digits"]["by_class_recognised"] > 0.5
    assert found["pictures on a CPU/digits by class"]["recognised"] > 0.8
    assert 0.3 < found["posteriors/two moons 1000"]["c2st"] < 0.8


def test_pictures_of_a_gpu_are_scored(tmp_path, digits, monkeypatch):
    train, test = digits
    np.savez(
        tmp_path / "mnist.npz",
        train_images=train.images,
        train_labels=train.labels,
        test_images=test.images,
        test_labels=test.labels,
    )
    monkeypatch.setattr(
        today, "inception", lambda *_: lambda x: scores.thumbnails(x, 4)
    )
    given = [
        "--data-root",
        str(tmp_path),
        "--fid-weights",
        "none",
        "--cache",
        str(tmp_path),
    ]
    words = ("gpu", "--device", "cpu", *given, "--only", "pictures/MNIST by class")
    (row,) = quick(tmp_path / "found.json", *words)
    assert row["same_bits"]
    assert row["model_mb"] > 0
    assert 0 <= row["offline_recognised"] <= 1
    assert np.isfinite([row["fid768"], row["offline_fd"], row["copies_features"]]).all()


@pytest.mark.slow
def test_the_cpu_is_measured(tmp_path):
    pytest.importorskip("ot", reason="POT is not installed")
    rows = cpu.main(["--quick", "--out", str(tmp_path / "cpu")])
    left = [row["sliced distance"] for row in rows if "sliced distance" in row]
    assert max(left[:4]) < 1.2 * min(left[:4])  # the same work
    assert all(row["seconds per step"] > 0 for row in rows)


def test_every_kernel_is_measured(tmp_path):
    rows = gpu_kernels.main(["--quick", "--out", str(tmp_path / "kernels")])
    assert {row["kernel"] for row in rows} == {
        "histogram",
        "displace_grid",
        "add_class_offsets",
        "compose",
        "philox",
        "project_tiles",
        "move_tiles",
        "compress_map",
        "expand_map",
    }
    assert all(row["seconds"] > 0 and row["bytes"] > 0 for row in rows)


def test_real_rows_stand_still_with_shrinkage(tmp_path):
    words = f"--sets moons --steps 30 --rows 400 --out {tmp_path / 'fixed'}"
    plain, shrunk = fixed_point.main(words.split())
    assert shrunk["moved"] < plain["moved"] / 2
    assert shrunk["steps"] < plain["steps"] == 30


@pytest.mark.slow
def test_clothes_join_digits_and_forgetting_leaves_no_trace(tmp_path):
    rows = joining.main(
        f"--rows 200 --quality 1 --epochs 1 --out {tmp_path / 'j'}".split()
    )
    assert [row["classes"] for row in rows] == [5, 10, 9]
    assert rows[-1]["same file"]


@pytest.mark.slow
def test_every_way_to_complete_is_measured(tmp_path):
    rows = completions.main(
        f"--sets digits --n 40 --train 200 --quality 1 --epochs 1 --out {tmp_path / 'c'}".split()
    )
    found = {row["method"]: row for row in rows}
    assert list(found) == ["real", "copied", "inpaint", "inpaint, labels", "observed"]
    assert (found["copied"]["NN ratio"], found["copied"]["copies"]) == (0, 1)
    assert (found["real"]["speckle"], found["real"]["seam"]) == (1, 1)


@pytest.mark.slow
def test_the_network_and_the_flow_are_compared(tmp_path):
    rows = unet.main(
        "digits --width 8 --batch 8 --seconds 0.1 0.2 --quality 1 --samples 60 --heun 1 --rows 200 "
        f"--epochs 1 --out {tmp_path / 'unet'}".split()
    )
    assert [row["model"].split(",")[0] for row in rows] == [
        "sliceflow",
        "U-Net",
        "U-Net",
    ]
    assert all(np.isfinite(row["FD"]) and 0 <= row["copies"] <= 1 for row in rows)


def test_the_papers_tables_and_figures_are_written(tmp_path):
    names = ["figure1", "figure4", "figure5", "table2", "printed"]
    found = paper.main([*names, "--scale", "tiny", "--out", str(tmp_path)])
    assert {round(row["longest direction"], 4) for row in found["figure1"]} == {1}
    assert {row["is ours"] for row in found["table2"]} == {"yes"}
    assert found["figure5"][0]["known pixels kept"] == 1
    assert [row["method"].split(", ")[1] for row in found["printed"]] == [
        "as printed",
        "ours",
    ] * 2
    for name in names:
        assert json.loads((tmp_path / f"{name}.json").read_text())["rows"]
    drawn = {path.name.partition("-")[0] for path in tmp_path.glob("*.png")}
    assert drawn == {"figure1", "figure4", "figure5"}


@pytest.mark.slow
def test_the_rest_of_the_paper_is_written(tmp_path):
    found = paper.main(["--scale", "tiny", "--out", str(tmp_path)])
    assert list(found) == list(paper.COMMANDS)
