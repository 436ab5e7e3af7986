"""The interval against its definition, print and simulation; never against the test beside it."""

from math import sqrt

import numpy as np
import pytest
from scipy import optimize, stats

from compatkit.support.paired import (
    CrossedMean,
    crossed_mean,
    gain_interval,
    mcnemar,
    score_statistic,
    tango_interval,
)


def likeliest(b, c, n, gain):
    """The rate of negative flips of the largest likelihood with a fixed difference, by search."""

    def cost(q):
        rest = (n - b - c) * np.log1p(-2 * q - gain)
        return -(b * np.log(q) + c * np.log(q + gain) + rest)

    low, high = max(0, -gain) + 1e-12, (1 - gain) / 2 - 1e-12
    return optimize.minimize_scalar(
        cost, bounds=(low, high), method="bounded", options={"xatol": 1e-12}
    ).x


@pytest.mark.parametrize(
    "b, c, n", [(7, 1, 21), (20, 60, 1000), (3, 3, 50), (40, 2, 100), (1, 1, 10_000)]
)
def test_the_ends_are_where_the_score_test_begins_to_refuse(b, c, n):
    for end in tango_interval(b, c, n):
        rate = likeliest(b, c, n, end)
        score = (c - b - n * end) / sqrt(n * (2 * rate + end * (1 - end)))
        assert abs(score) == pytest.approx(1.959964, abs=2e-4)


def test_without_flips_the_statistic_of_no_gain_is_0():
    assert score_statistic(0, 0, 10, 0) == 0
    assert score_statistic(0, 3, 10, 0) == pytest.approx(sqrt(3))  # McNemar's: 3 / sqrt(3)


def test_a_published_interval():
    # airway hyper-responsiveness of 21 children; Fagerland et al. 2014 print -.517 to -.026
    assert tango_interval(7, 1, 21) == pytest.approx((-0.517, -0.026), abs=5e-4)


def test_ends_are_ordered_and_within_bounds():
    for n in (1, 2, 5, 13):
        for b in range(n + 1):
            for c in range(n + 1 - b):
                low, high = tango_interval(b, c, n)
                assert -1 <= low <= (c - b) / n <= high <= 1 and low < high
                assert tango_interval(c, b, n) == pytest.approx((-high, -low), abs=1e-12)


def test_higher_levels_are_wider_and_large_samples_narrow():
    assert tango_interval(20, 60, 1000, 0.99)[0] < tango_interval(20, 60, 1000)[0]
    low, high = tango_interval(200_000, 300_000, 10**7)
    wald = 1.959964 * sqrt((500_000 - 1e5**2 / 1e7) / 1e14)
    assert (low, high) == pytest.approx((0.01 - wald, 0.01 + wald), rel=1e-3)


def test_coverage_by_simulation():
    draw = np.random.default_rng(0)
    for n, negative, positive in [(30, 0.1, 0.1), (200, 0.02, 0.05), (1000, 0.03, 0.06)]:
        drawn = draw.multinomial(n, [negative, positive, 1 - negative - positive], 800)
        ends = {(b, c): tango_interval(b, c, n) for b, c, _ in drawn.tolist()}
        held = np.mean(
            [ends[b, c][0] <= positive - negative <= ends[b, c][1] for b, c, _ in drawn.tolist()]
        )
        assert held > 0.93


@pytest.mark.parametrize(
    "wrong", [(-1, 0, 5), (3, 3, 5), (0, 0, 0), (1, 1, 5, 1.0), (1, 1, 5, 0.0)]
)
def test_impossible_counts(wrong):
    with pytest.raises(ValueError, match="counts"):
        tango_interval(*wrong)


# --- the test beside it ---------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.8, 0.9, 0.95, 0.99, 0.999])
def test_interval_and_test_never_contradict_each_other(level):
    for n in (12, 60):
        for b in range(n + 1):
            for c in range(n + 1 - b):
                low, high = gain_interval(b, c, n, level)
                assert (low > 0 or high < 0) == (mcnemar(b, c) <= 1 - level), (b, c, n)


def test_the_exact_test_is_the_more_cautious_one():
    """Else an interval could hold 0 although the test refuses it."""
    for level in (0.8, 0.9, 0.95, 0.99, 0.999):
        z = stats.norm.isf((1 - level) / 2)
        for flips in (*range(1, 200), 500, 1000, 5000):
            positive = np.arange(flips // 2 + 1, flips + 1)
            exact = 2 * stats.binom.sf(positive - 1, flips, 0.5)
            score = (2 * positive - flips) / np.sqrt(flips)
            assert not ((exact <= 1 - level) & (score <= z)).any()


def test_the_example_of_the_issue():
    """42 and 60 flips among 1,027: Tango's interval excluded 0, and the exact p was above .05."""
    b, c, n = 60, 41, 1050
    assert tango_interval(b, c, n)[1] > -0.01
    low, high = gain_interval(b, c, n)
    assert (high < 0) == (mcnemar(b, c) <= 0.05)


@pytest.mark.parametrize("b, c", [(0, 0), (3, 3), (1, 5), (60, 40), (0, 30)])
def test_mcnemar_is_scipys(b, c):
    expected = stats.binomtest(b, b + c).pvalue if b + c else 1.0
    assert mcnemar(b, c) == pytest.approx(expected)


def of_two_ways(generator, seeds=3, examples=500, spread=0.05):
    """(S, N) numbers with an effect of the seed, of the example, and of both."""
    effects = generator.normal(0, spread, (seeds, 1)), generator.normal(0, 0.3, (1, examples))
    return sum(effects) + generator.normal(0, 0.4, (seeds, examples))


def test_the_standard_errors_are_those_of_a_two_way_analysis_of_variance():
    values = of_two_ways(np.random.default_rng(0))
    seeds, examples = values.shape
    found, by_seed, by_example = crossed_mean(values), values.mean(1), values.mean(0)
    residual = values - by_seed[:, None] - by_example + values.mean()
    rest = (residual**2).sum() / ((seeds - 1) * (examples - 1))
    assert found.mean == pytest.approx(values.mean())
    assert found.of_seeds == pytest.approx(by_seed.std(ddof=1) / sqrt(seeds))
    assert found.of_answers == pytest.approx(sqrt(rest / values.size))
    shared = by_example.var(ddof=1) / examples - rest / values.size
    assert found.of_examples == pytest.approx(sqrt(shared))


def test_the_variance_of_a_crossed_mean_is_what_repeated_studies_show():
    generator = np.random.default_rng(1)
    studies = [crossed_mean(of_two_ways(generator, examples=200)) for _ in range(600)]
    told = np.mean([one.of_seeds**2 + one.of_examples**2 for one in studies])
    assert told == pytest.approx(np.var([one.mean for one in studies]), rel=0.2)


def test_the_arm_is_made_of_students_t_of_both_sizes_and_of_no_less_than_chance():
    found = crossed_mean(of_two_ways(np.random.default_rng(2), spread=1.0))
    seeds = stats.t.ppf(0.975, 2) * found.of_seeds
    assert found.arm() == pytest.approx(
        np.hypot(seeds, stats.t.ppf(0.975, 499) * found.of_examples)
    )
    assert found.arm(0.99) > found.arm() > found.arm(0.8)
    lucky = found._replace(of_seeds=0.0, of_examples=0.0)
    assert lucky.arm() == pytest.approx(1.959964 * found.of_answers, rel=1e-6)
    with pytest.raises(ValueError, match="level 1"):
        found.arm(1)


def test_one_seed_speaks_of_its_examples_alone_and_equal_answers_leave_no_doubt():
    values = np.random.default_rng(3).normal(size=(1, 50))
    expected = stats.t.ppf(0.975, 49) * values.std(ddof=1) / sqrt(50)
    assert crossed_mean(values).arm() == pytest.approx(expected)
    assert crossed_mean(np.repeat(values, 4, axis=0)).arm() == pytest.approx(expected)
    assert crossed_mean([[0.5]]).arm() == 0 and crossed_mean(np.zeros((3, 9))) == (0, 0, 0, 0, 3, 9)
    for bad in (np.zeros((0, 3)), np.zeros(3)):
        with pytest.raises(ValueError, match="a line a seed"):
            crossed_mean(bad)


@pytest.mark.parametrize("seeds", [3, 5])
def test_equal_methods_are_told_apart_no_more_often_than_the_level_says(seeds):
    generator = np.random.default_rng(seeds)
    trials = [of_two_ways(generator, seeds, 150, spread) for spread in (0.02, 0.1) * 500]
    # the effects of examples are drawn anew in each trial, so 0 is the true mean
    wrong = np.mean([abs(one.mean) > one.arm() for one in map(crossed_mean, trials)])
    assert 0.005 < wrong < 0.05 + 3 * sqrt(0.05 * 0.95 / 1000)


@pytest.mark.parametrize("seeds", [2, 5])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_p_is_where_the_interval_ends(seeds, level):
    found = CrossedMean(0.02, 0.003, 0.001, 0.004, seeds, 300)
    for side in (-1, 1):
        assert found.p(0.02 + side * found.arm(level)) == pytest.approx(1 - level)
    assert found.p(0.02) == 1.0 and CrossedMean(0.1, 0.0, 0.0, 0.0, 3, 10).p() == 1e-12
