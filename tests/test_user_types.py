"""The types that users' own checkers see: `mypy --strict` on two small scripts."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# What the documentation shows, and must pass.
RIGHT = """
from typing import Any, assert_type

import numpy as np
import pandas as pd
import sliceflow
from numpy.typing import NDArray
from sliceflow import ImageFlow, SlicedDensity, SlicedWassersteinFlow, TableFlow
from torch import Tensor

X = np.zeros((100, 2))

flow = SlicedWassersteinFlow(n_steps=50).fit(X)
assert_type(flow.plan(X).n_particles, int)
assert_type(flow.plan_.n_columns, int)
assert_type(flow.prepare(X).plan.n_rows, int)
assert_type(flow.prepare(X).planned_fit.plan.n_rows, int)
assert_type(flow.sample(3), NDArray[Any] | Tensor | pd.DataFrame)
assert_type(flow.particles_, NDArray[Any] | Tensor | pd.DataFrame)
samples, y = flow.sample(3, return_y=True)
assert_type(samples, NDArray[Any] | Tensor | pd.DataFrame)
assert_type(y, NDArray[Any] | None)
print(samples.shape, samples[:, 0])
distances = flow.history_["distance"]
print(len(distances), distances[-1])

pictures = ImageFlow().fit(np.zeros((100, 8, 8)))
assert_type(pictures.plan(X).n_particles, int)
assert_type(pictures.prepare(X).planned_fit.plan.n_particles, int)
assert_type(pictures.sample(3), NDArray[Any] | Tensor)

table = TableFlow().fit(pd.DataFrame({"a": [1, 2]}))
assert_type(table.plan_.n_columns, int)
assert_type(table.prepare("rows.csv").plan.n_columns, int)
assert_type(table.sample(3, given={"a": 1}), pd.DataFrame)

density = SlicedDensity().fit(X)
assert_type(density.plan_.n_columns, int)
assert_type(density.prepare(X).plan.n_columns, int)
print(density.sample(3).shape, density.score_samples(X).mean())

loaded = sliceflow.load("model.sliceflow")
assert_type(loaded, SlicedWassersteinFlow | ImageFlow | TableFlow | SlicedDensity)
print(loaded.sample(3).shape, loaded.plan_.device)
if isinstance(loaded, ImageFlow):
    print(loaded.plan_.n_particles)
"""

# What no object has: every line must be an error.
WRONG = """
flow.sample(3).no_such_attribute
flow.particles_.no_such_attribute
flow.plan(X).no_such_field
flow.plan_.no_such_field
flow.prepare(X).plan.no_such_field
flow.prepare(X).planned_fit.plan.no_such_field
flow.no_such_attribute
pictures.plan(X).no_such_field
table.prepare(X).planned_fit.plan.no_such_field
density.plan_.no_such_field
density.sample(3).no_such_attribute
loaded.sample(3).no_such_attribute
"""


@pytest.mark.slow
def test_mypy_passes_documented_code_and_finds_misspelt_attributes(tmp_path):
    pytest.importorskip("mypy")
    script = tmp_path / "script.py"
    script.write_text(RIGHT + WRONG.lstrip())
    first_wrong = RIGHT.count("\n") + 1
    wrong_lines = range(first_wrong, first_wrong + WRONG.strip().count("\n") + 1)

    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-pretty", str(script)],
        cwd=ROOT,  # whose cache makes this fast after `make lint`
        capture_output=True,
        text=True,
    ).stdout

    errors = [line for line in found.splitlines() if ": error:" in line]
    lines_with_errors = {int(error.split(":")[1]) for error in errors}
    assert lines_with_errors == set(wrong_lines), found
