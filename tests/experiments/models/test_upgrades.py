"""Rows, floors, curves and the rule of choice, on runs whose predictions are made up."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from compatkit.experiments.models import upgrades
from compatkit.experiments.models.recipes import Recipe
from compatkit.experiments.models.upgrades import (
    Upgrade,
    at_accuracy,
    grid_search,
    nfr_words,
    reseed_floor,
    some,
    trainings_of_search,
    vote_sizes,
)
from compatkit.experiments.running.runs import run_once
from compatkit.predictions import Predictions

NAMES = [f"example {n}" for n in range(300)]


def made_up_run(home, name, right):
    """A run that answered every split right with a certain share of two classes."""

    def compute(folder):
        for position, split in enumerate(("selection", "test")):
            generator = np.random.default_rng([len(name), sum(map(ord, name)), position])
            label = np.arange(300) % 2
            answer = np.where(generator.random(300) < right, label, 1 - label)
            sure = generator.uniform(0.5, 3, 300)
            logits = np.where(np.eye(2, dtype=bool)[answer], sure[:, None], 0.0)
            order = generator.permutation(
                300
            )  # every run keeps its examples in an order of its own
            Predictions(np.array(NAMES)[order], label[order], logits=logits[order]).save(
                folder / f"predictions-{split}.parquet"
            )
        return {}

    return run_once({"kind": "made_up", "name": name, "right": right}, compute, home)


@pytest.fixture(scope="module")
def upgrade(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    olds = tuple(made_up_run(home, f"old {seed}", 0.75) for seed in range(3))
    news = tuple(made_up_run(home, f"new {seed}", 0.85) for seed in range(7))
    return Upgrade("a", None, Recipe(), Recipe(layers=4), olds, news)


def flips(old, new):
    new = new.select(old.id)
    return float((old.correct & ~new.correct).mean())


class Halved(NamedTuple):
    """A run whose selection and test are two halves of one validation set."""

    run: object

    @property
    def id(self):
        return self.run.id

    def predictions(self, split):
        answers = self.run.predictions(split)
        return answers.replace(id=np.array([f"{split} {name}" for name in answers.id]))


def test_what_the_paper_reports_may_be_the_whole_validation_set(upgrade):
    olds, news = ([Halved(run) for run in runs] for runs in (upgrade.olds, upgrade.news))
    halves = replace(upgrade, olds=tuple(olds), news=tuple(news))
    whole = replace(halves, whole=True)
    for half, row in zip(halves.old_and_new(), whole.old_and_new()):
        assert (row.accuracy, row.nfr) == (half.accuracy, half.nfr), "the report is on test alone"
        for name, value in row.selection.items():
            # both halves have 300 examples
            both = (half.selection[name][0] + getattr(half, name)[0]) / 2
            assert value[0] == pytest.approx(both)


def test_rows_agree_with_counting_by_hand(upgrade):
    old, new = upgrade.old_and_new()
    by_hand = [
        flips(o.predictions("test"), n.predictions("test"))
        for o, n in zip(upgrade.olds, upgrade.news)
    ]
    assert new.nfr == pytest.approx((np.mean(by_hand), np.std(by_hand, ddof=1)))
    assert new.selection["nfr"][0] == pytest.approx(
        np.mean(
            [
                flips(o.predictions("selection"), n.predictions("selection"))
                for o, n in zip(upgrade.olds, upgrade.news)
            ]
        )
    )
    assert (old.nfr, old.as_old, old.seeds) == ((0.0, 0.0), (1.0, 0.0), 3)
    assert new.difference is None and new.records == tuple(run.id for run in upgrade.news[:3])


def test_a_vote_asks_neighbouring_members_and_names_all_of_them(upgrade):
    row = upgrade.vote_row(5)
    assert row.records == tuple(run.id for run in upgrade.news)
    votes = []
    for start in range(3):
        members = [
            run.predictions("test").select(NAMES).prediction
            for run in upgrade.news[start : start + 5]
        ]
        votes.append(np.mean((np.sum(members, 0) > 2).astype(int) == np.arange(300) % 2))
    assert row.accuracy[0] == pytest.approx(np.mean(votes))
    with pytest.raises(ValueError, match="12 members"):
        upgrade.vote_row(10)


def test_the_mixture_is_chosen_on_selection_and_its_curve_joins_both_models(upgrade):
    row = upgrade.mix_row("logit")
    assert row.words.startswith("weight of new 0.") and set(row.records) == {
        run.id for run in (*upgrade.olds, *upgrade.paired)
    }
    accuracy, nfr = upgrade.curve("logit")
    old, new = upgrade.old_and_new()
    assert (accuracy[0], nfr[0]) == pytest.approx((old.accuracy[0], 0.0))
    assert (accuracy[-1], nfr[-1]) == pytest.approx((new.accuracy[0], new.nfr[0]))


def test_pairs_are_answers_seed_by_seed(upgrade):
    pairs = upgrade.pairs("selection")
    assert len(pairs) == 3
    for (old, new), before, after in zip(pairs, upgrade.olds, upgrade.news):
        assert np.array_equal(old.logits, before.predictions("selection").logits)
        assert np.array_equal(new.logits, after.predictions("selection").logits)
    assert np.array_equal(upgrade.pairs()[2][1].id, upgrade.news[2].predictions("test").id)


def test_floors_are_flips_between_seeds(upgrade):
    runs = upgrade.olds
    pairs = [
        flips(a.predictions("test"), b.predictions("test"))
        for a in runs
        for b in runs
        if a is not b
    ]
    assert upgrade.floors()["reseed floor, old recipe"] == pytest.approx(np.mean(pairs))
    assert (
        reseed_floor(runs[:1] * 3) is None
    )  # a deterministic recipe is one run, however often it is named


def test_the_search_takes_the_lowest_nfr_on_a_par_and_runs_it_with_all_seeds(tmp_path, upgrade):
    asked = []

    def train(setting, seed):
        asked.append((setting, seed))
        if setting == "copy":
            return upgrade.olds[seed]
        return upgrade.news[seed if setting == "same" else 3 + seed]

    found = grid_search(["same", "other", "copy"], train, upgrade.olds, upgrade.paired)
    reference = np.mean([run.predictions("selection").correct.mean() for run in upgrade.paired])
    able = [line for line in found.tried if line[1] >= reference]
    assert "copy" not in [line[0] for line in able], "the old model pays for its zero flips"
    assert found.setting == min(able, key=lambda line: line[2])[0] and found.qualified
    assert asked == [(setting, seed) for setting in ("same", "other", "copy") for seed in range(3)]
    assert len(found.runs) == 3 and trainings_of_search(3, 3) == 9


def test_a_setting_that_wins_on_one_seed_alone_is_not_chosen(upgrade):
    """Seed by seed the reward of a lucky one would be a setting that loses on all the others."""

    def train(setting, seed):
        lucky = setting == "lucky" and seed == 0
        return upgrade.olds[seed] if setting == "lucky" and not lucky else upgrade.news[seed]

    found = grid_search(["lucky", "steady"], train, upgrade.olds, upgrade.paired)
    assert found.setting == "steady"
    accuracies = [run.predictions("selection").correct.mean() for run in upgrade.olds[1:]]
    first = upgrade.news[0].predictions("selection").correct.mean()
    assert found.tried[0][1] == pytest.approx(np.mean([first, *accuracies]))


def test_a_grid_is_tried_on_three_seeds_and_rows_have_all(upgrade, monkeypatch):
    monkeypatch.setattr(upgrades, "GRID_SEEDS", 2)
    asked = []

    def train(setting, seed):
        asked.append((setting, seed))
        return upgrade.news[seed]

    found = grid_search(["a", "b"], train, upgrade.olds, upgrade.paired)
    assert asked == [("a", 0), ("a", 1), ("b", 0), ("b", 1), (found.setting, 2)]
    assert [run.id for run in found.runs] == [run.id for run in upgrade.paired]
    assert len(asked) == trainings_of_search(2, 3)


def test_a_search_without_any_setting_on_a_par_says_so(upgrade):
    found = grid_search(["copy"], lambda _, seed: upgrade.olds[seed], upgrade.olds, upgrade.paired)
    assert not found.qualified


def test_competent_needs_both(upgrade, tmp_path):
    guess = made_up_run(tmp_path, "guess", 0.5)
    assert upgrade.competent()
    assert not Upgrade("a", None, Recipe(), Recipe(), (guess,), upgrade.news).competent()


def test_some_keeps_the_order_and_the_choice():
    assert some(range(20), 5) == sorted(some(range(20), 5)) == some(range(20), 5)
    assert some(range(3), 9) == [0, 1, 2]


def test_at_accuracy_reads_the_best_point_that_is_as_accurate():
    curve = ([0.70, 0.82, 0.80], [0.00, 0.03, 0.02])
    assert (
        at_accuracy(curve, 0.80) == 0.02
        and at_accuracy(curve, 0.81) == 0.03
        and math.isnan(at_accuracy(curve, 0.9))
    )


def test_an_nfr_that_no_point_reaches_is_said_in_words():
    assert nfr_words(at_accuracy(([0.8], [0.02125]), 0.8)) == "2.12%"
    assert nfr_words(at_accuracy(([0.8], [0.02]), 0.9)) == "no point of the curve is as accurate"


@pytest.mark.parametrize(
    "scale, largest, sizes",
    [
        ("mini", "auto", (5, 10)),
        ("paper", "auto", (5, 10, 20)),
        ("mini", 20, (5, 10, 20)),
        ("paper", 10, (5, 10)),
        ("mini", 7, (5, 7)),
        ("smoke", 2, (2,)),
    ],
)
def test_the_largest_vote_ends_the_sizes(scale, largest, sizes):
    assert vote_sizes(scale, largest) == sizes
