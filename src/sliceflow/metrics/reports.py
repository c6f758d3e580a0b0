"""One report on samples of any kind: vectors, pictures or tables, with floors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from sliceflow.devices import resolve_device
from sliceflow.errors import DataError
from sliceflow.metrics import copying
from sliceflow.metrics.comparisons import (
    Effort,
    Scores,
    compare_pictures,
    compare_tables,
    compare_vectors,
)
from sliceflow.metrics.rows import as_rows
from sliceflow.validation import from_tensor, require

_KINDS = ("vectors", "pictures", "tables")
# Fewer samples, training rows or held-out rows cannot be compared.
_MIN_ROWS = 10
# With fewer held-out rows, the verdict says that the numbers are rough.
_MIN_EXACT_ROWS = 100
# Rows of each kind that are compared, at most: some seconds on a CPU, and on a GPU.
_MAX_ROWS_ON_CPU = 2_000
_MAX_ROWS_ON_GPU = 10_000
# The verdict on a classifier: it hardly tells samples from real rows within this margin
# above what it reaches by chance, and easily above an accuracy or AUC of .65.
_CHANCE_MARGIN = 0.05
_EASY_DETECTION = 0.65


class _Meaning(NamedTuple):
    """What is ideal for a number, and what it says."""

    ideal: str
    text: str  # {target} is the column that is predicted


_MEANINGS = {
    "sliced distance": _Meaning(
        "floor", "sliced 2-Wasserstein distance to held-out rows"
    ),
    "FD-PCA32": _Meaning(
        "floor", "Fréchet distance to held-out pictures, in 32 principal components"
    ),
    "coverage": _Meaning("floor", "share of held-out rows that have a sample near"),
    "two-sample accuracy": _Meaning(
        "0.5", "how often a random forest tells samples from held-out rows"
    ),
    "recognised": _Meaning(
        "floor", "share of samples whose nearest training rows are of the same class"
    ),
    "detection": _Meaning(
        "0.5", "AUC of boosted trees that tell samples from held-out rows"
    ),
    "shape": _Meaning(
        "1", "agreement of each column's distribution, mean over columns"
    ),
    "trend": _Meaning(
        "0", "difference of the association of two columns, mean over pairs"
    ),
    "utility": _Meaning(
        "floor",
        "R² or AUC of {target} in held-out rows, by boosted trees that learn from "
        "samples",
    ),
    "rules kept": _Meaning(
        "1", "share of rows that obey every rule that all training rows obey"
    ),
    "exact copies": _Meaning("floor", "share of rows equal to a training row"),
    "NN ratio": _Meaning(
        "1",
        "distance to the nearest training row, over a held-out row's; near 0: copies",
    ),
    "copies": _Meaning(
        "0.01", "share nearer to a training row than the nearest 1 % of held-out rows"
    ),
    "copies, thumbnails": _Meaning(
        "0.01", "the same, of pictures reduced to about 8×8"
    ),
    "memorized, halves": _Meaning(
        "0.01", "share of half-size patches that match one training picture"
    ),
}


@dataclass(frozen=True)
class Number:
    """One number of a report."""

    name: str
    value: float  # for the samples
    floor: float  # for real rows in their place
    ideal: str
    meaning: str


@dataclass(frozen=True)
class Report:
    """Numbers on samples. Made by `report`; `print` shows a verdict and a table.

    `details` of tables are the "target" of utility; "columns", the shape of each;
    "pairs", (one, other, association in held-out rows, in samples), the worst first;
    "revealed", the share of real values in columns that identify a row.
    """

    kind: str  # "vectors", "pictures" or "tables"
    numbers: tuple[Number, ...]  # each with its floor
    counts: Mapping[str, int]  # of samples, training rows and held-out rows
    max_rows: int  # of each of these, at most, were compared
    details: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> Number:
        return self._by_name[name]

    @property
    def _by_name(self) -> dict[str, Number]:
        return {number.name: number for number in self.numbers}

    @property
    def verdict(self) -> str:
        """One sentence: what can be trusted, and what cannot."""
        numbers = self._by_name
        sentences = []
        if "copies" in numbers:
            sentences.append(self._copying_verdict())
        for name in ("two-sample accuracy", "detection"):
            if name in numbers:
                sentences.append(_detection_verdict(numbers[name]))
        if self.kind == "pictures":
            coverage = numbers["coverage"]
            sentences.append(
                f"they cover {coverage.value:.0%} of held-out pictures "
                f"(real ones {coverage.floor:.0%})"
            )
        if "rules kept" in numbers:
            sentences.append(_rules_verdict(numbers["rules kept"]))
        revealed = self.details.get("revealed", {})
        revealed_columns = [name for name, share in revealed.items() if share > 0]
        if revealed_columns:
            sentences.append(
                f"REAL VALUES of {', '.join(revealed_columns)}, which identify a row, "
                "are in the samples"
            )
        n_test = self.counts["test"]
        if n_test < _MIN_EXACT_ROWS:
            sentences.append(f"with {n_test} held-out rows all numbers are rough")
        return "; ".join(sentences)

    def _copying_verdict(self) -> str:
        """Whether samples are copies, by the worst of the shares of copies."""
        shares = [n for n in self.numbers if n.name.startswith("copies")]
        worst = max(shares, key=lambda number: number.value)
        ratio = self["NN ratio"].value
        if copying.shows_copying(worst.value, ratio, worst.floor):
            verdict = "The samples copy training rows"
        else:
            verdict = "The samples are new, not copies"
        return f"{verdict} ({worst.name} {worst.value:.2g}, NN ratio {ratio:.2g})"

    def __str__(self) -> str:
        header = ("", "samples", "floor", "ideal", "")
        rows = [header]
        for n in self.numbers:
            value = f"{n.value:.3g}"
            floor = f"{n.floor:.3g}"
            rows.append((n.name, value, floor, n.ideal, n.meaning))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [self.verdict]
        for name, value, floor, ideal, meaning in rows:
            cells = (
                name.ljust(widths[0]),
                value.rjust(widths[1]),
                floor.rjust(widths[2]),
                ideal.rjust(widths[3]),
                meaning,
            )
            lines.append("  ".join(cells).rstrip())
        lines.append(
            f"{self.note}; floor: what real rows score in place of the samples"
        )
        return "\n".join(lines)

    @property
    def note(self) -> str:
        """How many rows there are, and how many of them were compared."""
        note = (
            f"{self.counts['samples']} samples, {self.counts['train']} training rows "
            f"and {self.counts['test']} held-out rows"
        )
        if max(self.counts.values()) > self.max_rows:
            note += f", of each at most {self.max_rows}"
        return note

    def to_dict(self) -> dict[str, Any]:
        """For JSON: None where there is no number."""
        out = asdict(self)
        for number in out["numbers"]:
            for name in ("value", "floor"):
                if np.isnan(number[name]):
                    number[name] = None
        out["numbers"] = list(out["numbers"])
        out["verdict"] = self.verdict
        return out


def _detection_verdict(number: Number) -> str:
    """How easily a classifier tells samples from held-out rows."""
    if number.value < max(0.5, number.floor) + _CHANCE_MARGIN:
        often = "hardly"
    elif number.value < _EASY_DETECTION:
        often = "sometimes"
    else:
        often = "easily"
    return (
        f"a classifier {often} tells them from held-out rows "
        f"({number.name} {number.value:.2f}, of real rows {number.floor:.2f})"
    )


def _rules_verdict(number: Number) -> str:
    """How many rows break a rule of the training rows."""
    broken = 1 - number.value
    if broken:
        return f"{broken:.1%} of the rows break a rule of the training rows"
    return "every row keeps the rules of the training rows"


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

    The floor of a number is what training rows score in place of the samples; that of
    NN ratio is one half of the held-out rows against the other, that of copies and
    memorized patches what new real rows score on average. Columns of vectors are
    divided by their standard deviations. Mirror images of training pictures count as
    training pictures. Of each kind of rows at most 2,000 are compared, 10,000 on a GPU;
    copies are searched among all training rows. The same input gives the same report.

    Parameters
    ----------
    samples, train, test : samples, the rows that were fitted, held-out rows: arrays
        (n, d), pictures (n, h, w[, c]), or DataFrames
    y : of DataFrames, the column that `utility` predicts; None takes the last that
        varies. Of arrays, the classes of (samples, train, test); None leaves
        `recognised` out
    kind : "vectors", "pictures" or "tables"; "auto" sees it from the shapes
    device : "cpu", "cuda", or "auto": a GPU if there is one
    notify : is called with what is done next, to show progress

    Examples
    --------
    >>> train, test, samples = np.random.default_rng(0).normal(size=(3, 400, 2))
    >>> print(report(samples, train, test, device="cpu").verdict)
    The samples are new, not copies (copies 0.01, NN ratio 1); a classifier hardly \
tells them from held-out rows (two-sample accuracy 0.49, of real rows 0.54)
    """
    allowed = f"'auto', {', '.join(map(repr, _KINDS))}"
    require(kind in ("auto", *_KINDS), "kind", kind, allowed)
    if kind == "auto":
        kind = _infer_kind(train)
    if kind == "tables":
        for name, frame in (("samples", samples), ("train", train), ("test", test)):
            ok = hasattr(frame, "columns")
            require(ok, name, type(frame), "a DataFrame, as train is")
    else:
        shape = np.shape(train)[1:]
        samples = _as_array(samples, "samples", kind, shape)
        train = _as_array(train, "train", kind, shape)
        test = _as_array(test, "test", kind, shape)
    counts = {"samples": len(samples), "train": len(train), "test": len(test)}
    if min(counts.values()) < _MIN_ROWS:
        fact = f"there are too few rows, {counts}"
        raise DataError(fact, f"pass {_MIN_ROWS} or more of each")
    device = str(resolve_device(device))
    max_rows = _MAX_ROWS_ON_CPU if device == "cpu" else _MAX_ROWS_ON_GPU
    effort = Effort(max_rows, device, notify)
    details: Mapping[str, Any] = {}
    if kind == "vectors":
        scores = compare_vectors(samples, train, test, y, effort)
    elif kind == "pictures":
        scores = compare_pictures(samples, train, test, y, effort)
    else:
        scores, details = compare_tables(samples, train, test, y, effort)
    return Report(kind, _as_numbers(scores, details), counts, max_rows, details)


def _infer_kind(train: Any) -> str:
    """The kind of data: "tables" of DataFrames, "vectors" of rows, else "pictures"."""
    if hasattr(train, "columns"):
        return "tables"
    if np.ndim(train) == 2:
        return "vectors"
    return "pictures"


def _as_array(x: Any, name: str, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Vectors or pictures as an array; a `DataError` unless rows have this shape."""
    array = np.asarray(from_tensor(x))
    as_rows(array, name)  # refuses what are no finite numbers
    row_shape = array.shape[1:]
    if row_shape != shape or (kind == "pictures" and len(row_shape) < 2):
        fact = f"rows of {name} have shape {row_shape}, of train {shape}"
        raise DataError(fact, f"pass {kind}")
    return array


def _as_numbers(scores: Scores, details: Mapping[str, Any]) -> tuple[Number, ...]:
    """The numbers of a report, in the order of their meanings."""
    numbers = []
    for name, meaning in _MEANINGS.items():
        if name in scores:
            score = scores[name]
            text = meaning.text.format(**details)
            numbers.append(Number(name, score.value, score.floor, meaning.ideal, text))
    return tuple(numbers)
