"""Charts as SVG text in the page's colours, each with a text alternative."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from sliceflow.cli.display import last_distance

__all__ = ["distance_chart", "scatter_chart"]

_WIDE, _HIGH, _LEFT, _BELOW, _ABOVE = 720, 300, 72, 34, 22


def distance_chart(stages: Sequence[str], distances: Sequence[float]) -> str:
    """The sliced distance before every step on a logarithmic scale, with a band for every stage."""
    positive = [d for d in distances if d > 0 and math.isfinite(d)]
    if not positive:
        return "<p>No distances were measured.</p>"
    low, high = math.log10(min(positive)), math.log10(max(positive))
    # A last step may be exact: what lies far below the rest is drawn at the lower edge.
    low = max(low, high - 4)
    high = max(high, low + 0.1)
    n = len(distances)

    def x(step: float) -> float:
        return _LEFT + (_WIDE - _LEFT - 8) * step / max(n, 1)

    def y(d: float) -> float:
        place = (math.log10(max(d, 10**low)) - low) / (high - low)
        return _HIGH - _BELOW - (_HIGH - _BELOW - _ABOVE) * place

    parts, first, number = [], 0, 0
    for i in range(1, n + 1):
        if i < n and stages[i] == stages[first]:
            continue
        if number % 2 == 0:
            parts.append(
                f'<rect class="band" x="{x(first):.1f}" y="{_ABOVE}" width="{x(i) - x(first):.1f}" '
                f'height="{_HIGH - _BELOW - _ABOVE}"/>'
            )
        if x(i) - x(first) > 8 * len(stages[first]):
            parts.append(
                f'<text class="small" x="{x(first) + 3:.1f}" y="15">{escape(stages[first])}</text>'
            )
        first, number = i, number + 1
    for tick in _ticks(low, high):
        at = y(10**tick)
        parts.append(f'<line class="rule" x1="{_LEFT}" x2="{_WIDE - 8}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{10**tick:.3g}</text>')
    line = " ".join(f"{x(i + 0.5):.1f},{y(d):.1f}" for i, d in enumerate(distances) if math.isfinite(d))
    parts.append(f'<polyline class="line" points="{line}"/>')
    parts.append(
        f'<text x="{(_LEFT + _WIDE) / 2:.0f}" y="{_HIGH - 8}" text-anchor="middle">step, of {n}</text>'
    )
    stage, last = last_distance(stages, distances)
    title = "Sliced distance before every step, logarithmic"
    words = (
        f"It goes from {distances[0]:.3g} at the first step to {last:.3g} at the last of stage "
        f"{stage}, over {number} stages. Bands are stages."
    )
    return _svg("distance", title, words, parts)


def scatter_chart(
    names: tuple[str, str], groups: Sequence[tuple[str, Sequence[tuple[float, float]]]]
) -> str:
    """Points of up to two groups: real rows as rings, samples as dots."""
    points = [p for _, group in groups for p in group]
    edges = [(min(p[i] for p in points), max(p[i] for p in points)) for i in (0, 1)]

    def place(value: float, i: int) -> float:
        low, high = edges[i]
        share = (value - low) / (high - low) if high > low else 0.5
        if i == 0:
            return _LEFT + 8 + (_WIDE - _LEFT - 24) * share
        return _HIGH - _BELOW - 8 - (_HIGH - _BELOW - _ABOVE - 16) * share

    parts = []
    for k, (name, group) in enumerate(groups):
        kind = ("ring", "dot")[k % 2]
        parts += [
            f'<circle class="{kind}" cx="{place(a, 0):.1f}" cy="{place(b, 1):.1f}" r="3"/>'
            for a, b in group
        ]
        parts.append(f'<circle class="{kind}" cx="{_LEFT + 12 + 150 * k}" cy="11" r="4"/>')
        parts.append(f'<text x="{_LEFT + 22 + 150 * k}" y="15">{escape(name)}</text>')
    for i, anchor in ((0, "start"), (1, "end")):
        parts.append(_text((_LEFT, _WIDE - 8)[i], _HIGH - 8, anchor, f"{edges[0][i]:.3g}"))
        parts.append(_text(_LEFT - 6, (_HIGH - _BELOW, _ABOVE + 8)[i], "end", f"{edges[1][i]:.3g}"))
    parts.append(_text((_LEFT + _WIDE) / 2, _HIGH - 8, "middle", names[0]))
    middle = (_HIGH - _BELOW) / 2
    parts.append(
        f'<text x="14" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 14 {middle:.0f})">'
        f"{escape(names[1])}</text>"
    )
    title = f"{names[1]} over {names[0]}"
    words = " and ".join(f"{len(group)} {name}" for name, group in groups)
    return _svg("scatter", title, f"{words}. They cover the same places if the fit is good.", parts)


def _ticks(low: float, high: float) -> list[float]:
    """Places on a logarithmic axis: 1, 2 and 5 of every decade, or the decades alone."""
    whole = range(math.floor(low), math.ceil(high) + 1)
    steps = (1,) if high - low > 2 else (1, 2, 5)
    every = [k + math.log10(s) for k in whole for s in steps]
    return [t for t in every if low - 1e-9 <= t <= high + 1e-9]


def _text(x: float, y: float, anchor: str, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _svg(name: str, title: str, words: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDE} {_HIGH}" role="img" aria-labelledby="{name}-title {name}-words">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-words">{escape(words)}</desc>{"".join(parts)}</svg>'
        f"<p class='note'>{escape(title)}. {escape(words)}</p>"
    )
