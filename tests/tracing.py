"""The way of a fit through the package: which of its functions are called, in order.

`python tests/tracing.py` writes the way from `SlicedWassersteinFlow().fit(X)` to
`engine.flow.simulate` into docs/architecture.md; `test_the_way_through.py` checks it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

import sliceflow
from sliceflow import SlicedWassersteinFlow

PACKAGE = Path(sliceflow.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"
BLOCK = re.compile(r"(<!-- trace: begin -->\n).*?(<!-- trace: end -->)", re.DOTALL)


class Arrived(Exception):
    """The function to which calls are followed was entered."""


# A detour that a reader may skip: what chooses settings by trial, before the flow.
DETOUR = "VectorTask.tune"


def functions_until(last: str, call: Callable[[], Any]) -> list[tuple[str, str]]:
    """The named functions of the package that `call` enters, up to and with `last`.

    Each is a pair of its file, such as "engine/flow.py", and its qualified name. Every
    function stands once, in the order of first calls. Comprehensions, lambdas and
    modules are left out, and so are `DETOUR` and what it calls.
    """
    found: dict[tuple[str, str], None] = {}
    detours: list[FrameType] = []

    def note_call(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        path = Path(code.co_filename)
        if event == "return" and detours and frame is detours[-1]:
            detours.pop()
        if event != "call" or detours or not path.is_relative_to(PACKAGE):
            return
        if code.co_qualname == DETOUR:
            detours.append(frame)
            return
        if code.co_name.startswith("<"):
            return
        found[path.relative_to(PACKAGE).as_posix(), code.co_qualname] = None
        if code.co_qualname == last:
            sys.setprofile(None)
            raise Arrived

    sys.setprofile(note_call)
    try:
        call()
    except Arrived:
        return list(found)
    finally:
        sys.setprofile(None)
    raise AssertionError(f"{last} was not called")


def way_of_a_default_fit() -> list[tuple[str, str]]:
    """The functions between the user's `fit` of 500 rows and the first step."""
    X = np.random.default_rng(0).normal(size=(500, 2))
    SlicedWassersteinFlow(n_steps=1, device="cpu").fit(X)  # imports and compiles
    flow = SlicedWassersteinFlow(device="cpu")
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # calls in other threads are not seen
    try:
        return functions_until("simulate", lambda: flow.fit(X))
    finally:
        torch.set_num_threads(n_threads)


def as_text(way: list[tuple[str, str]]) -> str:
    """The way, one line for each file, in the order of first calls."""
    names_of_file: dict[str, list[str]] = {}
    for file, name in way:
        names_of_file.setdefault(file, []).append(name.replace(".<locals>", ""))
    size = f"{len(way)} functions in {len(names_of_file)} files"
    lines = [f"{size}, without {DETOUR} and what it calls"]
    for file, names in names_of_file.items():
        lines.append(f"{file}: {', '.join(names)}")
    return "\n".join(lines)


def with_way(page: str) -> str:
    """The page with the way through the package."""
    text = as_text(way_of_a_default_fit())
    return BLOCK.sub(lambda found: f"{found[1]}```text\n{text}\n```\n{found[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(with_way(PAGE.read_text()))
    print(as_text(way_of_a_default_fit()))
