"""Identifiers and personal data: how they are recognised, and new ones of the same form."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from string import ascii_lowercase, ascii_uppercase, digits, hexdigits
from typing import Any

import numpy as np

from sliceflow.spaces.tables.cells import EncodedColumn

NEARLY_UNIQUE = "is nearly unique"
LONG_TEXT = (
    40  # characters, on average, of texts that neither a pattern nor categories imitate
)
FEWEST = 20  # rows from which on different values tell anything
_MOST = 0.8  # texts of a personal form, or distinct values per row, that identify
_PERSONAL = {
    "an e-mail address": re.compile(r"[^@\s]+@[^@\s]+\.[A-Za-z]{2,}"),
    "an IBAN": re.compile(r"[A-Z]{2}\d{2}( ?[A-Z0-9]{4}){2,7}( ?[A-Z0-9]{1,3})?"),
    "a social security number": re.compile(r"\d{3}-\d{2}-\d{4}"),
    "a phone number": re.compile(
        r"(\+|00)\d[\d ()/.-]{6,17}|\(?\d{3,5}\)?[ /-]\d{3,4}[ -]\d{3,5}"
    ),
}
_ID_NAME = re.compile(
    r"(^|[_\W])(id|uuid|guid|key|ssn|iban|phone|mobile|e-?mail|passport)$|^(id|uuid)[_\W]|[a-z]I[dD]$|"
    r"(account|customer|card|policy|invoice|member|patient|phone)[_\W]*(number|no|nr)$",
    re.IGNORECASE,
)
_NAME_NAME = re.compile(
    r"(^|[_\W])(first|last|full|sur|given|family)?[_\W]*name$", re.IGNORECASE
)
_LOOKED_AT = 1_000
_HEX = hexdigits[:16]


def reason(cells: EncodedColumn, distinct_rows: np.ndarray) -> str:
    """Why a column of texts or integers identifies persons or rows; empty if it does not.

    `distinct_rows` leaves out repetitions of whole rows, which must not change the answer.
    """
    codes = cells.codes[distinct_rows]
    found = np.flatnonzero(np.bincount(codes[codes >= 0]))
    n = int((codes >= 0).sum())
    k = len(found)
    text = cells.form == "str"
    if k < 2 or cells.form not in ("str", "int") or cells.categorical:
        return ""
    texts = cells.levels.iloc[found[:_LOOKED_AT]].astype(str).tolist()
    for what, form in _PERSONAL.items():
        if text and sum(bool(form.fullmatch(t)) for t in texts) >= _MOST * len(texts):
            return f"looks like {what}"
    if n < FEWEST or k < _MOST * n:
        few = n >= FEWEST and 2 * k > n and text and _NAME_NAME.search(str(cells.name))
        return "looks like a name" if few else ""
    if _ID_NAME.search(str(cells.name)):
        return "is nearly unique and named like an identifier"
    if not text:
        return ""  # nearly all integers of a measurement differ, too
    words, length = (
        sum(f(t) for t in texts) / len(texts) for f in (lambda t: t.count(" "), len)
    )
    alike = words < 1.5 or len({"".join(alphabets([t])) for t in texts}) <= 3
    return NEARLY_UNIQUE if alike and length <= LONG_TEXT else ""


def alphabets(texts: Sequence[str]) -> list[str]:
    """What may stand in every place of the longest text: letters or digits like its own, or only it.

    Of AB-12, AC-77 and AD-30: A, any capital letter, -, any digit, and any digit.
    """
    longest = max(texts, key=lambda text: (len(text), text))
    alike = [text for text in texts if len(text) == len(longest)]
    used = {*"".join(texts)}
    hexadecimal = {c for c in used if c.isalnum()} <= {*_HEX} and not used.isdisjoint(
        "abcdef"
    )
    kinds = (_HEX,) if hexadecimal else (digits, ascii_uppercase, ascii_lowercase)
    out = []
    for place, c in zip(zip(*alike, strict=True), longest, strict=True):
        fixed = len(alike) > 2 and c != "0" and len({*place}) == 1
        other = ascii_lowercase if c.isalpha() else c
        out.append(
            c if fixed else next((letters for letters in kinds if c in letters), other)
        )
    return out


def new(cells: EncodedColumn, n: int, rng: np.random.Generator) -> list[Any]:
    """n different values, none of them in the column: other digits and letters in the same places."""
    if cells.form == "int":
        return _new_integers(cells, n, rng)
    texts = cells.levels.tolist()
    places = alphabets(texts[:_LOOKED_AT])
    last = max(
        (i for i, letters in enumerate(places) if len(letters) > 1),
        default=len(places) - 1,
    )
    while math.prod(map(len, places)) < 10 * (n + len(texts)):
        places.insert(last + 1, digits)  # longer, so that there is room
    known = set(texts)
    out = dict[str, None]()
    while len(out) < n:
        drawn = [rng.choice([*letters], n) for letters in places]
        rows = (
            np.column_stack(drawn).astype("U1").view(f"U{len(places)}")[:, 0].tolist()
        )
        out |= dict.fromkeys(text for text in rows if text not in known)
    return list(out)[:n]


def _new_integers(cells: EncodedColumn, n: int, rng: np.random.Generator) -> list[int]:
    """The same for integers: others with as many digits, or more where there is no room."""
    dtype = cells.levels.dtype
    known = {*cells.levels.tolist()}
    out = dict[int, None]()
    high = 10 ** len(str(max(map(abs, known))))
    room = 10 * (n + len(known))
    low = high // 10
    while high - low < room:
        high *= 10
    if dtype.kind in "iu":
        high = min(high, int(np.iinfo(getattr(dtype, "numpy_dtype", dtype)).max))
    if 5 * (high - low) < room:
        fact = f"column {cells.name!r} has dtype {dtype}, with too few other numbers"
        raise ValueError(
            f"{fact} for {n} new identifiers; convert it to int64, or drop it"
        )
    sign = -1 if max(known) < 0 else 1
    while len(out) < n:
        drawn = rng.integers(0, min(high - low, 2**62), n).tolist()
        out |= dict.fromkeys(
            sign * (low + v) for v in drawn if sign * (low + v) not in known
        )
    return list(out)[:n]
