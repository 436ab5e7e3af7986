"""Limits are read exactly as they are meant, and what could be misunderstood is refused."""

import numpy as np
import polars as pl
import pytest
from made_pairs import pair_with, scored_pair

from compatkit.compare.estimates import overall
from compatkit.compare.pair import read_pair
from compatkit.compare.policy import GATE_STATUSES, LIMITS, Policy, PolicyRule, apply_policy, share
from compatkit.compare.verdict import Settings, summarize


@pytest.mark.parametrize(
    "text, fraction",
    [
        ("1%", 0.01),
        ("1 %", 0.01),
        (" 1.5% ", 0.015),
        (".01", 0.01),
        ("1e-3", 0.001),
        (0.25, 0.25),
        (0, 0),
        ("0", 0),
        ("-0.5%", -0.005),
        ("100%", 1),
        ("+2%", 0.02),
        (-0.99, -0.99),
    ],
)
def test_shares(text, fraction):
    assert share(text) == fraction


def test_percents_are_the_nearest_floats():
    # 7 flips of 1,000 must keep the limit 0.7 %: .7 / 100 would be a hair below .007
    for tenths in range(1001):
        assert share(f"{tenths / 10}%") == tenths / 1000


@pytest.mark.parametrize(
    "value",
    [
        "",
        "%",
        "one",
        "1%%",
        "%1",
        "1,5%",
        "nan",
        "inf",
        "-inf%",
        "1e1%",
        "0x1%",
        "1_0%",
        True,
        False,
        None,
        [0.1],
        float("nan"),
    ],
)
def test_what_is_no_share(value):
    with pytest.raises(ValueError, match="max_nfr.*'1%'"):
        share(value, "max_nfr")


@pytest.mark.parametrize("value", [1, "1", 1.0, "5", -1, "1.5"])
def test_plain_numbers_from_1_on_could_mean_two_things(value):
    with pytest.raises(ValueError, match=r"could mean .* %: write '.*%' or"):
        share(value)


def test_beyond_everything():
    with pytest.raises(ValueError, match="101%.*100 %"):
        share("101%")


def test_of_keeps_the_order_and_lets_options_win():
    policy = Policy.of(
        {"max_nfr": "1%", "min_accuracy_gain": 0}, max_nfr="3%", max_nfr_observed=None
    )
    assert policy.rules == (PolicyRule({"max_nfr": 0.03, "min_accuracy_gain": 0}),)
    assert Policy.of().rules == () and Policy.of({}).rules == ()


def test_zero_from_an_option_is_a_limit():
    assert Policy.of(max_nfr_observed="0", min_accuracy_gain=0).rules == (
        PolicyRule({"max_nfr_observed": 0, "min_accuracy_gain": 0}),
    )


@pytest.mark.parametrize("name", LIMITS)
def test_every_limit_can_be_set_for_all_and_for_slices(name):
    policy = Policy.of(
        {name: 0.5, "slice": [{"where": {"a": 1}, name: 0.25}, {"each": "a", name: 0.125}]}
    )
    assert [rule.limits for rule in policy.rules] == [{name: 0.5}, {name: 0.25}, {name: 0.125}]


@pytest.mark.parametrize(
    "table, message",
    [
        ({"max_nfr": "-1%"}, "max_nfr = -1% is negative"),
        ({"max_nfr": 0}, "max_nfr_observed = 0"),
        ({"max_nrf": 0.1}, "'max_nrf': .*'max_nfr'"),
        ({"min_mean_difference": "1%"}, "plain number in the unit of the scores"),
        ({"min_mean_difference": True}, "plain number"),
        ({"slice": {"max_nfr": 0.1}}, "double brackets"),
        ({"slice": [3]}, "must be a table, not 3"),
        ({"slice": [{"max_nfr": 0.1}]}, "needs either where"),
        ({"slice": [{"where": {"a": "b"}, "each": ["a"], "max_nfr": 0.1}]}, "needs either where"),
        ({"slice": [{"where": "a", "max_nfr": 0.1}]}, "where = 'a' must be a table"),
        ({"slice": [{"where": {}, "max_nfr": 0.1}]}, "must be a table"),
        ({"slice": [{"each": [], "max_nfr": 0.1}]}, "must name columns"),
        ({"slice": [{"each": 3, "max_nfr": 0.1}]}, "must name columns"),
        ({"slice": [{"each": "a", "min_examples": 0, "max_nfr": 0.1}]}, "at least 1"),
        ({"slice": [{"each": "a", "min_examples": True, "max_nfr": 0.1}]}, "whole number"),
        ({"slice": [{"where": {"a": "b"}, "min_examples": 5, "max_nfr": 0.1}]}, "goes with each"),
        ({"slice": [{"where": {"a": "b"}}]}, "sets no limit"),
        ({"slice": [{"where": {"a": "b"}, "max_nfr": 2}]}, "could mean 2 % or 200 %"),
        ({"slice": [{"whree": {"a": "b"}, "max_nfr": 0.1}]}, "did you mean 'where'"),
    ],
)
def test_what_cannot_be_meant(table, message):
    with pytest.raises(ValueError, match=message):
        Policy.of(table)


def test_load(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(
        'max_nfr = "1%"\n[[slice]]\nwhere = {intent = "x", length = 3}\nmax_nfr = '
        '"2%"\n[[slice]]\neach = "intent"\nmin_examples = 9\nmax_nfr = .5'
    )
    with pytest.raises(ValueError, match="policy.toml: "):  # TOML wants 0.5
        Policy.load(path)
    path.write_text(path.read_text().replace("= .5", "= 0.5"), encoding="utf-8-sig")
    assert Policy.load(path, max_nfr="5%").rules == (
        PolicyRule({"max_nfr": 0.05}),
        PolicyRule({"max_nfr": 0.02}, {"intent": "x", "length": 3}),
        PolicyRule({"max_nfr": 0.5}, None, ("intent",), 9),
    )


@pytest.mark.parametrize(
    "content, message",
    [
        (b"max_nfr = 1%", "policy.toml: "),
        (b"\xff\xfe", "policy.toml: "),
        (b"", "sets no condition"),
        (b"max_nfr = 1", "policy.toml: max_nfr = 1 could mean"),
    ],
)
def test_bad_files_are_named(tmp_path, content, message):
    path = tmp_path / "policy.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Policy.load(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no policy file"):
        Policy.load(tmp_path / "no.toml")


# --- conditions -----------------------------------------------------------------------------------


def status_of(pair, **limits):
    return apply_policy(Policy.of(limits), pair, overall(pair))["status"]


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
    policy = Policy.of({"slice": [{"each": "kind", "max_nfr": "1%"}]})
    found = apply_policy(policy, pair, overall(pair))
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
    found = apply_policy(Policy.of({"slice": rules}), pair, overall(pair))
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
        ({"where": {"kind": "bb"}, "max_nfr": 0.1}, "in 'kind' did you mean 'b'"),
        ({"where": {"kinds": "b"}, "max_nfr": 0.1}, "'kinds': did you mean 'kind'"),
        ({"where": {"kind": "a", "size": 2}, "max_nfr": 0.1}, "has no examples"),
        ({"each": "kind", "min_examples": 99, "max_nfr": 0.1}, "no kind has 99 .*10"),
        ({"where": {"kind": "a"}, "min_mean_difference": 0.1}, "min_mean_difference"),
    ],
)
def test_slices_that_are_not_there(rule, message):
    pair = pair_with(10, 10, kind=["a"] * 10 + ["b"] * 10, size=[1] * 10 + [2] * 10)
    with pytest.raises(ValueError, match=message):
        apply_policy(Policy.of({"slice": [rule]}), pair, overall(pair))


def test_gates_on_scores():
    draw = np.random.default_rng(0)
    pair = scored_pair(old := draw.uniform(0, 0.5, 1000), old + 0.1)
    assert (
        status_of(pair, min_mean_difference=0.05, max_nfr="1%") == "holds"
        and status_of(pair, min_mean_difference=0.2) == "failed"
    )
    with pytest.raises(ValueError, match="min_accuracy_gain"):
        status_of(pair, min_accuracy_gain=0)


def test_a_policy_can_name_a_value_of_a_column_that_was_cut_into_quarters():
    pair = pair_with(1900, 100, customer=np.arange(2000) // 10)
    rule = {"where": {"customer": 17}, "max_nfr": "50%"}
    found = apply_policy(Policy.of({"slice": [rule]}), pair, overall(pair))
    assert found["conditions"][0]["where"] == {"customer": "17"}


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(
    "column, values, level",
    [
        ([0, 1], (1, 1.0, True, "1", "true"), "1"),
        ([0.5, 1.0], (1, 1.0, "1.0"), "1"),
        ([1 / 3, 0.5], (1 / 3, str(1 / 3)), "0.333"),
        ([False, True], (True, "true", "True", 1, 1.0), "True"),
        ([None, True, False], (True, "true", 1), "True"),
    ],
)
def test_a_value_finds_its_slice_in_files_of_any_kind(tmp_path, ending, column, values, level):
    path = tmp_path / f"a.{ending}"
    rows = {"id": range(60), "label": [1] * 60, "prediction": [1] * 60}
    table = pl.DataFrame(rows | {"is": column * (60 // len(column))})
    {"csv": table.write_csv, "jsonl": table.write_ndjson, "parquet": table.write_parquet}[ending](
        path
    )
    pair = read_pair(path, path)
    rules = [{"where": {"is": value}, "max_nfr": "50%"} for value in values]
    found = apply_policy(Policy.of({"slice": rules}), pair, overall(pair))["conditions"]
    assert [one["where"] for one in found] == [{"is": level}] * len(values)


@pytest.mark.parametrize(
    "column, value",
    [
        ([0, 1, 2], True),  # a count is no truth value
        (["yes", "True"], 1),
        (["1.0", "01"], 1.5),
        (["1.0", "1.00"], 1),  # either could be meant
        (["007", "x"], 7),
    ],
)
def test_a_value_that_could_mean_something_else_is_refused(column, value):
    pair = pair_with(30, 30, kind=column * (60 // len(column)))
    rule = {"where": {"kind": value}, "max_nfr": "50%"}
    with pytest.raises(ValueError, match="'kind'"):
        apply_policy(Policy.of({"slice": [rule]}), pair, overall(pair))


def test_truth_values_of_a_csv_are_those_of_a_parquet(tmp_path):
    rows = {"id": range(60), "label": [1] * 60, "prediction": [1] * 60, "is": [True, False] * 30}
    old, new = tmp_path / "old.csv", tmp_path / "new.parquet"
    pl.DataFrame(rows).write_csv(old)
    pl.DataFrame(rows).write_parquet(new)
    old.write_text(old.read_text().replace("true", "TRUE"))
    pair = read_pair(old, new)
    assert list(pair.columns) == ["is"] and pair.shown([0])[0]["is"] is True


def test_a_policy_that_is_nested_too_deep_is_named(tmp_path):
    path = tmp_path / "deep.toml"
    path.write_text(f"max_nfr = {'[' * 5_000}{']' * 5_000}")
    with pytest.raises(ValueError, match="deep.toml"):
        Policy.load(path)
