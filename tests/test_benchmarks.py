"""The benchmarks: what they count is right, and each of them runs in a tiny mode."""

import json

import attacks
import blind_tables
import completions
import cpu
import fixed_point
import given
import gpu_kernels
import imputing
import joining
import numpy as np
import pandas as pd
import posteriors
import pytest
import scores
import table_peers
import table_rules
import table_sets
import tables
import today
import unet
import verbatim
from judge import Judge
from posterior_tasks import TASKS

from sliceflow.metrics import calibration

# Tasks whose posteriors are drawn by a formula, so that many fit into a second.
FAST_TASKS = ("two moons", "Gaussian linear", "Gaussian mixture")
SLOW_TASKS = [name for name in TASKS if name not in FAST_TASKS]


def test_distances_of_gaussians_have_their_closed_forms():
    a, b = np.random.default_rng(0).normal(size=(2, 20_000, 2))
    b = 2 * b + [3, 0]
    assert scores.frechet(a, b) == pytest.approx(9 + 2, rel=0.03)
    # mean over directions of (mean shift)² + (2 − 1)²
    assert scores.sliced_distance(a, b) == pytest.approx(np.sqrt(9 / 2 + 1), rel=0.05)
    # In another order, the products of some versions of numpy are rounded otherwise.
    assert scores.sliced_distance(a, a[::-1]) == pytest.approx(0, abs=1e-12)


def test_tables_travel_as_csv_files(tmp_path):
    table_sets.write_csv(["wine"], tmp_path)
    frame, target = table_sets.load_table("wine", str(tmp_path))
    assert (frame.shape, target) == ((178, 14), "target")
    halves = pd.concat(table_sets.halves(frame, 0))
    assert len(halves.drop_duplicates()) == len(frame.drop_duplicates())
    cell = tables.measure("wine", "independent columns", 0, None, str(tmp_path), 10)
    assert cell["scores"][0] > 0.7


def test_a_hash_of_the_name_says_which_tables_are_held_out(tmp_path):
    assert blind_tables.half_of("ames") == "develop"  # it was looked at
    halves = {key: blind_tables.half_of(key) for key in ("first", "second", "third")}
    assert halves == {"first": "develop", "second": "held_out", "third": "held_out"}
    frame = pd.DataFrame({"a": [1, 2], "free text": ["x", "y"], "b": [0, 1]})
    for key in halves:
        frame.to_csv(tmp_path / f"{key}.csv", index=False)
    assert blind_tables.keys_of("develop", tmp_path) == ["first"]
    assert set(blind_tables.keys_of("held_out", tmp_path)) == {"second", "third"}
    read = blind_tables.load_table("first", tmp_path)
    assert read.equals(frame.drop(columns="free text"))  # all of its texts differ
    assert blind_tables.choose_target(frame) == "b"
    with pytest.raises(SystemExit, match="second is of the half held_out"):
        blind_tables.main(["run", "--tables", "second", "--out", str(tmp_path)])


@pytest.mark.parametrize("peer", ["cart", "gaussian"])
def test_plain_peers_keep_levels_missing_cells_and_what_depends(peer, rng):
    x = rng.normal(size=400)
    x[rng.random(400) < 0.2] = np.nan
    side = np.where(np.nan_to_num(x) > 0, "right", "left")
    frame = pd.DataFrame({"x": x, "side": side, "twice": 2 * x})
    new = table_peers.PEERS[peer](frame, 0)
    assert set(new["side"]) == {"left", "right"}
    # Five standard errors of 400 rows: it fails once in a million runs.
    assert new["x"].isna().mean() == pytest.approx(0.2, abs=0.14)
    known = new.dropna()
    assert known["x"].corr(known["twice"]) > 0.8


@pytest.mark.slow
def test_a_table_is_attacked_once_and_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sliceflow.metrics.attack_scores._N_TREES", 5)
    table_sets.write_csv(["wine"], tmp_path)
    words = [str(tmp_path / "wine.csv"), "--shadows", "0", "--rows", "80"]
    words += ["--out", str(tmp_path / "out.json")]
    (row,) = attacks.main(words)
    assert row["rows"] == 80
    assert [len(line) for line in attacks.table_lines(row)] == 5 * [len(attacks.HEADER)]
    assert "verbatim values" in capsys.readouterr().out
    assert attacks.main(words) == json.loads((tmp_path / "out.json").read_text())
    assert "attacking by" not in capsys.readouterr().out


@pytest.mark.slow
def test_filled_cells_are_nearer_to_the_hidden_ones_than_means(tmp_path):
    table_sets.write_csv(["wine"], tmp_path)
    words = ["--sets", "wine", "--seeds", "1", "--csv", str(tmp_path)]
    errors = imputing.main(words)["error"]
    assert len(errors) == 8
    others = errors.drop("mean, mode", level="method")
    assert (others < 0.8 * errors["wine", False, "mean, mode"]).all()


def test_draws_that_are_right_up_to_rounding_cover_by_chance(rng):
    truth = rng.normal(size=2_000)
    rounded = truth + 1e-8 * rng.normal(size=(19, 1))
    # 0.9 with a standard error of 0.007: by chance, one seed in ten million fails.
    assert imputing.coverage(rounded, truth, rng) == pytest.approx(0.9, abs=0.036)
    assert imputing.coverage(truth + np.full((19, 1), 0.1), truth, rng) == 0


@pytest.mark.slow
def test_orders_are_measured_beside_sequential_trees(monkeypatch):
    monkeypatch.setattr(table_rules, "N_ORDERS", 400)
    measured = table_rules.main(["--only", "orders"])
    assert measured["rules"]["orders", "TableFlow"] == 4
    assert measured["detection"].between(0.3, 0.9).all()


def test_copied_rare_numbers_are_suspected_and_fresh_ones_are_not(rng):
    fitted, others, reference = (
        pd.DataFrame({"x": rng.normal(size=300), "k": [0, 1, 2] * 100})
        for _ in range(3)
    )
    of_fitted = verbatim.suspicion(fitted, fitted, reference)
    of_others = verbatim.suspicion(others, fitted, reference)
    assert (of_fitted == 1).all()  # every x, and no k: all rows have one
    assert (of_others == 0).all()


def test_conditions_of_a_table_hold_for_the_rows_that_have_them():
    town = ["a"] * 60 + ["b"] * 21 + ["c"] * 19
    frame = pd.DataFrame({"town": town, "grade": 25 * [1, 2, 3, 4]})
    frame["x"] = np.arange(100.0)
    frame["z"] = frame["x"] ** 2
    found = given.conditions(frame)
    values = {condition.column: condition.given for condition in found}
    assert values["town"] in ("b", "c")  # nearest to a fifth
    assert values["grade"] in (1, 2, 3, 4)
    assert values["x"] == (74.0, None)
    assert values["z"] == (None, 100.0)
    shares = {condition.column: condition.holds(frame).mean() for condition in found}
    assert shares["grade"] == 0.25
    assert shares["x"] == 0.26
    assert shares["z"] == 0.11


@pytest.mark.slow
def test_the_judge_prefers_real_pictures_and_knows_copies(digits):
    train, test = digits
    judge = Judge(train, test, epochs=3, width=4)
    noise = np.random.default_rng(0).integers(0, 17, test.images.shape).astype(np.uint8)
    real = judge.score(test.images)
    random = judge.score(noise)
    copied = judge.score(train.images)
    assert 2 * real["FD"] < random["FD"]
    assert copied["copies"] == 1
    assert real["NN ratio"] == 1
    two_classes = judge.among(np.array([3, 7]))
    assert set(np.unique(two_classes.train.labels)) == {3, 7}
    scores = two_classes.score(two_classes.test.images, two_classes.test.labels)
    assert scores["recognized"] > 0.5


def assert_truth_is_one_more_draw(task, n):
    rng = np.random.default_rng(0)
    truth, x = task.draw(n, seed=1)
    draws = np.stack([task.posterior(observation, 60, rng) for observation in x])
    if task.bounds is not None:
        assert draws.min() >= task.low
        assert draws.max() <= task.high
    n_parameters = draws.shape[2]
    p_value = calibration(draws, truth).p_values.min()
    assert p_value > 0.1 / n_parameters / len(TASKS)


@pytest.mark.parametrize("name", FAST_TASKS)
def test_the_truth_is_one_more_draw_of_its_posterior(name):
    assert_truth_is_one_more_draw(TASKS[name], 200)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW_TASKS)
def test_the_truth_is_one_more_draw_of_a_slow_posterior(name):
    assert_truth_is_one_more_draw(TASKS[name], 25)


@pytest.mark.slow
def test_posteriors_write_a_table_and_resume(tmp_path):
    size = "--simulations 250 --observations 2 --compared 1 --samples 50 --epochs 3"
    out = str(tmp_path / "results")
    words = [*size.split(), "--device", "cpu", "--resume", "--out", out]
    posteriors.main(["--tasks", "Gaussian mixture", *words])
    (before,) = read_rows(tmp_path / "results.json")
    posteriors.main(["--tasks", "two moons", "Gaussian mixture", *words])
    new, resumed = read_rows(tmp_path / "results.json")
    assert resumed == before
    assert len(new["local"]) == 2
    assert "two moons, 250" in (tmp_path / "results.md").read_text()


def read_rows(path):
    return json.loads(path.read_text())["rows"]


def measure_quickly(out, *words):
    today.main([*words, "--out", str(out), "--quick", "--seeds", "0"])
    return read_rows(out)


@pytest.mark.slow
def test_rows_are_kept_and_not_measured_again(tmp_path, capsys):
    out = tmp_path / "before.json"
    (first,) = measure_quickly(out, "cpu", "--only", "vectors/wine")
    assert 0 <= first["copies"] <= 1
    rows = measure_quickly(out, "cpu", "--only", "vectors/wine", "tables/wine")
    assert rows[0] == first
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
    rows = measure_quickly(tmp_path / "rows.json", "cpu", "--only", *names)
    by_name = {row["name"]: row for row in rows}
    assert by_name["completions/digits"]["by_class_recognized"] > 0.5
    assert by_name["pictures on a CPU/digits by class"]["recognized"] > 0.8
    assert 0.3 < by_name["posteriors/two moons 1000"]["c2st"] < 0.8


def test_pictures_of_a_gpu_are_scored(tmp_path, digits, monkeypatch):
    train, test = digits
    np.savez(
        tmp_path / "mnist.npz",
        train_images=train.images,
        train_labels=train.labels,
        test_images=test.images,
        test_labels=test.labels,
    )

    def inception(weights, device):
        return lambda images: scores.thumbnails(images, 4)

    monkeypatch.setattr(today, "inception", inception)
    words = ["gpu", "--device", "cpu", "--only", "pictures/MNIST by class"]
    words += ["--data-root", str(tmp_path), "--cache", str(tmp_path)]
    words += ["--fid-weights", "none"]
    (row,) = measure_quickly(tmp_path / "rows.json", *words)
    assert row["same_bits"]
    assert row["model_mb"] > 0
    assert 0 <= row["offline_recognized"] <= 1
    assert np.isfinite([row["fid768"], row["offline_fd"], row["copies_features"]]).all()


@pytest.mark.slow
def test_the_cpu_is_measured(tmp_path):
    pytest.importorskip("ot", reason="POT is not installed")
    rows = cpu.main(["--quick", "--out", str(tmp_path / "cpu")])
    distances = [row["sliced distance"] for row in rows if "sliced distance" in row]
    assert max(distances[:4]) < 1.2 * min(distances[:4])  # the same work
    assert all(row["seconds per step"] > 0 for row in rows)


def test_every_kernel_is_measured(tmp_path):
    rows = gpu_kernels.main(["--quick", "--out", str(tmp_path / "kernels")])
    assert {row["kernel"] for row in rows} == {
        "histogram",
        "displace_grid",
        "add_class_offsets",
        "compose_histograms",
        "philox",
        "project_tiles",
        "move_tiles",
        "compress_grid",
        "expand_grid",
    }
    assert all(row["seconds"] > 0 and row["bytes"] > 0 for row in rows)


def test_real_rows_stand_still_with_shrinkage(tmp_path):
    words = f"--sets moons --steps 30 --rows 400 --out {tmp_path / 'fixed'}"
    plain, shrunk = fixed_point.main(words.split())
    assert shrunk["moved"] < plain["moved"] / 2
    assert shrunk["steps"] < plain["steps"] == 30


@pytest.mark.slow
def test_clothes_join_digits_and_forgetting_leaves_no_trace(tmp_path):
    words = f"--rows 200 --steps-per-stage 1 --epochs 1 --out {tmp_path / 'joining'}"
    rows = joining.main(words.split())
    assert [row["classes"] for row in rows] == [5, 10, 9]
    assert rows[-1]["same file"]


@pytest.mark.slow
def test_every_way_to_complete_is_measured(tmp_path):
    size = "--sets digits --n 40 --train 200 --steps-per-stage 1 --epochs 1"
    rows = completions.main([*size.split(), "--out", str(tmp_path / "completions")])
    by_method = {row["method"]: row for row in rows}
    expected = ["real", "copied", "inpaint", "inpaint, labels", "known"]
    assert list(by_method) == expected
    copied = by_method["copied"]
    assert (copied["NN ratio"], copied["copies"]) == (0, 1)
    real = by_method["real"]
    assert (real["speckle"], real["seam"]) == (1, 1)


@pytest.mark.slow
def test_the_network_and_the_flow_are_compared(tmp_path):
    size = "digits --rows 200 --samples 60 --steps-per-stage 1 --epochs 1"
    network = "--width 8 --batch 8 --seconds 0.1 0.2 --heun 1"
    words = [*size.split(), *network.split(), "--out", str(tmp_path / "unet")]
    rows = unet.main(words)
    models = [row["model"].split(",")[0] for row in rows]
    assert models == ["sliceflow", "U-Net", "U-Net"]
    assert all(np.isfinite(row["FD"]) and 0 <= row["copies"] <= 1 for row in rows)


@pytest.mark.slow
def test_the_papers_tables_and_figures_are_written(tmp_path):
    from paper import __main__ as paper  # it imports pyplot, which takes a second

    names = ["figure1", "figure4", "figure5", "table2", "printed"]
    rows = paper.main([*names, "--scale", "tiny", "--out", str(tmp_path)])
    assert {round(row["longest direction"], 4) for row in rows["figure1"]} == {1}
    assert {row["is ours"] for row in rows["table2"]} == {"yes"}
    assert rows["figure5"][0]["known pixels kept"] == 1
    versions = [row["method"].split(", ")[1] for row in rows["printed"]]
    assert versions == ["as printed", "ours", "as printed", "ours"]
    for name in names:
        assert read_rows(tmp_path / f"{name}.json")
    figures = {path.name.partition("-")[0] for path in tmp_path.glob("*.png")}
    assert figures == {"figure1", "figure4", "figure5"}


@pytest.mark.slow
def test_the_rest_of_the_paper_is_written(tmp_path):
    from paper import __main__ as paper

    rows = paper.main(["--scale", "tiny", "--out", str(tmp_path)])
    assert list(rows) == list(paper.COMMANDS)
