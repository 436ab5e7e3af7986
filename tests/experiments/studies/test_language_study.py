"""MUSCLE's experiment as one object: measures, upgrades that can be had, rows of scores, notes,
and what is said first.
"""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from compatkit.experiments.models.language_recipes import adapter_recipe
from compatkit.experiments.models.language_trainings import CompatibilitySetting
from compatkit.experiments.planning.counts import SIZES
from compatkit.experiments.reporting.result_tables import Row
from compatkit.experiments.running.parameters import check_parameters
from compatkit.experiments.studies import language_study
from compatkit.experiments.studies.language_study import (
    USUAL,
    LanguageStudy,
    MeasuredRun,
    ScoredUpgrade,
    TrainedUpgrade,
    above_chance,
    bars,
    changes_beside,
    command,
    control_words,
    figure_row,
    harness_files,
    inconsistency,
    labels_by_measure,
    language_parameters,
    measure_for,
    notes,
    percent,
    plan,
    rehearsal_of,
    result_table,
    scale_and_upgrades,
    with_choice,
)
from compatkit.experiments.studies.study import Upgrade
from compatkit.language.tasks import Generation, Question, Questions, load_questions
from compatkit.predictions import Predictions


def asked(**changes):
    """Checked parameters."""
    given = USUAL | {"data_dir": "", "encoder": "", "keep_results": False} | changes
    return check_parameters(given, {}, language_parameters())


def stories(choices=2, measures=("choice",), name="piqa"):
    """A task of real data, without the data."""
    made = tuple(
        Question(f"q{n}", f"story {n}", choices=tuple("abcd"[:choices]), label=n % choices)
        for n in range(8)
    )
    return Questions(
        name, name, made[:4], made[4:6], made[6:], measures, Generation(), "cut", "made"
    )


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


PHI = dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=24, num_attention_heads=32)


def test_at_paper_scale_the_rehearsed_line_comes_first_and_a_full_disk_stops(tmp_path, monkeypatch):
    config = {"model_type": "phi", "vocab_size": 51200} | PHI
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(language_study, "model_folder", lambda name: tmp_path)
    task, upgrades = stories(), {"c": ("microsoft/phi-1", "microsoft/phi-1_5")}
    where = asked(task="piqa", scale="paper"), "paper", "asked for", task, task, "choice"
    study = LanguageStudy(*where, adapter_recipe("paper"), upgrades)
    line = rehearsal_of(study, 2)
    assert [one.number for one in line.trainings] == [3, 3, 6]
    assert all(one.batch == 32 and one.step.batch == 4 for one in line.trainings), "accumulated"
    assert 2.8 * 2**30 < line.peak < 80 * 2**30  # at least the base's weights in half precision
    tokens = round(len(task.learnt) * SIZES["piqa"].tokens)
    assert [one.further for one in line.trainings] == [tokens * (64 * 4 + 8)] * 2 + [0], "teachers'"
    assert [one.further for one in rehearsal_of(study, 0).trainings] == [0, 0]
    assert f"peak {line.peak / 2**30:.1f} GiB" in plan(study)
    trial = LanguageStudy(
        asked(task="piqa", scale="paper", max_steps=2), *where[1:], study.recipe, upgrades
    )
    assert "GiB" not in plan(trial)
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=10))
    with pytest.raises(OSError, match="muscle:main piqa leaves .* COMPATKIT_HOME"):
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
        match="table 4 is measured by number, and piqa by choice; its tables are main, 3, 6",
    ):
        measure_for("4", stories())
    assert measure_for("5", load_questions("arithmetic")) == "rouge1"
    assert measure_for("main", load_questions("arithmetic")) == "choice"


# --- which upgrades -------------------------------------------------------------------------------


def test_a_missing_model_of_another_upgrade_does_not_matter(monkeypatch, no_models):
    on_a_gpu(monkeypatch)
    all_of("d", no_models)
    for scale in ("auto", "paper"):
        used, _, upgrades, missing = scale_and_upgrades(asked(scale=scale), stories())
        assert used == "paper" and list(upgrades) == ["a", "b", "c"] and list(missing) == ["d"]
        assert missing["d"] == "no lmsys/vicuna-7b-v1.3"
    used, _, upgrades, _ = scale_and_upgrades(asked(upgrade="a"), stories())
    assert used == "paper" and list(upgrades) == ["a"]


def test_all_runs_behind_a_table_are_published(monkeypatch):
    published = []
    monkeypatch.setattr(language_study, "publish_study", lambda name, runs: published.extend(runs))
    old, new, treated, copied = (SimpleNamespace(id=name) for name in "ontc")
    runs = TrainedUpgrade([old], [new], {"setting": [treated]}, [copied])
    task = SimpleNamespace(name="arithmetic", measures=("choice",))
    study = SimpleNamespace(task=task, bases={"a": "a hub id"}, runs={"c": runs})
    assert language_study.keep_study(study, {}, {}).startswith("kept 0 tables")
    assert [one.run.id for one in published] == ["o", "n", "c", "t"]


def test_an_adapter_is_copied_between_bases_of_one_shape_only(monkeypatch, no_models):
    found = scale_and_upgrades(asked(table="copied", scale="mini", upgrade="c"), stories())
    assert list(found[2]) == ["c"]
    with pytest.raises(ValueError, match="upgrade b's has another shape: .* one of a, c, f$"):
        scale_and_upgrades(asked(table="copied", scale="mini", upgrade="b"), stories())
    on_a_gpu(monkeypatch)
    assert list(scale_and_upgrades(asked(table="copied"), stories())[2]) == ["a", "c", "d"]
    with pytest.raises(ValueError, match="upgrade e's has another shape: .* one of a, c, d$"):
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
    with pytest.raises(ValueError, match="upgrade 'e' is of the paper's models; at mini scale"):
        scale_and_upgrades(asked(upgrade="e"), stories())


def test_the_sums_have_no_paper_scale(monkeypatch, no_models):
    on_a_gpu(monkeypatch)
    assert scale_and_upgrades(asked(), load_questions("arithmetic"))[0] == "mini"


# --- the study ------------------------------------------------------------------------------------


class SavedRun:
    """A run whose predictions are given: seed → Predictions."""

    recalled = False

    def __init__(self, name, predictions):
        self.id, self.given = name, predictions

    def predictions(self, split):
        return self.given[split]


def study_of(task, scale="mini", by="choice", runs=None, **changes):
    """A study whose runs are given."""
    upgrades = {"a": ("version 1", "version 2")}
    if scale == "paper":
        upgrades = {"c": ("microsoft/phi-1", "microsoft/phi-1_5")}
    chosen = asked(task=task.name, scale=scale, **changes)
    return LanguageStudy(
        chosen,
        scale,
        "it was asked for",
        task,
        task,
        by,
        adapter_recipe(scale),
        upgrades,
        runs=runs or {},
    )


def test_the_share_of_cross_entropy_is_the_papers_at_its_scale_only():
    assert study_of(stories()).asked("a").cross_entropy == 0.0
    assert study_of(stories(), "paper").asked("c").cross_entropy == 0.5
    assert study_of(stories(), "paper", cross_entropy=0.0).asked("c").cross_entropy == 0.0
    assert study_of(stories(), "paper").asked("a").cross_entropy == 0.0
    setting = study_of(stories(), temperature=1.5, k=8, mask="none").asked("a")
    assert (setting.mask, setting.temperature, setting.k) == ("none", 1.5, 8)


def test_the_command_has_what_is_not_usual():
    assert (
        command(study_of(load_questions("arithmetic")))
        == "papermill nbs/muscle.ipynb -p scale mini"
    )
    told = command(study_of(stories(), alpha="as printed", cross_entropy=0.0, k=8))
    assert told == (
        "papermill nbs/muscle.ipynb -p task piqa -p scale mini -p cross_entropy 0.0 -p k 8 -p "
        "alpha 'as printed'"
    )


def test_the_plan_counts_and_names_what_is_not_run(monkeypatch):
    monkeypatch.delenv("IN_TEST", raising=False)
    study = study_of(stories())
    study.missing["d"] = "no vicuna"
    told = plan(study)
    assert "2 bases to pretrain, 6 task adapters, 3 compatibility adapters" in told
    assert "version 1: Llama of 4 layers" in told and "upgrade d is not run: no vicuna" in told
    assert "6 task adapters, 0 compatibility adapters" in plan(study, [])


def scores(values, split="test"):
    ids = [f"q{n}" for n in range(len(values))]
    return Predictions(ids, score=values, text=[f"text {value}" for value in values])


def scored(name, test, selection=(0.5, 0.5)):
    task = stories(measures=("rouge1",), name="samsum")
    run = SavedRun(name, {"test-rouge1": scores(test), "selection-rouge1": scores(selection)})
    return MeasuredRun(run, "rouge1", task)


def test_rows_of_scores_by_hand():
    old, new = scored("old", [0.2, 0.4, 0.6, 0.8]), scored("new", [0.1, 0.6, 0.6, 1.0])
    treated = scored("treated", [0.2, 0.5, 0.6, 1.0])
    upgrade = ScoredUpgrade("a", old.task, "o", "n", (old,), (new,))
    plain_old, plain_new = upgrade.old_and_new()
    row = upgrade.row("compatibility adapter", (treated,), "mask wrong")
    assert plain_new.accuracy[0] == pytest.approx(0.575) and plain_old.setting == ""
    assert (plain_new.nfr[0], plain_new.pfr[0], plain_new.as_old[0]) == (0.25, 0.5, 0.25)
    assert plain_new.setting == "M_g 20.00; M_r 10.00" and plain_new.difference is None
    assert (row.nfr[0], row.pfr[0], row.as_old[0]) == (0.0, 0.5, 0.5)
    assert row.setting == "mask wrong, M_g 15.00; M_r nan" and row.records == ("treated",)
    assert row.difference[0] == pytest.approx(0.0, abs=1e-9)
    figure = figure_row(upgrade, "old → new", (new,), "told")
    assert figure.difference is None and figure.setting.startswith("told, M_g")
    assert figure_row(upgrade, "c", (treated,), "", (new,)).difference is not None


def chosen_answers(name, prediction, task, split="test"):
    ids = [one.id for one in getattr(task, split)]
    logits = np.eye(len(task.test[0].choices))[prediction]
    kept = Predictions(ids, [one.label for one in getattr(task, split)], logits=logits)
    return MeasuredRun(SavedRun(name, {f"{split}-choice": kept}), "choice", task)


def test_figure_5_counts_other_wrong_answers_too():
    task = stories(4)  # on test: labels 2, 3
    old, new = (
        chosen_answers(name, prediction, task)
        for name, prediction in (("old", [0, 3]), ("new", [1, 3]))
    )
    upgrade = Upgrade("a", task, "o", "n", (old,), (new,))
    before, after = old.predictions("test"), new.predictions("test")
    assert inconsistency([before], [after])[0] == 0.5, "wrong before and otherwise wrong now"
    assert figure_row(upgrade, "o → n", (new,)).nfr[0] == 0.0
    assert percent((0.5, float("nan"))) == "50.00%" and percent((0.5, 0.01)) == "50.00% ± 1.00%"


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


def test_above_chance_is_three_standard_errors():
    def right(count):
        return Predictions(
            [str(n) for n in range(100)], [0] * 100, [0] * count + [1] * (100 - count)
        )

    # 3 · sqrt(.25 · .75 / 100) = .13, but .15 with the variance at the accuracy reached
    assert not above_chance(right(39), 0.25) and above_chance(right(41), 0.25)
    assert not above_chance(right(0), 0.0) and above_chance(right(20), 0.0)
    # scores have a variance of their own: here 3 · sqrt(.0025 / 100) = .015
    scored = Predictions([str(n) for n in range(100)], score=[0.25, 0.35] * 50)
    assert above_chance(scored, 0.28) and not above_chance(scored, 0.29)


def at(accuracy, nfr):
    return Row("c", "c", selection={"accuracy": (accuracy, 0.0), "nfr": (nfr, 0.0)})


def test_selection_prefers_the_lowest_nfr_on_a_par():
    marked = with_choice([at(0.80, 0.05), at(0.80, 0.03), at(0.79, 0.01)], at(0.80, 0.1))
    assert [row.setting for row in marked] == ["c", "c; chosen on selection", "c"]
    unable = with_choice([at(0.5, 0.01), at(0.4, 0.02)], at(0.80, 0.1))
    assert {row.setting for row in unable} == {"c; none was on a par"}


def test_printed_changes_stand_beside_the_measured_ones():
    rows = [
        Row("old model", accuracy=(0.6, 0.0)),
        Row("new model", accuracy=(0.7, 0.0), nfr=(0.10, 0.0), pfr=(0.2, 0.0)),
        Row("compatibility adapter", accuracy=(0.75, 0.0), nfr=(0.06, 0.0), pfr=(0.21, 0.0)),
        Row("old-new probabilities", accuracy=(0.75, 0.0), nfr=(0.01, 0.0)),
    ]
    paper = {
        ("compatibility adapter", "gain"): (4.51, None),
        ("compatibility adapter", "nfr change"): (-3.97, None),
        ("compatibility adapter", "nfr change %"): (-34.25, None),
        ("new model", "nfr"): (11.59, None),
    }
    (line,) = changes_beside(rows, paper)
    for part in (
        "+5.00 points (paper +4.51)",
        "NFR -4.00 points (paper -3.97)",
        "-40.00 % (paper -34.25)",
    ):
        assert part in line
    assert changes_beside(rows, {}) == ()
    sized = [rows[1], replace(rows[2], setting="M_g 21.50; M_r 18.37")]
    sized[0] = replace(sized[0], setting="M_g 21.00; M_r 20.00")
    (line,) = changes_beside(sized, {("compatibility adapter", "regression size change"): (-1, 0)})
    assert "M_r -1.63 points (paper -1.00)" in line


def able(task, name, prediction):
    return chosen_answers(name, prediction, task).run


def test_two_choices_are_said_to_make_figure_5_plain():
    two = notes(study_of(stories(2), table="figure5"))
    assert any("with two choices" in line for line in two)
    assert not any(
        "with two choices" in line for line in notes(study_of(stories(4), table="figure5"))
    )


def test_a_table_of_models_at_chance_says_so():
    task = stories(4)
    runs = {
        "a": SimpleNamespace(
            olds=[able(task, "old", [0, 0])], news=[able(task, "new", [0, 0])], treated={}
        )
    }
    table = result_table(study_of(task, runs=runs), [Row("old model")], name="a")
    assert table.unjudged == "models at chance" and "models at chance" in table.title
    assert table.title.startswith("piqa, upgrade a, mini scale, MUSCLE, table main, by choice")
    assert table.command == "papermill nbs/muscle.ipynb -p task piqa -p scale mini"


def test_summaries_are_compared_with_one_summary_for_all():
    texts = [Question(f"q{n}", f"story {n}", answer="Ann meets Bob") for n in range(8)]
    cut = tuple(texts[:4]), tuple(texts[4:6]), tuple(texts[6:])
    task = Questions("samsum", "samsum", *cut, ("rouge1",), Generation(), "cut", "made")

    def run(score):
        ids = [one.id for one in task.test]
        found = Predictions(ids, score=[score] * len(ids))
        return SimpleNamespace(id="x", predictions=lambda split: found)

    for score, words in ((1.0, "no better than one answer for all questions"), (0.4, "100.0%")):
        runs = {"a": SimpleNamespace(olds=[run(score)], news=[run(score)], treated={})}
        table = result_table(study_of(task, by="rouge1", runs=runs), [Row("old model")], name="a")
        assert words in table.unjudged and table.unjudged in table.title


@pytest.mark.parametrize("alike, words", [(8, "the control works"), (2, "not shown to work")])
def test_the_control_must_answer_more_as_the_old_model_does(alike, words):
    label = np.zeros(400, dtype=int)

    def run(same, name):  # answers as the old model on `same` of 8 examples
        given = (np.arange(400) % 8 >= same).astype(int)
        found = Predictions(np.arange(400).astype(str), label, given)
        return SimpleNamespace(id=name, predictions=lambda split: found)

    to_old, to_new = CompatibilitySetting("none"), CompatibilitySetting("never")
    treated = {to_old: [run(alike, "c")] * 3, to_new: [run(5, "s")] * 3}
    runs = SimpleNamespace(olds=[run(8, "o")] * 3, news=[run(4, "n")] * 3, treated=treated)
    study = study_of(stories(), runs={"a": runs})
    towards_old, towards_new = control_words(study, "a", to_old, to_new).split("\n")
    assert f"{100 * (alike - 4) / 8:+.2f} points" in towards_old and words in towards_old
    assert towards_new.endswith("87.50%"), "one of eight answers is another"


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
    assert "a pair of bases a seed, which differ in their own seed alone" in notes(study, "c")[1]
    wider = replace(study, upgrades={"d": ("version 2", "version 2, wider")})
    assert wider.reseeded and wider.wanted_bases[1] == ("version 2, wider", 1000)
    assert "a pair of bases a seed, which read the half" in notes(wider, "d")[1]
    elsewhere = replace(study, upgrades={"f": ("version 2, other texts",) * 2})
    read = "read the training texts of hellaswag, gsm8k, samsum"
    assert elsewhere.reseeded and notes(elsewhere, "f")[1].endswith(f"alone and {read}")
    assert "on the text of other tasks' training splits only" in notes(elsewhere, "f")[-1]
    shared = study_of(stories())
    assert "on the text of the task's training split only" in notes(shared, "a")[-1]
    assert shared.base_seeds == [(0, 0)] * 3 and len(shared.wanted_bases) == 2
    assert "one base each" in notes(shared, "a")[1]


def test_bars_carry_their_numbers():
    figure = bars(["a\n→ b", "b\n→ c"], {"new": [(0.1, 0.01), (0.2, float("nan"))]}, "%", "title")
    (axes,) = figure.axes
    assert {text.get_text() for text in axes.texts} >= {"10.00", "20.00"}
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["a\n→ b", "b\n→ c"]


def test_the_harness_asks_at_the_paper_scale_where_it_has_the_task(monkeypatch, tmp_path):
    monkeypatch.setattr(language_study, "task_files", lambda name, folder: ({"validation": []}, ""))
    monkeypatch.setattr(language_study, "readable_by_harness", lambda name, files: name == "piqa")
    assert harness_files(asked(task="piqa"), "paper") == {"validation": []}
    assert harness_files(asked(task="piqa"), "mini") is None
    assert harness_files(asked(task="piqa", evaluation="own"), "paper") is None
    assert harness_files(asked(task="piqa", evaluation="harness"), "mini") == {"validation": []}
    assert harness_files(asked(task="samsum"), "paper") is None
    assert harness_files(asked(task="hellaswag"), "paper") is None
    with pytest.raises(ValueError, match="not for samsum"):
        harness_files(asked(task="samsum", evaluation="harness"), "paper")
    with pytest.raises(ValueError, match="this copy of hellaswag lacks columns"):
        harness_files(asked(task="hellaswag", evaluation="harness"), "paper")
