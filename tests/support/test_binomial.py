"""Binomial tails and bounds against terms that are added up, and impossible counts."""

import math

import pytest

from compatkit.support.binomial import at_least, share_for


@pytest.mark.parametrize("n", [1, 3, 17, 60])
def test_a_tail_is_the_sum_of_its_terms(n):
    for p in (0.02, 0.5, 0.81):
        terms = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
        for k in range(n + 2):
            assert at_least(k, n, p) == pytest.approx(math.fsum(terms[k:]), rel=1e-11, abs=1e-300)


def test_the_ends_of_a_tail():
    assert [at_least(k, 5, 0.3) for k in (-1, 0, 6)] == [1, 1, 0]
    assert [at_least(3, 5, p) for p in (0, 1)] == [0, 1] and at_least(0, 5, 0) == 1


@pytest.mark.parametrize("n", [1, 2, 16, 408, 100_000, 10_000_000])
@pytest.mark.parametrize("alpha", [1e-6, 0.025, 0.5, 0.975])
def test_at_its_bound_a_tail_has_the_probability(n, alpha):
    for k in sorted({1, n // 50 + 1, n // 3 + 1, n}):
        p = share_for(k, n, alpha)
        if p < 1 - 1e-9:  # nearer to 1, the share itself is too coarse
            assert at_least(k, n, p) == pytest.approx(alpha, rel=1e-6)


@pytest.mark.parametrize(
    ("k", "n", "alpha"), [(0, 5, 0.05), (6, 5, 0.05), (1, 5, 0), (1, 5, 1), (1, 5, float("nan"))]
)
def test_impossible_counts_are_named(k, n, alpha):
    with pytest.raises(ValueError, match=f"{k} hits among {n}"):
        share_for(k, n, alpha)
