"""One report on samples of any kind: vectors, pictures or tables, with a floor for every number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from sliceflow.errors import from_tensor, need
from sliceflow.metrics.copying import (
    IDEAL_COPIES,
    lookalikes,
    nearest_distances,
    share_of_copies,
    shows_copying,
)
from sliceflow.metrics.coverage import density_coverage
from sliceflow.metrics.distances import (
    energy_distance,
    frechet_distance,
    principal_axes,
    sliced_wasserstein,
)
from sliceflow.metrics.pairs import as_rows, nearest, subsample
from sliceflow.metrics.two_sample import two_sample_accuracy

__all__ = ["Number", "Report", "report"]

_KINDS = ("vectors", "pictures", "tables")
_FEWEST = 10  # rows of each kind
_COMPONENTS = 32  # principal components that stand for a picture
_THUMBNAIL = 8  # its side, about
_VOTES = 5  # training rows that say which class a sample looks like
_TREES = 50  # of the forest that tells samples from held-out rows
_TOLD_APART = 0.65  # by a classifier: more is easily

# The ideal value of each number, and what it says.
_MEANING = {
    "sliced distance": ("floor", "sliced 2-Wasserstein distance to held-out rows"),
    "energy distance": ("floor", "energy distance to held-out rows"),
    "FD-PCA32": ("floor", "Fréchet distance to held-out pictures, in 32 principal components"),
    "coverage": ("floor", "share of held-out rows that have a sample near"),
    "two-sample accuracy": ("0.5", "how often a random forest tells samples from held-out rows"),
    "recognised": ("floor", "share of samples whose nearest training rows are of the same class"),
    "detection": ("0.5", "AUC of boosted trees that tell samples from held-out rows"),
    "shape": ("1", "agreement of each column's distribution, mean over columns"),
    "trend": ("0", "difference of the association of two columns, mean over pairs"),
    "utility": ("floor", "R² or AUC on held-out rows of boosted trees that learnt from samples"),
    "rules kept": ("1", "share of rows that obey every rule that all training rows obey"),
    "exact copies": ("floor", "share of rows equal to a training row"),
    "NN ratio": ("1", "distance to the nearest training row, over a held-out row's; near 0: copies"),
    "copies": ("0.01", "share nearer to a training row than the nearest 1 % of held-out rows"),
    "copies, thumbnails": ("0.01", "the same, of pictures reduced to about 8×8"),
    "lookalikes, halves": (
        "0.01",
        "share of half-size patches that closely match one training picture",
    ),
}


@dataclass(frozen=True)
class Number:
    """One number of a report: its value for samples, for real rows (`floor`), and what it says."""

    name: str
    value: float
    floor: float
    ideal: str
    meaning: str


@dataclass(frozen=True)
class Report:
    """Numbers on samples. Made by `report`; `print` shows a verdict and a table.

    Parameters
    ----------
    kind : "vectors", "pictures" or "tables"
    numbers : each with its floor
    counts : how many samples, training rows and held-out rows there were
    details : of tables: "target" of utility; "columns", the shape of each; "pairs", (one, other,
        association in held-out rows, in samples), the worst first; "revealed", the share of real values
        in columns that identify a row
    """

    kind: str
    numbers: tuple[Number, ...]
    counts: Mapping[str, int]
    details: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> Number:
        return {number.name: number for number in self.numbers}[name]

    @property
    def verdict(self) -> str:
        """One sentence: what can be trusted, and what cannot."""
        found = {number.name: number for number in self.numbers}
        parts = []
        if "copies" in found:
            worst = max((n for n in self.numbers if n.name.startswith("copies")), key=lambda n: n.value)
            copied = shows_copying(worst.value, found["NN ratio"].value, worst.floor)
            text = "the samples copy training rows" if copied else "the samples are new, not copies"
            parts.append(
                f"{text} ({worst.name} {worst.value:.2g}, NN ratio {found['NN ratio'].value:.2g})"
            )
        for name in {"two-sample accuracy", "detection"} & found.keys():
            value, floor = found[name].value, max(0.5, found[name].floor)
            hard = (
                "hardly" if value < floor + 0.05 else "sometimes" if value < _TOLD_APART else "easily"
            )
            parts.append(f"a classifier {hard} tells them from held-out rows ({name} {value:.2f})")
        if "FD-PCA32" in found:
            n = found["coverage"]
            parts.append(f"they cover {n.value:.0%} of held-out pictures (real ones {n.floor:.0%})")
        if "rules kept" in found and (broken := 1 - found["rules kept"].value) > 0:
            parts.append(f"{broken:.1%} of the rows break a rule of the training rows")
        shown = [name for name, share in self.details.get("revealed", {}).items() if share > 0]
        if shown:
            parts.append(f"REAL VALUES of {', '.join(shown)}, which identify a row, are in the samples")
        text = "; ".join(parts)
        return text[:1].upper() + text[1:]

    def __str__(self) -> str:
        rows = [("", "samples", "floor", "ideal", "")]
        rows += [(n.name, f"{n.value:.3g}", f"{n.floor:.3g}", n.ideal, n.meaning) for n in self.numbers]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                (row[0].ljust(widths[0]), *map(str.rjust, row[1:4], widths[1:4]), row[4])
            ).rstrip()
            for row in rows
        ]
        counts = ", ".join(f"{n} {what}" for what, n in self.counts.items())
        note = f"{counts}; floor: what real rows score in place of the samples"
        return "\n".join((self.verdict, *lines, note))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"verdict": self.verdict}


def report(
    samples: Any,
    train: Any,
    test: Any,
    *,
    y: Any = None,
    kind: str = "auto",
    max_rows: int = 10_000,
    device: str = "auto",
) -> Report:
    """Compare samples with held-out rows, and see whether they copy training rows.

    The floor of a number is what training rows score in place of the samples. That of NN ratio is one
    half of the held-out rows against the other, that of copies and lookalikes what new real rows score
    on average, that of utility is learnt from training rows. Columns of vectors are divided by their
    standard deviations. Mirror images of training pictures count as training pictures. The same input
    gives the same report.

    Parameters
    ----------
    samples, train, test : samples, the rows that were fitted, held-out rows: arrays (n, d), pictures
        (n, h, w[, c]), or DataFrames
    y : of DataFrames, the column that `utility` predicts; None takes the last that varies. Of arrays,
        the classes of (samples, train, test); None leaves `recognised` out
    kind : "vectors", "pictures" or "tables"; "auto" sees it from the shapes
    max_rows : the most rows of each that are compared, except training rows that are searched
    device : "cpu", "cuda", or "auto": a GPU if there is one

    Examples
    --------
    >>> train, test, samples = np.random.default_rng(0).normal(size=(3, 400, 2))
    >>> print(report(samples, train, test, device="cpu").verdict)
    The samples are new, not copies (copies 0.015, NN ratio 1); a classifier hardly tells them from \
held-out rows (two-sample accuracy 0.51)
    """
    need(kind in ("auto", *_KINDS), "kind", kind, f"'auto', {', '.join(map(repr, _KINDS))}")
    given = {"samples": samples, "train": train, "test": test}
    frames = {name for name, x in given.items() if hasattr(x, "columns")}
    if kind == "tables" or (kind == "auto" and frames):
        need(
            len(frames) == 3,
            "kind",
            kind,
            f"'vectors' or 'pictures': {set(given) - frames} has no columns",
        )
        measure: Callable[..., Any] = _of_tables
    else:
        arrays = {name: np.asarray(from_tensor(x)) for name, x in given.items()}
        for name, x in arrays.items():
            as_rows(x, name)
            if x.shape[1:] != arrays["train"].shape[1:]:
                raise ValueError(f"{name} has shape {x.shape} but train {arrays['train'].shape}")
        if kind == "auto":
            kind = "vectors" if arrays["train"].ndim == 2 else "pictures"
        need(
            kind == "vectors" or arrays["train"].ndim > 2,
            "kind",
            kind,
            "'vectors': rows have no pixels",
        )
        given, measure = arrays, _of_vectors if kind == "vectors" else _of_pictures
    counts = {name: len(x) for name, x in given.items()}
    if min(counts.values()) < _FEWEST:
        raise ValueError(f"there are {counts} rows; pass {_FEWEST} or more of each")
    values, floors, details = measure(*given.values(), y, max_rows, device)
    numbers = (Number(n, values[n], floors[n], *_MEANING[n]) for n in _MEANING if n in values)
    names = ("samples", "training rows", "held-out rows")
    kind = "tables" if kind == "auto" else kind
    return Report(kind, tuple(numbers), dict(zip(names, counts.values(), strict=True)), details)


_Found = tuple[dict[str, float], dict[str, float], dict[str, Any]]


def _of_vectors(samples: Any, train: Any, test: Any, y: Any, most: int, device: str) -> _Found:
    unit = train.std(axis=0, dtype=np.float64)
    samples, train, test = (x / np.where(unit > 0, unit, 1) for x in (samples, train, test))
    held = subsample(test, most)

    def score(rows: np.ndarray) -> dict[str, float]:
        return {
            "sliced distance": sliced_wasserstein(rows, held),
            "energy distance": energy_distance(rows, held, device=device),
            "coverage": density_coverage(rows, held, device=device).coverage,
            "two-sample accuracy": two_sample_accuracy(rows, held, n_trees=_TREES),
        }

    values, floors = _with_floors(score, samples, train, most)
    _compare_nearness(values, floors, samples, train, test, most, device)
    _recognise(values, floors, samples, train, test, y, most, device)
    return values, floors, {}


def _of_pictures(samples: Any, train: Any, test: Any, y: Any, most: int, device: str) -> _Found:
    half = max(float(np.ptp(train)), 1e-300) / 2  # pixels from −1 to 1, as the flow sees them
    flat = [as_rows(x) for x in (samples, train, test)]
    mean, axes = principal_axes(subsample(flat[1], most), _COMPONENTS)

    def features(x: np.ndarray) -> np.ndarray:
        return np.asarray(((x - mean) @ axes.T) / half)

    held = subsample(flat[2], most)

    def score(rows: np.ndarray) -> dict[str, float]:
        ours, real = features(rows), features(held)
        return {
            "sliced distance": sliced_wasserstein((rows - mean) / half, (held - mean) / half),
            "FD-PCA32": frechet_distance(ours, real),
            "coverage": density_coverage(ours, real, device=device).coverage,
        }

    values, floors = _with_floors(score, flat[0], flat[1], most)
    _compare_nearness(values, floors, samples, train, test, most, device, mirror=True)
    side = min(train.shape[1:3])
    if side >= 2 * _THUMBNAIL:
        small = [_thumbnails(x, side // _THUMBNAIL) for x in (samples, train, test)]
        near = _compare_nearness({}, {}, *small, most, device, mirror=True)
        if near:
            values["copies, thumbnails"], floors["copies, thumbnails"] = near
    some = [subsample(x, most) for x in (samples, test)]
    values["lookalikes, halves"] = lookalikes(
        some[0], train, some[1], mirror=True, patch=max(1, side // 2), device=device
    )
    floors["lookalikes, halves"] = max(IDEAL_COPIES, 1 / (len(some[1]) + 1))
    _recognise(values, floors, *map(features, flat), y, most, device)
    return values, floors, {}


def _of_tables(samples: Any, train: Any, test: Any, y: Any, most: int, device: str) -> _Found:
    from sliceflow.metrics import tables

    read = tables.read_tables(samples, train, test)
    made, fitted, held = (subsample(x, most) for x in read.rows)
    kinds, names = read.categories, read.names
    varied = [
        name for name, x in zip(names, fitted.T, strict=True) if len(np.unique(x[~np.isnan(x)])) > 1
    ]
    y = (varied or names)[-1] if y is None else str(y)
    need(y in names, "y", y, f"the name of a column: {', '.join(names)}")
    target, upper = names.index(y), np.triu_indices(len(names), 1)

    def score(rows: np.ndarray) -> dict[str, float]:
        n = min(len(rows), len(held))  # few rows of many categories look more associated
        trees = tables.boosted_trees(n, kinds)
        apart = tables.association(rows[:n], kinds) - tables.association(held[:n], kinds)
        shapes = [tables.shape(held[:, c], rows[:, c], kinds[c]) for c in range(len(names))]
        return {
            "detection": two_sample_accuracy(rows, held, classifier=trees, scoring="roc_auc"),
            "shape": float(np.mean(shapes)),
            "trend": float(np.abs(apart[upper]).mean()) if len(upper[0]) else 0.0,
            "utility": tables.utility(rows, held, kinds, target),
        }

    values, floors = _with_floors(score, made, fitted, most)
    for found, rows in ((values, made), (floors, held)):
        found["rules kept"] = tables.rules_kept(fitted, rows, kinds)
    embed = partial(tables.points, categories=kinds, train=fitted)
    rows = [embed(made), embed(fitted), embed(held)]
    for found, x in ((values, rows[0]), (floors, rows[2])):
        found["exact copies"] = float(np.mean(nearest(x, rows[1], device=device)[0] < 1e-9))
    _compare_nearness(values, floors, *rows, most, device)
    n = min(len(made), len(held))
    real, ours = (tables.association(x[:n], kinds) for x in (held, made))
    pairs = [
        (names[i], names[j], float(real[i, j]), float(ours[i, j])) for i, j in zip(*upper, strict=True)
    ]
    details = {
        "target": y,
        "columns": {
            name: tables.shape(held[:, c], made[:, c], kinds[c]) for c, name in enumerate(names)
        },
        "pairs": sorted(pairs, key=lambda pair: -abs(pair[2] - pair[3])),
        "revealed": read.revealed,
    }
    return values, floors, details


def _with_floors(
    score: Callable[[np.ndarray], dict[str, float]], samples: np.ndarray, train: np.ndarray, most: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Scores of samples and of equally many training rows: metrics depend on the counts."""
    n = min(most, len(samples), len(train))
    return score(subsample(samples, n)), score(subsample(train, n, seed=1))


def _compare_nearness(
    values: dict[str, float],
    floors: dict[str, float],
    samples: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    most: int,
    device: str,
    mirror: bool = False,
) -> tuple[float, float] | None:
    """NN ratio and copies; left out if most test rows equal a training row."""
    search = partial(nearest_distances, train=train, mirror=mirror, device=device)
    made, real = (search(subsample(x, most)) for x in (samples, test))
    if np.median(real) == 0:
        return None
    values["NN ratio"] = float(np.median(made) / np.median(real))
    floors["NN ratio"] = float(np.median(real[::2]) / max(float(np.median(real[1::2])), 1e-300))
    values["copies"] = share_of_copies(made, real)
    floors["copies"] = max(IDEAL_COPIES, 1 / (len(real) + 1))
    return values["copies"], floors["copies"]


def _recognise(
    values: dict[str, float],
    floors: dict[str, float],
    samples: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    y: Any,
    most: int,
    device: str,
) -> None:
    """The share of rows that five nearest training rows take for their own class."""
    if y is None:
        return
    labels = [np.asarray(from_tensor(part)) for part in y]
    if [len(part) for part in labels] != [len(samples), len(train), len(test)]:
        raise ValueError("y needs the classes of samples, train and test, one for each row")
    classes, codes = np.unique(labels[1], return_inverse=True)
    for found, rows, own in ((values, samples, labels[0]), (floors, test, labels[2])):
        rows, own = subsample(rows, most), subsample(own, most)
        _, index = nearest(rows, train, min(_VOTES, len(train)), device=device)
        votes = np.zeros((len(rows), len(classes)))
        np.add.at(votes, (np.arange(len(rows))[:, None], codes[index]), 1)
        found["recognised"] = float(np.mean(classes[votes.argmax(1)] == own))


def _thumbnails(images: np.ndarray, factor: int) -> np.ndarray:
    """Means of squares of pixels; what does not fill a square is left out."""
    n, h, w = images.shape[:3]
    h, w = h // factor, w // factor
    parts = images[:, : h * factor, : w * factor].reshape(n, h, factor, w, factor, -1)
    return np.asarray(parts.mean(axis=(2, 4)))
