"""The result of a command: an object for ``--json``, and a text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sliceflow.app.server import JsonObject


class Result(NamedTuple):
    """What a command found or did."""

    json: JsonObject
    text: str
