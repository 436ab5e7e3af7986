"""Binomial tails and bounds: scipy's values over a wide range, identities, and impossible
counts.
"""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import betaincinv

from compatkit.support.binomial import at_least, log_mass, share_for

TRIALS = (1, 2, 7, 15, 16, 40, 408, 1725, 100_000, 10_000_000)


def counts(n):
    """A few numbers of hits, the ends among them."""
    return sorted({0, 1, n // 50, n // 3, n // 2, n - 1, n} & set(range(n + 1)))


@pytest.mark.parametrize("n", TRIALS)
def test_a_term_is_scipys(n):
    for k in counts(n):
        for p in (1e-6, 0.01, 0.3, 0.5, 0.97, max(k, 1) / (n + 1)):
            assert math.exp(log_mass(k, n, p)) == pytest.approx(
                stats.binom.pmf(k, n, p), rel=1e-11, abs=1e-280
            )


@pytest.mark.parametrize("n", [1, 3, 17, 60])
def test_terms_add_up_to_one_and_tails_to_their_terms(n):
    for p in (0.02, 0.5, 0.81):
        terms = [math.exp(log_mass(k, n, p)) for k in range(n + 1)]
        assert math.fsum(terms) == pytest.approx(1, abs=1e-13)
        for k in range(n + 2):
            assert at_least(k, n, p) == pytest.approx(math.fsum(terms[k:]), rel=1e-11, abs=1e-300)


@pytest.mark.parametrize("n", TRIALS)
def test_a_tail_is_scipys(n):
    for k in counts(n):
        near = k / n
        for p in (0.001, 0.2, 0.5, 0.9, near * 0.98, min(near * 1.02, 0.999)):
            assert at_least(k, n, p) == pytest.approx(
                stats.binom.sf(k - 1, n, p), rel=1e-8, abs=1e-280
            )


def test_the_ends_of_a_tail():
    assert [at_least(k, 5, 0.3) for k in (-1, 0, 6)] == [1, 1, 0]
    assert [at_least(3, 5, p) for p in (0, 1)] == [0, 1] and at_least(0, 5, 0) == 1


@pytest.mark.parametrize("n", TRIALS)
@pytest.mark.parametrize("alpha", [1e-6, 0.025, 0.05, 0.5, 0.975, 1 - 1e-6])
def test_a_bound_is_scipys_and_has_the_probability(n, alpha):
    for k in counts(n)[1:]:
        p = share_for(k, n, alpha)
        assert p == pytest.approx(betaincinv(k, n - k + 1, alpha), rel=1e-9)
        if p < 1 - 1e-9:  # nearer to 1, the share itself is too coarse
            assert at_least(k, n, p) == pytest.approx(alpha, rel=1e-6)


def test_random_counts_against_scipy():
    draw = np.random.default_rng(0)
    for _ in range(300):
        n = int(10 ** draw.uniform(0, 6))
        k, alpha = int(draw.integers(1, n + 1)), float(draw.uniform(1e-4, 1 - 1e-4))
        assert share_for(k, n, alpha) == pytest.approx(betaincinv(k, n - k + 1, alpha), rel=1e-9)


@pytest.mark.parametrize(
    ("k", "n", "alpha"), [(0, 5, 0.05), (6, 5, 0.05), (1, 5, 0), (1, 5, 1), (1, 5, float("nan"))]
)
def test_impossible_counts_are_named(k, n, alpha):
    with pytest.raises(ValueError, match=f"{k} hits among {n}"):
        share_for(k, n, alpha)
