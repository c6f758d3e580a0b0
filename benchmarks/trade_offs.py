"""What speed costs in quality: precision of the products, and columns that a step looks at."""

from collections.abc import Iterator, Sequence

import numpy as np
from judge import Judge
from report import table
from timing import timed_fit

from sliceflow import ImageFlow, PictureOptions
from sliceflow.datasets import Pictures
from sliceflow.engine import transports

__all__ = ["tables"]

PRECISIONS = ("float16", "bfloat16", "float32")
MOST = (8192, 16_384, 32_768, 65_536, None)


def fitted(
    data: Pictures,
    labels: np.ndarray | None,
    m: int,
    n_steps: int,
    schedule: str,
    precision: str = "auto",
    **settings: object,
) -> tuple[ImageFlow, float]:
    """A flow and the seconds of its `fit`, everything compiled before by a short one."""
    common = dict(schedule=schedule, n_pixel_values=data.n_pixel_values, random_state=0, **settings)
    options = PictureOptions(n_knots=0, precision=precision)
    return timed_fit(data.images, labels, m, n_steps, options=options, **common)


def _table(rows: dict[str, dict[str, float]], floor: dict[str, float]) -> str:
    cells = [
        [name, f"{row['seconds']:.2f}", f"{row['sliced distance']:.4f}", f"{row['FD-PCA32']:.3f}"]
        for name, row in rows.items()
    ]
    real = ["real training pictures", "", f"{floor['sliced distance']:.4f}", f"{floor['FD-PCA32']:.3f}"]
    return table(["", "seconds", "sliced distance", "FD-PCA32"], [*cells, real])


def tables(
    train: Pictures,
    test: Pictures,
    schedule: str,
    m: int,
    n_steps: int,
    *,
    precisions: bool,
    most: bool,
    sizes: Sequence[int | None] = MOST,
) -> Iterator[tuple[str, dict, str]]:
    """The tables asked for, each as (title, numbers, text)."""
    judge = Judge.of(train.images, test.images, n_pixel_values=train.n_pixel_values)
    floor = judge.score(train.images)
    about = (
        f"`ImageFlow(schedule={schedule!r}, quality={n_steps})` on {len(train.images):,} pictures of "
        f"{train.name}; distances of {len(judge.test):,} samples to as many test pictures."
    )

    def row(labels: np.ndarray | None, m: int, **settings: object) -> dict[str, float]:
        flow, seconds = fitted(train, labels, m, n_steps, schedule, **settings)
        return {"seconds": seconds, **judge.score(flow.particles_)}

    if precisions:
        rows = {name: row(None, m, precision=name) for name in PRECISIONS}
        yield "Precision", rows, f"{about} M = {m:,}, unconditional.\n\n{_table(rows, floor)}"
    if most:
        rows = {
            f"{'all' if size is None else f'{size:,}'}": row(
                None, m, transport=transports.Histogram(128, most=size)
            )
            for size in sizes
        }
        text = f"{about} M = {m:,}, unconditional, 256 bins; columns looked at per step.\n\n"
        yield "Columns looked at", rows, text + _table(rows, floor)
        if train.labels is None:
            return
        double = 2 * len(train.images)  # equal shares of classes need no weights
        rows = {
            f"{'all' if size is None else f'{size:,}'}": row(
                train.labels, double, transport=transports.Histogram(128, most=size)
            )
            for size in sizes
        }
        text = f"{about} M = {double:,}, class labels, 1024 bins; columns looked at per step.\n\n"
        yield "Columns looked at, with labels", rows, text + _table(rows, floor)
