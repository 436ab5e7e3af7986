"""Combinations of models against loops over examples, and their limits."""

import numpy as np
import pytest

from compatkit.decisions import Pool
from compatkit.ensembles import (
    average_logits,
    choose_weight,
    majority_vote,
    member_windows,
    mix,
    mixing_curve,
    most_central,
    size_curve,
    uncertainty,
)
from compatkit.metrics import FlipCounts, lowest_nfr
from compatkit.predictions import Predictions, align, log_softmax, softmax

SPACES = ["probability", "logit"]
NAMES = np.array(["pear", "apple", "fig", "plum"])  # not in alphabetical order on purpose


def models(count, seed=0, examples=60, classes=4, names=False, dtype=np.float64):
    generator = np.random.default_rng(seed)
    label = generator.integers(0, classes, examples)
    common = 1.5 * np.eye(classes)[label]
    return [
        Predictions(
            [f"e{i}" for i in range(examples)],
            NAMES[label] if names else label,
            logits=(common + generator.normal(size=(examples, classes))).astype(dtype),
            classes=NAMES[:classes] if names else None,
        )
        for _ in range(count)
    ]


def shuffled(predictions, seed=0):
    return predictions.select(np.random.default_rng(seed).permutation(predictions.id))


# -- votes ----------------------------------------------------------------------------------------


def naive_vote(members, row, use_logits):
    answers = [int(m.logits[row].argmax()) for m in members]
    most = max(answers.count(c) for c in answers)
    tied = [c for c in range(members[0].logits.shape[1]) if answers.count(c) == most]
    if not use_logits:
        return min(tied)
    return max(tied, key=lambda c: (sum(softmax(m.logits)[row, c] for m in members), -c))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("names", [False, True])
def test_vote_is_that_of_a_naive_loop(count, names):
    members = models(count, seed=count, names=names)
    expected = [naive_vote(members, row, True) for row in range(60)]
    result = majority_vote([members[0]] + [shuffled(m) for m in members[1:]])
    assert result.prediction.tolist() == (NAMES[expected].tolist() if names else expected)
    assert result.id.tolist() == members[0].id.tolist() and result.logits is None


def test_vote_without_logits_takes_the_lowest_class():
    members = models(4, seed=9)
    bare = [Predictions(m.id, m.label, m.prediction) for m in members]
    assert majority_vote(bare).prediction.tolist() == [
        naive_vote(members, row, False) for row in range(60)
    ]
    one_bare = majority_vote([members[0], *bare[1:]])
    assert one_bare.prediction.tolist() == majority_vote(bare).prediction.tolist()


def test_ties_of_names_follow_the_order_of_classes():
    answers = [["plum"], ["apple"]]
    assert majority_vote(
        [Predictions(["a"], prediction=p) for p in answers]
    ).prediction.tolist() == ["apple"]  # alphabetical
    named = [Predictions(["a"], prediction=p, classes=["plum", "pear", "apple"]) for p in answers]
    assert majority_vote(named).prediction.tolist() == ["plum"]


def test_vote_counts_the_given_answers_and_not_the_argmax():
    member = Predictions(["a"], logits=[[3.0, 0.0]], prediction=[1])
    assert majority_vote([member] * 3).prediction.tolist() == [1]


def test_vote_refuses_bad_members():
    first, second = models(2)
    with pytest.raises(ValueError, match="at least one member"):
        majority_vote([])
    with pytest.raises(ValueError, match=second.id[5]):
        majority_vote([first, second.select(second.id[:5])])
    with pytest.raises(ValueError, match="label"):
        majority_vote([first, second.replace(label=1 - np.minimum(second.label, 1))])
    with pytest.raises(ValueError, match="Predictions.load"):
        majority_vote(["a.parquet"])
    with pytest.raises(ValueError, match="2 classes"):
        majority_vote([Predictions(["a"], prediction=[2], logits=[[0.0, 1.0]])])
    with pytest.raises(ValueError, match="repeated ids"):
        majority_vote([Predictions(["a", "a"], prediction=[2, 1])])


def test_windows():
    asked = member_windows(7, 5, 3)
    assert (
        asked.windows == [(0, 1, 2, 3, 4), (1, 2, 3, 4, 5), (2, 3, 4, 5, 6)]
        and asked.shared == 4
        and "share 4" in asked.note
    )
    assert member_windows(5, 5, 1).shared == 0 and "no model shared" in member_windows(5, 5, 1).note
    assert member_windows(3, 1, 3).shared == 0
    with pytest.raises(ValueError, match="3 votes.*5.*7 members"):
        member_windows(6, 5, 3)
    with pytest.raises(ValueError, match="at least 1"):
        member_windows(6, 0, 3)


# -- averages -------------------------------------------------------------------------------------


def test_average_logits_is_the_mean():
    members = models(3)
    result = average_logits([members[0], shuffled(members[1]), shuffled(members[2], 5)])
    assert np.allclose(result.logits, sum(m.logits for m in members) / 3)
    assert np.array_equal(average_logits(members[:1]).logits, members[0].logits)


@pytest.mark.parametrize("seed", range(8))
def test_most_central_is_the_one_of_the_pairwise_distances(seed):
    members = models(5, seed)
    distance = [
        [np.square(softmax(a.logits) - softmax(b.logits)).sum(axis=1).mean() for b in members]
        for a in members
    ]
    expected = int(np.argmin(np.sum(distance, axis=1)))
    assert (
        most_central(members) == most_central([members[0], *map(shuffled, members[1:])]) == expected
    )


def test_most_central_needs_logits_and_takes_the_first_of_equals():
    member = models(1)[0]
    assert most_central([member, member]) == 0
    for seed in range(20):  # two are equally far from their mean, whatever rounding says
        pair = models(2, seed=seed)
        assert most_central(pair) == most_central(pair[::-1]) == 0
    with pytest.raises(ValueError, match="logits"):
        most_central([Predictions(["a"], [1], [1])])


# -- mixtures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.5, 0.9, 1.0])
def test_mix_is_the_formula(weight):
    old, new = models(2, seed=1, names=True)
    mixed = mix(old, shuffled(new), weight)
    assert np.allclose(
        softmax(mixed.logits), (1 - weight) * softmax(old.logits) + weight * softmax(new.logits)
    )
    mixed = mix(old, shuffled(new), weight, space="logit")
    assert np.allclose(mixed.logits, (1 - weight) * old.logits + weight * new.logits)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_ends_are_the_two_models(space, dtype):
    old, new = models(2, seed=2, examples=500, dtype=dtype)
    assert np.array_equal(mix(old, new, 0, space).prediction, old.prediction)
    assert np.array_equal(mix(old, new, 1, space).prediction, new.prediction)


@pytest.mark.parametrize("space", SPACES)
def test_a_weight_per_example(space):
    old, new = models(2, seed=3)
    weight = np.random.default_rng(0).random(len(old))
    each = mix(old, shuffled(new), weight, space)
    for row in range(len(old)):
        alone = mix(old, new, weight[row], space)
        assert np.allclose(log_softmax(each.logits[row]), log_softmax(alone.logits[row]))


def test_extreme_logits_stay_finite():
    old = Predictions(["a"], [0], logits=np.float32([[1e30, -1e30]]))
    new = Predictions(["a"], [0], logits=np.float32([[-1e30, 1e30]]))
    assert np.isfinite(mix(old, new, 0.5).logits).all()
    assert np.allclose(softmax(mix(old, new, 0.25).logits), [[0.75, 0.25]])


def test_classes_that_one_model_lacks():
    old = Predictions(["a", "b"], ["x", "z"], logits=[[2.0, 0.0], [0.0, 0.0]], classes=["x", "y"])
    new = Predictions(
        ["a", "b"],
        ["x", "z"],
        logits=[[1.0, 2.0, 0.0], [9.0, 0.0, 0.0]],
        classes=["y", "x", "z"][::-1],
    )
    mixed = mix(old, new, 0.6)
    assert mixed.classes == ("x", "y", "z")
    wide_old = np.column_stack([softmax(old.logits), np.zeros(2)])
    assert np.allclose(
        softmax(mixed.logits), 0.4 * wide_old + 0.6 * softmax(new.logits)[:, [1, 2, 0]]
    )
    assert mixed.prediction[1] == "z" and mix(old, new, 0.6, "logit").prediction[1] != "z"
    assert mix(old, new, 1.0, "logit").prediction[1] == "z"
    assert np.isfinite(mix(old, new, 0.5, "logit").logits).all()
    assert majority_vote([new, new, old]).prediction.tolist() == new.prediction.tolist()


@pytest.mark.parametrize(
    "weight, message",
    [
        (-0.1, "between 0 and 1"),
        (1.1, "between 0 and 1"),
        (np.nan, "between 0 and 1"),
        ([0.5, 0.5], "one per example .60."),
        (np.ones((60, 1)), "not of shape"),
    ],
)
def test_bad_weights_are_refused(weight, message):
    with pytest.raises(ValueError, match=message):
        mix(*models(2), weight)


def test_bad_spaces_and_missing_logits_are_refused():
    old, new = models(2)
    for function in (
        lambda space: mix(old, new, 0.5, space),
        lambda space: mixing_curve(old, new, space=space),
    ):
        with pytest.raises(ValueError, match="odds"):
            function("odds")
    with pytest.raises(ValueError, match="logits"):
        mix(old, Predictions(new.id, new.label, new.prediction), 0.5)
    with pytest.raises(ValueError, match="label"):
        mixing_curve(old.replace(label=None), new.replace(label=None))
    with pytest.raises(ValueError, match="between 0 and 1"):
        mixing_curve(old, new, [0.5, 2])


def test_a_mixture_answers_by_name_where_the_file_did(tmp_path):
    """The classes of a csv are called 1 and 2, so 1 is no index."""
    (tmp_path / "a.csv").write_text("id,prob_1,prob_2\na,.9,.1\nb,.2,.8\n")
    read = Predictions.load(tmp_path / "a.csv")
    for mixture in (mix(read, read, 0.5), Pool(1, 1).apply(read, read)):
        assert align(read, mixture)[1].prediction.tolist() == ["1", "2"]


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("names", [False, True])
def test_the_curve_is_made_of_mixtures(space, names):
    old, new = models(2, seed=4, examples=300, names=names)
    new = shuffled(new)
    weights = np.linspace(0, 1, 11)
    curve = mixing_curve(old, new, weights, space)
    for i, weight in enumerate(weights):
        mixed = mix(old, new, weight, space)
        counts = FlipCounts.between(old, mixed)
        assert (curve.accuracy[i], curve.nfr[i], curve.pfr[i]) == pytest.approx(
            (counts.accuracy_new, counts.nfr, counts.pfr)
        )
        assert curve.agreement[i] == pytest.approx(np.mean(old.prediction == mixed.prediction))
    assert curve.nfr[0] == 0 and curve.agreement[0] == 1
    assert curve.accuracy[-1] == new.correct.mean()


def test_the_curve_judges_by_the_answers_that_the_old_model_gave():
    old, new = models(2, seed=5)
    given = old.replace(prediction=np.zeros(60, dtype=int))
    curve = mixing_curve(given, new, [1.0])
    assert curve.nfr[0] == pytest.approx(
        FlipCounts.of(old.label, np.zeros(60, dtype=int), new.prediction).nfr
    )


# -- choosing a weight ----------------------------------------------------------------------------


def test_the_chosen_weight_has_the_lowest_nfr_that_keeps_accuracy():
    pairs = [models(2, seed=s, examples=400) for s in range(3)]
    olds, news = [p[0] for p in pairs], [p[1] for p in pairs]
    choice = choose_weight(olds, news)
    reference = np.mean([n.correct.mean() for n in news])
    weights, means = (0.5, 0.6, 0.7, 0.8, 0.9), []
    for weight in weights:
        mixed = [FlipCounts.between(o, mix(o, n, weight)) for o, n in zip(olds, news)]
        means.append(np.mean([(m.accuracy_new, m.nfr) for m in mixed], 0))
    best = lowest_nfr(*np.transpose(means), reference)
    assert choice[:4] == pytest.approx((weights[best], *means[best], reference))
    assert len(choice.tried) == 5


def test_a_weight_below_par_is_never_chosen():
    label = np.zeros(100, dtype=int)
    old = Predictions(
        range(100), label, logits=np.tile([0.0, 5.0], (100, 1))
    )  # always wrong, and sure of it
    new = Predictions(
        range(100), label, logits=np.tile([1.0, 0.0], (100, 1))
    )  # always right, and unsure
    choice = choose_weight(old, new, weights=(0.5, 0.6, 0.65, 0.9))
    assert choice.weight == 0.9 and [row[3] for row in choice.tried] == [False, False, False, True]
    nothing = choose_weight(old, new, weights=(0.1, 0.2))
    assert nothing.weight is None and len(nothing.tried) == 2
    assert (
        choose_weight(old, new, untreated=old, weights=(0.2, 0.9)).weight == 0.9
    )  # equal NFR: the larger weight


def test_choose_weight_needs_pairs():
    old, new = models(2)
    with pytest.raises(ValueError, match="2 old and 1 new"):
        choose_weight([old, old], [new])
    with pytest.raises(ValueError, match="0 old and 0 new"):
        choose_weight([], [])


# -- the most central member, uncertainty, and the size of an ensemble
# ------------------------------


@pytest.mark.parametrize("count", range(1, 17))
def test_averages_votes_and_the_central_member_of_1_to_16(count):
    members = models(count, seed=count, classes=3)
    assert np.allclose(average_logits(members).logits, np.mean([m.logits for m in members], axis=0))
    assert majority_vote(members).prediction.tolist() == [
        naive_vote(members, row, True) for row in range(60)
    ]
    for space, place in (("probability", softmax), ("logit", np.asarray)):
        far = [
            sum(np.square(place(m.logits) - place(other.logits)).sum() for other in members)
            for m in members
        ]
        assert most_central(members, space) == int(np.argmin(far))


def test_the_central_member_by_logits_is_not_misled_by_scale():
    members = models(3, seed=4)
    loud = members[0].replace(logits=50 * members[0].logits)
    assert most_central([loud, *members[1:], members[0]], "logit") != 0
    with pytest.raises(ValueError, match="odds"):
        most_central(members, "odds")
    with pytest.raises(ValueError, match="logits"):
        most_central([Predictions(m.id, m.label, m.prediction) for m in members], "logit")


@pytest.mark.parametrize("classes", [2, 5])
def test_uncertainty_is_that_of_a_naive_sum(classes):
    members = models(6, seed=3, classes=classes)
    probabilities = np.array([softmax(m.logits) for m in members])

    def entropy(p):
        return -(p * np.log(p)).sum(axis=-1)

    whole = entropy(probabilities.mean(axis=0))
    assert np.allclose(uncertainty(members), whole)
    divergence = (
        (probabilities * np.log(probabilities / probabilities.mean(axis=0)))
        .sum(axis=-1)
        .mean(axis=0)
    )
    assert np.allclose(uncertainty(members, "disagreement"), divergence)
    assert np.allclose(
        uncertainty([members[0], *map(shuffled, members[1:])]), whole
    )  # joined by id


def test_uncertainty_keeps_its_limits():
    members = models(4, seed=8)
    assert (uncertainty(members) <= np.log(4) + 1e-12).all() and (
        uncertainty(members, "disagreement") >= 0
    ).all()
    assert np.allclose(uncertainty([members[0]] * 5, "disagreement"), 0) and np.allclose(
        uncertainty([members[0]] * 5), uncertainty(members[:1])
    )
    even = [m.replace(logits=np.zeros_like(m.logits)) for m in members]
    assert np.allclose(uncertainty(even), np.log(4))
    sure = [
        m.replace(logits=1e4 * np.eye(4)[[k] * 60]) for k, m in enumerate(members)
    ]  # each is certain of another class
    assert (
        np.allclose(uncertainty(sure, "disagreement"), np.log(4))
        and np.isfinite(uncertainty(sure)).all()
    )


def test_uncertainty_refuses_what_it_cannot_use():
    first, second = models(2)
    with pytest.raises(ValueError, match="choose entropy or disagreement"):
        uncertainty([first, second], "variance")
    with pytest.raises(ValueError, match="logits"):
        uncertainty([first, Predictions(first.id, first.label, first.prediction)])
    with pytest.raises(ValueError, match="at least one member"):
        uncertainty([])
    with pytest.raises(ValueError, match=second.id[5]):
        uncertainty([first, second.select(second.id[:5])])


def test_groups_of_one_size_share_no_member():
    olds, news = models(7, seed=1), models(7, seed=2)
    news = [new.replace(label=olds[0].label) for new in news]
    curve = size_curve(olds, news, (1, 2, 3, 7))
    assert curve.size.tolist() == [1, 2, 3, 7] and curve.groups.tolist() == [7, 3, 2, 1]
    for place, size in enumerate(curve.size):
        counts = [
            FlipCounts.between(
                average_logits(olds[g * size : (g + 1) * size]),
                average_logits(news[g * size : (g + 1) * size]),
            )
            for g in range(7 // size)
        ]
        for name, held in (
            ("nfr", curve.nfr),
            ("accuracy_old", curve.accuracy_old),
            ("accuracy_new", curve.accuracy_new),
            ("relative_nfr", curve.relative_nfr),
        ):
            values = [getattr(one, name) for one in counts]
            assert held[place, 0] == pytest.approx(np.mean(values))
            assert (
                np.isnan(held[place, 1])
                if len(values) == 1
                else held[place, 1] == pytest.approx(np.std(values, ddof=1))
            )


@pytest.mark.parametrize("size", [0, -1, 4])
def test_too_few_members_for_a_size_are_refused(size):
    olds, news = models(3, seed=1), models(5, seed=1)
    with pytest.raises(
        ValueError, match=f"an ensemble of {size} on both sides .* there are 3 and 5"
    ):
        size_curve(olds, news, [1, size])
