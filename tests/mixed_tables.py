"""A table with a column of every kind."""

import numpy as np


def columns(n=300, seed=0):
    rng = np.random.default_rng(seed)
    plan = rng.choice(["basic", "gold", "silver"], n, p=[0.5, 0.2, 0.3])
    age = rng.integers(18, 80, n)
    balance = np.round(np.where(rng.random(n) < 0.4, 0.0, rng.gamma(2, 50 + (plan == "gold") * 200)), 2)
    start = rng.integers(0, 3000, n)
    return {
        "plan": plan,
        "age": age,
        "height": np.round(rng.normal(170, 10, n), 1),
        "balance": balance,
        "churn": rng.random(n) < 0.1 + 0.3 * (balance == 0),
        "start": start,
        "end": start + rng.integers(0, 400, n),
        "score": np.where(rng.random(n) < 0.15, np.nan, rng.normal(size=n) + (age - 50) / 20),
    }


def dates(n, seed=0):
    days = np.random.default_rng(seed).integers(0, 3000, n)
    return np.datetime64("2015-01-01") + days
