"""The picture at the top of README: noise becomes two moons, and noise becomes digits.

    python examples/opening.py --out examples-out

writes `opening.gif`. A listener keeps the points after every step; `evolution` has the digits.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from sklearn.datasets import load_digits, make_moons
from sklearn.preprocessing import StandardScaler

from sliceflow import ImageFlow, SlicedWassersteinFlow
from sliceflow.engine.events import Event

SIDE = 300
GAP = 20
FRAMES = 36
DATA = "#B0B0B0"
PARTICLES = ("#0072B2", "#D55E00")


def main() -> None:
    """Fit both, and write the animation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("examples-out"), help="folder to write to"
    )
    parser.add_argument(
        "--quality", type=int, default=30, help="steps per stage of the digits"
    )
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    moons = moons_frames()
    digits = digits_frames(given.quality)
    frames = [
        beside(moons[len(moons) * k**2 // FRAMES**2], digits[min(k, len(digits) - 1)])
        for k in range(FRAMES)  # the first steps are the longest
    ]
    frames.append(beside(moons[-1], digits[-1]))
    path = given.out / "opening.gif"
    palette = beside(moons[0], digits[len(digits) // 2]).quantize(48)
    first, *rest = [
        frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames
    ]
    times = [80] * len(rest) + [2000]  # milliseconds; the end stays
    first.save(
        path, save_all=True, append_images=rest, duration=times, loop=0, optimize=True
    )
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


def moons_frames() -> list[Image.Image]:
    """Two classes of points on their way to two moons."""
    X, y = make_moons(600, noise=0.06, random_state=0)
    units = StandardScaler().fit(X)
    kept = []

    def keep(event: Event) -> None:
        kept.append(event.particles.T.cpu().numpy().copy())

    flow = SlicedWassersteinFlow(n_particles=2000, random_state=0)
    flow.fit(X, y, listeners=keep)
    rows = units.transform(X)
    start = np.random.default_rng(0).normal(size=(2000, 2))
    return [
        _points(rows, z[::3], flow.particle_conditions_[::3]) for z in [start, *kept]
    ]


def _points(rows: np.ndarray, z: np.ndarray, classes: np.ndarray) -> Image.Image:
    twice = 2 * SIDE  # drawn large, and made smaller: smooth dots
    picture = Image.new("RGB", (twice, twice), "white")
    draw = ImageDraw.Draw(picture)
    colours = [DATA] * len(rows) + [PARTICLES[int(c)] for c in classes]
    for (a, b), colour in zip(np.concatenate((rows, z)), colours, strict=True):
        x = twice * (0.5 + a / 6)
        y = twice * (0.5 - b / 6)
        r = 4 if colour == DATA else 5
        draw.ellipse((x - r, y - r, x + r, y + r), fill=colour)
    return picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def digits_frames(quality: int) -> list[Image.Image]:
    """36 digits of ten classes on their way from noise."""
    digits = load_digits()
    flow = ImageFlow(n_pixel_values=17, quality=quality, random_state=0)
    flow.fit(digits.images.astype("uint8"), digits.target)
    y = np.arange(36) * 10 // 36
    out = []
    for pictures in flow.evolution(36, y=y, random_state=1, n_frames=FRAMES):
        cells = np.pad(
            (pictures * (255 / 16)).round().astype(np.uint8), ((0, 0), (1, 1), (1, 1))
        )
        sheet = Image.fromarray(
            255 - cells.reshape(6, 6, 10, 10).swapaxes(1, 2).reshape(60, 60)
        )
        out.append(sheet.resize((SIDE, SIDE), Image.Resampling.NEAREST).convert("RGB"))
    return out


def beside(left: Image.Image, right: Image.Image) -> Image.Image:
    """Two pictures side by side."""
    whole = Image.new("RGB", (2 * SIDE + GAP, SIDE), "white")
    whole.paste(left, (0, 0))
    whole.paste(right, (SIDE + GAP, 0))
    return whole


if __name__ == "__main__":
    main()
