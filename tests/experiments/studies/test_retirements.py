"""A study of retirements: which models it trains, and dials that are set by one rule."""

import numpy as np
import pytest
import tiny
from retiring import models, study_of, world  # noqa: F401 (fixtures)

from compatkit.experiments.models.recipes import half_recipe
from compatkit.experiments.models.traffic_trainings import JUDGED, traffic_embeddings
from compatkit.experiments.studies import retirements
from compatkit.experiments.studies.retirements import pick


def test_each_seed_has_its_models_and_the_start_is_the_old_one(models):  # noqa: F811
    assert [run.configuration["start"] for run in models.news] == [run.id for run in models.olds]
    assert models.olds == models.starts
    told = models.new_asked(0).predictions("traffic")
    assert told.label is None and len(told) == len(models.traffic.rows)
    assert traffic_embeddings(models.new_asked(0), "new_test").shape == (
        len(models.update.new.test),
        tiny.RECIPE.width,
    )
    again = models.new_asked(0).predictions("new_test").logits
    assert np.allclose(again, models.news[0].predictions("new_test").logits, atol=1e-5)


def test_a_student_begins_where_it_is_told_and_learns_what_it_is_told(models):  # noqa: F811
    runs = [
        models.student("self", 0),
        models.student("rule", 0),
        models.student("rule", 0, 5.0),
        models.student("rule", 0, from_old=True),
    ]
    assert len({run.id for run in runs}) == 4
    assert models.student("rule", 0).id == runs[1].id
    logits = [run.predictions("new_test").logits for run in runs]
    assert all(not np.array_equal(logits[0], other) for other in logits[1:])
    assert runs[1].configuration["pool"] and runs[0].configuration["lesson"] == "self"
    assert models.news[0].id in runs[1].configuration["parents"]
    assert models.olds[0].id in runs[3].configuration["parents"]


def test_the_control_is_one_for_all_old_models(world, models):  # noqa: F811
    other = study_of(world, "b")
    assert other.student("self", 0).id == models.student("self", 0).id
    assert other.student("rule", 0).id != models.student("rule", 0).id
    assert [run.id for run in other.news] == [run.id for run in models.news]
    with pytest.raises(ValueError, match="changes the architecture"):
        other.student("rule", 0, from_old=True)


def test_half_of_the_layers_is_another_old_model(world):  # noqa: F811
    assert retirements._old_recipe(tiny.RECIPE, "a").layers == 1
    assert retirements._old_recipe(tiny.RECIPE, "b").model == "linear"
    with pytest.raises(ValueError, match="not one of data, a, b"):
        retirements._old_recipe(tiny.RECIPE, "c")
    own = half_recipe(tiny.RECIPE, "massive_adddata", "mini")  # with a training of its own there
    assert (own.layers, own.epochs) == (1, 40)
    assert retirements._old_recipe(tiny.RECIPE, "a", own) == own
    elsewhere = half_recipe(tiny.RECIPE, "massive_adddata", "smoke")
    assert (elsewhere.layers, elsewhere.epochs) == (1, tiny.RECIPE.epochs)


def test_heads_and_neighbours_guess_old_logits(models):  # noqa: F811
    head, near = models.head(0), models.neighbours(0)
    old = models.old_asked(0).predictions("traffic").logits
    for run in (head, near):
        for split in JUDGED:
            guess = run.predictions(split)
            assert guess.logits.shape == (len(guess), 3) and np.isfinite(guess.logits).all()
    kept = {tuple(row) for row in np.float32(old).tolist()}
    assert {tuple(row) for row in near.predictions("new_test").logits.tolist()} <= kept
    assert 0 <= head.results["agreement"] <= 1


def test_the_ends_of_a_rule_and_of_a_mixture(models):  # noqa: F811
    old, new = models.olds.__getitem__, models.news.__getitem__
    high = models.rule("rule", old, new).at("new_test", 1e12, 0).prediction
    assert (high == models.old_on("new_test", 0).logits.argmax(1)).all()
    mixed = models.mixture("mixture", old, new)
    for weight, run in ((0.0, old(0)), (1.0, new(0))):
        expected = run.predictions("new_test").logits.argmax(1)
        assert (mixed.at("new_test", weight, 0).logits.argmax(1) == expected).all()


def test_dials_are_set_on_selection_over_all_seeds():
    assert pick([1, 2, 3], [0.8, 0.82, 0.79], [0.03, 0.02, 0.01], 0.8) == (2, True)
    assert pick([1, 2, 3], [0.8, 0.81, 0.8], [0.02, 0.02, 0.02], 0.8) == (2, True)
    assert pick([1, 2, 3], [0.7, 0.75, 0.6], [0.03, 0.02, 0.01], 0.8) == (2, False)


def test_a_treatment_of_churn_trains_from_the_right_model(models):  # noqa: F811
    from compatkit.retire_the_old import Anchor, RobustnessCongruent

    anchored = models.treated(Anchor(), 0)
    assert anchored.configuration["start"] == models.starts[0].id
    congruent, control = (models.treated(one, 0, True) for one in (RobustnessCongruent(), None))
    assert congruent.configuration["start"] == control.configuration["start"] == models.news[0].id
    assert congruent.id != control.id
