"""The benchmarks: what they count is right, and their parts run at tiny sizes without a GPU."""

import json
import math
from functools import partial
from types import SimpleNamespace

import compare_paper_step
import copying
import floors
import gpu
import gpu_growth
import gpu_kernels
import gpu_stages
import imputation
import made_up
import numpy as np
import pandas as pd
import pytest
import report
import table_growth
import table_size
import timing
import torch
import trade_offs
from judge import Judge, NetworkJudge
from paper import algorithm1
from presets import CIFAR10, MNIST, Preset

import tables
from sliceflow import datasets, kernels, metrics
from sliceflow.kernels.geometry import Geometry

CPU = torch.device("cpu")
RATES = floors.Rates(copy=4e12, half=6e14, tf32=3e14)
TINY = Preset("tiny", "2[2] 6[5,3]", (1, 6, 6), 400)


def test_a_table_is_markdown_with_all_but_the_first_column_flush_right():
    lines = report.table(["", "ms"], [["a", "1"], ["long name", "22.5"]]).splitlines()
    assert lines[:2] == ["|           |   ms |", "|-----------|-----:|"]
    assert lines[2:] == ["| a         |    1 |", "| long name | 22.5 |"]


def test_a_straight_line_is_found_and_a_bent_one_is_told():
    line = report.Line.through([1, 2, 4], [5, 7, 11])
    assert line.a == pytest.approx(3)
    assert line.b == pytest.approx(2)
    assert line.r2 == pytest.approx(1)
    assert line.at(10) == pytest.approx(23)
    assert report.Line.through([1, 2, 3, 4], [0, 9, 9, 0]).r2 < 0.1


def test_the_least_of_a_kernel_is_each_array_once():
    h, n, bins, classes = 7, 100, 32, 10
    z, counts = torch.empty(h, n), torch.empty(h, bins)
    lo, values = torch.empty(h), torch.empty(h, bins + 1)
    offsets, codes = torch.empty(h, classes), torch.empty(n, dtype=torch.int64)

    def size(*tensors):
        return sum(t.nbytes for t in tensors)

    assert floors.histogram(h, n, bins).bytes == size(z, counts, lo, lo)
    assert floors.compose(h, bins).bytes == size(counts, counts, lo, lo, lo, lo, values, lo)
    assert floors.pack(h, bins).bytes == size(lo, lo, values, lo, lo, lo, lo, counts)
    assert floors.displace_grid(h, n, bins).bytes == size(z, lo, lo, values, z)
    assert floors.add_class_offsets(h, n, classes).bytes == size(z, offsets, codes, z)
    assert floors.philox(n).bytes == size(torch.empty(n, 4, dtype=torch.int64))
    cut = Geometry((3, 8, 6), (3, 3), (1, 2))
    x, theta = torch.empty(144, n), torch.empty(27, 27, dtype=torch.float16)
    z, table = torch.empty(cut.n_directions, n), torch.empty(cut.n_directions, bins + 3)
    assert floors.project_tiles(cut, n).bytes == size(x, theta, z)
    assert floors.move_tiles(cut, n, bins).bytes == size(x, theta, table, x)
    offsets = torch.empty(cut.n_directions, classes)
    assert floors.move_tiles(cut, n, bins, classes).bytes == size(x, theta, table, x, offsets, codes)


def test_products_are_counted_for_real_pixels_alone():
    whole = Geometry((1, 4, 4), (4, 4), (0, 0))
    assert floors.project_tiles(whole, 10).operations == 2 * 16 * 16 * 10
    cut = Geometry((1, 4, 4), (2, 2), (1, 1))  # nine tiles: 36 places
    assert floors.project_tiles(cut, 10).operations == 2 * 4 * 16 * 10
    assert floors.move_tiles(cut, 10, 256).operations == 2 * floors.project_tiles(cut, 10).operations
    step = floors.step(cut, 100, 10, 20, 256)
    assert step.operations == floors.project_tiles(cut, 30 + 2 * 100).operations


def test_the_least_time_is_the_slower_of_bytes_and_products():
    assert floors.Work(4 * 10**12, 10**30).least_seconds(RATES) == 1  # those are no products
    work = floors.Work(4 * 10**12, 12 * 10**14, True)
    assert work.least_seconds(RATES) == 2
    assert work.share_of_copy(4, RATES) == 0.25
    assert work.share_of_products(4, RATES) == 0.5
    assert floors.Work(1, 1).share_of_products(4, RATES) is None


def test_presets_are_the_papers():
    assert MNIST.top_patches == CIFAR10.top_patches == [15, 13, 11, 9, 7, 5, 3]
    assert (len(MNIST.stages()), len(CIFAR10.stages())) == (35, 38)


def test_kernels_are_added_up_between_marks():
    mark = "void at::cuda::spin_kernel(long)"
    kernels_seen = [
        (9.0, mark, 1.0), (0.0, "before", 7.0), (1.0, mark, 1.0), (3.0, "a", 0.5), (2.0, "b", 0.25),
        (5.0, mark, 1.0), (6.0, "no", 7.0), (7.0, mark, 1.0), (8.0, "c", 2.0), (10.0, "after", 7.0),
    ]  # fmt: skip
    assert timing.between_marks(kernels_seen) == [0.75, 2.0]
    assert timing.between_marks([]) == []


def test_a_listener_acts_at_the_first_and_the_last_step():
    seen = []
    ends = timing.Ends(5, lambda: seen.append(1))
    acted = []
    for step in range(5):
        ends(SimpleNamespace(step=step))
        acted.append(len(seen))
    assert acted == [1, 1, 1, 1, 2]


def test_every_kernel_is_measured():
    k = kernels.for_device(CPU)
    cases = gpu_kernels.kernel_cases(k, None, 320, CPU, torch.float32, presets=(TINY,), heights=(6, 3))
    rows = gpu_kernels.measured_kernels(cases, RATES, CPU)
    assert {row["kernel"] for row in rows} == {
        "histogram", "displace_grid", "add_class_offsets", "compose", "philox", "project_tiles",
        "move_tiles", "move_tiles, labels", "at_bends", "through_knots",
    }  # fmt: skip
    assert all(row["seconds"] > 0 and row["bytes"] > 0 and row["operations"] > 0 for row in rows)
    text = gpu_kernels.kernels_text(rows, RATES)
    assert "Counting and displacing 6 × 320, 256 bins" in text
    assert "tiny [5], 100 × 320" in text
    json.dumps(rows)


def test_the_gpus_kernels_are_called_as_they_want_to_be(monkeypatch):
    """In Triton's interpreter, if need be: composing tables is slow there, so that others make them."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from sliceflow.kernels import reference
    from sliceflow.kernels import triton as triton_kernels
    from sliceflow.kernels.triton import values as gpu_values

    maps = gpu_kernels._maps
    monkeypatch.setattr(
        gpu_kernels, "_maps", lambda k, z, bins: [t.float() for t in maps(reference, z, bins)]
    )
    monkeypatch.setattr(gpu_kernels, "TABLE_VALUES", 50)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    small = Preset("small", "5[3]", (1, 5, 5), 0)
    cases = gpu_kernels.kernel_cases(
        triton_kernels, gpu_values.pack, 16, device, presets=(small,), heights=(1,)
    )
    seen = set()
    for case in cases:
        case.work()
        seen.add(case.kernel)
    assert len(seen) == 11


@pytest.mark.parametrize("labels", [False, True])
def test_every_stage_is_measured(labels):
    numbers = gpu_stages.measured_stages(TINY, 800, RATES, CPU, n_steps=3, labels=labels)
    assert [row["stage"] for row in numbers["stages"]] == ["2×2[2]", "6×6[5]", "6×6[3]"]
    assert all(row["seconds"] > 0 for row in numbers["stages"])
    text = gpu_stages.stages_text(numbers)
    total = 100 * sum(row["seconds"] for row in numbers["stages"])
    assert f"{total:.2f} s of steps" in text
    numbers["stages"] = [row | {"own seconds": row["seconds"] / 2} for row in numbers["stages"]]
    assert gpu_stages.stages_text(numbers).count(" 50% |") == 4
    json.dumps(numbers)


def test_growth_is_measured_and_drawn(tmp_path):
    plot = tmp_path / "growth.png"
    numbers, text = gpu_growth.growth(
        64, CPU, plot, n_steps=2, n_data=(50, 40), factors=(1, 2, 4), sides=(3, 5, 6),
        picture=(1, 6, 6), patch=3,
    )  # fmt: skip
    assert numbers["M"]["sizes"] == [64, 128, 256]
    assert numbers["d"]["sizes"] == [27, 75, 108]
    assert text.count("R²") == 2
    assert plot.stat().st_size > 0
    json.dumps(numbers)


def test_rates_are_positive():
    rates = gpu.measured_rates(CPU, 1 << 16, 32)
    assert min(rates.copy, rates.half, rates.tf32) > 0


def test_without_a_gpu_the_benchmark_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--quick"]) == 2
    assert "GPU" in capsys.readouterr().err


def test_what_was_measured_is_written(monkeypatch, tmp_path, capsys):
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "card")
    monkeypatch.setattr(gpu, "speed", lambda *a, **k: iter([("Rates", {"copy": 1.0}, "said")]))
    out, numbers = tmp_path / "out.md", tmp_path / "out.json"
    assert gpu.main(["--out", str(out), "--json", str(numbers)]) == 0
    assert out.read_text().startswith("## One card, 20")
    assert "### Rates\n\nsaid\n" in out.read_text()
    assert "Command: `python benchmarks/gpu.py --out" in capsys.readouterr().out
    assert json.loads(numbers.read_text())["Rates"] == {"copy": 1.0}


def test_made_up_pictures_look_like_pictures():
    images = made_up.pictures((1, 28, 28), 50)
    assert images.shape == (50, 28, 28)
    assert images.dtype == np.uint8
    assert 0.2 < np.mean(images == 0) < 0.5
    assert np.array_equal(images, made_up.pictures((1, 28, 28), 50))
    x = made_up.cloud((3, 6, 6), 20, CPU)
    assert x.shape == (108, 20)
    assert -1 <= float(x.min()) < float(x.max()) < 1


def test_the_judge_agrees_with_the_metrics():
    train, test = datasets.load("digits"), datasets.load("digits", split="test")
    judge = Judge.of(train.images, test.images, n_pixel_values=17)
    score = judge.score(train.images)
    rows = [images.reshape(len(images), -1) * (2 / 17) - 1 for images in (train.images, test.images)]
    same = metrics.frechet_distance_pca(rows[0][:500], rows[1], rows[0])
    assert score["FD-PCA32"] == pytest.approx(same, rel=1e-3)
    distance = metrics.sliced_wasserstein(rows[0][:500], rows[1], n_directions=500)
    assert score["sliced distance"] == pytest.approx(distance, rel=1e-3)


def test_trade_offs_are_tabled():
    train, test = datasets.load("digits"), datasets.load("digits", split="test")
    parts = list(
        trade_offs.tables(
            train, test, "2[2] 8[5]", 600, 1, precisions=True, most=True, sizes=(256, None)
        )
    )
    titles = ["Precision", "Columns looked at", "Columns looked at, with labels"]
    assert [title for title, _, _ in parts] == titles
    for _, rows, text in parts:
        assert all(math.isfinite(value) for row in rows.values() for value in row.values())
        assert "real training pictures" in text
    assert list(parts[1][1]) == ["256", "all"]
    assert "M = 2,594" in parts[2][2]


def test_the_papers_directions_are_unit_patches_at_random_places():
    generator = torch.Generator().manual_seed(0)
    theta = algorithm1.random_patches(2000, (2, 9, 7), 3, generator)
    assert theta.shape == (2000, 2 * 9 * 7)
    assert torch.allclose(theta.norm(dim=1), torch.ones(2000))
    seen = theta.view(2000, 2, 9, 7) != 0
    rows, columns = seen.any(1).any(2), seen.any(1).any(1)
    assert int(rows.sum(1).max()) == int(columns.sum(1).max()) == 3
    assert int(rows.sum(1).min()) == int(columns.sum(1).min()) == 2  # cut off at the border
    assert bool(seen.any(0).all())
    middle = (theta.T @ theta).view(2, 9, 7, 2, 9, 7)[0, 4, 3, 0, 4, 3] / 2000
    assert float(middle) == pytest.approx(1 / (2 * 9 * 7), rel=0.15)  # E[θθᵀ] = I/d


def test_the_papers_cdf_and_its_inverse_are_as_printed():
    knots = torch.tensor([[0.0, 1.0, 1.0, 4.0]])
    z = torch.tensor([[-9.0, 0.0, 0.5, 1.0, 2.5, 4.0, 9.0]])
    assert algorithm1.cdf(z, knots).tolist() == [[0.0, 0.0, 0.125, 0.5, 0.625, 0.75, 0.75]]
    a = torch.tensor([[0.0, 0.125, 0.5, 0.625, 0.75, 1.0]])
    assert algorithm1.inverse_cdf(a, knots).tolist() == [[0.0, 0.5, 1.0, 2.5, 4.0, 4.0]]


def test_as_many_particles_as_data_are_sent_to_the_data_by_one_direction():
    x, data = torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([[30.0, 10.0, 20.0]])
    for search in (True, False):
        dx = algorithm1.displacement(x, data, torch.ones(1, 1), 1, search=search)
        assert torch.equal(x + dx, data)


def test_ranks_are_the_search_and_histograms_come_near_whatever_the_chunk():
    x, data = made_up.cloud((1, 8, 8), 2000, CPU, 1), made_up.cloud((1, 8, 8), 1500, CPU, 2)
    theta = algorithm1.random_patches(100, (1, 8, 8), 3, torch.Generator().manual_seed(0))
    printed = algorithm1.displacement(x, data, theta, 100)
    others = {
        1e-3: [
            algorithm1.displacement(x, data, theta, 33),
            algorithm1.displacement(x, data, theta, 100, search=False),
        ],
        0.15: [
            compare_paper_step.our_displacement(x, data, theta, chunk, 256, dtype)
            for chunk, dtype in ((100, torch.float32), (7, torch.float32), (100, torch.float16))
        ],
    }
    for bound, displacements in others.items():
        for dx in displacements:
            assert float((dx - printed).norm() / printed.norm()) < bound


def test_a_curve_is_read_off_between_its_points():
    curve = [(4.0, 1.0), (1.0, 16.0), (16.0, 0.25)]
    assert compare_paper_step.seconds_to_reach(curve, 4.0) == pytest.approx(2)
    assert compare_paper_step.seconds_to_reach(curve, 0.25) == pytest.approx(16)
    assert compare_paper_step.seconds_to_reach(curve, 99.0) == pytest.approx(1)
    assert compare_paper_step.seconds_to_reach(curve, 0.1) is None


def test_the_comparison_runs_at_tiny_sizes(tmp_path, capsys):
    out, numbers = tmp_path / "out.md", tmp_path / "out.json"
    compare_paper_step.main(
        "--directions 32 --particles 160 --data 120 --side 6 --patch 3 --chunk 10 --repeats 1 "
        f"--device cpu --out {out} --json {numbers}".split()
    )
    rows = json.loads(numbers.read_text())["One step of Algorithm 1"]
    assert len(rows) == 7
    assert all(row["seconds"] > 0 for row in rows.values())
    assert "ours, tiles" in out.read_text()
    assert (
        "Command: `python benchmarks/compare_paper_step.py --directions 32" in capsys.readouterr().out
    )


def test_equal_quality_is_read_off():
    train, test = datasets.load("digits"), datasets.load("digits", split="test")
    numbers, text = compare_paper_step.equal_quality(
        train, test, "1[1] 4[4] 8[5]", 600, 100, [1, 2], [1, 4], 50, CPU
    )
    assert [row["steps"] for row in numbers["Algorithm 1"]] == [1, 2]
    for row in [*numbers["Algorithm 1"], *numbers["ours"]]:
        assert 0 < row["FD-PCA32"] < 20
    assert text.count("| Algorithm 1 ") == 2
    json.dumps(numbers)


def test_every_way_to_keep_maps_is_measured(tmp_path, capsys):
    size = ["--steps", "1", "--particles", "300", "--samples", "200", "--seeds", "1"]
    some = ["--even", "64", "--knots", "8", "16", "--on-cpu", "20"]
    kept = ["--keep", str(tmp_path / "kept"), "--out", str(tmp_path)]
    table_size.main(["digits", *size, *some, *kept, "--device", "cpu"])
    (result,) = json.loads((tmp_path / "table_size.json").read_text())
    rows = result["rows"]
    assert rows["64 even knots"]["bytes per map"] == 4 * 65 + 16
    assert rows["n_knots=8"]["bytes per map"] < rows["n_knots=16"]["bytes per map"] < 200
    assert rows["n_knots=8"]["apart from a CPU"] == 0
    assert all(row["FD-PCA32"] > 0 for row in rows.values())
    assert (tmp_path / "table_size.png").stat().st_size > 0
    assert "| batched samples" in capsys.readouterr().out
    kept = {path.stem: np.load(path) for path in (tmp_path / "kept" / "digits").glob("*.npy")}
    assert kept["batched"].shape == kept["n_knots=8"].shape == (200, 8, 8)
    assert kept["labels"].shape == (200,)


class Mean:
    """A judge from outside."""

    def __init__(self, images, held_out, levels):
        self.mean = held_out.mean(0)

    def score(self, samples):
        return {"off the mean": float(np.abs(samples.mean(0) - self.mean).mean())}


def test_another_judge_can_be_named(tmp_path):
    size = ["--steps", "1", "--particles", "300", "--samples", "200", "--seeds", "1"]
    few = ["--knots", "16", "--judge", f"{__name__}:Mean", "--device", "cpu"]
    table_size.main(["digits", *size, *few, "--out", str(tmp_path)])
    (result,) = json.loads((tmp_path / "table_size.json").read_text())
    assert result["scores"] == ["off the mean"]
    assert result["rows"]["n_knots=16"]["off the mean"] > 0


def test_the_network_judges_real_pictures_best(monkeypatch):
    small = partial(metrics.train_classifier, epochs=4, width=4)
    monkeypatch.setattr(metrics, "train_classifier", small)
    digits = datasets.load("digits")
    judge = NetworkJudge.of(digits.images[:400], digits.labels[:400], n_pixel_values=17, device="cpu")
    real, noise = digits.images[400:800], np.random.default_rng(0).integers(0, 17, (400, 8, 8))
    assert 2 * judge.score(real)["FD"] < judge.score(noise)["FD"]


def test_the_search_reports_the_frontier_with_another_seed(tmp_path, capsys, monkeypatch):
    import search

    class Judge:
        """In place of a network that must be trained first."""

        def __init__(self, *_):
            pass

        def __call__(self, samples, labels):
            return {"distance": float(samples.mean()), "accuracy": float(len(labels) == len(samples))}

        def last(self, samples):
            return {"FID-768": 1.5}

    monkeypatch.setattr(search, "Judge", Judge)
    options = ["--conditional", "--particles", "60", "--steps", "1", "2", "3", "--out", str(tmp_path)]
    search.main(["digits", *options, "--only", "auto", "256 bins"])
    found = json.loads((tmp_path / "search.json").read_text())
    assert [(row["name"], row["quality"]) for row in found["tried"]] == [
        ("auto", 1),
        ("auto", 2),
        ("auto", 3),
        ("256 bins", 2),
    ]
    assert {row["seed"] for row in found["tried"]} == {1}
    assert found["reported"]
    assert {(row["seed"], row["FID-768"]) for row in found["reported"]} == {(0, 1.5)}
    assert "the same, seed 0" in capsys.readouterr().out


def test_the_frontier_is_what_nothing_beats():
    from search import frontier

    rows = [
        {"seconds": s, "distance": d} for s, d in ((3, 1.0), (1, 5.0), (2, 6.0), (4, 2.0), (5, 0.5))
    ]
    assert [row["seconds"] for row in frontier(rows)] == [1, 3, 5]


def test_copying_compares_smoothing_with_none():
    lines = copying.main(["--sets", "wine", "--seeds", "1", "--steps", "20"]).splitlines()
    names = [line.split("|")[1].strip() for line in lines[2:6]]
    kinds = ("off, batched", "off, offline", "auto, batched", "auto, offline")
    assert names == [f"wine, smoothing {kind}" for kind in kinds]
    ratios = [float(line.split("|")[3]) for line in lines[2:6]]
    assert max(ratios[:2]) < min(ratios[2:])
    assert "--steps 20" in lines[-1]


def test_peers_of_tables_are_rounded_and_kept_within_bounds():
    train = pd.DataFrame({"a": [0.25, 1.5, 3.0], "n": [1, 5, 9], "t": ["x", "y", "x"]})
    made = pd.DataFrame({"a": [-1.0, 1.23456, 9.0], "n": [0.4, 4.6, 8.2], "t": ["y", "x", "x"]})
    shown = tables.rounded(made, train)
    assert shown["a"].tolist() == [0.25, 1.23, 3.0]
    assert shown["n"].tolist() == [1, 5, 8]
    assert shown["t"].tolist() == ["y", "x", "x"]


def test_cells_of_tables_become_means_and_errors():
    def cell(method, seed, detection):
        scores = [detection, 1.0, 0.0, 0.9, 0.01, 1.0]
        return {"set": "s", "method": method, "seed": seed, "shape": [50, 3], "scores": scores,
                "floors": scores, "seconds": 2.0}  # fmt: skip

    cells = [cell("TableFlow", 0, 0.5), cell("TableFlow", 1, 0.6), cell("arf", 0, 0.9)]
    cells.append({"set": "s", "method": "forest", "seed": 0, "shape": [50, 3], "error": "too slow"})
    text = tables.shown("s", cells)
    row = next(line for line in text.splitlines() if "| TableFlow" in line)
    assert [word.strip() for word in row.split("|")[2:4]] == ["2", "0.550"]
    assert "forest, seed 0: too slow" in text
    lowest = tables.summary(cells).splitlines()[-1]
    assert [word.strip() for word in lowest.split("|")[1:-1]] == ["lowest on", "", "1", "0", "0"]


def test_tables_travel_as_csv_files(tmp_path):
    tables.write_csv(["wine"], tmp_path)
    frame, target = tables.loaded("wine", str(tmp_path))
    assert (frame.shape, target) == ((178, 14), "target")
    cell = tables.measured("wine", "independent columns", 0, None, str(tmp_path), 10)
    assert cell["scores"][0] > 0.7


def test_made_up_tables_have_the_size_asked_for():
    frame = table_growth.mixed(200, 20)
    assert frame.shape == (200, 20)
    assert frame.isna().any().sum() == 2
    found = table_growth.measured(200, 10, 1)
    assert min(found.values()) > 0


def test_imputation_is_measured(tmp_path):
    tables.write_csv(["wine"], tmp_path)
    error, accuracy, covered, *_ = imputation.measured("wine", "nearest rows", 0, str(tmp_path))
    mean = imputation.measured("wine", "mean, most frequent", 0, str(tmp_path))
    assert error < 0.8 * mean[0]
    assert accuracy > mean[1]
    assert math.isnan(covered)
