"""Durations and sizes in words."""

import pytest

from sliceflow.wording import format_bytes, format_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.1 s"),
        (3.14, "3.1 s"),
        (10, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3599.6, "1 h 00 min"),
        (7500, "2 h 05 min"),
    ],
)
def test_a_duration_is_in_the_unit_that_people_use(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1024, "1.0 KiB"),
        (1 << 20, "1.0 MiB"),
        (5_000_000, "4.8 MiB"),
        (1 << 34, "16.0 GiB"),
    ],
)
def test_a_size_is_in_the_largest_unit_that_it_reaches(count, text):
    assert format_bytes(count) == text
