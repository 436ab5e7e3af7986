"""Two logs become one pair: which samples, what was asked, what has no answer, right or wrong or
a score.
"""

import numpy as np
import pytest

from compatkit.compare import logs
from compatkit.compare.logs import Key, Log, Sample


def log(values, name="a", **settings):
    """A log of one task; None stands for an error."""
    samples = {
        Key("t", str(n)): Sample(
            value, "" if value is not None else "error", asked={"question": f"q{n}"}
        )
        for n, value in enumerate(values)
    }
    return Log(name, samples, **settings)


def test_joined_in_the_old_order_and_counted():
    old = log([1.0, 0.0, 1.0])
    new = Log("b", dict(reversed(log([1.0, 1.0, 0.0]).samples.items())))
    fields = logs.join_logs(old, new)
    right = [fields["answers"][code] for code in fields["old"].tolist()]
    assert right == ["right", "wrong", "right"]
    assert [fields["answers"][code] for code in fields["new"].tolist()] == [
        "right",
        "right",
        "wrong",
    ]
    assert fields["left_out"] == {"old only": 0, "new only": 0} and fields["notes"] == ()


def test_two_different_wrong_answers_are_told_apart():
    old, new = (
        Log("a", {Key("t", "0"): Sample(0.0, answer=answer, asked={"question": "q"})})
        for answer in "xy"
    )
    assert logs.join_logs(old, new)["answers"] == ("right", "wrong", "wrong otherwise")
    assert logs.join_logs(old, old)["answers"] == ("right", "wrong")


def test_a_missing_answer_is_never_wrong_in_silence():
    fields = logs.join_logs(log([1.0, 1.0]), log([1.0, None]))
    assert fields["answers"][fields["new"][1]] == logs.NO_ANSWER
    assert "1 of 2 samples of the new run have no value (1 error)" in fields["notes"][0]


@pytest.mark.parametrize("value", [None, float("nan")])
def test_an_answer_that_nobody_judged_has_no_score(value):
    assert logs.judged(value, "42", "42").trouble == logs.NO_SCORE
    assert logs.judged(value, None, "42").trouble == logs.NO_SCORE
    assert logs.judged(value, "", "42").trouble == logs.NO_ANSWER
    assert logs.judged("N", "x", "42").trouble == logs.NO_ANSWER  # Inspect's word for it


@pytest.mark.parametrize("scored", [0, 1])
@pytest.mark.parametrize("errors", ["wrong", "drop"])
def test_a_run_without_any_value_is_refused_whatever_the_other_says(scored, errors):
    sides = [log([None, None], "silent"), log([None, None], "silent")]
    sides[scored] = log([1.0, 0.0], "scored")
    with pytest.raises(ValueError, match="silent"):
        logs.join_logs(*sides, errors=errors)
    with pytest.raises(ValueError, match="silent"):
        logs.join_logs(*[log([None], "silent")] * 2, errors=errors)


def test_dropping_takes_the_sample_from_both_sides():
    fields = logs.join_logs(log([None, 1.0, 1.0]), log([1.0, 0.0, None]), errors="drop")
    assert len(fields["old"]) == 1 and fields["details"](np.array([0]))[0]["id"] == "1"


def test_failing_names_the_samples():
    with pytest.raises(ValueError, match=r"ids '1'"):
        logs.join_logs(log([1.0, 1.0]), log([1.0, None]), errors="fail")
    with pytest.raises(ValueError, match="nothing is left"):
        logs.join_logs(log([None, 1.0]), log([1.0, None]), errors="drop")
    with pytest.raises(ValueError, match="wrong, drop, fail"):
        logs.join_logs(log([1.0]), log([1.0]), errors="ignore")


def test_other_samples_are_refused_or_counted():
    with pytest.raises(ValueError, match="'2'.*--on-missing"):
        logs.join_logs(log([1.0] * 3), log([1.0] * 2, "b"))
    fields = logs.join_logs(log([1.0] * 3), log([1.0] * 2, "b"), on_missing="drop")
    assert fields["left_out"] == {"old only": 1, "new only": 0}
    with pytest.raises(ValueError, match="no sample is in both"):
        logs.join_logs(log([1.0]), Log("b", {Key("t", "9"): Sample(1.0)}))


def test_other_questions_under_the_same_id_are_refused():
    other = Log("b", {Key("t", "0"): Sample(1.0, asked={"question": "something else"})})
    with pytest.raises(ValueError, match=r"question differs.*'0'"):
        logs.join_logs(log([1.0]), other)
    notes = logs.join_logs(log([1.0]), other, on_changed="compare")["notes"]
    assert "question differs for 1 of 1" in notes[0]
    unknown = Log("b", {Key("t", "0"): Sample(1.0)})
    assert "cannot be checked for 1 samples" in logs.join_logs(log([1.0]), unknown)["notes"][0]


def test_only_what_both_logs_hold_is_compared():
    def side(**asked):
        return Log("a", {Key("t", "0"): logs.judged(1, "x", asked=asked)})

    alike = logs.join_logs(side(question="q", choices=["a"]), side(question="q", choices=None))
    assert alike["notes"] == ()
    with pytest.raises(ValueError, match="choices differs.*--on-changed compare"):
        logs.join_logs(side(choices=["a"]), side(choices=["b"]))
    changed = logs.join_logs(side(question="q", prompt="1"), side(question="q", prompt="2"))
    assert "prompt differs for 1 of 1" in changed["notes"][0]


@pytest.mark.parametrize("on_changed", logs.CHANGED)
def test_another_right_answer_is_always_refused(on_changed):
    one, two = (Log("a", {Key("t", "0"): logs.judged(1, "x", target)}) for target in "xy")
    with pytest.raises(ValueError, match="right answer differs"):
        logs.join_logs(one, two, on_changed=on_changed)


def test_on_changed_is_one_of_two():
    with pytest.raises(ValueError, match="on_changed"):
        logs.join_logs(log([1.0]), log([1.0]), on_changed="ignore")


def test_scorers_tasks_versions_and_status():
    with pytest.raises(ValueError, match="match.*includes"):
        logs.join_logs(log([1.0], scorer="match"), log([1.0], scorer="includes"))
    with pytest.raises(ValueError, match="'t'.*'u'"):
        both = {Key("s", "0"): Sample(1.0)}
        logs.join_logs(
            Log("a", both | {Key("t", "0"): Sample(1.0)}),
            Log("b", both | {Key("u", "0"): Sample(1.0)}),
        )
    notes = logs.join_logs(
        log([1.0], settings={"task version": "1"}), log([1.0], settings={"task version": "2"})
    )["notes"]
    assert notes == ("The task version differs: 1 in the old run, 2 in the new one.",)
    broken = log([1.0], "b", unfinished="its status is 'error'")
    with pytest.raises(ValueError, match="'error'"):
        logs.join_logs(log([1.0]), broken)
    assert "incomplete" in logs.join_logs(log([1.0]), broken, on_missing="drop")["notes"][0]


def test_repeats_are_numbered_by_their_sample_and_must_agree():
    twice = {
        Key("t", str(n), repeat): Sample(1.0, asked={"question": "q"})
        for n in range(2)
        for repeat in (1, 2)
    }
    assert logs.join_logs(Log("a", twice), Log("b", twice))["example"].tolist() == [0, 0, 1, 1]
    once = {key: sample for key, sample in twice.items() if key.repeat == 1}
    with pytest.raises(
        ValueError,
        match="2 only in the old run; 1 only",
    ):
        logs.join_logs(Log("a", twice), Log("b", once))
    assert "example" not in logs.join_logs(Log("a", once), Log("b", once))


def test_letters_stay_letters_only_where_they_tell_right_from_wrong():
    def quiz(answers, values):
        return Log(
            "a",
            {
                Key("t", str(n)): Sample(
                    value, answer=said, target="AB"[n % 2], asked={"question": "q"}
                )
                for n, (said, value) in enumerate(zip(answers, values))
            },
        )

    old, new = quiz("ABABABABAB", [1.0] * 10), quiz("CBABABABAB", [0.0] + [1.0] * 9)
    assert logs.join_logs(old, new)["answers"] == ("A", "B", "C")
    judged_otherwise = quiz("ABABABABAB", [0.0] + [1.0] * 9)
    assert logs.join_logs(old, judged_otherwise)["answers"] == ("right", "wrong")


def test_scores_stay_scores_and_several_tasks_stand_side_by_side():
    def graded(value):
        return Log("a", {Key("t", "0"): Sample(1.0), Key("u", "0"): Sample(value)})

    fields = logs.join_logs(graded(0.25), graded(0.75))
    assert fields["task"].tolist() == ["t", "u"] and fields["label"].tolist() == [0, -1]
    assert np.array_equal(fields["new_score"], [np.nan, 0.75], equal_nan=True)


def test_a_value_beyond_every_float_is_none():
    assert [logs.value_of(value) for value in (10**400, "1e999", 10**30)] == [None, None, 1e30]


def test_what_cannot_be_read_is_named():
    with pytest.raises(ValueError, match="x.json is no whole JSON"):
        logs.parsed('{"a": [1, 2', "x.json")
    for text in ("[" * 200_000, "1" * 5_000):
        with pytest.raises(ValueError, match="x.json cannot be read"):
            logs.parsed(text, "x.json")
    with pytest.raises(ValueError, match="repeated ids '1'"):
        logs.keyed([(Key("t", "1"), Sample(1.0))] * 2)
    with pytest.raises(ValueError, match="no samples"):
        logs.keyed([])
    with pytest.raises(ValueError, match="sample 2"):
        logs.keyed((Key("t", one), Sample(1.0, target=one.strip())) for one in ("1", 2))
    with pytest.raises(ValueError, match="did you mean 'match'"):
        logs.chosen(["match"], "macht", "scorer")


@pytest.mark.parametrize("score", [0.5, 999.0])
def test_a_task_of_equal_scores_is_refused_beside_one_that_is_judged(score):
    from compatkit.compare import compare
    from compatkit.compare.pair import Pair

    def side(last):
        samples = log([1.0, 0.0, 1.0]).samples
        graded = {
            Key("graded", str(n)): Sample(value) for n, value in enumerate([score] * 2 + [last])
        }
        return Log("a", samples | graded)

    with pytest.raises(ValueError, match=f"{score:g}"):
        compare(Pair(old_name="a", new_name="b", **logs.join_logs(side(score), side(score))))
    assert compare(
        Pair(old_name="a", new_name="b", **logs.join_logs(side(score), side(score + 1)))
    ).verdict


def test_scores_are_right_from_a_number_on():
    fields = logs.join_logs(log([0.9, 0.5, 0.4, 0.8]), log([0.5, 0.49, None, 0.8]), pass_at=0.5)
    old, new = ([fields["answers"][code] for code in fields[side]] for side in ("old", "new"))
    assert old == ["right", "right", "wrong", "right"]
    assert new == ["right", "wrong", logs.NO_ANSWER, "right"]
    assert fields["old_score"].tolist() == [0.9, 0.5, 0.4, 0.8]  # and are summed up beside them


def test_the_same_letters_are_the_same_question_however_they_are_composed():
    assert logs.digest("e\u0301") == logs.digest("\u00e9") != logs.digest("e")
    assert logs.digest("\ud800") != logs.digest("?")  # half a character has a digest too
