"""``sliceflow evaluate``: the quality of a run's samples, with the floor beside every number."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sliceflow import metrics
from sliceflow.cli.data import Data, read
from sliceflow.cli.failures import Failed, WrongUsage
from sliceflow.cli.run_folder import RunFolder
from sliceflow.cli.settings import Settings
from sliceflow.datasets import available, sets
from sliceflow.metrics.floors import subsample

__all__ = ["Measure", "Measures", "draw_neighbours", "evaluate_run", "measure", "number"]

_MOST = 2000  # rows of each kind
_LEAST = 10  # with fewer, no measure is meaningful
_WORK = 1e11  # rows times data times columns, for distances between all pairs
_TO_LEARN = 5000  # rows that the classifier of `accuracy` is trained on, without a GPU
_HELD_OUT = "held-out rows"
_TREES = 20  # of the two-sample test


@dataclass(frozen=True)
class Measure:
    """One number for batched and for offline samples, what real rows score, and the ideal value."""

    name: str
    batched: float | None
    offline: float | None
    floor: float | None
    ideal: str
    what: str


@dataclass(frozen=True)
class Measures:
    """All measures; `note` says what the samples were compared with, `copying` that they are copies."""

    measures: list[Measure]
    note: str
    copying: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """A plain table."""
        if not self.measures:
            return self.note
        rows: list[tuple[str, ...]] = [("measure", "batched", "offline", "floor", "ideal")]
        rows += [
            (m.name, *map(number, (m.batched, m.offline, m.floor)), m.ideal) for m in self.measures
        ]
        first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
        lines = [
            "  ".join((name.ljust(first), *(c.rjust(w) for c, w in zip(cells, others, strict=True))))
            for name, *cells in rows
        ]
        return "\n".join((*lines, self.note, *([f"warning: {self.copying}"] if self.copying else ())))


def number(value: float | None) -> str:
    """Three digits, or a dash."""
    return "–" if value is None else f"{value:.3g}"


def evaluate_run(run: Path, against: str | None, root: Path | None, device: str) -> Measures:
    """Measure the run in a folder.

    `against` are other data to compare with than the run's own held-out rows: a set, a path, or the
    folder that holds the run's own set. Without it the result is saved in the run folder.
    """
    folder = RunFolder(run)
    folder.check_finished()
    settings = Settings.of(folder)
    try:
        train, test = read(settings.source, **settings.reading(root))
    except Failed as error:
        raise Failed(
            f"the data of the run cannot be read again: {error}",
            "run this where the run was made, with its data in place (--data-root for a named set)",
        ) from error
    called = _HELD_OUT
    if against is not None:
        test, called = _read_against(settings, against, root, train), f"rows of {against}"
    flow: Any = RunFolder.model(run, device)
    samples = folder.samples()
    batched = samples["images" if train.pictures else "x"]
    labels = samples.get("labels")
    measures = measure(flow, train, test, settings, batched=batched, labels=labels, called=called)
    if against is not None and test is not None:
        notes = (measures.note, *_note_on_fitted(test, train), *test.notes)
        return replace(measures, note="; ".join(notes))
    folder.write_json("evaluation.json", measures.as_dict())
    draw_neighbours(batched, train, folder / "neighbours.png", mirror=settings.mirror)
    return measures


def _read_against(settings: Settings, against: str, root: Path | None, train: Data) -> Data:
    """Data to compare with: the test split of a set, all of anything else."""
    path = Path(against).expanduser()
    if settings.source in sets.SETS and path.is_dir() and available(path)[settings.source]:
        against, root = settings.source, path
    resized = path.is_dir() or against == "celeba"
    whole, held_out = read(
        against,
        root=root,
        size=settings.size if resized else None,
        columns=train.columns,
        skip_broken=settings.skip_broken,
        holdout=0,
    )
    test = whole if held_out is None else held_out
    if test.x.shape[1:] != train.x.shape[1:]:
        raise WrongUsage(
            f"--against {against} has {test.what}, the run {train.what}",
            "pass data like those that were fitted",
        )
    # An array file of whole pixels does not say how many values they have.
    unsaid = path.suffix.lower() in (".npy", ".npz") and test.x.dtype.kind in "iu"
    fewer = train.x.dtype.kind in "iu" and train.n_pixel_values < test.n_pixel_values
    if train.pictures and unsaid and fewer and test.x.max() < train.n_pixel_values:
        highest = train.n_pixel_values - 1
        note = f"its pixels, 0 to {int(test.x.max())}, are taken as the run's, 0 to {highest}"
        test = replace(test, n_pixel_values=train.n_pixel_values, notes=(note,))
    return test.like(train)


def _note_on_fitted(test: Data, train: Data) -> list[str]:
    """A note on rows that were fitted: they say nothing about new ones."""
    fitted = {row.tobytes() for row in np.ascontiguousarray(train.x)}
    both = sum(row.tobytes() in fitted for row in np.ascontiguousarray(test.x.astype(train.x.dtype)))
    return [f"not held out: {both} of the {len(test.x)} rows were fitted"] if both else []


def measure(
    flow: Any,
    train: Data,
    test: Data | None,
    settings: Settings,
    *,
    batched: np.ndarray,
    labels: np.ndarray | None = None,
    called: str = _HELD_OUT,
) -> Measures:
    """Compare batched samples, with their `labels`, and new ones with the rows of `test`.

    The floor is what training rows score in place of the samples. `settings` are those of the fit, and
    `called` says what `test` is.
    """
    from sliceflow.devices import resolve_device  # imports torch, which a report does not need
    from sliceflow.errors import from_tensor

    if test is None:
        return Measures([], "not measured: no rows were held out (--holdout, for 100 rows or more)")
    n = min(_MOST, len(batched), len(train.x))
    if min(n, len(test.x)) < _LEAST:
        counts = f"{n} samples and {len(test.x)} {called}"
        return Measures([], f"not measured: {counts}; {_LEAST} are needed")
    device = str(resolve_device(flow.device))
    by_class = train.labels is not None and getattr(flow, "classes_", None) is not None
    predict, by = _classifier(train, test, device) if by_class else (None, "")

    def rows(x: np.ndarray) -> np.ndarray:  # pictures keep their shape: mirror images are compared, too
        return train.rows(x).reshape(x.shape)

    fitted = rows(train.x)
    battery = metrics.Battery(
        fitted,
        rows(test.x),
        predict=predict,
        test_labels=test.labels,
        n_trees=_TREES,
        most=n,
        neighbours_of=int(np.clip(_WORK // fitted.size, 50, _MOST)),
        mirror=settings.mirror,
        device=device,
    )
    labels = None if labels is None else subsample(labels, n)
    scores = [battery.score(rows(subsample(batched, n)), labels)]
    completes = getattr(flow, "observed", None) is not None  # pictures, and makes none
    if not completes:
        y = subsample(train.labels, n) if by_class and train.labels is not None else None
        made = np.asarray(from_tensor(flow.sample(n, y=y, random_state=1)))
        scores.append(battery.score(rows(made), y))
    else:
        scores.append({})
    out = []
    for name, (ideal, what) in metrics.MEANING.items():
        if called != _HELD_OUT:
            what = what.replace("a held-out", "another").replace("held-out", "other")
        if any(name in score for score in scores):
            batched_score, offline = (score.get(name) for score in scores)
            out.append(Measure(name, batched_score, offline, battery.floors.get(name), ideal, what))
    unseen = battery.as_dict()["held-out rows"]
    note = f"{n} samples and {unseen} {called}; floor: {n} training rows in place of the samples{by}"
    # Completed pictures share pixels with training pictures; other data may be farther from them.
    copying = None if completes or called != _HELD_OUT else _copying(out)
    return Measures(out, note, copying and f"{copying}; {_against_copying(settings, train)}")


def _copying(measures: list[Measure]) -> str | None:
    """A sentence on samples that copy training rows, with the numbers that show it."""
    from sliceflow.metrics.copied import copies_rows

    found = {m.name: m for m in measures}
    if not {"copies", "NN ratio"} <= found.keys():
        return None
    shares, ratios = (
        [value for value in (m.batched, m.offline) if value is not None]
        for m in (found["copies"], found["NN ratio"])
    )
    copies, ratio = max(shares), min(ratios)
    if not copies_rows(copies, ratio, found["copies"].floor or 0):
        return None
    return f"the samples copy training rows (copies {number(copies)}, NN ratio {number(ratio)})"


def _against_copying(settings: Settings, train: Data) -> str:
    """What helps against copying: a flag for fewer steps."""
    if settings.quality in ("standard", "best"):
        return "fewer steps help: --quality draft"
    steps = settings.n_steps(train)
    return "fit more rows" if steps == 1 else f"fewer steps help: --quality {steps // 2}"


def _classifier(train: Data, test: Data, device: str) -> tuple[Any, str]:
    """A function that predicts the classes of rows, trained on the data, and a note on it.

    On a GPU it is a network for pictures, kept in the cache; else a support vector machine.
    """
    if train.pictures and device.startswith("cuda") and train.x.dtype.kind in "iu":
        network = metrics.train_classifier(
            train.x,
            train.labels,
            test.x,
            test.labels,
            n_pixel_values=train.n_pixel_values,
            device=device,
            cache=sets.root_folder(None) / "classifiers",
        )

        def predict(rows: np.ndarray) -> np.ndarray:  # back from `Data.rows`
            pixels = ((rows + 1) * (train.white / 2)).round().astype(train.x.dtype)
            return network.predict(pixels.reshape(-1, *train.x.shape[1:]))

        return predict, f"; accuracy by a network trained on {len(train.x)} pictures"
    from sklearn.svm import SVC

    some = train.part(subsample(np.arange(len(train.x)), _TO_LEARN))
    machine = SVC(C=10).fit(train.rows(some.x), some.labels)

    def recognise(rows: np.ndarray) -> Any:
        return machine.predict(rows.reshape(len(rows), -1))

    return recognise, f"; accuracy by a support vector machine trained on {len(some.x)} rows"


def draw_neighbours(
    samples: np.ndarray, train: Data, path: Path, *, mirror: bool, n: int = 8, k: int = 5
) -> None:
    """Draw a row for each sample: itself, then its nearest training pictures. Tables have none.

    With `mirror`, training pictures are mirrored where that brings them nearer.
    """
    if not train.pictures:
        return
    from PIL import Image

    from sliceflow.cli.grid import as_bytes, grid

    first = samples[:n]
    found, _ = metrics.nearest_pictures(first, train.x, min(k, len(train.x)), mirror=mirror)
    left = grid(as_bytes(first[:, None], train.n_pixel_values), ground=None)
    right = grid(as_bytes(found, train.n_pixel_values), ground=None)
    page = Image.new(left.mode, (left.width * 3 // 2 + right.width, left.height))
    page.paste(left, (0, 0))
    page.paste(right, (left.width * 3 // 2, 0))
    page.save(path, optimize=True)
