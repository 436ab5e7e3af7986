"""Pairs made for tests."""

import numpy as np

from compatkit.compare.pair import Pair
from compatkit.predictions import Predictions


def pair_of(label, old, new, **columns):
    ids = [f"e{i}" for i in range(len(label))]
    return Pair.of(Predictions(ids, label, old, columns=columns), Predictions(ids, label, new))


def pair_with(
    both_right=0, negative=0, positive=0, both_wrong_same=0, both_wrong_different=0, **columns
):
    counts = (both_right, negative, positive, both_wrong_same, both_wrong_different)
    old, new = np.repeat([0, 0, 1, 1, 1], counts), np.repeat([0, 1, 0, 1, 2], counts)
    return pair_of(np.zeros(len(old), dtype=int), old, new, **columns)


def random_pair(seed, n=400, columns=True):
    draw = np.random.default_rng(seed)
    label = draw.integers(0, 4, n)
    old, new = (np.where(draw.random(n) < 0.75, label, draw.integers(0, 4, n)) for _ in range(2))
    extra = (
        {"intent": draw.choice(["x", "y", "z"], n), "length": draw.integers(0, 50, n)}
        if columns
        else {}
    )
    return pair_of(label, old, new, **extra)


def scored_pair(old, new, **columns):
    ids = [f"e{i}" for i in range(len(old))]
    return Pair.of(Predictions(ids, score=old, columns=columns), Predictions(ids, score=new))
