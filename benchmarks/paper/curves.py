"""Scores against what was spent, drawn: for the two ablations by numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator, NullFormatter

__all__ = ["draw", "score_of"]

STYLES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"))


def score_of(row: Mapping[str, Any]) -> tuple[str, float, float]:
    """What a row is judged by, FID where there is one: its name, its value, its floor."""
    if "FID" in row:
        return f"FID-{row['FID']['layer']}", row["FID"]["value"], row["FID"]["floor"]
    return "FD", row["FD"], row["FD floor"]


def draw(
    path: Path,
    curves: Mapping[str, Sequence[tuple[float, str, Mapping[str, Any]]]],
    title: str,
    xlabel: str,
) -> None:
    """Curves of points (x, what is written beside it, the row with its score) on logarithmic axes."""
    fig, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
    all_scores = []
    for (name, points), (colour, marker) in zip(curves.items(), STYLES, strict=False):
        x, words, rows = zip(*points, strict=True)
        y = [score_of(row)[1] for row in rows]
        all_scores += y
        ax.loglog(x, y, c=colour, marker=marker, label=name)
        for place, word in zip(zip(x, y, strict=True), words, strict=True):
            ax.annotate(
                word, place, xytext=(6, 6), textcoords="offset points", fontsize=9, color=colour
            )
    score, _, floor = score_of(rows[0])
    ax.margins(0.2)
    if floor > min(all_scores) / 3:
        ax.axhline(floor, c="black", ls="--", lw=1, label="real pictures (floor)")
    else:  # far below: a line there would flatten the curves
        ax.plot([], [], " ", label=f"real pictures (floor): {floor:.2g}")
    ax.set(title=title, xlabel=xlabel, ylabel=f"{score} to the training pictures")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:,.10g}")
        axis.set_minor_formatter(NullFormatter())
    low, high = ax.get_ylim()
    if high / low < 3:  # too narrow for ticks at 1, 2 and 5
        ax.yaxis.set_major_locator(LogLocator(subs=tuple(k / 10 for k in range(10, 100, 5))))
    ax.grid(alpha=0.3)
    ax.legend()
    fig.savefig(path, dpi=110)
    plt.close(fig)
