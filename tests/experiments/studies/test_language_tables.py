"""What a reader is told of MUSCLE's experiment: whether it can be judged, tables and pictures, and
what is kept of them.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from made_studies import chosen_answers, scored, stories, study_of

from compatkit.experiments.models.language_trainings import CompatibilitySetting
from compatkit.experiments.reporting.result_tables import Row, Text
from compatkit.experiments.studies import language_study, language_tables
from compatkit.experiments.studies.language_study import ScoredUpgrade, TrainedUpgrade
from compatkit.experiments.studies.language_tables import (
    above_chance,
    bars,
    changes_beside,
    control_words,
    figure_row,
    inconsistency,
    mean_percent,
    notes,
    result_table,
    shot_rows,
    with_choice,
)
from compatkit.experiments.studies.study import Upgrade
from compatkit.language.tasks import Generation, Question, Questions
from compatkit.predictions import Predictions


def test_all_runs_behind_a_table_are_published(monkeypatch):
    published = []
    monkeypatch.setattr(language_tables, "publish_study", lambda name, runs: published.extend(runs))
    old, new, treated, copied = (SimpleNamespace(id=name) for name in "ontc")
    runs = TrainedUpgrade([old], [new], {"setting": [treated]}, [copied])
    task = SimpleNamespace(name="arithmetic", measures=("choice",))
    study = SimpleNamespace(task=task, bases={"a": "a hub id"}, runs={"c": runs})
    study.few_shot = {("a", 2): [SimpleNamespace(id="s")]}
    assert language_tables.keep_study(study, {}, {}).startswith("kept 0 tables")
    assert [one.run.id for one in published] == ["o", "n", "c", "t", "s"]


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
    assert mean_percent((0.5, float("nan"))) == "50.00%"
    assert mean_percent((0.5, 0.01)) == "50.00% ± 1.00%"


def test_a_figures_row_of_scores_is_compared_with_what_it_is_given():
    old, new = scored("old", [0.2, 0.4]), scored("new", [0.1, 0.6])
    upgrade = ScoredUpgrade("a", old.task, "o", "n", (old,), (new,))
    plain = figure_row(upgrade, "old → new", (new,), "told")
    assert plain.difference is None and plain.words.startswith("told, M_g")
    assert plain.records == ("new", "old")
    assert figure_row(upgrade, "c", (scored("c", [0.2, 0.5]),), "", (new,)).difference is not None


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
    assert [row.preferred for row in marked] == [False, True, False]
    unable = with_choice([at(0.5, 0.01), at(0.4, 0.02)], at(0.80, 0.1))
    assert not any(row.qualified for row in unable)


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
    sizes = {"gain": (21.0, 21.5), "regression": (20.0, 18.37)}
    told = [Text("", {name: one[at] for name, one in sizes.items()}) for at in range(2)]
    sized = [replace(row, setting=one) for row, one in zip(rows[1:3], told)]
    (line,) = changes_beside(sized, {("compatibility adapter", "regression size change"): (-1, 0)})
    assert "M_r -1.63 points (paper -1.00)" in line


def able(task, name, prediction):
    return chosen_answers(name, prediction, task).run


def test_two_choices_are_said_to_make_figure_5_plain():
    two = notes(study_of(stories(2), table="figure5"))
    assert any("with two choices" in str(line) for line in two)
    assert not any(
        "with two choices" in str(line) for line in notes(study_of(stories(4), table="figure5"))
    )


@pytest.mark.parametrize(
    ("upgrade", "names", "told"),
    [
        ("a", ("version 1", "version 2"), "one base each for all seeds"),
        ("c", ("version 2",) * 2, "a pair of bases a seed, which differ in their own seed alone"),
        ("d", ("version 2", "version 2, wider"), "a pair of bases a seed, which read the half"),
        (
            "f",
            ("version 2, other texts",) * 2,
            "alone and read the training texts of hellaswag, gsm8k, samsum",
        ),
    ],
)
def test_a_note_says_how_many_bases_there_are_and_what_they_have_read(upgrade, names, told):
    found = list(map(str, notes(replace(study_of(stories()), upgrades={upgrade: names}), upgrade)))
    assert told in found[1]
    whose = "other tasks' training splits" if upgrade == "f" else "the task's training split"
    assert found[-1] == f"the bases were pretrained here, on the text of {whose} only"


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


def test_rows_between_numbers_of_shots_seeds_and_models(monkeypatch):
    monkeypatch.setattr(language_tables, "SHOTS", (0, 4))
    monkeypatch.setattr(language_study, "model_folder", Path)
    task = stories()  # on test: labels 0, 1

    def run(name, prediction):
        return chosen_answers(name, prediction, task).run

    study = replace(study_of(task, table="shots"), upgrades={"": ("hub/first", "second")})
    study.chosen.seeds = 2
    both, none = [0, 1], [1, 0]
    study.few_shot.update(
        {
            ("hub/first", 0): [run("a", both)] * 2,
            ("hub/first", 4): [run("b", both), run("c", [0, 0])],
            ("second", 0): [run("d", none)] * 2,
            ("second", 4): [run("e", both), run("f", none)],
        }
    )
    rows = {row.method: row for row in shot_rows(study)}
    assert {name: (row.nfr[0], row.pfr[0]) for name, row in rows.items()} == {
        "first, shots 0 → 4": (0.25, 0.0),
        "second, shots 0 → 4": (0.0, 0.5),
        "first, shots 4, drawn again": (0.25, 0.25),
        "second, shots 4, drawn again": (0.5, 0.5),
        "first → second, shots 0": (1.0, 0.0),
        "first → second, shots 4": (0.25, 0.0),
    }
    again = rows["first, shots 4, drawn again"]
    assert (again.old, again.new) == (("b", "c"), ("c", "b")) and again.seeds == 2
    table = result_table(study, list(rows.values()))
    assert table.title.startswith("piqa, mini scale, in-context learning, by choice")
    assert table.unjudged == "models at chance" and "first; second" in str(table.notes[1])
    study.chosen.seeds = 1
    assert not [row for row in shot_rows(study) if "again" in row.method]


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


def test_bars_carry_their_numbers():
    figure = bars(["a\n→ b", "b\n→ c"], {"new": [(0.1, 0.01), (0.2, float("nan"))]}, "%", "title")
    (axes,) = figure.axes
    assert {text.get_text() for text in axes.texts} >= {"10.00", "20.00"}
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["a\n→ b", "b\n→ c"]
