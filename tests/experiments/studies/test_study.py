"""The study: commands from the notebooks' own defaults, plans, runs, notes, and what is kept."""

import itertools
import json
import math
import re
import shlex
import shutil
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
import tiny

from compatkit.experiments.models.recipes import Experiment, Recipe
from compatkit.experiments.reporting.result_tables import ResultTable, Row
from compatkit.experiments.running.parameters import check_parameters
from compatkit.experiments.running.runs import run_once
from compatkit.experiments.studies import study as module
from compatkit.experiments.studies.study import (
    Planned,
    Study,
    bytes_of_runs,
    command,
    common_parameters,
    count,
    defaults_of,
    known_task,
    labels_of,
    natural,
    number_from,
    table_lines,
    text_task,
    verdict_of,
)


@pytest.mark.parametrize("value", [0, -1, 2.5, "3", True, None])
def test_a_count_is_a_whole_number_above_0(value):
    with pytest.raises(ValueError, match="whole number"):
        count(value)


def test_unknown_tasks_are_refused_with_the_list():
    with pytest.raises(ValueError, match="mrpc"):
        known_task("mrcp")
    assert known_task("my/examples.parquet")


def test_common_parameters_through_the_check():
    values = dict(
        task="pydoc",
        scale="auto",
        seeds=3,
        table=3,
        data_dir="",
        encoder="",
        max_steps=-1,
        keep_results=False,
    )
    values["from_results"] = False
    before = {}
    assert check_parameters(values, before, common_parameters(["main", "3"])) == SimpleNamespace(
        **(values | {"table": "3"})
    )
    with pytest.raises(ValueError, match="main, 3|'main', '3'"):
        check_parameters(values | {"table": 7}, before, common_parameters(["main", "3"]))


def test_image_tasks_are_known_but_not_texts(tmp_path):
    for image in ("digits", "fashion_mnist", str(tmp_path)):
        assert known_task(image) == image
        with pytest.raises(ValueError, match="about texts"):
            text_task(image)
    for text in ("pydoc", "mrpc", "mine.csv"):
        assert text_task(text) == text
    with pytest.raises(ValueError, match="valid are pydoc"):
        text_task("mrcp")


@pytest.mark.parametrize("value", [-1, True, 1.5, "2"])
def test_a_natural_number_is_whole_and_at_least_0(value):
    with pytest.raises(ValueError, match="a whole number, at least 0"):
        natural(value)
    assert natural(0) == 0


@pytest.mark.parametrize("value", [-0.1, 1.1, math.inf, math.nan, True, "0.5"])
def test_a_number_between_limits(value):
    with pytest.raises(ValueError, match="a number"):
        number_from(0, 1)(value)
    assert number_from(0, 1)(1) == 1 and number_from(0)(7.5) == 7.5
    with pytest.raises(ValueError):
        number_from(0)(math.inf)


# --- the command ----------------------------------------------------------------------------------


def test_a_command_names_what_differs_in_the_order_of_the_cell():
    defaults = {"task": "pydoc", "seeds": 3, "step": 0.1, "data_dir": ""}
    chosen = SimpleNamespace(seeds=5, task="a file.csv", data_dir="/somewhere", step=0.1)
    made = command("bcwi", chosen, defaults)
    assert shlex.split(made)[2:] == [
        "-p",
        "task=a file.csv".split("=")[0],
        "a file.csv",
        "-p",
        "seeds",
        "5",
    ]
    assert "somewhere" not in made and made.startswith("papermill nbs/bcwi.ipynb ")
    assert command("bcwi", SimpleNamespace(**defaults), defaults) == "papermill nbs/bcwi.ipynb"


def test_without_known_defaults_a_command_names_every_parameter():
    assert command("mine", SimpleNamespace(task="pydoc", keep_results=True), {}) == (
        "papermill nbs/mine.ipynb -p task pydoc"
    )


def test_defaults_are_read_from_the_tagged_cell(tmp_path):
    (tmp_path / "nbs").mkdir()
    cells = [
        {"cell_type": "code", "metadata": {}, "source": "task = 'other'"},
        {
            "cell_type": "code",
            "metadata": {"tags": ["parameters"]},
            "source": ["seeds = 3  # pairs\n", "size = -1\n"],
        },
    ]
    (tmp_path / "nbs" / "mine.ipynb").write_text(json.dumps({"cells": cells}))
    assert defaults_of("mine", tmp_path) == {"seeds": 3, "size": -1}
    assert defaults_of("another", tmp_path) == {}


# --- the study ------------------------------------------------------------------------------------


def a_study(scale="smoke", **changed):
    given = {
        "task": "tiny",
        "seeds": 2,
        "table": "main",
        "max_steps": -1,
        "from_results": False,
        "keep_results": False,
    }
    chosen = SimpleNamespace(**given | changed)
    return Study("mine", chosen, Experiment(tiny.task(), scale, "asked for", chosen.max_steps))


@pytest.fixture(scope="module")
def runs_of_a_study(tmp_path_factory):
    """Where the runs of the tests' study are: trained once."""
    return tmp_path_factory.mktemp("study")


@pytest.fixture
def trained(runs_of_a_study, monkeypatch):
    """A study with one upgrade of two seeds."""
    monkeypatch.setenv("COMPATKIT_HOME", str(runs_of_a_study))
    study = a_study()
    with study.running():
        upgrade = study.upgrade("a", tiny.RECIPE, replace(tiny.RECIPE, width=48), members=3)
    return study, upgrade


def test_an_upgrade_pairs_old_seeds_with_new_ones(trained):
    study, upgrade = trained
    assert [run.configuration["seed"] for run in upgrade.olds] == [0, 1]
    assert [run.configuration["seed"] for run in upgrade.news] == [1000, 1001, 1002]
    assert set(study.runs) == {run.id for run in (*upgrade.olds, *upgrade.news)}
    assert upgrade.olds[0].predictions("train").logits is not None, "a treatment may need them"


def test_a_search_tries_on_all_seeds_and_counts_its_runs(trained):
    study, upgrade = trained
    asked = []

    def train(setting, seed):
        asked.append((setting, seed))
        return upgrade.news[setting + seed]

    searched = study.search(upgrade, [0, 1], train)
    assert asked == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(searched.runs) == 2 and {run.id for run in searched.runs} <= set(study.runs)


def test_titles_notes_and_commands(trained):
    study, upgrade = trained
    table = study.table("upgrade a", upgrade.old_and_new(), study.notes(upgrade, "its own"))
    assert table.title == "tiny, upgrade a: wiring only", "tiny is no embedded task"
    assert table.notes[-1] == "its own" and "32 training" in str(table.notes[0])
    assert "width 32" in str(table.notes[1]) and "width 48" in str(table.notes[1])
    assert table.command.startswith("papermill nbs/mine.ipynb") and "-p seeds 2" in table.command


def test_a_method_that_chooses_otherwise_leaves_out_how_search_does(trained):
    study, upgrade = trained
    searched, other = (
        study.notes(upgrade, "its own"),
        study.notes(upgrade, "its own", searched=False),
    )
    left_out = [line for line in searched if line not in other]
    assert len(left_out) == 1 and str(left_out[0]).startswith("settings tried on")
    assert str(other[1]).startswith("old: ") and other[-1] == "its own"


def test_a_paper_is_quoted_at_its_own_scale_only():
    about = {"task": "mrpc", "upgrade": "bert-base to bert-large"}
    assert a_study("mini").figures("gated_fusion", 1, **about) == {}
    assert a_study("paper", max_steps=2).figures("gated_fusion", 1, **about) == {}
    assert a_study("paper").figures("gated_fusion", 1, **about)


def test_a_smoke_run_that_shows_nothing_stops(trained, monkeypatch, capsys):
    study, upgrade = trained
    study.check(upgrade, upgrade.paired)
    assert "both models competent" in capsys.readouterr().out
    monkeypatch.setattr(Study, "embedded", True)
    monkeypatch.setattr(Study, "wiring", False)
    with pytest.raises(RuntimeError, match="a treatment without any effect$"):
        study.check(upgrade, upgrade.paired)  # the "treated" models are the untreated ones
    counts = module.FlipCounts(1, 0, 0, 1, 0)
    with pytest.raises(RuntimeError, match="no competent models, no negative flips$"):
        module.refuse_an_empty_smoke_run(False, counts, True)
    module.refuse_an_empty_smoke_run(True, module.FlipCounts(1, 1, 0, 0, 0), True)


def test_the_plan_says_counts_and_leaves_out_what_is_none(capsys, monkeypatch):
    monkeypatch.setattr(module, "seconds_per_epoch", lambda recipe, task: 30.0)
    study = a_study()
    study.plan("upgrade a", Planned("old", 2, Recipe(epochs=3)), Planned("distilled", 0, Recipe()))
    out, error = capsys.readouterr()
    assert "table main; tiny; 2 seed(s)" in out and "upgrade a: 2 old\n" in out
    assert "about 3 min " in error and " min " not in out, "no timing in saved outputs"
    study.plan("upgrade b", Planned("old", 0), Planned("new", 0))
    assert capsys.readouterr() == ("upgrade b: nothing to train, the runs are there\n", "")
    assert Planned("linear", 5, Recipe("linear")).seconds(tiny.task()) == 0
    assert Planned("last epochs", 4, Recipe(epochs=3), epochs=1).seconds(tiny.task()) == 120


def test_a_smoke_run_that_trains_what_was_not_planned_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path))
    monkeypatch.setattr(module, "seconds_per_epoch", lambda recipe, task: 0.0)
    study, other = a_study(), replace(tiny.RECIPE, width=64)
    study.plan("upgrade a", Planned("old", 2, tiny.RECIPE), Planned("answers", 9, other, 0))
    with study.running():
        study.old_models(tiny.RECIPE)
    with pytest.raises(RuntimeError, match='^the plan .* 0 planned, 1 trained: .*"width": 64'):
        with study.running():
            study.train(other, 7)
    assert len(study.runs) == 3, "the runs are there"
    with pytest.raises(ZeroDivisionError), study.running():
        1 / 0  # what went wrong inside is not hidden


def test_at_paper_scale_weights_need_room_and_what_is_there_does_not(trained, monkeypatch):
    study, _ = trained
    there = bytes_of_runs([(tiny.RECIPE, tiny.task())])
    assert there > 0 and bytes_of_runs([(replace(tiny.RECIPE, epochs=9), tiny.task())]) == 0
    elsewhere = replace(tiny.task(), title="another task")
    assert bytes_of_runs([(tiny.RECIPE, elsewhere)]) == 0, "another table's runs are no help"
    run = next(iter(study.runs.values()))
    beside = run.folder.parent / "distributions" / f"{run.id}-k64"
    beside.mkdir(parents=True)
    try:
        (beside / "shard").write_bytes(b"0" * 1000)
        assert bytes_of_runs([(tiny.RECIPE, tiny.task())]) == there + 1000
        epoch = run_once({"kind": "epoch", "parents": [run.id], "epoch": 1}, lambda folder: {})
        assert bytes_of_runs([(tiny.RECIPE, tiny.task())]) > there + 1000, "its epochs' answers"
        shutil.rmtree(epoch.folder)
    finally:
        shutil.rmtree(beside.parent)
    few, kept = (Planned("new", 50, tiny.RECIPE, kept=count) for count in (0, 1))
    trained_once = kept.training(tiny.task())
    weights = 4 * trained_once.cost.parameters
    assert trained_once.disk == few.training(tiny.task()).disk + 50 * weights > there
    free = SimpleNamespace(free=trained_once.disk - there)
    monkeypatch.setattr("shutil.disk_usage", lambda place: free)
    a_study("paper").plan("upgrade a", kept)
    free.free -= 1
    with pytest.raises(OSError, match="COMPATKIT_HOME"):
        a_study("paper").plan("upgrade a", kept)
    free.free += 1
    with pytest.raises(OSError, match="upgrade a leaves"):
        a_study("paper").plan("upgrade a", kept._replace(task=elsewhere))


def test_an_old_model_that_answers_at_every_step_needs_memory_too():
    alone, asked = (
        Planned("treated", 1, tiny.RECIPE, beside=old).training(tiny.task()).cost
        for old in (None, tiny.RECIPE)
    )
    assert asked.step_bytes == alone.step_bytes + 4 * alone.parameters
    assert asked.step_flops == alone.step_flops + alone.forward_flops


def test_what_is_kept_of_a_study(trained, monkeypatch):
    study, upgrade = trained
    published, kept = {}, []

    def publish_study(name, runs):
        published.update({one.run.id: one for one in runs}, name=name)

    monkeypatch.setattr(module, "publish_study", publish_study)
    monkeypatch.setattr(
        module, "keep_table", lambda table, name, pictures: kept.append((name, pictures))
    )
    table = study.table("upgrade a", upgrade.old_and_new())
    study.keep(table, "a", "main")
    assert not kept and not published, "only with keep_results"
    study.chosen.keep_results = True
    study.add(upgrade.news[0], logits=True, splits=("selection", "test", "test-alone"))
    study.keep(table, "a", "", "main", picture="a picture")
    assert kept == [("mine-tiny-smoke-a-main", {"": "a picture"})]
    assert published.pop("name") == "mine-tiny"
    assert published[upgrade.news[0].id].splits == ("selection", "test", "test-alone")
    assert len(published) == 5 and all(one.logits for one in published.values())


def test_labels_come_by_split_and_id():
    labels = labels_of(tiny.task())
    assert set(labels) == {"train", "selection", "test"}
    assert labels["test"]["test-0"] == tiny.task().test["label"][0]


# --- while one waits --------------------------------------------------------------------------


def test_a_recipe_is_timed_once_on_a_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path))
    timed = []
    monkeypatch.setattr(
        module, "_seconds_per_step", lambda recipe, task: timed.append(recipe) or 2.0
    )
    batches = math.ceil(len(tiny.task().train) / tiny.RECIPE.batch_size)
    assert module.seconds_per_epoch(tiny.RECIPE, tiny.task()) == 2.0 * batches
    assert module.seconds_per_epoch(tiny.RECIPE, tiny.task()) == 2.0 * batches
    wider = replace(tiny.RECIPE, width=48)
    module.seconds_per_epoch(wider, tiny.task())
    assert timed == [tiny.RECIPE, wider]
    (tmp_path / "timings.json").write_text("{broken")
    module.seconds_per_epoch(wider, tiny.task())
    assert len(timed) == 3, "a broken file is written anew"


def test_batches_of_all_lengths_are_timed_and_their_first_step_is_left_out(monkeypatch):
    task, timed = tiny.task(train=90), []
    recipe = replace(tiny.RECIPE, batch_size=4)

    def steps(model, rows, clock, **arguments):
        timed.append((rows.lengths, arguments["max_steps"]))
        each = float(len(timed))  # seconds: 1, 2, 3
        clock.ended = [100.0 + each * step for step in range(arguments["max_steps"])]

    monkeypatch.setattr(module, "fine_tune", steps)
    assert module._seconds_per_step(recipe, task) == 2.0
    lengths = sorted(module.encoded(recipe, task, tiny.tokenizer(), "train").lengths)
    for (found, steps_each), place in zip(timed, (45, 15, 75), strict=True):
        assert len(found) == steps_each * 4 and set(found) == set(lengths[place - 2 : place + 2])
    monkeypatch.setattr(module, "_ENOUGH_SECONDS", 0.0)
    assert module._seconds_per_step(recipe, task) == 4.0, "one length is always timed"


@pytest.mark.parametrize("recipe, task", [(tiny.RECIPE, tiny.task()), (tiny.IMAGE_RECIPE, None)])
def test_a_step_of_texts_and_of_images_takes_some_time(recipe, task):
    assert module._seconds_per_step(recipe, task or tiny.image_task()) > 0


def test_nothing_is_timed_where_nothing_may_be_trained(monkeypatch, capsys):
    monkeypatch.setenv("COMPATKIT_COMPUTE", "0")
    monkeypatch.setattr(module, "seconds_per_epoch", None)  # would fail
    a_study().plan("upgrade a", Planned("old", 2, Recipe(epochs=3)))
    assert capsys.readouterr().err == ""


def told_run(seconds, ago=0, there=True):
    """What a bar asks of a run that began so many days ago and took so long."""
    started = (datetime.now(timezone.utc) - timedelta(days=ago)).isoformat(timespec="seconds")
    record = {"started": started, "seconds": seconds}
    return SimpleNamespace(id=f"run {next(_NUMBERS)}", there=there, record=record)


_NUMBERS = itertools.count()


def test_the_bar_tells_the_time_left_from_what_was_trained(monkeypatch):
    clock = iter([0.0, 20.1, 25.1, 85.1, 205.1, 205.1])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    with module.ModelBar(6, seconds=720) as bar:
        assert bar.left().startswith("about 12 min left, until ")
        bar.update(told_run(60, ago=1))  # found, and slow to read: the estimate stands
        bar.update(told_run(5))  # five seconds where two minutes are expected: it still stands
        assert bar.left().startswith("about 8 min left")
        bar.update(told_run(60))
        assert bar.left().startswith("about 3 min left")
        bar.update(told_run(120))
        assert bar.left().startswith("about 3 min left")
    assert module.ModelBar(0).left() == ""


def test_the_bar_counts_what_other_workers_train_when_it_is_there(monkeypatch):
    clock = iter([0.0, 1.0, 61.0, 121.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    other = told_run(60, there=False)
    with module.ModelBar(10) as bar:
        bar.update(other)
        assert bar.bar.n == 0 and bar.left() == ""
        other.there = True
        bar.update(told_run(60))
        assert bar.bar.n == 2 and bar.left().startswith("about 4 min left"), "two a minute"
        bar.update(other)  # as two upgrades ask for one adapter
        bar.look()
        assert bar.bar.n == 2


def test_a_time_that_is_not_today_names_its_day():
    with module.ModelBar(2, seconds=2 * 86400) as bar:
        assert re.match(r"about 48 hours left, until \d\d:\d\d on \d\d \w+$", bar.left())
    assert [module.lasting(one) for one in (61, 7200)] == ["about 2 min", "about 2 hours"]


def test_seeds_are_done_one_after_another_across_all_methods(trained, tmp_path, monkeypatch):
    study, upgrade = trained
    page = tmp_path / "page.html"
    monkeypatch.setenv("COMPATKIT_PAGE", str(page))
    titles = []
    with study.running():
        for number in study.seed_by_seed():
            assert study.seeds == number and study.complete == (number == 2)
            again = study.upgrade("a", upgrade.old_recipe, upgrade.new_recipe)
            assert [run.id for run in again.olds] == [run.id for run in upgrade.olds[:number]]
            table = study.table("upgrade a", again.old_and_new())
            study.so_far(table, study.picture(again, table))
            titles.append(page.read_text())
    assert study.seeds == 2 and titles[0] == titles[1], "the last table is the notebook's own"
    assert "<title>tiny, upgrade a: wiring only, 1 of 2 seeds</title>" in titles[0]
    assert "<svg" in titles[0] and "too few to decide anything" in titles[0]


def test_workers_of_one_table_take_all_seeds_in_one_round(trained, monkeypatch):
    monkeypatch.setenv("COMPATKIT_SHARED", "1")
    study, _ = trained
    assert list(study.seed_by_seed()) == [2] and study.seeds == 2


def test_running_may_be_entered_again_inside(trained):
    study, _ = trained
    with study.running():
        bar = study._bar
        with study.running():
            assert study._bar is bar
        assert study._bar is bar
    assert study._bar is None


def kept_row(method, accuracy, nfr, difference=None):
    pairs = {"accuracy": (accuracy, 0.01), "nfr": (nfr, 0.01), "pfr": (0.1, 0.01)}
    return Row(method, "", 3, **pairs, as_old=(0.5, 0.0), difference=difference, new=("r1",))


def kept_table():
    rows = (
        kept_row("old model", 0.7, 0.0),
        kept_row("new model", 0.8, 0.06),
        kept_row("gated fusion", 0.81, 0.02, (0.01, -0.005, 0.02)),
    )
    return ResultTable("tiny, upgrade a", rows)


def test_a_table_in_one_sentence_and_a_line_a_row():
    sentence = verdict_of(kept_table())
    assert "gated fusion has the lowest negative flip rate" in sentence
    assert "2.00% instead of 6.00% untreated" in sentence and "After" not in sentence
    untreated = replace(kept_table(), rows=kept_table().rows[:2])
    assert "no treatment lowers the negative flip rate" in verdict_of(untreated)
    assert "at a ROUGE-1 of" in verdict_of(replace(kept_table(), quantity="ROUGE-1"))
    assert verdict_of(replace(kept_table(), unjudged="at chance")) == "No verdict: at chance."
    lines = table_lines(kept_table()).splitlines()
    assert len(lines) == 3 and lines[2].split() == "gated fusion accuracy 81.00% NFR 2.00%".split()


def test_the_kept_table_is_shown_before_anything_is_trained(tmp_path, monkeypatch, capsys):
    record = {"started": "2026-11-21T13:15:29+00:00"}
    record["hardware"] = {"cores": 2, "processor": "AMD EPYC", "gpu": None}
    monkeypatch.setenv("COMPATKIT_RESULTS", str(tmp_path))
    monkeypatch.setattr(module, "kept_tables", lambda: {"mine-tiny-smoke-a-1": kept_table()})
    monkeypatch.setattr(module, "published_runs", lambda: {"r1": SimpleNamespace(record=record)})
    study = a_study()
    study.show_kept("a-main", "a-1")
    out, error = capsys.readouterr()
    assert "made until 2026-11-21 on 2 cores (AMD EPYC); your own models follow" in out
    assert "gated fusion" in error
    study.show_kept("b-2")
    a_study(from_results=True).show_kept("a-1")
    assert "made until" not in capsys.readouterr().out


def test_what_was_made_from_another_machines_models_is_not_kept(monkeypatch):
    def run(recalled, share):
        return SimpleNamespace(recalled=recalled, differs_here=lambda: share)

    published = []
    monkeypatch.setattr(module, "publish_study", lambda name, runs: published.append(name))
    study = a_study()
    study.runs |= {"plain": run(True, 0.0), "own": run(False, 0.0)}
    study.publish()
    assert len(published) == 1
    study.runs["mixed"] = run(True, 0.071)
    with pytest.raises(ValueError, match="mixed', and answer up to 7.1% of a split") as told:
        study.publish()
    assert "COMPATKIT_REPLICATE=1" in str(told.value) and len(published) == 1


def test_a_command_says_that_its_models_are_made_again(monkeypatch):
    plain = a_study().command()
    monkeypatch.setenv("COMPATKIT_REPLICATE", "2")
    assert a_study().command() == f"COMPATKIT_REPLICATE=2 {plain}"


def test_a_table_says_which_kept_models_were_computed_again_and_how_far_they_differ(monkeypatch):
    def run(recalled, share):
        return SimpleNamespace(recalled=recalled, differs_here=lambda: share)

    def told(*runs):
        return Study.recalled_notes(SimpleNamespace(runs=dict(enumerate(runs))))

    assert told(run(False, 0.0)) == []
    (plain,) = told(run(False, 0.0), run(True, 0.0))
    assert plain == "1 of 2 runs were read from results/, with logits in half precision"
    (more,) = told(run(True, 0.0), run(True, 0.038), run(True, 0.02))
    assert more.startswith("3 of 3 runs") and "; 2 of them" in more and "up to 3.8%" in more
    monkeypatch.setenv("COMPATKIT_REPLICATE", "1")
    again, same = told(run(False, 0.0), run(True, 0.0))
    assert again.startswith("repetition 1: all models") and same == plain
    assert told(run(False, 0.0)) == [again]
