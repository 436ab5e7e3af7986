"""Several tasks: the three tests of "none became worse", their union, and which tasks are named."""

from itertools import product
from math import log

import numpy as np
import pytest
from scipy.stats import binom, binomtest, chi2

from compatkit.compare import compare
from compatkit.compare.repeats import Counts, RandomSigns
from compatkit.compare.task_tests import (
    Losses,
    holm,
    losses_of,
    p_by_task,
    p_worse,
    union_test,
)
from compatkit.predictions import Predictions


def task(negative, positive, same=10):
    """A task with so many flips of each kind."""
    return Losses(np.repeat([1, -1, 0], [negative, positive, same]))


def test_a_task_is_judged_by_the_exact_test_of_mcnemar_with_one_side():
    for negative, positive in ((9, 3), (3, 9), (1, 0), (0, 4), (500, 431)):
        expected = binomtest(negative, negative + positive, alternative="greater").pvalue
        assert p_worse(task(negative, positive)) == pytest.approx(expected, rel=1e-9)
    assert p_worse(task(0, 0)) == 1


def test_the_three_tests_by_other_means():
    flips = [(12, 5), (7, 9), (30, 22), (1, 0)]
    found = union_test([task(*one) for one in flips] + [task(0, 0)])
    negative, positive = np.array(flips).T
    n = negative + positive
    assert found.pooled == pytest.approx(binom.sf(negative.sum() - 1, n.sum(), 0.5))
    p = [binom.sf(b - 1, m, 0.5) for b, m in zip(negative, n)]
    assert found.fisher == pytest.approx(chi2.sf(-2 * sum(map(log, p)), 2 * len(p)))
    draw = np.random.default_rng(0)  # as it is simulated
    z = (negative - positive) / np.sqrt(n)
    simulated = (2 * draw.binomial(n, 0.5, (200_000, len(n))) - n) / np.sqrt(n)
    share = (simulated.max(axis=1) >= z.max() - 1e-9).mean()
    assert found.largest_drop == pytest.approx(share, abs=0.005)
    assert found.union == 3 * min(found[:3])


def test_one_task_has_one_p_and_none_has_no_evidence():
    assert set(union_test([task(9, 3), task(0, 0)])) == {p_worse(task(9, 3))}
    assert set(union_test([])) == {1.0} == set(union_test([task(0, 0)]))


def test_repeats_weigh_what_they_are_of_an_answer():
    whole, unit = Counts(np.array([4, 2]), np.array([4, 0]), np.array([1, 2])).whole_gains()
    assert (whole.tolist(), unit) == ([-3, 4], 4)
    repeated, single = Losses(np.array([3, 3, -1]), 4), task(2, 0, 0)
    sums = [
        sum(sign * size for sign, size in zip(signs, (3, 3, 1, 4, 4)))
        for signs in product((1, -1), repeat=5)
    ]
    expected = np.mean(np.array(sums) >= 3 + 3 - 1 + 4 + 4)
    assert union_test([repeated, single]).pooled == pytest.approx(expected)


def test_scores_are_judged_but_not_pooled_with_answers():
    draw = np.random.default_rng(1)
    ids = [f"e{n}" for n in range(60)]
    old = draw.random(60)
    pair = compare(Predictions(ids, score=old), Predictions(ids, score=old - 0.1)).pair
    fallen = losses_of(pair)
    assert fallen.unit == 0 and p_worse(fallen) < 1e-9
    found = union_test([fallen, task(3, 3)])
    assert found.pooled == p_worse(task(3, 3)) and found.union < 1e-6
    assert union_test([fallen, fallen]).pooled == 1
    many = np.r_[np.full(40_000, 100), np.full(39_000, -100)]
    exact = RandomSigns.of(many // 100)
    assert p_worse(Losses(many, 0)) == pytest.approx(exact.at_least(exact.total), rel=0.02)


def test_false_alarms_of_the_family_and_wrong_names():
    """1,000 suites of four tasks; in the second half one of them is worse and must not make
    another one's name wrong.
    """
    draw, alarms, wrong, found = np.random.default_rng(2), 0, 0, 0
    for number in range(1_000):
        shares = [0.5] * 4 if number < 500 else [0.8, 0.5, 0.5, 0.5]
        tasks = [task((b := draw.binomial(n, q)), n - b) for n, q in zip((9, 20, 40, 60), shares)]
        together = union_test(tasks)
        names = p_by_task(tasks, together)
        assert all(p >= together.union for p in names)
        alarms += number < 500 and together.union <= 0.05
        wrong += min(names[1:]) <= 0.05
        found += number >= 500 and together.union <= 0.05
    assert alarms <= 0.05 * 500 and wrong <= 0.05 * 1_000 and found > 0


def test_a_loss_on_every_task_is_found_together_and_one_on_a_single_task_is_named():
    spread = [task(12, 5)] * 6
    assert union_test(spread).union < 0.001 and min(p_by_task(spread, union_test(spread))) > 0.05
    single = [task(25, 3), *[task(9, 9)] * 5]
    names = p_by_task(single, union_test(single))
    assert names[0] <= 0.05 < min(names[1:])


def test_holm_keeps_false_alarms_of_the_family_low():
    draw = np.random.default_rng(0)
    alarms = [min(holm(draw.random(20).tolist())) <= 0.05 for _ in range(2_000)]
    assert np.mean(alarms) < 0.065
    assert holm([0.01, 0.04, 0.03]) == [0.03, 0.06, 0.06]
