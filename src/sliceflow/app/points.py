"""The tab of points: its steps as an animation. The flow itself runs in the browser."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from sliceflow.app.server import Answer, Request

__all__ = ["gif"]

MOST = 5000  # points of a step, and data
_SIDE, _FINER, _FRAMES = 360, 2, 60
_COLOURS = ("#0b62a8", "#c24e00", "#007a58", "#9a3c86")


def gif(request: Request) -> Answer:
    """An endless animation of steps: rings are data, dots are particles.

    The request has ``reach`` (the picture shows [−reach, reach]²), ``rows`` as triples x, y, colour,
    ``colours`` of the classes, and ``steps``: for every step and class all x, then all y.
    """
    from PIL import Image, ImageDraw

    reach, rows, colours, steps = _read(request.json)
    side = _SIDE * _FINER

    def box(x: float, y: float, radius: float) -> tuple[float, ...]:
        across, down = side * (x / reach + 1) / 2, side * (1 - y / reach) / 2
        return (across - radius, down - radius, across + radius, down + radius)

    ground, frames = Image.new("RGB", (side, side), "#ffffff"), []
    draw = ImageDraw.Draw(ground)
    for x, y, colour in rows:
        faint = tuple((int(_COLOURS[int(colour)][i : i + 2], 16) + 255) // 2 for i in (1, 3, 5))
        draw.ellipse(box(x, y, 4.5), outline=faint, width=2)
    for step in steps:
        frame = ground.copy()
        draw = ImageDraw.Draw(frame)
        for colour, points in zip(colours, step, strict=True):
            for x, y in points:
                draw.ellipse(box(x, y, 2.5), fill=_COLOURS[colour])
        small = frame.resize((_SIDE, _SIDE), Image.Resampling.BOX)
        frames.append(small.quantize(32, dither=Image.Dither.NONE))
    stream, times = io.BytesIO(), [80] * (len(frames) - 1) + [2000]
    more: dict[str, Any] = {"append_images": frames[1:], "duration": times, "loop": 0, "optimize": True}
    frames[0].save(stream, "GIF", save_all=True, **more)
    return Answer(stream.getvalue(), "image/gif")


def _read(asked: dict[str, Any]) -> tuple[float, Any, list[int], list[list[Any]]]:
    """The reach, the rows, the colour of each class, and for every step the points of each class."""
    try:
        reach, colours = float(asked["reach"]), [int(c) for c in asked["colours"]]
        rows = np.array(asked["rows"], dtype=float).reshape(-1, 3)
        steps = [[np.array(cloud, float).reshape(2, -1).T for cloud in step] for step in asked["steps"]]
        numbers = [np.array([reach]), rows, *(cloud for step in steps for cloud in step)]
        if not all(np.isfinite(x).all() for x in numbers) or reach <= 0:
            raise ValueError("a number is not finite, or reach is not positive")
        if not {*colours, *rows[:, 2].tolist()} <= {*range(len(_COLOURS))}:
            raise ValueError(f"colours are 0 to {len(_COLOURS) - 1}")
        if not steps or any(len(step) != len(colours) for step in steps):
            raise ValueError("there are no steps, or not of every class")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"these are no steps of points: {error!r}") from error
    if max(len(rows), *(sum(map(len, step)) for step in steps)) > MOST or len(steps) > _FRAMES:
        raise ValueError(f"a film has at most {_FRAMES} steps of {MOST} points")
    return reach, rows.tolist(), colours, [[cloud.tolist() for cloud in step] for step in steps]
