"""Columns of personal data, recognized by their values and by their names.

Names, addresses, e-mail addresses, phone and account numbers and national identifiers
must not appear in samples, whether each person has one row or many. Two things speak
for them: the form of most values, and the name of the column. A name of two words looks
like a city, a species or the model of a car. So the form of a name counts only together
with a column that is named like one of persons, or with common first names among the
values.

Nothing here decides what is done with such columns: see `judgment`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# A column is personal if at least this share of its different values have a personal
# form. By judgment: a few cells of a column are often written in another way.
MIN_PERSONAL_SHARE = 0.8

# The least share of different values that begin with a common first name. By judgment:
# some names of cities and products do so, too (Charlotte, Austin, Victoria), and the
# list below lacks many first names.
_MIN_SHARE_OF_FIRST_NAMES = 0.3

# That share in a column that is called "name" or "city_name", where less evidence is
# enough.
_MIN_SHARE_IN_NAME_COLUMN = 0.1

# A column called "name" alone has persons even without common first names, if half of
# its names have fewer rows than this: products and countries have more.
_MAX_ROWS_OF_A_PERSON = 5

_FORMS = {
    "an e-mail address": re.compile(r"[^@\s]+@[^@\s]+\.[A-Za-z]{2,}"),
    "an IBAN": re.compile(r"[A-Z]{2}\d{2}( ?[A-Z0-9]{4}){2,7}( ?[A-Z0-9]{1,3})?"),
    "a card number": re.compile(r"\d{4}([ -])\d{4}\1\d{4}\1\d{1,7}"),
    "a national identifier": re.compile(
        r"\d{3}-\d{2}-\d{4}"  # the United States
        r"|[A-Z]{2} ?\d{2} ?\d{2} ?\d{2} ?[A-D]"  # the United Kingdom
        r"|[A-Z]{6}\d{2}[A-Z]\d{2}[A-Z]\d{3}[A-Z]"  # Italy
        r"|\d{6}[-+]\d{3}[\dA-Z]"  # Finland, Sweden
    ),
    "a phone number": re.compile(
        r"(\+|00)\d[\d ()/.-]{6,17}|\(?\d{3,5}\)?[ /.-]\d{3,4}[ .-]\d{3,5}"
    ),
}
_STREETS = (
    "street|str|st|avenue|ave|road|rd|boulevard|blvd|lane|ln|drive|dr|court|ct|place|pl"
    "|square|sq|terrace|highway|hwy|circle|cir|way|trail|parkway|pkwy"
)
_ADDRESS = re.compile(
    rf"\d+\w?(-\d+)? .*\b({_STREETS})\b\.?.*"  # 12 Main St
    r"|\d+,? (rue|avenue|boulevard|place|chemin|quai) .+"  # 12 rue de Rivoli
    r"|.*(straße|strasse|str\.|weg|platz|gasse|allee|ufer) \d+.*"  # Hauptstraße 12
    r"|(ul\.|ulica|al\.|via|viale|piazza|calle|avenida|rua|plaza) .*\d+.*",
    re.IGNORECASE,
)
_ADDRESS_COLUMN = re.compile(
    r"(^|[_\W])(street|address|addr|adresse|direccion|indirizzo|adres)"
    r"([_\W]*(line)?[_\W]*\d)?$",
    re.IGNORECASE,
)

# Two to five words of letters that begin with capitals, such as "O'Neil, Anna-Lena M.".
_WORD = r"[^\W\d_a-z][^\W\d_]*(?:['’.-][^\W\d_]+)*\.?"
_PARTICLE = r"(?:de|da|di|del|della|van|von|der|den|la|le|bin|al|ter)"
_FULL_NAME = re.compile(rf"{_WORD}(?:,? (?:{_PARTICLE} )*{_WORD}){{1,4}}")
_ONE_NAME = re.compile(_WORD)

_PERSON = (
    "customer|client|patient|employee|person|contact|owner|student|teacher|pupil|guest"
    "|tenant|borrower|applicant|author|doctor|physician|user|member|subscriber|donor"
    "|insured|holder|cardholder|beneficiary|supervisor|manager|agent|worker|staff"
)
# Columns of persons' names: last_name, "Full Name", customer_name, patient …
_PERSON_COLUMN = re.compile(
    r"(^|[_\W])(first|last|full|sur|fore|given|family|maiden|middle|nick)[_\W]*names?$"
    rf"|(^|[_\W])({_PERSON})([_\W]*names?)?$"
    r"|(^|[_\W])(vorname|nachname|familienname|nazwisko|imie|imię|prenom|prénom"
    r"|apellidos?|nombres?|cognome)$",
    re.IGNORECASE,
)
_NAME_COLUMN = re.compile(r"(^|[_\W])names?$", re.IGNORECASE)
_ONLY_NAME = re.compile(r"names?", re.IGNORECASE)
# Columns of numbers that belong to one person: phone, iban, account_no, …
_PERSONAL_NUMBER_COLUMN = re.compile(
    r"(^|[_\W])(ssn|iban|pesel|nino|passport|phone|mobile|telephone|cellphone|fax|insee"
    r"|personnummer|tax[_\W]*id|national[_\W]*id|steuer[_\W]*id)"
    r"([_\W]*(number|no|nr|num))?$"
    rf"|(^|[_\W])({_PERSON}|account|card|policy)[_\W]*(number|no|nr|num)$",
    re.IGNORECASE,
)
# Columns of keys of persons: patient_id, userId, …
_PERSON_KEY_COLUMN = re.compile(
    rf"(^|[_\W])({_PERSON}|account)[_\W]*id$", re.IGNORECASE
)
# Numbers of persons have at least this many digits: fewer are counts and flags, such as
# whether there is a phone. Keys of persons may have fewer digits, but not fewer values
# than the second: a user_id of 3 values identifies nobody.
_MIN_DIGITS = 6
_MIN_KEYS = 20

# First names that are common in several countries, without accents.
_FIRST_NAME_LINES = (
    "aaron abdul adam adrian agnes ahmed aisha alan albert alejandro alex",
    "alexander alexandra ali alice alicia alina amanda amelia amina amy ana andre",
    "andrea andreas andrew angela anita ann anna anne annette anthony antonio",
    "ashley barbara beata ben benjamin bernd betty birgit bjorn brandon brenda",
    "brian bruno camille carl carla carlos carmen carol caroline catherine",
    "charles charlotte chen chiara chloe christian christina christine",
    "christopher claire clara claudia cleo cynthia dan daniel daniela david",
    "deborah denis dennis diana diego dieter dmitri donald donna dorothy dylan",
    "edward eli elena elisabeth elizabeth ella ellen emily emma eric erik eva ewa",
    "fatima felix fernando fiona florian francesca francesco francisco francois",
    "frank franz frederik gabriel george gerald giovanni giulia grace greta",
    "gustav hannah hans harald harry hassan heather heidi heinz helen helena",
    "henry hiroshi hugo ian ibrahim igor ines ingrid irene isabel isabella ivan",
    "jack jacob jacqueline jakub james jan jana jane janet jason javier jean",
    "jeffrey jennifer jens jeremy jerry jessica jim joan joe john jonas jonathan",
    "jorge jose joseph joshua joyce juan judith julia julian julie jun jurgen",
    "justin kamil karen karin karl katarzyna kate katharina katherine kathleen",
    "katrin keith kelly ken kenneth kevin khalid klaus krzysztof kyle lars laura",
    "lauren lea lena leon li liam linda lisa louis louise luca lucas lucia lucy",
    "luis lukas luke magdalena maja malgorzata manfred manuel marc marcel marco",
    "marcus margaret maria marie mario marion mark markus marta martha martin",
    "martina mary mateusz matteo matthew matthias max mehmet mei melissa mia",
    "michael michal michel michelle miguel mike mohamed mohammad mohammed monica",
    "monika muhammad nancy natalia natalie nathan nicholas nicolas nicole nina",
    "noah nora olga olivia omar oscar otto pablo pamela paola patricia patrick",
    "paul paula pavel pedro peter petra philip philipp pierre piotr priya rachel",
    "rainer raj ralph ramon raymond rebecca renate ricardo richard robert roberto",
    "roger roland ronald rosa rosemary ruth ryan sabine samantha samuel sandra",
    "sara sarah scott sean sebastian sergei sharon shirley simon simone sofia",
    "sophia sophie stefan stefanie stephanie stephen steven susan susanne",
    "svetlana sylvia takashi tamara tanja teresa theresa thomas tim timothy",
    "tobias tom tomasz torsten ursula ute valentina vera veronica victor victoria",
    "viktor vincent virginia vladimir walter wei werner will william wolfgang xin",
    "yan yang yuki yusuf yvonne zofia",
)
_FIRST_NAMES = frozenset(" ".join(_FIRST_NAME_LINES).split())

# Words that belong to nobody, in lower case: new addresses and names keep them.
GENERIC_WORDS = frozenset(
    [
        *_STREETS.split("|"),
        *("apt", "unit", "suite", "box", "po", "north", "south", "east", "west", "rue"),
        *("straße", "strasse", "weg", "platz", "gasse", "allee", "ul", "via", "calle"),
        *(
            "mr",
            "mrs",
            "ms",
            "miss",
            "dr",
            "prof",
            "jr",
            "sr",
            "van",
            "von",
            "de",
            "la",
        ),
        *("www", "com", "org", "net", "edu", "gov", "info", "mail", "gmail", "yahoo"),
        *("hotmail", "outlook", "icloud", "gmx", "web", "aol", "protonmail"),
        *("uk", "us", "fr", "it", "es", "pl", "nl", "be", "at", "ch", "se", "no", "dk"),
        *("fi", "ca", "au", "eu", "io", "ru", "cn", "jp", "br", "in", "mx"),
    ]
)


def personal_kind(column_name: str, texts: Sequence[str], rows_per_value: float) -> str:
    """What personal data the different texts of a column are; empty if they are none.

    Parameters
    ----------
    column_name : the name of the column
    texts : its different values, or some of them
    rows_per_value : how many rows the median one of them has
    """
    for kind, form in _FORMS.items():
        if _share(form, texts) >= MIN_PERSONAL_SHARE:
            return kind
    if _share(_ADDRESS, texts) >= MIN_PERSONAL_SHARE:
        return "an address"
    is_long = sum(len(text.split()) for text in texts) >= 2 * len(texts)
    if _ADDRESS_COLUMN.search(column_name) and is_long:
        return "an address"
    if _is_column_of_names(column_name, texts, rows_per_value):
        return "a name"
    return ""


def is_personal_number(column_name: str, texts: Sequence[str]) -> bool:
    """Whether different texts are numbers that belong to one person each."""
    if _PERSON_KEY_COLUMN.search(column_name):
        return len(texts) >= _MIN_KEYS
    if not _PERSONAL_NUMBER_COLUMN.search(column_name):
        return False
    n_long = sum(sum(map(str.isdigit, text)) >= _MIN_DIGITS for text in texts)
    return n_long >= MIN_PERSONAL_SHARE * len(texts)


def _share(form: re.Pattern[str], texts: Sequence[str]) -> float:
    """The share of texts that have a form."""
    n_matches = sum(form.fullmatch(text.strip()) is not None for text in texts)
    return n_matches / len(texts)


def _is_column_of_names(
    column_name: str, texts: Sequence[str], rows_per_value: float
) -> bool:
    """Whether texts are names of persons."""
    is_person_column = _PERSON_COLUMN.search(column_name) is not None
    is_of_few_rows = rows_per_value < _MAX_ROWS_OF_A_PERSON
    if _share(_FULL_NAME, texts) >= MIN_PERSONAL_SHARE:
        share = _share_of_first_names(texts)
        if is_person_column or share >= _MIN_SHARE_OF_FIRST_NAMES:
            return True
        if _ONLY_NAME.fullmatch(column_name) and is_of_few_rows:
            return True
        is_name_column = _NAME_COLUMN.search(column_name) is not None
        return is_name_column and share >= _MIN_SHARE_IN_NAME_COLUMN
    # A single word such as Anna identifies somebody only if few rows have it.
    is_one_word = _share(_ONE_NAME, texts) >= MIN_PERSONAL_SHARE
    if not is_one_word or not is_of_few_rows:
        return False
    if is_person_column:
        return True
    is_name_column = _NAME_COLUMN.search(column_name) is not None
    return is_name_column and _share_of_first_names(texts) >= _MIN_SHARE_OF_FIRST_NAMES


def _share_of_first_names(texts: Sequence[str]) -> float:
    """The share of texts with a common first name: the first word, or after a comma."""
    n_found = 0
    for text in texts:
        words = re.findall(r"[^\W\d_]+", text.lower())
        candidates = words[:1]
        if "," in text:
            candidates = re.findall(r"[^\W\d_]+", text.lower().partition(",")[2])[:1]
        n_found += any(word in _FIRST_NAMES for word in candidates)
    return n_found / len(texts)
