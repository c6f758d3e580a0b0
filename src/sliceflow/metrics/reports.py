"""One report on samples of any kind: vectors, pictures or tables, with a floor for every number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from sliceflow.devices import resolve_device
from sliceflow.errors import from_tensor, require
from sliceflow.metrics import copying, distances, tables
from sliceflow.metrics.rows import as_rows, subsample

_KINDS = ("vectors", "pictures", "tables")
_FEWEST = 10
_ROUGH = 100  # rows of each kind that are needed; held-out rows that should be there
_COMPONENTS = 32  # principal components that stand for a picture
_THUMBNAIL = 8  # its side, about
_VOTES = 5  # training rows that say which class a sample looks like
_TREES = 50  # of the forest that tells samples from held-out rows
_BLOCK = 50_000  # training rows of a table that are points at a time
_EQUAL = 1e-9  # the distance below which two rows are equal
_EASILY = 0.65  # the accuracy or AUC above which samples are easily told apart

# The ideal value of each number, and what it says; {target} is the column that is predicted.
_MEANING = {
    "sliced distance": ("floor", "sliced 2-Wasserstein distance to held-out rows"),
    "FD-PCA32": (
        "floor",
        "Fréchet distance to held-out pictures, in 32 principal components",
    ),
    "coverage": ("floor", "share of held-out rows that have a sample near"),
    "two-sample accuracy": (
        "0.5",
        "how often a random forest tells samples from held-out rows",
    ),
    "recognised": (
        "floor",
        "share of samples whose nearest training rows are of the same class",
    ),
    "detection": ("0.5", "AUC of boosted trees that tell samples from held-out rows"),
    "shape": ("1", "agreement of each column's distribution, mean over columns"),
    "trend": ("0", "difference of the association of two columns, mean over pairs"),
    "utility": (
        "floor",
        "R² or AUC of {target} in held-out rows, by boosted trees that learn from samples",
    ),
    "rules kept": (
        "1",
        "share of rows that obey every rule that all training rows obey",
    ),
    "exact copies": ("floor", "share of rows equal to a training row"),
    "NN ratio": (
        "1",
        "distance to the nearest training row, over a held-out row's; near 0: copies",
    ),
    "copies": (
        "0.01",
        "share nearer to a training row than the nearest 1 % of held-out rows",
    ),
    "copies, thumbnails": ("0.01", "the same, of pictures reduced to about 8×8"),
    "lookalikes, halves": (
        "0.01",
        "share of half-size patches that match one training picture",
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

    `details` of tables are the "target" of utility; "columns", the shape of each; "pairs", (one, other,
    association in held-out rows, in samples), the worst first; "revealed", the share of real values in
    columns that identify a row.
    """

    kind: str  # "vectors", "pictures" or "tables"
    numbers: tuple[Number, ...]  # each with its floor
    counts: Mapping[str, int]  # of samples, training rows and held-out rows
    most: int  # of each of these, at most, were compared
    details: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> Number:
        return {number.name: number for number in self.numbers}[name]

    @property
    def verdict(self) -> str:
        """One sentence: what can be trusted, and what cannot."""
        found = {n.name: n for n in self.numbers}
        parts = []
        if "copies" in found:
            worst = max(
                (n for n in self.numbers if n.name.startswith("copies")),
                key=lambda n: n.value,
            )
            ratio = found["NN ratio"].value
            copied = copying.shows_copying(worst.value, ratio, worst.floor)
            text = (
                "The samples copy training rows"
                if copied
                else "The samples are new, not copies"
            )
            parts.append(
                f"{text} ({worst.name} {worst.value:.2g}, NN ratio {ratio:.2g})"
            )
        for name in {"two-sample accuracy", "detection"} & found.keys():
            value = found[name].value
            floor = found[name].floor
            chance = value < max(0.5, floor) + 0.05
            often = "hardly" if chance else "sometimes" if value < _EASILY else "easily"
            said = f"({name} {value:.2f}, of real rows {floor:.2f})"
            parts.append(f"a classifier {often} tells them from held-out rows {said}")
        if self.kind == "pictures":
            n = found["coverage"]
            parts.append(
                f"they cover {n.value:.0%} of held-out pictures (real ones {n.floor:.0%})"
            )
        if "rules kept" in found:
            broken = 1 - found["rules kept"].value
            rows = (
                f"{broken:.1%} of the rows break a rule"
                if broken
                else "every row keeps the rules"
            )
            parts.append(f"{rows} of the training rows")
        if shown := [
            name
            for name, share in self.details.get("revealed", {}).items()
            if share > 0
        ]:
            parts.append(
                f"REAL VALUES of {', '.join(shown)}, which identify a row, are in the samples"
            )
        if self.counts["test"] < _ROUGH:
            parts.append(
                f"with {self.counts['test']} held-out rows all numbers are rough"
            )
        return "; ".join(parts)

    def __str__(self) -> str:
        rows = [("", "samples", "floor", "ideal", "")]
        rows += [
            (n.name, f"{n.value:.3g}", f"{n.floor:.3g}", n.ideal, n.meaning)
            for n in self.numbers
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        sides = (str.ljust, str.rjust, str.rjust, str.rjust, str.ljust)
        lines = [
            "  ".join(f(x, n) for f, x, n in zip(sides, row, widths, strict=True))
            for row in rows
        ]
        note = f"{self.note}; floor: what real rows score in place of the samples"
        return "\n".join((self.verdict, *map(str.rstrip, lines), note))

    @property
    def note(self) -> str:
        """How many rows there are, and how many of them were compared."""
        n = self.counts
        said = f"{n['samples']} samples, {n['train']} training rows and {n['test']} held-out rows"
        return said + (
            f", of each at most {self.most}" if max(n.values()) > self.most else ""
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON: None where there is no number."""
        numbers = [
            {k: None if v != v else v for k, v in asdict(n).items()}
            for n in self.numbers
        ]
        return asdict(self) | {"numbers": numbers, "verdict": self.verdict}


def report(
    samples: Any,
    train: Any,
    test: Any,
    *,
    y: Any = None,
    kind: str = "auto",
    device: str = "auto",
    notify: Callable[[str], object] = lambda what: None,
) -> Report:
    """Compare samples with held-out rows, and see whether they copy training rows.

    The floor of a number is what training rows score in place of the samples; that of NN ratio is one
    half of the held-out rows against the other, that of copies and lookalikes what new real rows score
    on average. Columns of vectors are divided by their standard deviations. Mirror images of training
    pictures count as training pictures. Of each kind of rows at most 2,000 are compared, 10,000 on a GPU;
    copies are searched among all training rows. The same input gives the same report.

    Parameters
    ----------
    samples, train, test : samples, the rows that were fitted, held-out rows: arrays (n, d), pictures
        (n, h, w[, c]), or DataFrames
    y : of DataFrames, the column that `utility` predicts; None takes the last that varies. Of arrays,
        the classes of (samples, train, test); None leaves `recognised` out
    kind : "vectors", "pictures" or "tables"; "auto" sees it from the shapes
    device : "cpu", "cuda", or "auto": a GPU if there is one
    notify : is called with what is done next, to show progress

    Examples
    --------
    >>> train, test, samples = np.random.default_rng(0).normal(size=(3, 400, 2))
    >>> print(report(samples, train, test, device="cpu").verdict)
    The samples are new, not copies (copies 0.01, NN ratio 1); a classifier hardly tells them from \
held-out rows (two-sample accuracy 0.49, of real rows 0.54)
    """
    require(
        kind in ("auto", *_KINDS),
        "kind",
        kind,
        f"'auto', {', '.join(map(repr, _KINDS))}",
    )
    given = {"samples": samples, "train": train, "test": test}
    if kind == "auto":
        flat = "vectors" if np.ndim(train) == 2 else "pictures"
        kind = "tables" if hasattr(train, "columns") else flat
    for name, x in given.items():
        if kind == "tables":
            require(hasattr(x, "columns"), name, type(x), "a DataFrame, as train is")
            continue
        given[name] = np.asarray(from_tensor(x))
        as_rows(given[name], name)
        shapes = given[name].shape[1:], np.shape(train)[1:]
        if shapes[0] != shapes[1] or (kind == "pictures" and len(shapes[0]) < 2):
            found = f"rows of {name} have shape {shapes[0]}, of train {shapes[1]}"
            raise ValueError(f"{found}; pass {kind}")
    counts = {name: len(x) for name, x in given.items()}
    if min(counts.values()) < _FEWEST:
        raise ValueError(
            f"there are too few rows, {counts}; pass {_FEWEST} or more of each"
        )
    device = str(resolve_device(device))
    compare = _Comparison(2_000 if device == "cpu" else 10_000, device, notify)
    found, details = getattr(compare, kind)(*given.values(), y)
    said = ((name, *_MEANING[name]) for name in _MEANING if name in found)
    rows = (
        (name, *found[name], ideal, text.format(**details))
        for name, ideal, text in said
    )
    return Report(
        kind, tuple(Number(*row) for row in rows), counts, compare.most, details
    )


_Scores = dict[str, tuple[float, float]]  # value and floor


@dataclass(frozen=True)
class _Comparison:
    """The numbers of each kind; at most `most` rows are compared, on a device."""

    most: int
    device: str
    notify: Callable[[str], object]

    def vectors(
        self, samples: Any, train: Any, test: Any, y: Any
    ) -> tuple[_Scores, dict[str, Any]]:
        unit = train.std(axis=0, dtype=np.float64)
        rows = [x / np.where(unit > 0, unit, 1) for x in (samples, train, test)]
        held = subsample(rows[2], self.most)

        def score(x: np.ndarray) -> dict[str, float]:
            return {
                "sliced distance": distances.sliced_wasserstein(x, held),
                "coverage": distances.coverage(x, held, device=self.device),
                "two-sample accuracy": distances.two_sample_accuracy(
                    x, held, n_trees=_TREES
                ),
            }

        out = self.score(score, rows[0], rows[1]) | self.nearness(
            rows[0], [rows[1]], rows[2]
        )
        return out | self.recognised(rows, y), {}

    def pictures(
        self, samples: Any, train: Any, test: Any, y: Any
    ) -> tuple[_Scores, dict[str, Any]]:
        images = [samples, train, test]
        half = (
            max(float(np.ptp(train)), 1e-300) / 2
        )  # pixels from −1 to 1, as the flow sees them
        mean, axes = distances.principal_axes(
            as_rows(subsample(train, self.most)), _COMPONENTS
        )
        features = [((as_rows(x) - mean) @ axes.T) / half for x in images]
        held = subsample(features[2], self.most)

        def score(x: np.ndarray) -> dict[str, float]:
            return {
                "FD-PCA32": distances.frechet_distance(x, held),
                "coverage": distances.coverage(x, held, device=self.device),
            }

        out = self.score(score, features[0], features[1]) | self.recognised(features, y)
        out |= self.nearness(samples, [train], test, mirror=True)
        side = min(train.shape[1:3])
        if side >= 2 * _THUMBNAIL:
            a, b, c = (_thumbnails(x, side // _THUMBNAIL) for x in images)
            small = self.nearness(a, [b], c, mirror=True)
            out |= {"copies, thumbnails": small["copies"]} if "copies" in small else {}
        made, real = (subsample(x, self.most) for x in (samples, test))
        how: Any = dict(mirror=True, patch=max(1, side // 2), device=self.device)
        alike = copying.memorized_rate(made, train, real, **how)
        out["lookalikes, halves"] = alike, _copies_floor(len(real))
        return out, {}

    def tables(
        self, samples: Any, train: Any, test: Any, y: Any
    ) -> tuple[_Scores, dict[str, Any]]:
        read = tables.read_tables(samples, train, test)
        made, fitted, held = (subsample(x, self.most) for x in read.rows)
        names = read.names
        kinds = read.categories
        whole = read.rows[1]
        varied = [
            name for name, x in zip(names, fitted.T, strict=True) if np.nanstd(x) > 0
        ]
        y = (varied or names)[-1] if y is None else str(y)
        require(y in names, "y", y, f"the name of a column: {', '.join(names)}")
        upper = np.triu_indices(len(names), 1)

        def shapes(rows: np.ndarray) -> list[float]:
            return [
                tables.shape(held[:, c], rows[:, c], kinds[c])
                for c in range(len(names))
            ]

        def trends(rows: np.ndarray) -> np.ndarray:
            n = min(
                map(len, (made, fitted, held))
            )  # few rows of many categories look more associated
            return tables.association(subsample(rows, n), kinds)[upper]

        real = trends(held)

        def score(rows: np.ndarray) -> dict[str, float]:
            trees = tables.boosted_trees(len(rows), kinds)
            how: Any = dict(classifier=trees, scoring="roc_auc")
            return {
                "detection": distances.two_sample_accuracy(rows, held, **how),
                "shape": float(np.mean(shapes(rows))),
                "trend": float(np.abs(real - trends(rows)).mean())
                if len(real)
                else 0.0,
                "utility": tables.utility(rows, held, kinds, names.index(y)),
            }

        def points(rows: np.ndarray) -> np.ndarray:
            return tables.points(rows, kinds, whole)

        parts = map(points, np.array_split(whole, -(-len(whole) // _BLOCK)))
        out = self.score(score, made, fitted) | self.nearness(
            points(made), parts, points(held)
        )
        ours, floor = (tables.rules_kept(fitted, rows, kinds) for rows in (made, held))
        out["rules kept"] = ours, floor
        both = zip(*upper, real, trends(made), strict=True)
        pairs = [(names[i], names[j], float(a), float(b)) for i, j, a, b in both]
        return out, {
            "target": y,
            "columns": dict(zip(names, shapes(made), strict=True)),
            "pairs": sorted(pairs, key=lambda pair: -abs(pair[2] - pair[3])),
            "revealed": read.revealed,
        }

    def score(
        self, score: Callable[..., dict[str, float]], samples: Any, train: Any
    ) -> _Scores:
        """Scores of samples and of equally many training rows: metrics depend on the counts."""
        n = min(self.most, len(samples), len(train))
        self.notify(f"measuring {n} samples")
        ours = score(subsample(samples, n))
        self.notify(f"measuring {n} training rows in their place, for the floor")
        floor = score(subsample(train, n, seed=1))
        self.notify("searching for copies")
        return {name: (ours[name], floor[name]) for name in ours}

    def nearness(
        self, samples: Any, parts: Iterable[Any], test: Any, mirror: bool = False
    ) -> _Scores:
        """NN ratio and copies; only exact copies if most test rows equal a training row in one of `parts`."""
        some = [subsample(x, self.most) for x in (samples, test)]
        how: Any = dict(mirror=mirror, device=self.device)
        found = [
            copying.nearest_distances(np.concatenate(some), part, **how)
            for part in parts
        ]
        made, real = np.split(np.min(found, axis=0), [len(some[0])])
        exact = {
            "exact copies": (
                float((made < _EQUAL).mean()),
                float((real < _EQUAL).mean()),
            )
        }
        if np.median(real) == 0:
            return exact
        halves = float(np.median(real[::2]) / max(float(np.median(real[1::2])), 1e-300))
        return exact | {
            "NN ratio": (float(np.median(made) / np.median(real)), halves),
            "copies": (copying.share_of_copies(made, real), _copies_floor(len(real))),
        }

    def recognised(self, rows: list[np.ndarray], y: Any) -> _Scores:
        """The share of rows that the nearest training rows take for their own class."""
        if y is None:
            return {}
        from sklearn.neighbors import KNeighborsClassifier

        labels = [np.asarray(from_tensor(part)) for part in y]
        if list(map(len, labels)) != list(map(len, rows)):
            raise ValueError(
                "y must be (of samples, of train, of test), a class for each row"
            )
        judge = KNeighborsClassifier(_VOTES).fit(rows[1], labels[1])
        found = [
            judge.score(*(subsample(x[i], self.most) for x in (rows, labels)))
            for i in (0, 2)
        ]
        return {"recognised": (float(found[0]), float(found[1]))}


def _copies_floor(n: int) -> float:
    """What new real rows score on average as copies, given n held-out rows."""
    return max(copying.IDEAL_COPIES, 1 / (n + 1))


def _thumbnails(images: np.ndarray, factor: int) -> np.ndarray:
    """Means of squares of pixels; what does not fill a square is left out."""
    n = images.shape[0]
    h = images.shape[1] // factor
    w = images.shape[2] // factor
    parts = images[:, : h * factor, : w * factor].reshape(n, h, factor, w, factor, -1)
    return np.asarray(parts.mean(axis=(2, 4)))
