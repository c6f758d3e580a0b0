"""What plans know of the speed of a machine."""

import time

import pytest
import torch

from sliceflow import SlicedWassersteinFlow, devices


@pytest.fixture
def unmeasured():
    devices.cpu_slowness.cache_clear()
    yield
    devices.cpu_slowness.cache_clear()


def test_the_speed_of_a_cpu_is_measured_once_and_fast(unmeasured):
    n_threads = torch.get_num_threads()
    slowness = devices.cpu_slowness()
    assert slowness > 0
    assert torch.get_num_threads() == n_threads
    started_at = time.perf_counter()
    assert devices.cpu_slowness() == slowness
    assert time.perf_counter() - started_at < 0.001


def test_plans_of_a_slower_cpu_take_longer(rng, monkeypatch):
    plan = SlicedWassersteinFlow(random_state=0).prepare(rng.normal(size=(50, 2))).plan
    seconds = []
    for slowness in (1.0, 3.0):
        monkeypatch.setattr(
            "sliceflow.base.fit_plan.cpu_slowness", lambda s=slowness: s
        )
        seconds.append(plan.seconds)
    assert seconds[1] == pytest.approx(3 * seconds[0])
