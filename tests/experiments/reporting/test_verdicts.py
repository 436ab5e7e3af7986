"""Verdicts follow from intervals, seeds and the margin, and from nothing else."""

import numpy as np
import pytest

from compatkit.experiments.reporting.verdicts import (
    flips_difference,
    is_higher,
    is_lower,
    is_without_loss,
    level_among,
    negative_flips,
    verdict_lines,
)
from compatkit.metrics import MARGIN, PairedDifference
from compatkit.predictions import Predictions


def difference(low, high):
    return PairedDifference((low + high) / 2, low, high)


def answers(*rows, label=None):
    ids = [f"id{number}" for number in range(len(rows[0]))]
    label = np.zeros(len(rows[0]), int) if label is None else label
    return [Predictions(ids, label=label, prediction=np.array(row)) for row in rows]


@pytest.mark.parametrize(
    "low, high, word",
    [(-0.02, -0.001, "holds"), (-0.02, 0.0, "undecided"), (0.001, 0.02, "does not hold")],
)
def test_a_lower_rate_needs_the_whole_interval(low, high, word):
    assert is_lower(difference(low, high), seeds=3).word == word


@pytest.mark.parametrize(
    "low, high, word",
    [
        (-0.0049, 0.01, "holds"),
        (-0.005, 0.01, "undecided"),
        (-0.02, 0.01, "undecided"),
        (-0.02, -0.001, "does not hold"),
        (-0.004, -0.001, "does not hold"),
        (-0.02, 0.0, "undecided"),
    ],
)
def test_without_loss_has_a_margin_and_fails_below_zero(low, high, word):
    assert MARGIN == 0.005
    assert is_without_loss(difference(low, high), seeds=5).word == word


@pytest.mark.parametrize(
    "low, high, limit, word",
    [
        (0.001, 0.02, 0.0, "holds"),
        (0.0, 0.02, 0.0, "undecided"),
        (-0.02, 0.0, 0.0, "undecided"),
        (-0.02, -0.001, 0.0, "does not hold"),
        (-0.009, -0.001, -0.01, "holds"),
        (-0.03, -0.011, -0.01, "does not hold"),
    ],
)
def test_a_higher_measure_needs_the_whole_interval_above_the_limit(low, high, limit, word):
    assert is_higher(difference(low, high), 3, limit).word == word


def test_the_limit_of_a_higher_measure_is_zero_unless_told():
    assert is_higher(difference(0.001, 0.02), 3) == is_higher(difference(0.001, 0.02), 3, 0.0)


@pytest.mark.parametrize("rule", [is_lower, is_without_loss, is_higher])
def test_three_seeds_decide(rule):
    assert rule(difference(0.1, 0.2), seeds=3).reason == ""


@pytest.mark.parametrize("rule", [is_lower, is_without_loss, is_higher])
def test_two_seeds_decide_nothing(rule):
    verdict = rule(difference(-0.5, -0.4), seeds=2)
    assert verdict.word == "undecided" and "2 seeds" in verdict.reason
    assert "1 seed:" in rule(difference(0.1, 0.2), seeds=1).reason


def test_an_undecided_verdict_says_what_could_have_been_seen():
    for rule in (is_lower, is_higher):  # the longer arm of the interval, whichever that is
        for low, high in [(-0.011, 0.007), (-0.009, 0.009)]:
            verdict = rule(PairedDifference(-0.001, low, high), seeds=3)
            assert verdict.smallest == pytest.approx(0.01)
            assert "1.00 points" in verdict.reason
    kept = is_without_loss(PairedDifference(-0.001, -0.009, 0.02), seeds=3)
    assert kept.smallest == pytest.approx(0.008) and "0.80 points" in kept.reason  # the lower arm


def test_a_line_holds_word_difference_in_points_and_reason():
    found = {
        "lower": is_lower(PairedDifference(-0.25, -0.5, -0.125), 3),
        "kept": is_without_loss(PairedDifference(0.0, -0.25, 0.25), 3),
    }
    assert verdict_lines(found) == [
        "lower: holds (-25.00 points [-50.00, -12.50])",
        "kept: undecided (+0.00 points [-25.00, +25.00]; a difference under 25.00 points could "
        "not have been seen)",
    ]


def test_flips_are_counted_by_id_and_seed():
    olds = answers([0, 0, 1, 0], [0, 1, 0, 0])
    news = answers([1, 0, 1, 0], [0, 1, 2, 0])
    assert negative_flips(olds, news).tolist() == [
        [True, False, False, False],
        [False, False, True, False],
    ]
    backwards = [one.select(list(reversed(one.id))) for one in news]
    assert (negative_flips(olds, backwards) == negative_flips(olds, news)).all()
    # one order for all seeds: the first old model's
    olds[1] = olds[1].select(list(reversed(olds[1].id)))
    assert (negative_flips(olds, news) == negative_flips(olds, backwards)).all()
    assert negative_flips(olds, news)[1].tolist() == [False, False, True, False]


def test_the_difference_is_the_difference_of_the_rates_and_the_factor_counts():
    olds = answers(*[[0] * 10] * 3)
    many, few = answers(*[[1] * 4 + [0] * 6] * 3), answers(*[[1] + [0] * 9] * 3)
    assert flips_difference(olds, few, many).mean == pytest.approx(-0.3)
    assert flips_difference(olds, few, many, factor=0.5).mean == pytest.approx(-0.1)
    assert flips_difference(olds, few, few) == (0.0, 0.0, 0.0)


def test_seeds_that_do_not_match_are_refused():
    olds = answers([0, 0], [0, 0])
    with pytest.raises(ValueError):
        negative_flips(olds, answers([0, 1]))


def test_one_of_several_comparisons_refutes_at_a_stricter_level():
    assert level_among(1) == 0.95 and level_among(5) == pytest.approx(0.99)
