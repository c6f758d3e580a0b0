"""Dry runs and what is said before a long fit: answers that take little work."""

import json
import re

import numpy as np
import pytest

pytest.importorskip("typer")

from running import FEW, inside
from sliceflow import ImageFlow, SlicedWassersteinFlow
from sliceflow.cli import cost, plan
from sliceflow.cli.data import Data

rng = np.random.default_rng(0)


@pytest.fixture
def large(tmp_path):
    """300 pictures of 53×37, of which 270 are fitted."""
    np.save(tmp_path / "large.npy", rng.integers(0, 256, (300, 53, 37)).astype(np.uint8))
    return tmp_path / "large.npy"


@pytest.fixture
def work(monkeypatch):
    """The work of every fit so far, in seconds of the model of `cost`: by its sizes, not by a clock."""
    done = []
    for kind in (ImageFlow, SlicedWassersteinFlow):

        def fit(self, *args, fit=kind.fit, **options):
            fit(self, *args, **options)
            done.append(plan._job(self.plan_).seconds)
            return self

        monkeypatch.setattr(kind, "fit", fit)
    return done


def test_a_dry_run_of_large_pictures_fits_only_a_few_small_steps(large, work):
    planned = json.loads(inside("fit", large, "--dry-run", "--json").stdout)
    assert len(work) == 1
    assert work[0] <= (cost._TIMED + 1) * cost._BUDGET
    assert planned["steps"] == 4441
    assert planned["seconds"] > 60
    assert planned["shorter"]["--quality draft"] < planned["seconds"] / 2
    said = inside("fit", large, "--dry-run").stdout
    assert re.search(r"time +about \d+ (min|h)", said)
    assert re.search(r"shorter +--quality draft takes about ", said)


def test_pictures_and_tables_of_any_size_are_planned_with_little_work(monkeypatch, work):
    monkeypatch.setattr("sliceflow.devices.free_memory", lambda device: 1 << 36)
    wide = Data("wide", rng.normal(size=(200, 3000)), columns=[f"c{i}" for i in range(3000)])
    huge = Data("huge", rng.integers(0, 256, (40, 160, 160, 3)).astype(np.uint8))
    options = dict(device="cpu", random_state=0)
    for flow, data in ((SlicedWassersteinFlow(**options), wide), (ImageFlow(**options), huge)):
        assert plan.plan(flow, data, None).seconds > 60
    assert len(work) == 2
    assert sum(work) < 4 * cost._TIMED * cost._BUDGET


@pytest.mark.parametrize("kind", ["pictures", "many columns", "few columns"])
def test_the_time_is_that_of_the_timed_steps_for_all_the_work(kind, monkeypatch):
    """By a clock of the test's own: an estimate is right on a machine of any speed."""
    if kind == "pictures":
        data = Data("noise", rng.integers(0, 256, (300, 10, 10)).astype(np.uint8))
        flow = ImageFlow(n_particles=1000, quality=2, device="cpu", random_state=0)
    else:
        d = 60 if kind == "many columns" else 3
        data = Data("noise", rng.normal(size=(1000, d)), columns=[*map(str, range(d))])
        flow = SlicedWassersteinFlow(3000, 40, device="cpu", random_state=0)
    job = plan._job(flow.plan(data.x))
    few, step = cost._affordable(job)
    own = type(flow).fit
    for slower in (1.0, 7.0):

        def fit(self, *args, slower=slower, **options):
            own(self, *args, **options)
            self.history_["seconds"] = [slower * few.step(step) * k for k in range(1, 6)]
            return self

        with monkeypatch.context() as patch:
            patch.setattr(type(flow), "fit", fit)
            assert plan.plan(flow, data, None).seconds == pytest.approx(slower * job.seconds)


def test_a_long_fit_says_so_at_once_and_how_to_make_it_short(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "_LONG", 0.0)
    words = ("fit", "digits", "--quality", "best", "--particles", 50, "--schedule", "1[1] 8[3]")
    result = inside(*words, "--out", tmp_path / "run")
    assert re.search(r"note: this takes about .* s on this CPU; --quality draft: .* s\n", result.stdout)
    assert inside("fit", "digits", *FEW, "--out", tmp_path / "other", "--quiet").stdout == ""


def test_a_short_fit_starts_at_once_and_says_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "speed", None)
    result = inside("fit", "digits", *FEW, "--out", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert "CPU" not in result.stdout
