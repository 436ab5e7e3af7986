"""Every measure against a naive loop, another library, or a count by hand."""

from collections import Counter
from math import isnan, nan, sqrt

import numpy as np
import pytest

from compatkit import metrics
from compatkit.metrics import (
    MEASURES,
    FlipCounts,
    Sureness,
    agreement,
    calibration_error,
    clopper_pearson,
    competent,
    crossed_difference,
    curve_over_seeds,
    fit_temperature,
    fix_rate,
    keeps_accuracy,
    lowest_nfr,
    macro_f1,
    mean_interval,
    new_fault_rate,
    over_seeds,
    paired_difference,
    smooth_flips,
)
from compatkit.predictions import Predictions


def naive(label, old, new):
    counts = Counter()
    for y, o, n in zip(label, old, new):
        counts[
            "both_right"
            if o == y and n == y
            else "negative"
            if o == y
            else "positive"
            if n == y
            else "both_wrong_same"
            if o == n
            else "both_wrong_different"
        ] += 1
    return FlipCounts(
        *(
            counts[f]
            for f in (
                "both_right",
                "negative",
                "positive",
                "both_wrong_same",
                "both_wrong_different",
            )
        )
    )


NAMES = np.array(["cat", "dog", "a,b", "übung", "7"])
KINDS = {
    "int64": lambda v: v,
    "int32 and int64": lambda v: v.astype(np.int32),
    "uint8": lambda v: v.astype(np.uint8),
    "float": lambda v: v + 0.5,
    "booleans": lambda v: v > 2,
    "list of ints": lambda v: v.tolist(),
    "text array": lambda v: NAMES[v],
    "list of text": lambda v: NAMES[v].tolist(),
    "objects": lambda v: NAMES[v].astype(object),
    "tuples": lambda v: [("t", int(i)) for i in v],
    "generator": lambda v: (int(i) for i in v),
    "not contiguous": lambda v: np.repeat(v, 2)[::2],
}


@pytest.mark.parametrize("kind", KINDS)
def test_counts_are_those_of_a_naive_loop(kind):
    generator = np.random.default_rng(len(kind))
    for count in (1, 2, 17, 400):
        columns = generator.integers(0, 5, (3, count))
        assert FlipCounts.of(*(KINDS[kind](c) for c in columns)) == naive(
            *(list(KINDS[kind](c)) for c in columns)
        )


@pytest.mark.parametrize("count", [65_535, 65_536, 65_537, 200_001])
def test_counting_in_blocks_loses_nothing(count):
    label, old, new = np.random.default_rng(count).integers(0, 4, (3, count))
    right_old, right_new = label == old, label == new
    assert FlipCounts.of(label, old, new) == FlipCounts(
        (right_old & right_new).sum(),
        (right_old & ~right_new).sum(),
        (~right_old & right_new).sum(),
        (~right_old & ~right_new & (old == new)).sum(),
        (~right_old & ~right_new & (old != new)).sum(),
    )


def test_counts_are_those_of_confusion_matrices():
    from sklearn.metrics import confusion_matrix

    label, old, new = np.random.default_rng(3).integers(0, 4, (3, 500))
    right = confusion_matrix(label == old, label == new, labels=[True, False])
    wrong = (label != old) & (label != new)
    same = np.trace(confusion_matrix(old[wrong], new[wrong], labels=range(4)))
    assert FlipCounts.of(label, old, new) == FlipCounts(
        right[0, 0], right[0, 1], right[1, 0], same, right[1, 1] - same
    )


def test_no_mask_of_full_length_is_made():
    import tracemalloc

    label, old, new = np.random.default_rng(0).integers(0, 3, (3, 1_000_000))
    FlipCounts.of(label[:10], old[:10], new[:10])
    tracemalloc.start()
    FlipCounts.of(label, old, new)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000  # bytes: one boolean mask of full length


@pytest.mark.parametrize(
    "arguments, message",
    [
        (([], [], []), "there are no examples"),
        (([1], [1, 2], [1]), "unequal lengths"),
        (
            ([1, 2], ["1", "2"], [1, 2]),
            "label holds number, such as 1; old holds text, such as '1'",
        ),
        ((np.array([1, 2]), np.array([1, 2]), np.array(["1", "2"])), "never equal"),
        (([1, "1"], [1, "1"], [1, "1"]), "never equal"),
        (([1, 2], [None, 2], [1, 2]), "old has 1 missing"),
        ((["a", "b"], ["a", "b"], ["a", nan]), "new has 1 missing"),
        (
            ([1.0, 2.0], [1.0, nan], [1.0, 2.0]),
            r"old has 1 missing answers .None or NaN., the first at positions \[1\]",
        ),
        ((np.zeros((2, 2)), [1, 2], [1, 2]), "one answer per example"),
    ],
)
def test_bad_answers_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        FlipCounts.of(*arguments)


def test_measures_by_hand():
    counts = FlipCounts(
        both_right=60, negative=4, positive=10, both_wrong_same=20, both_wrong_different=6
    )
    expected = dict(
        n=100,
        nfr=0.04,
        pfr=0.10,
        accuracy_old=0.64,
        accuracy_new=0.70,
        nfi=4 / 30,
        btc=60 / 64,
        bec=26 / 30,
        nfr_mc=0.10,
        relative_nfr=0.04 / (0.64 * 0.30),
    )
    assert {name: getattr(counts, name) for name in expected} == pytest.approx(expected)


def test_identities_hold_for_random_counts():
    for row in np.random.default_rng(0).integers(0, 9, (2000, 5)):
        c = FlipCounts(*row)
        if c.n == 0:
            continue
        assert c.pfr - c.nfr == pytest.approx(c.accuracy_new - c.accuracy_old)
        assert c.bec == pytest.approx(1 - c.nfi)
        assert c.nfr_mc >= c.nfr
        if c.accuracy_old:
            assert c.btc == pytest.approx(1 - c.nfr / c.accuracy_old)
        if c.accuracy_old and c.accuracy_new < 1:
            assert c.relative_nfr == pytest.approx(c.nfr / (c.accuracy_old * (1 - c.accuracy_new)))


def test_two_classes_have_no_flip_between_wrong_answers():
    label, old, new = np.random.default_rng(0).integers(0, 2, (3, 1000))
    counts = FlipCounts.of(label, old, new)
    assert counts.both_wrong_different == 0 and counts.nfr_mc == counts.nfr


def test_edges():
    none = FlipCounts(0, 0, 0, 0, 0)
    assert (
        none.n == 0
        and all(isnan(getattr(none, m)) for m in MEASURES)
        and all(isnan(e) for e in none.interval("nfr"))
    )
    perfect = FlipCounts(5, 0, 5, 0, 0)
    assert (perfect.nfi, perfect.bec, perfect.btc) == (0, 1, 1) and isnan(perfect.relative_nfr)
    hopeless = FlipCounts(0, 0, 0, 3, 2)
    assert (
        isnan(hopeless.btc)
        and isnan(hopeless.relative_nfr)
        and hopeless.nfi == 0
        and hopeless.nfr_mc == 0.4
    )
    assert all(isnan(e) for e in hopeless.interval("btc"))


def test_shards_add_up():
    label, old, new = np.random.default_rng(4).integers(0, 4, (3, 300))
    parts = [
        FlipCounts.of(label[s : s + 70], old[s : s + 70], new[s : s + 70])
        for s in range(0, 300, 70)
    ]
    assert sum(parts) == parts[0] + parts[1] + sum(parts[2:]) == FlipCounts.of(label, old, new)
    with pytest.raises(TypeError):
        parts[0] + 1


def test_counts_are_frozen_whole_and_not_negative():
    counts = FlipCounts(*np.int64([1, 2, 3, 4, 5]))
    assert all(type(c) is int for c in counts.counts) and hash(counts) == hash(
        FlipCounts(1, 2, 3, 4, 5)
    )
    with pytest.raises(AttributeError):
        counts.negative = 0
    with pytest.raises(ValueError, match="positive is -3"):
        FlipCounts(1, 2, -3, 4, 5)
    with pytest.raises(TypeError):
        FlipCounts(1.0, 2, 3, 4, 5)


def test_between_joins_by_id():
    old = Predictions(["a", "b", "c"], [0, 1, 1], [0, 1, 0])
    new = Predictions(["c", "b", "a"], [1, 1, 0], [1, 0, 0])
    assert FlipCounts.between(old, new) == FlipCounts(1, 1, 1, 0, 0)
    with pytest.raises(ValueError, match="'a'"):
        FlipCounts.between(old, new.select(["c"]))


# -- tests and intervals --------------------------------------------------------------------------


def test_mcnemar_is_the_exact_binomial_test():
    from scipy.stats import binomtest

    pairs = [(0, 0), (0, 1), (1, 0), (3, 3), (0, 30), (400, 520), (10_000, 10_400)]
    pairs += np.random.default_rng(0).integers(0, 40, (60, 2)).tolist()
    for negative, positive in pairs:
        p = FlipCounts(7, negative, positive, 1, 2).mcnemar()
        total = negative + positive
        assert p == pytest.approx(
            binomtest(negative, total, 0.5).pvalue if total else 1.0, rel=1e-9
        )


def test_clopper_pearson_is_that_of_scipy():
    from scipy.stats import binomtest

    for whole in (1, 2, 10, 333):
        for part in {0, 1, whole // 3, whole - 1, whole}:
            for level in (0.5, 0.95, 0.999):
                reference = binomtest(part, whole).proportion_ci(level, method="exact")
                assert clopper_pearson(part, whole, level) == pytest.approx(
                    (reference.low, reference.high), abs=1e-12
                )


@pytest.mark.parametrize(
    "name, part, whole",
    [
        ("nfr", 4, 100),
        ("pfr", 10, 100),
        ("accuracy_old", 64, 100),
        ("accuracy_new", 70, 100),
        ("nfr_mc", 10, 100),
        ("nfi", 4, 30),
        ("bec", 26, 30),
        ("btc", 60, 64),
    ],
)
def test_each_share_has_its_own_denominator(name, part, whole):
    counts = FlipCounts(60, 4, 10, 20, 6)
    assert counts.interval(name) == pytest.approx(clopper_pearson(part, whole))
    assert counts.interval(name, 0.5) == pytest.approx(clopper_pearson(part, whole, 0.5))


def test_intervals_stay_inside_and_hold_the_value():
    for row in np.random.default_rng(5).integers(0, 4, (150, 5)):
        counts = FlipCounts(*row)
        for name in MEASURES:
            value, (low, high) = getattr(counts, name), counts.interval(name)
            if isnan(value):
                assert isnan(low) and isnan(high)
            elif MEASURES[name].kind == "share":
                assert 0 <= low <= value <= high <= 1
            else:
                assert (-1 if MEASURES[name].kind == "points" else 0) <= low <= high


def test_no_errors_means_nothing_is_known_about_their_kinds():
    assert (
        FlipCounts(5, 0, 5, 0, 0).interval("nfi")
        == FlipCounts(5, 0, 5, 0, 0).interval("bec")
        == (0, 1)
    )


def test_relative_nfr_interval_is_repeatable_and_narrows():
    small, large = FlipCounts(60, 4, 10, 20, 6), FlipCounts(6000, 400, 1000, 2000, 600)
    assert small.interval("relative_nfr") == small.interval("relative_nfr")
    ends = [c.interval("relative_nfr") for c in (small, large)]
    assert ends[0][0] < ends[1][0] < large.relative_nfr < ends[1][1] < ends[0][1]
    # the delta method's standard error of log(relative NFR) with the product in the denominator
    # held fixed
    assert ends[1][1] - ends[1][0] == pytest.approx(
        2 * 1.96 * large.relative_nfr * sqrt(1 / 400), rel=0.25
    )


def test_wrong_names_and_levels_are_refused():
    counts = FlipCounts(1, 1, 1, 1, 1)
    with pytest.raises(ValueError, match="NFR"):
        counts.interval("NFR")
    for level in (0, 1, -0.5, 95, float("nan")):
        for name in ("nfr", "relative_nfr", "accuracy_gain"):
            with pytest.raises(ValueError, match="write .95 for 95 %"):
                counts.interval(name, level)
        with pytest.raises(ValueError, match="write .95 for 95 %"):
            clopper_pearson(1, 5, level)


def test_html_shows_every_measure():
    shown = FlipCounts(60, 4, 10, 20, 6)._repr_html_()
    assert shown.count("<tr>") == len(MEASURES) + 2 and "4.00 %" in shown and "McNemar" in shown
    empty = FlipCounts(0, 0, 0, 0, 0)._repr_html_()
    assert "–" in empty and "nan<" not in empty


# -- graded answers, treatments -------------------------------------------------------------------


def test_smooth_flips_keep_their_identity():
    old, new = np.random.default_rng(0).random((2, 200)).round(1)
    flips = smooth_flips(old, new)
    assert flips._fields == ("pfr", "nfr", "gain", "regression")
    assert np.mean(new - old) == pytest.approx(
        flips.pfr * flips.gain - flips.nfr * flips.regression
    )
    assert flips.pfr == np.mean([n > o for o, n in zip(old, new)]) and flips.regression > 0


def test_smooth_flips_without_flips():
    flips = smooth_flips([0.5, 0.5], [0.5, 0.5])
    assert flips[:2] == (0, 0) and isnan(flips.gain) and isnan(flips.regression)
    assert smooth_flips([0, 1], [1, 0]) == (0.5, 0.5, 1, 1)
    for bad in ([0.5], [0.5, nan], []):
        with pytest.raises(ValueError):
            smooth_flips([0.5, 0.5], bad)


def test_smooth_flips_of_right_and_wrong_are_the_plain_rates():
    label, old, new = np.random.default_rng(0).integers(0, 3, (3, 500))
    counts, flips = (
        FlipCounts.of(label, old, new),
        smooth_flips((label == old).astype(float), (label == new).astype(float)),
    )
    assert (flips.pfr, flips.nfr) == pytest.approx((counts.pfr, counts.nfr))


def test_fix_and_fault_rates_are_those_of_sets():
    label, old, untreated, treated = np.random.default_rng(0).integers(0, 3, (4, 400))

    def flips(answers):
        return {i for i in range(400) if old[i] == label[i] != answers[i]}

    before, after = flips(untreated), flips(treated)
    assert fix_rate(label, old, untreated, treated) == len(before - after) / len(before)
    assert new_fault_rate(label, old, untreated, treated) == len(after - before) / len(before)
    assert (
        fix_rate(label, old, untreated, old) == 1
        and new_fault_rate(label, old, untreated, untreated) == 0
    )
    assert isnan(fix_rate(label, old, old, treated)) and isnan(
        new_fault_rate(label, old, old, treated)
    )
    with pytest.raises(ValueError, match="unequal lengths"):
        fix_rate(label, old, untreated, treated[:1])


def test_agreement():
    assert agreement([1, 2, 3, 4], [1, 2, 0, 0]) == 0.5
    assert agreement(["a"], np.array(["a"])) == 1
    with pytest.raises(ValueError, match="never equal"):
        agreement([1], ["1"])


# -- temperature ----------------------------------------------------------------------------------


def test_temperature_is_the_best_of_a_grid():
    generator = np.random.default_rng(0)
    logits, label = generator.normal(size=(300, 4)) * 3, generator.integers(0, 4, 300)
    label = np.where(generator.random(300) < 0.6, logits.argmax(axis=1), label)

    def loss(t):
        return -np.mean([z[y] / t - np.log(np.exp(z / t).sum()) for z, y in zip(logits, label)])

    grid = np.exp(np.linspace(np.log(0.3), np.log(10), 800))
    assert fit_temperature(logits, label) == pytest.approx(
        grid[np.argmin([loss(t) for t in grid])], rel=0.01
    )


def test_temperature_scales_with_the_logits_and_ends_at_its_bounds():
    generator = np.random.default_rng(1)
    logits = generator.normal(size=(500, 3))
    label = np.where(
        generator.random(500) < 0.7, logits.argmax(axis=1), generator.integers(0, 3, 500)
    )
    assert fit_temperature(5 * logits, label) == pytest.approx(
        5 * fit_temperature(logits, label), rel=1e-3
    )
    assert fit_temperature(logits.astype(np.float16), label) == pytest.approx(
        fit_temperature(logits, label), rel=0.01
    )
    assert fit_temperature(10 * np.eye(3), [0, 1, 2]) < 0.5
    assert fit_temperature(10 * np.eye(3), [1, 2, 0]) > 90


@pytest.mark.parametrize(
    "logits, label, message",
    [
        ([[1.0, np.nan]], [0], r"not finite in rows \[0\]"),
        ([[1.0, 2.0]], [2], "labels .2. lie outside the 2 classes"),
        ([[1.0, 2.0]], [-1], "lie outside"),
        ([[1.0, 2.0]], ["a"], "must be class indices"),
        ([[1.0, 2.0]], [0, 1], "do not fit 2 labels"),
        ([1.0, 2.0], [0, 1], "must be .N, C."),
        (np.zeros((0, 2)), [], "do not fit"),
    ],
)
def test_bad_logits_have_no_temperature(logits, label, message):
    with pytest.raises(ValueError, match=message):
        fit_temperature(logits, label)


# -- rules ----------------------------------------------------------------------------------------


def test_the_interval_of_a_mean_is_scipys():
    from scipy import stats

    values = [0.2, 0.5, 0.3, 0.9]
    asked = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    assert mean_interval(values, 0.9) == pytest.approx(tuple(asked))
    assert all(isnan(end) for end in mean_interval([0.5]))
    with pytest.raises(ValueError):
        mean_interval([])


def test_over_seeds():
    assert over_seeds([1.0, 2.0, 6.0]) == pytest.approx((3, np.std([1, 2, 6], ddof=1), 3))
    assert over_seeds(v for v in (1, 3)).n == 2
    assert isnan(over_seeds([5]).std) and over_seeds([5]) == over_seeds([5])
    with pytest.raises(ValueError, match="at least one"):
        over_seeds([])


def test_curves_over_seeds():
    curves = np.array([[[1.0, 5.0]], [[2.0, 5.0]], [[6.0, 5.0]]])
    mean, spread = curve_over_seeds(curves)
    assert mean.tolist() == [[3.0, 5.0]] and spread[0, 1] == 0
    assert spread[0, 0] == pytest.approx(over_seeds([1.0, 2.0, 6.0]).std)
    assert np.isnan(curve_over_seeds(curves[:1])[1]).all()


def test_accuracy_is_kept_within_the_margin_but_for_rounding():
    assert keeps_accuracy(0.495, 0.5) and not keeps_accuracy(0.4949, 0.5)
    assert keeps_accuracy(0.6, 0.5, 0) and not keeps_accuracy(0.4999, 0.5, 0)
    assert keeps_accuracy(0.3, 0.1 + 0.2, 0), "the same accuracy, summed in another order"


def test_the_lowest_nfr_without_loss_is_taken_and_within_the_margin_where_all_lose():
    assert lowest_nfr([0.5, 0.6, 0.4], [0.2, 0.1, 0.0], 0.5) == 1
    assert lowest_nfr([0.5, 0.6, 0.6], [0.1, 0.1, 0.1], 0.5) == 2, "ties: accurate, then later"
    assert lowest_nfr([0.5, 0.498], [0.2, 0.1], 0.5) == 0, "the margin is not spent"
    assert lowest_nfr([0.4, 0.496, 0.498], [0.0, 0.1, 0.2], 0.5) == 1
    assert lowest_nfr([0.496], [0.0], 0.5, margin=0.0) is None
    assert lowest_nfr([0.4], [0.0], 0.5) is None


def test_competent_needs_the_bound_above_the_majority():
    label = ["x"] * 70 + ["y"] * 30
    for right in range(60, 101):
        correct = np.arange(100) < right
        assert competent(correct, label) == (clopper_pearson(right, 100)[0] > 0.7)
    with pytest.raises(ValueError):
        competent([True], ["a", "b"])


def test_paired_difference_is_the_interval_of_the_crossed_mean():
    generator = np.random.default_rng(0)
    untreated = generator.random((4, 300)) < 0.8
    treated = untreated ^ (generator.random((4, 300)) < 0.1)
    result, crossed = paired_difference(treated, untreated), crossed_difference(treated, untreated)
    assert result.mean == pytest.approx(treated.mean() - untreated.mean())
    assert result.high - result.mean == pytest.approx(crossed.arm())
    assert result.mean - result.low == pytest.approx(crossed.arm())
    assert paired_difference(treated, untreated, 0.99).low < result.low
    assert (crossed.seeds, crossed.examples) == (4, 300)


def test_paired_difference_of_one_seed_and_of_equals():
    untreated = np.random.default_rng(0).random(500) < 0.8
    assert paired_difference(untreated, untreated) == (0, 0, 0)
    worse = untreated & (np.arange(500) % 10 > 0)
    assert paired_difference(worse, untreated).high < 0 < paired_difference(untreated, worse).low
    for bad in (np.zeros((2, 500)), untreated[:1], np.zeros((0, 0))):
        with pytest.raises(ValueError, match="both need"):
            paired_difference(bad, untreated)


def test_paired_difference_takes_scores_and_refuses_nan():
    generator = np.random.default_rng(0)
    untreated = generator.random((3, 300))
    treated = untreated + generator.normal(0.02, 0.2, (3, 300))
    result, difference = paired_difference(treated, untreated), treated - untreated
    assert result.mean == pytest.approx(difference.mean()) and result.low < result.mean
    with pytest.raises(ValueError, match="1 of 900 scores are nan"):
        paired_difference(np.where(np.arange(900).reshape(3, 300) == 7, np.nan, treated), untreated)


def test_scores_of_right_and_wrong_have_the_interval_of_right_and_wrong():
    untreated = np.random.default_rng(0).random((2, 400)) < 0.8
    treated = untreated & (np.arange(400) % 10 > 0)
    booleans, scores = (
        paired_difference(treated, untreated),
        paired_difference(treated.astype(float), untreated.astype(float)),
    )
    assert scores == pytest.approx(booleans)
    assert paired_difference(treated.astype(int), untreated.astype(int)) == booleans


def test_the_public_names_are_those_of_the_design():
    assert {"FlipCounts", "smooth_flips", "fix_rate", "new_fault_rate"} <= set(metrics.__all__)


def test_calibration_is_the_distance_to_accuracy_in_each_bin():
    confidence = np.array([0.15, 0.05, 0.55, 0.58, 0.62, 1.0])
    correct = np.array([True, False, True, False, False, True])
    # bins of a tenth: .15 alone, .05 alone, two from .5 on, .62 alone, 1 alone
    by_hand = (abs(1 - 0.15) + abs(0 - 0.05) + abs(1 - 0.55 - 0.58) + abs(0 - 0.62) + 0) / 6
    assert calibration_error(confidence, correct, bins=10) == pytest.approx(by_hand)
    # one bin: mean accuracy against mean confidence
    assert calibration_error(confidence, correct, 1) == pytest.approx(abs(0.5 - confidence.mean()))
    assert calibration_error(confidence, correct) == calibration_error(confidence, correct, 15)
    assert calibration_error(confidence, correct) != calibration_error(confidence, correct, 16)


def test_macro_f1_by_hand():
    # class 0: 1 of 2 labels found, 1 prediction; class 2: neither; class 3: predicted only
    label, prediction = np.array([0, 0, 1, 1]), np.array([0, 3, 1, 1])
    assert macro_f1(label, prediction) == pytest.approx((2 / 3 + 1 + 0) / 3)


def test_sureness_by_hand():
    p = np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]])
    found = Sureness.of(np.log(p), np.array([1, -1]))
    assert found.confidence == pytest.approx([0.5, 0.8])
    first = [found[1][0], found[2][0]]
    assert first == pytest.approx([-np.log(0.25), 0.25 + 0.0625 + 0.5625])
    assert isnan(found[1][1]) and isnan(found[2][1])  # nothing is known without a label
