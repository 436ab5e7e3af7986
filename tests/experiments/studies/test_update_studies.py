"""Studies of a data update: dials and their ends, the one rule of choice, rows on the examples
whose class is known, labels and notes.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import tiny

from compatkit.bcwi import Choice
from compatkit.experiments.models import update_trainings
from compatkit.experiments.reporting.expressions import leaves
from compatkit.experiments.studies.study import Study
from compatkit.experiments.studies.update_studies import (
    STRENGTHS,
    Dial,
    UpdateRows,
    UpdateStudy,
    flips_in_proportion,
    halved,
    line_of,
    target_band,
    update_labels,
    update_notes,
)
from compatkit.training.data_updates import more_classes, more_samples
from compatkit.training.loop import Treatment


class Book:
    """Stands for a Study: it counts runs and notes how each is published."""

    scale = "smoke"
    recalled_notes = Study.recalled_notes

    def __init__(self, seeds=2):
        self.seeds, self.runs, self.published = seeds, {}, {}
        self.chosen = SimpleNamespace(table="main")

    def add(self, run, logits=False, splits=("selection", "test")):
        self.runs[run.id], self.published[run.id] = run, (logits, tuple(splits))
        return run


@pytest.fixture(scope="module", params=["samples", "classes"])
def models(request, tmp_path_factory):
    """Two seeds of old, target and new models of a made-up update."""
    task = tiny.task()
    update = more_samples(task, 0.5) if request.param == "samples" else more_classes(task, 0.67)
    patch = pytest.MonkeyPatch()
    patch.setenv("COMPATKIT_HOME", str(tmp_path_factory.mktemp("runs")))
    study = UpdateStudy(Book(), update, tiny.RECIPE, tiny.RECIPE)
    study.train()
    yield study
    patch.undo()


def test_each_seed_has_three_models_and_they_are_published_with_logits(models):
    seeds = [
        [run.configuration["seed"] for run in runs]
        for runs in (models.olds, models.targets, models.news)
    ]
    assert seeds == [[0, 1], [2000, 2001], [1000, 1001]]
    starts = [run.configuration["start"] for run in models.news]
    assert starts == [run.id for run in models.olds]
    how = {models.study.published[run.id] for run in [*models.olds, *models.news]}
    assert how == {(True, ("new_selection", "new_test"))}


def test_the_ends_of_a_dial_are_the_new_and_the_old_model(models):
    rows = UpdateRows(models)
    for dial in (models.bcwi((0, 0.5, 1)), models.ensemble((0, 0.5, 1))):
        for seed, curve in enumerate(dial.curves("new_test")):
            new = rows.answers([models.news[seed]], "new_test")[0]
            assert (curve.answers[0].prediction == new.prediction).all(), dial.name
            if models.update.old_classes is None:
                old = rows.answers([models.olds[seed]], "new_test")[0]
                assert (curve.answers[-1].prediction == old.prediction).all() and curve.nfr[-1] == 0


def test_a_line_to_the_target_ends_there_however_its_units_are_numbered(models, monkeypatch):
    if models.update.old_classes is not None:  # the target has rows that no old unit matches
        with pytest.raises(ValueError, match="classifier"):
            models.to_target((0, 1), matched=True).curves("new_test")
        return
    asked, match = [], update_trainings.nearest_match

    def counted(target, reference):
        asked.append(target)
        return match(target, reference)

    monkeypatch.setattr(update_trainings, "nearest_match", counted)
    points, rows = (0, 0.5, 1), UpdateRows(models)
    plain, matched = (models.to_target(points, matched=one) for one in (False, True))
    assert (plain.name, matched.name) == ("line to target", "line to target, matched")
    for seed, both in enumerate(zip(plain.curves("new_test"), matched.curves("new_test"))):
        target = rows.answers([models.targets[seed]], "new_test")[0]
        old = rows.answers([models.olds[seed]], "new_test")[0]
        for curve in both:
            assert (curve.answers[0].prediction == target.prediction).all()
            assert (curve.answers[-1].prediction == old.prediction).all()
    assert len(asked) == len(models.targets), "those of one line alone are renumbered, once each"
    for dial in (plain, matched):
        dial.curves("new_selection")
    told = [
        [one.run.configuration for seed in (0, 1) for one in leaves(dial.at(0.5, seed))]
        for dial in (plain, matched)
    ]
    assert all("matched" not in one for one in told[0]) and all(one["matched"] for one in told[1])
    starts = [run.id for run in models.targets for _ in ("selection", "test")]
    assert [one["parents"][1] for one in told[0]] == starts


def test_a_line_stands_in_a_table_at_its_choice_and_half_way(models):
    rows, points = UpdateRows(models), (0, 0.5, 1)
    found = rows.half_way(models.bcwi(points), models.to_target(points))
    names = ["BCWI", "line to target", "BCWI α=0.5", "line to target α=0.5"]
    assert [row.method for row in found] == names and list(rows.drawn) == names[:2]
    middle = rows.drawn["line to target"]
    assert found[3].accuracy[0] == pytest.approx(np.mean([one.accuracy[1] for one in middle]))


def test_a_regularizers_dial_begins_with_the_new_model(models):
    class Nothing(Treatment):
        """Plain training under another name."""

        def configuration(self):
            return {"name": "nothing"}

    dial = models.regularized("nothing", (5.0,), lambda strength, seed: Nothing())
    for seed, curve in enumerate(dial.curves("new_test")):
        new = models.news[seed].predictions("new_test")
        assert curve.alphas == (0.0, 0.5) and all(
            (each.prediction == new.prediction).all() for each in curve.answers
        )
    assert [dial.value(point) for point in (0.0, 0.5)] == [0.0, 5.0]
    assert str(dial.words(Choice(0.5, True, ""))) == "strength 5"


def test_treated_models_keep_their_weights_but_at_paper_scale(models, monkeypatch):
    asked, planned = [], {}
    monkeypatch.setattr(
        models, "kept", lambda *given, **options: asked.append(options["keep_weights"])
    )
    noted = lambda name, *kinds: planned.update({one.kind: one for one in kinds})  # noqa: E731
    monkeypatch.setattr(models.study, "plan", noted, raising=False)
    for scale, treated in (("mini", True), ("paper", False)):
        monkeypatch.setattr(models.study, "scale", scale, raising=False)
        models.new(0)
        models.new(0, 3)  # a member of a soup
        models.new(0, treatment=Treatment())
        assert asked == [True, True, treated], scale
        asked.clear()
        monkeypatch.setattr(models.study.chosen, "table", "baselines")
        models.plan()
        numbers = {name: planned[name].number for name in STRENGTHS[scale]}
        assert numbers == {name: 2 * len(tried) for name, tried in STRENGTHS[scale].items()}
        assert {planned[name].kept for name in numbers} == {treated}
        copies = [planned[name].training(tiny.task()).step.copies for name in numbers]
        assert copies == [2, 1, 1, 0], "EWC's Fisher and old weights, Mixout's old weights"
        monkeypatch.setattr(models.study.chosen, "table", "soup")
        models.plan()
        assert (planned["new"].number, planned["new"].kept) == (2 * models.soups[-1], 1)


def test_the_further_models_of_soups_are_trained_before_any_is_read(models, monkeypatch):
    """Else a second worker of the table would wait for each model that the first one trains."""
    monkeypatch.setattr(models, "olds", [])
    monkeypatch.setattr(models, "targets", [])
    monkeypatch.setattr(models, "news", [])
    asked = []
    monkeypatch.setattr(models, "kept", lambda recipe, number, *_, **__: asked.append(number))
    monkeypatch.setattr(models.study.chosen, "table", "soup")  # of three, at smoke
    models.train()
    assert asked == [0, 1, 2000, 2001, 1000, 1001, 1100, 1101, 1200, 1201]
    assert len(models.news) == 2


def test_a_choice_is_noted_and_its_row_stands_in_the_table(models):
    rows, dial = UpdateRows(models), models.bcwi((0, 0.25, 0.5, 1))
    (chosen,) = rows.chosen(dial)
    choice = models.choices["BCWI"]
    assert (
        chosen.method == "BCWI" and chosen.setting == dial.words(choice) and 0 <= choice.alpha < 1
    )
    swept = [leaf for seed in (0, 1) for leaf in leaves(dial.at(choice.alpha, seed))]
    assert set(chosen.records) == {run.id for run in swept} and len(swept) == 4
    untreated = rows.untreated()
    assert [row.method for row in untreated] == ["old model", "target model", "new model"]
    assert untreated[0].nfr[0] == 0
    x, y = flips_in_proportion(untreated)
    assert (x[0], y[0]) == (untreated[0].accuracy[0], 0) and y[-1] == untreated[2].nfr[0]
    place = dial.curves("new_test")[0].alphas.index(choice.alpha)
    for kept, each in zip(rows.tested["BCWI"], dial.curves("new_test"), strict=True):
        assert (kept.prediction == each.answers[place].prediction).all()
    assert rows.drawn["BCWI"][0].alphas == (0, 0.25, 0.5, 1), "the whole curve is drawn"
    words = halved(models, [*untreated, chosen], rows.tested["BCWI"])
    assert words[1].startswith("its accuracy less the target's: ")


def test_flips_are_counted_where_the_class_is_known_and_accuracy_everywhere(models):
    rows = UpdateRows(models)
    new = rows.untreated()[2]
    known = set(models.update.known())
    nfrs, accuracies = [], []
    for old, run in zip(models.olds, models.news):
        before = models.update.widened(old.predictions("new_test"))
        after = run.predictions("new_test").select(list(before.id))
        at = np.array([name in known for name in before.id])
        nfrs.append((before.correct & ~after.correct)[at].sum() / at.sum())
        accuracies.append(after.correct.mean())
    assert new.nfr[0] == pytest.approx(np.mean(nfrs)) and new.accuracy[0] == pytest.approx(
        np.mean(accuracies)
    )


def test_lines_bands_and_labels(models):
    curves = models.ensemble((0, 1)).curves("new_test")
    accuracies, nfrs = line_of(curves)
    assert accuracies[0] == np.mean([curve.accuracy[0] for curve in curves]) and len(nfrs) == 2
    low, high = target_band(models)
    mean = np.mean([run.predictions("new_test").correct.mean() for run in models.targets])
    assert low <= mean <= high
    assert target_band(SimpleNamespace(targets=models.targets[:1])) is None
    labels = update_labels(models.update)
    assert set(labels) == {"new_train", "new_selection", "new_test"}
    assert labels["new_test"] == dict(
        zip(models.update.new.test["id"], models.update.new.test["label"])
    )


def test_words_of_a_dial():
    dial = Dial("BCWI", print, print)
    assert str(dial.words(Choice(0.4, True, ""))) == "α 0.4"
    assert str(dial.words(Choice(0.0, False, ""))) == "α 0"


def test_the_baselines_are_made_by_name(models):
    """Each is another treatment; a dial of one is trained without naming its class."""
    names = ("EWC", "prior weight decay", "Mixout", "distillation")
    kinds = [type(models.baseline(name, 0.5, 0)).__name__ for name in names]
    assert kinds[:2] == ["ElasticWeightConsolidation", "PriorWeightDecay"]
    assert kinds[2:] == ["Mixout", "FocalDistillation"]
    models.forget_fishers()
    dial = models.regularized("prior weight decay", (30.0,))
    assert str(dial.words(Choice(0.5, True, ""))) == "strength 30"
    assert models.strengths["prior weight decay"] == (0.0, 30.0)
    assert [curve.alphas for curve in dial.curves("new_test")] == [(0.0, 0.5)] * 2


def test_at_smoke_an_update_is_smaller_and_begins_without_pretrained_weights():
    chosen = SimpleNamespace(
        task="pydoc", scale="smoke", seeds=3, table="main", data_dir="", encoder="", margin=0.02,
        max_steps=-1, from_results=False, keep_results=False,
    )  # fmt: skip
    models = UpdateStudy.begin("bcwi", chosen)
    assert (len(models.update.old.train), len(models.update.new.train)) == (600, 900)
    assert (models.margin, models.arguments, models.study.notebook) == (0.02, {}, "bcwi")
    assert (models.old_recipe.epochs, models.new_recipe.epochs) == (7, 4)
    assert models.study.seeds == 3 and models.update.old_classes is None
    classes = UpdateStudy.begin("bcwi", chosen, "add_classes", seeds_in_test=1)
    assert classes.update.old_classes is not None


def test_notes_name_the_strengths_that_were_trained(models):
    study = UpdateStudy(models.study, models.update, tiny.RECIPE, tiny.RECIPE)
    assert not any(str(line).startswith("strengths") for line in update_notes(study))
    study.strengths = {"EWC": (0.0, 0.01), "Mixout": (0.0, 0.5)}
    assert "strengths: EWC 0, 0.01; Mixout 0, 0.5" in update_notes(study)
    alone = UpdateStudy(Book(seeds=1), models.update, tiny.RECIPE, tiny.RECIPE, margin=0.02)
    assert any("margin 2.0%" in str(line) for line in update_notes(alone))
