"""Rows of retirements: counted again from their own runs, with what each costs."""

import numpy as np
import pytest
import tiny
from retiring import models, world  # noqa: F401 (fixtures)

from compatkit.experiments.running.runs import find
from compatkit.experiments.studies.retirement_rows import (
    RetirementRows,
    check_retirement,
    claim_lines,
    cost_table,
    main_rows,
    retirement_table,
    student_rows,
    students_of,
)
from compatkit.experiments.studies.retirements import checked_prices, prices_of
from compatkit.metrics import fix_rate
from compatkit.predictions import Predictions


@pytest.fixture(scope="module")
def rows(models):  # noqa: F811
    found = RetirementRows(models)
    dial = models.rule("rule with the head", models.head, models.new_asked)
    line = models.interpolation("interpolation (BCWI)", models.news.__getitem__, tiny.RECIPE)
    runs = [models.student("rule", seed) for seed in (0, 1)]
    shown = [
        *found.untreated(),
        found.chosen(dial),
        found.chosen(line, (0.0, 0.4)),
        found.row("student of the rule", runs, "price 1"),
        found.searched("RCAT", {"one": runs, "two": models.news}, {"rule": "settings"}),
    ]
    found.shown = shown
    return found


def test_every_row_can_be_counted_from_its_own_runs(models, rows):  # noqa: F811
    for row in rows.shown[1:]:
        runs = [models.study.runs[name] for name in row.records]
        assert len(runs) == 2
        right = [run.predictions("new_test").correct.mean() for run in runs]
        assert row.accuracy[0] == pytest.approx(np.mean(right))
    assert rows.shown[3].words.startswith("α ")
    assert len(rows.lines["interpolation (BCWI)"][0]) == 2
    assert rows.shown[1].nfr[0] == pytest.approx(rows.lines["interpolation (BCWI)"][1][0])


def test_a_dials_values_are_one_run_whatever_else_the_study_holds(models, rows, capsys):  # noqa: F811
    before = {(run.id, run.code) for run in find(kind="dial_values")}
    models.more = fix_rate  # more code in reach of the study, as students and their treatments are
    again = RetirementRows(models)
    again.chosen(models.rule("rule with the head", models.head, models.new_asked))
    assert {(run.id, run.code) for run in find(kind="dial_values")} == before
    assert "done again" not in capsys.readouterr().out


def test_the_table_says_what_was_done(models, rows):  # noqa: F811
    table = retirement_table(models, rows.shown)
    assert "upgrade data" in table.title
    assert any("examples without labels" in str(note) for note in table.notes)
    lines = claim_lines(rows, rows.shown)
    assert len(lines) == len(rows.shown) - 2 and "of the untreated NFR" in lines[0]


def test_a_smoke_run_without_effect_is_an_error(models, rows):  # noqa: F811
    check_retirement(rows, ["student of the rule"])
    models.study.must_show = True
    plain = [run.predictions("new_test") for run in models.news]
    rows.answers["nothing"] = [
        Predictions(one.id, one.label, one.logits.argmax(1)) for one in plain
    ]
    with pytest.raises(RuntimeError, match="a treatment without any effect"):
        check_retirement(rows, ["nothing"])
    models.study.must_show = False
    del rows.answers["nothing"]


def test_a_certificate_that_cannot_be_is_told_in_words(models, rows):  # noqa: F811
    told = rows.certified("certified", models.news.__getitem__, 1e-4)
    assert isinstance(told, str) and "are needed" in told


def test_caches_of_a_share_answer_the_test_split(models, rows):  # noqa: F811
    found = RetirementRows(models)
    dial = models.rule("cache of 100 %", models.olds.__getitem__, models.news.__getitem__)
    whole = found.chosen(dial)
    for learned in (False, True):
        row = found.cached("cache of 50 %", dial, 0.5, learned)
        assert row.seeds == 2 and row.words == whole.words


def test_costs_count_what_is_done(models, world):  # noqa: F811
    found, traffic = RetirementRows(models), world[2]
    shown = [*found.untreated(), *main_rows(found, students_of("rule", True))]
    table = cost_table(found, shown)
    assert list(table.index) == [row.method for row in shown[2:]]
    asks, steps, kept = (table[name] for name in table)
    batch = tiny.RECIPE.batch_size
    seen = len(models.update.new.train) + len(traffic.rows)
    own = -(-seen // batch) * tiny.RECIPE.epochs
    assert steps["student of the rule"] == own and asks["student of the rule"] == "one model"
    assert steps["student of the rule, with its head"] == own + 400
    assert asks["rule over both models"] == "two models" and kept["rule over both models"]
    width = 4 * (tiny.RECIPE.width + len(models.update.new.classes))
    assert kept["rule with the nearest neighbour"] == f"{width:,} bytes an answer"
    assert (
        kept["rule with the head"].startswith("a head of ") and steps["rule with the head"] == 400
    )


def test_names_of_students_are_checked():
    assert students_of("auto") == "auto" and students_of("self, rule") == "self, rule"
    assert list(students_of("auto", True)) == ["self", "rule", "rule_from_old"]
    assert list(students_of("auto", False)) == ["self", "rule"]
    with pytest.raises(ValueError, match="is none of self, rule"):
        students_of("teacher")
    with pytest.raises(ValueError, match="one architecture"):
        students_of("rule_from_old", False)


def test_of_several_prices_selection_chooses_one_for_the_student_and_its_head(models, monkeypatch):  # noqa: F811
    found = RetirementRows(models)
    rule = students_of("rule", True)
    assert student_rows(found, rule)[0].words == "price 1"
    monkeypatch.setattr(models, "prices", (1.0, 30.0))
    picked, headed = student_rows(found, rule)
    tried = {
        price: [models.student("rule", seed, price) for seed in (0, 1)] for price in (1.0, 30.0)
    }
    price = float(picked.words.split(";")[0].removeprefix("price "))
    assert picked.records == tuple(run.id for run in tried[price])
    headed = [models.study.runs[name] for name in headed.records]
    parents = {one for run in headed for one in run.configuration["parents"]}
    assert parents & set(picked.records)
    others = [run for other, runs in tried.items() if other != price for run in runs]
    assert not parents & {run.id for run in others}


def test_prices_are_checked():
    assert prices_of("1") == (1.0,) and prices_of("1,3, 10") == (1.0, 3.0, 10.0)
    assert prices_of(3) == (3.0,) and checked_prices("1,3") == "1,3"
    for wrong in ("", "1,1", "-1", "a", "inf", "nan", True):
        with pytest.raises(ValueError, match="prices of a flip"):
            checked_prices(wrong)
