"""The tab of points: its steps as an animation. The flow itself runs in the browser."""

from __future__ import annotations

import io
from typing import Any

from sliceflow.app.server import Answer, Request

__all__ = ["gif"]

_SIDE, _FINER, _FRAMES, _MOST = 360, 2, 60, 5000
_COLOURS = ("#0b62a8", "#c24e00", "#007a58", "#9a3c86")
_GROUND = "#ffffff"


def gif(request: Request) -> Answer:
    """An endless animation of steps: rings are data, dots are particles.

    The request has ``reach`` (the picture shows [−reach, reach]²), ``rows`` as triples x, y, colour,
    ``colours`` of the classes, and ``steps``: for every step and class all x, then all y.
    """
    from PIL import Image, ImageDraw

    asked = request.json
    try:
        reach, colours = float(asked["reach"]), [_COLOURS[int(c)] for c in asked["colours"]]
        rows = [(float(x), float(y), _COLOURS[int(c)]) for x, y, c in asked["rows"]][:_MOST]
        steps = [_pairs(step) for step in asked["steps"][:_FRAMES]]
        if not steps or reach <= 0 or any(len(step) != len(colours) for step in steps):
            raise ValueError("there are no steps, or not of every class")
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"these are no steps of points: {error!r}") from error
    side = _SIDE * _FINER

    def place(x: float, y: float, radius: float) -> tuple[float, ...]:
        across, down = side * (x / reach + 1) / 2, side * (1 - y / reach) / 2
        return (across - radius, down - radius, across + radius, down + radius)

    ground = Image.new("RGB", (side, side), _GROUND)
    draw = ImageDraw.Draw(ground)
    for x, y, colour in rows:
        draw.ellipse(place(x, y, 4.5), outline=_faint(colour), width=2)
    frames = []
    for step in steps:
        frame = ground.copy()
        draw = ImageDraw.Draw(frame)
        for colour, points in zip(colours, step, strict=True):
            for x, y in points:
                draw.ellipse(place(x, y, 2.5), fill=colour)
        small = frame.resize((_SIDE, _SIDE), Image.Resampling.BOX)
        frames.append(small.quantize(32, dither=Image.Dither.NONE))
    stream = io.BytesIO()
    times = [80] * (len(frames) - 1) + [2000]
    frames[0].save(
        stream, "GIF", save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=True
    )
    return Answer(stream.getvalue(), "image/gif")


def _pairs(step: Any) -> list[list[tuple[float, float]]]:
    """The points of every class."""
    clouds = [[float(v) for v in cloud][: 2 * _MOST] for cloud in step]
    return [list(zip(c[: len(c) // 2], c[len(c) // 2 :], strict=True)) for c in clouds]


def _faint(colour: str) -> tuple[int, ...]:
    return tuple((int(colour[i : i + 2], 16) + 255) // 2 for i in (1, 3, 5))
