"""Formatting of plans."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["as_table", "in_bytes"]


def as_table(rows: Sequence[tuple[str, object]]) -> str:
    """Names and values, one pair per line; omits pairs whose value is "".

    Examples
    --------
    >>> print(as_table([("rows", 500), ("classes", ""), ("device", "cpu")]))
    rows    500
    device  cpu
    """
    shown = [(name, str(value)) for name, value in rows if value != ""]
    width = max(len(name) for name, _ in shown)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in shown)


def in_bytes(count: int) -> str:
    """A number of bytes in KiB, MiB or GiB.

    Examples
    --------
    >>> in_bytes(1536), in_bytes(3 << 30)
    ('1.5 KiB', '3.0 GiB')
    """
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count / 1024:.1f} KiB"
