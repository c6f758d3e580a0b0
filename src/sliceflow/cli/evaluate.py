"""How good a run's samples are, with the floor beside every number; and their nearest data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sliceflow import metrics
from sliceflow.cli.data import Data

__all__ = ["Measure", "Measures", "draw_neighbours", "measure", "nearest"]

_MOST = 2000  # rows of each kind
_LEAST = 10  # of fewer nothing can be said
_WORK = 1e10  # rows times data times columns, for distances between all pairs


@dataclass(frozen=True)
class Measure:
    """One number of batched and of offline samples, what real rows score, and what would be best."""

    name: str
    batched: float
    offline: float | None
    floor: float | None
    ideal: str
    what: str


@dataclass(frozen=True)
class Measures:
    """All that was measured; `note` says with what."""

    measures: list[Measure]
    note: str

    def as_dict(self) -> dict[str, Any]:
        return {"measures": [asdict(m) for m in self.measures], "note": self.note}

    @classmethod
    def of(cls, value: dict[str, Any]) -> Measures:
        """What `as_dict` made."""
        return cls([Measure(**m) for m in value["measures"]], value["note"])

    def text(self) -> str:
        """A plain table."""
        if not self.measures:
            return self.note
        rows: list[tuple[str, ...]] = [("measure", "batched", "offline", "floor", "ideal")]
        rows += [
            (m.name, *map(number, (m.batched, m.offline, m.floor)), m.ideal) for m in self.measures
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = [
            "  ".join(
                c.ljust(w) if i == 0 else c.rjust(w)
                for i, (c, w) in enumerate(zip(r, widths, strict=True))
            )
            for r in rows
        ]
        return "\n".join((*lines, self.note))


def number(value: float | None) -> str:
    """Three digits, or a dash."""
    return "–" if value is None else f"{value:.3g}"


def measure(flow: Any, train: Data, test: Data | None, *, batched: np.ndarray) -> Measures:
    """Batched samples and new ones against rows that were not fitted.

    The floor is what rows of the training data score in the samples' place.
    """
    if test is None:
        return Measures([], "not measured: no rows were held out (--holdout, for 100 rows or more)")
    n = min(_MOST, len(batched), len(train.x))
    if min(n, len(test.x)) < _LEAST:
        return Measures(
            [], f"not measured: {n} samples and {len(test.x)} held-out rows; {_LEAST} are needed"
        )
    completes = getattr(flow, "observed", None) is not None
    real, unseen = train.rows(_some(train.x, _MOST)), train.rows(_some(test.x, _MOST), test.levels)
    kinds: list[np.ndarray | None] = [train.rows(_some(batched, n))]
    kinds.append(None if completes else train.rows(np.asarray(flow.sample(n, random_state=1))))
    kinds.append(train.rows(_some(train.x, n)))

    def each(score: Any) -> list[float | None]:
        return [None if rows is None else float(score(rows)) for rows in kinds]

    distances = each(lambda rows: metrics.sliced_wasserstein(rows, unseen))
    frechet = each(lambda rows: metrics.frechet_distance_pca(rows, unseen, real))
    whole = train.rows()
    few = int(np.clip(_WORK // whole.size, 50, _MOST))
    try:
        ratio = each(lambda rows: metrics.nn_ratio(rows[:few], whole, unseen[:few]))
    except ValueError:  # more than half of the held-out rows are in the training data
        ratio = [None, None, None]
    out = [
        _measure(
            "sliced distance", distances, "floor", "sliced 2-Wasserstein distance to held-out rows"
        ),
        _measure("FD-PCA32", frechet, "floor", "Fréchet distance to held-out rows, 32 components"),
    ]
    if ratio[0] is not None:
        ratio[2] = 1.0  # a training row is its own neighbour: here the floor are held-out rows
        what = "distance to the nearest training row, over a held-out row's; near 0 is copying"
        out.append(_measure("NN ratio", ratio, "1", what))
    note = (
        f"{n} samples and {len(unseen)} held-out rows; floor: {n} training rows in the samples' place"
    )
    return Measures(out, note)


def _measure(name: str, values: list[float | None], ideal: str, what: str) -> Measure:
    batched, offline, floor = values
    return Measure(name, batched or 0.0, offline, floor, ideal, what)


def _some(x: np.ndarray, n: int) -> np.ndarray:
    """At most n rows, evenly taken."""
    return x if len(x) <= n else x[np.linspace(0, len(x) - 1, n).astype(int)]


def nearest(samples: np.ndarray, train: Data, k: int) -> np.ndarray:
    """(n, k) numbers of the training rows nearest to each sample."""
    from sklearn.neighbors import NearestNeighbors

    finder = NearestNeighbors(n_neighbors=min(k, len(train.x)), algorithm="brute")
    finder.fit(train.rows().astype(np.float32))
    return np.asarray(finder.kneighbors(train.rows(samples).astype(np.float32), return_distance=False))


def draw_neighbours(samples: np.ndarray, train: Data, path: Path, n: int = 8, k: int = 5) -> None:
    """A row for each sample: itself, then apart its nearest training pictures. Tables have none."""
    if not train.pictures:
        return
    from PIL import Image

    from sliceflow.cli.grid import as_bytes, grid

    first = samples[:n]
    found = train.x[nearest(first, train, k)]
    ours = grid(as_bytes(first[:, None], train.levels), ground=None)
    theirs = grid(as_bytes(found, train.levels), ground=None)
    page = Image.new(ours.mode, (ours.width * 3 // 2 + theirs.width, ours.height))
    page.paste(ours, (0, 0))
    page.paste(theirs, (ours.width * 3 // 2, 0))
    page.save(path, optimize=True)
