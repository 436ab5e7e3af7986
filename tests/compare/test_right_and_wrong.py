"""Answers that somebody else has judged, and examples that nobody judged."""

import json

import numpy as np
import pytest
from answer_files import ENDINGS, saved, written

from compatkit.compare.logs import Wanted
from compatkit.compare.pair import read_columns, read_pair
from compatkit.compare.report import compare, compare_versions
from compatkit.metrics import FlipCounts
from compatkit.predictions import Predictions

OLD, NEW = (
    [1] * 14 + [0] * 6,
    [1] * 11 + [0] * 3 + [1] * 2 + [0] * 4,
)  # 3 negative, 2 positive flips
WRITTEN = [
    (True, False),
    ("True", "False"),
    (1, 0),
    (1.0, 0.0),
    ("PASS", "FAIL"),
    ("passed", "failed"),
    ("resolved", "unresolved"),
    ("Yes", "no"),
]


def two(folder, ending, old, new, name="correct", **further):
    """Two files with a column each, under the same ids."""
    sides = zip(("old", "new"), (old, new))
    return [
        saved(
            folder / f"{side}{ending}",
            [
                {"id": f"q{row}", name: value} | {key: all_[row] for key, all_ in further.items()}
                for row, value in enumerate(values)
            ],
        )
        for side, values in sides
    ]


def words(judgements, right, wrong):
    return [right if one else wrong for one in judgements]


def flips(pair):
    counts = FlipCounts.of(pair.label, pair.old, pair.new)
    return counts.both_right, counts.negative, counts.positive, counts.n


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("right, wrong", WRITTEN)
@pytest.mark.parametrize("field", ["correct", "score"])
def test_judgements_are_right_and_wrong_however_written(tmp_path, ending, right, wrong, field):
    files = two(tmp_path, ending, *(words(one, right, wrong) for one in (OLD, NEW)), name="verdict")
    found = compare(*files, rename={"verdict": field})
    assert flips(found.pair) == (11, 3, 2, 20)
    whole = found.summary["overall"]
    assert (whole["accuracy_old"]["value"], whole["accuracy_new"]["value"]) == (0.7, 0.65)
    assert whole["mcnemar"]["n"] == 5 and "scores" not in whole
    assert found.summary["judged_by"] == "the column `verdict`"


def test_each_side_may_write_judgements_in_its_own_way(tmp_path):
    old, _ = two(tmp_path, ".csv", words(OLD, "PASS", "FAIL"), OLD)
    _, new = two(tmp_path, ".jsonl", NEW, [bool(one) for one in NEW])
    assert flips(read_pair(old, new)) == (11, 3, 2, 20)


def test_judgements_that_agree_with_answers_leave_these_alone(tmp_path):
    labels = ["x", "y"] * 10
    sides = [[label if good else "z" for label, good in zip(labels, side)] for side in (OLD, NEW)]
    rows = [
        [
            {"id": n, "label": label, "prediction": said, "correct": bool(good)}
            for n, (label, said, good) in enumerate(zip(labels, answers, side))
        ]
        for answers, side in zip(sides, (OLD, NEW))
    ]
    files = [saved(tmp_path / f"{n}.jsonl", side) for n, side in enumerate(rows)]
    pair = read_pair(*files)
    assert pair.answers == ("x", "y", "z") and flips(pair) == (11, 3, 2, 20)


def test_judgements_decide_where_they_contradict_answers(tmp_path):
    """A judge takes "4." for "4", and nobody's texts are equal."""
    rows = [
        [
            {"id": n, "label": "4", "prediction": f"{4 if good else n}.{side}", "correct": good}
            for n, good in enumerate(judged)
        ]
        for side, judged in enumerate((OLD, NEW))
    ]
    files = [saved(tmp_path / f"{n}.jsonl", side) for n, side in enumerate(rows)]
    found = compare(*files)
    assert flips(found.pair) == (11, 3, 2, 20)
    counts = FlipCounts.of(found.pair.label, found.pair.old, found.pair.new)
    assert (counts.both_wrong_same, counts.both_wrong_different) == (0, 4)
    assert "contradicts label and prediction in 14 of the old and 13 of the new" in " ".join(
        found.summary["notes"]
    )
    shown = found.pair.shown([11])[0]
    assert (shown["old"], shown["new"], shown["old_text"], shown["target"]) == (
        *("right", "wrong", "4.0", "4"),
    )


def test_a_further_column_called_correct_is_no_judgement_beside_answers(tmp_path):
    table = "id,label,prediction,correct\n" + "".join(f"{n},x,x,{n % 4}\n" for n in range(8))
    old, new = written(tmp_path, old_csv=table, new_csv=table.replace("0,x,x", "0,x,y"))
    pair = read_pair(old, new)
    assert pair.answers == ("x", "y") and "correct" in pair.columns
    with pytest.raises(ValueError, match="old.csv.*`correct`"):
        read_pair(old, new, rename={"prediction": "correct", "correct": "place"})


def test_constant_scores_are_still_refused(tmp_path):
    for value in (1, 0):
        files = two(tmp_path, ".csv", [value] * 9, [value] * 9, name="score")
        with pytest.raises(ValueError, match=f"every score of both versions is {value}"):
            compare(*files)


def test_partial_credit_stays_a_score(tmp_path):
    pair = read_pair(*two(tmp_path, ".csv", [1, 0, 0.5], [1, 1, 0], name="score"))
    assert pair.label is None and pair.old_score.tolist() == [1, 0, 0.5]


def test_columns_of_judgements_in_one_table(tmp_path):
    rows = [
        {"id": n, "a_correct": old, "b_correct": new} for n, (old, new) in enumerate(zip(OLD, NEW))
    ]
    table = saved(tmp_path / "both.csv", rows)
    assert flips(read_columns(table, "a_correct", "b_correct")) == (11, 3, 2, 20)
    other = saved(tmp_path / "other.csv", [{"v1": old, "v2": old} for old in OLD])
    with pytest.raises(ValueError, match="`label`"):
        read_columns(other, "v1", "v2")  # 1 and 0 may be answers


def test_many_versions_of_judgements(tmp_path):
    first, second = two(tmp_path, ".csv", OLD, NEW)
    third = saved(
        tmp_path / "third.csv", [{"id": f"q{n}", "correct": one} for n, one in enumerate(OLD)]
    )
    found = compare_versions([first, second, third])
    assert found.level == [0.7, 0.65, 0.7] and found.nfr[0][1] == 0.15


# -- examples without a value ----------------------------------------------------------------------

SCORES = np.linspace(0.3, 0.9, 60)


def scored(gaps, shift=0.0):
    return [None if n in gaps else round(float(one + shift), 4) for n, one in enumerate(SCORES)]


@pytest.mark.parametrize("ending", ENDINGS)
def test_scores_that_are_missing_are_left_out_or_wrong_or_refused(tmp_path, ending):
    files = two(
        tmp_path, ending, scored({0, 5, 9}), scored({5, 20, 21, 22, 23}, 0.05), name="score"
    )
    with pytest.raises(ValueError, match="'q0'.*'q5'"):
        read_pair(*files)
    left = compare(*files, wanted={"errors": "drop"})
    assert left.summary["examples"] == 53 and np.isfinite(left.pair.new_score).all()
    assert "7 examples are left out on both sides" in str(left).replace("\n", " ")
    wrong = compare(*files, wanted={"errors": "wrong"})
    assert wrong.pair.n == 60 and wrong.pair.new_score.tolist()[20:24] == [0] * 4
    assert wrong.summary["overall"]["scores"]["nfr"]["value"] == 4 / 60


def test_a_missing_score_is_never_better_than_one_that_is_there(tmp_path):
    files = two(tmp_path, ".csv", [-3, -2, -1], [-3, "", -1], name="score")
    pair = read_pair(*files, wanted=Wanted(errors="wrong"))
    assert pair.new_score.tolist() == [-3, -3, -1]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("label", ["x", 1])
def test_answers_that_are_missing_are_left_out_or_wrong(tmp_path, ending, label):
    files = two(
        tmp_path, ending, [label] * 4, [label, None, label, label], "prediction", label=[label] * 4
    )
    with pytest.raises(ValueError, match="'q1'"):
        read_pair(*files)
    assert flips(read_pair(*files, wanted=Wanted(errors="drop"))) == (3, 0, 0, 3)
    wrong = read_pair(*files, wanted=Wanted(errors="wrong"))
    assert flips(wrong) == (3, 1, 0, 4)
    assert [wrong.answers[code] for code in wrong.new] == [
        str(label),
        "no answer",
        *[str(label)] * 2,
    ]


def test_judgements_that_are_missing_are_left_out_or_wrong(tmp_path):
    files = two(tmp_path, ".csv", [1, 1, 0, 1], [1, "", 1, 1])
    with pytest.raises(ValueError, match="new.csv.*'q1'"):
        read_pair(*files)
    assert flips(read_pair(*files, wanted=Wanted(errors="drop"))) == (2, 0, 1, 3)
    wrong = read_pair(*files, wanted=Wanted(errors="wrong"))
    assert flips(wrong) == (2, 1, 1, 4) and wrong.answers[wrong.new[1]] == "no score"


def test_predictions_take_the_same_choice():
    old, new = (
        Predictions(list("abc"), score=[1.0, 0.5, 0.25]),
        Predictions(list("abc"), score=[0.5, np.nan, 0.5]),
    )
    assert compare(old, new, wanted={"errors": "drop"}).pair.n == 2
    with pytest.raises(ValueError, match="errors is one of"):
        compare(old, new, wanted={"errors": "skip"})


def test_nothing_left_is_refused(tmp_path):
    files = two(tmp_path, ".csv", ["", 0.5], [0.5, ""], name="score")
    with pytest.raises(ValueError, match="nothing is left to compare"):
        read_pair(*files, wanted=Wanted(errors="drop"))


@pytest.mark.parametrize("option", ["task", "scorer", "metric"])
def test_choices_within_a_log_are_refused_for_tables(tmp_path, option):
    files = two(tmp_path, ".csv", OLD, NEW)
    with pytest.raises(ValueError, match=f"--{option} main .*old.csv is a table"):
        compare(*files, wanted={option: "main"})
    with pytest.raises(ValueError, match=f"--{option} main"):
        compare(Predictions(["a"], [1], [1]), Predictions(["a"], [1], [1]), wanted={option: "main"})


def test_names_of_columns_are_refused_for_logs(tmp_path):
    path = tmp_path / "a.json"  # an evaluation table of MLflow
    path.write_text(json.dumps({"columns": ["outputs", "target"], "data": [["x", "x"]]}))
    with pytest.raises(ValueError, match="'truth'"):
        read_pair(path, path, label="truth")


def test_several_judgements_of_one_example_are_numbered(tmp_path):
    """Three samples for each task, as code benchmarks write them."""
    rows = [
        [{"task_id": n // 3, "passed": (n * step) % 7 % 2} for n in range(60)] for step in (2, 3)
    ]
    files = [saved(tmp_path / f"{n}.csv", side) for n, side in enumerate(rows)]
    rename = {"task_id": "id", "passed": "score"}
    with pytest.raises(ValueError, match="0.csv.*`repeat`"):
        read_pair(*files, rename=rename)
    for path, side in zip(files, rows):
        saved(path, [row | {"sample": n % 3 + 1} for n, row in enumerate(side)])
    pair = read_pair(*files, rename=rename | {"sample": "repeat"})
    assert pair.n == 20 and set(pair.repeats.repeats) == {3}
    assert pair.repeats.old.sum() == sum(row["passed"] for row in rows[0])


# --- scores that are right from a number on -------------------------------------------------------

BEFORE, AFTER = [1.9, 1.5, 1.2, 1.1, 1.0], [1.6, 1.4999, 1.6, 1.09, 1.0]  # 1 negative, 1 positive


@pytest.mark.parametrize("ending", ENDINGS)
def test_scores_are_right_from_a_number_on(tmp_path, ending):
    files = two(tmp_path, ending, BEFORE, AFTER, name="score")
    found = compare(*files, wanted={"pass_at": 1.5})
    assert flips(found.pair) == (1, 1, 1, 5)
    overall = found.summary["overall"]
    assert overall["accuracy_old"]["value"] == 0.4 and overall["mcnemar"]["n"] == 2
    assert overall["scores"]["mean_old"]["value"] == pytest.approx(np.mean(BEFORE))
    (row, _), _ = found.flips().to_dict("records"), None
    assert row["old_score"] == 1.5 and row["quadrant"] == "negative"


@pytest.mark.parametrize("errors, counts", [("drop", (1, 0, 1, 4)), ("wrong", (1, 1, 1, 5))])
def test_a_missing_score_stays_missing_whatever_is_right(tmp_path, errors, counts):
    gap = [1.6, None, 1.6, 1.09, 1.0]
    files = two(tmp_path, ".jsonl", BEFORE, gap, name="score")
    with pytest.raises(ValueError, match="new.jsonl.*ids 'q1'"):
        compare(*files, wanted={"pass_at": 1.5})
    found = compare(*files, wanted={"pass_at": 1.5, "errors": errors})
    assert flips(found.pair) == counts


def test_the_score_judges_though_there_are_answers_if_it_is_asked(tmp_path):
    answers = {"label": "abcde", "prediction": "abcde"}
    files = two(tmp_path, ".csv", BEFORE, AFTER, name="score", **answers)
    assert flips(read_pair(*files)) == (5, 0, 0, 5)
    pair = read_pair(*files, wanted=Wanted(pass_at=1.5))
    assert flips(pair) == (1, 1, 1, 5)
    assert any("contradicts label and prediction in 3" in note for note in pair.notes)


def test_two_columns_of_scores_in_one_file(tmp_path):
    rows = [{"id": n, "v1": one, "v2": two} for n, (one, two) in enumerate(zip(BEFORE, AFTER))]
    path = saved(tmp_path / "both.csv", rows)
    assert flips(read_columns(path, "v1", "v2", wanted=Wanted(pass_at=1.5))) == (1, 1, 1, 5)


def test_a_threshold_without_scores_is_refused(tmp_path):
    files = two(tmp_path, ".csv", OLD, NEW)
    with pytest.raises(ValueError, match="--pass-at.*0.5.*`score`"):
        compare(*files, wanted={"pass_at": 0.5})


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "1.5", True + 0j])
def test_a_threshold_that_is_no_number_is_refused(tmp_path, bad):
    files = two(tmp_path, ".csv", BEFORE, AFTER, name="score")
    with pytest.raises(ValueError, match="pass_at"):
        compare(*files, wanted={"pass_at": bad})


def test_three_versions_by_the_same_threshold(tmp_path):
    files = two(tmp_path, ".csv", BEFORE, AFTER, name="score")
    found = compare_versions([*files, files[0]], names="abc", wanted={"pass_at": 1.5})
    assert found.kind == "accuracy" and found.level == [0.4, 0.4, 0.4]
    assert found.nfr[0, 1] == 0.2


# --- what judged ----------------------------------------------------------------------------------


def test_the_columns_that_judge_are_named_as_the_files_call_them(tmp_path):
    answers = {"gold": ["a", "b"], "prediction": ["a", "b"]}
    files = two(tmp_path, ".csv", ["x", "y"], ["x", "z"], name="kind", **answers)
    found = compare(*files, rename={"gold": "label"})
    assert found.summary["judged_by"] == "`prediction` against `gold`"
    assert not any("Judged" in note for note in found.summary["notes"])  # goes without saying
    files = two(tmp_path, ".csv", BEFORE, AFTER, name="quality")
    found = compare(*files, rename={"quality": "score"})
    assert found.summary["judged_by"] == "the column `quality`"
    assert "Judged by the column `quality`." in found.summary["notes"]


def test_judgements_are_no_classes(tmp_path):
    assert "macro_f1" not in compare(*two(tmp_path, ".csv", OLD, NEW)).summary["models"]
    words = {"label": ["right", "wrong"] * 10, "prediction": ["right", "wrong"] * 10}
    files = two(tmp_path, ".csv", OLD, NEW, name="number", **words)
    assert "macro_f1" in compare(*files).summary["models"]  # classes that are called so
