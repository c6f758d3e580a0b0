"""The seed tree.

Known answers, independence of chunks, no collisions, right distributions.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sliceflow.engine.random import Seed


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 1000))
def test_a_row_does_not_depend_on_the_rows_around_it(rows, columns, start):
    seed = Seed(3).child("x")
    for draw in (seed.normal, seed.uniform):
        whole = draw(start + rows, columns)
        assert torch.equal(whole[start:], draw(rows, columns, first_row=start))


def test_chunks_leave_no_seam(monkeypatch):
    whole = Seed(1).normal(1000, 5), Seed(1).uniform(1000, 5)
    monkeypatch.setattr("sliceflow.engine.random._NUMBERS_PER_CHUNK", 28)
    assert torch.equal(whole[0], Seed(1).normal(1000, 5))
    assert torch.equal(whole[1], Seed(1).uniform(1000, 5))


def test_numbers_are_normal_and_uniform():
    assert stats.kstest(Seed(0).normal(5000, 4).flatten(), "norm").pvalue > 0.01
    assert stats.kstest(Seed(0).uniform(5000, 4).flatten(), "uniform").pvalue > 0.01
    assert (
        stats.kstest(
            Seed(0).laplace(5000, 3, "cpu").flatten() * 6**0.5, "laplace"
        ).pvalue
        > 0.01
    )
    columns = np.corrcoef(Seed(0).normal(20_000, 4).T)
    assert np.abs(columns - np.eye(4)).max() < 0.03


def test_places_in_the_tree_are_distinct():
    root = Seed(0)
    places = [
        root,
        Seed(1),
        root.child("a"),
        root.child("b"),
        root.child(0),
        root.child(1),
    ]
    places += [
        root.child("a", 0),
        root.child(0, "a"),
        root.child("a").child(1),
        root.child(0, 0),
    ]
    assert len({place.key for place in places}) == len(places)
    assert root.child("a").child(1) == root.child("a", 1)


def test_random_state_follows_scikit_learn():
    assert Seed.from_random_state(5) == Seed.from_random_state(np.int64(5))
    assert Seed.from_random_state(None) != Seed.from_random_state(None)
    for state in (np.random.RandomState, np.random.default_rng):
        assert Seed.from_random_state(state(1)) == Seed.from_random_state(state(1))
    with pytest.raises(ValueError, match="random_state=-1 is negative"):
        Seed.from_random_state(-1)
    with pytest.raises(ValueError, match="random_state='x' cannot seed anything"):
        Seed.from_random_state("x")


@pytest.mark.gpu
def test_the_gpu_draws_the_cpus_numbers():
    seed = Seed(9).child("noise")
    cpu = seed.normal(1000, 17)
    gpu = seed.normal(1000, 17, device="cuda").cpu()
    assert torch.allclose(cpu, gpu, rtol=0, atol=1e-12)
    assert torch.allclose(
        seed.laplace(9, 7, "cpu"), seed.laplace(9, 7, "cuda").cpu(), atol=1e-12
    )
    assert torch.equal(
        seed.uniform(1000, 17), seed.uniform(1000, 17, device="cuda").cpu()
    )


def test_words_and_whole_numbers_of_any_type_name_places():
    """True == 1, and caches know places by what they are equal to."""
    for one in (np.int64(1), np.uint8(1), np.array(1), torch.tensor(1), True):
        assert Seed(0).child("frame", one) == Seed(0).child("frame", 1)
        assert Seed(0).child("frame", one).key == Seed(0).child("frame", 1).key
    assert Seed(0).child(np.str_("a")).key == Seed(0).child("a").key
    for name in (3.0, np.float64(3), None):
        with pytest.raises(TypeError):
            Seed(0).child(name)


def test_a_part_of_the_columns_is_that_of_the_whole():
    whole = Seed(4).uniform(5, 23)
    for part in (slice(0, 23), slice(3, 4), slice(8, 21)):
        assert torch.equal(Seed(4).uniform(5, 23, part=part), whole[:, part])
        rows = Seed(4).uniform(2, 23, first_row=3, part=part)
        assert torch.equal(rows, whole[3:, part])
