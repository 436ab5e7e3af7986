"""The list of tables: whole, in step with the notebooks, and honest about what was made."""

import csv
import json
from datetime import datetime, timedelta, timezone
from importlib import import_module
from pathlib import Path

import nbformat
import pytest

from compatkit.experiments.planning import catalogue
from compatkit.experiments.planning.catalogue import (
    CATALOGUE,
    Job,
    duration,
    entries,
    jobs,
    kept_names,
    known_tasks,
    source_fingerprint,
    state_lines,
    survey,
)
from compatkit.experiments.reporting.result_tables import ResultTable, Row, keep_table
from compatkit.experiments.running.papermill_engine import valid_values
from compatkit.experiments.running.runs import Run, run_id, run_once
from compatkit.experiments.running.store import extend_study

ROOT = Path(__file__).resolve().parents[3]
NOTEBOOKS = sorted({entry.notebook for entry in CATALOGUE})
GENERAL = {
    "muscle": {"main"},
    "ensembles": {"main"},
    "distillation": {"2a"},
}  # names that stand for other tables


def offered(notebook):
    """The values of `table` that a notebook's check of parameters allows."""
    read = nbformat.read(ROOT / "nbs" / f"{notebook}.ipynb", as_version=4)
    return set(valid_values(read, {})["table"])


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_every_value_of_table_is_listed_and_no_other(notebook):
    own = [entry for entry in CATALOGUE if entry.notebook == notebook and not entry.answers]
    listed = {entry.table for entry in own}
    assert listed == offered(notebook) - GENERAL.get(notebook, set())


def test_every_kept_table_is_of_a_job():
    listed = catalogue.jobs([], "mini")
    kept = catalogue._kept_tables(ROOT / "results")
    lost = [one.parts for one in kept if not any(catalogue._is_of(one, job) for job in listed)]
    assert kept and not lost


def test_models_of_a_kept_table_are_asked_for_by_its_name():
    job = catalogue.jobs(["decisions:main-bcwi"], "mini", ["banking77"])[0]
    assert job.parameters["models_of"] == "bcwi-banking77-mini-main"
    assert "-p models_of bcwi-banking77-mini-main" in job.command


def test_models_of_different_upgrades_are_different_tables():
    made = {letter: catalogue.jobs([f"decisions:main-muscle-{letter}"], "mini") for letter in "abc"}
    assert [job.task for job in made["a"]] == ["arithmetic", "piqa"]
    assert made["b"][1].parameters["models_of"] == "muscle-piqa-mini-b-main"
    parts = ("decisions", "piqa", "mini", "b", "main")
    kept = catalogue._Kept(parts, 3, 1.0, None, ())
    every = [job for group in made.values() for job in group]
    assert [job for job in every if catalogue._is_of(kept, job)] == [made["b"][1]]


def test_a_rule_is_the_job_of_the_table_whose_models_it_decides():
    listed = [job for job in catalogue.jobs([], "mini") if job.entry.notebook == "decisions"]
    for told, name in (
        ((), "distillation-cifar10-mini-2a"),
        (("4",), "distillation-cifar10-mini-4"),
        (("2b",), "distillation-cifar10-mini-2b"),
        (("resnet20",), "distillation-cifar10-mini-2a-resnet20"),
    ):
        kept = catalogue._Kept(("decisions", "cifar10", "mini", "main", *told), 5, 1.0, None, ())
        (job,) = [job for job in listed if catalogue._is_of(kept, job)]
        assert job.parameters["models_of"] == name


def test_names_are_unique_and_tasks_exist():
    names = [entry.name for entry in CATALOGUE]
    assert len(set(names)) == len(names)
    tasks = {
        task for entry in CATALOGUE for scale in catalogue.SCALES for task in entry.tasks(scale)
    }
    assert tasks <= set(known_tasks())


PRINTED = {  # (paper, table) of papers.csv → the entry that makes it, where the name is another
    ("gated_fusion", "5.5"): "gated_fusion:rates",
    ("pct", "2a"): "distillation:main",
    ("bcwi", "architecture"): "distillation:mrpc",
}
NOTEBOOK_OF = {"pct": "distillation"}  # else the paper's name


def test_what_the_papers_print_is_made_on_their_tasks():
    known = {entry.name: entry for entry in CATALOGUE}
    printed = {}
    for paper, table, task in paper_rows():
        name = PRINTED.get((paper, table), f"{NOTEBOOK_OF.get(paper, paper)}:{table}")
        name = "distillation:4" if (table, task) == ("architecture", "imagenet") else name
        printed.setdefault(name, set()).add(task)
    for name, tasks in printed.items():
        assert tasks <= set(known[name].paper_scale), name
    assert known["distillation:2b"].paper_scale == ("inaturalist",)
    assert known["muscle:figure5"].paper_scale == ("hellaswag",), "four choices"


def paper_rows():
    """(paper, table, task) of every printed figure."""
    text = (Path(catalogue.__file__).parents[1] / "reporting/papers.csv").read_text(
        encoding="utf-8"
    )
    return {(row["paper"], row["table"], row["task"]) for row in csv.DictReader(text.splitlines())}


def test_entries_by_name_and_by_notebook():
    assert [one.name for one in entries(["bcwi:cost", "gated_fusion:1"])] == [
        "gated_fusion:1",
        "bcwi:cost",
    ]
    assert {one.notebook for one in entries(["bcwi"])} == {"bcwi"} and len(entries()) == len(
        CATALOGUE
    )


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((["gated_fusion:9"],), "did you mean gated_fusion:"),
        ((["bwci"],), "bcwi"),
        (([], "tiny"), "there is no scale 'tiny'"),
        (([], "mini", ["mprc"]), "did you mean mrpc"),
        (([], "paper", ["fashion_mnist"]), "none .*fashion_mnist"),
        ((["decisions"], "paper"), "tasks there: none"),
    ],
)
def test_unknown_names_offer_the_nearest(arguments, words):
    with pytest.raises(ValueError, match=words):
        jobs(*arguments)


def test_a_named_table_takes_any_task():
    assert [str(job) for job in jobs(["gated_fusion:1"], "mini", ["clinc"])] == [
        "gated_fusion:1 clinc mini"
    ]


def test_a_job_is_another_when_anything_of_it_changes(monkeypatch):
    job = jobs(["bcwi:cost"], "smoke")[0]
    others = [
        *jobs(["bcwi:cost"], "smoke", seeds=2),
        *jobs(["bcwi:cost"], "smoke", keep=True),
        *jobs(["bcwi:soup"], "smoke"),
    ]
    assert len({run_id(one.configuration) for one in (job, *others)}) == 4
    before = run_id(job.configuration)
    monkeypatch.setattr(catalogue, "source_fingerprint", lambda notebook: "another")
    assert run_id(job.configuration) != before


def test_the_fingerprint_sees_code_and_no_words(monkeypatch, tmp_path):
    (tmp_path / "nbs").mkdir()
    (tmp_path / "settings.ini").write_text("[DEFAULT]\nlib_name = compatkit\n")

    def fingerprint(code, words):
        cells = [
            {"cell_type": "code", "source": [code]},
            {"cell_type": "markdown", "source": [words]},
        ]
        (tmp_path / "nbs" / "one.ipynb").write_text(json.dumps({"cells": cells}))
        source_fingerprint.cache_clear()
        return source_fingerprint("one")

    monkeypatch.chdir(tmp_path)
    try:
        assert fingerprint("1 + 1", "a") == fingerprint("1 + 1", "b") != fingerprint("1 + 2", "a")
        monkeypatch.chdir("/")
        source_fingerprint.cache_clear()
        with pytest.raises(FileNotFoundError, match="start this in the project's folder"):
            source_fingerprint("one")
    finally:
        source_fingerprint.cache_clear()


@pytest.fixture
def places(tmp_path):
    (tmp_path / "results").mkdir()
    return tmp_path / "runs", tmp_path / "results"


def words(wanted, places):
    return [one.word for one in survey(wanted, *places)]


def test_states(places):
    wanted = jobs(["bcwi:cost"], "mini")
    assert words(wanted, places) == ["not run"] * 3
    with pytest.raises(ZeroDivisionError):
        run_once(wanted[0].configuration, lambda folder: 1 / 0, places[0])
    assert words(wanted, places)[0] == "failed"
    run_once(wanted[0].configuration, lambda folder: {}, places[0])
    run_once(wanted[1].configuration | {"source": "another"}, lambda folder: {}, places[0])
    table = ResultTable("made-up", (Row("old model", seeds=3),))
    keep_table(table, f"bcwi-{wanted[2].task}-mini-cost", results=places[1])
    assert words(wanted, places) == ["done", "older code", "kept"]
    more = [Job(one.entry, one.task, one.scale, seeds=5) for one in wanted]
    assert words(more, places) == ["not run"] * 3  # three seeds are not five


def test_an_edited_record_is_named(places):
    job = jobs(["bcwi:cost"], "mini")[0]
    run = run_once(job.configuration, lambda folder: {}, places[0])
    record = json.loads((run.folder / "record.json").read_text())
    record["configuration"]["parameters"]["seeds"] = 9
    (run.folder / "record.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="was changed"):
        survey([job], *places)


def test_estimates_say_where_they_come_from(places):
    first, second, third = jobs(["bcwi:cost"], "mini")
    run_once(first.configuration, lambda folder: {}, places[0])
    behind = run_once({"kind": "example"}, lambda folder: {}, places[0])
    record = behind.record | {
        "seconds": 90.0,
        "hardware": {"processor": "another", "cores": 64, "memory_gib": 1, "gpu": "one"},
    }
    extend_study(places[1] / "bcwi", [record], [])
    table = ResultTable("made-up", (Row("old model", seeds=3, new=(behind.id,)),))
    keep_table(table, f"bcwi-{second.task}-mini-cost", results=places[1])
    found = survey([first, second, third], *places)
    assert [one.source for one in found] == [
        "measured",
        "its kept runs, another machine",
        "~ its notebook's other tables",
    ]
    assert found[1].seconds == 90 and 0 < found[2].seconds < 90


def test_the_list_adds_up_first_and_fits_a_terminal(places):
    states = survey(jobs(scale="mini"), *places)
    lines = state_lines(states)
    assert lines[0].startswith(f"{len(states)} jobs, {len(states)} to run")
    assert sum(" not run " in line for line in lines) == len(states)
    assert {one.job.entry.name for one in states} <= {line.split("  ")[0] for line in lines}
    assert max(map(len, state_lines(survey(jobs())))) <= 100


@pytest.mark.parametrize(
    "seconds, text",
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h"), (172800, "2 d")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_a_name_of_the_list_means_all_that_is_kept_of_it():
    added = ["decisions-cifar10-mini-main", "decisions-massive_adddata-mini-main"]
    added += ["decisions-sst2-mini-a-main"]
    assert sorted(kept_names(["decisions:main"], ROOT / "results")) == added
    # names of kept tables are themselves, and what is meant twice comes once
    assert kept_names([added[1], "decisions:main", added[1]], ROOT / "results")[0] == added[1]
    assert len(kept_names([*added, "decisions:main"], ROOT / "results")) == 3
    (soup,) = kept_names(["bcwi:soup"], ROOT / "results")
    assert soup == "bcwi-massive_adddata-mini-soup"
    whole = kept_names(["bcwi"], ROOT / "results")
    assert soup in whole and {name.split("-")[0] for name in whole} == {"bcwi"}
    with pytest.raises(ValueError, match="nothing of bcwi:soup is kept"):
        kept_names(["bcwi:soup"], ROOT / "nbs")


def test_the_kept_tables_of_the_repository_are_in_the_list():
    found = survey(jobs(scale="mini"))
    kept = {f"{one.job.entry.notebook}-{one.job.task}" for one in found if one.word == "kept"}
    known = {"gated_fusion-sst2", "gated_fusion-mrpc", "bcwi-massive_adddata"}
    assert known | {"distillation-fashion_mnist"} <= kept
    assert all(isinstance(one, Run) or one.seconds for one in found if one.word == "kept")


def test_ages_are_never_negative():
    now = datetime.now(timezone.utc)
    times = (None, now - timedelta(days=3), now + timedelta(days=400))
    assert [catalogue._age(when) for when in times] == ["–", "3 d", "0 s"]


def test_ci_makes_every_table_and_a_quick_one_of_each_notebook():
    """The list of smoke runs follows the catalogue; each compares its plan with what it trains."""
    grid = import_module("grid")
    entries, known = grid.all_entries(), {one.name: one for one in CATALOGUE}
    made = {(name, told.get("table")) for _, name, told in entries if told["scale"] == "smoke"}
    assert {(one.notebook, one.table) for one in CATALOGUE if one.smoke} <= made
    assert {("gated_fusion", "folds"), ("muscle", "copied")} <= made
    quick = [name for is_quick, name, _ in entries if is_quick]
    assert set(grid.QUICK) <= set(known) and len(quick) == len(set(quick)) == len(grid.QUICK)
    tasks = {(name, told["task"]) for _, name, told in entries if told["scale"] == "paper"}
    assert {(one.notebook, task) for one in CATALOGUE for task in one.paper_scale} <= tasks
