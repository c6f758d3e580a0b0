"""`make demo` runs, and writes what the README promises."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_demo_writes_pictures_and_a_table(tmp_path):
    command = [sys.executable, ROOT / "examples" / "demo.py", "--out", tmp_path]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert len(list(tmp_path.glob("*.png"))) >= 3
    assert "| accuracy |" in "".join(path.read_text() for path in tmp_path.glob("*.md"))


@pytest.mark.slow
def test_algorithm_1_is_shown_beside_the_defaults(tmp_path):
    command = [sys.executable, ROOT / "examples" / "algorithm1.py", "--out", tmp_path]
    command += ["--steps", "2", "--directions", "50", "--particles", "300"]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert {"moons.png", "digits.png"} <= {path.name for path in tmp_path.iterdir()}
    seconds = (tmp_path / "seconds.md").read_text()
    assert "| digits | Algorithm 1 |" in seconds
    assert "| digits | defaults |" in seconds
