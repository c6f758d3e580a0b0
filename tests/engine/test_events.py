"""Listeners: what they hear, and how they stop a stage."""

import contextlib

import numpy as np
import ot
import pytest
import torch

from sliceflow.engine.events import (
    Event,
    HeldOut,
    Progress,
    closing,
    listening,
    tell,
)
from sliceflow.engine.random import Seed

X = np.random.default_rng(0).normal(size=(200, 3)) * [1, 5, 0.1] + 2


def event(step, particles, stage_index=0):
    return Event("flow", stage_index, step, step + 1, 10, torch.tensor(1.0), 0.1, particles)


@pytest.mark.parametrize(
    ("listeners", "count"),
    [(print, 1), ((print,), 1), ([print, len], 2), (iter([print]), 1), (None, 0)],
)
def test_one_listener_several_or_none_may_be_given(listeners, count):
    assert len(listening(listeners)) == count


@pytest.mark.parametrize("listeners", [3, (print, 3)])
def test_listeners_that_cannot_be_called_are_refused(listeners):
    with pytest.raises(ValueError, match=r"listeners=.*3.* must be a callable, a tuple of several, or"):
        listening(listeners)


def test_listeners_are_closed_and_the_stage_ends_if_any_of_them_says_so():
    class Closing:
        closed = False

        def __call__(self, event):
            return False

        def close(self):
            self.closed = True

    first, heard = Closing(), []
    assert not tell((first, heard.append), 1)
    assert tell((lambda _: True, heard.append), 2)
    assert heard == [1, 2]
    with contextlib.suppress(KeyError), closing((first, heard.append)):
        raise KeyError
    assert first.closed


def test_held_out_rule_stops_after_steps_without_improvement_and_starts_afresh_in_a_new_stage():
    rows = torch.zeros(2, 10)
    rule = HeldOut(rows, Seed(0), n_iter_no_change=3)
    distances = [4.0, 3.0, 3.0, 3.0, 3.0]
    stops = [rule(event(k, torch.full((2, 10), value))) for k, value in enumerate(distances)]
    assert stops == [False, False, False, False, True]
    assert not rule(event(0, torch.full((2, 10), 9.0), stage_index=1))


def test_progress_without_tqdm_prints_lines(capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tqdm.auto", None)
    progress = Progress()
    for k in range(10):
        progress(event(k, torch.zeros(1, 1)))
    progress.close()
    assert capsys.readouterr().err.count("sliced distance 1") == 10


def rule_of(x, y, y_p, **options):
    return HeldOut(torch.from_numpy(x.T.copy()), Seed(0), y, y_p, **options)


def test_the_distance_by_class_is_pots_in_the_shares_of_the_held_out_rows():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(100, 3)), torch.from_numpy(np.repeat([0, 2, 5], [50, 30, 20]))
    particles, y_p = rng.normal(size=(110, 3)) + 1, torch.from_numpy(np.repeat([2, 0, 7], [30, 50, 30]))
    rule = rule_of(x, y, y_p, n_directions=40)
    squares = [
        ot.sliced_wasserstein_distance(particles[y_p == c], x[y == c], projections=rule.theta.T.numpy())
        ** 2
        for c in (0, 2)  # of 5 there are no particles, of 7 no rows
    ]
    exact = np.sqrt((50 * squares[0] + 30 * squares[1]) / 80)
    assert rule.distance(torch.from_numpy(particles.T.copy())) == pytest.approx(exact, rel=1e-9)


def test_particles_of_classes_that_no_held_out_row_has_cannot_be_judged():
    with pytest.raises(ValueError, match="early_stopping holds out no row of any class"):
        rule_of(np.zeros((2, 1)), torch.tensor([0, 0]), torch.tensor([1, 1]))


@pytest.mark.parametrize("weights", [False, True])
def test_continuous_conditions_are_judged_together_with_x(weights):
    """x = y + noise against the same x beside other y."""
    rng = np.random.default_rng(2)
    if weights:  # rows with labels, particles with weights of classes
        labels = np.arange(1000) % 2
        y, y_p = (
            torch.from_numpy(labels[:300]),
            torch.nn.functional.one_hot(torch.from_numpy(labels), 2),
        )
        y_p, x = y_p.double(), 3.0 * labels[:, None]
    else:
        y_p = torch.from_numpy(rng.normal(size=(1000, 1)))
        y, x = y_p[:300], y_p.numpy().copy()
    x = x + 0.1 * rng.normal(size=(1000, 1))
    rule = rule_of(x[:300], y, y_p)
    right, wrong = x, x[rng.permutation(1000)]
    distances = [rule.distance(torch.from_numpy(p.T.copy())) for p in (right, wrong)]
    assert distances[0] < 0.2
    assert distances[1] > 3 * distances[0]
