"""Studies of distillation: the update behind each table, who teaches whom, what stands below."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny

from compatkit.distillation import FocalDistillation, LogitDifferenceInhibition
from compatkit.experiments.models import recipes
from compatkit.experiments.models.recipes import Experiment
from compatkit.experiments.running.runs import Run
from compatkit.experiments.studies import distillation_studies as module
from compatkit.experiments.studies.distillation_studies import (
    DistillationStudy,
    Treatments,
    begin_distillation,
    treatments_of,
    update_of,
)
from compatkit.experiments.studies.sides import Compared, Update
from compatkit.experiments.studies.study import Study
from compatkit.predictions import Predictions
from compatkit.training.data_updates import more_classes, more_samples
from compatkit.training.tasks import load_task


def parameters(**changes):
    """Checked parameters."""
    usual = {
        "task": "digits", "scale": "smoke", "seeds": 2, "table": "main", "ensemble": 0,
        "settings": 0, "data_dir": "", "encoder": "", "old_encoder": "", "max_steps": -1,
        "from_results": False, "keep_results": False, "old_logits": "auto", "answers": "",
    }  # fmt: skip
    return SimpleNamespace(**(usual | changes))


# --- the update behind a table --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "table", "kind"), [("digits", "mrpc", "images"), ("pydoc", "augmentation", "texts")]
)
def test_a_table_of_the_other_kind_of_task_is_refused(task, table, kind):
    with pytest.raises(ValueError, match=f"'{table}' is not for {kind}; with the task '{task}'"):
        begin_distillation(parameters(task=task, table=table))


@pytest.mark.parametrize("task", ["digits", "pydoc", "cifar10", "sst2"])
def test_all_images_is_a_table_only_where_the_others_take_a_part(task, monkeypatch):
    made = {"sst2": tiny.task, "cifar10": tiny.image_task}
    if task in made:
        monkeypatch.setattr(recipes, "load_task", lambda *_: replace(made[task](), name=task))
    with pytest.raises(ValueError, match=f"'{task}' is none of these, so ask for `-p table 2a`"):
        begin_distillation(parameters(task=task, table="all_images"))


@pytest.fixture
def updates(monkeypatch):
    """table → the update, of digits."""
    monkeypatch.setattr(module, "common_start", lambda task, recipe: replace(recipe, name="body"))

    def of(table, **changes):
        return update_of(begin_distillation(parameters(table=table, **changes)))

    return of


def test_an_update_changes_what_its_table_says(updates):
    same, larger, samples, classes = (updates(table) for table in ("main", "4", "5a", "5b"))
    assert same.old_recipe == same.new_recipe == larger.old_recipe and same.data is None
    assert larger.new_recipe.widths > larger.old_recipe.widths and larger.data is None
    for grown in (samples, classes):
        assert grown.old_recipe == grown.new_recipe == same.old_recipe
    assert samples.old_classes is None and len(samples.data.old.train) < 310
    assert len(classes.old_classes) == 5


def test_the_second_part_of_table_2_shares_a_start(updates):
    shared = updates("2b")
    assert shared.old_recipe.name == shared.new_recipe.name == "body"
    assert updates("2a").old_recipe.name == ""


def test_cifar_begins_with_the_classes_of_another_set(monkeypatch):
    asked = []

    def load(name, folder):
        return replace(tiny.image_task(), name=name)

    def start(*given):
        asked.append(given)
        return "started"

    monkeypatch.setattr(recipes, "load_task", load)
    monkeypatch.setattr(module, "load_task", load)
    monkeypatch.setattr(module, "common_start", start)
    study = begin_distillation(parameters(task="cifar10", table="2b", scale="mini"))
    assert update_of(study).old_recipe == "started"
    ((task, after, other, first),) = asked
    assert (task.name, other.name) == ("cifar10", "tiny_imagenet")
    assert first.side == 32 and after.side == 0 and after.epochs < first.epochs
    assert (after.widths, after.depths) == (first.widths, first.depths)
    asked.clear()
    update_of(begin_distillation(parameters(task="cifar10", table="2b", scale="smoke")))
    assert len(asked[0]) == 2, "at smoke half of its own data serves"


def test_texts_fine_tune_but_for_table_2a(monkeypatch):
    asked, small, large = [], tiny.RECIPE, replace(tiny.RECIPE, layers=9)

    def sizes(experiment, encoder, from_scratch, pretrained, old_encoder):
        asked.append((encoder, from_scratch, pretrained))
        return small, large

    monkeypatch.setattr(module, "two_sizes", sizes)
    for table in ("main", "2a", "mrpc"):
        chosen = parameters(task="mrpc", table=table, encoder="mine")
        update = update_of(Study("d", chosen, Experiment(tiny.task(), "mini", "asked for")))
        assert update.new_recipe == (large if table == "mrpc" else small)
    assert asked == [("mine", False, ()), ("mine", True, ()), ("mine", False, ())]


def test_all_images_come_with_few_passes(monkeypatch):
    def load(name, folder):
        return replace(tiny.image_task(), name=name)

    monkeypatch.setattr(recipes, "load_task", load)
    monkeypatch.setattr(recipes, "MINI_TRAIN", dict.fromkeys(("cifar10", "fashion_mnist"), 8))
    for task, tables in (("cifar10", ("2a", "4")), ("fashion_mnist", ("2a", "4", "all_images"))):
        for table in tables:
            study = begin_distillation(parameters(task=task, table=table, scale="mini"))
            update = update_of(study)
            all_images = task == "cifar10" or table == "all_images"
            assert (len(study.task.train) > 8) == all_images
            sides = update.old_recipe, update.new_recipe
            larger = task == "cifar10" and table == "4"
            assert [side.epochs for side in sides] == (
                [15, 20] if larger else [15 if all_images else 60] * 2
            )
            assert [side.device for side in sides] == ["cuda" if larger else ""] * 2
            assert (sides[0] == sides[1]) == (table != "4")


@pytest.fixture
def networks(tmp_path, monkeypatch):
    """Folders of two pretrained networks of images, and a made-up CIFAR-10 beside them."""
    for name, side in (("mobilenet_v2_imagenet", 224), ("another", 16)):
        tiny.mobile_net().save_pretrained(tmp_path / name)
        asks = {"crop_size": {"height": side, "width": side}, "do_center_crop": True}
        (tmp_path / name / "preprocessor_config.json").write_text(json.dumps(asks))
    monkeypatch.setattr(recipes, "load_task", lambda *_: replace(tiny.image_task(), name="cifar10"))
    monkeypatch.setattr(recipes, "MINI_TRAIN", {"cifar10": 20})
    return str(tmp_path / "mobilenet_v2_imagenet"), str(tmp_path / "another")


def of_networks(table, new="", old="", **changes):
    given = {"task": "cifar10", "scale": "mini", "encoder": new, "old_encoder": old}
    study = begin_distillation(parameters(table=table, **given, **changes))
    return study, update_of(study)


@pytest.mark.parametrize("table", ["2b", "5a", "5b", "figure5"])
def test_both_sides_begin_with_the_network_that_is_named(networks, table):
    study, update = of_networks(table, networks[0])
    assert len(study.task.train) == 20, "of the images the part that mini takes"
    assert update.old_recipe == update.new_recipe and bool(update.data) == (table[0] == "5")
    listed, numbers = recipes.NETWORKS["mobilenet_v2_imagenet"]
    assert update.new_recipe.name == listed and update.new_recipe.side == numbers["cifar10"]["side"]
    assert f"{listed} at {update.new_recipe.side} pixels" in update.new_recipe.words()


def test_after_a_pretrained_network_squared_differences_are_averaged_over_classes(networks):
    of_table = treatments_of(of_networks("5a", networks[0], over_classes="auto")[0])
    own, tried = of_table.fixed["FD-LM, the paper's setting"], of_table.grids["FD-LM"]
    assert own.weight == 1 and {one.over_classes for one in (own, *tried)} == {"mean"}
    assert own.configuration() in [one.configuration() for one in tried], "trained once"


def test_either_side_may_have_a_network_of_its_own(networks):
    new, other = networks
    _, update = of_networks("4", new)
    assert (update.old_recipe.model, update.new_recipe.model) == ("resnet", "image")
    study, update = of_networks("4", new, other)
    assert (update.old_recipe.name, update.old_recipe.side) == ("another", 16), "as it asks"
    assert not DistillationStudy(study, update).recomputes, "they see images of different sizes"
    with pytest.raises(ValueError, match="encoder"):
        of_networks("4", old=other)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        of_networks("2b", new="./nowhere")


def test_a_pretrained_network_is_treated_and_its_old_logits_recomputed(
    networks, tmp_path, monkeypatch
):
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path / "home"))
    study, update = of_networks("5a", networks[1], seeds=1, ensemble=2)
    short = replace(update.new_recipe, epochs=1, batch_size=16)
    models = DistillationStudy(study, replace(update, old_recipe=short, new_recipe=short))
    assert models.recomputes and short.mirrored
    models.train()
    (run,) = models.treat_all(FocalDistillation("kl"))
    assert run.run.configuration["recipe"]["side"] == 16
    assert run.run.configuration["treatment"]["old_run"] == models.olds[0].run.id


@pytest.mark.parametrize(
    ("table", "task", "trained"),
    [
        ("2b", "inaturalist", ["18", "18"]),
        ("2b", "imagenet", ["18", "18"]),
        ("4", "inaturalist", ["18", "50"]),
        ("5a", "inaturalist", ["50", "50"]),
        ("main", "imagenet", []),
    ],
)
def test_only_what_a_table_trains_must_be_there(monkeypatch, table, task, trained):
    images = replace(tiny.image_task(), name=task)
    names = [f"microsoft/resnet-{size}" for size in trained]

    def begun(chosen, papers, whole, choosing, part):
        assert not whole and choosing and not part
        assert {*papers[task]} == (set(names) if task == "inaturalist" else set())
        return Experiment(images, "paper", "asked for")

    monkeypatch.setattr(module, "begin_with_images", begun)
    update = update_of(begin_distillation(parameters(task=task, table=table, scale="paper")))
    sides = (update.old_recipe, update.new_recipe)
    assert [one.folder for one in sides if one.model == "image"] == names


# --- its runs -------------------------------------------------------------------------------------


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """table, changes → a study of the tiny task."""
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path))

    def of(table, task=None, recipe=tiny.RECIPE, data=None, **changes):
        chosen = parameters(task="tiny", table=table, **changes)
        experiment = Experiment(task or tiny.task(), "smoke", "asked for")
        study = Study("distillation", chosen, experiment)
        return DistillationStudy(study, Update(recipe, recipe, data))

    return of


def seeds_of(runs):
    return [run.configuration["seed"] for run in runs]


def test_ensembles_have_further_members_and_others_need_none(begun):
    models = begun("main")
    models.train()
    assert (models.size, models.members, len(models.ensembles)) == (2, 3, 2)
    assert (seeds_of(models.olds), seeds_of(models.news)) == ([0, 1, 2], [1000, 1001, 1002])
    assert [len(average.members) for side in models.ensembles for average in side] == [2] * 4
    assert len(models.pair.olds) == len(models.pair.paired) == 2 and len(models.pair.news) == 3
    assert (begun("3").members, begun("main", ensemble=4).size) == (2, 4)
    with models.study.running(models.labels):
        taught = models.teach([LogitDifferenceInhibition(1.0)])
    assert (seeds_of(taught.olds), seeds_of(taught.search.runs)) == ([500, 501], [1500, 1501])
    names = [each.method for each in models.stand_ins(taught)]
    assert names == [
        "ensemble of 2, new side only",
        "ELODI, new side only",
        "most central of 2",
    ]


def test_a_treatment_is_taught_by_the_old_model_of_its_seed(begun):
    models = begun("3")
    models.train()
    runs = models.treat_all(FocalDistillation())
    assert seeds_of(runs) == [1000, 1001]
    assert [run.configuration["parents"] for run in runs] == [[run.id] for run in models.olds]
    found = models.search([FocalDistillation(), FocalDistillation(weight=0.1)])
    assert len(found.tried) == 2 and len(found.runs) == 2 and runs[0].id == found.tried[0][3][0].id


def test_the_plan_counts_what_is_trained(begun, capsys):
    grid = [FocalDistillation()]
    fixed = dict.fromkeys("ab", grid[0])
    begun("main").plan(Treatments({"FD-LM": grid * 2}, {"ELODI": grid}, fixed))
    told = capsys.readouterr().out.splitlines()[1]
    assert told == (
        "table main: 3 old, 3 new, 8 treated, 2 old students of ensembles, "
        "2 new students of ensembles"
    )


@pytest.mark.parametrize("old_logits, asked", [("kept", None), ("recomputed", tiny.RECIPE)])
def test_an_old_model_that_is_asked_again_is_planned_with_its_weights(begun, old_logits, asked):
    planned, models = {}, begun("main", old_logits=old_logits)
    models.study.plan = lambda name, *kinds: planned.update({one.kind: one for one in kinds})
    models.plan(Treatments({"FD-LM": [FocalDistillation()]}))
    assert planned["old"].kept == bool(asked) and planned["treated"].beside == asked
    assert planned["new"].kept == 0 and planned["new"].beside is None


def test_what_every_epoch_leaves_is_planned(begun):
    planned, models = {}, begun("figure5")
    models.study.plan = lambda name, *kinds: planned.update({one.kind: one for one in kinds})
    models.plan(Treatments(over_time={"no treatment": None, "FD-LM": FocalDistillation()}))
    kept, answers = planned["treated, every epoch kept"], planned["answers after an epoch"]
    epochs, seeds = tiny.RECIPE.epochs, models.study.seeds
    assert (kept.number, kept.kept, planned["treated"].number) == (2 * seeds, epochs, 0)
    assert (answers.number, answers.epochs) == (2 * seeds * epochs, 0)
    assert answers.answered == len(models.study.task.test)


def test_mrpc_finds_the_runs_of_gated_fusion(begun):
    models = begun("mrpc", seeds=1)
    models.train()
    assert models.news[0].configuration["keep_epochs"] == [tiny.RECIPE.epochs - 1]
    assert models.news[0].configuration["splits"] == ["selection", "test"]


def test_what_a_search_gives_can_be_published(begun):
    models = begun("5b", data=more_classes(tiny.task()), seeds=1)
    models.train()
    models.search([FocalDistillation(old_classes=models.update.old_classes)])
    assert {type(run) for run in models.study.runs.values()} == {Run}


def test_a_treatment_unfolds_epoch_by_epoch(begun):
    models = begun("figure5")
    models.train()
    error, relative = models.by_epoch(models.unfold(FocalDistillation()))
    assert error.shape == relative.shape == (tiny.RECIPE.epochs, 2)
    last = [run.results["accuracy"]["test"] for run in models.treat_all(FocalDistillation())]
    np.testing.assert_allclose(error[-1], 1 - np.array(last))


def test_recomputed_logits_come_from_the_kept_old_weights(begun):
    models = begun("augmentation", tiny.image_task(), replace(tiny.IMAGE_RECIPE, mirrored=True))
    models.train()
    assert models.olds[0].configuration["keep_epochs"] == [tiny.IMAGE_RECIPE.epochs]
    plain, asked = models.treat_all(FocalDistillation()), models.recompute_all(FocalDistillation())
    assert seeds_of(asked) == [1000, 1001] and {run.id for run in plain}.isdisjoint(
        run.id for run in asked
    )
    assert "shifted and mirrored in training" in models.notes()[-1]
    assert models.notes()[-1].endswith("unless they are recomputed")


def test_old_logits_are_those_of_the_image_that_the_new_model_sees(begun):
    changed = replace(tiny.IMAGE_RECIPE, mirrored=True)
    models = begun("3", tiny.image_task(), changed, seeds=1)
    models.train()
    (run,) = models.treat_all(FocalDistillation())
    assert run.configuration["treatment"]["old_run"] == models.olds[0].id
    assert models.notes()[-1].endswith("of the changed image, computed at each step")
    kept = begun("3", tiny.image_task(), changed, seeds=1, old_logits="kept")
    kept.train()
    assert (
        kept.treat_all(FocalDistillation())[0].configuration["treatment"]
        != (run.configuration["treatment"])
    )
    assert not begun("3", tiny.image_task()).recomputes, "images that nothing changes"
    assert not begun("3").recomputes, "texts"


def test_an_old_model_of_less_data_is_asked_about_changed_images_too(begun):
    changed, task = replace(tiny.IMAGE_RECIPE, mirrored=True), tiny.image_task()
    models = begun("5a", task, changed, more_samples(task), seeds=1, ensemble=2)
    models.train()
    (run,) = models.treat_all(FocalDistillation())
    assert run.run.configuration["treatment"]["old_run"] == models.olds[0].run.id
    assert models.olds[0].run.configuration["keep_epochs"] == [tiny.IMAGE_RECIPE.epochs]


def test_old_logits_of_changed_images_need_the_old_weights(begun):
    models = begun("3", tiny.image_task(), replace(tiny.IMAGE_RECIPE, mirrored=True), seeds=1)
    models.train()
    (models.olds[0].folder / f"epoch-{tiny.IMAGE_RECIPE.epochs}.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="old_logits kept"):
        models.treat_all(FocalDistillation())


def test_an_old_model_from_the_results_is_trained_again_where_its_weights_are_needed(begun):
    models = begun("3", tiny.image_task(), replace(tiny.IMAGE_RECIPE, mirrored=True), seeds=1)
    models.train()
    (old,) = models.olds
    (trained,) = models.treat_all(FocalDistillation())
    recalled = old.folder.parent / "recalled" / old.id
    shutil.copytree(old.folder, recalled, ignore=shutil.ignore_patterns("*.safetensors"))
    models.olds = [replace(old, folder=recalled, again=lambda: old)]
    shutil.rmtree(trained.folder)
    (again,) = models.treat_all(FocalDistillation())
    assert again.id == trained.id and again.results["accuracy"] == trained.results["accuracy"]


# --- an old model that others trained -------------------------------------------------------------


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """FOLDER/NAME of the noisy answers of a model of the digits."""
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path / "runs"))
    digits, random = load_task("digits"), np.random.default_rng(0)
    for split in ("train", "selection", "test"):
        rows = getattr(digits, split)
        label = np.array(rows["label"])
        logits = np.eye(10)[label] + random.normal(0, 0.5, (len(label), 10))
        made = Predictions(rows["id"], label=label, logits=logits.astype(np.float16))
        made.save(tmp_path / f"theirs-{split}.parquet")
    return str(tmp_path / "theirs")


def test_a_model_that_is_there_as_its_answers_can_be_the_old_one(answers, capsys):
    study = begin_distillation(parameters(table="4", answers=answers, old_logits="auto"))
    models = DistillationStudy(study, update_of(study))
    models.plan(Treatments({"FD-KL": [FocalDistillation()]}))
    assert "0 old" not in (told := capsys.readouterr().out) and " old" not in told
    models.update = replace(
        models.update, new_recipe=replace(models.update.new_recipe, epochs=1, max_steps=2)
    )
    models.train()
    assert len({run.id for run in models.olds}) == 1 and len(models.olds) == 2
    assert not models.recomputes and not models.ensembles
    (run, other) = models.treat_all(FocalDistillation())
    assert run.configuration["parents"] == other.configuration["parents"] == [models.olds[0].id]
    notes = " ".join(map(str, models.notes()))
    assert "old: theirs, trained elsewhere and known by its answers alone" in notes
    assert "one run serves all seeds" in notes and "those of the plain image" in notes


def test_answers_that_nothing_can_be_trained_with_are_refused(answers):
    chosen = parameters(table="4", answers=answers)
    for split in ("test", "selection", "train"):
        file = f"{answers}-{split}.parquet"
        told = Predictions.load(file)
        told.replace(prediction=told.logits.argmax(1), logits=None).save(file)
    with pytest.raises(ValueError, match="theirs: they have no logits"):
        update_of(begin_distillation(chosen))
    Path(f"{answers}-train.parquet").unlink()
    with pytest.raises(ValueError, match="theirs.*no answer"):
        update_of(begin_distillation(chosen))


@pytest.mark.parametrize("table", ["main", "5a", "one_model"])
def test_other_tables_train_their_old_models(table, answers):
    with pytest.raises(ValueError, match=f"tables 2a and 4; table '{table}' trains its old models"):
        begin_distillation(parameters(table=table, answers=answers))


def test_the_new_model_after_given_answers_is_that_of_the_table(answers):
    for table in ("2a", "4"):
        trained = update_of(begin_distillation(parameters(table=table)))
        given = update_of(begin_distillation(parameters(table=table, answers=answers)))
        assert given.new_recipe == trained.new_recipe and given.given is not None


@pytest.mark.parametrize("answers", ["nowhere/theirs", "theirs"])
def test_answers_that_are_not_there_are_named(answers, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="hold no answers"):
        update_of(begin_distillation(parameters(table="4", answers=answers)))


# --- what is told ---------------------------------------------------------------------------------


def test_notes_say_which_examples_count(begun, capsys):
    models = begun("5b", data=more_classes(tiny.task()), seeds=1)
    models.train()
    known = len(models.pair.olds[0].predictions("test"))
    note = f"measured on the {known:,} test examples whose class it knows, and accuracy once more"
    assert any(note in str(line) for line in models.notes())
    assert any("ensembles" in str(line) for line in models.notes())
    assert any("settings tried on 1 of 1" in str(line) for line in models.notes())
    assert not any("settings tried" in str(line) for line in models.notes(searched=False))
    assert set(models.labels) >= {"train", "test", "new_train", "new_test"}
    models.check([])
    assert "training examples right" not in capsys.readouterr().out, "it knows some classes only"


def test_the_old_models_training_accuracy_is_told(begun, capsys):
    models = begun("3")
    models.train()
    models.check([])
    label = models.study.task.train["label"]
    right = np.mean([old.predictions("train").prediction == label for old in models.olds])
    told = f"has {right:.1%} of the training examples right"
    assert told in capsys.readouterr().out and any(told in str(note) for note in models.notes())
    models.olds[0] = SimpleNamespace(recalled=True)  # results/ keep no answers on them
    assert models.right_on_train() is None


def test_shares_of_the_way_to_the_ensemble(begun):
    models = begun("main")
    nfr = {"new model": 0.10, "FD-LM": 0.08, "ensemble of 2": 0.05}
    rows = [SimpleNamespace(method=name, nfr=(value, 0.0)) for name, value in nfr.items()]
    compared = [Compared(name, [], [], models=1 + name.startswith("ensemble")) for name in nfr]
    (line,) = models.shares(compared, rows)
    assert line.startswith("FD-LM ") and line.endswith(
        "NFR 8.00%, 40% of the way to the ensemble of 2"
    )
    rows[2].nfr = (0.11, 0.0)
    assert "–" in models.shares(compared, rows)[0], "an ensemble that flips more is no goal"


def test_figures_are_those_of_the_tables_paper(begun, monkeypatch):
    asked = []
    for table in ("main", "4", "mrpc"):
        models = begun(table)
        monkeypatch.setattr(models.study, "figures", lambda *one, **task: asked.append(one) or {})
        models.figures()
    assert asked == [("pct", "2a"), ("pct", "2b"), ("pct", "4"), ("bcwi", "architecture")]
