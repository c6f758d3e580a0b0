"""Identifiers and personal data: which columns have them, and new ones like them.

A column of customer numbers, e-mail addresses or names must not appear in samples.
`recognize` finds such columns, with what `personal` says about persons. Where values
are nearly unique, each new row has a new one. Where they repeat, as those of a customer
with many orders, new rows have them as often and together with what the table says, but
under new values: one for each person in a sample.

`new_identifiers` makes them up. A new value has the form of a random one of the column,
so lengths and forms are as frequent as they were. Its words and numbers are new: they
are other letters and digits in the same places, and no word of the column. Only what
nearly all values share stays, such as the C of C-000704 or the domain of a company's
addresses, and words that belong to nobody, such as Street or Dr.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from string import ascii_lowercase, ascii_uppercase, digits, hexdigits
from typing import NamedTuple

import numpy as np

from sliceflow.arrays import Ints
from sliceflow.errors import DataError
from sliceflow.spaces.tables.cells import EncodedColumn
from sliceflow.spaces.tables.personal import (
    GENERIC_WORDS,
    is_personal_number,
    personal_kind,
)

# A column for which only this reason speaks is one of numbers or dates nevertheless, if
# all its texts are numbers or dates.
NEARLY_UNIQUE = "is nearly unique"
# Texts that are longer on average are free text: neither identifiers nor categories.
# By judgement: addresses and UUIDs are shorter, most sentences are longer.
LONG_TEXT_LENGTH = 40
# With fewer rows, different values in all of them may be chance. With more, identifiers
# of a small table would come out in samples.
MIN_ROWS_TO_JUDGE = 20
# A column is nearly unique if at least this share of its cells are different. By
# judgement.
_MIN_DISTINCT_SHARE = 0.8
# Texts with fewer spaces on average are identifiers of any form. With more, they are
# sentences, unless they have few forms. By judgement: a name has one or two spaces.
_MAX_SPACES_OF_IDENTIFIER = 1.5
# Different forms, such as AB-12 and ABC-12, that texts with spaces may have.
_MAX_FORMS = 3
# At most this many values are looked at to see their form; more would only take time.
_MAX_VALUES_READ = 1_000
# A word that at least this share of the values have stays in new ones. With a smaller
# one, a frequent surname would stay.
_MIN_SHARE_OF_FIXED_WORD = 0.8
# A character stays, too, if it is the same in all words of this place and length, and
# there are this many different ones: as the 10 of 100023 and 100584.
_MIN_WORDS_WITH_FIXED_CHARACTER = 20
# Shorter words and numbers of the column may come back by chance, because there are few
# of this length: initials, and numbers of houses.
_MIN_LETTERS_OF_NEW_WORD = 3
_MIN_DIGITS_OF_NEW_NUMBER = 5
# A form must allow this many times as many values as are known or wanted, so that few
# draws are repeated. For numbers of one length, a smaller factor is enough.
_SPARE_ROOM = 10
_SPARE_ROOM_OF_INTEGERS = 2

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
_VOWELS = "aeiou"
_CONSONANTS = "".join(c for c in ascii_lowercase if c not in _VOWELS)

# The characters that may stand in each place of a text.
Form = tuple[str, ...]


class Recognition(NamedTuple):
    """Why a column is one of identifiers, and whether their values repeat."""

    reason: str  # empty if the column has no identifiers
    repeats: bool = False  # whether a new value shall stand for each known one


def recognize(column: EncodedColumn, distinct_row_indices: Ints) -> Recognition:
    """Whether a column of texts or integers identifies persons or rows, and why.

    `distinct_row_indices` are of rows that repeat no earlier row as a whole, because a
    table that holds each row twice should get the same answer.
    """
    not_recognized = Recognition("")
    if column.value_type not in ("str", "int"):
        return not_recognized
    codes = column.codes[distinct_row_indices]
    counts = np.bincount(codes[codes >= 0])
    distinct_codes = np.flatnonzero(counts)
    n_cells = int(counts.sum())
    n_distinct = len(distinct_codes)
    if n_distinct < 2:
        return not_recognized

    name = str(column.name)
    values = column.levels.iloc[distinct_codes[:_MAX_VALUES_READ]]
    texts = values.astype(str).tolist()
    repeats = n_distinct < _MIN_DISTINCT_SHARE * n_cells
    is_text = column.value_type == "str"
    if is_text:
        rows_per_value = float(np.median(counts[distinct_codes]))
        kind = personal_kind(name, texts, rows_per_value)
        if kind:
            return Recognition(f"looks like {kind}", repeats)
    if n_cells < MIN_ROWS_TO_JUDGE:
        return not_recognized
    if is_personal_number(name, texts):
        return Recognition("is named like a number of persons", repeats)
    if column.categorical:
        return not_recognized
    if repeats:
        most_differ = 2 * n_distinct > n_cells
        if is_text and most_differ and _NAME_COLUMN.search(name):
            return Recognition("looks like a name", repeats)
        return not_recognized
    return Recognition(_reason_of_unique(name, texts, is_text))


def _reason_of_unique(column_name: str, texts: list[str], is_text: bool) -> str:
    """Why nearly unique values, as texts, are identifiers; empty if they are none."""
    if _IDENTIFIER_COLUMN.search(column_name):
        return "is nearly unique and named like an identifier"
    # Nearly all integers of a measurement differ, too, so this is only for texts.
    if is_text and _have_forms_of_identifiers(texts):
        return NEARLY_UNIQUE
    return ""


def do_values_repeat(column: EncodedColumn) -> bool:
    """Whether a column has clearly fewer different values than cells."""
    codes = column.present_codes
    return len(np.unique(codes)) < _MIN_DISTINCT_SHARE * len(codes)


def _have_forms_of_identifiers(texts: list[str]) -> bool:
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


def example_of(column: EncodedColumn) -> str:
    """What new identifiers of the column look like."""
    return str(new_identifiers(column, 1, np.random.default_rng(0))[0])


def new_identifiers(
    column: EncodedColumn, n: int, rng: np.random.Generator
) -> list[str] | list[int]:
    """n different values like those of the column, but none that is in it."""
    if column.value_type == "int":
        return _new_integers(column, n, rng)
    return _new_texts(column.levels.tolist(), n, rng)


# --- texts ----------------------------------------------------------------------------


class _Words:
    """The words and numbers of known texts: which stay, and which may not come back."""

    def __init__(self, texts: Sequence[str]) -> None:
        if _is_hexadecimal(texts):
            self.is_hexadecimal = True
            self._word = re.compile(r"[0-9a-f]+")
        else:
            self.is_hexadecimal = False
            self._word = re.compile(r"[^\W\d_]+|\d+")
        n_texts_with = Counter[str]()
        words_at = dict[tuple[int, int], set[str]]()  # by their place and length
        for text in texts:
            words = self._word.findall(text)
            n_texts_with.update({word.lower() for word in words})
            for place, word in enumerate(words):
                words_at.setdefault((place, len(word)), set()).add(word)
        # Two texts agree by chance.
        fixed_count = max(3, _MIN_SHARE_OF_FIXED_WORD * len(texts))
        self._fixed = {w for w, count in n_texts_with.items() if count >= fixed_count}
        self._known = {word for word in n_texts_with if not self._stays(word)}
        self._fixed_characters = {
            key: _fixed_characters(words)
            for key, words in words_at.items()
            if len(words) >= _MIN_WORDS_WITH_FIXED_CHARACTER
        }

    def _stays(self, word: str) -> bool:
        """Whether a word, in lower case, may stand in new texts."""
        return word in self._fixed or word in GENERIC_WORDS

    def form(self, text: str) -> Form:
        """The form of a text: a fixed character is the only one in its place."""
        form = list(text)
        for place, match in enumerate(self._word.finditer(text)):
            word = match.group()
            if self._stays(word.lower()):
                continue
            fixed = self._fixed_characters.get((place, len(word)), {})
            for i, characters in enumerate(self._form_of_word(word)):
                form[match.start() + i] = fixed.get(i, characters)
        return tuple(form)

    def _form_of_word(self, word: str) -> list[str]:
        """The characters that may replace those of a word or number."""
        if self.is_hexadecimal:
            return [_LOWERCASE_HEX] * len(word)
        if word.isdecimal():
            return _form_of_number(word)
        # Capitals are mostly codes, and so are two letters. Other words are easier to
        # read if vowels stay vowels.
        is_readable = len(word) >= _MIN_LETTERS_OF_NEW_WORD and not word.isupper()
        form = []
        for letter in word:
            characters = ascii_lowercase
            if is_readable and letter.lower() in _VOWELS:
                characters = _VOWELS
            elif is_readable and letter.lower() in _CONSONANTS:
                characters = _CONSONANTS
            if letter.isupper():
                characters = characters.upper()
            form.append(characters)
        return form

    def repeats_known(self, text: str) -> bool:
        """Whether a new text has a known word that belongs to a person."""
        for word in self._word.findall(text.lower()):
            min_length = _MIN_LETTERS_OF_NEW_WORD
            if word.isdecimal():
                min_length = _MIN_DIGITS_OF_NEW_NUMBER
            if len(word) >= min_length and word in self._known:
                return True
        return False


def _is_hexadecimal(texts: Sequence[str]) -> bool:
    """Whether all letters and digits are hexadecimal, with both among them."""
    characters = {c for c in set("".join(texts)) if c.isalnum()}
    has_letter = not characters.isdisjoint("abcdef")
    has_digit = not characters.isdisjoint(digits)
    return has_letter and has_digit and characters <= set(_LOWERCASE_HEX)


def _fixed_characters(words: Iterable[str]) -> dict[int, str]:
    """The characters that all words, of one length, have in the same place.

    Zeros do not count: leading ones are places for digits.
    """
    fixed = {}
    for i, characters in enumerate(zip(*words, strict=True)):
        if len(set(characters)) == 1 and characters[0] != "0":
            fixed[i] = characters[0]
    return fixed


def _form_of_number(number: str) -> list[str]:
    """The digits that may replace those of a number of the same length.

    One leading zero stays, as of phone numbers. More are places for digits.
    """
    form = [digits] * len(number)
    if len(number) > 1 and not number.startswith("00"):
        form[0] = digits[1:]
        if number.startswith("0"):
            form[0] = "0"
    return form


def _new_texts(known: Sequence[str], n: int, rng: np.random.Generator) -> list[str]:
    """n different texts with forms of known ones, and without their words."""
    words = _Words(known)
    templates = known
    if len(known) > _MAX_VALUES_READ:
        chosen = rng.choice(len(known), _MAX_VALUES_READ, replace=False)
        templates = [known[i] for i in chosen]
    forms = [words.form(text) for text in templates]
    n_known_of = Counter(forms)
    wanted = Counter(forms[i] for i in rng.integers(0, len(forms), n).tolist())
    taken = set(known)
    new_texts = list[str]()
    for form, n_wanted in wanted.items():
        room = _SPARE_ROOM * (n_wanted + n_known_of[form])
        new_texts += _texts_of_form(form, n_wanted, room, words, taken, rng)
    return [new_texts[i] for i in rng.permutation(n)]


def _texts_of_form(
    form: Form,
    n: int,
    room: int,
    words: _Words,
    taken: set[str],
    rng: np.random.Generator,
) -> list[str]:
    """Make n different texts of a form, or of a longer one with room for `room` texts.

    None of them is in `taken`, to which they are added.
    """
    places = list(form)
    while math.prod(len(characters) for characters in places) < room:
        _add_place(places)
    texts = list[str]()
    while len(texts) < n:
        n_before = len(texts)
        drawn = [rng.choice([*characters], n) for characters in places]
        letters = np.column_stack(drawn).astype("U1")  # (n, length of a text)
        for text in letters.view(f"U{len(places)}")[:, 0].tolist():
            is_new = text not in taken and not words.repeats_known(text)
            if is_new and len(texts) < n:
                taken.add(text)
                texts.append(text)
        if len(texts) == n_before:
            _add_place(places)
    return texts


def _add_place(places: list[str]) -> None:
    """Insert a place like the last one that has a choice, behind it.

    An e-mail address grows before its @ if all have the same domain. A text without any
    choice grows by a digit at its end.
    """
    for i in reversed(range(len(places))):
        if len(places[i]) > 1:
            characters = places[i]
            if characters[0] in ascii_uppercase:
                characters = characters.lower()
            elif characters == digits[1:]:
                characters = digits
            places.insert(i + 1, characters)
            return
    places.append(digits)


# --- integers -------------------------------------------------------------------------


def _new_integers(column: EncodedColumn, n: int, rng: np.random.Generator) -> list[int]:
    """n integers that are as long as those of the column.

    Where nearly all numbers of a length are known, new ones are longer.
    """
    known = set(column.levels.tolist())
    known_lengths = [len(str(abs(value))) for value in known]
    n_known_of = Counter(known_lengths)
    indices = rng.integers(0, len(known_lengths), n).tolist()
    wanted = Counter(known_lengths[i] for i in indices)
    sign = 1
    if max(known) < 0:
        sign = -1
    new_values = list[int]()
    length = min(n_known_of)
    n_wanted = 0  # integers of this length, and of shorter ones without room
    while len(new_values) < n:
        n_wanted += wanted[length]
        low = 0 if length == 1 else 10 ** (length - 1)
        high = min(10**length, _largest(column))
        if high <= low:
            raise DataError(
                f"the dtype {column.levels.dtype} has too few other numbers for "
                f"{n} new identifiers",
                "convert it to int64, or drop it",
                column=column.name,
            )
        n_free = high - low - n_known_of[length]
        if n_free >= _SPARE_ROOM_OF_INTEGERS * n_wanted:
            new_values += _integers_between(low, high, n_wanted, sign, known, rng)
            n_wanted = 0
        length += 1
    return [new_values[i] for i in rng.permutation(n)]


def _largest(column: EncodedColumn) -> int:
    """The largest integer of the column's dtype."""
    dtype = column.levels.dtype
    if dtype.kind not in "iu":
        longest = max(len(str(abs(value))) for value in column.levels.tolist())
        return int(10 ** (longest + 1))
    return int(np.iinfo(getattr(dtype, "numpy_dtype", dtype)).max)


def _integers_between(
    low: int, high: int, n: int, sign: int, known: set[int], rng: np.random.Generator
) -> list[int]:
    """n different integers from low to below high, with a sign, and not known."""
    new_values = dict[int, None]()  # a set that keeps its order
    while len(new_values) < n:
        offsets = rng.integers(0, min(high - low, 2**62), n).tolist()
        values = [sign * (low + offset) for offset in offsets]
        new_values |= dict.fromkeys(value for value in values if value not in known)
    return list(new_values)[:n]
