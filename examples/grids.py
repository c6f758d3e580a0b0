"""Sheets of pictures: grids side by side with their names, pixel by pixel. Nothing is fitted here."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from matplotlib.font_manager import FontProperties, findfont
from PIL import Image, ImageColor, ImageDraw, ImageFont

INK = "#000000"
BLUE = "#0072B2"
ORANGE = "#C04C00"  # told apart by every kind of eye
CHECKS = ((0.62, 0.78, 0.93), (0.84, 0.91, 0.97))  # stand for hidden pixels


@dataclass(frozen=True)
class Panel:
    """A grid (rows, columns, h, w[, c]) and what is written around it.

    `hidden`, (h, w) booleans, are pixels to cover with checks. A `note` stands below the grid.
    """

    images: np.ndarray
    title: str = ""
    colour: str = INK
    row_names: Sequence[str] = ()
    note: str = ""
    hidden: np.ndarray | None = None


def by_class(images: np.ndarray, labels: np.ndarray, n: int) -> np.ndarray:
    """(classes, n, h, w[, c]): the first n pictures of each class; the first ones, not the best."""
    return np.stack([images[labels == label][:n] for label in np.unique(labels)])


def completions(
    given: np.ndarray,
    completed: np.ndarray,
    known: np.ndarray,
    row_names: Sequence[str] = (),
) -> list[Panel]:
    """Panels of pictures with only the `known` pixels, their completions (n, k, …), the originals."""
    k = completed.shape[1]
    return [
        Panel(given[:, None], "given", row_names=row_names, hidden=~known),
        Panel(completed, f"{k} completions", BLUE),
        Panel(given[:, None], "original"),
    ]


def sheet(path: Path, panels: Sequence[Panel], n_pixel_values: int, title: str) -> Path:
    """Write panels side by side under a title: .jpg for photographs, else .png."""
    grids = [_grid(panel, n_pixel_values) for panel in panels]
    # Wide sheets are shown smaller: their letters are larger.
    size = max(16, sum(grid.width for grid in grids) // 64)
    plain = _font(size)
    bold = _font(size, "bold")
    line = size * 5 // 4
    near = size // 2
    between = size * 3 // 2

    def wide(texts: Sequence[str]) -> int:
        return max(
            (int(plain.getlength(text)) + 1 for text in texts if text), default=0
        )

    names = [wide(panel.row_names) + near * bool(panel.row_names) for panel in panels]
    # A title may be wider than its grid.
    widths = [
        max(g.width, wide((p.title, p.note)))
        for g, p in zip(grids, panels, strict=True)
    ]
    inner = sum(names) + sum(widths) + between * (len(panels) - 1)
    lines = _wrapped(title, inner, bold)
    top = near + line * len(lines) + near
    first = top + line * any(panel.title for panel in panels) + near // 2
    below = first + max(grid.height for grid in grids) + near // 2
    bottom = below + line * any(panel.note for panel in panels) + near
    page = Image.new("RGB", (inner + 2 * near, bottom), "white")
    draw = ImageDraw.Draw(page)
    for i, text in enumerate(lines):
        draw.text((near, near + i * line), text, INK, bold)
    left = near
    for panel, grid, before, width in zip(panels, grids, names, widths, strict=True):
        left += before
        middle = left + width // 2
        x = middle - grid.width // 2
        page.paste(grid, (x, first))
        draw.text((middle, top), panel.title, panel.colour, plain, anchor="ma")
        draw.text((middle, below), panel.note, panel.colour, plain, anchor="ma")
        pitch = grid.height / len(panel.images)
        for i, name in enumerate(panel.row_names):
            draw.text(
                (x - near, first + (i + 0.5) * pitch), name, INK, plain, anchor="rm"
            )
        left += width + between
    if path.suffix == ".jpg":
        page.save(path, quality=88, subsampling=0, optimize=True)
    else:
        grey = panels[0].images.ndim == 4
        (_indexed(page) if grey else page).save(path, optimize=True)
    return path


def _grid(panel: Panel, n_pixel_values: int) -> Image.Image:
    """The pictures of a panel as one; grey ones are drawn as ink on paper."""
    images = panel.images
    grey = images.ndim == 4
    values = images / (n_pixel_values - 1)
    values = np.repeat(1 - values[..., None], 3, axis=-1) if grey else values
    n_rows, n_columns, h, w = values.shape[:4]
    if panel.hidden is not None:
        row, column = np.indices((h, w)) // max(1, h // 8)
        values = np.where(
            panel.hidden[..., None], np.array(CHECKS)[(row + column) % 2], values
        )
    gap = max(1, h // 12)
    out = np.ones((n_rows, h + gap, n_columns, w + gap, 3))
    out[:, :h, :, :w] = values.transpose(0, 2, 1, 3, 4)
    out = out.reshape(n_rows * (h + gap), n_columns * (w + gap), 3)[:-gap, :-gap]
    picture = Image.fromarray((out * 255).round().astype(np.uint8))
    zoom = max(1, round(56 / h))
    smooth = Image.Resampling.NEAREST if grey else Image.Resampling.BICUBIC
    return picture.resize((zoom * picture.width, zoom * picture.height), smooth)


def _indexed(page: Image.Image) -> Image.Image:
    """The page in 64 greys, 16 shades of each colour of text, and the checks: half the bytes."""
    shades = (INK, 64), (BLUE, 16), (ORANGE, 16)
    ramps = [np.linspace((255, 255, 255), ImageColor.getrgb(c), n) for c, n in shades]
    palette = np.concatenate((*ramps, np.array(CHECKS) * 255)).round()
    packed = np.asarray(page).astype(int) @ (1 << 16, 1 << 8, 1)
    used, index = np.unique(packed, return_inverse=True)
    colours = np.stack((used >> 16, used >> 8 & 255, used & 255), axis=1)
    nearest = np.square(colours[:, None] - palette).sum(axis=2).argmin(axis=1)
    out = Image.fromarray(nearest.astype(np.uint8)[index].reshape(packed.shape))
    out.putpalette(palette.astype(np.uint8).tobytes())
    return out


@cache
def _font(size: int, weight: str = "normal") -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(findfont(FontProperties(weight=weight)), size)


def _wrapped(text: str, width: int, font: ImageFont.FreeTypeFont) -> list[str]:
    """Lines of at most `width` pixels."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
