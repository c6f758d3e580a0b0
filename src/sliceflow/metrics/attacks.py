"""Attacks: can samples tell which rows were fitted, or what these hide?

Distances to the nearest training row are no evidence of privacy (Pilgram et al., 2025;
Yao et al., 2025). An attack is: somebody has samples, and real rows that were not
fitted, and says of other rows whether they were fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from sliceflow.arrays import Floats, Ints
from sliceflow.devices import resolve_device
from sliceflow.errors import DataError
from sliceflow.metrics.attack_results import SHADOW_ATTACK, Attack, Attacks
from sliceflow.metrics.attack_scores import (
    SCORED_ATTACKS,
    AttackerKnowledge,
    ScoreFunction,
    density_ratio,
    distance_difference,
    verbatim_values,
)
from sliceflow.metrics.membership import AttackScore, score_attack
from sliceflow.metrics.rows import RowsLike, as_flat_rows
from sliceflow.metrics.shadows import GenerativeModel, ShadowAttack
from sliceflow.metrics.table_encoding import choose_target, encode_tables
from sliceflow.validation import is_int, require, require_int

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

# With fewer members or held-out rows, an attack says nothing.
_MIN_ROWS = 30
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
# Shadow models that are fitted if a model is attacked, and outliers that they attack.
# A number in the tens is enough for normal likelihoods (Carlini et al.).
_N_SHADOWS = 60
_N_OUTLIERS = 40


def attack(
    model_or_samples: GenerativeModel | pd.DataFrame | RowsLike,
    train: pd.DataFrame | RowsLike,
    held_out: pd.DataFrame | RowsLike,
    *,
    hidden: Hashable | None = None,
    n_shadows: int | None = None,
    random_state: int = 0,
    device: str = "auto",
    notify: Callable[[str], None] = lambda text: None,
) -> Attacks:
    """Attack samples: tell the rows that were fitted from others of the same kind.

    The attacker has the samples, and reference rows that were not fitted. Scores of
    members are compared with those of others, of which none is a reference row: thirds
    of the held-out rows take turns as others, and the rest is the reference. The same
    attack with *fresh* rows, half of the reference rows in place of the samples, shows
    what chance finds.

    - *distance difference*: the nearest reference row is farther than the nearest
      sample, relative to both.
    - *density ratio*: samples are denser around the row than reference rows are, by the
      five nearest of each [1]_.
    - *forest*: a random forest that learns to tell samples from reference rows takes
      the row for a sample.
    - *verbatim values*: the row's values, column by column, are more frequent in the
      samples than in the reference rows; rare ones that come back tell most.
    - *attribute disclosure*: a forest that learns from samples guesses a hidden column
      of members better than of others [2]_ [3]_.
    - *shadow models, outliers*: `n_shadows` models are fitted, each to a random half of
      all rows. Each model in turn is attacked: which of the 40 rows that are farthest
      from others were fitted? The answer is by likelihood ratios of the first, second
      and fourth score, as all other models see them [4]_ [5]_. This needs a model.

    Distances alone, such as those of copies, are no evidence of privacy [6]_ [7]_. An
    attack that fails proves nothing, either: there may be a better one. Intervals
    assume independent rows. Because thirds take turns, they are up to a sixth too
    narrow.

    Parameters
    ----------
    model_or_samples : model, DataFrame or array (n, d)
        Samples, or a model that was fitted to `train`, with the methods ``fit(X)`` and
        ``sample(n, random_state=…)``.
    train, held_out : DataFrame or array
        The fitted rows, and rows of the same kind that were not fitted. Equally many
        are best, and 300 or more.
    hidden : column name or None, default None
        The column that attribute disclosure guesses. None takes the last that varies.
    n_shadows : int or None, default None
        The number of shadow models. None fits 60 of a model, and none of samples.
    random_state : int, default 0
        The seed of all random numbers.
    device : "cpu", "cuda" or "auto", default "auto"
        Where nearest rows are searched.
    notify : callable, optional
        It is called with texts that say what is done next, and how long it takes.

    Returns
    -------
    attacks : Attacks

    References
    ----------
    .. [1] van Breugel et al. (2023), "Membership inference attacks against synthetic
       data through overfitting detection" (DOMIAS).
    .. [2] Stadler, Oprisanu and Troncoso (2022), "Synthetic data: anonymization
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
    >>> found["distance difference"].score.auc.value
    1.0
    """
    require_int("random_state", random_state, 0)
    is_model = isinstance(model_or_samples, GenerativeModel)
    n_shadows = _resolve_n_shadows(n_shadows, is_model)
    settings = _Settings(hidden, random_state, str(resolve_device(device)), notify)
    train_df = _as_dataframe(train, "train")
    held_out_df = _as_dataframe(held_out, "held_out")
    if isinstance(model_or_samples, GenerativeModel):
        sample_dfs = _draw_samples(model_or_samples, len(train_df), random_state)
    else:
        sample_dfs = [_as_dataframe(model_or_samples, "samples")]
    _check_row_counts(sample_dfs[0], train_df, held_out_df)
    names = [name for name in train_df.columns if name in sample_dfs[0].columns]
    train_df = train_df[names]
    held_out_df = held_out_df[names]
    attacks, hidden_name = _attack_samples(sample_dfs, train_df, held_out_df, settings)

    n_outliers = 0
    if n_shadows and isinstance(model_or_samples, GenerativeModel):
        n_outliers = min(_N_OUTLIERS, len(train_df) // 2)
        shadows = ShadowAttack(
            n_shadows, n_outliers, random_state, settings.device, notify
        )
        takes_arrays = not _is_table(train)
        attacks.append(
            _attack_outliers(
                shadows, model_or_samples, train_df, held_out_df, takes_arrays
            )
        )
    return Attacks(
        tuple(attacks),
        counts={
            "samples": len(sample_dfs[0]),
            "members": min(_MAX_ROWS, len(train_df)),
            "others": min(_MAX_ROWS, len(held_out_df)),
            "shadows": n_shadows,
            "outliers": n_outliers,
        },
        hidden=hidden_name,
    )


def _check_row_counts(
    samples: pd.DataFrame, train: pd.DataFrame, held_out: pd.DataFrame
) -> None:
    """Raise a `DataError` if there are too few rows for an attack."""
    counts = {"samples": len(samples), "train": len(train), "held_out": len(held_out)}
    if min(counts.values()) < _MIN_ROWS:
        fact = f"there are too few rows, {counts}"
        raise DataError(fact, f"pass {_MIN_ROWS} or more of each")


def _draw_samples(
    model: GenerativeModel, n_train: int, seed: int
) -> list[pd.DataFrame]:
    """Samples, as many as fitted rows, and larger sets that show how attacks grow."""
    n = min(n_train, _MAX_SAMPLES)
    sample_dfs = []
    for factor in (1, *_GROWTH):
        samples = model.sample(factor * n, random_state=seed)
        sample_dfs.append(_as_dataframe(samples, "samples"))
    return sample_dfs


def _resolve_n_shadows(n_shadows: int | None, is_model: bool) -> int:
    """The number of shadow models; None is the default of a model, or 0 of samples."""
    is_count = n_shadows is None or n_shadows == 0 or is_int(n_shadows, 8)
    require(is_count, "n_shadows", n_shadows, "0, or 8 or more")
    if n_shadows is None:
        n_shadows = _N_SHADOWS if is_model else 0
    if n_shadows and not is_model:
        fact = "shadow models need a model with fit and sample, and there are samples"
        raise DataError(fact, "pass the model, or n_shadows=0")
    return n_shadows


class _Settings(NamedTuple):
    """The settings that all attacks share."""

    hidden: Hashable | None  # the column to guess; None takes the last that varies
    seed: int
    device: str
    notify: Callable[[str], None]


def _is_table(x: object) -> bool:
    return hasattr(x, "columns")


def _as_dataframe(x: pd.DataFrame | RowsLike, name: str) -> pd.DataFrame:
    """A DataFrame as it is, or one of an array (n, d)."""
    import pandas as pd

    if _is_table(x):
        return cast("pd.DataFrame", x).reset_index(drop=True)
    if np.ndim(x) != 2:
        fact = f"{name} has the shape {np.shape(x)}"
        raise DataError(fact, "pass a DataFrame or rows (n, d)")
    rows = as_flat_rows(x, name)
    return pd.DataFrame(rows, columns=[f"column {c}" for c in range(rows.shape[1])])


def _attack_samples(
    sample_dfs: list[pd.DataFrame],
    train: pd.DataFrame,
    held_out: pd.DataFrame,
    settings: _Settings,
) -> tuple[list[Attack], str]:
    """Make all attacks that need samples only; also returns the hidden column's name.

    Parameters
    ----------
    sample_dfs : the samples, and larger sets of samples that show how attacks grow
    train, held_out : rows that were fitted, and rows that were not
    settings : the settings of all attacks
    """
    encoded = encode_tables(sample_dfs[0], train, held_out, *sample_dfs[1:])
    held_out_rows, *more_samples = encoded.others
    rng = np.random.default_rng(settings.seed)
    members = rng.permutation(encoded.train)[:_MAX_ROWS]
    others = rng.permutation(held_out_rows)[:_MAX_ROWS]
    hidden = choose_target(settings.hidden, encoded.names, members)
    knowledge = AttackerKnowledge(
        samples=encoded.samples,
        reference=others,
        is_categorical=encoded.is_categorical,
        hidden_index=encoded.names.index(hidden),
        seed=settings.seed,
        device=settings.device,
    )
    results = []
    for name, scored in SCORED_ATTACKS.items():
        settings.notify(f"attacking by {name}")
        auc_by_n_samples = {}
        for larger_set in more_samples:
            more_known = knowledge._replace(samples=larger_set)
            result = _run_attack(scored.score, more_known, members, others)
            auc_by_n_samples[len(larger_set)] = result.auc.value
        score = _run_attack(scored.score, knowledge, members, others)
        null_score = _run_attack(
            scored.score, knowledge, members, others, with_fresh_rows=True
        )
        meaning = scored.meaning.format(hidden=hidden)
        results.append(Attack(name, meaning, score, null_score, auc_by_n_samples))
    return results, hidden


def _run_attack(
    score: ScoreFunction,
    knowledge: AttackerKnowledge,
    members: Floats,
    others: Floats,
    with_fresh_rows: bool = False,
) -> AttackScore:
    """How well the scores of rows tell members from others.

    Thirds of the others take turns as others; the rest is the attacker's reference.
    With fresh rows, half of the reference takes the place of the samples.

    Parameters
    ----------
    score : gives scores (m,) to rows
    knowledge : what the attacker has; the reference is filled in here
    members, others : rows (n, c) that were fitted, and rows that were not
    with_fresh_rows : whether to attack fresh rows instead of samples
    """
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
    return score_attack(np.concatenate(member_scores), np.concatenate(other_scores))


def _attack_outliers(
    shadows: ShadowAttack,
    model: GenerativeModel,
    train: pd.DataFrame,
    held_out: pd.DataFrame,
    takes_arrays: bool,
) -> Attack:
    """The attack by shadow models on outliers.

    `takes_arrays` is whether the model takes arrays and not DataFrames.
    """
    import pandas as pd

    def as_input(df: pd.DataFrame) -> pd.DataFrame | NDArray[Any]:
        return df.to_numpy() if takes_arrays else df

    def statistics(
        samples: pd.DataFrame | RowsLike, pool: pd.DataFrame, outliers: Ints
    ) -> Floats:
        sample_df = _as_dataframe(samples, "samples")
        return _score_outliers(sample_df, pool, outliers, shadows)

    shadows.notify(f"fitting {shadows.n_shadows} shadow models")
    pool = pd.concat([train, held_out], ignore_index=True)
    scores = shadows.run(model, pool, statistics, as_input)
    return Attack(
        name=SHADOW_ATTACK,
        meaning="likelihood ratio of the rows farthest from others, by shadow models",
        score=scores.score,
        null_score=scores.null_score,
        auc_by_n_samples={},
    )


def _score_outliers(
    samples: pd.DataFrame, pool: pd.DataFrame, outliers: Ints, shadows: ShadowAttack
) -> Floats:
    """Three scores (t, 3) of the rows of the pool that have the indices `outliers`."""
    encoded = encode_tables(samples, pool)
    known = AttackerKnowledge(
        samples=encoded.samples,
        # A row is no reference for itself: its distance would be 0.
        reference=np.delete(encoded.train, outliers, axis=0),
        is_categorical=encoded.is_categorical,
        hidden_index=0,
        seed=shadows.seed,
        device=shadows.device,
    )
    rows = encoded.train[outliers]
    scores = (distance_difference, density_ratio, verbatim_values)
    return np.column_stack([score(known, rows) for score in scores])
