"""Numbers written as text: ``1,234.50``, ``3,14``, ``7%``, ``$12``; read, and written the same way."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

TABLES = (
    ".csv",
    ".tsv",
    ".txt",
    ".parquet",
    ".pq",
    ".xlsx",
    ".xls",
)  # endings of files of tables
MISSING = (
    "",
    "na",
    "n/a",
    "nan",
    "null",
    "none",
    "?",
    "-",
    "#n/a",
)  # texts that mean a missing cell
PLAIN = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
_CODES = "EUR|USD|GBP|CHF|JPY|CNY|INR|CAD|AUD|SEK|NOK|DKK|PLN|CZK|HUF|BRL|MXN|ZAR|TRY|KRW|kr|zł|Kč"
_SIGNS = re.compile(
    rf"(-(?=\D)|\()?((?:[A-Z]{{0,2}}[^\w\s.,+()-]|{_CODES})?\s?)"
    rf"([+-]?[\d.,]*\d[\d.,'’\s]*(?:[eE][+-]?\d+)?(?<=\d))(\s?(?:[^\w\s.,()]|{_CODES})?)\)?"
)
_MARKS = (
    (".", ""),
    (".", ","),
    (",", ""),
    (",", "."),
)  # decimal point, thousands: the first that fits
_GAPS = tuple((point, gap) for gap in " \u00a0\u202f'’" for point in ".,")
_MOST_READ = 2_000  # cells from which the way of writing is learnt
_NUMERIC = 0.8  # share of cells that are numbers, from which on the others are mistakes


@dataclass(frozen=True)
class NumberFormat:
    """A way to write numbers as text."""

    decimal: str = "."
    thousands: str = ""  # the mark, if any
    prefix: str = ""  # what stands before each number, such as "$"
    suffix: str = ""
    decimals: int = -1  # digits after the decimal point; −1: as many as a number needs
    minus: str = ""  # before the prefix of a negative number: "-", or "(", which is closed at the end

    def parse(self, texts: Any) -> np.ndarray:
        """Numbers; NaN for what is not written this way."""
        bare = import_module("pandas").Series(texts, dtype="str").str.strip()
        bare = bare.str.replace(r"^\((.+)\)$", r"-\1", regex=True)
        bare = bare.str.replace(
            rf"^(-?){re.escape(self.prefix.strip())}\s*", r"\1", regex=True
        )
        bare = bare.str.removesuffix(self.suffix.strip()).str.strip()
        if self.thousands:
            mark = re.escape(self.thousands)
            point = re.escape(self.decimal)
            grouped = bare.str.fullmatch(
                rf"[+-]?\d{{1,3}}({mark}\d{{3}})*({point}\d*)?|[^{mark}]*"
            )
            bare = bare.where(grouped).str.replace(self.thousands, "", regex=False)
        bare = bare.str.replace(self.decimal, ".", regex=False)
        return np.asarray(bare.where(bare.str.fullmatch(PLAIN)).astype("float64"))

    def write(self, numbers: np.ndarray) -> list[str]:
        return [self._text(v) for v in numbers.tolist()]

    def _text(self, v: float) -> str:
        decimals = 0 if self.decimals < 0 and v.is_integer() else self.decimals
        form = "z," if self.thousands else "z"  # z: no minus before zero
        text = f"{v:{form}.{decimals}f}" if decimals >= 0 else f"{v:{form}}"
        text = text.translate({ord(","): self.thousands, ord("."): self.decimal})
        if self.minus and text[0] == "-":
            return f"{self.minus}{self.prefix}{text[1:]}{self.suffix}{')' * (self.minus == '(')}"
        return self.prefix + text + self.suffix


def infer_number_format(texts: np.ndarray) -> NumberFormat | None:
    """How the texts write numbers; None if fewer than four in five are numbers. Others are read as NaN."""
    some = [str(v).strip() for v in texts[:: max(1, len(texts) // _MOST_READ)].tolist()]
    found = [m.groups() for m in map(_SIGNS.fullmatch, some) if m is not None]
    codes = [
        re.fullmatch(r"0\d+", text)
        for text in some
        if text[:1] == "0" and len(text) > 1
    ]
    if not found or len(found) < _NUMERIC * len(some) or (codes and all(codes)):
        return None  # words, or codes such as 00123
    prefix, suffix = (
        Counter(signs[k] for signs in found).most_common(1)[0][0] for k in (1, 3)
    )
    minus = max(signs[0] or "" for signs in found)
    digits = [signs[2] for signs in found]
    # "123 456" alone may be the number of a person
    gaps = (
        _GAPS
        if prefix + suffix or all(re.search(r"[.,]\d+$", d) for d in digits)
        else ()
    )
    fits = {
        marks: np.isfinite(NumberFormat(*marks).parse(digits)).sum()
        for marks in _MARKS + gaps
    }
    decimal, thousands = max(fits, key=lambda marks: fits[marks])
    tails = {len(d.partition(decimal)[2]) if decimal in d else 0 for d in digits}
    decimals = tails.pop() if len(tails) == 1 else -1
    writing = NumberFormat(decimal, thousands, prefix, suffix, decimals, minus)
    return writing if np.isnan(writing.parse(texts)).mean() <= 1 - _NUMERIC else None
