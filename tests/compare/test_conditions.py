"""Every condition is judged by the whole interval; weaker evidence never passes where stronger
does not.
"""

import numpy as np
import pytest
from made_pairs import pair_with, scored_pair

from compatkit.compare.conditions import GATE_STATUSES, gate
from compatkit.compare.estimates import overall
from compatkit.compare.policy import Policy
from compatkit.compare.verdict import Settings, summarize


def status_of(pair, **limits):
    return gate(Policy.of(limits), pair, overall(pair))["status"]


@pytest.mark.parametrize(
    "counts, limits, status",
    [
        ((998, 2, 0, 0), {"max_nfr": "1%"}, "holds"),
        ((985, 5, 5, 5), {"max_nfr": "1%"}, "too little data"),  # .5 %, but up to 1.16 %
        ((975, 15, 5, 5), {"max_nfr": "1%"}, "too little data"),  # 1.5 %, but from .84 %
        ((955, 35, 5, 5), {"max_nfr": "1%"}, "failed"),
        ((365, 3, 0, 0), {"max_nfr": "1%"}, "too little data"),  # weaker evidence than the next two
        ((300, 0, 0, 0), {"max_nfr": "1%"}, "too little data"),
        ((367, 0, 0, 0), {"max_nfr": "1%"}, "too little data"),
        ((368, 0, 0, 0), {"max_nfr": "1%"}, "holds"),
        ((10, 10, 0, 0), {"max_nfr": "1%"}, "failed"),  # few, but certain
        ((3, 1, 0, 0), {"max_nfr": "100%"}, "holds"),
        ((365, 3, 0, 0), {"max_nfr_observed": "1%"}, "holds"),  # of these very examples it is true
        ((990, 10, 0, 0), {"max_nfr_observed": "1%"}, "holds"),  # the limit itself is kept
        ((989, 11, 0, 0), {"max_nfr_observed": "1%"}, "failed"),
        ((3, 0, 0, 0), {"max_nfr_observed": 0}, "holds"),  # a golden set
        ((3, 1, 0, 0), {"max_nfr_observed": 0}, "failed"),
        ((900, 10, 30, 60), {"min_accuracy_gain": 0}, "holds"),
        ((900, 30, 10, 60), {"min_accuracy_gain": 0}, "failed"),
        ((900, 25, 30, 45), {"min_accuracy_gain": 0}, "too little data"),
        ((900, 25, 30, 45), {"min_accuracy_gain_observed": 0}, "holds"),
        ((900, 30, 29, 41), {"min_accuracy_gain_observed": "-0.1%"}, "holds"),
        ((900, 30, 28, 42), {"min_accuracy_gain_observed": "-0.1%"}, "failed"),
        ((2, 0, 18, 0), {"min_accuracy_gain": 0}, "holds"),  # few, but certain
        ((955, 35, 5, 5), {"max_nfr": "1%", "min_accuracy_gain": "-50%"}, "failed"),
        ((20, 0, 0, 0), {"max_nfr": "1%", "min_accuracy_gain": "-50%"}, "too little data"),
    ],
)
def test_statuses(counts, limits, status):
    assert status_of(pair_with(*counts), **limits) == status


def test_a_failure_outweighs_an_open_question():
    assert GATE_STATUSES == ("failed", "too little data", "holds")
    pair = pair_with(10, 10, 0, 0, kind=["a"] * 10 + ["b"] * 10)
    found = gate(Policy.of({"slice": [{"each": "kind", "max_nfr": "1%"}]}), pair, overall(pair))
    assert {c["where"]["kind"]: c["status"] for c in found["conditions"]} == {
        "a": "too little data",
        "b": "failed",
    } and found["status"] == "failed"


def test_rules_for_slices():
    pair = pair_with(980, 20, 0, 0, kind=["a"] * 980 + ["b"] * 20, size=[1, 2] * 500)
    rules = [
        {"where": {"kind": "b"}, "max_nfr": "5%"},
        {"where": {"kind": "a", "size": 2}, "max_nfr": "1%", "min_accuracy_gain_observed": 0},
        {"each": ["kind"], "min_examples": 500, "max_nfr": "1%"},
    ]
    found = gate(Policy.of({"slice": rules}), pair, overall(pair))
    assert [(c["name"], c["where"], c["status"]) for c in found["conditions"]] == [
        ("max_nfr", {"kind": "b"}, "failed"),
        ("max_nfr", {"kind": "a", "size": "2"}, "holds"),
        ("min_accuracy_gain_observed", {"kind": "a", "size": "2"}, "holds"),
        ("max_nfr", {"kind": "a"}, "holds"),
    ]
    assert [(c["value"], c["limit"]) for c in found["conditions"]][:2] == [(1, 0.05), (0, 0.01)]


def test_what_is_too_small_to_be_judged_is_said():
    pair = pair_with(980, 20, kind=["a"] * 980 + ["b"] * 15 + ["c"] * 5)
    found = summarize(
        pair,
        Settings(
            policy=Policy.of({"slice": [{"each": "kind", "min_examples": 500, "max_nfr": "50%"}]})
        ),
    )
    assert (
        found["notes"][-1]
        == "The gate does not judge 2 of 3 kind, which have fewer than 500 examples."
    )
    assert "judge" not in " ".join(
        summarize(
            pair, Settings(policy=Policy.of({"slice": [{"each": "kind", "max_nfr": "50%"}]}))
        )["notes"]
    )


@pytest.mark.parametrize(
    "rule, message",
    [
        ({"where": {"kind": "bb"}, "max_nfr": 0.1}, "has no examples: in 'kind' did you mean 'b'"),
        (
            {"where": {"kinds": "b"}, "max_nfr": 0.1},
            "no column for slices is called 'kinds': did you mean 'kind'",
        ),
        ({"where": {"kind": "a", "size": 2}, "max_nfr": 0.1}, "has no examples"),
        (
            {"each": "kind", "min_examples": 99, "max_nfr": 0.1},
            "no kind has 99 examples, the largest has 10",
        ),
        (
            {"where": {"kind": "a"}, "min_mean_difference": 0.1},
            "min_mean_difference cannot be judged for a slice",
        ),
    ],
)
def test_slices_that_are_not_there(rule, message):
    pair = pair_with(10, 10, kind=["a"] * 10 + ["b"] * 10, size=[1] * 10 + [2] * 10)
    with pytest.raises(ValueError, match=message):
        gate(Policy.of({"slice": [rule]}), pair, overall(pair))


def test_gates_on_scores():
    draw = np.random.default_rng(0)
    pair = scored_pair(old := draw.uniform(0, 0.5, 1000), old + 0.1)
    assert (
        status_of(pair, min_mean_difference=0.05, max_nfr="1%") == "holds"
        and status_of(pair, min_mean_difference=0.2) == "failed"
    )
    with pytest.raises(ValueError, match="min_accuracy_gain cannot be judged: that needs labels"):
        status_of(pair, min_accuracy_gain=0)


def test_a_policy_can_name_a_value_of_a_column_that_was_cut_into_quarters():
    pair = pair_with(1900, 100, customer=np.arange(2000) // 10)
    rule = {"where": {"customer": 17}, "max_nfr": "50%"}
    found = gate(Policy.of({"slice": [rule]}), pair, overall(pair))
    assert found["conditions"][0]["where"] == {"customer": "17"}
