"""Sheets of pictures: grids side by side with their names. Nothing is fitted here."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from matplotlib.font_manager import FontProperties, findfont
from PIL import Image, ImageColor, ImageDraw, ImageFont

# Told apart by every kind of eye.
INK = "#000000"
BLUE = "#0072B2"
ORANGE = "#C04C00"
# Two shades, as shares of red, green and blue, of the checks over hidden pixels.
CHECKS = ((0.62, 0.78, 0.93), (0.84, 0.91, 0.97))

PICTURE_HEIGHT = 56  # about, in pixels of the sheet: small pictures are enlarged
MIN_FONT_SIZE = 16
# Wide sheets are shown smaller: their letters are larger, one pixel for so many.
WIDTH_PER_FONT_PIXEL = 64
N_GRAYS = 64  # of a sheet of gray pictures
N_SHADES = 16  # of each color of its text


@dataclass(frozen=True)
class Panel:
    """A grid of pictures and what is written around it."""

    images: np.ndarray  # (rows, columns, h, w[, c])
    title: str = ""
    color: str = INK  # of the title and the note
    row_names: Sequence[str] = ()
    note: str = ""  # below the grid
    hidden: np.ndarray | None = None  # (h, w), True where checks cover a pixel


def by_class(images: np.ndarray, labels: np.ndarray, n: int) -> np.ndarray:
    """The first n pictures of each class, not the best: (classes, n, h, w[, c])."""
    return np.stack([images[labels == label][:n] for label in np.unique(labels)])


def completions(
    given: np.ndarray,
    completed: np.ndarray,
    known: np.ndarray,
    row_names: Sequence[str] = (),
) -> list[Panel]:
    """Panels of what is known of pictures, of their completions, and of the originals.

    Parameters
    ----------
    given : pictures (n, h, w[, c])
    completed : k completions of each, (n, k, h, w[, c])
    known : (h, w), True where a pixel is known
    """
    k = completed.shape[1]
    return [
        Panel(given[:, None], "given", row_names=row_names, hidden=~known),
        Panel(completed, f"{k} completions", BLUE),
        Panel(given[:, None], "original"),
    ]


def sheet(path: Path, panels: Sequence[Panel], n_pixel_values: int, title: str) -> Path:
    """Write panels side by side under a title: .jpg for photographs, else .png."""
    grids = [_draw_grid(panel, n_pixel_values) for panel in panels]
    total_width = sum(grid.width for grid in grids)
    font_size = max(MIN_FONT_SIZE, total_width // WIDTH_PER_FONT_PIXEL)
    font = _font(font_size)
    bold = _font(font_size, "bold")
    line_height = font_size * 5 // 4
    margin = font_size // 2
    gap = font_size * 3 // 2  # between panels

    name_widths = []  # of the names of the rows, left of each grid
    panel_widths = []  # of the grid, or of its title or note, if these are wider
    for panel, grid in zip(panels, grids, strict=True):
        name_width = 0
        if panel.row_names:
            name_width = _text_width(panel.row_names, font) + margin
        name_widths.append(name_width)
        text_width = _text_width((panel.title, panel.note), font)
        panel_widths.append(max(grid.width, text_width))
    inner_width = sum(name_widths) + sum(panel_widths) + gap * (len(panels) - 1)

    # From top to bottom: the title, the panels' titles, the grids, the notes.
    title_lines = _wrapped(title, inner_width, bold)
    panel_title_y = margin + line_height * len(title_lines) + margin
    grid_y = panel_title_y + margin // 2
    if any(panel.title for panel in panels):
        grid_y += line_height
    note_y = grid_y + max(grid.height for grid in grids) + margin // 2
    height = note_y + margin
    if any(panel.note for panel in panels):
        height += line_height

    page = Image.new("RGB", (inner_width + 2 * margin, height), "white")
    draw = ImageDraw.Draw(page)
    for i, text in enumerate(title_lines):
        draw.text((margin, margin + i * line_height), text, INK, bold)
    left = margin
    for panel, grid, name_width, width in zip(
        panels, grids, name_widths, panel_widths, strict=True
    ):
        left += name_width
        middle = left + width // 2
        grid_x = middle - grid.width // 2
        page.paste(grid, (grid_x, grid_y))
        draw.text((middle, panel_title_y), panel.title, panel.color, font, anchor="ma")
        draw.text((middle, note_y), panel.note, panel.color, font, anchor="ma")
        row_height = grid.height / len(panel.images)
        for i, name in enumerate(panel.row_names):
            row_middle = grid_y + (i + 0.5) * row_height
            draw.text((grid_x - margin, row_middle), name, INK, font, anchor="rm")
        left += width + gap
    _save(page, path, gray=panels[0].images.ndim == 4)
    return path


def _save(page: Image.Image, path: Path, gray: bool) -> None:
    if path.suffix == ".jpg":
        page.save(path, quality=88, subsampling=0, optimize=True)
        return
    if gray:
        page = _indexed(page)
    page.save(path, optimize=True)


def _draw_grid(panel: Panel, n_pixel_values: int) -> Image.Image:
    """The pictures of a panel as one; gray ones are drawn as ink on paper."""
    gray = panel.images.ndim == 4
    values = panel.images / (n_pixel_values - 1)
    if gray:
        values = np.repeat(1 - values[..., None], 3, axis=-1)
    n_rows, n_columns, h, w, _ = values.shape
    if panel.hidden is not None:
        row, column = np.indices((h, w)) // max(1, h // 8)
        checks = np.array(CHECKS)[(row + column) % 2]
        values = np.where(panel.hidden[..., None], checks, values)
    gap = max(1, h // 12)
    cells = np.ones((n_rows, h + gap, n_columns, w + gap, 3))
    cells[:, :h, :, :w] = values.transpose(0, 2, 1, 3, 4)
    grid = cells.reshape(n_rows * (h + gap), n_columns * (w + gap), 3)
    without_last_gap = grid[:-gap, :-gap]
    picture = Image.fromarray((without_last_gap * 255).round().astype(np.uint8))
    zoom = max(1, round(PICTURE_HEIGHT / h))
    resampling = Image.Resampling.NEAREST if gray else Image.Resampling.BICUBIC
    return picture.resize((zoom * picture.width, zoom * picture.height), resampling)


def _indexed(page: Image.Image) -> Image.Image:
    """The page with few colors, which takes half the bytes.

    These are 64 grays, 16 shades of each color of text, and the checks.
    """
    palette = np.concatenate(
        (
            _shades(INK, N_GRAYS),
            _shades(BLUE, N_SHADES),
            _shades(ORANGE, N_SHADES),
            np.array(CHECKS) * 255,
        )
    ).round()
    packed = np.asarray(page).astype(int) @ (1 << 16, 1 << 8, 1)  # one number a pixel
    used, index = np.unique(packed, return_inverse=True)
    colors = np.stack((used >> 16, used >> 8 & 255, used & 255), axis=1)
    nearest = np.square(colors[:, None] - palette).sum(axis=2).argmin(axis=1)
    indexed = Image.fromarray(nearest.astype(np.uint8)[index].reshape(packed.shape))
    indexed.putpalette(palette.astype(np.uint8).tobytes())
    return indexed


def _shades(color: str, n: int) -> np.ndarray:
    """n shades (n, 3) from white to a color."""
    return np.linspace((255, 255, 255), ImageColor.getrgb(color), n)


@cache
def _font(size: int, weight: str = "normal") -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(findfont(FontProperties(weight=weight)), size)


def _text_width(texts: Sequence[str], font: ImageFont.FreeTypeFont) -> int:
    """The width in pixels of the widest text; 0 if all are empty."""
    widths = [int(font.getlength(text)) + 1 for text in texts if text]
    return max(widths, default=0)


def _wrapped(text: str, width: int, font: ImageFont.FreeTypeFont) -> list[str]:
    """A text as lines of at most `width` pixels."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
