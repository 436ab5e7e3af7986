"""Re-ranking's runs, dial and rows, with models that answer from a table."""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from compatkit.experiments.running.runs import run_once
from compatkit.experiments.studies import reranking_studies as module
from compatkit.experiments.studies.reranking_studies import (
    WEIGHTS,
    DialPoints,
    base_recipes,
    candidates_of,
    chosen_once,
    dial_of,
    dial_once,
    score_and_nfr,
    tasks_at,
)
from compatkit.language.models import judge
from compatkit.language.tasks import load_questions
from compatkit.reranking import Candidates, rerank


@cache
def sums():
    """A few sums; not made where tests are collected, in every process."""
    return load_questions("arithmetic").limited(train=20, selection=12, test=15)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Runs of a test go to its own folder."""
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path / "runs"))


def made_up(seed=0):
    """(run of candidates, run of the old model): three candidates a question, one of them right;
    the old model likes it in two thirds of the questions, the new one at random.
    """
    draw = np.random.default_rng(seed)

    def candidates(folder):
        for split in ("selection", "test"):
            texts, new, old = {}, {}, {}
            for one in getattr(sums(), split):
                texts[one.id] = [one.answer, str(int(one.answer) + 1), "0"]
                new[one.id] = (-draw.random(3)).tolist()
                old[one.id] = [-0.1 if draw.random() < 2 / 3 else -3.0, -1.0, -2.0]
            Candidates(texts, new, old).save(folder / f"{split}.parquet")
        return {}

    def answers(folder):
        for split in ("selection", "test"):
            questions = getattr(sums(), split)
            texts = [one.answer if draw.random() < 0.5 else "0" for one in questions]
            judge(questions, texts, "number").save(folder / f"predictions-{split}-number.parquet")
        return {}

    return (
        run_once({"kind": "candidates", "seed": seed}, candidates),
        run_once({"kind": "task_adapter", "seed": seed}, answers),
    )


def test_a_choice_is_rerank_on_the_first_candidates():
    candidates, _ = made_up()
    for number, weight in ((3, 0.0), (2, 0.4), (1, 1.0)):
        run = chosen_once(candidates, sums(), "number", number, weight)
        given = candidates_of(candidates, "test", number)
        wanted = rerank(given, weight=weight).by_id
        found = run.predictions("test-number")
        assert dict(zip(found.id, found.prediction)) == wanted
        assert found.text is None  # numbers alone are kept
        assert run.results["score"]["test"] == pytest.approx(found.correct.mean())


def test_the_oracle_finds_every_right_candidate():
    candidates, _ = made_up()
    assert chosen_once(candidates, sums(), "number", 3, "oracle").results["score"] == {
        "selection": 1.0,
        "test": 1.0,
    }


def test_the_dial_s_record_holds_what_its_choices_give():
    candidates, old = made_up()
    record = dial_once(candidates, old, sums(), "number", 3)
    assert record.splits == [] and len(record.results["test"]) == len(WEIGHTS)
    for place in (0, 4, 10):
        run = chosen_once(candidates, sums(), "number", 3, WEIGHTS[place])
        for split in ("selection", "test"):
            wanted = score_and_nfr(
                old.predictions(f"{split}-number"), run.predictions(f"{split}-number")
            )
            assert record.results[split][place] == pytest.approx(list(wanted))


def test_the_dial_of_several_seeds_is_their_mean():
    records = [dial_once(*made_up(seed), sums(), "number", 3) for seed in (0, 1)]
    dial = dial_of(records)
    assert dial.weights == WEIGHTS and dial.test.shape == (11, 2)
    first, second = (np.array(one.results["test"]) for one in records)
    assert np.allclose(dial.test, (first + second) / 2)


def test_the_weight_with_the_fewest_flips_among_the_accurate_ones():
    points = np.array([[0.70, 0.01], [0.80, 0.04], [0.82, 0.03], [0.82, 0.05]])
    dial = DialPoints((0.0, 0.3, 0.6, 1.0), points, points)
    assert dial.best(0.80) == (0.6, True)
    assert dial.best(0.70) == (0.0, True)
    assert dial.best(0.90) == (0.6, False)  # none qualifies: the most accurate


def test_scores_without_right_answers_are_compared_by_size():
    questions = [SimpleNamespace(id=one, answer="a b", group="") for one in "xy"]
    old, new = (judge(questions, texts, "rouge1") for texts in (["a b", "c"], ["a c", "a b"]))
    score, nfr = score_and_nfr(old, new)
    assert score == pytest.approx(0.75) and nfr == 0.5


def test_mini_sums_are_below_100_and_the_old_base_reads_less():
    whole, part = tasks_at(load_questions("arithmetic"), "mini")
    assert {one.group for one in whole.test} == {"below 20", "below 100"}
    assert part.title == "arithmetic (below 100, 2,000 train)" and len(part.train) == 2000
    old, new = base_recipes("mini", True)
    assert (old.share, new.share) == (0.8, 1.0) and old.steps == round(0.8 * new.steps)
    assert base_recipes("smoke", False, 2)[1].steps == 2


def test_candidates_that_were_recalled_are_not_there(tmp_path):
    from compatkit.experiments.running.runs import Run

    with pytest.raises(ValueError, match="neither weights nor"):
        candidates_of(Run(tmp_path / "recalled" / "c-1", {"id": "c-1"}), "test", 5)


def test_tables_name_what_they_compare():
    assert list(module.TABLES) == ["main", "candidates"]
    assert "arithmetic" in module.RERANKING_TASKS
