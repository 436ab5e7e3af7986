"""MUSCLE's experiment as one object: measures, upgrades that can be had, rows of scores."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made_studies import SavedRun, asked, scored, stories, study_of

from compatkit.experiments.models.language_recipes import adapter_recipe
from compatkit.experiments.planning.shapes import SIZES
from compatkit.experiments.studies import language_study
from compatkit.experiments.studies.language_study import (
    LanguageStudy,
    MeasuredRun,
    ScoredUpgrade,
    harness_files,
    labels_by_measure,
    measure_for,
    plan,
    rehearsal_of,
    scale_and_upgrades,
)
from compatkit.language.tasks import Generation, Question, Questions, load_questions
from compatkit.predictions import Predictions


@pytest.fixture
def no_models(monkeypatch):
    """Nothing can be had but what a test adds: name → what is missing."""
    lacking = {}
    monkeypatch.setattr(
        language_study,
        "missing_for",
        lambda *names: next((lacking[name] for name in names if name in lacking), ""),
    )
    return lacking


def test_at_paper_scale_the_rehearsed_line_comes_first_and_a_full_disk_stops(monkeypatch):
    task, upgrades = stories(), {"c": ("microsoft/phi-1", "microsoft/phi-1_5")}
    where = asked(task="piqa", scale="paper"), "paper", "asked for", task, task, "choice"
    study = LanguageStudy(*where, adapter_recipe("paper"), upgrades)
    line = rehearsal_of(study, 2)
    assert [one.number for one in line.trainings] == [3, 3, 6]
    assert all(one.batch == 32 and one.step.batch == 4 for one in line.trainings), "accumulated"
    assert 2.8 * 2**30 < line.peak < 80 * 2**30  # at least the base's weights in half precision
    tokens = round(SIZES["piqa"].train * SIZES["piqa"].tokens)
    assert [one.further for one in line.trainings] == [tokens * (64 * 4 + 8)] * 2 + [0], "teachers'"
    assert [one.further for one in rehearsal_of(study, 0).trainings] == [0, 0]
    assert f"peak {line.peak / 2**30:.1f} GiB" in plan(study)
    trial = LanguageStudy(
        asked(task="piqa", scale="paper", max_steps=2), *where[1:], study.recipe, upgrades
    )
    assert "GiB" not in plan(trial)
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=10))
    with pytest.raises(OSError, match="COMPATKIT_HOME"):
        plan(study)


def all_of(letters, lacking):
    """Say that the models of these upgrades are missing."""
    for letter in letters:
        for name in language_study.PAPER_UPGRADES[letter][1:3]:
            lacking[name] = f"no {name}"


def on_a_gpu(monkeypatch, there=True):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.delenv("IN_TEST", raising=False)


# --- parameters -----------------------------------------------------------------------------------


def test_wrong_parameters_are_named():
    for changes, told in (
        ({"cross_entropy": 2}, "a number from 0 to 1, or auto"),
        ({"cross_entropy": "none"}, "a number from 0 to 1, or auto"),
        ({"temperature": 0}, "at least 0.01"),
        ({"temperature": float("nan")}, "at least 0.01"),
        ({"k": 0}, "at least 1"),
        ({"rank": -1}, "at least 0"),
        ({"alpha": "printed"}, "as printed"),
        ({"upgrade": "g"}, "'e'"),
        ({"gradient_checkpointing": "maybe"}, "bool"),
    ):
        with pytest.raises(ValueError, match=told):
            asked(**changes)


def test_a_table_of_another_measure_names_those_that_there_are():
    with pytest.raises(
        ValueError,
        match="table 4.*piqa.*main, 3, 6",
    ):
        measure_for("4", stories())
    assert measure_for("5", load_questions("arithmetic")) == "rouge1"
    assert measure_for("main", load_questions("arithmetic")) == "choice"


# --- which upgrades -------------------------------------------------------------------------------


def test_with_shots_any_two_models_are_asked_as_they_are(monkeypatch, no_models):
    task, sums = stories(), load_questions("arithmetic")
    given = asked(table="shots", encoder="first, second", scale="mini")
    assert scale_and_upgrades(given, task)[2] == {"": ("first", "second")}
    no_models["second"] = "second is not there"
    with pytest.raises(FileNotFoundError, match="table shots: second is not there"):
        scale_and_upgrades(given, task)
    for scale, of in (("smoke", task), ("mini", sums)):  # models made on the spot
        found = scale_and_upgrades(asked(table="shots", encoder="second", scale=scale), of)
        assert found[2] == {"": ("version 1", "version 2")}
    for wrong in ({"upgrade": "a"}, {"evaluation": "harness"}, {"scale": "paper"}):
        with pytest.raises(ValueError, match="-p encoder OLD,NEW"):
            scale_and_upgrades(asked(table="shots", **wrong), task)
    with pytest.raises(ValueError, match="encoder names 3 models"):
        scale_and_upgrades(asked(table="shots", encoder="a,b,c"), task)


def test_a_missing_model_of_another_upgrade_does_not_matter(monkeypatch, no_models):
    on_a_gpu(monkeypatch)
    all_of("d", no_models)
    for scale in ("auto", "paper"):
        used, _, upgrades, missing = scale_and_upgrades(asked(scale=scale), stories())
        assert used == "paper" and list(upgrades) == ["a", "b", "c"] and list(missing) == ["d"]
        assert missing["d"] == "no lmsys/vicuna-7b-v1.3"
    used, _, upgrades, _ = scale_and_upgrades(asked(upgrade="a"), stories())
    assert used == "paper" and list(upgrades) == ["a"]


def test_an_adapter_is_copied_between_bases_of_one_shape_only(monkeypatch, no_models):
    found = scale_and_upgrades(asked(table="copied", scale="mini", upgrade="c"), stories())
    assert list(found[2]) == ["c"]
    with pytest.raises(ValueError, match="upgrade b.* a, c, f$"):
        scale_and_upgrades(asked(table="copied", scale="mini", upgrade="b"), stories())
    on_a_gpu(monkeypatch)
    assert list(scale_and_upgrades(asked(table="copied"), stories())[2]) == ["a", "c", "d"]
    with pytest.raises(ValueError, match="upgrade e.* a, c, d$"):
        scale_and_upgrades(asked(table="copied", scale="paper", upgrade="e"), stories())


def test_an_upgrade_that_was_asked_for_stops_with_its_own_missing_model(monkeypatch, no_models):
    on_a_gpu(monkeypatch)
    no_models["microsoft/phi-2"] = "no phi-2 here"
    for scale in ("auto", "paper"):
        with pytest.raises(FileNotFoundError, match="upgrade b: no phi-2 here") as error:
            scale_and_upgrades(asked(upgrade="b", scale=scale), stories())
        assert "upgrade a" not in str(error.value)


def test_without_any_of_the_models_auto_stops_and_never_falls_to_mini(monkeypatch, no_models):
    on_a_gpu(monkeypatch)
    all_of("abcd", no_models)
    for scale in ("auto", "paper"):
        with pytest.raises(
            FileNotFoundError, match="missing for the paper scale: upgrade a: no huggyllama"
        ) as error:
            scale_and_upgrades(asked(scale=scale), stories())
        assert "`-p scale mini` trains small models" in str(error.value)
    used, _, upgrades, missing = scale_and_upgrades(asked(scale="mini"), stories())
    assert used == "mini" and list(upgrades) == ["a"] and not missing
    monkeypatch.setenv("IN_TEST", "1")  # CI's machine may have a GPU too
    assert scale_and_upgrades(asked(), stories())[0] == "smoke"


def test_without_a_gpu_no_model_is_looked_for(monkeypatch):
    on_a_gpu(monkeypatch, False)
    monkeypatch.setattr(language_study, "missing_for", lambda *names: pytest.fail("looked for"))
    used, reason, upgrades, _ = scale_and_upgrades(asked(), stories())
    assert used == "mini" and "no GPU" in reason and upgrades == {"a": ("version 1", "version 2")}
    used, _, upgrades, _ = scale_and_upgrades(asked(table="figure5"), stories())
    assert list(upgrades) == ["a", "b"]
    with pytest.raises(ValueError, match="'e'"):
        scale_and_upgrades(asked(upgrade="e"), stories())


def test_the_sums_have_no_paper_scale(monkeypatch, no_models):
    on_a_gpu(monkeypatch)
    assert scale_and_upgrades(asked(), load_questions("arithmetic"))[0] == "mini"


# --- the study ------------------------------------------------------------------------------------


def test_the_share_of_cross_entropy_is_the_papers_at_its_scale_only():
    assert study_of(stories()).asked("a").cross_entropy == 0.0
    assert study_of(stories(), "paper").asked("c").cross_entropy == 0.5
    assert study_of(stories(), "paper", cross_entropy=0.0).asked("c").cross_entropy == 0.0
    assert study_of(stories(), "paper").asked("a").cross_entropy == 0.0
    setting = study_of(stories(), temperature=1.5, k=8, mask="none").asked("a")
    assert (setting.mask, setting.temperature, setting.k) == ("none", 1.5, 8)


def test_the_plan_counts_and_names_what_is_not_run(monkeypatch):
    monkeypatch.delenv("IN_TEST", raising=False)
    study = study_of(stories())
    study.missing["d"] = "no vicuna"
    told = plan(study)
    assert "2 bases to pretrain, 6 task adapters, 3 compatibility adapters" in told
    assert "version 1: Llama of 4 layers" in told and "upgrade d is not run: no vicuna" in told
    assert "6 task adapters, 0 compatibility adapters" in plan(study, [])


def test_rows_of_scores_by_hand():
    old, new = scored("old", [0.2, 0.4, 0.6, 0.8]), scored("new", [0.1, 0.6, 0.6, 1.0])
    treated = scored("treated", [0.2, 0.5, 0.6, 1.0])
    upgrade = ScoredUpgrade("a", old.task, "o", "n", (old,), (new,))
    plain_old, plain_new = upgrade.old_and_new()
    row = upgrade.row("compatibility adapter", (treated,), "mask wrong")
    assert plain_new.accuracy[0] == pytest.approx(0.575) and plain_old.words == ""
    assert (plain_new.nfr[0], plain_new.pfr[0], plain_new.as_old[0]) == (0.25, 0.5, 0.25)
    assert plain_new.words == "M_g 20.00; M_r 10.00" and plain_new.difference is None
    assert (row.nfr[0], row.pfr[0], row.as_old[0]) == (0.0, 0.5, 0.5)
    assert row.words == "mask wrong, M_g 15.00; M_r nan" and row.records == ("treated",)
    assert row.difference[0] == pytest.approx(0.0, abs=1e-9)


def test_per_character_divides_by_the_length_of_the_choice():
    made = tuple(Question(f"q{n}", f"p{n}", choices=("aaaa", "b"), label=0) for n in range(3))
    task = Questions("piqa", "piqa", made, made, made, ("choice",), None, "cut", "made")
    kept = Predictions([one.id for one in made], [0] * 3, logits=np.tile([-4.0, -3.0], (3, 1)))
    run = SavedRun("r", {"test-choice": kept})
    assert list(MeasuredRun(run, "choice", task).predictions("test").prediction) == [1, 1, 1]
    per_character = MeasuredRun(run, "choice per character", task).predictions("test")
    assert list(per_character.prediction) == [0, 0, 0]


def test_labels_are_joined_by_split_and_measure():
    labels = labels_by_measure(stories())
    assert labels == {"selection-choice": {"q4": 0, "q5": 1}, "test-choice": {"q6": 0, "q7": 1}}
    texts = tuple(Question(f"q{n}", f"p{n}", f"the answer is {n}") for n in range(3))
    summed = Questions("s", "s", texts, texts, texts, ("rouge1",), Generation(), "cut", "made")
    assert labels_by_measure(summed) == {"selection-rouge1": None, "test-rouge1": None}


def test_bases_of_other_texts_read_other_tasks_alone(monkeypatch):
    monkeypatch.setattr(language_study, "load_questions", lambda name, folder: name)
    study = study_of(stories())
    assert study.texts_of("version 2") == (study.whole_task,)
    assert study.texts_of("version 2, other texts") == ("hellaswag", "gsm8k", "samsum")


@pytest.mark.parametrize(
    ("changes", "task", "why"),
    [
        ({"scale": "paper"}, "piqa", "upgrade 'f' is of small models: -p scale mini"),
        ({"scale": "mini"}, "hellaswag", "named for piqa alone: -p task piqa"),
    ],
)
def test_the_small_upgrade_of_other_texts_is_refused_elsewhere(changes, task, why, no_models):
    with pytest.raises(ValueError, match=why):
        scale_and_upgrades(asked(upgrade="f", **changes), stories(name=task))


@pytest.mark.parametrize("gpu", [False, True])
def test_the_small_upgrade_of_other_texts_is_small_everywhere(monkeypatch, no_models, gpu):
    if gpu:
        on_a_gpu(monkeypatch)
    for scale, used in (("mini", "mini"), ("smoke", "smoke"), ("auto", "mini")):
        made = scale_and_upgrades(asked(upgrade="f", scale=scale), stories())
        assert made[0] == used and made[3] == {}
        assert made[2] == {"f": ("version 2, other texts", "version 2, other texts")}


def test_reseeded_bases_are_a_pair_a_seed():
    study = replace(study_of(stories()), upgrades={"c": ("version 2", "version 2")})
    study.chosen.seeds = 2
    assert study.reseeded and study.base_seeds == [(0, 1000), (1, 1001)]
    assert study.wanted_bases == [("version 2", seed) for seed in (0, 1000, 1, 1001)]
    wider = replace(study, upgrades={"d": ("version 2", "version 2, wider")})
    assert wider.reseeded and wider.wanted_bases[1] == ("version 2, wider", 1000)
    assert replace(study, upgrades={"f": ("version 2, other texts",) * 2}).reseeded
    shared = study_of(stories())
    assert shared.base_seeds == [(0, 0)] * 3 and len(shared.wanted_bases) == 2


def test_the_harness_asks_at_the_paper_scale_where_it_has_the_task(monkeypatch, tmp_path):
    monkeypatch.setattr(language_study, "language_task_files", lambda *_: ({"validation": []}, ""))
    monkeypatch.setattr(language_study, "readable_by_harness", lambda name, files: name == "piqa")
    assert harness_files(asked(task="piqa"), "paper") == {"validation": []}
    assert harness_files(asked(task="piqa"), "mini") is None
    assert harness_files(asked(task="piqa", evaluation="own"), "paper") is None
    assert harness_files(asked(task="piqa", evaluation="harness"), "mini") == {"validation": []}
    assert harness_files(asked(task="samsum"), "paper") is None
    assert harness_files(asked(task="hellaswag"), "paper") is None
    with pytest.raises(ValueError, match="not for samsum"):
        harness_files(asked(task="samsum", evaluation="harness"), "paper")
    with pytest.raises(ValueError, match="hellaswag"):
        harness_files(asked(task="hellaswag", evaluation="harness"), "paper")
