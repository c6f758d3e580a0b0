"""Attacks: can samples tell which rows were fitted, or what these hide?

Distances to the nearest training row are no evidence of privacy (Pilgram et al., 2025;
Yao et al., 2025). An attacker is: he has samples, and real rows that were not fitted,
and says of a row whether it was.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sliceflow.arrays import Floats, Ints
from sliceflow.devices import resolve_device
from sliceflow.errors import DataError
from sliceflow.metrics import tables
from sliceflow.metrics.membership import Estimate, Success, measure_success
from sliceflow.metrics.rows import as_rows, nearest
from sliceflow.metrics.shadows import ShadowAttack
from sliceflow.validation import is_int, require

if TYPE_CHECKING:
    import pandas as pd

# Fewer members or held-out rows tell nothing.
_MIN_ROWS = 30
# With fewer of them, 1 % of false positives cannot be counted.
MIN_PRECISE_ROWS = 100
# The most members and held-out rows that are attacked: with these, 1 % is 20 rows.
_MAX_ROWS = 2_000
# The most samples that are drawn of a model at first; attacks on twice and four times
# as many still take less than a minute.
_MAX_SAMPLES = 20_000
# Held-out rows take turns: a third are the others, and the rest is known to the
# attacker. With more parts he would know a little more, and the attack take longer.
_N_FOLDS = 3
# Attacks are repeated with so many times as many samples.
_GROWTH = (2, 4)
# Neighbours by which densities are estimated: a usual number, as for outliers.
_N_NEIGHBOURS = 5
# Added to distances whose logarithm is taken, in standard deviations of columns: those
# of copies are 0.
_LEAST_DISTANCE = 1e-3
# Added to counts of values, as by Jeffreys's prior: values that are not seen may exist.
_PRIOR_COUNT = 0.5
# Trees of a forest: fewer than usual, for speed.
_N_TREES = 50
# Shadow models that are fitted if a model is attacked, and outliers that they attack.
# A number in the tens is enough for normal likelihoods (Carlini et al.).
_N_SHADOWS = 60
_N_OUTLIERS = 40

SHADOW_ATTACK = "shadow models, outliers"


class _Knowledge(NamedTuple):
    """What an attacker has, all as numbers of `tables.read_tables`."""

    samples: Floats  # (n, c), or fresh rows in their place
    reference: Floats  # (r, c), real rows that were not fitted
    categories: list[bool]  # which columns hold codes
    hidden: int  # the column that he wants to know
    seed: int
    device: str


# What is known, and rows (m, c): scores (m,), which are high if a row was fitted.
_Score = Callable[[_Knowledge, Floats], Floats]


@dataclass(frozen=True)
class Attack:
    """One attack: its success with samples, and with fresh real rows in their place."""

    name: str
    meaning: str
    samples: Success
    fresh: Success
    # The AUC with more samples, by their number; empty if no model was given
    growth: Mapping[int, float]


@dataclass(frozen=True)
class Attacks:
    """Attacks on samples. Made by `attack`; `print` shows a table."""

    attacks: tuple[Attack, ...]
    counts: Mapping[str, int]  # of samples, members, others, shadow models, outliers
    hidden: str  # the column of attribute disclosure

    def __getitem__(self, name: str) -> Attack:
        return {found.name: found for found in self.attacks}[name]

    def __str__(self) -> str:
        more = sorted({n for found in self.attacks for n in found.growth})
        rows = [
            [
                "",
                "AUC",
                "(95 %)",
                "found at 1 %",
                "(95 %)",
                "at 0.1 %",
                "fresh rows: AUC",
                "at 1 %",
                *[f"AUC, {n} samples" for n in more],
            ]
        ]
        rows.extend(_table_row(found, more) for found in self.attacks)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for name, *cells in rows:
            padded = [name.ljust(widths[0])]
            for cell, width in zip(cells, widths[1:], strict=True):
                padded.append(cell.rjust(width))
            lines.append("  ".join(padded).rstrip())
        lines.append(self.note)
        return "\n".join(lines)

    @property
    def note(self) -> str:
        """How many rows were attacked, and what chance would find."""
        counts = self.counts
        note = (
            f"{counts['samples']} samples, {counts['members']} members and "
            f"{counts['others']} others; the hidden column is {self.hidden}; "
            "chance has an AUC of 0.5, and finds 1 % and 0.1 %"
        )
        if counts["shadows"]:
            note += (
                f"; {counts['shadows']} shadow models and {counts['outliers']} outliers"
            )
        if counts["others"] < MIN_PRECISE_ROWS:
            note += f"; with {counts['others']} others all numbers are rough"
        return note

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        out = asdict(self)
        out["attacks"] = list(out["attacks"])
        for found in out["attacks"]:
            growth = found["growth"]
            found["growth"] = {str(n): auc for n, auc in growth.items()}
            for success in (found["samples"], found["fresh"]):
                for name, value in success.items():
                    if isinstance(value, Estimate):
                        success[name] = value._asdict()
        out["note"] = self.note
        return out


def _table_row(found: Attack, more: list[int]) -> list[str]:
    """The cells of an attack in the table."""
    auc = found.samples.auc
    share = found.samples.found_at_1_percent
    cells = [
        found.name,
        f"{auc.value:.3f}",
        f"{auc.low:.2f}–{auc.high:.2f}",
        f"{share.value:.1%}",
        f"{share.low:.1%}–{share.high:.1%}",
        f"{found.samples.found_at_01_percent.value:.1%}",
        f"{found.fresh.auc.value:.3f}",
        f"{found.fresh.found_at_1_percent.value:.1%}",
    ]
    for n in more:
        cells.append(f"{found.growth[n]:.3f}" if n in found.growth else "")
    return cells


def attack(
    model_or_samples: Any,
    train: Any,
    held_out: Any,
    *,
    y: Hashable | None = None,
    n_shadows: int | None = None,
    seed: int = 0,
    device: str = "auto",
    notify: Callable[[str], object] = lambda what: None,
) -> Attacks:
    """Attack samples: tell the rows that were fitted from others of the same kind.

    The attacker has the samples, and reference rows that were not fitted. Scores of
    members are compared with those of others, of which none is a reference row: thirds
    of the held-out rows take turns as others, and the rest is the reference. The same
    attack with *fresh* rows, half of the reference rows in place of the samples, shows
    what chance finds.

    - *distance difference*: the nearest reference row is farther than the nearest
      sample, relative to both.
    - *density ratio*: samples are denser around the row than reference rows are, by
      the five nearest of each [1]_.
    - *forest*: a random forest that learns to tell samples from reference rows takes
      the row for a sample.
    - *verbatim values*: the row's values, column by column, are more frequent in the
      samples than in the reference rows; rare ones that come back tell most.
    - *attribute disclosure*: a forest that learns from samples guesses a hidden column
      of members better than of others [2]_ [3]_.
    - *shadow models, outliers*: of the 40 rows that are farthest from others, as many
      models as `n_shadows` are fitted with half of them, and with half of all rows;
      each in turn is attacked by likelihood ratios of the first, second and fourth
      score under all others [4]_ [5]_. This needs a model.

    Distances alone, such as those of copies, are no evidence of privacy [6]_ [7]_. An
    attack that fails proves nothing, either: there may be a better one. Intervals take
    rows for independent; because thirds take turns, they are up to a sixth too narrow.

    Parameters
    ----------
    model_or_samples : a model that was fitted to `train`, with the methods ``fit(X)``
        and ``sample(n, random_state=…)``, or samples: a DataFrame, or an array (n, d)
    train, held_out : the fitted rows, and rows of the same kind that were not fitted:
        DataFrames or arrays; equally many are best, and 300 or more
    y : the column of attribute disclosure; None takes the last that varies
    n_shadows : the number of shadow models; None fits 60 of a model, 0 none
    seed : of what is random
    device : "cpu", "cuda", or "auto", where nearest rows are searched
    notify : is called with what is done next, and how long it takes

    References
    ----------
    .. [1] van Breugel et al. (2023), "Membership inference attacks against synthetic
       data through overfitting detection" (DOMIAS).
    .. [2] Stadler, Oprisanu and Troncoso (2022), "Synthetic data: anonymisation
       groundhog day".
    .. [3] Giomi et al. (2023), "A unified framework for quantifying privacy risk in
       synthetic data" (Anonymeter).
    .. [4] Carlini et al. (2022), "Membership inference attacks from first principles".
    .. [5] Meeus et al. (2023), "Achilles' heels: vulnerable record identification in
       synthetic data publishing", arXiv 2306.10308.
    .. [6] Pilgram et al. (2025), "A consensus privacy metrics framework for synthetic
       data", Patterns, arXiv 2503.04980.
    .. [7] Yao et al. (2025), "The DCR delusion: measuring the privacy risk of synthetic
       data", arXiv 2505.01524.

    Examples
    --------
    >>> train, held_out = np.random.default_rng(0).normal(size=(2, 200, 3))
    >>> found = attack(train, train, held_out, device="cpu")  # samples that are copies
    >>> found["distance difference"].samples.auc.value
    1.0
    """
    is_count = n_shadows is None or n_shadows == 0 or is_int(n_shadows, 8)
    require(is_count, "n_shadows", n_shadows, "0, or 8 or more")
    is_model = hasattr(model_or_samples, "sample") and hasattr(model_or_samples, "fit")
    if n_shadows is None:
        n_shadows = _N_SHADOWS if is_model else 0
    if n_shadows and not is_model:
        fact = "shadow models need a model with fit and sample, and there are samples"
        raise DataError(fact, "pass the model, or n_shadows=0")
    settings = _Settings(y, seed, str(resolve_device(device)), notify)
    train_df = _as_dataframe(train, "train")
    held_out_df = _as_dataframe(held_out, "held_out")
    drawn = [model_or_samples]
    if is_model:
        n = min(len(train_df), _MAX_SAMPLES)
        drawn = []
        for factor in (1, *_GROWTH):
            drawn.append(model_or_samples.sample(factor * n, random_state=seed))
    drawn_dfs = [_as_dataframe(samples, "samples") for samples in drawn]
    sizes = {
        "samples": len(drawn_dfs[0]),
        "train": len(train_df),
        "held_out": len(held_out_df),
    }
    if min(sizes.values()) < _MIN_ROWS:
        fact = f"there are too few rows, {sizes}"
        raise DataError(fact, f"pass {_MIN_ROWS} or more of each")
    names = [name for name in train_df.columns if name in drawn_dfs[0].columns]
    train_df = train_df[names]
    held_out_df = held_out_df[names]
    attacks, hidden = _attack_samples(drawn_dfs, train_df, held_out_df, settings)

    n_outliers = 0
    if n_shadows:
        n_outliers = min(_N_OUTLIERS, len(train_df) // 2)
        shadows = ShadowAttack(n_shadows, n_outliers, seed, settings.device, notify)
        attacks.append(
            _attack_outliers(
                shadows, model_or_samples, train_df, held_out_df, not _is_table(train)
            )
        )
    return Attacks(
        tuple(attacks),
        counts={
            "samples": len(drawn_dfs[0]),
            "members": min(_MAX_ROWS, len(train_df)),
            "others": min(_MAX_ROWS, len(held_out_df)),
            "shadows": n_shadows,
            "outliers": n_outliers,
        },
        hidden=hidden,
    )


class _Settings(NamedTuple):
    """What all attacks share."""

    hidden: Hashable | None
    seed: int
    device: str
    notify: Callable[[str], object]


def _is_table(x: Any) -> bool:
    return hasattr(x, "columns")


def _as_dataframe(x: Any, name: str) -> pd.DataFrame:
    """A DataFrame as it is, or one of an array (n, d)."""
    import pandas as pd

    if _is_table(x):
        df: pd.DataFrame = x
        return df.reset_index(drop=True)
    if np.ndim(x) != 2:
        fact = f"{name} has the shape {np.shape(x)}"
        raise DataError(fact, "pass a DataFrame or rows (n, d)")
    rows = as_rows(x, name)
    return pd.DataFrame(rows, columns=[f"column {c}" for c in range(rows.shape[1])])


def _attack_samples(
    drawn_dfs: list[pd.DataFrame],
    train: pd.DataFrame,
    held_out: pd.DataFrame,
    settings: _Settings,
) -> tuple[list[Attack], str]:
    """The attacks that need samples only, and the name of the hidden column."""
    read = tables.read_tables(drawn_dfs[0], train, held_out, *drawn_dfs[1:])
    samples, train_rows, held_out_rows, *more_samples = read.rows
    rng = np.random.default_rng(settings.seed)
    members = rng.permutation(train_rows)[:_MAX_ROWS]
    others = rng.permutation(held_out_rows)[:_MAX_ROWS]
    hidden = tables.choose_target(settings.hidden, read.names, members)
    knowledge = _Knowledge(
        samples=samples,
        reference=others,
        categories=read.categories,
        hidden=read.names.index(hidden),
        seed=settings.seed,
        device=settings.device,
    )
    attacks = []
    for name, (score, meaning) in _SCORES.items():
        settings.notify(f"attacking by {name}")
        growth = {}
        for drawn in more_samples:
            more = knowledge._replace(samples=drawn)
            growth[len(drawn)] = _success(score, more, members, others).auc.value
        found = Attack(
            name=name,
            meaning=meaning.format(hidden=hidden),
            samples=_success(score, knowledge, members, others),
            fresh=_success(score, knowledge, members, others, with_fresh_rows=True),
            growth=growth,
        )
        attacks.append(found)
    return attacks, hidden


def _success(
    score: _Score,
    knowledge: _Knowledge,
    members: Floats,
    others: Floats,
    with_fresh_rows: bool = False,
) -> Success:
    """The success of scores, in parts: each part of the others is no reference then."""
    member_scores = []
    other_scores = []
    for fold in range(_N_FOLDS):
        reference = np.delete(others, np.s_[fold::_N_FOLDS], axis=0)
        known = knowledge._replace(reference=reference)
        if with_fresh_rows:
            known = known._replace(samples=reference[::2], reference=reference[1::2])
        members_in_fold = members[fold::_N_FOLDS]
        others_in_fold = others[fold::_N_FOLDS]
        scores = score(known, np.concatenate((members_in_fold, others_in_fold)))
        member_scores.append(scores[: len(members_in_fold)])
        other_scores.append(scores[len(members_in_fold) :])
    return measure_success(np.concatenate(member_scores), np.concatenate(other_scores))


def _attack_outliers(
    shadows: ShadowAttack,
    model: Any,
    train: pd.DataFrame,
    held_out: pd.DataFrame,
    is_array: bool,
) -> Attack:
    """The attack by shadow models on outliers."""
    import pandas as pd

    def as_input(df: pd.DataFrame) -> Any:
        return df.to_numpy() if is_array else df

    def statistics(samples: Any, pool: pd.DataFrame, outliers: Ints) -> Floats:
        samples = _as_dataframe(samples, "samples")
        read = tables.read_tables(samples, pool)
        sample_rows, pool_rows = read.rows
        known = _Knowledge(
            samples=sample_rows,
            # A row is no reference for itself: its distance would be 0.
            reference=np.delete(pool_rows, outliers, axis=0),
            categories=read.categories,
            hidden=0,
            seed=shadows.seed,
            device=shadows.device,
        )
        rows = pool_rows[outliers]
        scores = (_distance_difference, _density_ratio, _verbatim_values)
        return np.column_stack([score(known, rows) for score in scores])

    shadows.notify(f"fitting {shadows.n_shadows} shadow models")
    pool = pd.concat([train, held_out], ignore_index=True)
    success, by_chance = shadows.run(model, pool, statistics, as_input)
    meaning = "likelihood ratio of the rows farthest from others, by shadow models"
    return Attack(SHADOW_ATTACK, meaning, success, by_chance, {})


def _distance_difference(known: _Knowledge, rows: Floats) -> Floats:
    """The difference of two distances over their sum: 1 of copies, 0 in the mean."""
    to_samples, to_reference = _neighbour_distances(known, rows, 1)
    total = np.maximum(to_reference + to_samples, np.finfo(float).tiny)
    return np.asarray((to_reference - to_samples) / total)[:, 0]


def _density_ratio(known: _Knowledge, rows: Floats) -> Floats:
    """The log ratio of two densities, by the mean log distance to near rows."""
    to_samples, to_reference = _neighbour_distances(known, rows, _N_NEIGHBOURS)
    log_samples = np.log(to_samples + _LEAST_DISTANCE).mean(axis=1)
    log_reference = np.log(to_reference + _LEAST_DISTANCE).mean(axis=1)
    return np.asarray(log_reference - log_samples)


def _neighbour_distances(
    known: _Knowledge, rows: Floats, k: int
) -> tuple[Floats, Floats]:
    """Distances of rows to the k nearest samples, and reference rows, (m, k) each."""
    points = _points(known, rows)
    distances = []
    for others in (known.samples, known.reference):
        found, _ = nearest(points, _points(known, others), k, device=known.device)
        distances.append(found)
    to_samples, to_reference = distances
    return to_samples, to_reference


def _points(known: _Knowledge, rows: Floats) -> Floats:
    """Rows as points, in units of the reference rows."""
    return tables.points(rows, known.categories, known.reference)


def _forest(known: _Knowledge, rows: Floats) -> Floats:
    """The probability that a forest gives rows to be samples."""
    from sklearn.ensemble import RandomForestClassifier

    learnt = np.concatenate((known.samples, known.reference))
    is_sample = np.arange(len(learnt)) < len(known.samples)
    forest = RandomForestClassifier(
        _N_TREES, class_weight="balanced", random_state=known.seed
    )
    forest.fit(_points(known, learnt), is_sample)
    return np.asarray(forest.predict_proba(_points(known, rows))[:, 1])


def _verbatim_values(known: _Knowledge, rows: Floats) -> Floats:
    """The sum over columns of log ratios of how frequent the rows' values are."""
    score = np.zeros(len(rows))
    for c in range(rows.shape[1]):
        in_samples = _smoothed_shares(known.samples[:, c], rows[:, c])
        in_reference = _smoothed_shares(known.reference[:, c], rows[:, c])
        score += np.log(in_samples) - np.log(in_reference)
    return score


def _smoothed_shares(column: Floats, values: Floats) -> Floats:
    """The shares (m,) that values have in a column (n,), a little more than 0.

    Missing cells count as one value.
    """
    # NaN is never equal to itself; no real cell is infinite.
    column = np.where(np.isnan(column), np.inf, column)
    values = np.where(np.isnan(values), np.inf, values)
    known, counts = np.unique(column, return_counts=True)
    place = np.searchsorted(known, values).clip(max=len(known) - 1)
    count = np.where(known[place] == values, counts[place], 0)
    return np.asarray((count + _PRIOR_COUNT) / (len(column) + 1))


def _attribute_disclosure(known: _Knowledge, rows: Floats) -> Floats:
    """How well a forest that learns from samples guesses the hidden column."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    is_known = ~np.isnan(known.samples[:, known.hidden])
    samples = known.samples[is_known]
    truth = rows[:, known.hidden]
    if len(samples) == 0 or rows.shape[1] == 1:
        return np.zeros(len(rows))
    learnt = _points_without(known, samples)
    guessed_from = _points_without(known, rows)
    if known.categories[known.hidden]:
        classifier = RandomForestClassifier(_N_TREES, random_state=known.seed)
        classifier.fit(learnt, samples[:, known.hidden])
        probabilities = classifier.predict_proba(guessed_from)
        is_true = classifier.classes_ == truth[:, None]
        return np.asarray((probabilities * is_true).sum(axis=1))
    regressor = RandomForestRegressor(_N_TREES, random_state=known.seed)
    regressor.fit(learnt, samples[:, known.hidden])
    error = np.abs(regressor.predict(guessed_from) - truth)
    # A missing cell has no error; it is the worst guess, of members and others alike.
    return -np.where(np.isnan(error), np.inf, error)


def _points_without(known: _Knowledge, rows: Floats) -> Floats:
    """Rows as points, without the hidden column."""
    others = np.arange(rows.shape[1]) != known.hidden
    categories = [bool(c) for c in np.asarray(known.categories)[others]]
    return tables.points(rows[:, others], categories, known.reference[:, others])


_SCORES: dict[str, tuple[_Score, str]] = {
    "distance difference": (
        _distance_difference,
        "the nearest reference row is farther than the nearest sample",
    ),
    "density ratio": (
        _density_ratio,
        "samples are denser around a row than reference rows are",
    ),
    "forest": (_forest, "a forest of samples and reference rows takes it for a sample"),
    "verbatim values": (
        _verbatim_values,
        "values of a row are more frequent in samples than in reference rows",
    ),
    "attribute disclosure": (
        _attribute_disclosure,
        "a forest that learns from samples guesses {hidden} better",
    ),
}
