"""Scores against what was spent, drawn: for the two ablations by numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

__all__ = ["draw"]

STYLES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"))


def draw(
    path: Path,
    curves: Mapping[str, Sequence[tuple[float, float, str]]],
    floor: float,
    title: str,
    xlabel: str,
    ylabel: str = "FD to the training pictures",
) -> None:
    """Curves of points (x, score, what is written beside it) on logarithmic axes, over the floor."""
    fig, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for (name, points), (colour, marker) in zip(curves.items(), STYLES, strict=False):
        x, y, words = zip(*points, strict=True)
        ax.loglog(x, y, c=colour, marker=marker, label=name)
        for place, word in zip(zip(x, y, strict=True), words, strict=True):
            ax.annotate(
                word, place, xytext=(6, 6), textcoords="offset points", fontsize=9, color=colour
            )
    ax.axhline(floor, c="black", ls="--", lw=1, label="real pictures (floor)")
    ax.set(title=title, xlabel=xlabel, ylabel=ylabel)
    ax.margins(0.2)
    ax.xaxis.set_major_formatter("{x:g}")
    for which in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
        which("{x:g}")
    ax.grid(alpha=0.3)
    ax.legend()
    fig.savefig(path, dpi=110)
    plt.close(fig)
