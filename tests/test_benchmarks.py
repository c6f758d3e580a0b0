"""The benchmarks: what they count is right, and every one of them runs in a tiny mode."""

import argparse
import bz2
import json
import zipfile

import completions
import cpu
import fixed_point
import gpu_kernels
import joining
import networks
import numpy as np
import pandas as pd
import posteriors
import pytest
import report
import scores
import table_sets
import tables
import today
import torch
import unet
from judge import Judge
from paper import __main__ as paper
from posterior_tasks import TASKS, published
from two_samples import c2st, c2st_many

from sliceflow import datasets
from sliceflow.datasets import Pictures
from sliceflow.metrics import calibration

FAST = ("two moons", "Gaussian linear", "Gaussian mixture")


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits"), datasets.load("digits", split="test")


# --- what is counted ----------------------------------------------------------------------------------


def test_a_table_is_markdown_with_all_but_the_first_column_flush_right():
    lines = report.table(["", "ms"], [["a", "1"], ["long name", "22.5"]]).splitlines()
    assert lines[:2] == ["|           |   ms |", "|-----------|-----:|"]
    assert lines[2:] == ["| a         |    1 |", "| long name | 22.5 |"]


def test_distances_are_to_the_nearest_row_and_copies_are_at_zero():
    data = np.array([[0.0, 0.0], [3.0, 4.0], [9.0, 9.0]])
    assert scores.distances_to(np.array([[0.0, 1.0], [3.0, 4.0]]), data).tolist() == [1.0, 0.0]
    np.testing.assert_allclose(scores.distances_to(data, data, itself=True)[:2], 5.0)


def test_copies_and_ratio_tell_training_rows_from_new_ones():
    train, test, new = np.random.default_rng(0).normal(size=(3, 400, 3))
    real, copied = scores.distances_to(test, train), scores.distances_to(train, train)
    fresh = scores.distances_to(new, train)
    assert scores.copies(copied, real) == 1
    assert scores.nn_ratio(copied, real) == 0
    assert scores.copies(fresh, real) < 0.04
    assert scores.nn_ratio(fresh, real) == pytest.approx(1, abs=0.1)


def test_distances_of_gaussians_have_their_closed_forms():
    a, b = np.random.default_rng(0).normal(size=(2, 20_000, 2))
    b = 2 * b + [3, 0]
    assert scores.frechet(a, b) == pytest.approx(9 + 2, rel=0.03)
    # mean over directions of (mean shift)² + (2 − 1)²
    assert scores.sliced_distance(a, b) == pytest.approx(np.sqrt(9 / 2 + 1), rel=0.05)
    assert scores.sliced_distance(a, a[::-1]) == 0


def test_coverage_is_nearly_one_for_new_rows_and_zero_for_far_ones():
    a, b = np.random.default_rng(0).normal(size=(2, 500, 2))
    assert scores.coverage(a, b) > 0.9
    assert scores.coverage(a + 99, b) == 0


def test_thumbnails_are_means_of_squares():
    images = np.arange(2 * 16 * 16).reshape(2, 16, 16)
    assert scores.thumbnails(images).shape == (2, 64)
    assert scores.thumbnails(images)[0, 0] == images[0, :2, :2].mean()


def test_a_forest_tells_shifted_rows():
    a, b = np.random.default_rng(0).normal(size=(2, 100, 2))
    assert scores.c2st(a, b + 9, n_trees=10) == 1
    assert scores.c2st(a, b, n_trees=10) < 0.7


def test_tables_are_scored_by_what_differs():
    rng = np.random.default_rng(0)

    def rows(n):
        a, day = rng.normal(size=n), pd.Timestamp("2020-01-01")
        frame = pd.DataFrame({"a": a, "b": np.where(a > 0.3 * rng.normal(size=n), "yes", "no")})
        frame["c"] = day + pd.to_timedelta(rng.integers(0, 99, n), unit="D")
        frame.loc[::9, "a"] = np.nan
        return frame

    train, test, new = rows(1000), rows(1000), rows(1000)
    shuffled = new.assign(b=rng.permutation(new["b"]))
    good, bad = (scores.table_scores(train, test, x, "b") for x in (new, shuffled))
    assert good["detection"] < 0.6 < bad["detection"]
    assert good["utility"] > 0.7 > bad["utility"]
    assert good["shape"] > 0.85
    assert good["trend"] < bad["trend"]
    assert good["copies"] < 0.05


def test_tables_travel_as_csv_files(tmp_path):
    table_sets.write_csv(["wine"], tmp_path)
    frame, target = table_sets.load_table("wine", str(tmp_path))
    assert (frame.shape, target) == ((178, 14), "target")
    first, second = table_sets.halves(frame, 0)
    assert len(pd.concat([first, second]).drop_duplicates()) == len(frame.drop_duplicates())
    cell = tables.measured("wine", "independent columns", 0, None, str(tmp_path), 10)
    assert cell["scores"][0] > 0.7


def test_peers_of_tables_are_rounded_and_kept_within_bounds():
    train = pd.DataFrame({"a": [0.25, 1.5, 3.0], "n": [1, 5, 9], "t": ["x", "y", "x"]})
    samples = pd.DataFrame({"a": [-1.0, 1.23456, 9.0], "n": [0.4, 4.6, 8.2], "t": ["y", "x", "x"]})
    found = tables.rounded(samples, train)
    assert found["a"].tolist() == [0.25, 1.23, 3.0]
    assert found["n"].tolist() == [1, 5, 8]


def test_cells_of_tables_become_means_and_errors():
    def cell(method, seed, detection):
        values = [detection, 1.0, 0.0, 0.9, 0.01, 1.0]
        return {"set": "s", "method": method, "seed": seed, "shape": [50, 3], "scores": values,
                "floors": values, "seconds": 2.0}  # fmt: skip

    cells = [cell("TableFlow", 0, 0.5), cell("TableFlow", 1, 0.6), cell("arf", 0, 0.9)]
    cells.append({"set": "s", "method": "forest", "seed": 0, "shape": [50, 3], "error": "too slow"})
    text = tables.shown("s", cells)
    row = next(line for line in text.splitlines() if "| TableFlow" in line)
    assert [word.strip() for word in row.split("|")[2:4]] == ["2", "0.550"]
    assert "forest, seed 0: too slow" in text
    lowest = tables.summary(cells).splitlines()[-1]
    assert [word.strip() for word in lowest.split("|")[1:-1]] == ["lowest on", "", "1", "0", "0"]


# --- networks -----------------------------------------------------------------------------------------


def test_the_classifier_learns_and_is_found_again(digits, tmp_path):
    train, test = digits
    given = train.images, train.labels, test.images, test.labels
    options = {"n_pixel_values": 17, "epochs": 3, "width": 4, "cache": tmp_path}
    first = networks.train_classifier(*given, **options)
    assert first.accuracy > 0.6
    assert first.features(test.images).shape == (500, 32)
    (file,) = tmp_path.glob("*.safetensors")
    written = file.stat().st_mtime_ns
    again = networks.train_classifier(*given, **options)
    assert np.array_equal(again.features(test.images), first.features(test.images))
    assert file.stat().st_mtime_ns == written


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


def test_inception_reads_folded_weights(tmp_path, monkeypatch):
    """The shape of the answer and the resizing; the network itself would take seconds a picture."""
    seen = []
    monkeypatch.setattr(networks, "_inception", lambda x, w: seen.append(x.shape) or x.mean((2, 3)))
    np.savez(tmp_path / "w.npz", conv=np.zeros(1, np.float32))
    features = networks.inception768(tmp_path / "w.npz", batch=2)
    grey = features(np.full((3, 8, 8), 255, np.uint8))
    assert seen == [(2, 3, 299, 299), (1, 3, 299, 299)]
    np.testing.assert_allclose(grey, 1.0)
    assert features(np.zeros((1, 8, 8, 3), np.uint8)).tolist() == [[-1, -1, -1]]


# --- posteriors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in TASKS]
)
def test_the_truth_is_one_more_draw_of_its_posterior(name):
    task, rng = TASKS[name], np.random.default_rng(0)
    truth, x = task.draw(200 if name in FAST else 25, seed=1)
    drawn = np.stack([task.posterior(at, 60, rng) for at in x])
    if task.bounds is not None:
        assert drawn.min() >= task.low
        assert drawn.max() <= task.high
    assert calibration(drawn, truth).p_values.min() > 0.1 / drawn.shape[2] / len(TASKS)


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
            folder = f"sbibm/tasks/bernoulli_glm/files/num_observation_{i}/"
            wheel.writestr(folder + "observation_raw.csv", f"data_1,data_2\n{i},0\n")
            draws = "\n".join(["parameter_1", *(f"{i}.5" for _ in range(n))])
            wheel.writestr(folder + "reference_posterior_samples.csv.bz2", bz2.compress(draws.encode()))
    x0, true = published(task, tmp_path / "wheel")
    assert x0.tolist() == [[i, 0] for i in range(1, 11)]
    assert true[3].tolist() == [[4.5]] * n


def test_adjustment_beats_rejection_where_the_regression_is_linear():
    theta, x = TASKS["Gaussian linear"].draw(2_000, 0)
    x0 = np.full((1, 10), 0.5)
    plain, adjusted = (posteriors.rejection(theta, x, x0, 500, linear)[0] for linear in (False, True))
    assert abs(adjusted.mean() - 0.25) < 0.05 < abs(plain.mean() - 0.25)


def test_posteriors_write_a_table_and_resume(tmp_path):
    words = ["--simulations", "250", "--observations", "2", "--compared", "1", "--samples", "50"]
    words += ["--epochs", "3", "--device", "cpu", "--resume", "--out", str(tmp_path / "found")]
    posteriors.main(["--tasks", "Gaussian mixture", *words])
    before = json.loads((tmp_path / "found.json").read_text())["rows"]
    posteriors.main(["--tasks", "two moons", "Gaussian mixture", *words])
    row, kept = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert [kept] == before
    assert len(row["local"]) == 2
    assert "two moons, 250" in (tmp_path / "found.md").read_text()


# --- today --------------------------------------------------------------------------------------------


def quick(*words):
    today.main([*words, "--quick", "--seeds", "0"])


def test_rows_are_kept_and_not_measured_again(tmp_path, capsys):
    out = tmp_path / "before.json"
    quick("cpu", "--out", str(out), "--only", "vectors/wine")
    (kept,) = json.loads(out.read_text())["rows"]
    assert 0 <= kept["copies"] <= 1
    quick("cpu", "--out", str(out), "--only", "vectors/wine", "tables/wine")
    rows = json.loads(out.read_text())["rows"]
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
    out = tmp_path / "before.json"
    names = ["completions/digits", "pictures on a CPU/digits", "posteriors/two moons 1000"]
    quick("cpu", "--out", str(out), "--only", *names)
    found = {row["name"]: row for row in json.loads(out.read_text())["rows"]}
    assert found["completions/digits"]["by_class_recognised"] > 0.5
    assert found["pictures on a CPU/digits by class"]["recognised"] > 0.8
    assert 0.3 < found["posteriors/two moons 1000"]["c2st"] < 0.8


@pytest.mark.parametrize(
    ("column", "before", "after", "worse"),
    [
        ("c2st", [0.52, 0.53, 0.54], [0.60, 0.61, 0.62], True),
        ("c2st", [0.52, 0.53, 0.54], [0.53, 0.54, 0.55], False),  # within the seeds' noise
        ("c2st", [0.50, 0.50, 0.50], [0.40, 0.40, 0.40], False),
        ("utility", [0.90, 0.91, 0.92], [0.80, 0.81, 0.82], True),
        ("utility", [0.90, 0.91, 0.92], [0.99, 0.99, 0.99], False),
        ("offline_copies", [0.001], [0.009], False),  # both are below the ideal share
        ("nn_ratio", [1.0, 1.0], [0.5, 0.5], True),
        ("nn_ratio", [0.5, 0.5], [1.0, 1.0], False),
        ("fid768", [0.165], [0.170], False),  # one seed: 5 % are noise
        ("offline_fid768", [0.165], [0.200], True),
    ],
)
def test_worse_is_more_than_the_noise(column, before, after, worse):
    rows = ([{column: value} for value in values] for values in (before, after))
    assert today._worse(*rows, column) is worse


def test_a_missing_set_is_skipped_and_said(tmp_path, capsys):
    out, words = tmp_path / "found.json", ["--data-root", str(tmp_path), "--device", "cpu"]
    quick("gpu", "--out", str(out), *words, "--only", "pictures/CIFAR-10 by class")
    assert "skipped" in capsys.readouterr().out
    assert not out.exists()


def test_pictures_of_a_gpu_are_scored(tmp_path, digits, monkeypatch):
    train, test = digits
    np.savez(tmp_path / "mnist.npz", train_images=train.images, train_labels=train.labels,
             test_images=test.images, test_labels=test.labels)  # fmt: skip
    monkeypatch.setattr(today, "inception", lambda *_: lambda x: scores.thumbnails(x, 4))
    out = tmp_path / "found.json"
    given = ["--data-root", str(tmp_path), "--fid-weights", "none", "--cache", str(tmp_path)]
    quick("gpu", "--out", str(out), "--device", "cpu", *given, "--only", "pictures/MNIST by class")
    (row,) = json.loads(out.read_text())["rows"]
    assert row["same_bits"]
    assert row["model_mb"] > 0
    assert 0 <= row["offline_recognised"] <= 1
    assert np.isfinite([row["fid768"], row["offline_fd"], row["copies_features"]]).all()


def test_a_row_that_takes_too_long_is_left_out(tmp_path, capsys):
    def forever(seed, args):
        while True:
            pass

    args = argparse.Namespace(
        out=tmp_path / "o.json", only=None, seeds=[0], device="cpu", limit=1, data_root=None
    )
    today.measure({"forever": forever, "short": lambda seed, args: {"c2st": 0.5}}, args)
    assert "out of time" in capsys.readouterr().out
    assert [row["name"] for row in json.loads(args.out.read_text())["rows"]] == ["short"]


# --- the others run -----------------------------------------------------------------------------------


def test_the_cpu_is_measured(tmp_path):
    pytest.importorskip("ot", reason="POT is not installed")
    rows = cpu.main(["--quick", "--out", str(tmp_path / "cpu")])
    left = [row["sliced distance"] for row in rows if "sliced distance" in row]
    assert max(left[:4]) < 1.2 * min(left[:4])  # the same work
    assert all(row["seconds per step"] > 0 for row in rows)


def test_every_kernel_is_measured(tmp_path):
    rows = gpu_kernels.main(["--quick", "--out", str(tmp_path / "kernels")])
    assert {row["kernel"] for row in rows} == {
        "histogram", "displace_grid", "add_class_offsets", "compose", "philox", "project_tiles",
        "move_tiles", "at_bends", "through_knots",
    }  # fmt: skip
    assert all(row["seconds"] > 0 and row["bytes"] > 0 for row in rows)


def test_the_least_of_a_kernel_is_each_array_once():
    from sliceflow import kernels

    h, m, device = 7, 100, torch.device("cpu")
    cases = {c.kernel: c for c in gpu_kernels.row_cases(kernels.for_device(device), h, m, device)}
    z, table = torch.empty(h, m), torch.empty(h, 1024 + 3)
    assert cases["histogram"].bytes == z.nbytes + torch.empty(h, 1024 + 2).nbytes
    assert cases["displace_grid"].bytes == 2 * z.nbytes + table.nbytes
    codes, offsets = torch.empty(m, dtype=torch.int64), torch.empty(h, gpu_kernels.CLASSES)
    assert cases["add_class_offsets"].bytes == 2 * z.nbytes + codes.nbytes + offsets.nbytes


def test_real_rows_stand_still_with_shrinkage(tmp_path):
    words = ["--sets", "moons", "--steps", "30", "--rows", "400", "--out", str(tmp_path / "fixed")]
    plain, shrunk = fixed_point.main(words)
    assert shrunk["moved"] < plain["moved"] / 2
    assert shrunk["steps"] < plain["steps"] == 30


@pytest.mark.slow
def test_clothes_join_digits_and_forgetting_leaves_no_trace(tmp_path):
    rows = joining.main(
        ["--rows", "200", "--quality", "1", "--epochs", "1", "--out", str(tmp_path / "j")]
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


def test_the_network_has_as_many_parameters_as_it_says():
    assert 17e6 < sum(p.numel() for p in unet.UNet(3, 128).parameters()) < 19e6
    sizes = {unet.UNet(1, 8)(torch.zeros(2, 1, h, w), torch.rand(2)).shape for h, w in [(8, 8), (9, 6)]}
    assert sizes == {(2, 1, 8, 8), (2, 1, 9, 6)}


def test_the_network_learns_where_pixels_are_bright():
    images = np.random.default_rng(0).integers(0, 3, (64, 6, 6)).astype(np.uint8)
    images[:, :, :3] += 13
    pictures, device = Pictures(images, None, 16, "halves"), torch.device("cpu")
    model = unet.Trained(pictures, False, 8, 32, device, seed=0, rate=5e-3, warm=1)
    for _ in range(30):
        model.step()
    samples = model.sample(40, 6)
    assert samples[:, :, :3].mean() > samples[:, :, 3:].mean() + 8


def test_the_network_and_the_flow_are_compared(tmp_path):
    rows = unet.main(
        "digits --width 8 --batch 8 --seconds 0.1 0.2 --quality 1 --samples 60 --heun 1 --rows 200 "
        f"--epochs 1 --out {tmp_path / 'unet'}".split()
    )
    assert [row["model"].split(",")[0] for row in rows] == ["sliceflow", "U-Net", "U-Net"]
    assert all(np.isfinite(row["FD"]) and 0 <= row["copies"] <= 1 for row in rows)


# --- the paper ----------------------------------------------------------------------------------------

TINY = ["--scale", "tiny"]


def test_the_papers_tables_and_figures_are_written(tmp_path):
    names = ["figure1", "figure4", "figure5", "table2", "printed"]
    found = paper.main([*names, *TINY, "--out", str(tmp_path)])
    assert {round(row["longest direction"], 4) for row in found["figure1"]} == {1}
    assert {row["is our preset"] for row in found["table2"]} == {"yes"}
    assert found["figure5"][0]["known pixels kept"] == 1
    assert [row["method"].split(", ")[1] for row in found["printed"]] == ["as printed", "ours"] * 2
    for name in names:
        assert json.loads((tmp_path / f"{name}.json").read_text())["rows"]
    drawn = {path.name.partition("-")[0] for path in tmp_path.glob("*.png")}
    assert drawn == {"figure1", "figure4", "figure5"}


@pytest.mark.slow
def test_the_rest_of_the_paper_is_written(tmp_path):
    found = paper.main([*TINY, "--out", str(tmp_path)])
    assert list(found) == list(paper.COMMANDS)


@pytest.mark.parametrize(
    ("words", "told"),
    [(["table1", "--scale", "full"], "--data-root"), (["table9"], "table9: there are figure1")],
)
def test_the_paper_says_what_it_wants(words, told, capsys):
    with pytest.raises(SystemExit):
        paper.main(words)
    assert told in capsys.readouterr().err


def test_a_set_that_a_figure_does_not_have_is_told(tmp_path):
    with pytest.raises(SystemExit, match="mnist, fashion-mnist, cifar10; --datasets celeba"):
        paper.main(["figure4", *TINY, "--datasets", "celeba", "--out", str(tmp_path)])
