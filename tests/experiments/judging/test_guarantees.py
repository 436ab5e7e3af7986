"""The guarantee on random splits: promises are broken as seldom as theory says."""

import math
import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from compatkit.decisions import AnswerGains, allowed_flips, smallest_gain
from compatkit.experiments.judging.guarantees import (
    REST,
    World,
    expected_in_world,
    expected_on_rest,
    guarantee_rows,
    random_splits,
    world_of,
)
from compatkit.experiments.reporting.result_tables import kept_tables
from compatkit.predictions import Predictions

RESULTS = Path(__file__).resolve().parents[3] / "results"
ABOVE = re.compile(r"true NFR above the limit in ([\d.]+)%")
REST_ABOVE = re.compile(r"that of the other [\d,]+ in ([\d.]+)%")


def made_up(count, seed=0):
    generator = np.random.default_rng(seed)
    ids, label = [str(number) for number in range(count)], generator.integers(0, 2, count)
    old = np.where(generator.random(count) < 0.85, label, 1 - label)
    sure = generator.normal(1.5, 1.2, count) * np.where(label, 1, -1)
    return Predictions(ids, label, old), Predictions(ids, label, logits=np.c_[-sure, sure] / 2)


def test_a_world_is_what_the_predictions_say():
    old, new = made_up(800)
    world = world_of([(old, new)])
    accuracy, nfr, pfr, as_old = world.at(0.0)
    assert accuracy == new.correct.mean() and as_old == np.mean(old.prediction == new.prediction)
    assert nfr == np.mean(old.correct & ~new.correct) and pfr == np.mean(~old.correct & new.correct)
    assert world.at(math.inf)[1] == 0 and len(world.flips()) == round(800 * nfr)
    halves = [(old.select(part), new.select(part)) for part in np.split(old.id, 2)]
    assert world_of(halves).at(0.7) == pytest.approx(world.at(0.7))


def test_promises_are_broken_as_often_as_theory_says():
    world, n, limit = world_of([made_up(1500)]), 500, 0.02
    allowed = allowed_flips(n, limit, 0.05)
    drawn = random_splits(world, n, allowed, limit, 400, np.random.default_rng(0))
    for share, theory in (
        (drawn.above, expected_in_world(world, n, allowed, limit)),
        (drawn.above_on_rest, expected_on_rest(world, n, allowed, limit)),
    ):
        assert abs(share - theory) < 4 * math.sqrt(theory * (1 - theory) / 400) + 0.003
    assert drawn.above <= 0.08 and drawn.inside > 0.9


def world_of_flips(gains, others):
    """A world whose first examples flip below these margins; the old model is right about all."""
    gains = np.array([*gains, *[0.0] * others])
    return World(AnswerGains(gains, np.ones(len(gains), bool), gains == 0))


def test_the_first_rate_above_the_limit_decides_what_is_expected_in_the_world():
    world = world_of_flips([4.0, 3.0, 2.0, 1.0], others=96)  # rates of 1, 2, 3 and 4 %
    assert expected_in_world(world, 50, 1, 0.02) == binom.cdf(1, 50, 0.03)
    assert expected_in_world(world, 50, 1, 0.025) == binom.cdf(1, 50, 0.03)
    assert expected_in_world(world, 50, 1, 0.04) == 0  # no margin leads above the limit


def test_what_is_expected_on_the_rest_is_the_share_of_all_splits():
    world, above = world_of_flips([4.0, 3.0, 2.0], others=5), []
    n, allowed, limit = 4, 1, 0.25
    for rows in combinations(range(8), n):
        sample, rest = np.array(rows), np.setdiff1d(np.arange(8), rows)
        margin = smallest_gain(World(world.evidence.part(sample)).flips(), allowed)
        above.append(World(world.evidence.part(rest)).at(margin)[1] > limit)
    assert 0 < np.mean(above) == pytest.approx(expected_on_rest(world, n, allowed, limit))
    assert expected_on_rest(world, n, allowed, 0.9) == 0


def test_rows_say_how_many_examples_were_drawn_and_left():
    rows = guarantee_rows([world_of([made_up(600)])], 0.02, 5, ("a",))
    assert [row.method for row in rows[:2]] == ["new model", "price known without error"]
    assert rows[0].words == "600 examples" and rows[1].nfr[0] <= 0.02 < rows[0].nfr[0]
    assert all(row.records == ("a",) for row in rows) and "of the other" not in rows[2].words
    assert 600 - 500 < REST


def test_no_kept_upgrade_breaks_its_guarantee_more_often_than_promised():
    """What the notebook decisions says of the kept tables."""
    kept = kept_tables(RESULTS)
    tables = {name: one for name, one in kept.items() if name.endswith("-guarantee")}
    assert tables and all(name.replace("-guarantee", "-main") in kept for name in tables)
    told = [row.words for one in tables.values() for row in one.rows]
    shares = [float(found[1]) for words in told if (found := ABOVE.match(words))]
    assert len(shares) == 3 * len(tables) and max(shares) <= 5
    rest = [float(share) for words in told for share in REST_ABOVE.findall(words)]
    assert max(rest) < 25  # "one split of five"
