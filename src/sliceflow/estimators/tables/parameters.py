"""The parameters of a `TableFlow`, with their types and their checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from sliceflow.estimators.tables.draws.trees import TreeSettings
from sliceflow.validation import (
    MAX_COUNT,
    is_int,
    is_real,
    require,
    require_choice,
    require_int,
    with_plain_numbers,
)

# Whether the fit searches for rules.
RuleSearch = Literal["auto", "off"]
# What samples have where the table has missing cells.
MissingCells = Literal["model", "never"]
# How levels of categories that few rows have are treated: they are kept with or without
# a warning, or merged.
RareLevels = Literal["warn", "keep", "merge"]
# `TreeSettings` are such tuples, and a file keeps them as such tuples.
TreeSettingsLike: TypeAlias = tuple[int, float] | tuple[int, float, int]


@dataclass(frozen=True, eq=False)
class TableParameters:
    """The parameters of a `TableFlow` that a fit needs, as the user gave them."""

    kinds: Mapping[str, str] | None
    constraints: Sequence[str]
    rules: RuleSearch
    missing: MissingCells
    tree_settings: TreeSettingsLike | None
    min_count: int
    rare_levels: RareLevels

    def require_valid(self) -> None:
        """Raise a `ParameterError` for the first invalid parameter."""
        _require_kinds(self.kinds)
        is_list = isinstance(self.constraints, list | tuple)
        requirement = "a list of expressions such as ['a <= b']"
        require(is_list, "constraints", self.constraints, requirement)
        require_choice("rules", self.rules, get_args(RuleSearch))
        require_missing_cells(self.missing)
        _require_tree_settings(self.tree_settings)
        require_int("min_count", self.min_count, 1)
        require_choice("rare_levels", self.rare_levels, get_args(RareLevels))

    @property
    def user_tree_settings(self) -> TreeSettings | None:
        """The user's tree settings, with numbers of Python's types; None for ours."""
        if self.tree_settings is None:
            return None
        settings = TreeSettings(*self.tree_settings)
        return TreeSettings(
            min_samples_leaf=with_plain_numbers(settings.min_samples_leaf),
            ccp_factor=with_plain_numbers(settings.ccp_factor),
            n_neighbors=with_plain_numbers(settings.n_neighbors),
        )


def require_missing_cells(missing: object) -> None:
    """Raise a `ParameterError` unless `missing` is one of its choices."""
    require_choice("missing", missing, get_args(MissingCells))


def _require_kinds(kinds: object) -> None:
    """Raise a `ParameterError` unless `kinds` is None or a dict with names as keys."""
    is_valid = kinds is None
    if isinstance(kinds, Mapping):
        is_valid = all(isinstance(text, str) for text in [*kinds, *kinds.values()])
    require(is_valid, "kinds", kinds, "None or a dict such as {'zip': 'category'}")


def _is_count(value: object, minimum: int) -> bool:
    """Whether a tree setting is an int from `minimum` to the largest count."""
    return is_int(value, minimum) and is_real(value, minimum, MAX_COUNT)


def _require_tree_settings(tree_settings: object) -> None:
    """Raise a `ParameterError` unless the settings are None, or numbers in range."""
    is_valid = tree_settings is None
    if isinstance(tree_settings, tuple) and len(tree_settings) in (2, 3):
        settings = TreeSettings(*tree_settings)
        is_valid = (
            _is_count(settings.min_samples_leaf, 1)
            and is_real(settings.ccp_factor, 0)
            and _is_count(settings.n_neighbors, 0)
        )
    requirement = "None, TreeSettings(10, 2.5), or a tuple such as (10, 2.5)"
    require(is_valid, "tree_settings", tree_settings, requirement)
