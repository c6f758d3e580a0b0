"""Wording of durations, sizes, long texts and likely names.

Plans, errors, progress and reports share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

# How alike a misspelt name must be to be suggested, from 0 to 1: difflib's own default,
# at which "spexies" finds "species" and "age" does not find "wage_rate".
_MIN_LIKENESS = 0.6


def format_duration(seconds: float) -> str:
    """A time in seconds, minutes or hours; less than 0.1 s is shown as 0.1 s.

    >>> [format_duration(seconds) for seconds in (3.14, 59.4, 200, 7500)]
    ['3.1 s', '59 s', '3 min 20 s', '2 h 05 min']
    """
    whole = round(seconds)
    if seconds < 10:
        return f"{max(0.1, seconds):.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_bytes(count: float) -> str:
    """A number of bytes in KiB, MiB or GiB.

    >>> [format_bytes(count) for count in (1536, 5e6, 2**34)]
    ['1.5 KiB', '4.8 MiB', '16.0 GiB']
    """
    if count >= 1 << 30:
        return f"{count / (1 << 30):.1f} GiB"
    if count >= 1 << 20:
        return f"{count / (1 << 20):.1f} MiB"
    return f"{count / (1 << 10):.1f} KiB"


def shorten(text: str, length: int) -> str:
    """A text of at most so many characters; a longer one ends in "…".

    >>> shorten("species, island, sex", 12)
    'species, is…'
    """
    if len(text) <= length:
        return text
    return f"{text[: length - 1]}…"


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """A hint for a name that is not known: the likeliest name, or all that there are.

    >>> did_you_mean("Spexies", ["species", "island"])
    "did you mean 'species'?"
    >>> did_you_mean("height", ["species", "island"])
    'there are species, island'
    """
    lower = {text.lower(): text for text in known}
    close = get_close_matches(name.lower(), lower, n=1, cutoff=_MIN_LIKENESS)
    if close:
        return f"did you mean {lower[close[0]]!r}?"
    return f"there are {', '.join(known)}"
