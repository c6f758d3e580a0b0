"""The way of a fit to its first step: short, and as the documentation shows it."""

import sys
from importlib.metadata import version

import pytest

from tracing import BLOCK, PAGE, files_of, way_of_a_default_fit, with_way

# What a reader passes who skips `tracing.DETOURS`, and what all of them are. Small
# modules and functions that do one thing count here, though they are easier to read
# than fewer large ones.
MAX_FUNCTIONS = 60
MAX_FILES = 15
MAX_FUNCTIONS_WITH_DETOURS = 124


def test_a_fit_reaches_its_first_step_by_few_functions_and_files():
    way = way_of_a_default_fit()
    assert way.direct[-1] == ("engine/flow.py", "simulate")
    assert len(way.direct) <= MAX_FUNCTIONS
    assert len(files_of(way.direct)) <= MAX_FILES
    assert len(way.direct + way.in_detours) <= MAX_FUNCTIONS_WITH_DETOURS


def is_pinned(package):
    """Whether the version is that of constraints.txt: others call us differently."""
    pins = (PAGE.parent.parent / "constraints.txt").read_text().lower().splitlines()
    return f"{package}=={version(package)}".split("+")[0] in pins


@pytest.mark.skipif(sys.platform != "linux", reason="memory is asked for otherwise")
@pytest.mark.skipif(
    not (is_pinned("torch") and is_pinned("scikit-learn") and is_pinned("numba")),
    reason="other versions of libraries call other functions of ours",
)
def test_the_page_shows_the_way():
    page = PAGE.read_text()
    assert BLOCK.search(page)
    assert with_way(page) == page, "run: python tests/tracing.py"
