"""Every command as a user runs it: its files and its output. Errors are in test_cli_failures."""

import csv
import io
import json
import re
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("typer")

import sliceflow
from running import FEW, environment, inside, installed, refused
from sliceflow import ImageFlow, SlicedWassersteinFlow
from sliceflow.cli import commands, data
from sliceflow.cli.progress import ProgressPanel, _Pace, sparkline
from sliceflow.cli.table import read_csv
from sliceflow.datasets import load
from sliceflow.spaces.pictures.layout import MASKS

VERBS = ("fit", "sample", "inpaint", "evaluate", "report", "info", "datasets", "doctor", "demo")


def test_help_imports_no_torch_and_names_every_command():
    code = "import sys; sys.argv = ['sliceflow', '--help']\nfrom sliceflow.cli import main\n"
    code += "try: main()\nfinally: print('torch' in sys.modules, 'numpy' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment()
    )
    assert result.stdout.split()[-2:] == ["False", "False"]
    told = installed("--help").stdout
    assert all(f" {verb} " in told for verb in VERBS)
    assert inside().stdout.split() == inside("--help").stdout.split()


def test_a_run_folder_holds_all_that_is_promised(digits_run):
    folder, result = digits_run
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model.sliceflow",
        "samples.png",
        "samples.npz",
        "evolution.gif",
        "neighbours.png",
        "history.csv",
        "evaluation.json",
        "report.html",
    }
    assert "1297 pictures of 8×8 in 10 classes" in result.stdout
    assert "step 46/46" in result.stderr  # plain lines, as this is no terminal
    assert "\x1b" not in result.stdout + result.stderr
    config = json.loads((folder / "config.json").read_text())
    assert config["command"].startswith("sliceflow fit digits ")
    assert config["settings"]["seed"] == 0
    assert config["versions"]["numpy"] == np.__version__
    with np.load(folder / "samples.npz") as samples:
        assert samples["images"].shape == (300, 8, 8)
        assert samples["images"].max() <= 16
        assert np.bincount(samples["labels"]).min() >= 25
    with (folder / "history.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == 46
    with Image.open(folder / "evolution.gif") as film:
        assert film.n_frames == 40  # of 49: the noise, and every step
    measures = json.loads((folder / "evaluation.json").read_text())["measures"]
    assert [m["name"] for m in measures] == [
        "sliced distance", "energy distance", "FD-PCA32", "precision", "recall", "density", "coverage",
        "two-sample accuracy", "NN ratio", "copies", "strays", "accuracy",
    ]  # fmt: skip
    shares = ("copies", "strays")  # may be 0
    assert all(m["floor"] > 0 for m in measures)
    assert all(m["batched"] > 0 < m["offline"] for m in measures if m["name"] not in shares)


def shown_in(film, frame, side, size):
    """The pictures of a frame of evolution.gif, grey."""
    with Image.open(film) as frames:
        frames.seek(frame if frame >= 0 else frames.n_frames + frame)
        page = np.asarray(frames.convert("L")).astype(float)
    zoom = page.shape[0] // (side * (size + 1) - 1)  # gaps of one pixel
    page = page[::zoom, ::zoom]
    places = [(i // side * (size + 1), i % side * (size + 1)) for i in range(side**2)]
    return np.stack([page[y : y + size, x : x + size] for y, x in places])


def test_drawings_of_booleans_are_black_and_white(tmp_path):
    """Their type has two values, whatever the default number of pixel values is."""
    drawings = np.zeros((120, 6, 6), bool)
    drawings[:, 2:4] = True
    drawings[::2, :, 2:4] = True
    np.save(tmp_path / "drawings.npy", drawings)
    assert load(tmp_path / "drawings.npy").n_pixel_values == 2
    run, out = tmp_path / "run", tmp_path / "made.png"
    result = inside("fit", tmp_path / "drawings.npy", *FEW, "--out", run)
    assert result.returncode == 0, result.stderr
    assert inside("sample", run, "--n", 9, "--out", out).returncode == 0
    model = ImageFlow(quality=1, n_particles=300, random_state=0).fit(drawings)  # 256 by default
    model.save(tmp_path / "python.sliceflow")
    other = tmp_path / "other.png"
    assert inside("sample", tmp_path / "python.sliceflow", "--n", 9, "--out", other).returncode == 0
    for file in (run / "samples.png", out, other):  # a quarter of them are the white gaps
        with Image.open(file) as picture:
            assert (np.asarray(picture.convert("L")) > 200).mean() > 0.4, file.name
    assert shown_in(run / "evolution.gif", -1, 8, 6).max() > 200


def test_the_film_ends_with_samples_of_the_model(digits_run):
    folder, _ = digits_run
    samples = sliceflow.load(folder, device="cpu").sample(64, random_state=0) * (255 / 16)
    shown = shown_in(folder / "evolution.gif", -1, 8, 8)
    assert np.abs(shown - samples).mean() < 8  # a gif has 256 colours


def test_the_film_of_completions_keeps_what_is_known(tmp_path):
    run = tmp_path / "run"
    assert inside("fit", "digits", *FEW, "--observed", "top", "--out", run).returncode == 0
    first, last = (shown_in(run / "evolution.gif", frame, 8, 8) for frame in (0, -1))
    assert np.abs(first[:, :4] - last[:, :4]).mean() < 8
    assert np.abs(first[:, 4:] - last[:, 4:]).mean() > 40


@pytest.mark.parametrize(("more", "sums"), [((), True), (("--amplifier", "10"), False)])
def test_the_film_begins_where_the_particles_do(tmp_path, more, sums):
    rng = np.random.default_rng(0)
    light = np.repeat([60, 190], 150)  # dark and light pictures
    images = rng.normal(light[:, None, None, None], 10, (300, 6, 6, 3)).clip(0, 255).astype(np.uint8)
    np.savez(tmp_path / "lights.npz", images=images, labels=light)
    words = ("--conditional", "--quality", 1, "--device", "cpu", *more)
    result = inside("fit", tmp_path / "lights.npz", *words, "--out", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    first = shown_in(tmp_path / "run" / "evolution.gif", 0, 6, 6).mean((1, 2))
    if sums:  # each is as dark or light as its class
        assert np.minimum(np.abs(first - 60), np.abs(first - 190)).max() < 25
        assert first.max() - first.min() > 100
    else:  # noise, grey on average
        assert np.abs(first - 128).max() < 25


def test_the_printed_command_repeats_the_run_and_force_leaves_other_files_alone(digits_run, tmp_path):
    folder, _ = digits_run
    words = json.loads((folder / "config.json").read_text())["command"].split()
    again = tmp_path / "ein Läuf"
    again.mkdir()
    (again / "notes.txt").write_text("mine")
    (again / "samples.csv").write_text("of an earlier run")
    words[words.index("--out") + 1] = again
    refused(inside(*words[1:]), 2, "is not empty", "--force")
    result = inside(*words[1:], "--quiet", "--force")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert (again / "notes.txt").read_text() == "mine"
    assert not (again / "samples.csv").exists()
    with np.load(folder / "samples.npz") as a, np.load(again / "samples.npz") as b:
        assert np.array_equal(a["images"], b["images"])


def test_samples_come_as_grid_folder_and_array(digits_run, tmp_path):
    folder, _ = digits_run
    page = tmp_path / "new folder" / "g.png"
    assert inside("sample", folder, "--n", 5, "--label", 3, "--out", page).returncode == 0
    with Image.open(page) as grid:
        assert grid.size == ((3 * 9 - 1) * 7, (2 * 9 - 1) * 7)
    refused(inside("sample", folder, "--label", 3, "--out", page), 2, "already exists", "--force")
    result = inside("sample", folder, "--n", 4, "--out", tmp_path / "four", "--json")
    assert json.loads(result.stdout)["n"] == 4
    assert sorted(p.name for p in (tmp_path / "four").iterdir()) == ["0.png", "1.png", "2.png", "3.png"]
    (tmp_path / "four" / "mine.png").touch()
    assert inside("sample", folder, "--n", 2, "--out", tmp_path / "four", "--force").returncode == 0
    assert sorted(p.name for p in (tmp_path / "four").iterdir()) == ["0.png", "1.png", "mine.png"]


def test_samples_of_all_classes_come_with_their_labels(digits_run, tmp_path):
    model, out = digits_run[0] / "model.sliceflow", tmp_path / "many.NPZ"
    assert inside("sample", model, "--n", 40, "--seed", 5, "--out", out).returncode == 0
    with np.load(out) as made:
        assert np.bincount(made["labels"], minlength=10).tolist() == [4] * 10
        images = made["images"]
    import sliceflow

    assert np.array_equal(images, sliceflow.load(model).sample(40, random_state=5))


def test_info_and_evaluate_speak_json_and_report_is_rebuilt(digits_run):
    folder, _ = digits_run
    known = json.loads(inside("info", folder, "--json").stdout)  # installed in test_cli_failures
    assert known["pictures"] == "8×8"
    assert known["classes"] == list("0123456789")
    before = json.loads((folder / "evaluation.json").read_text())
    assert json.loads(inside("evaluate", folder, "--json", trees=20).stdout) == before
    assert json.loads((folder / "evaluation.json").read_text()) == before
    page = (folder / "report.html").read_text()
    (folder / "report.html").unlink()
    assert inside("report", folder).returncode == 0
    assert (folder / "report.html").read_text() == page


def test_a_run_is_measured_against_other_pictures_whatever_their_levels(digits_run, tmp_path):
    folder, _ = digits_run
    before = (folder / "evaluation.json").read_text()

    def batched(against):
        said = inside("evaluate", folder, "--against", against, "--json", trees=20).stdout
        return {m["name"]: m["batched"] for m in json.loads(said)["measures"]}

    # The test split, which was held out; by another number of threads, which sum in another order.
    own = {m["name"]: m["batched"] for m in json.loads(before)["measures"]}
    images = load("digits", "test").images
    np.save(tmp_path / "bytes.npy", (images * (255 / 16)).round().astype(np.uint8))
    np.save(tmp_path / "black.npy", np.zeros_like(images))
    assert batched("digits") == pytest.approx(own, rel=1e-4)
    assert batched(tmp_path / "bytes.npy") == pytest.approx(own, rel=1e-4)  # at the run's own levels
    assert batched(tmp_path / "black.npy")["sliced distance"] > 5 * own["sliced distance"]
    assert (folder / "evaluation.json").read_text() == before
    refused(inside("evaluate", folder, "--against", tmp_path / "no"), 2, "no", "pass one of")


@pytest.mark.parametrize("kind", [np.float32, np.uint8])
def test_pictures_are_brought_to_the_levels_of_others(kind):
    digits = data.Data("digits", load("digits").images[:5], n_pixel_values=17)
    x = digits.x / 16 if kind is np.float32 else (digits.x * (255 / 16)).round()
    other = data.Data("other", x.astype(kind))
    assert np.array_equal(other.like(digits).x, digits.x)
    assert other.like(digits).x.dtype == digits.x.dtype
    assert np.array_equal(digits.like(other).x, other.x)
    assert digits.like(digits) is digits
    assert np.allclose(other.rows(), digits.rows(), atol=0.005)


def test_a_mask_may_be_a_picture(tmp_path):
    known = np.ones((8, 8), bool)
    known[2:6, 3:] = False
    Image.fromarray((255 * known).astype(np.uint8)).save(tmp_path / "mask.png")
    run, out = tmp_path / "run", tmp_path / "done.npz"
    fit = ("fit", "digits", *FEW, "--out", run)
    result = inside(*fit, "--mask", tmp_path / "mask.png")
    assert result.returncode == 0, result.stderr
    image = load("digits", "test").images[0]
    np.save(tmp_path / "given.npy", image[None])
    result = inside("inpaint", run, tmp_path / "given.npy", "--n", 2, "--out", out)
    assert result.returncode == 0, result.stderr
    with np.load(out) as done:
        assert (done["images"][:, known] == image[known]).all()
    for name, picture, said in (
        ("white", Image.new("L", (8, 8), 255), "is all white"),
        ("large", Image.new("L", (9, 8), 255), "is 9x8, the pictures are 8x8"),
    ):
        picture.save(tmp_path / f"{name}.png")
        refused(inside(*fit, "--mask", tmp_path / f"{name}.png", "--force"), 2, said, "white where")
    (tmp_path / "text.png").write_text("no picture")
    refused(
        inside(*fit, "--mask", tmp_path / "text.png", "--force"), 2, "cannot be read", "white where"
    )
    both = (*fit, "--mask", tmp_path / "mask.png", "--observed", "top", "--force")
    refused(inside(*both), 2, "exclude each other", "choose one")


def test_pictures_are_completed_without_a_fit(tmp_path):
    image = load("digits", "test").images[0]
    np.save(tmp_path / "given.npy", image[None])
    words = ("complete", tmp_path / "given.npy", "--like", "digits", "--n", 3)
    out = tmp_path / "done.npz"
    result = inside(*words, "--observed", "top", "--out", out)
    assert result.returncode == 0, result.stderr
    assert "3 completions of each of 1 pictures" in result.stdout
    with np.load(out) as done:
        assert done["images"].shape == (3, 8, 8)
        assert (done["images"][:, :4] == image[:4]).all()
    known = np.tile(np.array([True, False]), (8, 4))
    Image.fromarray((255 * known).astype(np.uint8)).save(tmp_path / "mask.png")
    masked = (*words, "--mask", tmp_path / "mask.png", "--label", 3, "--out", tmp_path / "x.png")
    assert inside(*masked).returncode == 0
    with Image.open(tmp_path / "x.png") as page:
        assert page.size[0] > 8 * 4
    refused(inside(*words, "--out", tmp_path / "y.npz"), 2, "known part", "--mask")
    refused(
        inside(*words, "--observed", "top", "--label", "x", "--out", tmp_path / "y.npz"),
        2,
        "no class",
        "9",
    )
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n")
    table = ("complete", tmp_path / "given.npy", "--like", tmp_path / "t.csv", "--observed", "top")
    refused(inside(*table, "--out", tmp_path / "y.npz"), 2, "is a table", "impute")


def test_halves_are_completed_and_the_given_half_is_kept(tmp_path):
    run = tmp_path / "top"
    assert inside("fit", "digits", "--observed", "top", *FEW, "--out", run).returncode == 0
    image = load("digits", "test").images[0]
    Image.fromarray((image * (255 / 16)).round().astype(np.uint8)).save(tmp_path / "half.png")
    out = tmp_path / "done.npz"
    result = inside("inpaint", run, tmp_path / "half.png", "--n", 3, "--out", out)
    assert result.returncode == 0, result.stderr
    with np.load(out) as done:
        assert done["images"].shape == (3, 8, 8)
        assert (done["images"][:, :4] == image[:4]).all()
    Image.new("L", (9, 8)).save(tmp_path / "large.png")
    words = ("inpaint", run, tmp_path / "large.png", "--n", 1, "--out", tmp_path / "x.png")
    refused(inside(*words), 2, "9x8", "--resize")
    assert inside(*words, "--resize").returncode == 0
    with Image.open(tmp_path / "x.png") as page:
        assert page.size == ((2 * 9 - 1) * 7, 8 * 7)  # what was given, and one completion
        pixels = np.asarray(page)[3::7, 3::7]
    assert (pixels[4:, :8] == 128).all()  # what was not known is shown grey
    refused(inside("sample", run, "--out", tmp_path / "y.png"), 2, "completes", "inpaint")


def test_a_model_of_colour_pictures_completes_any_part(tmp_path):
    shades = np.random.default_rng(0).integers(0, 256, (200, 1, 1, 3))
    images = np.broadcast_to(shades, (200, 6, 6, 3)).astype(np.uint8)  # one colour each
    np.savez(tmp_path / "colours.npz", images=images)
    np.save(tmp_path / "given.npy", images[:2])
    run, out = tmp_path / "run", tmp_path / "done.npz"
    fitted = inside("fit", tmp_path / "colours.npz", *FEW, "--out", run)
    assert fitted.returncode == 0, fitted.stderr
    words = ("inpaint", run, tmp_path / "given.npy", "--n", 3, "--out", out, "--force")
    refused(inside(*words), 2, "does not complete pictures", "pass it here")
    refused(inside(*words, "--observed", "left", "--mask", "m.png"), 2, "given twice")
    refused(inside(*words, "--observed", "left", "--label", "2"), 2, "fitted without labels")
    known = Image.new("L", (6, 6), 255)
    known.paste(0, (2, 2, 4, 4))
    known.save(tmp_path / "hole.png")
    for part in (("--mask", tmp_path / "hole.png"), ("--observed", "border")):
        result = inside(*words, *part)
        assert result.returncode == 0, result.stderr
        with np.load(out) as done:
            made = done["images"].reshape(2, 3, 6, 6, 3).astype(int)
        assert (made[:, :, 0] == images[:2, None, 0]).all()
        assert np.abs(made[:, :, 2:4, 2:4] - shades[:2, None]).mean() < 25


def test_a_folder_of_pictures_is_fitted_by_class(pictures, tmp_path):
    words = ("fit", pictures, "--size", 6, "--conditional", *FEW, "--out", tmp_path / "run", "--json")
    result = inside(*words)
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    assert said["data"]["shape"] == [108, 6, 6]
    assert said["data"]["held_out"] == 12
    assert said["classes"] == ["class-0", "class-1"]


def test_skipped_pictures_are_noted_in_the_terminal_and_in_the_report(pictures, tmp_path):
    (pictures / "class-0" / "005.png").write_bytes(b"no picture")
    result = inside("fit", pictures, "--skip-broken", *FEW, "--out", tmp_path / "run")
    assert "note: skipped 1 of 120 pictures" in result.stdout
    assert "skipped 1 of 120 pictures" in (tmp_path / "run" / "report.html").read_text()


@pytest.fixture
def flowers(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["length;width;name;species"]
    lines += [f"{a};{b};row {i};{'uv'[i % 2]}" for i, (a, b) in enumerate(rng.normal(size=(150, 2)))]
    lines[5] = "1.5;;row;u"
    (tmp_path / "flowers.csv").write_text("\n".join(lines))
    return tmp_path / "flowers.csv"


def test_a_table_is_fitted_and_says_what_it_left_out(flowers, tmp_path):
    run, out = tmp_path / "run", tmp_path / "new.csv"
    result = inside("fit", flowers, "--target", "species", *FEW, "--out", run)
    assert result.returncode == 0, result.stderr
    assert "left out the column 'name'" in result.stdout
    assert "left out 1 of 150 rows" in result.stdout
    assert (run / "samples.csv").read_text().split()[0] == "length,width,species"
    assert inside("sample", run, "--n", 7, "--label", "v", "--out", out).returncode == 0
    with out.open() as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["length", "width", "species"]
    assert [row["species"] for row in rows] == ["v"] * 7
    assert inside("sample", run, "--n", 8, "--out", out, "--force").returncode == 0
    assert sorted(line.rpartition(",")[2] for line in out.read_text().split()[1:]) == [*"uuuuvvvv"]
    refused(inside("fit", flowers, "--target", "kind", "--out", tmp_path / "o"), 2, "'kind'", "species")

    # Other tables are read by the names of their columns, and need no labels.
    x, _, _, _ = read_csv(flowers)
    np.savetxt(tmp_path / "other.csv", x[:, ::-1], delimiter=",", header="width,length", comments="")
    np.savetxt(tmp_path / "wrong.csv", x, delimiter=",", header="width,length", comments="")
    same, other, wrong = (
        json.loads(inside("evaluate", run, "--against", path, "--json").stdout)["measures"]
        for path in (flowers, tmp_path / "other.csv", tmp_path / "wrong.csv")
    )
    assert same == other
    assert same != wrong
    np.savetxt(tmp_path / "less.csv", x[:, :1], delimiter=",", header="length", comments="")
    refused(inside("evaluate", run, "--against", tmp_path / "less.csv"), 2, "no column 'width'")


@pytest.mark.parametrize(
    ("text", "names", "shape"),
    [
        ("1,2\n3,4\n", ["column 1", "column 2"], (2, 2)),  # no line of names
        (",a\n0,1.5\n1,2.5\n", ["column 1", "a"], (2, 2)),  # as pandas writes its index
        ("a\tb\n1\tx\n2\ty\n", ["a"], (2, 1)),
        ("\ufeffa,b\n1,NaN\n2,3\n", ["a", "b"], (1, 2)),
    ],
)
def test_tables_are_read_as_they_come(tmp_path, text, names, shape):
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    x, labels, columns, _ = read_csv(tmp_path / "t.csv")
    assert (x.shape, labels, columns) == (shape, None, names)


def test_flags_override_the_config_file_and_a_dry_run_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text('source = "digits"\nquality = 7\nparticles = 400\nseed = 3\n')
    words = ("fit", "--config", "run.toml", "--particles", 350, "--dry-run")
    result = inside(*words, "--json")
    assert result.returncode == 0, result.stderr
    planned = json.loads(result.stdout)
    assert (planned["steps"], planned["particles"]) == (159, 350)
    assert planned["seconds"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]
    (tmp_path / "run.toml").write_text("qualiti = 7\n")
    refused(inside("fit", "digits", "--config", "run.toml"), 2, "'qualiti'", "quality")


def test_a_column_that_is_called_label_is_kept_beside_the_labels(tmp_path):
    table, run = tmp_path / "table.csv", tmp_path / "run"
    table.write_text("label,kind\n" + "".join(f"{i / 7},{'uv'[i % 2]}\n" for i in range(40)))
    assert inside("fit", table, "--target", "kind", *FEW, "--out", run).returncode == 0
    with (run / "samples.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["kind"] for row in rows} == {"u", "v"}
    assert all(0 <= float(row["label"]) < 6 for row in rows)


def test_a_dry_run_of_a_table_takes_no_more_for_its_labels():
    from sliceflow.cli.data import Data
    from sliceflow.cli.plan import plan

    labels, names = np.arange(90) % 3, ["a", "b", "c", "d"]
    data = Data("noise", np.random.default_rng(0).normal(size=(90, 4)), labels, columns=names)
    flow = SlicedWassersteinFlow(1000, 5, device="cpu", random_state=0)
    with_labels, without = (plan(flow, data, y) for y in (labels, None))
    assert with_labels.plan.nbytes < 1.5 * without.plan.nbytes


def test_a_dry_run_counts_the_maps_of_every_class():
    from sliceflow.cli.data import Data
    from sliceflow.cli.plan import plan

    images, labels = np.random.default_rng(0).integers(0, 256, (90, 4, 4)), np.arange(90) % 3
    data = Data("noise", images.astype(np.uint8), labels)
    options = dict(schedule="1[1] 4[2]", n_particles=9000, quality=100, device="cpu", random_state=0)
    shared, own = (plan(ImageFlow(**options, amplifier=xi), data, labels) for xi in (10.0, np.inf))
    clusters, one = (plan(ImageFlow(**options, n_clusters=k), data, None) for k in (3, 1))
    n_maps = 100 * (1 + 36)  # of 2×2 tiles there are at most 9
    assert own.plan.nbytes - one.plan.nbytes >= 2 * n_maps * (6 * 16 + 18)
    assert shared.plan.nbytes - one.plan.nbytes >= n_maps * 6 * 7 * 16
    assert clusters.plan.nbytes == own.plan.nbytes
    assert min(plan.seconds for plan in (shared, own, clusters)) > 0


def test_classes_with_maps_of_their_own_are_fitted_and_drawn(tmp_path):
    words = ["fit", "digits", "--conditional", "--amplifier", "inf", "--quality", "2", "--quiet"]
    words += ["--particles", "4000", "--schedule", "1[1] 8[5]", "--out", tmp_path / "run"]
    result = inside(*words)
    assert result.returncode == 0, result.stderr
    assert "--amplifier inf" in json.loads((tmp_path / "run/config.json").read_text())["command"]
    assert sliceflow.load(tmp_path / "run/model.sliceflow").amplifier == np.inf
    drawn = inside("sample", tmp_path / "run", "--label", "3", "--n", "4", "--out", tmp_path / "x.npz")
    assert drawn.returncode == 0, drawn.stderr
    few = inside(
        "fit", "digits", "--conditional", "--amplifier", "inf", *FEW, "--out", tmp_path / "few"
    )
    refused(few, 2, "--amplifier inf", "this transport sorts", "--help")


def test_doctor_and_datasets_say_what_is_there(tmp_path):
    found = json.loads(inside("doctor", "--json").stdout)
    assert found["versions"]["numpy"] == np.__version__
    assert any(device.startswith("cpu") and "GiB free" in m for device, m in found["devices"].items())
    assert found["missing"].keys() <= {"images", "demo", "metrics"}
    listed = inside("datasets", "--data-root", tmp_path).stdout
    assert re.search(r"digits +found", listed)
    assert re.search(r"mnist +missing", listed)


@pytest.mark.slow  # a fit of the size that users see
def test_demo_says_which_page_to_open(tmp_path):
    result = installed("demo", "--no-progress", "--out", tmp_path / "demo")
    assert result.returncode == 0, result.stderr
    assert f"open {tmp_path / 'demo' / 'report.html'}" in result.stdout


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("sliceflow ev", "evaluate"),
        ("sliceflow fit mn", "mnist"),
        ("sliceflow fit pho", "photos/"),
        ("sliceflow fit photos/class-1", "photos/class-1/"),
        ("sliceflow fit digits --observed bor", "border"),
        ("sliceflow fit digits --dry", "--dry-run"),
    ],
)
def test_the_shell_completes(typed, offered, pictures):
    asked = {"_SLICEFLOW_COMPLETE": "complete_bash", "COMP_WORDS": typed}
    place = str(len(typed.split()) - 1)
    result = installed(cwd=pictures.parent, COMP_CWORD=place, **asked)
    assert result.stdout.split() == [offered]


def test_flags_offer_what_the_library_has():
    assert commands.SETS == data.NAMES
    assert set(get_args(commands.Part)) == set(MASKS)


def test_the_pace_leaves_out_the_first_step_which_compiles(monkeypatch):
    class Event:
        particles, steps_total = np.empty((2, 100)), 11

        def __init__(self, done):
            self.steps_done = done

    pace = _Pace()
    for done, clock in ((1, 50.0), (2, 51.0), (3, 52.0)):
        monkeypatch.setattr("time.monotonic", lambda clock=clock: clock)
        pace.update(Event(done))
    assert pace.time_left(Event(3)) == "8.0 s"
    assert pace.particles_per_second(Event(3)) == 100


def test_a_sparkline_survives_what_is_no_number():
    assert sparkline([float("nan"), 1.0, float("inf"), 2.0]) == "▁█"
    assert sparkline([]) == ""


def test_the_panel_fits_a_narrow_terminal_and_keeps_its_words():
    import torch
    from rich.console import Console

    from sliceflow.engine.events import Event

    console = Console(file=io.StringIO(), force_terminal=True, width=34, color_system=None)
    panel = ProgressPanel(console, ["8×8 pixels, patches of 5×5"])
    event = Event("8×8[5]", 0, 4, 5, 70, torch.tensor(0.25), 1.0, torch.empty(2, 100), None, 60)
    panel(event)
    panel.close()
    with console.capture() as drawn:
        console.print(panel._table(event))
    lines = drawn.get().splitlines()
    assert max(map(len, lines)) <= 34
    words = [line.split()[0] for line in lines[1:]]
    assert words == ["stage", "step", "distance", "pace", "left", "memory"]
    assert "1 of 1: 8×8 pixels" in drawn.get()
    assert "5 of 60" in drawn.get()


def test_a_named_set_is_measured_against_the_folder_that_holds_it(tmp_path):
    raw = tmp_path / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, split in (("train", "train"), ("t10k", "test")):
        digits = load("digits", split)
        images, labels = (digits.images[:200] * 15).astype(np.uint8), digits.labels[:200]
        for kind, array in (("images-idx3", images), ("labels-idx1", labels.astype(np.uint8))):
            sizes = np.array(array.shape, ">u4").tobytes()
            head = bytes((0, 0, 8, array.ndim)) + sizes
            (raw / f"{name}-{kind}-ubyte").write_bytes(head + array.tobytes())
    words = ("--data-root", tmp_path / "data", "--quiet", "--out", tmp_path / "run")
    assert inside("fit", "mnist", *FEW, *words).returncode == 0
    (tmp_path / "data").rename(tmp_path / "moved")
    refused(inside("evaluate", tmp_path / "run"), 1, "cannot be read again", "--data-root")
    moved = ("--data-root", tmp_path / "moved", "--against", tmp_path / "moved", "--json")
    result = inside("evaluate", tmp_path / "run", *moved)
    before = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    for ours, theirs in zip(json.loads(result.stdout)["measures"], before["measures"], strict=True):
        names = ("name", "batched", "offline", "floor")
        assert [ours[name] for name in names] == [theirs[name] for name in names]
