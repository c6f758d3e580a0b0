"""What the picture examples share: arguments, data, grids of pictures. Nothing is fitted here."""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from sliceflow.datasets import Pictures, load

INK, BLUE, ORANGE = "black", "#0072B2", "#D55E00"  # told apart by every kind of eye
CHECKS = ((0.62, 0.78, 0.93), (0.84, 0.91, 0.97))  # stand for hidden pixels


def arguments(doc: str, **defaults: object) -> argparse.Namespace:
    """The command line of an example; `out` is made."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    sets = ("digits", "mnist", "fashion-mnist", "cifar10")
    parser.add_argument("--out", type=Path, default=Path("examples-out"), help="folder to write to")
    parser.add_argument("--dataset", choices=sets, default="digits")
    parser.add_argument("--data-root", type=Path, help="folder of the data sets; digits need none")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto: a GPU if there is one")
    parser.add_argument("--quality", type=int, default=30, help="steps per stage")
    parser.add_argument("--n-particles", type=int, default=2000)
    parser.set_defaults(**defaults)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    return args


def read(args: argparse.Namespace) -> tuple[Pictures, Pictures]:
    """The training and the test pictures."""
    return tuple(load(args.dataset, split, args.data_root) for split in ("train", "test"))


def settings(args: argparse.Namespace, train: Pictures) -> dict:
    """What every `ImageFlow` of an example is given."""
    chosen = {"quality": args.quality, "n_particles": args.n_particles, "device": args.device}
    return chosen | {"levels": train.levels, "random_state": 0}


def rows(images: np.ndarray, levels: int) -> np.ndarray:
    """Pictures as rows of numbers in [-1, 1], as the metrics want them."""
    return images.reshape(len(images), -1) / ((levels - 1) / 2) - 1


def by_class(images: np.ndarray, labels: np.ndarray, n: int) -> np.ndarray:
    """(classes, n, h, w[, c]): the first n pictures of each class; the first ones, not the best."""
    return np.stack([images[labels == label][:n] for label in np.unique(labels)])


def canvas(images: np.ndarray, levels: int, hidden: np.ndarray | None = None) -> np.ndarray:
    """One RGB picture of (rows, columns, h, w[, c]) pictures; grey ones are drawn as ink on paper.

    `hidden`, (rows, columns, h, w) booleans, are pixels to cover with checks.
    """
    grey = images.ndim == 4
    values = images / (levels - 1)
    values = np.repeat(1 - values[..., None], 3, axis=-1) if grey else values
    n_rows, n_columns, h, w = values.shape[:4]
    if hidden is not None:
        row, column = np.indices((h, w)) // max(1, h // 8)
        values = np.where(hidden[..., None], np.array(CHECKS)[(row + column) % 2], values)
    gap = max(1, h // 12)
    out = np.ones((n_rows, h + gap, n_columns, w + gap, 3))
    out[:, :h, :, :w] = values.transpose(0, 2, 1, 3, 4)
    return out.reshape(n_rows * (h + gap), n_columns * (w + gap), 3)[: -gap or None, : -gap or None]


def show(
    ax: plt.Axes,
    images: np.ndarray,
    levels: int,
    title: str = "",
    *,
    row_names: list[str] | None = None,
    column_names: list[str] | None = None,
    colour: str = INK,
    hidden: np.ndarray | None = None,
) -> None:
    """Draw a grid of pictures, enlarged, with the names of its rows and columns."""
    h, w = images.shape[2:4]
    ax.imshow(canvas(images, levels, hidden), interpolation="nearest")
    ax.set_title(title, fontsize=13, color=colour)
    for names, side, set_ticks in ((row_names, h, ax.set_yticks), (column_names, w, ax.set_xticks)):
        names = names or []
        set_ticks((side + max(1, h // 12)) * np.arange(len(names)) + side / 2 - 0.5, names, fontsize=10)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def panels(n: int, width: float, height: float) -> tuple[plt.Figure, np.ndarray]:
    """A figure of n panels side by side, with room between them."""
    fig, axes = plt.subplots(1, n, figsize=(width, height), layout="constrained")
    fig.get_layout_engine().set(wspace=0.06)
    return fig, axes


def save(fig: plt.Figure, path: Path) -> Path:
    """Write a figure and forget it."""
    fig.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(fig)
    return path
