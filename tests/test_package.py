"""What is published: the wheel installs and runs, and the files beside it are right."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import sliceflow
from running import installed

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "sliceflow"


def ran(*words, **more):
    found = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=300, **more)
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]
    return found.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The folder of a freshly built sdist, and of the wheel that was built from it."""
    for module in ("build", "hatchling"):
        if find_spec(module) is None:
            pytest.skip(f"needs {module}: pip install -c constraints.txt -e '.[dev]'")
    folder = tmp_path_factory.mktemp("dist")
    ran(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package_and_no_other(dist):
    (wheel,) = dist.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = (file for file in SOURCES.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    page = {f"sliceflow/app/play/{file.name}" for file in (ROOT / "docs" / "play").iterdir()}
    assert names == {file.relative_to(SOURCES.parent).as_posix() for file in files} | page
    (source,) = dist.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        apart = ("/src/", "/docs/play/")
        names = [name for name in archive.getnames() if not any(folder in name for folder in apart)]
        beside = {name.split("/", 1)[1] for name in names}
    needed = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    assert beside == needed | {".gitignore"}


@pytest.mark.slow
def test_the_installed_wheel_runs(dist, tmp_path):
    (wheel,) = dist.glob("*.whl")
    there = tmp_path / "there"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    ran(*pip, "--target", there, wheel)
    # Before all others, so that this is the package that is found; the dependencies are the tests' own.
    how = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(there), "OMP_NUM_THREADS": "1"}}
    where = "import sliceflow; print(sliceflow.__version__, sliceflow.__file__)"
    version, file = ran(sys.executable, "-c", where, **how).split(maxsplit=1)
    assert version == sliceflow.__version__
    assert Path(file.strip()) == there / "sliceflow" / "__init__.py"
    script = shutil.which("sliceflow", path=there / "bin")
    assert script is not None
    assert "inpaint" in ran(script, "--help", **how)
    # The page of play is not from a repository.
    files = "from sliceflow.app.server import PlayServer; print(sorted(PlayServer({}).files))"
    assert "flow.js" in ran(sys.executable, "-c", files, **how)
    # The report has a template, which must have come along.
    words = ("fit", "digits", "--quality", "1", "--particles", "300", "--out", "run")
    ran(sys.executable, "-m", "sliceflow", *words, **how)
    assert (tmp_path / "run" / "report.html").stat().st_size > 1000


def test_the_citation_has_the_version_and_date_of_the_changelog():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    released = re.findall(
        r"^## \[(\d\S*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert (cited["version"], cited["date-released"]) == released[0]
    assert cited["version"] == sliceflow.__version__
    assert cited["cff-version"] == "1.2.0"


def test_the_workflows_test_what_the_package_promises():
    tests = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8"))
    matrix = tests["jobs"]["tests"]["strategy"]["matrix"]
    assert [system.split("-")[0] for system in matrix["os"]] == ["ubuntu", "macos", "windows"]
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert matrix["python"] == re.findall(r"Python :: (3\.\d+)", pyproject)
    assert f'requires-python = ">={matrix["python"][0]}"' in pyproject
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    for form in ("bug", "idea"):
        text = (ROOT / f".github/ISSUE_TEMPLATE/{form}.yml").read_text(encoding="utf-8")
        assert {"name", "description", "body"} <= yaml.safe_load(text).keys()


@pytest.mark.slow
def test_output_that_cannot_be_encoded_does_not_end_a_command():
    """As on Windows, whose files and pipes have an encoding without κ."""
    found = installed("fit", "digits", "--dry-run", PYTHONIOENCODING="ascii")
    assert found.returncode == 0, found.stderr
    assert "?" in found.stdout


# Clean environments

MOONS = """
from sklearn.datasets import make_moons
import sliceflow
X, _ = make_moons(200, noise=0.1, random_state=0)
sliceflow.SlicedWassersteinFlow(n_steps=5, random_state=0).fit(X).save("m.sliceflow")
print(sliceflow.load("m.sliceflow").sample(7).shape)
"""
NO_PANDAS = """
import sliceflow
open("t.csv", "w").write("a,b\\n1,2\\n3,4\\n")
try:
    sliceflow.TableFlow().fit("t.csv")
except ImportError as error:
    print(error)
"""
TABLE = """
import pandas as pd, sliceflow
frame = pd.DataFrame({"a": range(100), "b": ["x", "y"] * 50})
print(sliceflow.TableFlow(random_state=0).fit(frame).sample(7).shape)
"""
BAR = """
import matplotlib, numpy as np, sliceflow
X = np.random.default_rng(0).integers(0, 256, (50, 4, 4), dtype=np.uint8)
print(sliceflow.ImageFlow(quality=1, random_state=0, verbose=1).fit(X).sample(7).shape)
"""
SERVED = """
import subprocess, sys, urllib.request
words = [sys.executable, "-m", "sliceflow", "play", "--no-browser"]
with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
    address = server.stdout.readline().split()[-1]
    print(urllib.request.urlopen(address).read().decode())
    server.terminate()
"""
FIDELITY = "import importlib.metadata; print(importlib.metadata.version('torch-fidelity'))"
EXTRAS = {  # what each is for: Python, and what it prints; or the command
    "": [(MOONS, "(7, 2)"), (NO_PANDAS, "pip install")],
    "images": [("import PIL", "")],
    "tables": [(TABLE, "(7, 2)")],
    "cli": [(("demo", "--out", "run", "--quiet"), "")],
    "app": [(SERVED, "sliceflow play")],
    "metrics": [(FIDELITY, "0.")],  # it imports torchvision, which some builds of torch lack
    "demo": [(BAR, "(7, 4, 4)")],
}


@pytest.fixture(scope="module")
def clean(dist, tmp_path_factory):
    """A new environment with the wheel, and nothing but what it needs; its Python, and its packages."""
    folder = tmp_path_factory.mktemp("clean") / "env"
    python = _environment(folder)
    (wheel,) = dist.glob("*.whl")
    words = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel]
    found = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=1500)
    if found.returncode and re.search("No matching distribution|Connection|resolve", found.stderr):
        pytest.skip("needs a package index: " + found.stderr.strip().splitlines()[-1])
    assert found.returncode == 0, found.stderr[-2000:]
    return wheel, ran(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()


def _environment(folder):
    ran(sys.executable, "-m", "venv", folder)
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


@pytest.mark.slow
@pytest.mark.parametrize("extra", EXTRAS)
def test_each_extra_works_in_a_clean_environment(extra, clean, tmp_path):
    wheel, packages = clean
    python = _environment(tmp_path / "env")
    here = ran(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(here, "core.pth").write_text(packages)  # torch is installed once, not seven times
    if extra:
        words = ("--quiet", "-c", ROOT / "constraints.txt", f"{wheel}[{extra}]")
        ran(python, "-m", "pip", "install", *words)
    how = {"cwd": tmp_path, "env": {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}}
    for words, printed in EXTRAS[extra]:
        command = ["-c", words] if isinstance(words, str) else ["-m", "sliceflow", *words]
        assert printed in ran(python, *command, **how)


def test_every_extra_is_tried_in_a_clean_environment():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS) == {"", *project["optional-dependencies"]} - {"dev"}
