"""The answers behind rows: labels, the expressions of rows, runs that do not fit."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from compatkit.experiments.judging import kept_answers
from compatkit.experiments.judging.kept_answers import Shelf, truth_of
from compatkit.training.tasks import load_task

ROOT = Path(__file__).resolve().parents[3]
NAME = "muscle-arithmetic-mini-c-main"


@pytest.fixture(scope="module")
def shelf():
    made = Shelf(ROOT / "results")
    made._truths["arithmetic", "questions", "mini", ""] = truth_of("arithmetic", "questions")
    return made


def test_answers_carry_the_labels_of_their_measure(shelf):
    kept = shelf.table(NAME)
    assert kept.by == "choice"
    for row in kept.rows.values():
        right = np.mean([one.correct.mean() for one in kept.of(kept.answering(row))("test")])
        assert right == pytest.approx(row.accuracy[0], abs=0.001)


def test_questions_of_every_scale_have_their_labels():
    """A scale asks a part of the questions; `mini`'s part is not that of another."""
    from compatkit.experiments.models.language_recipes import task_at
    from compatkit.language.tasks import load_questions

    known = truth_of("arithmetic", "questions")
    for scale in ("smoke", "mini"):
        task = task_at(load_questions("arithmetic"), scale)
        for split in ("selection", "test"):
            asked = {one.id for one in getattr(task, split)}
            assert asked <= known.labels[f"{split}-choice"].keys() & known.questions.keys()


def test_records_that_do_not_fit_are_refused(shelf):
    kept = shelf.table(NAME)
    row = kept.rows["compatibility adapter"]
    with pytest.raises(ValueError, match=f"names 2 answers for {row.seeds} seeds"):
        kept.answering(replace(row, new=row.new[:2]))
    with pytest.raises(ValueError, match="the run gone is"):
        kept.answering(replace(row, new=("gone",) * row.seeds))
    with pytest.raises(KeyError, match="keeps no answers on train"):
        kept.news[0].predictions("train")


def test_docstrings_of_another_python_have_labels_too():
    labels = truth_of("pydoc").labels["test"]
    classes = load_task("pydoc").classes
    assert all(labels[identity] == label for identity, label in list(labels.items())[::50])
    assert classes[labels["asyncio.of_a_later_python.Class"]] == "asyncio"
    assert classes[labels["_pydecimal.of_a_later_python"]] == "decimal"
    assert "email.of_a_later_python" in labels and "another.module" not in labels


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


def test_the_choices_of_language_models_are_classes(shelf):
    """Sums, which every machine makes."""
    kept = shelf.table(NAME)
    found = kept_answers.upgrade_of(kept)
    assert found.task.title.endswith("by choice") and len(found.task.classes) == 4
    notes = list(map(str, kept.table.notes))
    assert f"; {len(found.task.train):,} training" in notes[0]
    assert len(found.task.train) == 5000
    told = f"old base: {found.old_recipe.words()}; new base: {found.new_recipe.words()}"
    assert any(one.startswith(told) for one in notes)
    for method, row in (("old model", found.olds), ("new model", found.paired)):
        assert found.row(method, row).accuracy == pytest.approx(kept.rows[method].accuracy)
        assert set(found.task.test["id"]) == set(row[0].predictions("test").id)
    bare = replace(kept.table, notes=())
    with pytest.raises(ValueError, match="has no note on its bases"):
        kept_answers._bases_of(SimpleNamespace(name="it", table=bare))


@pytest.mark.parametrize(
    ("task", "examples", "scale", "start", "parted"),
    [
        ("fashion_mnist", "", "mini", "", True),
        ("fashion_mnist", "all", "mini", "", False),
        ("cifar10", "", "mini", "", False),
        ("cifar10", "", "mini", "pretrained", True),
        ("fashion_mnist", "all", "smoke", "", True),
    ],
)
def test_a_table_is_about_the_images_that_its_models_saw(
    task, examples, scale, start, parted, monkeypatch
):
    whole = replace(load_task("digits"), name=task)
    monkeypatch.setattr("compatkit.training.tasks.load_task", lambda *_: whole)
    monkeypatch.setitem(kept_answers.at_scale.__globals__["MINI_TRAIN"], task, 300)
    shelf = SimpleNamespace(data_dir=None)
    truth = SimpleNamespace(update=None)
    table = SimpleNamespace(examples=examples)
    kept = SimpleNamespace(
        by="", truth=truth, task=task, shelf=shelf, scale=scale, start=start, table=table
    )
    assert (len(kept_answers._task_of(kept).train) < len(whole.train)) == parted


def test_an_old_model_of_others_is_called_as_the_tables_name_says(shelf):
    own = shelf.runs[shelf.tables["distillation-cifar10-mini-2a"].rows[1].records[0]]
    others = SimpleNamespace(configuration={"kind": "given"})
    old, new = (
        kept_answers._recipe_of(SimpleNamespace(run=run), "resnet20") for run in (others, own)
    )
    assert (old.model, old.name, old.deterministic) == ("given", "resnet20", True)
    assert new.model == "resnet" and "resnet20, trained elsewhere" in old.words()


def test_a_table_without_an_upgrade_is_refused(shelf):
    with pytest.raises(ValueError, match="classifier's.* or choices"):
        kept_answers.upgrade_of(shelf.table("reranking-arithmetic-mini-main"))
    with pytest.raises(ValueError, match="about added classes"):
        kept_answers.upgrade_of(shelf.table("bcwi-massive-mini-classes"))
    with pytest.raises(ValueError, match="has no row 'old model'"):
        kept_answers.upgrade_of(shelf.table("ensembles-cifar10-mini-figure2"))


@pytest.mark.parametrize(
    ("table", "task", "named"),
    [
        ("bcwi-bankng77-mini-main", "", "'bcwi-bankng77-mini-main'.*banking77-mini-main"),
        ("bcwi-banking77-mini-main", "sst2", "banking77, .*'sst2'"),
    ],
)
def test_an_unknown_table_and_another_task_are_refused(table, task, named):
    chosen = SimpleNamespace(models_of=table, task=task, data_dir="")
    with pytest.raises(ValueError, match=named):
        kept_answers.kept_upgrade(chosen, ROOT / "results")


def test_the_tables_task_scale_and_seeds_are_taken():
    chosen = SimpleNamespace(models_of="gated_fusion-pydoc-mini-a-main", task="pydoc", data_dir="")
    kept_answers.kept_upgrade(chosen, ROOT / "results")
    assert (chosen.task, chosen.scale, chosen.seeds) == ("pydoc", "mini", 3)
