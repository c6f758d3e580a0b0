"""Shared by all tests: hypothesis' profiles, Triton's interpreter where there is no
GPU, and fixtures.

Fitted models are made once for all tests of a process: read them, sample from them,
never fit them again. `models.py` says how they are made.
"""

import gc
import itertools
import os
import signal

os.environ.setdefault(
    "OMP_WAIT_POLICY", "passive"
)  # waiting threads sleep; torch reads it

import numpy as np
import pytest
import torch
from hypothesis import settings

# The same examples every time, and no deadlines: numba compiles on first use.
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=10)
settings.register_profile("slow", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("ci")


def pytest_configure(config):
    # Modules that tests import stay to the end. Python would search their objects for
    # garbage while tests are collected, and again and again later: some of the time.
    gc.disable()
    chosen = config.option.markexpr
    if "slow" in chosen and "not slow" not in chosen:
        settings.load_profile("slow")
    if "gpu" not in chosen or "not gpu" in chosen:
        # These tests are of the CPU on every machine: bits of a GPU differ.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported


def pytest_collection_modifyitems(items):
    """Why a test is skipped: `-m gpu` and `-m browser` choose those that need what is
    missing.
    """
    no_gpu = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(no_gpu)


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def ctrl_c_is_heard():
    """Tests in the background of a shell ignore Ctrl-C, and so would the commands they
    start.
    """
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def rng():
    """Random numbers that do not depend on the tests before.

    ``make test SEED=3`` takes other ones: what a test asserts must hold for any seed.
    """
    return np.random.default_rng(int(os.environ.get("SLICEFLOW_TEST_SEED", "0")))


@pytest.fixture
def torch_warns_every_time():
    """Warnings of torch do not depend on the tests before: most are shown only once."""
    import torch

    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.fixture(scope="session")
def digits():
    """Those to fit, and held-out ones."""
    from sliceflow.datasets import load

    return load("digits"), load("digits", "test")


@pytest.fixture(scope="session")
def fitted():
    """``fitted(kind)``: the model of a kind in `models.FITTED`, fitted when it is first
    asked for.
    """
    from models import FITTED

    made = {}

    def model(kind):
        if kind not in made:
            made[kind] = FITTED[kind]()
        return made[kind]

    return model


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory):
    """A finished run on digits by class, and what that said."""
    pytest.importorskip("typer")
    from running import FEW, few_trees, inside

    folder = tmp_path_factory.mktemp("digits") / "run"
    with few_trees():
        result = inside(
            "fit", "digits", "--conditional", "--save-rows", *FEW, "--out", folder
        )
    assert result.returncode == 0, result.stderr
    return folder, result


@pytest.fixture(scope="session")
def people(tmp_path_factory):
    """A CSV file of 200 rows: numbers, a category, dates in order, missing cells,
    e-mail addresses.
    """
    import pandas as pd

    rng = np.random.default_rng(0)
    n = 200
    start = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), "D")
    table = {
        "plan": rng.choice(["basic", "gold"], n),
        "age": np.where(rng.random(n) < 0.06, np.nan, rng.integers(18, 80, n)),
        "spent": rng.gamma(2, 20, n).round(2),
        "start": start,
        "end": start + pd.to_timedelta(rng.integers(1, 99, n), "D"),
        "mail": [f"person{i % 190}@example.org" for i in range(n)],
    }
    path = tmp_path_factory.mktemp("people") / "people.csv"
    pd.DataFrame(table).to_csv(path, index=False)
    return path


@pytest.fixture(scope="session")
def table_run(people, tmp_path_factory):
    """A finished run on a table, and what that said."""
    from running import few_trees, inside

    folder = tmp_path_factory.mktemp("table") / "run"
    with few_trees():
        result = inside("fit", people, "--constraint", "start <= end", "--out", folder)
    assert result.returncode == 0, result.stderr
    return folder, result


@pytest.fixture
def one_comparison(monkeypatch):
    """The ways to draw rows that have what is given are compared once, not on twelve
    splits: for tests of what holds either way.
    """
    from sliceflow.estimators.tables.trials import choose_given_draws
    from sliceflow.estimators.tables.trials.trial_draws import iter_splits

    def first_splits(*args):
        return itertools.islice(iter_splits(*args), 1)

    monkeypatch.setattr(choose_given_draws, "iter_splits", first_splits)
