"""What files with tables look like: endings, words for missing cells, dialects of text.

The command line knows this before it imports pandas, with which
`estimators/tables/files.py` reads the files.
"""

from __future__ import annotations

from dataclasses import dataclass

# Endings of files that are tables.
TABLE_ENDINGS = (".csv", ".tsv", ".txt", ".parquet", ".pq", ".xlsx", ".xls")

# Cells of a text file that mean a missing value, in lower case.
MISSING_WORDS = ("", "na", "n/a", "nan", "null", "none", "?", "-", "#n/a")
# Words that mean a missing value in a column whose other cells are all numbers or
# dates. In a column of words they may be categories.
UNKNOWN_WORDS = (
    *("unknown", "unk", "missing", "not available", "not known", "n.a.", "n.k."),
    *("--", "...", "tbd"),
)


@dataclass(frozen=True)
class Dialect:
    """How a text file separates cells and rows, and writes letters."""

    separator: str = ","
    encoding: str = "utf-8"
    line_end: str = "\n"
