"""The picture at the top of README: noise becomes two moons, and noise becomes digits.

    python examples/opening.py --out examples-out

writes `opening.gif`. A listener keeps the points after every step; `evolution` has the
digits.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from sklearn.datasets import load_digits, make_moons
from sklearn.preprocessing import StandardScaler

from sliceflow import ImageFlow, SlicedWassersteinFlow
from sliceflow.engine.events import FlowEvent

SIDE = 300  # of each of the two pictures, in pixels
GAP = 20  # between them
N_FRAMES = 36
FRAME_MILLISECONDS = 80
LAST_FRAME_MILLISECONDS = 2000
N_COLORS = 48  # of the file, which is smaller with few
N_PARTICLES = 2000
N_DIGITS = 36
DATA_COLOR = "#B0B0B0"
CLASS_COLORS = ("#0072B2", "#D55E00")


def main() -> None:
    """Fit both, and write the animation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("examples-out"), help="folder to write to"
    )
    parser.add_argument("--steps-per-stage", type=int, default=30, help="of the digits")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    moons = moons_frames()
    digits = digits_frames(args.steps_per_stage)
    frames = []
    for k in range(N_FRAMES):
        # The first steps are the longest: the moons run through them slowly.
        moons_index = len(moons) * k**2 // N_FRAMES**2
        digits_index = min(k, len(digits) - 1)
        frames.append(side_by_side(moons[moons_index], digits[digits_index]))
    frames.append(side_by_side(moons[-1], digits[-1]))

    # One palette for all frames, of one that has all colors.
    typical = side_by_side(moons[0], digits[len(digits) // 2])
    palette = typical.quantize(N_COLORS)
    quantized = [
        frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames
    ]
    path = args.out / "opening.gif"
    quantized[0].save(
        path,
        save_all=True,
        append_images=quantized[1:],
        duration=[FRAME_MILLISECONDS] * N_FRAMES + [LAST_FRAME_MILLISECONDS],
        loop=0,
        optimize=True,
    )
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


def moons_frames() -> list[Image.Image]:
    """Two classes of points on their way to two moons."""
    X, y = make_moons(600, noise=0.06, random_state=0)
    positions = [np.random.default_rng(0).normal(size=(N_PARTICLES, 2))]

    def keep(event: FlowEvent) -> None:
        positions.append(event.particles.T.cpu().numpy().copy())

    flow = SlicedWassersteinFlow(n_particles=N_PARTICLES, random_state=0)
    flow.fit(X, y, listeners=keep)
    # Particles are in standardized units on their way.
    rows = StandardScaler().fit_transform(X)
    classes = flow.particle_conditions_
    # Every third particle is shown.
    return [draw_points(rows, particles[::3], classes[::3]) for particles in positions]


def draw_points(
    rows: np.ndarray, particles: np.ndarray, classes: np.ndarray
) -> Image.Image:
    """The data as gray dots, particles over them in the colors of their classes."""
    side = 2 * SIDE  # drawn large, and made smaller: smooth dots
    picture = Image.new("RGB", (side, side), "white")
    draw = ImageDraw.Draw(picture)

    def dot(point: np.ndarray, radius: int, color: str) -> None:
        x = side * (0.5 + point[0] / 6)
        y = side * (0.5 - point[1] / 6)
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)

    for point in rows:
        dot(point, 4, DATA_COLOR)
    for point, label in zip(particles, classes, strict=True):
        dot(point, 5, CLASS_COLORS[int(label)])
    return picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def digits_frames(steps_per_stage: int) -> list[Image.Image]:
    """36 digits of ten classes on their way from noise."""
    digits = load_digits()
    flow = ImageFlow(n_pixel_values=17, steps_per_stage=steps_per_stage, random_state=0)
    flow.fit(digits.images.astype("uint8"), digits.target)
    y = np.arange(N_DIGITS) * 10 // N_DIGITS
    frames = flow.evolution(N_DIGITS, y=y, random_state=1, n_snapshots=N_FRAMES)
    return [draw_digits(pictures) for pictures in frames]


def draw_digits(pictures: np.ndarray) -> Image.Image:
    """36 digits (36, 8, 8) with 17 values as a sheet of 6 × 6, black on white."""
    ink = (pictures * (255 / 16)).round().astype(np.uint8)
    cells = np.pad(ink, ((0, 0), (1, 1), (1, 1)))  # (36, 10, 10)
    sheet = cells.reshape(6, 6, 10, 10).swapaxes(1, 2).reshape(60, 60)
    picture = Image.fromarray(255 - sheet)
    return picture.resize((SIDE, SIDE), Image.Resampling.NEAREST).convert("RGB")


def side_by_side(left: Image.Image, right: Image.Image) -> Image.Image:
    """Two pictures side by side."""
    whole = Image.new("RGB", (2 * SIDE + GAP, SIDE), "white")
    whole.paste(left, (0, 0))
    whole.paste(right, (SIDE + GAP, 0))
    return whole


if __name__ == "__main__":
    main()
