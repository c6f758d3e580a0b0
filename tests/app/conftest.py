"""A browser for all tests of the pages, if there is one."""

import os

import pytest

from chromium import CHROMIUM, NAMES, Chromium


@pytest.fixture(scope="session")
def chromium():
    if CHROMIUM is None or os.name == "nt":
        pytest.skip(f"needs a browser and POSIX: one of {', '.join(NAMES)}")
    opened = Chromium()
    yield opened
    opened.close()
