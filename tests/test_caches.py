"""Caches keep a bounded number of bytes, and change no bit."""

import threading

import torch

import sliceflow.engine.rotations as rotations
from sliceflow.caches import Cached
from sliceflow.engine.random import Seed
from sliceflow.engine.rotations import rotation


def counting(calls):
    """A function that appends every argument with which it is called."""

    def numbers(n):
        calls.append(n)
        return torch.full((n,), float(n))

    return numbers


def test_the_least_recently_used_goes_first():
    calls = []
    numbers = Cached(counting(calls), max_bytes=4 * 60)
    for n in (10, 20, 30, 10, 20, 5, 10, 20):  # 5 replaces 30
        assert numbers(n).shape == (n,)
    assert calls == [10, 20, 30, 5]
    assert numbers.nbytes == 4 * 35


def test_what_is_larger_than_the_bound_is_kept_only_if_asked_for_and_until_trimmed():
    calls = []
    numbers = Cached(counting(calls), max_bytes=40)
    assert torch.equal(numbers(100), numbers(100))
    assert (calls, numbers.nbytes) == ([100, 100], 0)
    calls.clear()
    numbers = Cached(counting(calls), max_bytes=40, keep_latest=True)
    for n in (5, 100, 100):
        numbers(n)
    assert (calls, numbers.nbytes) == ([5, 100], 400)
    numbers.trim()
    assert numbers.nbytes == 0


def test_threads_may_ask_at_once():
    numbers = Cached(counting([]), max_bytes=400)

    def ask():
        for k in range(300):
            assert len(numbers(1 + k % 70)) == 1 + k % 70

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers.nbytes <= 400


def test_a_bound_that_is_too_small_changes_no_bit(monkeypatch):
    wanted = [rotation(Seed(1), k, 40) for k in range(3)]
    caches = [value for value in vars(rotations).values() if isinstance(value, Cached)]
    assert caches
    for cache in caches:
        monkeypatch.setattr(cache, "max_bytes", 0)
        cache.trim()
    assert all(torch.equal(rotation(Seed(1), k, 40), r) for k, r in enumerate(wanted))
    for cache in caches:
        assert cache.nbytes <= 40 * 40 * 8 * 64  # a pool stays for a fit


def test_a_result_that_was_made_in_inference_mode_takes_part_in_gradients():
    threes = Cached(lambda n: torch.full((n,), 3.0), max_bytes=100)
    with torch.inference_mode():
        threes(2)
    x = torch.ones(2, requires_grad=True)
    (x * threes(2)).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]
