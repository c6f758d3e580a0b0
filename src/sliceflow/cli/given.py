"""The flag --given: texts with a column, a relation, and a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sliceflow.cli.failures import UsageError
from sliceflow.errors import HintedError
from sliceflow.wording import did_you_mean

if TYPE_CHECKING:
    from sliceflow import TableFlow
    from sliceflow.estimators.tables.given.read_given import ValueRange

# The relations. Longer ones come first, because ">=" also begins with ">".
_RELATIONS = ("<=", ">=", "=", "<", ">")


def parse_given_flags(model: TableFlow, texts: Sequence[str]) -> dict[str, Any]:
    """What all rows must have, by column, from texts such as "net>100".

    Two bounds of a column become one range.
    """
    from sliceflow.estimators.tables.given.read_given import ValueRange

    names = [str(column) for column in model.feature_names_in_]
    given: dict[str, Any] = {}
    for text in texts:
        name, value_text = split_given(text, names)
        value = _parse_value(model, text, name, value_text)
        if name not in given:
            given[name] = value
            continue
        joined = None
        if isinstance(given[name], ValueRange) and isinstance(value, ValueRange):
            joined = _as_one_range(given[name], value)
        if joined is None:
            fact = f"--given {text}: {name} is given twice"
            raise UsageError(fact, f"pass one of them; {name}=a|b is a list")
        given[name] = joined
    return given


def split_given(text: str, names: Sequence[str]) -> tuple[str, str]:
    """The column of a text such as "net>100", and what is said of it: ">100".

    Names may contain signs as well, so the longest name that fits is taken.
    """
    for name in sorted(names, key=len, reverse=True):
        if not text.startswith(name):
            continue
        rest = text[len(name) :].strip()
        if rest.startswith(_RELATIONS):
            return name, rest.removeprefix("=").strip()
    words = text
    for relation in _RELATIONS:
        words = words.partition(relation)[0]
    name = words.strip()
    if name in names:
        fact = f"--given {text} says nothing of {name}"
        raise UsageError(fact, f"pass {name}=value, or {name}>value")
    fact = f"--given {text} does not name a column"
    raise UsageError(fact, did_you_mean(name, names))


def _parse_value(model: TableFlow, text: str, name: str, value_text: str) -> Any:
    """The value, list or range of a column that a text stands for."""
    hint = "pass another value"
    try:
        return model.parse_given(name, value_text)
    except HintedError as error:
        fact = f"--given {text}: {error.fact}"
        raise UsageError(fact, error.full_hint or hint) from error
    except ValueError as error:
        raise UsageError(f"--given {text}: {error}", hint) from error


def _as_one_range(one: ValueRange, other: ValueRange) -> ValueRange | None:
    """The range between a lower and an upper bound; None if there are not both."""
    from sliceflow.estimators.tables.given.read_given import ValueRange

    if one.low is None:
        one, other = other, one
    if one.high is not None or other.low is not None:
        return None
    return ValueRange(one.low, other.high, one.with_low, other.with_high)
