"""Which runs belong to a task and a scale, what happens where some are missing, and labels."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tiny

from compatkit.experiments.models import recipes, trainings
from compatkit.experiments.models.recipes import Recipe
from compatkit.experiments.running.published import PublishedRun, publish
from compatkit.experiments.running.runs import Run, run_once
from compatkit.experiments.studies import untreated_runs as module
from compatkit.experiments.studies.study import Study
from compatkit.experiments.studies.untreated_runs import Labelled, UntreatedRuns, grouped
from compatkit.predictions import Predictions

OLD, NEW = (replace(tiny.RECIPE, layers=layers).identity() for layers in (1, 2))
LINEAR = Recipe("linear").identity()


def kept(home, recipe, seed, task=None, code=0, **changed):
    """A finished run that nobody trained; `code` stands for a state of the code."""
    task = task or tiny.task()

    def compute(folder):
        for split in ("selection", "test"):
            rows = getattr(task, split)
            logits = np.random.default_rng([code, seed or 0]).normal(size=(len(rows), 3))
            answers = Predictions(rows["id"], rows["label"], logits=logits, classes=task.classes)
            answers.save(folder / f"predictions-{split}.parquet")
        return {}

    configuration = {
        "kind": "fine_tune",
        "data": task.fingerprint[:16],
        "recipe": recipe,
        "seed": seed,
        "treatment": None,
        "parents": [],
    }
    return run_once(configuration | changed, compute, home)


def untreated(home, **changed):
    given = {
        "task": "tiny",
        "scale": "mini",
        "seeds": 2,
        "table": "main",
        "upgrade": "auto",
        "max_steps": -1,
        "from_results": False,
        "keep_results": False,
    }
    return UntreatedRuns(tiny.task(), SimpleNamespace(**(given | changed)), home)


def seeds_of(side):
    return side and [run.configuration["seed"] for run in side]


def test_runs_of_another_repetition_are_another_upgrades(tmp_path, monkeypatch):
    for number in (0, 1):
        for recipe, seed in ((OLD, 0), (OLD, 1), (NEW, 1000), (NEW, 1001)):
            kept(tmp_path, recipe, seed, **({"replicate": number} if number else {}))
    for number in (0, 1):
        monkeypatch.setenv("COMPATKIT_REPLICATE", str(number))
        found = untreated(tmp_path).found
        assert len(found) == 4
        assert {run.configuration.get("replicate", 0) for run in found} == {number}
    monkeypatch.setenv("COMPATKIT_REPLICATE", "2")
    here = untreated(tmp_path)
    assert here.found == []
    with pytest.raises(
        FileNotFoundError, match="or COMPATKIT_REPLICATE=0 .* COMPATKIT_REPLICATE=1"
    ):
        here.upgrades(SimpleNamespace(embedded=False, scale="mini"))


@pytest.fixture
def complete(tmp_path):
    """Both sides of upgrade a, with a third new model, and a linear model."""
    for recipe, seeds in ((OLD, (0, 1)), (NEW, (1000, 1001, 1002)), (LINEAR, (None,))):
        for seed in seeds:
            kept(tmp_path, recipe, seed)
    return tmp_path


def test_both_sides_are_found_and_a_linear_model_serves_all_seeds(complete):
    here = untreated(complete)
    assert list(map(seeds_of, here.sides("mini", "a"))) == [[0, 1], [1000, 1001, 1002]]
    assert list(map(seeds_of, here.sides("mini", "b"))) == [[None, None], [1000, 1001, 1002]]
    assert here.exist("mini") and not here.exist("paper")


def test_todays_recipe_comes_before_a_newer_and_larger_group(complete, monkeypatch):
    wide = [replace(tiny.RECIPE, layers=layers, width=16).identity() for layers in (1, 2)]
    for recipe, seeds in zip(wide, ((0, 1, 2), (1000, 1001, 1002, 1003))):
        for seed in seeds:
            kept(complete, recipe, seed)
    here = untreated(complete)
    found = here.sides("mini", "a")
    assert [side[0].configuration["recipe"] for side in found] == wide
    mine = tuple(replace(tiny.RECIPE, layers=layers) for layers in (1, 2))
    monkeypatch.setattr(module, "upgrade_recipes", lambda *asked, **more: mine)
    found = here.sides("mini", "a")
    assert [side[0].configuration["recipe"] for side in found] == [OLD, NEW]


def test_a_side_that_lacks_a_seed_is_none(complete):
    here = untreated(complete, seeds=3)
    olds, news = here.sides("mini", "a")
    assert olds is None and seeds_of(news) == [1000, 1001, 1002]
    assert untreated(complete, seeds=4).sides("mini", "a") == (None, None)


def test_other_data_treatments_steps_and_scales_are_not_taken(tmp_path):
    for seed in (0, 1):
        kept(tmp_path, OLD, seed, task=tiny.task(40))
        kept(tmp_path, OLD, seed, treatment={"name": "distillation"})
        kept(tmp_path, OLD | {"max_steps": 2}, seed)
        kept(tmp_path, OLD | {"name": "google-bert/bert-base-uncased"}, seed)
    here = untreated(tmp_path)
    assert here.sides("mini", "a")[0] is None
    assert here.sides("paper", "a")[0][0].configuration["recipe"]["name"].startswith("google")
    stopped = untreated(tmp_path, max_steps=2).sides("mini", "a")[0]
    assert stopped[0].configuration["recipe"]["max_steps"] == 2


def test_the_most_complete_group_comes_first_and_then_the_newest():
    def made_up(seed, day, **recipe):
        configuration = {"recipe": {"model": "small"} | recipe, "seed": seed}
        return SimpleNamespace(configuration=configuration, code="", record={"started": day})

    older, newer, whole = ([made_up(0, "1", width=1)], [made_up(0, "2", width=2)], [])
    whole = [made_up(seed, "0", width=3) for seed in (0, 1)]
    found = grouped([*older, *newer, *whole])
    assert [group.recipe["width"] for group in found] == [3, 2, 1]
    twice = made_up(0, "9", width=3)
    assert grouped([*whole, twice])[0].runs[0] is whole[0]  # the first stays


def test_runs_of_two_states_of_the_code_are_not_mixed():
    def made_up(seed, code):
        configuration = {"recipe": {"model": "small"}, "seed": seed}
        return SimpleNamespace(configuration=configuration, code=code, record={"started": "1"})

    groups = grouped([made_up(0, "before"), made_up(1, "after")])
    assert len(groups) == 2 and all(group.olds(2) is None for group in groups)


def test_published_runs_come_first_and_get_the_tasks_labels(complete, tmp_path, monkeypatch):
    here = untreated(complete, from_results=True)
    ours = here.sides("mini", "a")[0][0]
    monkeypatch.setenv("COMPATKIT_RESULTS", str(tmp_path / "results"))
    (tmp_path / "results").mkdir()
    publish(ours, logits=True, study="example")
    theirs = untreated(complete, from_results=True).sides("mini", "a")[0][0]
    assert (theirs.id, theirs.folder) == (ours.id, tmp_path / "results" / "example")
    assert theirs.predictions("test").label is None
    labelled = Labelled(theirs, here.labels).predictions("test")
    assert np.array_equal(labelled.label, ours.predictions("test").label)
    with pytest.raises(ValueError, match="test-"):
        Labelled(theirs, {"test": {}}).predictions("test")


def test_published_runs_of_several_states_of_the_code_are_one_group(complete):
    olds = untreated(complete).sides("mini", "a")[0]
    shelf = [PublishedRun(run.folder, run.record | {"code": str(n)}) for n, run in enumerate(olds)]
    assert [group.olds(2) for group in grouped(shelf)][0] == shelf
    local = [Run(run.folder, run.record) for run in shelf]
    assert all(group.olds(2) is None for group in grouped(local))


def test_without_runs_the_command_that_trains_them_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="gated_fusion"):
        untreated(tmp_path, scale="auto").begin()
    kept(tmp_path, LINEAR, None)
    here = untreated(tmp_path, scale="mini")
    for seed in (1000, 1001):
        kept(tmp_path, NEW, seed)
    here = untreated(tmp_path, scale="mini", upgrade="a")  # its runs of upgrade b are complete
    study = Study("decisions", here.chosen, here.begin())
    with pytest.raises(FileNotFoundError, match="tiny, upgrade a, at mini"):
        here.upgrades(study)


def test_auto_takes_the_largest_scale_whose_runs_exist(complete, monkeypatch):
    experiment = untreated(complete, scale="auto").begin()
    assert (experiment.scale, experiment.reason) == ("mini", "runs exist")
    for seed, recipe in ((0, OLD), (1, OLD), (1000, NEW), (1001, NEW)):
        kept(complete, recipe | {"name": "google/model"}, seed)
    assert untreated(complete, scale="auto").begin().scale == "paper"
    monkeypatch.setenv("IN_TEST", "1")
    assert untreated(complete, scale="auto").begin().scale == "smoke"
    with pytest.raises(ValueError, match="smoke scale"):
        untreated(complete, scale="smoke", keep_results=True).begin()


def test_upgrades_of_found_runs_train_nothing(complete, monkeypatch, capsys):
    monkeypatch.setattr(trainings, "fine_tune", None)  # calling it would fail
    here = untreated(complete)
    study = Study("decisions", here.chosen, here.begin())
    found = here.upgrades(study)
    assert [*found] == ["a", "b"] and not study.runs
    assert (len(found["a"].olds), len(found["a"].news), found["a"].new_recipe.layers) == (2, 3, 2)
    assert (
        found["b"].old_recipe.model == "linear" and found["b"].olds[0].id == found["b"].olds[1].id
    )
    assert found["a"].old_and_new()[1].seeds == 2
    shown = capsys.readouterr().out
    assert shown.count("scale mini: runs exist") == 1
    assert "upgrade b: nothing to train" in shown


def test_at_smoke_the_side_that_is_missing_is_trained(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path))
    old, new = tiny.RECIPE, replace(tiny.RECIPE, layers=2)
    monkeypatch.setattr(module, "upgrade_recipes", lambda *names, **options: (old, new))
    for seed in (0, 1):
        kept(tmp_path, OLD, seed, task=recipes.at_scale(tiny.task(), "smoke"))
    here = untreated(tmp_path, scale="smoke", seeds=1)
    study = Study("decisions", here.chosen, here.begin())
    upgrade = here.upgrades(study)["a"]
    trained = [run.configuration["seed"] for run in study.runs.values()]
    assert trained == [1000] and "upgrade a: 1 new" in capsys.readouterr().out
    assert [run.run.configuration["seed"] for run in upgrade.news] == [1000]
    assert (upgrade.news[0].run.folder / "epoch-1.safetensors").is_file()  # for other notebooks
