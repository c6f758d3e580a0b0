"""What is published: the wheel installs and runs, and the files beside it are right."""

import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import sliceflow
from running import installed

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "sliceflow"


def ran(*words, **more):
    found = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, timeout=300, **more
    )
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]
    return found.stdout


PUBLIC = """
import sys
import sliceflow
assert "torch" not in sys.modules, "import sliceflow should be fast"
import sliceflow.events, sliceflow.frames, sliceflow.ranks
import sliceflow.schedules, sliceflow.transports
from sliceflow import errors, frames
from sliceflow.frames import Random
assert frames is sliceflow.frames
assert Random is sliceflow.engine.frames.Random
for name in sliceflow.__all__:
    getattr(sliceflow, name)
for module in ("events", "frames", "ranks", "schedules", "transports"):
    public = sys.modules[f"sliceflow.{module}"]
    assert all(hasattr(public, name) for name in public.__all__)
"""


def test_public_modules_are_modules():
    ran(sys.executable, "-c", PUBLIC)


PACKAGES = [
    ".".join(file.parent.relative_to(SOURCES.parent).parts)
    for file in sorted(SOURCES.rglob("__init__.py"))
]


@pytest.mark.parametrize("package_name", PACKAGES)
def test_no_module_is_hidden_by_what_its_package_exports(package_name):
    """As a module `a.b` would be, if the package `a` exported a function `b`."""
    if package_name == "sliceflow.kernels.triton" and find_spec("triton") is None:
        pytest.skip("needs triton")
    package = importlib.import_module(package_name)
    hidden = []
    for module in pkgutil.iter_modules(package.__path__):
        if isinstance(vars(package).get(module.name, package), ModuleType):
            continue
        hidden.append(module.name)
    assert hidden == []


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
    names = {
        name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name
    }
    files = (
        file
        for file in SOURCES.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    )
    page = {
        f"sliceflow/app/play/{file.name}" for file in (ROOT / "docs" / "play").iterdir()
    }
    assert (
        names == {file.relative_to(SOURCES.parent).as_posix() for file in files} | page
    )
    (source,) = dist.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        apart = ("/src/", "/docs/play/")
        names = [
            name
            for name in archive.getnames()
            if not any(folder in name for folder in apart)
        ]
        beside = {name.split("/", 1)[1] for name in names}
    needed = {
        "CHANGELOG.md",
        "CITATION.cff",
        "LICENSE",
        "PKG-INFO",
        "README.md",
        "pyproject.toml",
    }
    assert beside == needed | {".gitignore"}


@pytest.mark.slow
def test_the_installed_wheel_runs(dist, tmp_path):
    (wheel,) = dist.glob("*.whl")
    there = tmp_path / "there"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    ran(*pip, "--target", there, wheel)
    # Before all others, so that this is the package that is found; the dependencies are
    # the tests' own.
    how = {
        "cwd": tmp_path,
        "env": os.environ | {"PYTHONPATH": str(there), "OMP_NUM_THREADS": "1"},
    }
    where = "import sliceflow; print(sliceflow.__version__, sliceflow.__file__)"
    version, file = ran(sys.executable, "-c", where, **how).split(maxsplit=1)
    assert version == sliceflow.__version__
    assert Path(file.strip()) == there / "sliceflow" / "__init__.py"
    script = shutil.which("sliceflow", path=there / "bin")
    assert script is not None
    assert "inpaint" in ran(script, "--help", **how)
    # The page of play is not from a repository.
    files = (
        "from sliceflow.app.server import PlayServer; "
        "print(sorted(PlayServer({}).files))"
    )
    assert "flow.js" in ran(sys.executable, "-c", files, **how)
    # The report has a template, which must have come along.
    words = (
        "fit",
        "digits",
        "--steps-per-stage",
        "1",
        "--particles",
        "300",
        "--out",
        "run",
    )
    ran(sys.executable, "-m", "sliceflow", *words, **how)
    assert (tmp_path / "run" / "report.html").stat().st_size > 1000


def loaded(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_citation_has_the_version_and_date_of_the_changelog():
    cited = loaded("CITATION.cff")
    changes = (ROOT / "CHANGELOG.md").read_text()
    released = re.findall(r"^## \[(\d\S*)\] - (\S+)$", changes, re.MULTILINE)
    assert (cited["version"], cited["date-released"]) == released[0]
    # Between releases, the version is the next one: its files and checkpoints may not
    # be those of the release.
    is_next = re.fullmatch(r"\d+\.\d+\.\d+\.dev0", sliceflow.__version__)
    assert is_next or cited["version"] == sliceflow.__version__
    assert cited["cff-version"] == "1.2.0"


def test_the_workflows_test_what_the_package_promises():
    jobs = loaded(".github/workflows/tests.yml")["jobs"]
    matrix = jobs["tests"]["strategy"]["matrix"]
    systems = ["ubuntu-latest", "ubuntu-24.04-arm", "macos-latest", "windows-latest"]
    assert matrix["os"] == systems
    assert {"lowest", "newest", "seeds"} <= jobs.keys()
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert matrix["python"] == re.findall(r"Python :: (3\.\d+)", pyproject)
    assert f'requires-python = ">={matrix["python"][0]}"' in pyproject
    release = loaded(".github/workflows/release.yml")
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    for form in ("bug", "idea"):
        assert {"name", "description", "body"} <= loaded(
            f".github/ISSUE_TEMPLATE/{form}.yml"
        ).keys()


@pytest.mark.slow
def test_output_that_cannot_be_encoded_does_not_end_a_command():
    """As on Windows, whose files and pipes have an encoding without κ."""
    found = installed("fit", "digits", "--dry-run", PYTHONIOENCODING="ascii")
    assert found.returncode == 0, found.stderr
    assert "?" in found.stdout


# Clean environments

SERVED = """
import subprocess, sys, urllib.request
words = [sys.executable, "-m", "sliceflow", "play", "--no-browser"]
with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
    address = server.stdout.readline().split()[-1]
    print(urllib.request.urlopen(address).read().decode())
    server.terminate()
"""
NO_PANDAS = """
import sliceflow
try: sliceflow.TableFlow().fit({"a": [1, 2]})
except ImportError as error: print(error)
"""
NUMBERS = (
    "import numpy as np, sliceflow; "
    "x = np.random.default_rng(0).integers(0, 256, (50, 4, 4)); "
)
KEPT = (
    "sliceflow.SlicedWassersteinFlow(n_steps=5).fit(x[0]).save('m'); "
    "print(*sliceflow.load('m').sample(7))"
)
CLASSES = (
    "import pandas as pd, sliceflow; "
    "x = pd.DataFrame({'a': range(100), 'b': ['x', 'y'] * 50}); "
)
VERSION = (
    "import importlib.metadata; print(importlib.metadata.version('torch-fidelity'))"
)
EXTRAS = {  # what each is for: Python, and what it prints; or the command
    "": [(NUMBERS + KEPT, "["), (NO_PANDAS, "pip install")],
    "images": [("import PIL", "")],
    "tables": [
        (CLASSES + "print(sliceflow.TableFlow().fit(x).sample(7).shape)", "(7, 2)")
    ],
    "excel": [("import openpyxl, pandas", "")],
    "cli": [
        (("fit", "digits", "--steps-per-stage", "1", "--out", "run", "--quiet"), "")
    ],
    "app": [(SERVED, "sliceflow play")],
    "metrics": [
        (VERSION, "0.")
    ],  # it imports torchvision, which some builds of torch lack
    "demo": [
        (
            NUMBERS
            + "sliceflow.ImageFlow(steps_per_stage=1, verbose=1).fit(x); "
            + "import matplotlib",
            "",
        )
    ],
}


def new_environment(folder):
    """Its Python, and the folder of its packages."""
    ran(sys.executable, "-m", "venv", folder)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    return python, ran(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"
    ).strip()


@pytest.fixture(scope="module")
def clean(dist, tmp_path_factory):
    """The wheel, and the packages of a new environment with it and nothing but what it
    needs.
    """
    python, packages = new_environment(tmp_path_factory.mktemp("clean") / "env")
    (wheel,) = dist.glob("*.whl")
    words = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "-c",
        ROOT / "constraints.txt",
        wheel,
    ]
    found = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, timeout=1500
    )
    if found.returncode and re.search(
        "No matching distribution|Connection|resolve", found.stderr
    ):
        pytest.skip("needs a package index: " + found.stderr.strip().splitlines()[-1])
    assert found.returncode == 0, found.stderr[-2000:]
    return wheel, packages


@pytest.mark.slow
@pytest.mark.parametrize("extra", EXTRAS)
def test_each_extra_works_in_a_clean_environment(extra, clean, tmp_path):
    wheel, packages = clean
    python, here = new_environment(tmp_path / "env")
    Path(here, "core.pth").write_text(
        packages
    )  # torch is installed once, not seven times
    if extra:
        words = ("--quiet", "-c", ROOT / "constraints.txt", f"{wheel}[{extra}]")
        ran(python, "-m", "pip", "install", *words)
    how = {
        "cwd": tmp_path,
        "env": {k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    }
    for words, printed in EXTRAS[extra]:
        command = (
            ["-c", words] if isinstance(words, str) else ["-m", "sliceflow", *words]
        )
        assert printed in ran(python, *command, **how)


def test_every_extra_is_tried_in_a_clean_environment():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    assert set(EXTRAS) == {"", *project["optional-dependencies"]} - {"dev"}
