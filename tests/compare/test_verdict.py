"""The numbers against counts by hand and other definitions; the verdict and the gate never pass on too little data."""

import json
from math import isnan, sqrt

import numpy as np
import pytest
from scipy import optimize, stats

from compatkit.compare.verdict import (
    GATE_STATUSES, VERDICTS, by_class, by_slice, gate, measures, overall, paired_gain_interval, score_measures, smallest_sample,
    summarize, verdict)  # fmt: skip
from compatkit.compare.pair import Pair
from compatkit.metrics import MEASURES, FlipCounts, clopper_pearson
from compatkit.compare.policy import Policy
from compatkit.predictions import Predictions


def pair_of(label, old, new, **columns):
    ids = [f"e{i}" for i in range(len(label))]
    return Pair.of(Predictions(ids, label, old, columns=columns), Predictions(ids, label, new))


def pair_with(
    both_right=0, negative=0, positive=0, both_wrong_same=0, both_wrong_different=0, **columns
):
    counts = (both_right, negative, positive, both_wrong_same, both_wrong_different)
    old, new = np.repeat([0, 0, 1, 1, 1], counts), np.repeat([0, 1, 0, 1, 2], counts)
    return pair_of(np.zeros(len(old), dtype=int), old, new, **columns)


def random_pair(seed, n=400, columns=True):
    draw = np.random.default_rng(seed)
    label = draw.integers(0, 4, n)
    old, new = (np.where(draw.random(n) < 0.75, label, draw.integers(0, 4, n)) for _ in range(2))
    extra = (
        {"intent": draw.choice(["x", "y", "z"], n), "length": draw.integers(0, 50, n)}
        if columns
        else {}
    )
    return pair_of(label, old, new, **extra)


def scored_pair(old, new, **columns):
    ids = [f"e{i}" for i in range(len(old))]
    return Pair.of(Predictions(ids, score=old, columns=columns), Predictions(ids, score=new))


# --- the paired interval ---------------------------------------------------------------------------------------------


def likeliest(b, c, n, gain):
    """Largest log-likelihood of three cells with the difference of rates fixed, found without any formula: its rate of negative flips."""
    cost = lambda q: -(b * np.log(q) + c * np.log(q + gain) + (n - b - c) * np.log1p(-2 * q - gain))
    low, high = max(0, -gain) + 1e-12, (1 - gain) / 2 - 1e-12
    return optimize.minimize_scalar(
        cost, bounds=(low, high), method="bounded", options={"xatol": 1e-12}
    ).x


@pytest.mark.parametrize(
    "b, c, n", [(7, 1, 21), (20, 60, 1000), (3, 3, 50), (40, 2, 100), (1, 1, 10_000)]
)
def test_the_ends_are_where_the_score_test_begins_to_refuse(b, c, n):
    for end in paired_gain_interval(b, c, n):
        rate = likeliest(b, c, n, end)
        score = (c - b - n * end) / sqrt(n * (2 * rate + end * (1 - end)))
        assert abs(score) == pytest.approx(1.959964, abs=2e-4)


def test_a_published_interval():
    # airway hyper-responsiveness of 21 children; Fagerland, Lydersen and Laake 2014 print -.517 to -.026
    assert paired_gain_interval(7, 1, 21) == pytest.approx((-0.517, -0.026), abs=5e-4)


def test_ends_are_ordered_and_within_bounds():
    for n in (1, 2, 5, 13):
        for b in range(n + 1):
            for c in range(n + 1 - b):
                low, high = paired_gain_interval(b, c, n)
                assert -1 <= low <= (c - b) / n <= high <= 1 and low < high
                assert paired_gain_interval(c, b, n) == pytest.approx((-high, -low), abs=1e-12)


def test_higher_levels_are_wider_and_large_samples_narrow():
    assert paired_gain_interval(20, 60, 1000, 0.99)[0] < paired_gain_interval(20, 60, 1000)[0]
    low, high = paired_gain_interval(200_000, 300_000, 10**7)
    wald = 1.959964 * sqrt((500_000 - 1e5**2 / 1e7) / 1e14)
    assert (low, high) == pytest.approx((0.01 - wald, 0.01 + wald), rel=1e-3)


def test_coverage_by_simulation():
    draw = np.random.default_rng(0)
    for n, negative, positive in [(30, 0.1, 0.1), (200, 0.02, 0.05), (1000, 0.03, 0.06)]:
        drawn = draw.multinomial(n, [negative, positive, 1 - negative - positive], 800)
        ends = {(b, c): paired_gain_interval(b, c, n) for b, c, _ in drawn.tolist()}
        held = np.mean(
            [ends[b, c][0] <= positive - negative <= ends[b, c][1] for b, c, _ in drawn.tolist()]
        )
        assert held > 0.93


@pytest.mark.parametrize(
    "wrong", [(-1, 0, 5), (3, 3, 5), (0, 0, 0), (1, 1, 5, 1.0), (1, 1, 5, 0.0)]
)
def test_impossible_counts(wrong):
    with pytest.raises(ValueError, match="counts must be at least 0 and fit into the examples"):
        paired_gain_interval(*wrong)


# --- measures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_identities(seed):
    counts = FlipCounts(*np.random.default_rng(seed).integers(1, 50, 5).tolist())
    found = measures(counts)
    value = {name: found[name]["value"] for name in (*MEASURES, "accuracy_gain")}
    assert value["pfr"] - value["nfr"] == pytest.approx(value["accuracy_gain"], abs=1e-12)
    assert value["accuracy_new"] - value["accuracy_old"] == pytest.approx(
        value["accuracy_gain"], abs=1e-12
    )
    assert value["bec"] == pytest.approx(1 - value["nfi"], abs=1e-12)
    for name in value:
        assert found[name]["low"] <= value[name] <= found[name]["high"]
    assert sum(found["counts"].values()) == counts.n


def test_every_share_stands_on_its_own_denominator():
    found = measures(FlipCounts(40, 5, 10, 8, 7))
    assert {name: found[name]["n"] for name in ("nfr", "nfi", "bec", "btc", "accuracy_new", "accuracy_gain", "mcnemar")} == {
        "nfr": 70, "nfi": 20, "bec": 20, "btc": 45, "accuracy_new": 70, "accuracy_gain": 70, "mcnemar": 15}  # fmt: skip
    for name, part, whole in (("nfi", 5, 20), ("bec", 15, 20), ("btc", 40, 45), ("nfr_mc", 12, 70)):
        assert (found[name]["low"], found[name]["high"]) == clopper_pearson(part, whole)
    assert found["mcnemar"]["value"] == pytest.approx(stats.binomtest(5, 15).pvalue)


def test_scores():
    found = score_measures([0.5, 0.5, 0.2, 0.9], [0.7, 0.5, 0.1, 1.0])
    value = {name: estimate["value"] for name, estimate in found.items()}
    assert value == pytest.approx(
        {
            "mean_old": 0.525,
            "mean_new": 0.575,
            "pfr": 0.5,
            "nfr": 0.25,
            "gain": 0.15,
            "regression": 0.1,
            "mean_difference": 0.05,
        }
    )
    assert {name: estimate["n"] for name, estimate in found.items()} == {
        "mean_old": 4, "mean_new": 4, "pfr": 4, "nfr": 4, "gain": 2, "regression": 1, "mean_difference": 4}  # fmt: skip
    assert isnan(found["regression"]["low"]) and isnan(
        found["regression"]["high"]
    )  # one value has no spread


@pytest.mark.parametrize("seed", range(10))
def test_scores_against_scipy_and_in_any_order(seed):
    draw = np.random.default_rng(seed)
    old = draw.random(200)
    new = np.where(draw.random(200) < 0.5, old, draw.random(200))
    found = score_measures(old, new)
    expected = stats.ttest_1samp(new - old, 0).confidence_interval(0.95)
    assert (found["mean_difference"]["low"], found["mean_difference"]["high"]) == pytest.approx(
        tuple(expected)
    )
    assert found["pfr"]["value"] * found["gain"]["value"] - found["nfr"]["value"] * found[
        "regression"
    ]["value"] == pytest.approx((new - old).mean())
    order = draw.permutation(200)
    assert score_measures(old[order], new[order]) == found  # to the last bit


def test_equal_scores_have_no_gain():
    found = score_measures(np.ones(5), np.ones(5))
    assert (found["pfr"]["value"], found["nfr"]["value"], found["mean_difference"]["value"]) == (
        0,
        0,
        0,
    )
    assert isnan(found["gain"]["value"]) and found["gain"]["n"] == 0


def test_scores_that_are_missing():
    with pytest.raises(ValueError, match="old_score has 1 missing"):
        score_measures([np.nan, 1.0], [1.0, 1.0])


# --- the verdict -----------------------------------------------------------------------------------------------------

TABLE = [  # both right, negative, positive, both wrong: the word
    ((850, 2, 60, 88), "better and compatible"),
    ((9000, 60, 400, 540), "better and compatible"),
    ((850, 20, 60, 70), "better but regresses"),
    ((10, 4, 20, 2), "better but regresses"),  # few examples, but certainly above 1 %
    ((850, 60, 20, 70), "worse"),
    ((4, 12, 0, 4), "worse"),
    ((8500, 70, 80, 1350), "no measurable difference"),
    ((99_000, 0, 0, 1000), "no measurable difference"),
    ((700, 45, 45, 210), "too little data"),  # equal, but one point is not excluded
    ((850, 30, 35, 85), "too little data"),
    ((15, 0, 0, 5), "too little data"),
    ((300, 0, 0, 60), "too little data"),
    ((0, 0, 20, 0), "too little data"),  # surely better, but 0 of 20 says nothing about 1 %
    ((200, 0, 25, 25), "too little data"),
    ((90_000, 980, 4000, 5020), "too little data"),  # .98 % with an interval around 1 %
    ((90_000, 1030, 4000, 4970), "better but regresses"),
    ((50, 0, 5, 45), "too little data"),  # Tango's interval excludes 0, the exact test does not
]


@pytest.mark.parametrize("counts, word", TABLE)
def test_the_table_of_verdicts(counts, word):
    found = measures(FlipCounts(*counts, 0))
    assert verdict(found)[0] == word
    reason = verdict(found)[1]
    assert (
        f"{counts[1]:,} of {sum(counts):,}" in reason
        and "  " not in reason
        and reason.endswith(".")
    )


def test_every_word_is_in_the_table():
    assert {word for _, word in TABLE} == set(VERDICTS)


def test_tolerance_and_margin_move_the_verdict():
    found = measures(FlipCounts(850, 20, 60, 50, 20))
    assert verdict(found, tolerance=0.05)[0] == "better and compatible"
    assert (
        verdict(found, tolerance=0.031)[0] == "better and compatible"
        and verdict(found, tolerance=0.03)[0] == "too little data"
    )
    found = measures(FlipCounts(850, 30, 35, 85, 0))
    assert verdict(found, margin=0.05)[0] == "no measurable difference"


@pytest.mark.parametrize(
    "negative, positive, different",
    [(0.02, 0.05, 0.1), (0.05, 0.08, 0.1), (0, 0.05, 0), (0, 0, 0), (0.03, 0.03, 0)],
)
def test_twenty_examples_are_too_few(negative, positive, different):
    draw = np.random.default_rng(0)
    drawn = draw.multinomial(
        20, [0.8 - negative, negative, positive, 0.2 - positive - different, different], 300
    ).tolist()
    words = [verdict(measures(FlipCounts(*counts)))[0] for counts in set(map(tuple, drawn))]
    assert (
        words.count("too little data") >= 0.95 * len(words)
        and "better and compatible" not in words
        and "no measurable difference" not in words
    )


def test_no_sample_that_is_too_small_for_the_tolerance_passes():
    for n in (1, 2, 5, 50, 200, 367):
        for positive in {0, 1, n // 2, n}:
            word = verdict(measures(FlipCounts(n - positive, 0, positive, 0, 0)))[0]
            assert word == "too little data"
    assert verdict(measures(FlipCounts(268, 0, 100, 0, 0)))[0] == "better and compatible"


def test_wrong_passes_are_rare():
    """At the two edges of the rule: no gain, and an NFR at the tolerance; 2.5 % each are allowed, plus three standard errors."""
    draw = np.random.default_rng(0)
    for negative, positive in ((0.006, 0.006), (0.01, 0.04)):
        drawn = draw.multinomial(4000, [negative, positive, 1 - negative - positive], 500).tolist()
        words, passes = {}, 0
        for b, c, rest in drawn:
            if (b, c) not in words:
                words[b, c] = verdict(measures(FlipCounts(rest, b, c, 0, 0)))[0]
            passes += words[b, c] == "better and compatible"
        assert passes <= 23


@pytest.mark.parametrize("shift, spread, n, word", [
    (0.02, 0, 1000, "better and compatible"), (0.03, 0.1, 1000, "better but regresses"), (-0.03, 0.1, 1000, "worse"),
    (0, 0.1, 4000, "no measurable difference"), (0, 0.1, 100, "too little data"), (0.05, 0.1, 20, "too little data"), (0, 0, 5000, "no measurable difference"),
    (0, 0, 20, "too little data")])  # fmt: skip
def test_verdicts_of_scores(shift, spread, n, word):
    draw = np.random.default_rng(0)
    old = draw.uniform(0.3, 0.7, n)
    assert (
        verdict({"scores": score_measures(old, old + shift + spread * draw.uniform(-1, 1, n))})[0]
        == word
    )


def test_the_margin_of_scores_is_a_share_of_their_range():
    draw = np.random.default_rng(0)
    old = draw.uniform(0, 1, 3000)
    new = np.clip(old + draw.normal(0, 0.05, 3000), 0, 1)
    assert summarize(scored_pair(old, new))["verdict"]["word"] == "no measurable difference"
    assert (
        summarize(scored_pair(100 * old, 100 * new))["verdict"]["word"]
        == "no measurable difference"
    )


@pytest.mark.parametrize("limit, n", [(0.01, 368), (0.05, 72), (0.5, 6), (1, 1)])
def test_the_smallest_sample(limit, n):
    assert smallest_sample(limit) == n and clopper_pearson(0, n)[1] <= limit
    assert n == 1 or clopper_pearson(0, n - 1)[1] > limit


# --- classes and slices ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_classes_add_to_the_whole(seed):
    pair = random_pair(seed)
    counts, classes = FlipCounts.of(pair.label, pair.old, pair.new), by_class(pair)
    assert sum(found["n"] for found in classes.values()) == pair.n
    for name, number in (
        ("nfr", counts.negative),
        ("pfr", counts.positive),
        ("accuracy_old", counts.both_right + counts.negative),
    ):
        assert sum(
            found[name]["value"] * found["n"] for found in classes.values()
        ) == pytest.approx(number)
    for code, answer in enumerate(pair.answers):
        inside = pair.label == code
        expected = FlipCounts.of(pair.label[inside], pair.old[inside], pair.new[inside])
        assert classes[str(answer)]["nfr"]["value"] == expected.nfr
        assert (
            classes[str(answer)]["nfr"]["low"],
            classes[str(answer)]["nfr"]["high"],
        ) == expected.interval("nfr")


def test_answers_that_are_no_label_are_no_class():
    assert list(by_class(pair_of(["a", "a"], ["a", "b"], ["c", "a"]))) == ["a"]


@pytest.mark.parametrize("seed", range(5))
def test_slices_add_to_the_whole(seed):
    pair = random_pair(seed)
    counts, found = (
        FlipCounts.of(pair.label, pair.old, pair.new),
        by_slice(pair, ["intent", "length"]),
    )
    for columns in ({"intent"}, {"length"}, {"intent", "length"}):
        group = [one for one in found if set(one["where"]) == columns]
        assert sum(one["n"] for one in group) == pair.n and sum(
            one["share"] for one in group
        ) == pytest.approx(1)
        assert (sum(one["negative"] for one in group), sum(one["positive"] for one in group)) == (
            counts.negative,
            counts.positive,
        )
    assert len({tuple(sorted(one["where"].items())) for one in found}) == len(found)
    assert [one["negative"] for one in found] == sorted(
        (one["negative"] for one in found), reverse=True
    )


def test_slices_by_hand():
    found = by_slice(pair_with(90, 10, intent=["x"] * 80 + ["y"] * 20), ["intent"])
    assert [(one["where"], one["n"], one["negative"]) for one in found] == [
        ({"intent": "y"}, 20, 10),
        ({"intent": "x"}, 80, 0),
    ]
    assert found[0]["p"] == pytest.approx(stats.hypergeom.sf(9, 100, 10, 20)) and found[1]["p"] == 1
    assert (
        found[0]["q"] == pytest.approx(2 * found[0]["p"])
        and found[0]["significant"]
        and not found[1]["significant"]
    )
    assert (found[0]["nfr"]["low"], found[0]["nfr"]["high"]) == clopper_pearson(10, 20)


def test_slices_of_scores():
    found = by_slice(
        scored_pair([0.5] * 6, [0.4] * 3 + [0.6] * 3, kind=["a"] * 3 + ["b"] * 3), ["kind"]
    )
    assert [(one["where"], one["negative"], one["positive"]) for one in found] == [
        ({"kind": "a"}, 3, 0),
        ({"kind": "b"}, 0, 3),
    ]


def test_a_column_named_twice_counts_once():
    pair = random_pair(0)
    assert (
        by_slice(pair, ["intent", "intent"]) == by_slice(pair, ["intent"])
        and by_slice(pair, []) == []
    )


def test_unknown_columns():
    with pytest.raises(ValueError, match="did you mean 'intent'"):
        by_slice(random_pair(0), ["intents"])


# --- the gate --------------------------------------------------------------------------------------------------------


def status_of(pair, **limits):
    return gate(Policy.of(limits), pair, overall(pair))["status"]


@pytest.mark.parametrize("counts, limits, status", [
    ((985, 5, 5, 5), {"max_nfr": "1%"}, "holds"),
    ((975, 15, 5, 5), {"max_nfr": "1%"}, "failed"),
    ((990, 10, 0, 0), {"max_nfr": "1%"}, "holds"),  # the limit itself is kept
    ((20, 0, 0, 0), {"max_nfr": "1%"}, "too little data"),
    ((19, 1, 0, 0), {"max_nfr": "1%"}, "too little data"),
    ((10, 10, 0, 0), {"max_nfr": "1%"}, "failed"),  # few, but certain
    ((367, 0, 0, 0), {"max_nfr": "1%"}, "too little data"),
    ((368, 0, 0, 0), {"max_nfr": "1%"}, "holds"),
    ((3, 0, 0, 0), {"max_nfr": 0}, "holds"),  # a golden set
    ((3, 1, 0, 0), {"max_nfr": 0}, "failed"),
    ((3, 1, 0, 0), {"max_nfr": "100%"}, "holds"),
    ((998, 2, 0, 0), {"max_nfr_upper": "1%"}, "holds"),
    ((994, 6, 0, 0), {"max_nfr_upper": "1%"}, "failed"),
    ((300, 0, 0, 0), {"max_nfr_upper": "1%"}, "too little data"),
    ((150, 150, 0, 0), {"max_nfr_upper": "1%"}, "failed"),
    ((900, 10, 30, 60), {"min_accuracy_gain": 0}, "holds"),
    ((900, 30, 10, 60), {"min_accuracy_gain": 0}, "failed"),
    ((900, 30, 29, 41), {"min_accuracy_gain": "-0.1%"}, "holds"),
    ((10, 1, 2, 7), {"min_accuracy_gain": 0}, "too little data"),
    ((2, 0, 18, 0), {"min_accuracy_gain": 0}, "holds"),  # few, but certain
    ((900, 10, 30, 60), {"min_accuracy_gain_lower": 0}, "holds"),
    ((900, 25, 30, 45), {"min_accuracy_gain_lower": 0}, "failed"),
    ((975, 15, 5, 5), {"max_nfr": "1%", "min_accuracy_gain": "-50%"}, "failed"),
    ((20, 0, 0, 0), {"max_nfr": "1%", "min_accuracy_gain": "-50%"}, "too little data"),
    ((10, 10, 0, 0), {"max_nfr": "1%", "max_nfr_upper": "90%"}, "failed"),
])  # fmt: skip
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
    rules = [{"where": {"kind": "b"}, "max_nfr": "5%"}, {"where": {"kind": "a", "size": 2}, "max_nfr": "1%", "min_accuracy_gain": 0},
             {"each": ["kind"], "min_examples": 500, "max_nfr": "1%"}]  # fmt: skip
    found = gate(Policy.of({"slice": rules}), pair, overall(pair))
    assert [(c["name"], c["where"], c["status"]) for c in found["conditions"]] == [
        ("max_nfr", {"kind": "b"}, "failed"), ("max_nfr", {"kind": "a", "size": "2"}, "holds"), ("min_accuracy_gain", {"kind": "a", "size": "2"}, "holds"),
        ("max_nfr", {"kind": "a"}, "holds")]  # fmt: skip
    assert [(c["value"], c["limit"]) for c in found["conditions"]][:2] == [(1, 0.05), (0, 0.01)]


def test_what_is_too_small_to_be_judged_is_said():
    pair = pair_with(980, 20, kind=["a"] * 980 + ["b"] * 15 + ["c"] * 5)
    found = summarize(
        pair, policy=Policy.of({"slice": [{"each": "kind", "min_examples": 500, "max_nfr": "50%"}]})
    )
    assert (
        found["notes"][-1]
        == "The gate does not judge 2 of 3 kind, which have fewer than 500 examples."
    )
    assert "judge" not in " ".join(
        summarize(pair, policy=Policy.of({"slice": [{"each": "kind", "max_nfr": "50%"}]}))["notes"]
    )


@pytest.mark.parametrize("rule, message", [
    ({"where": {"kind": "bb"}, "max_nfr": 0.1}, "has no examples: in 'kind' did you mean 'b'"),
    ({"where": {"kinds": "b"}, "max_nfr": 0.1}, "no column for slices is called 'kinds': did you mean 'kind'"),
    ({"where": {"kind": "a", "size": 2}, "max_nfr": 0.1}, "has no examples"),
    ({"each": "kind", "min_examples": 99, "max_nfr": 0.1}, "no kind has 99 examples, the largest has 10"),
    ({"where": {"kind": "a"}, "min_mean_difference": 0.1}, "min_mean_difference cannot be judged for a slice"),
])  # fmt: skip
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


# --- the whole -------------------------------------------------------------------------------------------------------

ESTIMATE = {"value", "low", "high", "n"}


def plain(value):
    assert (
        isinstance(value, (dict, list, str, int, float, bool, type(None)))
        and type(value).__module__ == "builtins"
    ), value
    for part in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    ):
        plain(part)


def test_the_schema():
    found = summarize(random_pair(0), ["intent"], Policy.of(max_nfr="50%"))
    assert list(found) == [
        "old",
        "new",
        "examples",
        "left_out",
        "notes",
        "verdict",
        "overall",
        "classes",
        "slices",
        "tasks",
        "gate",
    ]
    assert set(found["overall"]) == {"counts", *MEASURES, "accuracy_gain", "mcnemar"} and set(
        found["verdict"]
    ) == {"word", "reason"}
    assert all(
        set(found["overall"][name]) == ESTIMATE for name in (*MEASURES, "accuracy_gain")
    ) and set(found["overall"]["mcnemar"]) == {"value", "n"}
    assert all(
        set(c) == {"n", "accuracy_old", "accuracy_new", "nfr", "pfr"}
        for c in found["classes"].values()
    )
    assert all(
        set(s) == {"where", "n", "share", "negative", "positive", "nfr", "p", "q", "significant"}
        for s in found["slices"]
    )
    assert set(found["gate"]) == {"status", "conditions"}
    assert all(
        set(c) == {"name", "where", "limit", "value", "bound", "status", "reason"}
        for c in found["gate"]["conditions"]
    )
    plain(found)
    json.dumps(found, allow_nan=False)


def test_the_schema_of_scores():
    found = summarize(scored_pair([0.1, 0.2, 0.3], [0.3, 0.2, 0.1]))
    assert set(found["overall"]) == {"scores"} and found["classes"] == {} and found["gate"] is None
    assert found["overall"]["scores"]["gain"]["low"] is None  # nan
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    "counts", [(1, 0, 0, 0), (0, 0, 0, 1), (0, 1, 0, 0), (5, 0, 3, 0), (0, 0, 0, 7)]
)
def test_tiny_and_one_sided_samples_have_a_summary(counts):
    found = summarize(pair_with(*counts))
    assert found["verdict"]["word"] in ("too little data", "worse")
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("seed", range(5))
def test_another_order_gives_the_same_summary(seed):
    draw = np.random.default_rng(seed)
    n = 300
    label, length = draw.integers(0, 3, n), draw.integers(0, 100, n)
    sides = [Predictions([f"e{i}" for i in range(n)], label, np.where(draw.random(n) < 0.8, label, draw.integers(0, 3, n)), score=draw.random(n),
                         columns={"length": length} if first else None) for first in (True, False)]  # fmt: skip
    mixed = [side.select(side.id[draw.permutation(n)]) for side in sides]
    policy = Policy.of({"max_nfr": 0.5, "slice": [{"each": "length", "max_nfr": 0.5}]})
    assert summarize(Pair.of(*mixed), ["length", "label"], policy) == summarize(
        Pair.of(*sides), ["length", "label"], policy
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"tolerance": 0},
        {"tolerance": 1},
        {"margin": 0},
        {"margin": -0.1},
        {"tolerance": float("nan")},
    ],
)
def test_tolerance_and_margin_are_checked(settings):
    with pytest.raises(ValueError, match="must lie between 0 and 1"):
        summarize(random_pair(0), **settings)


# --- several tasks ---------------------------------------------------------------------------------------------------


def harness():
    """A multiple-choice task by two metrics, a task of right and wrong with a score beside it, and a task of scores."""
    draw = np.random.default_rng(0)
    choice = [draw.integers(0, 4, 400).astype(np.int32) for _ in range(3)]
    norm = [side[draw.permutation(400)] for side in choice]
    match = [
        np.zeros(100, dtype=np.int32),
        *(draw.integers(0, 2, 100).astype(np.int32) for _ in range(2)),
    ]
    none = np.full(100, -1, dtype=np.int32)
    codes = [np.concatenate([a, b, c, none, none]) for a, b, c in zip(choice, norm, match)]
    scores = [
        np.concatenate([np.full(900, np.nan), draw.random(100), 50 + draw.random(100)])
        for _ in range(2)
    ]
    tasks = np.array(
        ["p (acc)"] * 400
        + ["p (acc_norm)"] * 400
        + ["q (em)"] * 100
        + ["q (f1)"] * 100
        + ["s (bleu)"] * 100,
        dtype=object,
    )
    return Pair(
        "a",
        "b",
        ("0", "1", "2", "3"),
        *codes,
        *scores,
        columns={"odd": np.arange(1100) % 2},
        task=tasks,
    )


def test_tasks_have_their_own_measures_and_the_whole_counts_once():
    pair = harness()
    found = summarize(pair, ["odd", "task"])
    assert (
        found["examples"] == 600
        and found["overall"]["nfr"]["n"] == 500
        and sum(found["overall"]["counts"].values()) == 500
    )
    assert (
        found["overall"]["scores"]["nfr"]["n"] == 200
        and sum(c["n"] for c in found["classes"].values()) == 500
    )
    assert list(found["tasks"]) == ["p (acc)", "p (acc_norm)", "q (em)", "q (f1)", "s (bleu)"]
    for name, one in found["tasks"].items():
        rows = pair.task == name
        if name[0] == "s" or "f1" in name:
            assert (
                set(one["overall"]) == {"scores"}
                and one["overall"]["scores"]["nfr"]["value"]
                == (pair.new_score[rows] < pair.old_score[rows]).mean()
            )
        else:
            assert (
                one["overall"]["nfr"]["value"]
                == FlipCounts.of(pair.label[rows], pair.old[rows], pair.new[rows]).nfr
            )
    assert {
        one["where"]["task"]: one["n"] for one in found["slices"] if set(one["where"]) == {"task"}
    } == {"p (acc)": 400, "q (em)": 100}
    assert any("several metrics" in note for note in found["notes"]) and any(
        "Scores of several tasks" in note for note in found["notes"]
    )


def test_rules_for_tasks_reach_every_metric():
    pair = harness()
    found = gate(
        Policy.of(
            {
                "slice": [
                    {"where": {"task": "p (acc_norm)"}, "max_nfr": 1e-3},
                    {"each": "odd", "max_nfr": 1e-3},
                ]
            }
        ),
        pair,
        overall(pair),
    )
    assert [c["where"] for c in found["conditions"]] == [
        {"task": "p (acc_norm)"},
        {"odd": "0"},
        {"odd": "1"},
    ]
    rows = pair.task == "p (acc_norm)"
    assert (
        found["conditions"][0]["value"]
        == FlipCounts.of(pair.label[rows], pair.old[rows], pair.new[rows]).nfr
    )
