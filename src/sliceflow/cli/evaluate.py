"""How good a run's samples are, with the floor beside every number; and pictures nearest to them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sliceflow import metrics
from sliceflow.cli.data import Data
from sliceflow.datasets import sets
from sliceflow.metrics.floors import few

__all__ = ["Measure", "Measures", "draw_neighbours", "measure"]

_MOST = 2000  # rows of each kind
_LEAST = 10  # of fewer nothing can be said
_WORK = 1e11  # rows times data times columns, for distances between all pairs
_LEARNT = 5000  # rows that the classifier of `accuracy` learns from, without a GPU
_HELD_OUT = "held-out rows"
_TREES = 20  # of the two-sample test


@dataclass(frozen=True)
class Measure:
    """One number of batched and of offline samples, what real rows score, and what would be best."""

    name: str
    batched: float | None
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


def measure(
    flow: Any,
    train: Data,
    test: Data | None,
    *,
    batched: np.ndarray,
    labels: np.ndarray | None = None,
    called: str = _HELD_OUT,
) -> Measures:
    """Batched samples and new ones against other rows; `labels` are the batched ones'.

    The floor is what rows of the training data score in the samples' place. `called` is what the other
    rows are: those of a run were not fitted.
    """
    from sliceflow.devices import resolve_device  # torch, which a report does without
    from sliceflow.errors import from_tensor

    if test is None:
        return Measures([], "not measured: no rows were held out (--holdout, for 100 rows or more)")
    n = min(_MOST, len(batched), len(train.x))
    if min(n, len(test.x)) < _LEAST:
        return Measures(
            [], f"not measured: {n} samples and {len(test.x)} {called}; {_LEAST} are needed"
        )
    device = str(resolve_device(flow.device))
    by_class = train.labels is not None and getattr(flow, "classes_", None) is not None
    predict, said = _recogniser(train, test, device) if by_class else (None, "")
    whole = train.rows()
    battery = metrics.Battery(
        whole,
        train.rows(test.x),
        predict=predict,
        test_labels=test.labels,
        n_trees=_TREES,
        most=n,
        neighbours_of=int(np.clip(_WORK // whole.size, 50, _MOST)),
        device=device,
    )
    kept = None if labels is None else few(labels, n)
    scores = [battery.score(train.rows(few(batched, n)), kept)]
    if getattr(flow, "observed", None) is not None:
        scores.append({})  # such a flow completes pictures; it makes none
    else:
        asked = few(train.labels, n) if by_class and train.labels is not None else None
        made = np.asarray(from_tensor(flow.sample(n, y=asked, random_state=1)))
        scores.append(battery.score(train.rows(made), asked))
    out = [
        Measure(
            name,
            scores[0].get(name),
            scores[1].get(name),
            battery.floors.get(name),
            ideal,
            what
            if called == _HELD_OUT
            else what.replace("a held-out", "another").replace("held-out", "other"),
        )
        for name, (ideal, what) in metrics.MEANING.items()
        if any(name in score for score in scores)
    ]
    unseen = battery.as_dict()["held-out rows"]
    note = f"{n} samples and {unseen} {called}; floor: {n} training rows in the samples' place"
    return Measures(out, note + said)


def _recogniser(train: Data, test: Data, device: str) -> tuple[Any, str]:
    """What tells the classes of rows apart, trained on the data, and a word on it.

    On a GPU a network for pictures, kept in the cache; else a support vector machine.
    """
    if train.pictures and device.startswith("cuda") and train.x.dtype.kind in "iu":
        cache = sets.root_folder(None) / "classifiers"
        given = (train.x, train.labels, test.x, test.labels)
        network = metrics.train_classifier(
            *given, n_pixel_values=train.n_pixel_values, device=device, cache=cache
        )

        def predict(rows: np.ndarray) -> np.ndarray:  # back from `Data.rows`
            pixels = ((rows + 1) * (train.brightest / 2)).round().astype(train.x.dtype)
            return network.predict(pixels.reshape(-1, *train.x.shape[1:]))

        return predict, f"; accuracy by a network that learnt from {len(train.x)} pictures"
    from sklearn.svm import SVC

    some = train.part(few(np.arange(len(train.x)), _LEARNT))
    machine = SVC(C=10).fit(train.rows(some.x), some.labels)
    return machine.predict, f"; accuracy by a support vector machine of {len(some.x)} rows"


def draw_neighbours(
    samples: np.ndarray, train: Data, path: Path, *, mirror: bool, n: int = 8, k: int = 5
) -> None:
    """A row for each sample: itself, then apart its nearest training pictures. Tables have none.

    With `mirror`, training pictures are turned where that brings them nearer.
    """
    if not train.pictures:
        return
    from PIL import Image

    from sliceflow.cli.grid import as_bytes, grid

    first = samples[:n]
    found, _ = metrics.nearest_pictures(first, train.x, min(k, len(train.x)), mirror=mirror)
    ours = grid(as_bytes(first[:, None], train.n_pixel_values), ground=None)
    theirs = grid(as_bytes(found, train.n_pixel_values), ground=None)
    page = Image.new(ours.mode, (ours.width * 3 // 2 + theirs.width, ours.height))
    page.paste(ours, (0, 0))
    page.paste(theirs, (ours.width * 3 // 2, 0))
    page.save(path, optimize=True)
