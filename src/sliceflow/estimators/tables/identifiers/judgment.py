"""Which columns have identifiers: customer numbers, e-mail addresses, names.

They must not appear in samples. `judge_identifier` finds such columns, with what
`personal` says about persons. Where values are nearly unique, each new row has a new
one (`new_identifiers`). Where they repeat, as those of a customer with many orders,
they are drawn like categories, and then each one that was drawn gets a new value.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from sliceflow.arrays import Ints
from sliceflow.estimators.tables.identifiers.personal import (
    is_personal_number,
    personal_kind,
)
from sliceflow.estimators.tables.rows.encoded_columns import EncodedColumn

# A column for which only this reason speaks is one of numbers or dates nevertheless, if
# all its texts are numbers or dates.
NEARLY_UNIQUE = "is nearly unique"
# Texts that are longer on average are free text: neither identifiers nor categories.
# By judgment: addresses and UUIDs are shorter, most sentences are longer.
LONG_TEXT_LENGTH = 40
# With fewer rows, different values in all of them may be chance. With more, identifiers
# of a small table would come out in samples.
MIN_ROWS_TO_JUDGE = 20
# A column is nearly unique if at least this share of its cells are different. By
# judgment.
_MIN_DISTINCT_SHARE = 0.8
# Texts with fewer spaces on average are identifiers of any form. With more, they are
# sentences, unless they have few forms. By judgment: a name has one or two spaces.
_MAX_SPACES_OF_IDENTIFIER = 1.5
# Different forms, such as AB-12 and ABC-12, that texts with spaces may have.
_MAX_FORMS = 3
# At most this many values are looked at to see their form; more would only take time.
MAX_VALUES_READ = 1_000

# Names of columns of identifiers: customer_id, userId, "account number" …
_IDENTIFIER_COLUMN = re.compile(
    r"(^|[_\W])(id|uuid|guid|key|ssn|iban|phone|mobile|e-?mail|passport)$"
    r"|^(id|uuid)[_\W]"
    r"|[a-z]I[dD]$"
    r"|(account|customer|card|policy|invoice|member|patient|phone)"
    r"[_\W]*(number|no|nr)$",
    re.IGNORECASE,
)
# Names of columns of persons' names: name, last_name, "Full Name" …
_NAME_COLUMN = re.compile(
    r"(^|[_\W])(first|last|full|sur|given|family)?[_\W]*name$", re.IGNORECASE
)


class IdentifierJudgment(NamedTuple):
    """Why a column has identifiers, and whether their values repeat."""

    reason: str  # empty if the column has no identifiers
    has_repeats: bool = False  # whether a new value shall stand for each known one


_NO_IDENTIFIER = IdentifierJudgment("")


def judge_identifier(
    column: EncodedColumn, distinct_row_indices: Ints
) -> IdentifierJudgment:
    """Whether a column of texts or integers identifies persons or rows, and why.

    `distinct_row_indices` are of rows that repeat no earlier row as a whole, because a
    table that holds each row twice should get the same answer.
    """
    if column.value_type not in ("str", "int"):
        return _NO_IDENTIFIER
    codes = column.codes[distinct_row_indices]
    counts = np.bincount(codes[codes >= 0])  # of cells, by their code
    distinct_codes = np.flatnonzero(counts)
    n_cells = int(counts.sum())
    n_distinct = len(distinct_codes)
    if n_distinct < 2:
        return _NO_IDENTIFIER

    values = column.levels.iloc[distinct_codes[:MAX_VALUES_READ]]
    texts = values.astype(str).tolist()
    rows_per_value = float(np.median(counts[distinct_codes]))
    has_repeats = n_distinct < _MIN_DISTINCT_SHARE * n_cells
    reason = _personal_reason(column, texts, rows_per_value, n_cells)
    is_perhaps_chance = n_cells < MIN_ROWS_TO_JUDGE or column.categorical
    if not reason and not is_perhaps_chance:
        if has_repeats:
            reason = _reason_of_repeating(column, most_differ=2 * n_distinct > n_cells)
        else:
            reason = _reason_of_unique(column, texts)
    if not reason:
        return _NO_IDENTIFIER
    return IdentifierJudgment(reason, has_repeats)


def _personal_reason(
    column: EncodedColumn, texts: list[str], rows_per_value: float, n_cells: int
) -> str:
    """Why values, as texts, identify persons; empty if they do not."""
    name = str(column.name)
    if column.value_type == "str":
        kind = personal_kind(name, texts, rows_per_value)
        if kind:
            return f"looks like {kind}"
    if n_cells >= MIN_ROWS_TO_JUDGE and is_personal_number(name, texts):
        return "is named like a number of persons"
    return ""


def _reason_of_unique(column: EncodedColumn, texts: list[str]) -> str:
    """Why nearly unique values, as texts, are identifiers; empty if they are none."""
    if _IDENTIFIER_COLUMN.search(str(column.name)):
        return "is nearly unique and named like an identifier"
    # Nearly all integers of a measurement differ, too, so this is only for texts.
    if column.value_type == "str" and _has_forms_of_identifiers(texts):
        return NEARLY_UNIQUE
    return ""


def _reason_of_repeating(column: EncodedColumn, most_differ: bool) -> str:
    """Why values that repeat are identifiers; empty if they are none."""
    is_named_name = _NAME_COLUMN.search(str(column.name)) is not None
    if column.value_type == "str" and most_differ and is_named_name:
        return "looks like a name"
    return ""


def has_repeated_values(column: EncodedColumn) -> bool:
    """Whether a column has clearly fewer different values than cells."""
    codes = column.observed_codes
    return len(np.unique(codes)) < _MIN_DISTINCT_SHARE * len(codes)


def _has_forms_of_identifiers(texts: list[str]) -> bool:
    """Whether texts are short, and have few words, or only a few forms in all."""
    mean_length = sum(len(text) for text in texts) / len(texts)
    if mean_length > LONG_TEXT_LENGTH:
        return False
    mean_spaces = sum(text.count(" ") for text in texts) / len(texts)
    if mean_spaces < _MAX_SPACES_OF_IDENTIFIER:
        return True
    return len({_signs(text) for text in texts}) <= _MAX_FORMS


def _signs(text: str) -> str:
    """A text with one sign for all digits, one for capital and one for small letters.

    The signs of AB-12 are AA-00.
    """
    signs = []
    for character in text:
        if character.isdigit():
            signs.append("0")
        elif character.isalpha():
            signs.append("A" if character.isupper() else "a")
        else:
            signs.append(character)
    return "".join(signs)
