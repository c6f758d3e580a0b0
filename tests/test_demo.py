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
