"""The command line as a user runs it, in a process of its own: its files, words and exit codes."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("typer")

import sliceflow as package
from sliceflow.cli.failures import WrongUsage
from sliceflow.cli.fit import fit
from sliceflow.cli.sample import inpaint, sample
from sliceflow.cli.settings import Settings
from sliceflow.cli.table import read_csv
from sliceflow.datasets import load

FEW = ("--quality", "2", "--particles", "300")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def environment():
    # The package that the tests see, from any folder; narrow and plain, whatever the terminal is.
    paths = [str(Path(package.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    fixed = {"OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1"}
    return os.environ | fixed | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def sliceflow(*words, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "sliceflow", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment(),
        timeout=120,
    )


def refused(result, code, *words):
    """Exit code, one line of error and one of hint, no traceback, and what they say."""
    assert result.returncode == code, result.stderr
    lines = result.stderr.strip().splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "hint"], result.stderr
    for word in words:
        assert word in result.stderr


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits") / "run"
    result = sliceflow("fit", "digits", "--conditional", *FEW, "--out", folder)
    assert result.returncode == 0, result.stderr
    return folder, result


@pytest.fixture
def pictures(tmp_path):
    """A folder with one subfolder per class, 120 pictures of one size."""
    digits = load("digits")
    for label in (0, 1):
        folder = tmp_path / "photos" / f"class-{label}"
        folder.mkdir(parents=True)
        for i, image in enumerate(digits.images[digits.labels == label][:60]):
            Image.fromarray((image * 15).astype(np.uint8)).save(folder / f"{i:03d}.png")
    return tmp_path / "photos"


def test_help_is_quick_and_imports_no_torch():
    code = "import sys; sys.argv = ['sliceflow', '--help']\nfrom sliceflow.cli import main\n"
    code += "try: main()\nfinally: print('torch' in sys.modules, 'numpy' in sys.modules)"
    times = []
    for _ in range(3):
        before = os.times()
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment()
        )
        after = os.times()  # of the processor: other work on the machine does not count
        times.append(after[2] + after[3] - before[2] - before[3])
    assert "inpaint" in result.stdout
    assert result.stdout.split()[-2:] == ["False", "False"]
    assert min(times) < 0.5


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
    assert "step 22/22" in result.stderr  # plain lines, as this is no terminal
    config = json.loads((folder / "config.json").read_text())
    assert config["command"].startswith("sliceflow fit digits ")
    assert config["settings"]["seed"] == 0
    assert config["versions"]["numpy"] == np.__version__
    with np.load(folder / "samples.npz") as samples:
        assert samples["images"].shape == (300, 8, 8)
        assert samples["images"].max() <= 16
        assert np.bincount(samples["labels"]).min() >= 25
    with (folder / "history.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == 22
    with Image.open(folder / "evolution.gif") as film:
        assert film.n_frames == 23  # the noise, and every step
    measures = json.loads((folder / "evaluation.json").read_text())["measures"]
    assert [m["name"] for m in measures] == [
        "sliced distance", "energy distance", "FD-PCA32", "precision", "recall", "density", "coverage",
        "two-sample accuracy", "NN ratio", "accuracy",
    ]  # fmt: skip
    assert all(m["floor"] > 0 and m["offline"] > 0 for m in measures)
    assert all(m["batched"] > 0 for m in measures if m["name"] != "accuracy")


def test_the_end_of_the_evolution_is_the_particles(digits_run):
    folder, _ = digits_run
    with np.load(folder / "samples.npz") as samples:
        first = samples["images"][:8] * (255 / 16)
    with Image.open(folder / "evolution.gif") as film:
        film.seek(film.n_frames - 1)
        page = np.asarray(film.convert("L")).astype(float)
    zoom = page.shape[0] // 71  # eight pictures of 8 pixels and seven gaps of one
    row = page[::zoom, ::zoom][:8]
    shown = np.stack([row[:, 9 * i : 9 * i + 8] for i in range(8)])
    assert np.abs(shown - first).mean() < 8  # a gif has 256 colours


def test_the_printed_command_repeats_the_run_and_force_leaves_other_files_alone(digits_run, tmp_path):
    folder, _ = digits_run
    command = json.loads((folder / "config.json").read_text())["command"].split()
    assert command[-1] == "300"
    again = tmp_path / "again"
    again.mkdir()
    (again / "notes.txt").write_text("mine")
    (again / "samples.csv").write_text("of an earlier run")
    command[command.index("--out") + 1] = str(again)
    refused(sliceflow(*command[1:]), 2, "is not empty", "--force")
    result = sliceflow(*command[1:], "--quiet", "--force")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert (again / "notes.txt").read_text() == "mine"
    assert not (again / "samples.csv").exists()
    with np.load(folder / "samples.npz") as a, np.load(tmp_path / "again" / "samples.npz") as b:
        assert np.array_equal(a["images"], b["images"])


def test_samples_come_as_grid_folder_and_array(digits_run, tmp_path):
    folder, _ = digits_run
    assert (
        sliceflow("sample", folder, "--n", 5, "--label", 3, "--out", tmp_path / "g.png").returncode == 0
    )
    with Image.open(tmp_path / "g.png") as page:
        assert page.size == ((3 * 9 - 1) * 7, (2 * 9 - 1) * 7)
    result = sliceflow("sample", folder, "--n", 4, "--out", tmp_path / "four", "--json")
    assert json.loads(result.stdout)["n"] == 4
    assert sorted(p.name for p in (tmp_path / "four").iterdir()) == ["0.png", "1.png", "2.png", "3.png"]
    again = sliceflow("sample", folder, "--label", 3, "--out", tmp_path / "g.png")
    refused(again, 2, "there already", "--force")


def test_a_class_that_is_not_there_is_named_with_those_that_are(digits_run, tmp_path):
    with pytest.raises(WrongUsage, match="'cat'") as told:
        sample(digits_run[0], tmp_path / "x.npz", n=1, label="cat", device="cpu", seed=0, force=False)
    assert "0, 1, 2" in told.value.hint


def test_info_and_evaluate_speak_json_and_report_is_rebuilt(digits_run):
    folder, _ = digits_run
    known = json.loads(sliceflow("info", folder, "--json").stdout)
    assert known["pictures"] == "8×8"
    assert known["classes"] == list("0123456789")
    before = json.loads((folder / "evaluation.json").read_text())
    assert json.loads(sliceflow("evaluate", folder, "--json").stdout) == before
    page = (folder / "report.html").read_text()
    (folder / "report.html").unlink()
    assert sliceflow("report", folder).returncode == 0
    assert (folder / "report.html").read_text() == page


def test_the_report_needs_nothing_from_elsewhere(digits_run):
    page = (digits_run[0] / "report.html").read_text()
    links = re.findall(r'(?:src|href|srcset)="([^"]{0,40})', page)
    assert len(links) > 15
    assert all(link.startswith("data:") for link in links)
    assert "http" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", page)
    assert all(re.findall(r'<img alt="([^"]*)"', page))
    assert "<desc" in page
    for name in ("FD-PCA32", "floor", "--conditional", "class 9"):
        assert name in page


def test_halves_are_completed_and_the_given_half_is_kept(tmp_path):
    run = tmp_path / "top"
    assert sliceflow("fit", "digits", "--observed", "top", *FEW, "--out", run).returncode == 0
    image = load("digits", "test").images[0]
    Image.fromarray((image * (255 / 16)).round().astype(np.uint8)).save(tmp_path / "half.png")
    out = tmp_path / "done.npz"
    result = sliceflow("inpaint", run, tmp_path / "half.png", "--n", 3, "--out", out)
    assert result.returncode == 0, result.stderr
    with np.load(out) as done:
        assert done["images"].shape == (3, 8, 8)
        assert (done["images"][:, :4] == image[:4]).all()
    Image.new("L", (9, 8)).save(tmp_path / "large.png")
    given = {"n": 1, "device": "cpu", "seed": 0, "force": False}
    with pytest.raises(WrongUsage, match="9x8"):
        inpaint(run, tmp_path / "large.png", tmp_path / "x.png", resize=False, **given)
    inpaint(run, tmp_path / "large.png", tmp_path / "x.png", resize=True, **given)
    with Image.open(tmp_path / "x.png") as page:
        assert page.size == ((2 * 9 - 1) * 7, 8 * 7)  # what was given, and one completion


def test_a_folder_of_pictures_is_fitted_by_class(pictures, tmp_path):
    result = sliceflow(
        "fit", pictures, "--size", 6, "--conditional", *FEW, "--out", tmp_path / "run", "--json"
    )
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    assert said["data"]["shape"] == [108, 6, 6]
    assert said["data"]["held_out"] == 12
    assert said["classes"] == ["class-0", "class-1"]


def test_broken_and_mixed_pictures_are_named_with_the_cure(pictures, tmp_path):
    (pictures / "class-0" / "005.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    result = sliceflow("fit", pictures, "--out", tmp_path / "run")
    refused(result, 1, "005.png", "--skip-broken")
    assert not (tmp_path / "run").exists()
    Image.new("L", (20, 10)).save(pictures / "class-0" / "005.png")
    refused(sliceflow("fit", pictures, "--out", tmp_path / "run"), 1, "20x10", "--size")


def test_a_table_is_fitted_and_says_what_it_left_out(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["length;width;name;species"]
    lines += [f"{a};{b};row {i};{'uv'[i % 2]}" for i, (a, b) in enumerate(rng.normal(size=(150, 2)))]
    lines[5] = "1.5;;row;u"
    table = tmp_path / "flowers.csv"
    table.write_text("\n".join(lines))
    run = tmp_path / "run"
    result = sliceflow("fit", table, "--target", "species", *FEW, "--out", run)
    assert result.returncode == 0, result.stderr
    assert "left out the column 'name'" in result.stdout
    assert "left out 1 of 150 rows" in result.stdout
    out = tmp_path / "new.csv"
    assert sliceflow("sample", run, "--n", 7, "--label", "v", "--out", out).returncode == 0
    with out.open() as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["length", "width", "label"]
    assert [row["label"] for row in rows] == ["v"] * 7
    refused(sliceflow("fit", table, "--target", "kind", "--out", run), 2, "is not empty", "--force")
    result = sliceflow("fit", table, "--target", "kind", "--out", tmp_path / "other")
    refused(result, 2, "'kind'", "length, width, name, species")


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


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("fit", "./nowhere"), 2, ("'./nowhere'", "digits, mnist")),
        (("fit", "digits", "--quality", "fine"), 2, ("'fine'", "number of steps")),
        (("fit", "digits", "--particles", "0"), 2, ("--particles", "--help")),
        (("fit", "digits", "--out", "/proc/run", *FEW), 1, ("/proc/run cannot be written to", "--out")),
        (("fit", "digits", "--resume", "--conditional", "--observed", "top"), 2, ("exclude",)),
        (("fit", "mnist", "--data-root", "/nowhere"), 1, ("/nowhere/MNIST/raw", "--data-root")),
        (("info", "nowhere"), 2, ("does not exist", "run folder")),
        (("frobnicate",), 2, ("frobnicate", "--help")),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_done_is_said_in_a_line_and_a_hint(tmp_path, words, code, said):
    refused(sliceflow(*words, cwd=tmp_path), code, *said)


def test_a_fit_that_fails_at_once_leaves_nothing_behind(tmp_path):
    with pytest.raises(ValueError, match="toaster"):
        fit(Settings("digits", str(tmp_path / "run"), device="toaster"), quiet=True)
    assert not (tmp_path / "run").exists()


def test_debug_shows_where_it_happened(tmp_path):
    result = sliceflow("info", "nowhere", "--debug", cwd=tmp_path)
    assert result.returncode == 2
    assert "Traceback" in result.stderr


def test_flags_override_the_config_file_and_a_dry_run_writes_nothing(tmp_path):
    (tmp_path / "run.toml").write_text('source = "digits"\nquality = 7\nparticles = 400\nseed = 3\n')
    result = sliceflow(
        "fit", "--config", "run.toml", "--particles", 350, "--dry-run", "--json", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    planned = json.loads(result.stdout)
    assert (planned["steps"], planned["particles"]) == (77, 350)
    assert planned["seconds"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]
    (tmp_path / "run.toml").write_text("qualiti = 7\n")
    result = sliceflow("fit", "digits", "--config", "run.toml", cwd=tmp_path)
    refused(result, 2, "'qualiti'", "quality")


def test_an_interrupted_run_goes_on_and_ends_with_the_same_samples(tmp_path):
    words = ["fit", "digits", "--quality", "5", "--particles", "1000", "--checkpoint-every", "0"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    process = subprocess.Popen(
        [sys.executable, "-m", "sliceflow", *words, "--out", str(stopped)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    deadline = time.monotonic() + 60
    while not (stopped / "checkpoint" / "fit.checkpoint").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the fit was stopped after" in said
    assert "--resume" in said
    assert not (stopped / "model.sliceflow").exists()
    refused(sliceflow(*words, "--out", stopped), 2, "is not empty", "--resume")
    assert sliceflow(*words, "--out", stopped, "--resume").returncode == 0
    assert not (stopped / "checkpoint").exists()
    assert sliceflow(*words, "--out", whole).returncode == 0
    with np.load(whole / "samples.npz") as a, np.load(stopped / "samples.npz") as b:
        assert np.array_equal(a["images"], b["images"])
    with Image.open(whole / "evolution.gif") as a, Image.open(stopped / "evolution.gif") as b:
        assert abs(a.n_frames - b.n_frames) <= 1
    refused(sliceflow(*words, "--out", stopped, "--resume"), 2, "has ended", "--force")


def test_doctor_and_datasets_say_what_is_there(tmp_path):
    found = json.loads(sliceflow("doctor", "--json").stdout)
    assert found["versions"]["numpy"] == np.__version__
    assert any(device.startswith("cpu") for device in found["devices"])
    listed = sliceflow("datasets", "--data-root", tmp_path).stdout
    assert re.search(r"digits +found", listed)
    assert re.search(r"mnist +missing", listed)


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
@pytest.mark.parametrize("width", [1200, 390], ids=["desktop", "phone"])
def test_the_report_opens_in_a_browser(digits_run, tmp_path, width, scheme):
    measuring = (
        "<script>document.documentElement.dataset.seen=[innerWidth,document.documentElement.scrollWidth,"
        "[...document.images].filter(i=>!i.complete||!i.naturalWidth).length,"
        "getComputedStyle(document.body).backgroundColor].join('|')</script></body>"
    )
    page = tmp_path / "page.html"
    text = (digits_run[0] / "report.html").read_text().replace("</body>", measuring)
    page.write_text(text, encoding="utf-8")
    # An iframe, as a window of Chromium is never narrower than 500 pixels.
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<iframe src="page.html" width="{width}" height="900"></iframe><script>onload=()=>'
        "document.title=frames[0].document.documentElement.dataset.seen</script>"
    )
    result = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--allow-file-access-from-files",
            "--enable-logging=stderr",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--blink-settings=preferredColorScheme={scheme}",
            "--window-size=1300,1000",
            "--dump-dom",
            frame.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "CONSOLE" not in result.stderr
    seen = re.search(r"<title>(\d+)\|(\d+)\|(\d+)\|([^<]*)</title>", result.stdout)
    assert seen is not None, result.stdout[:500] + result.stderr[-500:]
    inner, scroll, missing, background = seen.groups()
    assert int(inner) == width
    assert int(scroll) <= width  # nothing sticks out
    assert missing == "0"
    assert background == ("rgb(20, 23, 28)" if scheme == 0 else "rgb(255, 255, 255)")
