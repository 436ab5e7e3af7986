"""The answers behind rows: labels, the recipe that a name leads to, records that do not fit."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from compatkit.experiments.judging import kept_answers
from compatkit.experiments.judging.kept_answers import (
    Shelf,
    answered,
    recipe_of,
    strengths_of,
    truth_of,
)
from compatkit.experiments.reporting.result_tables import Row
from compatkit.predictions import Predictions
from compatkit.training.tasks import load_task

ROOT = Path(__file__).resolve().parents[3]
NAME = "muscle-arithmetic-mini-a-main"


@pytest.fixture(scope="module")
def shelf():
    made = Shelf(ROOT / "results")
    made._truths["muscle", "arithmetic", "", ""] = truth_of("muscle", "arithmetic", "main")
    return made


def test_answers_carry_the_labels_of_their_measure(shelf):
    by_choice, by_number = (
        shelf.table(f"muscle-arithmetic-mini-a-{table}") for table in ("main", "4")
    )
    for kept in (by_choice, by_number):
        for row in kept.rows.values():
            right = np.mean([one.correct.mean() for one in answered(kept, row).answers("test")])
            assert right == pytest.approx(row.accuracy[0], abs=0.001)


@pytest.mark.parametrize(
    "method, notebook, recipe",
    [
        ("vote of 5", "gated_fusion", "_vote"),
        ("mean of 10 new models", "decisions", "_averaged"),
        ("mean of 10 new models + rule", "decisions", "_on_top"),
        ("rule, NFR at most 2.0%", "decisions", "_certified"),
        ("rule, pooled", "decisions", "_rule"),
        ("gated fusion", "gated_fusion", "_plain"),
        ("gated fusion, old dropped", "gated_fusion", "_alone"),
        ("BCWI α=0.4", "bcwi", "_interpolated"),
        ("SoupBCWI of 16", "bcwi", "_interpolated"),
        ("line to target, matched α=0.5", "bcwi", "_interpolated"),
        ("ensemble of 4", "distillation", "_both_sides"),
        ("ensembles of 2, larger new one", "ensembles", "_sized"),
        ("base → wide", "ensembles", "_zoo_pair"),
        ("average of 12 further old models", "ensembles", "_voters"),
        ("ensemble of 4, new side only", "distillation", "_averaged"),
        ("most central of 4", "distillation", "_central"),
        ("ELODI, top 3", "distillation", "_students"),
        ("ELODI, new side only", "distillation", "_plain"),
        ("version 1 → version 2: new model", "muscle", "_versions"),
    ],
)
def test_a_name_leads_to_its_recipe(method, notebook, recipe):
    assert recipe_of(method, notebook) is getattr(kept_answers, recipe)


def pair_of(rows=None, **seeds):
    """A table whose runs are their names, with the seeds that their records have."""
    made = {
        name: SimpleNamespace(run=SimpleNamespace(configuration={"seed": seed}))
        for name, seed in seeds.items()
    }
    names = {id(run): name for name, run in made.items()}
    return SimpleNamespace(
        rows=rows or {},
        runs=lambda records: [made[name] for name in records],
        of=lambda group: lambda split: [names[id(run)] for run in group],
    )


def test_a_pair_of_versions_names_the_runs_of_both_sides():
    """At every scale, whatever its versions are called; treated rows stand beside their new one."""
    plain = Row("old LM → new LM: new model", seeds=2, records=("o1", "o2", "n1", "n2"))
    treated = replace(plain, method="old LM → new LM: adapter", records=("o1", "o2", "c1", "c2"))
    kept = pair_of({plain.method: plain}, o1=0, o2=1, n1=0, n2=1, c1=0, c2=1)
    found = kept_answers._versions(kept, treated)
    sides = [side("test") for side in (found.olds, found.answers, found.plain)]
    assert sides == [["o1", "o2"], ["c1", "c2"], ["n1", "n2"]] and found.untreated
    assert not kept_answers._versions(kept, plain).untreated


@pytest.mark.parametrize(
    "records, sides",
    [
        (("l", "a", "b"), (["l", "l"], ["a", "b"])),
        (("a", "b", "l"), (["a", "b"], ["l", "l"])),
    ],
)
def test_a_linear_model_is_one_run_for_all_seeds_of_a_pair(records, sides):
    kept = pair_of(l=None, a=0, b=1)
    found = kept_answers._zoo_pair(kept, Row("linear → base", seeds=2, records=records))
    assert (found.olds("test"), found.answers("test")) == sides


def test_questions_of_every_scale_have_their_labels():
    """A scale asks a part of the questions; `mini`'s part is not that of another."""
    from compatkit.experiments.models.language_recipes import task_at
    from compatkit.language.tasks import load_questions

    known = truth_of("muscle", "arithmetic", "main")
    for scale in ("smoke", "mini"):
        task = task_at(load_questions("arithmetic"), scale)
        for split in ("selection", "test"):
            asked = {one.id for one in getattr(task, split)}
            assert asked <= known.labels[f"{split}-choice"].keys() & known.questions.keys()


def test_voters_are_one_ensemble_beside_each_old_model():
    label = np.zeros(2, int)
    answers = [
        Predictions(["a", "b"], label, logits=np.array([[2.0, 0], [0, scale]])) for scale in (1, 3)
    ]
    kept = SimpleNamespace(
        olds=["o", "p", "q"], runs=lambda names: names, of=lambda group: lambda split: answers
    )
    found = kept_answers._voters(kept, Row("average of 2 further old models", records=("v", "w")))
    one, *others = found.answers("test")
    assert len(others) == 2 and all(other is one for other in others)
    np.testing.assert_allclose(one.logits, [[2, 0], [0, 2]])
    assert not found.untreated and not found.selection


def test_records_that_do_not_fit_are_refused(shelf):
    kept = shelf.table(NAME)
    row = kept.rows["compatibility adapter"]
    with pytest.raises(ValueError, match=f"names 2 runs for {row.seeds} seeds"):
        answered(kept, replace(row, records=row.records[:2]))
    with pytest.raises(ValueError, match="the run gone is named in a table and not published"):
        answered(kept, replace(row, records=("gone",) * row.seeds))
    with pytest.raises(KeyError, match="keeps no answers on train"):
        kept.news[0].predictions("train")


def test_docstrings_of_another_python_have_labels_too():
    labels = truth_of("gated_fusion", "pydoc", "main").labels["test"]
    classes = load_task("pydoc").classes
    assert all(labels[identity] == label for identity, label in list(labels.items())[::50])
    assert classes[labels["asyncio.of_a_later_python.Class"]] == "asyncio"
    assert classes[labels["_pydecimal.of_a_later_python"]] == "decimal"
    assert "email.of_a_later_python" in labels and "another.module" not in labels


def _baselines(strengths, seeds=2):
    """A made-up table of BCWI whose baseline names runs of several strengths, seed by seed."""

    def run(name, treatment):
        return SimpleNamespace(id=name, run=SimpleNamespace(configuration={"treatment": treatment}))

    news = [run(f"new-{seed}", None) for seed in range(seeds)]
    trained = [
        run(f"{at}-{seed}", {"name": "Mixout", "probability": at})
        for seed in range(seeds)
        for at in strengths
    ]
    count = len(strengths)
    groups = [(news[at], *trained[at * count : (at + 1) * count]) for at in range(seeds)]
    own = [one for group in groups for one in group]
    return SimpleNamespace(
        news=news, olds=["old"] * seeds, own=lambda row: own, of=lambda runs: lambda split: runs
    )


def test_a_baseline_is_found_at_the_strength_of_its_setting():
    kept = _baselines((0.3, 0.9))
    row = Row("Mixout", "strength 0.9", 2)
    assert list(strengths_of(kept, row)) == [0.0, 0.3, 0.9]
    assert {one.id for one in answered(kept_of(kept), row).answers("test")} == {"0.9-0", "0.9-1"}
    none = Row("Mixout", "strength 0: none qualified", 2)
    assert answered(kept_of(kept), none).answers("test") == kept.news
    with pytest.raises(ValueError, match="names no 2 runs of strength 0.6"):
        answered(kept_of(kept), Row("Mixout", "strength 0.6", 2))


def kept_of(made):
    """The made-up table under its notebook's name."""
    made.notebook = "bcwi"
    return made


def test_a_kept_table_is_an_upgrade(shelf):
    """pydoc's models, whose data every Python has."""
    kept = shelf.table("gated_fusion-pydoc-mini-a-main")
    found = kept_answers.upgrade_of(kept)
    assert (found.name, len(found.olds)) == ("a", kept.seeds) == ("a", len(found.paired))
    assert found.row("new model", found.paired).accuracy[0] == pytest.approx(
        kept.rows["new model"].accuracy[0]
    )
    assert found.task.name == "pydoc" and found.new_recipe.model == "small"
    assert found.words == "upgrade a" and replace(found, name="").words == "its upgrade"


@pytest.mark.parametrize(("letter", "trained"), [("a", 2000), ("c", 5000)])
def test_the_choices_of_language_models_are_classes(shelf, letter, trained):
    """Sums, which every machine makes."""
    kept = shelf.table(f"muscle-arithmetic-mini-{letter}-main")
    found = kept_answers.upgrade_of(kept)
    assert found.task.title.endswith("by choice") and len(found.task.classes) == 4
    assert f"; {len(found.task.train):,} training" in kept.table.notes[0]
    assert len(found.task.train) == trained
    told = f"old base: {found.old_recipe.words()}; new base: {found.new_recipe.words()}"
    assert told in kept.table.notes
    for method, row in (("old model", found.olds), ("new model", found.paired)):
        assert found.row(method, row).accuracy == pytest.approx(kept.rows[method].accuracy)
        assert set(found.task.test["id"]) == set(row[0].predictions("test").id)
    again = kept_answers.upgrade_of(shelf.table(f"decisions-arithmetic-mini-{letter}-main"))
    assert again.old_recipe == found.old_recipe and again.new_recipe == found.new_recipe
    bare = replace(kept.table, notes=())
    with pytest.raises(ValueError, match="has no note on its bases"):
        kept_answers._bases_of(SimpleNamespace(name="it", table=bare))


@pytest.mark.parametrize(
    ("task", "kind", "scale", "parted"),
    [
        ("fashion_mnist", "2a", "mini", True),
        ("fashion_mnist", "all_images", "mini", False),
        ("cifar10", "2a", "mini", False),
        ("fashion_mnist", "all_images", "smoke", True),
    ],
)
def test_a_table_is_about_the_images_that_its_models_saw(task, kind, scale, parted, monkeypatch):
    whole = replace(load_task("digits"), name=task)
    monkeypatch.setattr("compatkit.training.tasks.load_task", lambda *_: whole)
    monkeypatch.setitem(kept_answers.at_scale.__globals__["MINI_TRAIN"], "fashion_mnist", 300)
    shelf = SimpleNamespace(data_dir=None)
    truth = SimpleNamespace(update=None)
    kept = SimpleNamespace(by="", truth=truth, task=task, shelf=shelf, scale=scale, kind=kind)
    assert (len(kept_answers._task_of(kept).train) < len(whole.train)) == parted


def test_an_old_model_of_others_is_called_as_the_tables_name_says(shelf):
    name = "distillation-cifar10-mini-2a-resnet20"
    first = {one: shelf.tables[name].rows[place].records[0] for place, one in enumerate("on")}
    old, new = (
        kept_answers._recipe_of(SimpleNamespace(run=shelf.runs[run]), "resnet20")
        for run in first.values()
    )
    assert (old.model, old.name, old.deterministic) == ("given", "resnet20", True)
    assert new.model == "resnet" and "resnet20, trained elsewhere" in old.words()


def test_a_table_without_an_upgrade_is_refused(shelf):
    with pytest.raises(ValueError, match="about other answers than a classifier's.* or choices"):
        kept_answers.upgrade_of(shelf.table("muscle-arithmetic-mini-a-4"))
    with pytest.raises(ValueError, match="about added classes"):
        kept_answers.upgrade_of(shelf.table("bcwi-massive-mini-classes"))
    with pytest.raises(ValueError, match="has no row 'old model'"):
        kept_answers.upgrade_of(shelf.table("ensembles-fashion_mnist-mini-figure2"))


def test_an_unknown_table_is_named_with_those_that_there_are():
    chosen = SimpleNamespace(models_of="bcwi-bankng77-mini-main", data_dir="")
    with pytest.raises(ValueError, match="no table 'bcwi-bankng77-mini-main'.*banking77-mini-main"):
        kept_answers.kept_upgrade(chosen, ROOT / "results")


def test_another_task_beside_the_table_is_refused():
    chosen = SimpleNamespace(models_of="bcwi-banking77-mini-main", task="sst2", data_dir="")
    with pytest.raises(ValueError, match="is about banking77, and the task asked for is 'sst2'"):
        kept_answers.kept_upgrade(chosen, ROOT / "results")


def test_the_tables_task_scale_and_seeds_are_taken():
    chosen = SimpleNamespace(models_of="gated_fusion-pydoc-mini-a-main", task="pydoc", data_dir="")
    kept_answers.kept_upgrade(chosen, ROOT / "results")
    assert (chosen.task, chosen.scale, chosen.seeds) == ("pydoc", "mini", 3)
