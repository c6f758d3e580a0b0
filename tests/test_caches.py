"""What is kept between steps and between fits: a bounded number of bytes, and the same bits."""

import threading

import pytest
import torch

import sliceflow.engine.frames
import sliceflow.spaces.pictures.cosines
import sliceflow.spaces.pictures.pyramid
from sliceflow import SlicedWassersteinFlow
from sliceflow.caches import Cached
from sliceflow.engine.frames import rotation
from sliceflow.engine.random import Seed
from sliceflow.spaces.pictures.cosines import cosine_rotation
from sliceflow.spaces.pictures.pyramid import Subspace


def counting(made):
    def numbers(n):
        made.append(n)
        return torch.full((n,), float(n))

    return numbers


def test_what_was_not_asked_for_the_longest_goes_first():
    made = []
    numbers = Cached(counting(made), most=4 * 60)
    for n in (10, 20, 30, 10, 20):
        assert numbers(n).shape == (n,)
    assert made == [10, 20, 30]
    numbers(5)  # 30 goes, which nobody has asked for since
    numbers(10)
    numbers(20)
    assert made == [10, 20, 30, 5]
    assert numbers.nbytes == 4 * 35
    numbers(30)
    assert made[-1] == 30


def test_what_is_larger_than_the_bound_is_kept_only_if_it_must_be_and_then_until_it_is_released():
    made = []
    numbers = Cached(counting(made), most=40)
    numbers(100)
    numbers(100)
    assert made == [100, 100]
    assert numbers.nbytes == 0
    made.clear()
    numbers = Cached(counting(made), most=40, always=True)
    numbers(5)
    numbers(100)
    numbers(100)
    assert made == [5, 100]
    assert numbers.nbytes == 400
    numbers.trim()
    assert numbers.nbytes == 0


def test_threads_may_ask_at_once():
    numbers = Cached(counting([]), most=400)

    def ask():
        for k in range(300):
            assert len(numbers(1 + k % 70)) == 1 + k % 70

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers.nbytes <= 400


CACHES = [
    sliceflow.engine.frames._rotation_pool,
    sliceflow.engine.frames._rotation_block,
    sliceflow.spaces.pictures.cosines.cosine_basis,
    sliceflow.spaces.pictures.cosines._pool,
    sliceflow.spaces.pictures.cosines._block,
    sliceflow.spaces.pictures.pyramid.basis,
    sliceflow.spaces.pictures.pyramid._basis_as,
]


def test_many_seeds_leave_a_bounded_number_of_bytes(monkeypatch):
    for cache in CACHES:
        monkeypatch.setattr(cache, "most", 1 << 20)
        cache.clear()
    for seed in range(30):
        rotation(Seed(seed), 0, 40)
        cosine_rotation(Seed(seed), 0, (1, 6, 6))
        Subspace(1, 30, 30 + seed, 7, 7).down(torch.zeros(30 * (30 + seed), 2))
    for cache in CACHES:
        assert 0 < cache.nbytes <= 1 << 20
        cache.clear()


@pytest.mark.parametrize("d", [17, 40])
def test_a_bound_that_is_too_small_changes_no_bit(d, monkeypatch):
    wanted = [rotation(Seed(1), k, d) for k in range(3)]
    for cache in CACHES:
        monkeypatch.setattr(cache, "most", 0)
        cache.clear()
    assert all(torch.equal(rotation(Seed(1), k, d), r) for k, r in enumerate(wanted))


def test_a_large_pool_of_rotations_goes_when_the_fit_or_the_sampling_is_done(monkeypatch):
    """It is there for as long as it is needed: made once for a fit."""
    pool = sliceflow.engine.frames._rotation_pool
    made, make = [], pool.function
    monkeypatch.setattr(pool, "most", 1000)
    monkeypatch.setattr(pool, "function", lambda *args: made.append(args) or make(*args))
    pool.clear()
    flow = SlicedWassersteinFlow(n_particles=50, n_steps=70, random_state=0, device="cpu")
    flow.fit(Seed(0).normal(30, 20).numpy())
    assert len(made) == 1
    assert pool.nbytes == 0
    sliceflow.engine.frames._rotation_block.clear()
    flow.sample(3, random_state=0)
    assert len(made) == 2
    assert pool.nbytes == 0
