"""An answer that is right but written otherwise is found out, and mended only on request."""

import pytest
from made_pairs import pair_of, scored_pair

from compatkit.compare.report import compare
from compatkit.compare.spelling import misspelled, normal_form, normalized
from compatkit.predictions import Predictions


@pytest.mark.parametrize(
    "one, other",
    [
        ("Yes", "yes"),
        (" yes ", "yes"),
        ("e\u0301", "é"),
        ("ﬁle", "file"),
        ("1.0", "1"),
        ("-3.00", "-3"),
        ("a  b", "a b"),
        ("STRASSE", "straße"),
        (1, "1"),
    ],
)
def test_forms_of_one_answer(one, other):
    assert normal_form(one) == normal_form(other)


@pytest.mark.parametrize(
    "one, other", [("1.5", "15"), ("a b", "ab"), ("10", "1.0"), ("v1.0", "v1")]
)
def test_answers_that_stay_apart(one, other):
    assert normal_form(one) != normal_form(other)


def test_a_normalized_pair_is_judged_by_meaning():
    pair = normalized(pair_of(["yes", "no", "yes"], ["YES", "no", "no"], [" yes", "No", "yes "]))
    assert (pair.label == pair.new).all() and (pair.label == pair.old).tolist() == [
        True,
        True,
        False,
    ]
    assert set(pair.answers) == {"yes", "no"} and "normal forms" in pair.notes[-1]


def test_what_is_said():
    label = ["yes", "no"] * 50
    told = misspelled(pair_of(label, label, [answer.title() for answer in label]))
    assert told.startswith("100 answers of new would be right") and "'Yes' for 'yes'" in told
    assert misspelled(pair_of(label, label, label)) == ""
    assert misspelled(scored_pair([0.1], [0.2])) == ""


def test_the_report_says_it_instead_of_a_verdict():
    label = ["yes", "no"] * 300
    ids = [str(number) for number in range(600)]
    old, new = (
        Predictions(ids, label, answers)
        for answers in (label, [answer.upper() for answer in label])
    )
    assert compare(old, new).verdict == "answers are spelled otherwise"
    assert compare(old, new, normalize=True).verdict == "no measurable difference"


def test_a_few_odd_spellings_are_a_note():
    label = ["yes", "no"] * 5000
    answers = ["Yes", *label[1:]]
    ids = [str(number) for number in range(10_000)]
    found = compare(Predictions(ids, label, label), Predictions(ids, label, answers))
    assert found.verdict == "no measurable difference"
    assert any("--normalize" in note for note in found.summary["notes"])
