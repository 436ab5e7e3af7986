"""The numbers against counts by hand and other definitions."""

from math import isnan

import numpy as np
import pytest
from made_pairs import pair_of, pair_with, random_pair, scored_pair
from scipy import stats

from compatkit.compare.estimates import (
    about,
    by_class,
    by_slice,
    examples_for_equality,
    examples_for_gain,
    examples_for_rate,
    measures,
    models,
    score_measures,
    smallest_sample,
)
from compatkit.compare.pair import Pair
from compatkit.compare.verdict import verdict
from compatkit.metrics import MEASURES, FlipCounts, clopper_pearson
from compatkit.predictions import Predictions
from compatkit.support.paired import gain_interval


@pytest.mark.parametrize("seed", range(20))
def test_identities(seed):
    counts = FlipCounts(*np.random.default_rng(seed).integers(1, 50, 5).tolist())
    found = measures(counts)
    value = {name: found[name]["value"] for name in MEASURES}
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
    assert {
        name: found[name]["n"]
        for name in ("nfr", "nfi", "bec", "btc", "accuracy_new", "accuracy_gain", "mcnemar")
    } == {
        "nfr": 70,
        "nfi": 20,
        "bec": 20,
        "btc": 45,
        "accuracy_new": 70,
        "accuracy_gain": 70,
        "mcnemar": 15,
    }
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
        "mean_old": 4,
        "mean_new": 4,
        "pfr": 4,
        "nfr": 4,
        "gain": 2,
        "regression": 1,
        "mean_difference": 4,
    }
    assert isnan(found["regression"]["low"]) and isnan(
        found["regression"]["high"]
    )  # one value has no spread


@pytest.mark.parametrize("seed", range(10))
def test_scores_against_scipy_and_in_any_order(seed):
    draw = np.random.default_rng(seed)
    old, other = draw.random((2, 200)).round(2)  # no change is too small to count
    new = np.where(draw.random(200) < 0.5, old, other)
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


@pytest.mark.parametrize("unit, shift", [(1, 0), (100, 0), (1, -7)])
def test_a_fall_counts_from_one_percent_of_the_range(unit, shift):
    old = np.linspace(0, 1, 101) * unit + shift
    new = old - np.where(np.arange(101) == 50, 0.0101, 0.0049) * unit
    new[[0, 100]] = old[[0, 100]]  # the range stays what it is
    found = score_measures(old, new)
    assert (found["nfr"]["value"], found["pfr"]["value"]) == (1 / 101, 0)
    assert found["regression"]["value"] == pytest.approx(0.0101 * unit)
    assert found["mean_difference"]["differing"] == 99  # all of them move the mean


def test_an_error_code_among_scores_makes_no_fall_small():
    old = np.linspace(0, 1, 1000)
    new = np.append(old[1:] - 0.02, -999.0)
    assert score_measures(old, new)["nfr"]["value"] > 0.9


def test_scores_that_are_missing():
    with pytest.raises(ValueError, match="old_score"):
        score_measures([np.nan, 1.0], [1.0, 1.0])


# --- classes and slices ---------------------------------------------------------------------------


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
        by_slice(pair, ["intent", "length"], pairs=True, numeric=["length"]),
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
    assert [one["p"] for one in found] == sorted(one["p"] for one in found)


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


def test_main_effects_by_default_and_never_an_exponential_number():
    columns = {f"c{number}": np.arange(500) % 2 == number % 2 for number in range(12)}
    pair = pair_with(450, 20, 30, **columns)
    assert len(by_slice(pair, list(columns))) == 24
    assert len(by_slice(pair, list(columns), pairs=True)) <= 24 + 66 * 4


def test_slices_are_listed_by_evidence_and_not_by_count():
    """50 flips of 5,000 are what chance gives, 10 of 20 are not."""
    kind = np.array(["large"] * 4980 + ["small"] * 20)
    flips = np.zeros(5000, dtype=int)
    flips[:50] = flips[4985:4995] = 1
    found = by_slice(
        pair_of(np.zeros(5000, dtype=int), np.zeros(5000, dtype=int), flips, kind=kind), ["kind"]
    )
    assert found[0]["where"] == {"kind": "small"} and found[0]["significant"]


# --- each version by itself -----------------------------------------------------------------------


def test_probabilities_are_judged_as_scikit_learn_does():
    from sklearn.metrics import f1_score, log_loss

    draw = np.random.default_rng(0)
    logits, label = draw.normal(size=(2, 400, 4)), draw.integers(0, 4, 400)
    names = np.array(list("abcd"))
    sides = [
        Predictions(range(400), names[label], logits=side, classes=list("abcd")) for side in logits
    ]
    found = models(Pair.of(sides[0], sides[1].select(sides[1].id[::-1])))
    for key, side in zip(("old", "new"), logits):
        p = np.exp(side) / np.exp(side).sum(axis=1, keepdims=True)
        assert found["log_loss"][key] == pytest.approx(log_loss(label, p))
        assert found["brier"][key] == pytest.approx(
            ((p - np.eye(4)[label]) ** 2).sum(axis=1).mean()
        )
        assert found["macro_f1"][key] == pytest.approx(
            f1_score(label, side.argmax(axis=1), average="macro")
        )
    old, new = (side.argmax(axis=1) == label for side in logits)
    p = np.exp(logits[1]) / np.exp(logits[1]).sum(axis=1, keepdims=True)
    sure = (p.max(axis=1) >= 0.9) & old & ~new
    assert found["flips"] == {"n": int((old & ~new).sum()), "sure": int(sure.sum())}


def test_without_probabilities_only_the_answers_are_judged():
    assert set(models(random_pair(0))) == {"macro_f1"}
    assert models(scored_pair([0.1, 0.2], [0.3, 0.1])) == {}


# --- advised numbers of examples ------------------------------------------------------------------


@pytest.mark.parametrize("limit, n", [(0.01, 368), (0.05, 72), (0.5, 6), (1, 1)])
def test_the_smallest_sample(limit, n):
    assert smallest_sample(limit) == n and clopper_pearson(0, n)[1] <= limit
    assert n == 1 or clopper_pearson(0, n - 1)[1] > limit


def power_of_a_rate(n, rate, limit):
    """Exact, by listing every number of flips."""
    flips = np.arange(n + 1)
    chance = stats.binom.pmf(flips, n, rate)
    likely = flips[chance > 1e-9]
    ends = [clopper_pearson(int(k), n) for k in likely]
    held = [high <= limit if rate < limit else low > limit for low, high in ends]
    return float(chance[likely] @ np.array(held))


@pytest.mark.parametrize(
    "rate, limit",
    [(0.0, 0.01), (0.005, 0.01), (0.002, 0.01), (0.03, 0.05), (0.02, 0.01), (0.1, 0.05)],
)
def test_the_advised_size_shows_a_rate_four_times_out_of_five(rate, limit):
    n = examples_for_rate(rate, limit)
    assert power_of_a_rate(n, rate, limit) >= 0.8
    assert power_of_a_rate(int(n * 0.6), rate, limit) < 0.8  # and it is not needlessly large


@pytest.mark.parametrize("rate, limit", [(0.0, 0.01), (0.0, 0.0364), (0.03, 0.05), (0.02, 0.01)])
def test_the_advised_size_is_the_first_of_two_digits(rate, limit):
    n = int(examples_for_rate(rate, limit))
    step = 10 ** (len(str(n)) - 2)
    before = n - (step if n > 10 * step else step // 10)
    assert n % step == 0 and power_of_a_rate(before, rate, limit) < 0.8


def test_a_rate_at_its_limit_is_never_shown():
    assert examples_for_rate(0.01, 0.01) == np.inf and about(np.inf).startswith("more examples")


@pytest.mark.parametrize("share, margin", [(0.1, 0.01), (0.04, 0.02)])
def test_the_advised_size_shows_equality_by_simulation(share, margin):
    n = int(examples_for_equality(share, margin))
    drawn = np.random.default_rng(0).multinomial(n, [share / 2, share / 2, 1 - share], 300).tolist()
    ends = [gain_interval(b, c, n) for b, c, _ in drawn]
    shown = np.mean([-margin < low and high < margin for low, high in ends])
    assert 0.72 <= shown <= 0.88


def power_of_equality(n, share, margin):
    """Exact, by listing every pair of flips."""
    most = int(stats.binom.ppf(1 - 1e-7, n, share / 2)) + 1
    flips = [(b, c, n - b - c) for b in range(most) for c in range(most) if b + c <= n]
    chance = stats.multinomial.pmf(flips, n, [share / 2, share / 2, 1 - share])
    likely = [(*pair[:2], p) for pair, p in zip(flips, chance) if p > 1e-7]
    ends = [(gain_interval(b, c, n), p) for b, c, p in likely]
    return sum(p for (low, high), p in ends if -margin < low and high < margin)


@pytest.mark.parametrize("share, margin, n", [(0.01, 0.02, 450), (0.02, 0.03, 350), (0, 0.02, 190)])
def test_with_few_flips_the_advised_size_is_the_smallest_that_shows_equality(share, margin, n):
    assert examples_for_equality(share, margin) == n
    assert power_of_equality(n, share, margin) >= 0.8 > power_of_equality(n - 10, share, margin)


def test_the_advised_size_shows_a_gain_by_simulation():
    n = int(examples_for_gain(0.02, 0.1))
    drawn = np.random.default_rng(0).multinomial(n, [0.04, 0.06, 0.9], 300).tolist()
    shown = np.mean([gain_interval(b, c, n)[0] > 0 for b, c, _ in drawn])
    assert 0.7 <= shown <= 0.88


def test_sizes_in_words():
    assert about(1201) == "about 1,300 examples" and about(1200) == "about 1,200 examples"
    assert about(3) == "about 10 examples" and about(99) == "about 99 examples"


@pytest.mark.parametrize(
    "counts, rates",
    [
        ((960, 5, 30, 5), (0.005, 0.03)),  # better, NFR half the tolerance
        ((480, 1, 1, 18), (0.002, 0.002)),  # equal, NFR a fifth of the tolerance
        # NFR is beyond the tolerance, but one sample in two would not show it
        ((920, 35, 35, 10), (0.035, 0.035)),
    ],
)
def test_the_size_in_the_sentence_is_one_at_which_the_verdict_comes_out(counts, rates):
    word, reason = verdict(measures(FlipCounts(*counts, 0)), 0.03 if counts[1] == 35 else 0.01)
    assert word == "too little data" and "with a probability of 80 %" in reason
    n = int(reason.split(" examples would show")[0].rpartition(" ")[2].replace(",", ""))
    drawn = np.random.default_rng(1).multinomial(n, [*rates, 1 - sum(rates)], 200).tolist()
    words = [
        verdict(measures(FlipCounts(rest, b, c, 0, 0)), 0.03 if counts[1] == 35 else 0.01)[0]
        for b, c, rest in drawn
    ]
    assert words.count("too little data") <= 0.28 * len(words)
