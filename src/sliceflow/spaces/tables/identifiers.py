"""Identifiers and personal data: how they are recognised, and new ones like them.

A column of customer numbers, e-mail addresses or names must not appear in samples.
`why_identifier` recognises such columns by their values and names. `new_identifiers`
makes up others of the same form: other digits and letters in the same places.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from string import ascii_lowercase, ascii_uppercase, digits, hexdigits

import numpy as np

from sliceflow.arrays import Ints
from sliceflow.errors import DataError
from sliceflow.spaces.tables.cells import EncodedColumn

# A column that is an identifier for this reason only is numbers or dates nevertheless,
# if all its texts are.
NEARLY_UNIQUE = "is nearly unique"
# Texts that are longer on average are free text: neither identifiers nor categories.
# By judgement: addresses and UUIDs are shorter, most sentences are longer.
LONG_TEXT_LENGTH = 40
# With fewer rows, different values in all of them may be chance. With more, identifiers
# of a small table would come out in samples.
MIN_ROWS_TO_JUDGE = 20
# A column is nearly unique if at least this share of its cells are different, and
# personal if at least this share of its texts have a personal form. By judgement.
_MIN_IDENTIFYING_SHARE = 0.8
# Texts with fewer spaces on average are identifiers of any form. With more, they are
# sentences, unless they have few forms. By judgement: a name has one or two spaces.
_MAX_SPACES_OF_IDENTIFIER = 1.5
# Different forms, such as AB-12 and ABC-12, that texts with spaces may have.
_MAX_FORMS = 3
# Values that are looked at to see their form; more would only take time.
_MAX_VALUES_READ = 1_000
# A form must allow this many times the values that are known or wanted, so that few
# draws are repeated. A dtype of integers may have room for fewer of them.
_SPARE_ROOM = 10
_MIN_SPARE_ROOM_OF_DTYPE = 2

_PERSONAL_FORMS = {
    "an e-mail address": re.compile(r"[^@\s]+@[^@\s]+\.[A-Za-z]{2,}"),
    "an IBAN": re.compile(r"[A-Z]{2}\d{2}( ?[A-Z0-9]{4}){2,7}( ?[A-Z0-9]{1,3})?"),
    "a social security number": re.compile(r"\d{3}-\d{2}-\d{4}"),
    "a phone number": re.compile(
        r"(\+|00)\d[\d ()/.-]{6,17}|\(?\d{3,5}\)?[ /-]\d{3,4}[ -]\d{3,5}"
    ),
}
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
_LOWERCASE_HEX = hexdigits[:16]


def why_identifier(column: EncodedColumn, distinct_row_indices: Ints) -> str:
    """Why a column of texts or integers identifies persons or rows; empty if not.

    `distinct_row_indices` are of rows that repeat no earlier row as a whole, because a
    table that holds each row twice should get the same answer.
    """
    if column.value_type not in ("str", "int") or column.categorical:
        return ""
    codes = column.codes[distinct_row_indices]
    codes = codes[codes >= 0]
    distinct_codes = np.flatnonzero(np.bincount(codes))
    n_cells = len(codes)
    n_distinct = len(distinct_codes)
    if n_distinct < 2:
        return ""

    is_text = column.value_type == "str"
    values = column.levels.iloc[distinct_codes[:_MAX_VALUES_READ]]
    texts = values.astype(str).tolist()
    if is_text:
        personal_form = _personal_form(texts)
        if personal_form:
            return f"looks like {personal_form}"
    if n_cells < MIN_ROWS_TO_JUDGE:
        return ""
    name = str(column.name)
    if n_distinct < _MIN_IDENTIFYING_SHARE * n_cells:
        most_differ = 2 * n_distinct > n_cells
        if is_text and most_differ and _NAME_COLUMN.search(name):
            return "looks like a name"
        return ""
    if _IDENTIFIER_COLUMN.search(name):
        return "is nearly unique and named like an identifier"
    # Nearly all integers of a measurement differ, too, so this is only for texts.
    if is_text and _have_forms_of_identifiers(texts):
        return NEARLY_UNIQUE
    return ""


def _personal_form(texts: list[str]) -> str:
    """What personal data most texts look like; empty if none."""
    for name, form in _PERSONAL_FORMS.items():
        n_matches = sum(form.fullmatch(text) is not None for text in texts)
        if n_matches >= _MIN_IDENTIFYING_SHARE * len(texts):
            return name
    return ""


def _have_forms_of_identifiers(texts: list[str]) -> bool:
    """Whether texts are short, and of few words or all of a few forms."""
    mean_length = sum(len(text) for text in texts) / len(texts)
    if mean_length > LONG_TEXT_LENGTH:
        return False
    mean_spaces = sum(text.count(" ") for text in texts) / len(texts)
    if mean_spaces < _MAX_SPACES_OF_IDENTIFIER:
        return True
    forms = {"".join(character_classes([text])) for text in texts}
    return len(forms) <= _MAX_FORMS


def character_classes(texts: Sequence[str]) -> list[str]:
    """The characters that may stand in each place of a text that is like these.

    Each class is a text of characters: all digits, capital or small letters if the
    longest text has one of them in this place, or only the one character that all
    texts of this length have there. The classes of AB-12, AC-77 and AD-30 are: A, any
    capital letter, -, any digit, and any digit.
    """
    longest = max(texts, key=lambda text: (len(text), text))
    same_length = [text for text in texts if len(text) == len(longest)]
    known_classes: tuple[str, ...] = (digits, ascii_uppercase, ascii_lowercase)
    if _is_hexadecimal(texts):
        known_classes = (_LOWERCASE_HEX,)
    classes = []
    for i, character in enumerate(longest):
        all_the_same = len({text[i] for text in same_length}) == 1
        # Two texts agree by chance, and leading zeros are places for digits.
        if all_the_same and len(same_length) > 2 and character != "0":
            classes.append(character)
        else:
            classes.append(_class_of(character, known_classes))
    return classes


def _is_hexadecimal(texts: Sequence[str]) -> bool:
    """Whether all letters and digits are hexadecimal, with a letter among them."""
    characters = set("".join(texts))
    letters_and_digits = {c for c in characters if c.isalnum()}
    has_letter = not characters.isdisjoint("abcdef")
    return has_letter and letters_and_digits <= set(_LOWERCASE_HEX)


def _class_of(character: str, known_classes: tuple[str, ...]) -> str:
    """The class to which a character belongs; another sign is a class of its own."""
    for known_class in known_classes:
        if character in known_class:
            return known_class
    if character.isalpha():  # of another script
        return ascii_lowercase
    return character


def example_of(column: EncodedColumn) -> str:
    """What new identifiers of the column look like."""
    values = column.levels.iloc[:_MAX_VALUES_READ].astype(str).tolist()
    return "".join(characters[-1] for characters in character_classes(values))


def new_identifiers(
    column: EncodedColumn, n: int, rng: np.random.Generator
) -> list[str] | list[int]:
    """n different values like those of the column, but none that is in it."""
    if column.value_type == "int":
        return _new_integers(column, n, rng)
    known = column.levels.tolist()
    classes = character_classes(known[:_MAX_VALUES_READ])
    _add_digits(classes, _SPARE_ROOM * (n + len(known)))
    known_texts = set(known)
    new_texts = dict[str, None]()  # a set that keeps its order
    while len(new_texts) < n:
        drawn = [rng.choice([*characters], n) for characters in classes]
        letters = np.column_stack(drawn).astype("U1")  # (n, length of a text)
        texts = letters.view(f"U{len(classes)}")[:, 0].tolist()
        new_texts |= dict.fromkeys(text for text in texts if text not in known_texts)
    return list(new_texts)[:n]


def _add_digits(classes: list[str], n_texts: int) -> None:
    """Insert places for digits until there are `n_texts` different texts, in place.

    They stand behind the last place that has a choice: an e-mail address grows before
    its @ if all have the same domain.
    """
    last_choice = len(classes) - 1
    for i, characters in enumerate(classes):
        if len(characters) > 1:
            last_choice = i
    while math.prod(len(characters) for characters in classes) < n_texts:
        classes.insert(last_choice + 1, digits)


def _new_integers(column: EncodedColumn, n: int, rng: np.random.Generator) -> list[int]:
    """n integers with as many digits as the largest, or more where there is no room."""
    dtype = column.levels.dtype
    known = set(column.levels.tolist())
    wanted_room = _SPARE_ROOM * (n + len(known))
    largest = max(abs(value) for value in known)
    high = 10 ** len(str(largest))
    low = high // 10
    while high - low < wanted_room:
        high *= 10
    if dtype.kind in "iu":
        numpy_dtype = getattr(dtype, "numpy_dtype", dtype)
        high = min(high, int(np.iinfo(numpy_dtype).max))
    if high - low < _MIN_SPARE_ROOM_OF_DTYPE * (n + len(known)):
        raise DataError(
            f"the dtype {dtype} has too few other numbers for {n} new identifiers",
            "convert it to int64, or drop it",
            column=column.name,
        )
    sign = 1
    if max(known) < 0:
        sign = -1
    new_values = dict[int, None]()  # a set that keeps its order
    while len(new_values) < n:
        offsets = rng.integers(0, min(high - low, 2**62), n).tolist()
        values = [sign * (low + offset) for offset in offsets]
        new_values |= dict.fromkeys(value for value in values if value not in known)
    return list(new_values)[:n]
