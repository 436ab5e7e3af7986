"""A study of retirements: traffic that is in no other part, runs that are made once, dials set by
one rule, rows that can be counted again.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import tiny

from compatkit.experiments.studies import retirements
from compatkit.experiments.studies.retirements import (
    JUDGED,
    Lesson,
    RetirementRows,
    RetirementStudy,
    asked_once,
    check_retirement,
    claim_lines,
    cost_table,
    embeddings_of,
    head_once,
    main_rows,
    pick,
    retirement_table,
    students_of,
    traffic_of,
)
from compatkit.predictions import Predictions
from compatkit.retire_the_old import UNLABELLED
from compatkit.training.data_updates import more_samples, reduced


class Book:
    """Stands for a Study: it counts runs and notes how each is published."""

    scale, embedded, wiring = "mini", True, False

    def __init__(self, seeds=2):
        self.seeds, self.runs, self.published = seeds, {}, {}
        self.chosen = SimpleNamespace(table="main", upgrade="data", keep_results=False)

    def add(self, run, logits=False, splits=("selection", "test")):
        self.runs[run.id], self.published[run.id] = run, (logits, tuple(splits))
        return run

    def command(self):
        return "papermill nbs/retire_the_old.ipynb"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A data update of the tiny task, what it leaves, and a home for runs."""
    task = tiny.task(train=110, test=48)
    update = more_samples(reduced(task, 60), 2 / 3)
    patch = pytest.MonkeyPatch()
    patch.setenv("COMPATKIT_HOME", str(tmp_path_factory.mktemp("runs")))
    yield task, update, traffic_of(update, task)
    patch.undo()


def study_of(world, upgrade="data", seeds=2):
    """The study of an upgrade, trained."""
    _, update, traffic = world
    recipes = (tiny.RECIPE, tiny.RECIPE, tiny.RECIPE)
    models = RetirementStudy(Book(seeds), update, traffic, recipes, upgrade)
    models.train()
    return models


@pytest.fixture(scope="module")
def models(world):
    return study_of(world)


def test_traffic_is_what_is_left_without_labels(world):
    task, update, traffic = world
    parts = (update.new.train, update.new.selection, update.new.test)
    used = {text for part in parts for text in part["text"]}
    assert not used & set(traffic.rows["text"]) and set(traffic.rows["label"]) == {UNLABELLED}
    left = {text for text in task.train["text"] if text not in used}
    assert set(traffic.rows["text"]) == left and len(set(traffic.rows["id"])) == len(left)
    few = traffic_of(update, task, most=10)
    assert len(few.rows) == 10 and set(few.rows["id"]) < set(traffic.rows["id"])
    assert few.fingerprint != traffic.fingerprint
    with pytest.raises(ValueError, match="the pool is empty"):
        traffic_of(update, update.new)


def test_texts_that_differ_in_case_alone_are_left_out(world):
    task, update, _ = world
    from datasets import Dataset

    loud = [text.upper() + " " for text in update.new.test["text"]]
    columns = {"id": [f"x{row}" for row in range(len(loud))], "text": loud}
    source = SimpleNamespace(title="loud", text_fields=("text",), train=Dataset.from_dict(columns))
    with pytest.raises(ValueError, match="the pool is empty"):
        traffic_of(update, source)


def test_each_seed_has_its_models_and_the_start_is_the_old_one(models):
    assert [run.configuration["start"] for run in models.news] == [run.id for run in models.olds]
    assert models.olds == models.starts
    told = models.new_asked(0).predictions("traffic")
    assert told.label is None and len(told) == len(models.traffic.rows)
    assert embeddings_of(models.new_asked(0), "new_test").shape == (
        len(models.update.new.test),
        tiny.RECIPE.width,
    )
    again = models.new_asked(0).predictions("new_test").logits
    assert np.allclose(again, models.news[0].predictions("new_test").logits, atol=1e-5)


def test_a_student_begins_where_it_is_told_and_learns_what_it_is_told(models):
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


def test_the_control_is_one_for_all_old_models(world, models):
    other = study_of(world, "b")
    assert other.student("self", 0).id == models.student("self", 0).id
    assert other.student("rule", 0).id != models.student("rule", 0).id
    assert [run.id for run in other.news] == [run.id for run in models.news]
    with pytest.raises(ValueError, match="changes the architecture"):
        other.student("rule", 0, from_old=True)


def test_half_of_the_layers_is_another_old_model(world):
    assert retirements._old_recipe(tiny.RECIPE, "a").layers == 1
    assert retirements._old_recipe(tiny.RECIPE, "b").model == "linear"
    with pytest.raises(ValueError, match="not one of data, a, b"):
        retirements._old_recipe(tiny.RECIPE, "c")


def test_heads_and_neighbours_guess_old_logits(models):
    head, near = models.head(0), models.neighbours(0)
    old = models.old_asked(0).predictions("traffic").logits
    for run in (head, near):
        for split in JUDGED:
            guess = run.predictions(split)
            assert guess.logits.shape == (len(guess), 3) and np.isfinite(guess.logits).all()
    kept = {tuple(row) for row in np.float32(old).tolist()}
    assert {tuple(row) for row in near.predictions("new_test").logits.tolist()} <= kept
    assert 0 <= head.results["agreement"] <= 1


def test_hard_answers_train_a_head_too(models, tmp_path):
    told = models.old_asked(0).predictions("traffic")
    hard = Predictions(told.id, prediction=told.logits.argmax(1))
    run = SimpleNamespace(id="hard", predictions=lambda split: hard)
    found = head_once(models.new_asked(0), run, 0, home=tmp_path)
    assert found.predictions("new_test").logits.shape[1] == 3


def test_the_ends_of_a_rule_and_of_a_mixture(models):
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


@pytest.fixture(scope="module")
def rows(models):
    found = RetirementRows(models)
    dial = models.rule("rule with the head", models.head, models.new_asked)
    line = models.interpolation("interpolation (BCWI)", models.news.__getitem__, tiny.RECIPE)
    runs = [models.student("rule", seed) for seed in (0, 1)]
    shown = [
        *found.untreated(),
        found.chosen(dial),
        found.chosen(line, (0.0, 0.4)),
        found.row("student of the rule", runs, "price 1"),
        found.searched("RCAT", {"one": runs, "two": models.news}),
    ]
    found.shown = shown
    return found


def test_every_row_can_be_counted_from_its_own_runs(models, rows):
    for row in rows.shown[1:]:
        runs = [models.study.runs[name] for name in row.records]
        assert len(runs) == 2
        right = [run.predictions("new_test").correct.mean() for run in runs]
        assert row.accuracy[0] == pytest.approx(np.mean(right))
    assert rows.shown[3].setting.startswith("α ")
    assert len(rows.lines["interpolation (BCWI)"][0]) == 2
    assert rows.shown[1].nfr[0] == pytest.approx(rows.lines["interpolation (BCWI)"][1][0])


def test_the_table_says_what_was_done(models, rows):
    table = retirement_table(models, rows.shown)
    assert "upgrade data" in table.title
    assert any("examples without labels" in note for note in table.notes)
    lines = claim_lines(rows, rows.shown)
    assert len(lines) == len(rows.shown) - 2 and "of the untreated NFR" in lines[0]


def test_a_smoke_run_without_effect_is_an_error(models, rows):
    check_retirement(rows, ["student of the rule"])
    models.study.scale = "smoke"
    plain = [run.predictions("new_test") for run in models.news]
    rows.answers["nothing"] = [
        Predictions(one.id, one.label, one.logits.argmax(1)) for one in plain
    ]
    with pytest.raises(RuntimeError, match="shows nothing"):
        check_retirement(rows, ["nothing"])
    models.study.scale = "mini"
    del rows.answers["nothing"]


def test_a_certificate_that_cannot_be_is_told_in_words(models, rows):
    told = rows.certified("certified", models.news.__getitem__, 1e-4)
    assert isinstance(told, str) and "are needed" in told


def test_caches_of_a_share_answer_the_test_split(models, rows):
    found = RetirementRows(models)
    dial = models.rule("cache of 100 %", models.olds.__getitem__, models.news.__getitem__)
    whole = found.chosen(dial)
    for learned in (False, True):
        row = found.cached("cache of 50 %", dial, 0.5, learned)
        assert row.seeds == 2 and row.setting == whole.setting.removesuffix("; none was on a par")


def test_costs_count_what_is_done(models, world):
    found, traffic = RetirementRows(models), world[2]
    shown = [*found.untreated(), *main_rows(found, students_of("rule", "data"))]
    table = cost_table(found, shown)
    assert list(table.index) == [row.method for row in shown[2:]]
    asks, steps, kept = (table[name] for name in table)
    batch = tiny.RECIPE.batch_size
    seen = len(models.update.new.train) + len(traffic.rows)
    own = -(-seen // batch) * tiny.RECIPE.epochs
    assert steps["student of the rule"] == own and asks["student of the rule"] == "one model"
    assert steps["student of the rule, with its head"] == own + 400
    assert asks["rule over both models"] == "two models" and kept["rule over both models"]
    width = 4 * (tiny.RECIPE.width + len(models.update.new.classes))
    assert kept["rule with the nearest neighbour"] == f"{width:,} bytes an answer"
    assert (
        kept["rule with the head"].startswith("a head of ") and steps["rule with the head"] == 400
    )


def test_a_treatment_of_churn_trains_from_the_right_model(models):
    from compatkit.retire_the_old import Anchor, RobustnessCongruent

    anchored = models.treated(Anchor(), 0)
    assert anchored.configuration["start"] == models.starts[0].id
    congruent, control = (models.treated(one, 0, True) for one in (RobustnessCongruent(), None))
    assert congruent.configuration["start"] == control.configuration["start"] == models.news[0].id
    assert congruent.id != control.id


def test_names_of_students_are_checked():
    assert students_of("auto") == "auto" and students_of("self, rule") == "self, rule"
    assert list(students_of("auto", "data")) == ["self", "rule", "rule_from_old"]
    assert list(students_of("auto", "b")) == ["self", "rule"]
    with pytest.raises(ValueError, match="is none of self, rule"):
        students_of("teacher")
    with pytest.raises(ValueError, match="one architecture"):
        students_of("rule_from_old", "a")


def test_embeddings_are_not_in_results(models):
    with pytest.raises(ValueError, match="holds no embeddings"):
        embeddings_of(SimpleNamespace(id="x", recalled=True), "traffic")


def test_a_lesson_says_what_decides_it(models):
    old, new = models.old_asked(0), models.new_asked(0)
    told = [
        Lesson("self", new).identity(),
        Lesson("mixture", new, old, weight=0.3).identity(),
        Lesson("rule", new, old, 2.0).identity(),
    ]
    assert told[0] == {"lesson": "self"} and told[1]["weight"] == 0.3
    assert told[2] == {"lesson": "rule", "price": 2.0, "pool": None}
    assert asked_once(models.update, models.old_recipe, models.olds[0], models.traffic, True) == old
