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
from typing import Any, NamedTuple

import numpy as np
import torch

import sliceflow
from sliceflow import SlicedWassersteinFlow
from sliceflow.kernels import cpu

PACKAGE = Path(sliceflow.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"
BLOCK = re.compile(r"(<!-- trace: begin -->\n).*?(<!-- trace: end -->)", re.DOTALL)


# Its file, such as "engine/flow.py", and its qualified name.
Function = tuple[str, str]


class Arrived(Exception):
    """The function to which calls are followed was entered."""


# Detours that a reader may skip: they check parameters, choose the bandwidth by trial,
# make the data, and estimate the memory. What only these call is counted, and listed,
# apart.
DETOURS = (
    "SlicedWassersteinFlow._validated_parameters",
    "PlannedVectorFit.tune",
    "PlannedVectorFit.training_data",
    "VectorPlan.require_memory",
)


class Way(NamedTuple):
    """The functions on the way, and those that only the detours reach."""

    direct: list[Function]
    in_detours: list[Function]


def functions_until(last: str, call: Callable[[], Any]) -> Way:
    """The named functions of the package that `call` enters, up to and with `last`.

    Every function stands once, in the order of first calls. Comprehensions, lambdas and
    modules are left out, and so are functions that numba has compiled: Python 3.11
    sees the first of their calls, newer ones do not.
    """
    compiled = {
        ("kernels/cpu.py", name)
        for name, function in vars(cpu).items()
        if hasattr(function, "py_func")
    }
    direct: dict[Function, None] = {}
    in_detours: dict[Function, None] = {}
    detours: list[FrameType] = []

    def note_call(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        path = Path(code.co_filename)
        if event == "return" and detours and frame is detours[-1]:
            detours.pop()
        if event != "call" or not path.is_relative_to(PACKAGE):
            return
        if code.co_name.startswith("<"):
            return
        function = path.relative_to(PACKAGE).as_posix(), code.co_qualname
        if function in compiled:
            return
        if code.co_qualname in DETOURS:
            detours.append(frame)
        if detours:
            in_detours[function] = None
        else:
            direct[function] = None
        if code.co_qualname == last:
            sys.setprofile(None)
            raise Arrived

    sys.setprofile(note_call)
    try:
        call()
    except Arrived:
        only_there = [name for name in in_detours if name not in direct]
        return Way(list(direct), only_there)
    finally:
        sys.setprofile(None)
    raise AssertionError(f"{last} was not called")


def way_of_a_default_fit() -> Way:
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


def as_text(way: Way) -> str:
    """The way, one line for each file, in the order of first calls."""
    lines = [f"{_size(way.direct)}", *_lines(way.direct), ""]
    *first, last = DETOURS
    detours = f"{', '.join(first)} and {last}"
    lines.append(f"{_size(way.in_detours)} that only {detours} reach")
    return "\n".join(lines + _lines(way.in_detours))


def files_of(functions: list[Function]) -> set[str]:
    """The files that functions are in."""
    return {file for file, _ in functions}


def _size(functions: list[Function]) -> str:
    return f"{len(functions)} functions in {len(files_of(functions))} files"


def _lines(functions: list[Function]) -> list[str]:
    names_of_file: dict[str, list[str]] = {}
    for file, name in functions:
        names_of_file.setdefault(file, []).append(name.replace(".<locals>", ""))
    return [f"{file}: {', '.join(names)}" for file, names in names_of_file.items()]


def with_way(page: str) -> str:
    """The page with the way through the package."""
    text = as_text(way_of_a_default_fit())
    return BLOCK.sub(lambda found: f"{found[1]}```text\n{text}\n```\n{found[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(with_way(PAGE.read_text()))
    print(as_text(way_of_a_default_fit()))
