"""The rule's rows against the rule itself, its choice against counting, and published methods."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from two_models import shuffled

from compatkit.decisions import PRICES, choose_price, keep_old, pool
from compatkit.ensembles import average_logits, mix
from compatkit.experiments.models.upgrades import Upgrade
from compatkit.experiments.reporting.accuracy_and_flips import accuracy_nfr_picture
from compatkit.experiments.reporting.result_tables import ResultTable, Row
from compatkit.experiments.studies import rule_rows as module
from compatkit.experiments.studies.rule_rows import (
    POSTERIORS,
    TRIED_PRICES,
    TRIED_WEIGHTS,
    certified_rows,
    chosen_price,
    ensemble_note,
    ensemble_rows,
    mixture_rows,
    nfr_at_accuracy,
    published_method,
    published_row,
    published_rows,
    rule_curve,
    rule_curves,
    rule_row,
    ruled,
)
from compatkit.metrics import FlipCounts
from compatkit.predictions import Predictions


def made_up_run(name, by_split, **configuration):
    return SimpleNamespace(id=name, predictions=by_split.__getitem__, configuration=configuration)


def made_up_upgrade(seeds=2, n=400):
    """Made-up models whose seeds share examples and labels, each in an order of its own."""
    sides = {"old": [], "new": []}
    for seed in range(seeds):
        for side, strength in (("old", 1.5), ("new", 2.5)):
            splits = {}
            for at, split in enumerate(("selection", "test")):
                common, own = (
                    np.random.default_rng([at, one]) for one in (99, 10 * seed + int(strength))
                )
                label, hard = common.integers(0, 4, n), common.normal(size=(n, 4))
                logits = strength * np.eye(4)[label] + hard + own.normal(size=(n, 4))
                given = Predictions([f"{split} {i}" for i in range(n)], label, logits=logits)
                splits[split] = shuffled(given, seed)
            sides[side].append(made_up_run(f"{side} {seed}", splits))
    task = SimpleNamespace(name="tiny")
    return Upgrade("a", task, None, None, tuple(sides["old"]), tuple(sides["new"]))


UPGRADE = made_up_upgrade()
OWN = ruled(UPGRADE, "new")


def means(decide, split="test"):
    """(accuracy, NFR) over seeds of decide(old, new)."""
    counts = [FlipCounts.between(old, decide(old, new)) for old, new in UPGRADE.pairs(split)]
    return (np.mean([one.accuracy_new for one in counts]), np.mean([one.nfr for one in counts]))


def selection(rules):
    """What the choice of a price looks at: (old, new, posterior) and the untreated answers."""
    pairs = UPGRADE.pairs("selection")
    triples = [(*pair, one.posterior_on("selection")) for pair, one in zip(pairs, rules)]
    return triples, [new for _, new in pairs]


def test_a_curve_begins_at_the_new_model_and_holds_the_rule_at_each_price():
    (accuracy, nfr), spread = rule_curve(OWN, (0, 2.0))
    assert (accuracy[0], nfr[0]) == pytest.approx(means(lambda old, new: new))
    assert (accuracy[1], nfr[1]) == pytest.approx(means(lambda old, new: keep_old(old, new, 2.0)))
    assert spread.shape == (2, 2) and (spread > 0).all()
    one = replace(UPGRADE, olds=UPGRADE.olds[:1])
    assert np.isnan(rule_curve(ruled(one, "pooled"))[1]).all()  # a seed alone has none


def test_posteriors_are_fitted_on_selection_for_both_splits():
    pooled = [one.posterior_on for one in ruled(UPGRADE, "pooled")]
    assert all(one("test") is one("selection") for one in pooled)
    assert [one.posterior_on("test") for one in OWN] == [None, None]
    expected = [pool(old, new) for old, new in UPGRADE.pairs("selection")]
    for split in ("selection", "test"):
        for ours, theirs, (old, new) in zip(pooled, expected, UPGRADE.pairs(split)):
            same = theirs.posterior(old, new).logits
            assert np.array_equal(ours(split).posterior(old, new).logits, same)


def test_the_price_is_the_one_with_the_lowest_nfr_among_those_on_a_par():
    reference = means(lambda old, new: new, "selection")[0]
    able = []
    for price in TRIED_PRICES:
        accuracy, nfr = means(lambda old, new, p=price: keep_old(old, new, p), "selection")
        if accuracy >= reference - 1e-9:
            able.append((nfr, price))
    assert chosen_price(*selection(OWN)) == (min(able)[1], True)
    assert 0 < len(able) < len(TRIED_PRICES) == len(TRIED_WEIGHTS)


def test_a_row_says_when_no_price_was_on_a_par():
    def at_chance(new):
        """A posterior that knows nothing: what it answers is as good as chance."""
        noise, splits = np.random.default_rng(0), {}
        for split in ("selection", "test"):
            answered = new.predictions(split)
            splits[split] = answered.replace(logits=noise.normal(size=(400, 4)))
        return made_up_run(f"chance {new.id}", splits)

    wrong = list(map(at_chance, UPGRADE.news))
    row = rule_row(UPGRADE, "rule", wrong, "nothing")
    assert not row.qualified and row.words.endswith("needs nothing; no setting qualified")
    price, _ = chosen_price(*selection(ruled(UPGRADE, wrong)))
    (accuracy, _), _ = rule_curve(ruled(UPGRADE, wrong), TRIED_PRICES, "selection")
    assert price == TRIED_PRICES[int(np.argmax(accuracy))]


@pytest.mark.parametrize("name", POSTERIORS.values())
def test_a_row_holds_the_rules_answers_on_both_splits(name):
    row = rule_row(UPGRADE, "rule", name, "something")
    price = float(row.words.removeprefix("price ").split(";")[0])
    for split, found in (
        ("test", (row.accuracy[0], row.nfr[0])),
        ("selection", (row.selection["accuracy"][0], row.selection["nfr"][0])),
    ):
        one_a_seed = (one.posterior_on(split) for one in ruled(UPGRADE, name))
        expected = means(lambda old, new: keep_old(old, new, price, next(one_a_seed)), split)
        assert found == pytest.approx(expected)
    assert row.records == ("old 0", "new 0", "old 1", "new 1") and row.difference is not None


def test_certified_prices_are_each_seeds_own():
    (row,) = certified_rows(UPGRADE, 0.02)
    prices = [choose_price(old, new, None, 0.02).price for old, new in UPGRADE.pairs("selection")]
    each = iter(prices)
    assert row.nfr[0] == pytest.approx(means(lambda old, new: keep_old(old, new, next(each)))[1])
    assert f"price {min(prices):.3g}–{max(prices):.3g}, certified on 400" in row.words
    assert row.method == "rule, NFR at most 2.0%"
    assert certified_rows(UPGRADE, 0.005) == []  # 400 examples certify no half per cent


def test_mixtures_stand_without_the_rule_and_half_and_half_with_it():
    rows = mixture_rows(UPGRADE)
    assert [row.method for row in rows] == [
        "old-new probabilities",
        "old-new probabilities, half and half + rule",
        "old-new logits",
        "old-new logits, half and half + rule",
    ]
    price = float(rows[3].words.removeprefix("price ").split(";")[0])
    expected = means(lambda old, new: keep_old(old, new, price, mix(old, new, 0.5, "logit")))
    assert (rows[3].accuracy[0], rows[3].nfr[0]) == pytest.approx(expected)
    assert rows[2].nfr == UPGRADE.mix_row("logit", TRIED_WEIGHTS).nfr


def test_an_ensemble_is_the_mean_of_neighbouring_new_models():
    assert ensemble_rows(UPGRADE) == [] and ensemble_note(UPGRADE) == ""
    same = [run for run in UPGRADE.news for _ in range(2)]  # 0, 0, 1, 1: three of them a seed
    more = replace(UPGRADE, news=tuple(same))
    alone, ruled = ensemble_rows(more)
    assert (alone.method, ruled.method) == ("mean of 3 new models", "mean of 3 new models + rule")
    first = average_logits([run.predictions("test") for run in same[:3]])
    old = more.olds[0].predictions("test")
    assert alone.by_seed[0]["nfr"] == FlipCounts.between(old, first.select(old.id)).nfr
    assert ensemble_note(more) and set(ruled.records) == {"new 0", "new 1", "old 0", "old 1"}


# --- published methods ----------------------------------------------------------------------------


@pytest.fixture
def shelf(monkeypatch):
    """Kept tables and published runs of a distillation of both seeds."""
    runs = {
        f"distilled {seed}": made_up_run(
            f"distilled {seed}",
            {split: new.predictions(split).replace(label=None) for split in ("selection", "test")},
            parents=[f"old {seed}", f"new {seed}"],
        )
        for seed, new in enumerate(UPGRADE.news)
    }
    tables = {
        "gated_fusion-tiny-mini-a-1": ResultTable(
            "", (Row("dynamic distillation", "λ 1", new=tuple(runs)),)
        )
    }
    labels = {
        split: dict(zip(old.id, old.label))
        for split in ("selection", "test")
        for old, _ in UPGRADE.pairs(split)
    }
    monkeypatch.setattr(module, "published_runs", lambda: runs)
    monkeypatch.setattr(module, "kept_tables", lambda: tables)
    monkeypatch.setattr(module, "labels_of", lambda task: labels)
    return SimpleNamespace(runs=runs, tables=tables)


def test_a_method_is_read_where_it_treated_these_very_models(shelf):
    row, runs = published_method(UPGRADE, "mini", "dynamic distillation")
    assert (row.setting, [run.id for run in runs]) == ("λ 1", ["distilled 0", "distilled 1"])
    assert published_method(UPGRADE, "paper", "dynamic distillation") == (None, [])
    assert published_method(replace(UPGRADE, name="b"), "mini", "dynamic distillation")[1] == []
    assert published_method(UPGRADE, "mini", "gated fusion") == (None, [])


@pytest.mark.parametrize(
    "parents, taken",
    [
        (["old 0"], True),
        (["old 0", "new 0"], True),
        (["new 0"], False),
        (["old 1", "new 0"], False),
        (["old 0", "another model"], False),
    ],
)
def test_a_method_of_other_models_is_left_out(shelf, parents, taken):
    shelf.runs["distilled 0"].configuration["parents"] = parents
    assert bool(published_method(UPGRADE, "mini", "dynamic distillation")[1]) == taken


def test_a_method_that_lacks_a_seed_or_that_this_notebook_kept_is_left_out(shelf):
    del shelf.runs["distilled 1"]
    assert published_method(UPGRADE, "mini", "dynamic distillation") == (None, [])
    shelf.tables["decisions-tiny-mini-a-main"] = shelf.tables.pop("gated_fusion-tiny-mini-a-1")
    assert published_row(UPGRADE, "mini", "dynamic distillation") == Row("dynamic distillation")


def test_published_methods_stand_with_and_without_the_rule(shelf):
    alone, ruled = published_rows(UPGRADE, "mini", "dynamic distillation", "old answer")
    new = UPGRADE.old_and_new()[1]
    assert (alone.setting, alone.nfr, alone.accuracy) == ("λ 1", new.nfr, new.accuracy)
    same = rule_row(UPGRADE, "rule", "new", "old answer")
    assert (ruled.method, ruled.nfr) == ("dynamic distillation + rule", same.nfr)
    assert {"old 1", "new 1", "distilled 1"} < set(ruled.records)
    missing = published_rows(UPGRADE, "mini", "gated fusion", "old logits")
    assert missing == [Row("gated fusion"), Row("gated fusion + rule")]


def test_without_the_logits_of_every_seed_there_is_no_row_of_the_rule(shelf):
    """Rows of one table stand on the same seeds."""
    whole = {split: UPGRADE.news[0].predictions(split) for split in ("selection", "test")}
    classes = {
        split: Predictions(one.id, prediction=one.prediction) for split, one in whole.items()
    }
    shelf.runs["distilled 0"].predictions = classes.__getitem__
    alone, ruled = published_rows(UPGRADE, "mini", "dynamic distillation", "old answer")
    assert alone.seeds == 2 and ruled == Row("dynamic distillation + rule")


# --- curves ---------------------------------------------------------------------------------------


def test_curves_are_drawn_over_all_prices():
    curves = rule_curves(UPGRADE)
    assert [*curves] == ["rule, new model's posterior", "rule, pooled"]
    axes = accuracy_nfr_picture([Row("rule, pooled", seeds=2)], curves).axes[0]
    drawn = next(line for line in axes.lines if line.get_label() == "rule, pooled")
    accuracy, nfr, spread = curves["rule, pooled"]
    assert len(accuracy) == len(nfr) == len(spread) == len(PRICES)
    assert np.allclose(drawn.get_xydata(), 100 * np.array([accuracy, nfr]).T)


def test_dials_stand_side_by_side_at_one_accuracy():
    curves = {"first": ([0.8, 0.9], [0.01, 0.03]), "second": ([0.7], [0.0])}
    assert nfr_at_accuracy(curves, 0.795) == "accuracy at least 79.50%: first 1.00%, second –"
