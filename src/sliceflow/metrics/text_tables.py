"""Text tables, as reports and attacks print them."""

from __future__ import annotations

from collections.abc import Sequence


def format_table(rows: Sequence[Sequence[str]], right_aligned: Sequence[bool]) -> str:
    """Rows of cells as lines, with columns of equal width.

    `right_aligned` says of each column on which side its cells stand.

    >>> print(format_table([("", "AUC"), ("forest", "0.5")], (False, True)))
            AUC
    forest  0.5
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for cell, width, is_right in zip(row, widths, right_aligned, strict=True):
            cells.append(cell.rjust(width) if is_right else cell.ljust(width))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
