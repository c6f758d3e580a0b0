"""New identifiers that look like those of a column.

A new value has the form of a random one of the column, so lengths and forms are as
frequent as they were. Its words and numbers are new: they are other letters and digits
in the same places, and no word of the column. Only what nearly all values share stays,
such as the C of C-000704 or the domain of a company's addresses, and words that belong
to nobody, such as Street or Dr.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from string import ascii_lowercase, ascii_uppercase, digits, hexdigits
from typing import Literal, NamedTuple

import numpy as np

from sliceflow.errors import DataError
from sliceflow.estimators.tables.identifiers.judgment import MAX_VALUES_READ
from sliceflow.estimators.tables.identifiers.personal import GENERIC_WORDS
from sliceflow.estimators.tables.rows.encoded_columns import EncodedColumn

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

_LOWERCASE_HEX = hexdigits[:16]
_VOWELS = "aeiou"
_CONSONANTS = "".join(c for c in ascii_lowercase if c not in _VOWELS)

# The characters that may stand in each place of a text.
Form = tuple[str, ...]


def example_identifier(column: EncodedColumn) -> str:
    """An identifier that looks like new ones of the column: always the same."""
    return str(new_identifiers(column, 1, np.random.default_rng(0))[0])


def new_identifiers(
    column: EncodedColumn, n: int, rng: np.random.Generator
) -> list[str] | list[int]:
    """n different values like the values of the column, but none that is in it."""
    if column.value_type == "int":
        return _new_integers(column, n, rng)
    return _new_texts(column.levels.tolist(), n, rng)


# --- texts ----------------------------------------------------------------------------


class _Words:
    """The words and numbers of known texts: which stay, and which may not come back."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.is_hexadecimal = _is_hexadecimal(texts)
        self._word = re.compile(r"[^\W\d_]+|\d+")
        if self.is_hexadecimal:
            self._word = re.compile(r"[0-9a-f]+")
        words_of_texts = [self._word.findall(text) for text in texts]
        n_texts_with = Counter[str]()
        for words in words_of_texts:
            n_texts_with.update({word.lower() for word in words})
        # Two texts agree by chance.
        fixed_count = max(3, _MIN_SHARE_OF_FIXED_WORD * len(texts))
        frequent = {w for w, count in n_texts_with.items() if count >= fixed_count}
        # Words, in lower case, that may stand in new texts, and those that may not
        self._staying = frequent | GENERIC_WORDS
        self._known = n_texts_with.keys() - self._staying
        self._fixed_characters = _find_fixed_characters(words_of_texts)

    def form(self, text: str) -> Form:
        """The form of a text: a fixed character is the only one in its place."""
        form = list(text)
        for place, match in enumerate(self._word.finditer(text)):
            word = match.group()
            if word.lower() in self._staying:
                continue
            fixed = self._fixed_characters.get((place, len(word)), {})
            for i, characters in enumerate(self._form_of_word(word)):
                form[match.start() + i] = fixed.get(i, characters)
        return tuple(form)

    def _form_of_word(self, word: str) -> list[str]:
        """The characters that may stand in each place of a word or number."""
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

    def has_known_word(self, text: str) -> bool:
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


def _find_fixed_characters(
    words_of_texts: Iterable[Sequence[str]],
) -> dict[tuple[int, int], dict[int, str]]:
    """The characters that stay in words, by the place and the length of these.

    The place counts the words before it in the text.
    """
    words_at = dict[tuple[int, int], set[str]]()
    for words in words_of_texts:
        for place, word in enumerate(words):
            words_at.setdefault((place, len(word)), set()).add(word)
    return {
        place_and_length: _common_characters(words)
        for place_and_length, words in words_at.items()
        if len(words) >= _MIN_WORDS_WITH_FIXED_CHARACTER
    }


def _common_characters(words: Iterable[str]) -> dict[int, str]:
    """The characters that all words, of one length, have in the same place.

    Zeros do not count: leading ones are places for digits.
    """
    common = {}
    for i, characters in enumerate(zip(*words, strict=True)):
        if len(set(characters)) == 1 and characters[0] != "0":
            common[i] = characters[0]
    return common


def _form_of_number(number: str) -> list[str]:
    """The digits that may stand in each place of a number of the same length.

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
    if len(known) > MAX_VALUES_READ:
        chosen = rng.choice(len(known), MAX_VALUES_READ, replace=False)
        templates = [known[i] for i in chosen]
    forms = [words.form(text) for text in templates]
    n_known_of = Counter(forms)
    wanted = Counter(forms[i] for i in rng.integers(0, len(forms), n).tolist())
    taken = set(known)
    new_texts = list[str]()
    for form, n_wanted in wanted.items():
        places = _with_room(form, _SPARE_ROOM * (n_wanted + n_known_of[form]))
        new_texts += _fill_places(places, n_wanted, words, taken, rng)
    return [new_texts[i] for i in rng.permutation(n)]


def _with_room(form: Form, n: int) -> list[str]:
    """The characters for each place of a form, made longer until it has n texts."""
    places = list(form)
    while math.prod(len(characters) for characters in places) < n:
        _add_place(places)
    return places


def _fill_places(
    places: list[str],
    n: int,
    words: _Words,
    taken: set[str],
    rng: np.random.Generator,
) -> list[str]:
    """Make n different texts of characters for each place.

    None of them is in `taken`, to which they are added. Whenever all texts that are
    drawn are taken or have a known word, a place is added, to each word in turn.
    """
    texts = list[str]()
    n_added = 0
    while len(texts) < n:
        n_before = len(texts)
        drawn = [rng.choice([*characters], n) for characters in places]
        letters = np.column_stack(drawn).astype("U1")  # (n, length of a text)
        for text in letters.view(f"U{len(places)}")[:, 0].tolist():
            is_new = text not in taken and not words.has_known_word(text)
            if is_new and len(texts) < n:
                taken.add(text)
                texts.append(text)
        if len(texts) == n_before:
            _add_place(places, n_added)
            n_added += 1
    return texts


def _add_place(places: list[str], word_from_end: int = 0) -> None:
    """Make a word or number longer by one place, with the characters of its last one.

    Only words grow that have a choice of characters: so an e-mail address grows before
    its @ if all have the same domain. `word_from_end` says which of these words: 0 is
    the last one, 1 the one before, and so on; after the first, it is the last one
    again. A text without any choice grows by a digit at its end.
    """
    ends = _ends_of_free_words(places)
    if not ends:
        places.append(digits)
        return
    end = ends[-1 - word_from_end % len(ends)]
    characters = places[end]
    if characters[0] in ascii_uppercase:
        characters = characters.lower()
    elif characters == digits[1:]:
        characters = digits
    places.insert(end + 1, characters)


def _ends_of_free_words(places: Sequence[str]) -> list[int]:
    """The last places of words and numbers that have a choice of characters."""
    kinds = [_kind_of_place(characters) for characters in places]
    ends = []
    for i, (kind, next_kind) in enumerate(pairwise([*kinds, "fixed"])):
        if kind not in ("fixed", next_kind):
            ends.append(i)
    return ends


def _kind_of_place(characters: str) -> Literal["fixed", "digit", "letter"]:
    """Whether a place has one fixed character, or a choice of digits or letters."""
    if len(characters) == 1:
        return "fixed"
    if characters[0].isdecimal():
        return "digit"
    return "letter"


# --- integers -------------------------------------------------------------------------


def _new_integers(column: EncodedColumn, n: int, rng: np.random.Generator) -> list[int]:
    """n integers that are as long as the integers of the column.

    Where nearly all numbers of a length are known, new ones are longer.
    """
    known = set(column.levels.tolist())
    known_lengths = [_n_digits(value) for value in known]
    indices = rng.integers(0, len(known_lengths), n).tolist()
    wanted_lengths = Counter(known_lengths[i] for i in indices)
    sign = 1
    if max(known) < 0:
        sign = -1
    new_values = list[int]()
    for integers in _choose_ranges(column, Counter(known_lengths), wanted_lengths):
        new_values += _integers_in_range(integers, sign, known, rng)
    return [new_values[i] for i in rng.permutation(n)]


class _WantedIntegers(NamedTuple):
    """How many integers are wanted from `low` to below `high`, without their signs."""

    low: int
    high: int
    n: int


def _choose_ranges(
    column: EncodedColumn, n_known_of: Counter[int], n_wanted_of: Counter[int]
) -> list[_WantedIntegers]:
    """The ranges from which new integers are drawn, one for each number of digits.

    The counters have the known and the wanted integers by their number of digits. If a
    range has no room for its wanted integers, they are drawn from the next one.
    """
    n_wanted = n_wanted_of.total()
    largest = _largest_integer(column)
    ranges = list[_WantedIntegers]()
    n_chosen = 0
    n_waiting = 0  # of this length, and of shorter ones without room
    length = min(n_known_of)
    while n_chosen < n_wanted:
        n_waiting += n_wanted_of[length]
        low = 0 if length == 1 else 10 ** (length - 1)
        high = min(10**length, largest)
        if high <= low:
            raise DataError(
                f"the dtype {column.levels.dtype} has too few other numbers for "
                f"{n_wanted} new identifiers",
                "convert it to int64, or drop it",
                column=column.name,
            )
        n_free = high - low - n_known_of[length]
        if n_free >= _SPARE_ROOM_OF_INTEGERS * n_waiting:
            ranges.append(_WantedIntegers(low, high, n_waiting))
            n_chosen += n_waiting
            n_waiting = 0
        length += 1
    return ranges


def _n_digits(value: int) -> int:
    return len(str(abs(value)))


def _largest_integer(column: EncodedColumn) -> int:
    """The largest integer of the column's dtype.

    Python's integers have none: new ones have at most one digit more than known ones.
    """
    dtype = column.levels.dtype
    if dtype.kind not in "iu":
        longest = max(_n_digits(value) for value in column.levels.tolist())
        return int(10 ** (longest + 1))
    return int(np.iinfo(getattr(dtype, "numpy_dtype", dtype)).max)


def _integers_in_range(
    wanted: _WantedIntegers, sign: int, known: set[int], rng: np.random.Generator
) -> list[int]:
    """Different integers of a range, with a sign, and not known."""
    new_values = dict[int, None]()  # a set that keeps its order
    n_possible = min(wanted.high - wanted.low, 2**62)
    while len(new_values) < wanted.n:
        offsets = rng.integers(0, n_possible, wanted.n).tolist()
        values = [sign * (wanted.low + offset) for offset in offsets]
        new_values |= dict.fromkeys(value for value in values if value not in known)
    return list(new_values)[: wanted.n]
