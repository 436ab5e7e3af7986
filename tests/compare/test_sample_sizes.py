"""At an advised size the verdict comes out four times out of five, and not at a tenth of it."""

import numpy as np
import pytest
from scipy import stats

from compatkit.compare.estimates import measures
from compatkit.compare.sample_sizes import (
    about,
    examples_for_equality,
    examples_for_gain,
    examples_for_rate,
    smallest_sample,
)
from compatkit.compare.verdict import verdict
from compatkit.metrics import FlipCounts, clopper_pearson
from compatkit.support.paired import gain_interval


@pytest.mark.parametrize("limit, n", [(0.01, 368), (0.05, 72), (0.5, 6), (1, 1)])
def test_the_smallest_sample(limit, n):
    assert smallest_sample(limit) == n and clopper_pearson(0, n)[1] <= limit
    assert n == 1 or clopper_pearson(0, n - 1)[1] > limit


def power_of_a_rate(n, rate, limit):
    """Exact, by listing every number of flips."""
    flips = np.arange(n + 1)
    chance = stats.binom.pmf(flips, n, rate)
    likely = flips[chance > 1e-9]
    ends = [clopper_pearson(int(k), n) for k in likely]
    held = [high <= limit if rate < limit else low > limit for low, high in ends]
    return float(chance[likely] @ np.array(held))


@pytest.mark.parametrize(
    "rate, limit",
    [(0.0, 0.01), (0.005, 0.01), (0.002, 0.01), (0.03, 0.05), (0.02, 0.01), (0.1, 0.05)],
)
def test_the_advised_size_shows_a_rate_four_times_out_of_five(rate, limit):
    n = examples_for_rate(rate, limit)
    assert power_of_a_rate(n, rate, limit) >= 0.8
    assert power_of_a_rate(int(n * 0.6), rate, limit) < 0.8  # and it is not needlessly large


def test_a_rate_at_its_limit_is_never_shown():
    assert examples_for_rate(0.01, 0.01) == np.inf and about(np.inf).startswith("more examples")


@pytest.mark.parametrize("share, margin", [(0.1, 0.01), (0.04, 0.02)])
def test_the_advised_size_shows_equality_by_simulation(share, margin):
    n = int(examples_for_equality(share, margin))
    drawn = np.random.default_rng(0).multinomial(n, [share / 2, share / 2, 1 - share], 300).tolist()
    ends = [gain_interval(b, c, n) for b, c, _ in drawn]
    shown = np.mean([-margin < low and high < margin for low, high in ends])
    assert 0.72 <= shown <= 0.88


def power_of_equality(n, share, margin):
    """Exact, by listing every pair of flips."""
    most = int(stats.binom.ppf(1 - 1e-7, n, share / 2)) + 1
    flips = [(b, c, n - b - c) for b in range(most) for c in range(most) if b + c <= n]
    chance = stats.multinomial.pmf(flips, n, [share / 2, share / 2, 1 - share])
    likely = [(*pair[:2], p) for pair, p in zip(flips, chance) if p > 1e-7]
    ends = [(gain_interval(b, c, n), p) for b, c, p in likely]
    return sum(p for (low, high), p in ends if -margin < low and high < margin)


@pytest.mark.parametrize("share, margin, n", [(0.01, 0.02, 450), (0.02, 0.03, 350), (0, 0.02, 190)])
def test_with_few_flips_the_advised_size_is_the_smallest_that_shows_equality(share, margin, n):
    assert examples_for_equality(share, margin) == n
    assert power_of_equality(n, share, margin) >= 0.8 > power_of_equality(n - 10, share, margin)


def test_the_advised_size_shows_a_gain_by_simulation():
    n = int(examples_for_gain(0.02, 0.1))
    drawn = np.random.default_rng(0).multinomial(n, [0.04, 0.06, 0.9], 300).tolist()
    shown = np.mean([gain_interval(b, c, n)[0] > 0 for b, c, _ in drawn])
    assert 0.7 <= shown <= 0.88


def test_sizes_in_words():
    assert about(1201) == "about 1,300 examples" and about(1200) == "about 1,200 examples"
    assert about(3) == "about 10 examples" and about(99) == "about 99 examples"


@pytest.mark.parametrize(
    "counts, rates",
    [
        ((960, 5, 30, 5), (0.005, 0.03)),  # better, NFR half the tolerance
        ((480, 1, 1, 18), (0.002, 0.002)),  # equal, NFR a fifth of the tolerance
        # NFR is beyond the tolerance, but one sample in two would not show it
        ((920, 35, 35, 10), (0.035, 0.035)),
    ],
)
def test_the_size_in_the_sentence_is_one_at_which_the_verdict_comes_out(counts, rates):
    word, reason = verdict(measures(FlipCounts(*counts, 0)), 0.03 if counts[1] == 35 else 0.01)
    assert word == "too little data" and "with a probability of 80 %" in reason
    n = int(reason.split(" examples would show")[0].rpartition(" ")[2].replace(",", ""))
    drawn = np.random.default_rng(1).multinomial(n, [*rates, 1 - sum(rates)], 200).tolist()
    words = [
        verdict(measures(FlipCounts(rest, b, c, 0, 0)), 0.03 if counts[1] == 35 else 0.01)[0]
        for b, c, rest in drawn
    ]
    assert words.count("too little data") <= 0.28 * len(words)
