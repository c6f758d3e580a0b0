"""One report on samples of any kind: vectors, pictures or tables.

Every metric stands beside its reference, which is what real rows score.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from sliceflow.devices import resolve_device
from sliceflow.errors import DataError
from sliceflow.metrics.comparisons import (
    ClassLabels,
    ComparisonSettings,
    Scores,
    compare_vectors,
)
from sliceflow.metrics.picture_comparison import compare_pictures
from sliceflow.metrics.rows import RowsLike, as_flat_rows
from sliceflow.metrics.table_comparison import Details, compare_tables
from sliceflow.metrics.tables import MIN_COMMON_COUNT
from sliceflow.metrics.text_tables import format_table
from sliceflow.metrics.verdict import Verdict, judge
from sliceflow.validation import from_tensor, require, require_choice

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike

Kind = Literal["vectors", "pictures", "tables"]
# Fewer samples, training rows or held-out rows cannot be compared.
_MIN_ROWS = 10
# The most samples, training rows and held-out rows that are compared. More rows make
# metrics more exact; the comparison takes some seconds with these.
_MAX_ROWS_ON_CPU = 2_000
_MAX_ROWS_ON_GPU = 10_000


# What is ideal for metrics that should be as those of real rows.
_AS_REAL_ROWS = "real rows"


class _MetricInfo(NamedTuple):
    """What is ideal for a metric, and what it says."""

    ideal: str
    meaning: str  # {target} stands for the column that is predicted


_METRICS = {
    "sliced distance": _MetricInfo(
        _AS_REAL_ROWS, "sliced 2-Wasserstein distance to held-out rows"
    ),
    "FD-PCA32": _MetricInfo(
        _AS_REAL_ROWS,
        "Fréchet distance to held-out pictures, in 32 principal components",
    ),
    "coverage": _MetricInfo(
        _AS_REAL_ROWS, "share of held-out rows that have a sample near"
    ),
    "two-sample accuracy": _MetricInfo(
        "0.5", "how often a random forest tells samples from held-out rows"
    ),
    "recognized": _MetricInfo(
        _AS_REAL_ROWS,
        "share of samples whose nearest training rows are of the same class",
    ),
    "detection": _MetricInfo(
        "0.5", "AUC of boosted trees that tell samples from held-out rows"
    ),
    "shape": _MetricInfo(
        "1", "agreement of each column's distribution, mean over columns"
    ),
    "trend error": _MetricInfo(
        "0", "difference of the association of two columns, mean over pairs"
    ),
    "utility": _MetricInfo(
        _AS_REAL_ROWS,
        "R² or AUC of {target} in held-out rows, by boosted trees that learn from "
        "samples",
    ),
    "rules kept": _MetricInfo(
        "1", "share of rows that obey every rule that all training rows obey"
    ),
    "rare values": _MetricInfo(
        _AS_REAL_ROWS,
        f"share of numbers that fewer than {MIN_COMMON_COUNT} training rows have",
    ),
    "exact copies": _MetricInfo(_AS_REAL_ROWS, "share of rows equal to a training row"),
    "NN ratio": _MetricInfo(
        "1",
        "distance to the nearest training row, over a held-out row's; near 0: copies",
    ),
    "copy rate": _MetricInfo(
        "0.01", "share nearer to a training row than the nearest 1 % of held-out rows"
    ),
    "copy rate, thumbnails": _MetricInfo(
        "0.01", "the same, of pictures reduced to about 8×8"
    ),
    "memorized, halves": _MetricInfo(
        "0.01", "share of half-size patches that match one training picture"
    ),
}


@dataclass(frozen=True)
class Metric:
    """One metric of a report.

    Attributes
    ----------
    name : str
        Such as "NN ratio".
    value : float
        The metric of the samples; NaN if it cannot be measured.
    reference : float
        The metric of real rows in their place.
    ideal : str
        Its ideal value, in words.
    meaning : str
        What it measures, in a few words.
    """

    name: str
    value: float
    reference: float
    ideal: str
    meaning: str


@dataclass(frozen=True)
class Report:
    """Metrics of samples. `report` makes it; `print` shows a verdict and a table.

    ``report["NN ratio"]`` is one `Metric`.

    Attributes
    ----------
    kind : "vectors", "pictures" or "tables"
        The kind of data.
    metrics : tuple of Metric
        All metrics.
    counts : dict
        The numbers of "samples", "train" and "held_out" rows.
    max_rows : int
        The most rows of each that were compared.
    details : Details
        What a report on tables says beside its metrics: `target`, the column that
        utility predicts; `columns`, the shape of each; `pairs` of columns with their
        associations in held-out rows and in samples, the worst first; `lost_pairs`,
        whose association falls most from training rows to samples; `rules` of the
        training rows and how many rows keep each; `revealed`, the share of real values
        in columns that identify a row; and `riskiest`, the samples nearest to a single
        training row.
    """

    kind: Kind
    metrics: tuple[Metric, ...]
    counts: Mapping[str, int]
    max_rows: int
    details: Details = field(default_factory=Details, repr=False)

    def __getitem__(self, name: str) -> Metric:
        return self._by_name[name]

    @property
    def _by_name(self) -> dict[str, Metric]:
        return {metric.name: metric for metric in self.metrics}

    @property
    def verdict(self) -> Verdict:
        """May the samples be used, and may they be shared? `judge` adds attacks."""
        return judge(self)

    def __str__(self) -> str:
        return f"{self.verdict}\n{self.table}"

    @property
    def table(self) -> str:
        """The metrics as lines of text, each beside that of real rows."""
        rows = [("", "samples", "real rows", "ideal", "")]
        for metric in self.metrics:
            value = f"{metric.value:.3g}"
            reference = f"{metric.reference:.3g}"
            rows.append((metric.name, value, reference, metric.ideal, metric.meaning))
        table = format_table(rows, right_aligned=(False, True, True, True, False))
        return (
            f"{table}\n{self.note}; real rows: what they score in place of the samples"
        )

    @property
    def note(self) -> str:
        """How many rows there are, and how many of them were compared."""
        note = (
            f"{self.counts['samples']} samples, {self.counts['train']} training rows "
            f"and {self.counts['held_out']} held-out rows"
        )
        if max(self.counts.values()) > self.max_rows:
            note += f", of each at most {self.max_rows}"
        return note

    def to_dict(self) -> dict[str, Any]:
        """The report as a dict that JSON can hold: None where there is no number."""
        out = asdict(self)
        for metric in out["metrics"]:
            for name in ("value", "reference"):
                if np.isnan(metric[name]):
                    metric[name] = None
        out["metrics"] = list(out["metrics"])
        out["verdict"] = self.verdict.to_dict()
        return out


def report(
    samples: pd.DataFrame | RowsLike,
    train: pd.DataFrame | RowsLike,
    held_out: pd.DataFrame | RowsLike,
    *,
    y: Hashable | Sequence[ArrayLike] | None = None,
    kind: Kind | Literal["auto"] = "auto",
    device: str = "auto",
    notify: Callable[[str], None] = lambda text: None,
) -> Report:
    """Compare samples with held-out rows, and see whether they copy training rows.

    The reference of a metric is what training rows score in place of the samples. The
    reference of the NN ratio is one half of the held-out rows against the other, and
    that of copies and memorized patches is what new real rows score on average. Columns
    of vectors are divided by their standard deviations. Mirror images of training
    pictures count as training pictures. Of each kind of rows at most 2,000 are
    compared, 10,000 on a GPU; copies are searched among all training rows. The same
    input gives the same report.

    Parameters
    ----------
    samples, train, held_out : arrays (n, d), pictures (n, h, w[, c]), or DataFrames
        The samples, the rows that were fitted, and held-out rows.
    y : column name, three arrays of classes, or None, default None
        For DataFrames, the column that `utility` predicts; None takes the last that
        varies. For arrays, the classes of (samples, train, held_out); None leaves
        `recognized` out.
    kind : "vectors", "pictures", "tables" or "auto", default "auto"
        The kind of data. "auto" sees it from the shapes.
    device : "cpu", "cuda" or "auto", default "auto"
        "auto" uses a GPU if there is one.
    notify : callable, optional
        It is called with texts that say what is done next, to show progress.

    Returns
    -------
    report : Report

    Examples
    --------
    >>> train, held_out, samples = np.random.default_rng(0).normal(size=(3, 400, 2))
    >>> print(report(samples, train, held_out, device="cpu").verdict.use)
    May I use it? Green: a classifier hardly tells samples from held-out rows \
(two-sample accuracy 0.49, of real rows 0.54); samples cover 97% of held-out rows \
(real ones 98%)
    """
    require_choice("kind", kind, ("auto", *get_args(Kind)))
    if kind == "auto":
        kind = _infer_kind(train)
    settings = _choose_settings(device, notify)
    if kind == "tables":
        tables = (
            _as_table(samples, "samples"),
            _as_table(train, "train"),
            _as_table(held_out, "held_out"),
        )
        counts = _count_rows(tables)
        scores, details = compare_tables(*tables, y, settings)
    else:
        shape = np.shape(from_tensor(train))[1:]
        arrays = (
            _as_array(samples, "samples", kind, shape),
            _as_array(train, "train", kind, shape),
            _as_array(held_out, "held_out", kind, shape),
        )
        counts = _count_rows(arrays)
        labels = _as_labels(y, counts)
        details = Details()
        if kind == "pictures":
            scores = compare_pictures(*arrays, labels, settings)
        else:
            scores = compare_vectors(*arrays, labels, settings)
    metrics = _as_metrics(scores, details)
    return Report(kind, metrics, counts, settings.max_rows, details)


def _choose_settings(device: str, notify: Callable[[str], None]) -> ComparisonSettings:
    """How many rows are compared, by the device."""
    resolved = str(resolve_device(device))
    max_rows = _MAX_ROWS_ON_GPU
    if resolved == "cpu":
        max_rows = _MAX_ROWS_ON_CPU
    return ComparisonSettings(max_rows, resolved, notify)


def _count_rows(tables: Sequence[Sized]) -> dict[str, int]:
    """The numbers of samples, training rows and held-out rows, if they are enough."""
    names = ("samples", "train", "held_out")
    counts = {name: len(table) for name, table in zip(names, tables, strict=True)}
    if min(counts.values()) < _MIN_ROWS:
        fact = f"there are too few rows, {counts}"
        raise DataError(fact, f"pass {_MIN_ROWS} or more of each")
    return counts


def _infer_kind(train: pd.DataFrame | RowsLike) -> Kind:
    """The kind of data: "tables" of DataFrames, "vectors" of rows, else "pictures"."""
    if hasattr(train, "columns"):
        return "tables"
    if np.ndim(train) == 2:
        return "vectors"
    return "pictures"


def _as_table(table: pd.DataFrame | RowsLike, name: str) -> pd.DataFrame:
    """A DataFrame as it is; a `ParameterError` for anything else."""
    is_dataframe = hasattr(table, "columns")
    require(is_dataframe, name, type(table), "a DataFrame, as train is")
    return cast("pd.DataFrame", table)


def _as_array(
    x: pd.DataFrame | RowsLike, name: str, kind: Kind, shape: tuple[int, ...]
) -> NDArray[Any]:
    """Vectors or pictures as an array; a `DataError` unless rows have this shape."""
    array = np.asarray(from_tensor(x))
    as_flat_rows(array, name)  # refuses what are no finite numbers
    row_shape = array.shape[1:]
    if row_shape != shape or (kind == "pictures" and len(row_shape) < 2):
        fact = f"rows of {name} have shape {row_shape}, of train {shape}"
        raise DataError(fact, f"pass {kind}")
    return array


def _as_labels(
    y: Hashable | Sequence[ArrayLike] | None, counts: Mapping[str, int]
) -> ClassLabels | None:
    """Three arrays of classes from what the user passed; None if there are none."""
    if y is None:
        return None
    fact = "y must be (of samples, of train, of held_out), a class for each row"
    if isinstance(y, str) or not isinstance(y, Sequence) or len(y) != 3:
        raise DataError(fact)
    labels = ClassLabels(
        samples=np.asarray(from_tensor(y[0])),
        train=np.asarray(from_tensor(y[1])),
        held_out=np.asarray(from_tensor(y[2])),
    )
    if [len(part) for part in labels] != list(counts.values()):
        raise DataError(fact)
    return labels


def _as_metrics(scores: Scores, details: Details) -> tuple[Metric, ...]:
    """The metrics of a report, in the order of `_METRICS`."""
    target = details.get("target", "")
    metrics = []
    for name, info in _METRICS.items():
        if name not in scores:
            continue
        metric = Metric(
            name=name,
            value=scores[name].value,
            reference=scores[name].reference,
            ideal=info.ideal,
            meaning=info.meaning.format(target=target),
        )
        metrics.append(metric)
    return tuple(metrics)
