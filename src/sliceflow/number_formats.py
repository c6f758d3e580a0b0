"""Numbers that are written as text, such as ``1,234.50``, ``3,14``, ``7%`` or ``$12``.

`infer_number_format` finds out how the cells of a column are written. The
`NumberFormat` reads them as floats, and writes new numbers in the same way.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sliceflow.arrays import Floats

if TYPE_CHECKING:
    import pandas as pd

# A number as Python writes it: 12, -0.5, .5, 1e-3.
PLAIN_NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"


_CURRENCIES = (
    "EUR|USD|GBP|CHF|JPY|CNY|INR|CAD|AUD|SEK|NOK|DKK|PLN|CZK|HUF|BRL|MXN|ZAR|TRY|KRW"
    "|kr|zł|Kč"
)
# A minus or a parenthesis before the prefix; a prefix such as "$", "R$" or "EUR "; the
# digits with their marks; a suffix such as "%" or " CHF"; and a closing parenthesis.
_NUMBER_WITH_SIGNS = re.compile(
    r"(?P<minus>-(?=\D)|\()?"
    rf"(?P<prefix>(?:[A-Z]{{0,2}}[^\w\s.,+()-]|{_CURRENCIES})?\s?)"
    r"(?P<digits>[+-]?[\d.,]*\d[\d.,'’\s]*(?:[eE][+-]?\d+)?(?<=\d))"
    rf"(?P<suffix>\s?(?:[^\w\s.,()]|{_CURRENCIES})?)\)?"
)


class _Marks(NamedTuple):
    """The decimal point, and the mark between thousands."""

    decimal: str
    thousands: str


# Marks are tried in this order. If several read equally many cells, the first of them
# count.
_COMMON_MARKS = (_Marks(".", ""), _Marks(".", ","), _Marks(",", ""), _Marks(",", "."))
# Gaps between thousands: a space, one without a line break, a narrow one; apostrophes.
_GAP_MARKS = (
    _Marks(".", " "),
    _Marks(",", " "),
    _Marks(".", "\u00a0"),
    _Marks(",", "\u00a0"),
    _Marks(".", "\u202f"),
    _Marks(",", "\u202f"),
    _Marks(".", "'"),
    _Marks(",", "'"),
    _Marks(".", "’"),
    _Marks(",", "’"),
)

# At most this many cells are looked at to learn the format; more would only take time.
_MAX_CELLS_READ = 2_000
# If at least this share of the cells are numbers, the other cells are taken for
# mistakes that the user should hear of, and not for words. With a larger share, a
# column of numbers with many mistakes would become a category without a warning.
_MIN_SHARE_OF_NUMBERS = 0.8


@dataclass(frozen=True)
class NumberFormat:
    """A way to write numbers as text.

    Attributes
    ----------
    decimal : the decimal point
    thousands : the mark between thousands; empty if there is none
    prefix : what stands before each number, such as "$"
    suffix : what stands behind each number, such as "%"
    decimals : the number of digits after the decimal point; −1 for as many as a number
        needs
    minus : what a negative number has before its prefix: "-", or "(", which is closed
        at the end. If empty, the minus stands behind the prefix
    """

    decimal: str = "."
    thousands: str = ""
    prefix: str = ""
    suffix: str = ""
    decimals: int = -1
    minus: str = ""

    def parse(self, texts: Sequence[str] | NDArray[Any] | pd.Series) -> Floats:
        """The numbers (n,) of n texts; NaN for what is not written this way."""
        import pandas as pd

        bare = pd.Series(texts, dtype="str").str.strip()
        bare = bare.str.replace(r"^\((.+)\)$", r"-\1", regex=True)
        prefix = re.escape(self.prefix.strip())
        bare = bare.str.replace(rf"^(-?){prefix}\s*", r"\1", regex=True)
        bare = bare.str.removesuffix(self.suffix.strip()).str.strip()
        if self.thousands:
            mark = re.escape(self.thousands)
            point = re.escape(self.decimal)
            groups_of_three = rf"[+-]?\d{{1,3}}({mark}\d{{3}})*({point}\d*)?"
            without_mark = rf"[^{mark}]*"
            well_grouped = bare.str.fullmatch(f"{groups_of_three}|{without_mark}")
            bare = bare.where(well_grouped)
            bare = bare.str.replace(self.thousands, "", regex=False)
        bare = bare.str.replace(self.decimal, ".", regex=False)
        bare = bare.where(bare.str.fullmatch(PLAIN_NUMBER))
        return np.asarray(bare.astype("float64"))

    def write(self, numbers: Floats) -> list[str]:
        """Numbers (n,) as n texts."""
        return [self._write_one(number) for number in numbers.tolist()]

    def _write_one(self, number: float) -> str:
        """One number as text."""
        decimals = self.decimals
        if decimals < 0 and number.is_integer():
            decimals = 0
        spec = "z"  # no minus before a zero
        if self.thousands:
            spec += ","
        if decimals >= 0:
            spec += f".{decimals}f"
        text = format(number, spec)
        text = text.translate({ord(","): self.thousands, ord("."): self.decimal})
        if not self.minus or not text.startswith("-"):
            return self.prefix + text + self.suffix
        closing = ""
        if self.minus == "(":
            closing = ")"
        return self.minus + self.prefix + text[1:] + self.suffix + closing


def infer_number_format(texts: NDArray[Any]) -> NumberFormat | None:
    """How texts (n,) write numbers; None if fewer than four in five are numbers.

    The format reads the few texts that are no numbers as NaN.
    """
    every = max(1, len(texts) // _MAX_CELLS_READ)
    cells = [str(text).strip() for text in texts[::every].tolist()]
    matches = [
        match for match in map(_NUMBER_WITH_SIGNS.fullmatch, cells) if match is not None
    ]
    too_few = len(matches) < _MIN_SHARE_OF_NUMBERS * len(cells)
    if not matches or too_few or _are_codes(cells):
        return None
    prefix = _most_common([match["prefix"] for match in matches])
    suffix = _most_common([match["suffix"] for match in matches])
    minus = max(match["minus"] or "" for match in matches)
    digits = [match["digits"] for match in matches]
    marks = _infer_marks(digits, has_sign=bool(prefix + suffix))
    number_format = NumberFormat(
        decimal=marks.decimal,
        thousands=marks.thousands,
        prefix=prefix,
        suffix=suffix,
        decimals=_common_decimals(digits, marks.decimal),
        minus=minus,
    )
    share_of_others = np.isnan(number_format.parse(texts)).mean()
    if share_of_others > 1 - _MIN_SHARE_OF_NUMBERS:
        return None
    return number_format


def _are_codes(cells: list[str]) -> bool:
    """Whether all cells that begin with a zero are codes such as 00123, not 0.5."""
    with_leading_zero = [text for text in cells if text[:1] == "0" and len(text) > 1]
    if not with_leading_zero:
        return False
    return all(re.fullmatch(r"0\d+", text) for text in with_leading_zero)


def _most_common(texts: list[str]) -> str:
    """The most frequent text; of several, the first."""
    return Counter(texts).most_common(1)[0][0]


def _infer_marks(digits: list[str], has_sign: bool) -> _Marks:
    """The marks with which most of the texts are numbers.

    Spaces and apostrophes count as marks only in numbers with a prefix or suffix
    (`has_sign`), or if all have decimals: "123 456" alone may identify a person.
    """
    candidates: tuple[_Marks, ...] = _COMMON_MARKS
    if has_sign or all(re.search(r"[.,]\d+$", text) for text in digits):
        candidates += _GAP_MARKS
    n_read = [
        np.isfinite(NumberFormat(marks.decimal, marks.thousands).parse(digits)).sum()
        for marks in candidates
    ]
    return candidates[int(np.argmax(n_read))]


def _common_decimals(digits: list[str], decimal: str) -> int:
    """The number of digits after the decimal point in all texts; −1 if it differs."""
    lengths = {len(text.partition(decimal)[2]) for text in digits}
    if len(lengths) == 1:
        return lengths.pop()
    return -1
