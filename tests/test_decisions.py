"""The rule against loops over examples, its curve, what is fitted, and what the certificate
promises, checked by simulation.
"""

import json
import warnings
from dataclasses import replace
from math import ceil, inf, log, nan

import numpy as np
import pytest
from scipy.stats import binom, norm
from two_models import NAMES, models, shuffled

from compatkit import decisions
from compatkit.decisions import (
    PRICES,
    Calibration,
    Certificate,
    Pool,
    PriceChoice,
    PriceCurve,
    calibrate,
    choose_dial,
    choose_price,
    critical_price,
    decide,
    halves,
    keep_old,
    needed_examples,
    pool,
    price_curve,
)
from compatkit.ensembles import mix
from compatkit.metrics import FlipCounts
from compatkit.predictions import Predictions, log_probability, over_classes, softmax

# --- the rule -------------------------------------------------------------------------------------


def naive(old_answer, probabilities, price):
    """The rule for one example, word for word."""
    others = [k for k in range(len(probabilities)) if k != old_answer]
    best = max(others, key=lambda k: probabilities[k])
    return best if probabilities[best] > (1 + price) * probabilities[old_answer] else old_answer


@pytest.mark.parametrize("price", [0, 0.3, 1, 7, 1e6, inf])
@pytest.mark.parametrize("names", [False, True])
def test_the_rule_is_that_of_a_naive_loop_joined_by_id(price, names):
    old, new = models(names=names)
    result = keep_old(old, shuffled(new), price)
    column = {name: i for i, name in enumerate(NAMES)} if names else {i: i for i in range(4)}
    expected = [
        naive(column[answer], q, price)
        for answer, q in zip(old.prediction.tolist(), softmax(new.logits))
    ]
    assert result.id.tolist() == old.id.tolist() and result.label.tolist() == old.label.tolist()
    assert result.prediction.tolist() == (NAMES[expected].tolist() if names else expected)


def test_price_0_is_the_new_model_and_infinity_the_old():
    old, new = models()
    assert np.array_equal(keep_old(old, new, 0).prediction, new.prediction)
    assert np.array_equal(keep_old(old, new, inf).prediction, old.prediction)
    assert np.array_equal(keep_old(new, new, 5).prediction, new.prediction)


@pytest.mark.parametrize(
    "probabilities, price",
    [
        ((0.25, 0.75), 2),
        ((0.4, 0.6), 0.5),
        ((0.2, 0.8), 3),
        ((0.1, 0.9), 8),
        ((0.05, 0.95), 18),
        ((0.5, 0.5), 0),
    ],
)
def test_exactly_1_plus_price_times_as_probable_keeps_the_old_answer(probabilities, price):
    old = Predictions(["a"], prediction=[0])
    new = Predictions(["a"], logits=log_probability(np.array([probabilities])))
    assert keep_old(old, new, price).prediction.tolist() == [0]
    assert keep_old(old, new, price * (1 - 1e-9) if price else 0).prediction.tolist() == [
        1 if price else 0
    ]
    assert keep_old(Predictions(["a"], prediction=[1]), new, 0).prediction.tolist() == [1]


def test_the_critical_price_is_where_the_answer_changes():
    old, new = models(names=True)
    critical = critical_price(old, shuffled(new))
    q, column = (
        softmax(new.logits),
        np.array([NAMES.tolist().index(answer) for answer in old.prediction]),
    )
    assert np.allclose(critical, q.max(axis=1) / q[np.arange(len(q)), column] - 1)
    turning = np.flatnonzero(critical > 0)[:20]
    for row in turning:
        one = [old.id[row]]
        assert (
            keep_old(old.select(one), new.select(one), critical[row] * 1.0001).prediction[0]
            == old.prediction[row]
        )
        assert (
            keep_old(old.select(one), new.select(one), critical[row] * 0.9999).prediction[0]
            == new.prediction[row]
        )


def test_old_answers_are_enough_and_their_class_order_does_not_matter():
    old, new = models(names=True)
    bare = Predictions(old.id, old.label, old.prediction)
    turned = over_classes(old, NAMES[::-1])
    for one in (bare, turned):
        assert np.array_equal(keep_old(one, new, 1).prediction, keep_old(old, new, 1).prediction)
    numbers_old, numbers_new = models()
    columns = over_classes(numbers_old.replace(classes=NAMES), NAMES[::-1])
    again = keep_old(
        columns, numbers_new.replace(classes=NAMES), 1
    )  # indices of another order become those of the posterior
    assert np.array_equal(again.prediction, keep_old(numbers_old, numbers_new, 1).prediction)


def test_an_old_model_with_fewer_classes_is_welcome_and_one_with_unknown_classes_is_not():
    old, new = models(names=True)
    fewer = Predictions(["x"], prediction=["fig"], classes=["fig", "pear"])
    one = Predictions(["x"], logits=[[0.0, 0.0, 1.0, 3.0]], classes=NAMES)
    assert keep_old(fewer, one, 1).prediction.tolist() == ["plum"] and keep_old(
        fewer, one, 20
    ).prediction.tolist() == ["fig"]
    with pytest.raises(ValueError, match="'quince'.*over_classes"):
        keep_old(Predictions(["x"], prediction=["fig"], classes=["fig", "quince"]), one, 1)
    with pytest.raises(ValueError, match="'quince'.*'x'"):
        keep_old(Predictions(["x"], prediction=["quince"]), one, 1)
    with pytest.raises(ValueError, match=r"\[9\]"):
        keep_old(Predictions(["x"], prediction=[9]), Predictions(["x"], logits=[[0.0, 1.0]]), 1)
    with pytest.raises(ValueError, match="columns have none: name them"):
        keep_old(Predictions(["x"], prediction=["fig"]), Predictions(["x"], logits=[[0.0, 1.0]]), 1)


def test_a_class_without_any_probability_gives_way_at_every_price_but_infinity():
    old = Predictions(["a"], prediction=["quince"])
    new = over_classes(
        Predictions(["a"], logits=[[0.0, 1.0]], classes=["fig", "pear"]), ["fig", "pear", "quince"]
    )
    assert keep_old(old, new, 1e12).prediction.tolist() == ["pear"] and keep_old(
        old, new, inf
    ).prediction.tolist() == ["quince"]


def test_the_rule_on_columns_knows_every_old_class_and_examples_without_one():
    logits = np.log([[0.3, 0.7], [0.3, 0.7], [0.3, 0.7], [0.7, 0.3], [0.7, 0.3]])
    column = np.array([0, 0, -1, 1, -1])
    assert decide(logits, column, 2.0).tolist() == [0, 0, 1, 1, 0]  # 7/3 is less than 1 + 2
    assert decide(logits, column, 1.0).tolist() == [1, 1, 1, 0, 0]


def test_the_confidence_is_95_percent_unless_told():
    assert needed_examples(0.01) == needed_examples(0.01, 0.95) == 299
    # 0.5 of (1 - 0.5): one example is enough, whatever rounding says
    assert needed_examples(0.5, 0.5) == 1 and needed_examples(0.1, 1 - 0.9**7) == 7


@pytest.mark.parametrize("price", [-1e-9, -1, nan])
def test_a_price_below_0_is_refused(price):
    with pytest.raises(ValueError, match="must be at least 0"):
        keep_old(*models(), price)
    with pytest.raises(ValueError, match="at least 0"):
        price_curve(*models(), [1, price])
    with pytest.raises(ValueError, match="must be at least 0"):
        decide(np.zeros((1, 2)), np.zeros(1, int), price)


def test_what_a_price_makes_worse_is_said_side_by_side():
    choice = choose_price(*models(), None, 0.2)
    for before, after, worse in ((0.7, 0.8, []), (0.9, 0.8, ["old"]), (0.85, 0.9, ["old", "new"])):
        shown = replace(choice.certificate, accuracy=0.8, accuracy_old=before, accuracy_new=after)
        told = replace(choice, certificate=shown).warnings
        assert [side for side in ("old", "new") if f"the {side} model" in " ".join(told)] == worse
    assert len(replace(choice, certificate=replace(shown, accuracy_new=None)).warnings) == 1
    assert replace(choice, price=None).warnings == []


def test_the_price_of_a_choice_without_one_is_refused():
    with pytest.raises(ValueError, match="only the old model qualified"):
        keep_old(*models(), choose_price(*right_old(np.full(400, 2.0)), None, 0.01).price)


def test_bad_posteriors_are_refused():
    old, new = models()
    with pytest.raises(ValueError, match="logits"):
        keep_old(old, Predictions(new.id, prediction=new.prediction), 1)
    with pytest.raises(ValueError, match="not str"):
        keep_old(old, new, 1, "pooled")
    with pytest.raises(ValueError, match=new.id[0]):
        keep_old(old, new.select(new.id[5:]), 1)
    with pytest.raises(ValueError, match="there are no examples"):
        keep_old(old.select([]), new.select([]), 1)
    with pytest.raises(ValueError, match="prediction"):
        keep_old(Predictions(new.id, new.label), new, 1)


# --- the curve ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_curve_is_that_of_a_loop_over_prices(seed, dtype):
    old, new = models(seed=seed, names=seed % 2 == 1, dtype=dtype)
    prices = np.random.default_rng(seed).permutation(
        [0, 0, 0.1, 0.5, 0.5, 3, 40, inf]
    )  # in any order, repeated
    curve = price_curve(old, shuffled(new), prices)
    for position, price in enumerate(prices):
        answer = keep_old(old, new, price)
        counts = FlipCounts.between(old, answer)
        expected = (
            counts.accuracy_new,
            counts.nfr,
            counts.pfr,
            np.mean(answer.prediction == old.prediction),
        )
        found = (
            curve.accuracy[position],
            curve.nfr[position],
            curve.pfr[position],
            curve.agreement[position],
        )
        assert np.allclose(found, expected, atol=1e-12) and curve.price[position] == price


def test_nfr_and_pfr_fall_and_agreement_rises_with_the_price():
    for seed in range(5):
        curve = price_curve(*models(seed=seed))
        assert len(curve.price) == len(PRICES) == 200 and PRICES[0] == 0
        assert (
            (np.diff(curve.nfr) <= 0).all()
            and (np.diff(curve.pfr) <= 0).all()
            and (np.diff(curve.agreement) >= 0).all()
        )
        assert np.allclose(
            curve.pfr - curve.nfr, curve.accuracy - np.mean(models(seed=seed)[0].correct)
        )


def test_arrays_and_predictions_give_one_curve():
    old, new = models()
    curves = price_curve(old, new), PriceCurve.of(old.label, old.prediction, new.logits)
    assert all(
        np.array_equal(getattr(curves[0], name), getattr(curves[1], name))
        for name in ("price", "accuracy", "nfr", "pfr", "agreement")
    )


def test_labels_may_stand_in_any_of_the_predictions_and_in_another_order():
    old, new = models()
    expected = price_curve(old, new).accuracy
    bare = new.replace(label=None)
    assert np.array_equal(price_curve(old, bare).accuracy, expected)
    assert np.array_equal(price_curve(old.replace(label=None), shuffled(new)).accuracy, expected)
    assert np.array_equal(
        price_curve(old.replace(label=None), shuffled(new), posterior=shuffled(bare, 1)).accuracy,
        expected,
    )
    with pytest.raises(ValueError, match="no labels"):
        price_curve(old.replace(label=None), bare)


def test_a_label_that_no_model_knows_is_a_right_answer_of_none():
    old = Predictions(["a", "b"], ["quince", "fig"], ["fig", "fig"])
    new = Predictions(["a", "b"], logits=[[0.0, 9.0], [9.0, 0.0]], classes=["fig", "pear"])
    curve = price_curve(old, new, [0, inf])
    assert (
        curve.accuracy.tolist() == [0.5, 0.5]
        and curve.nfr.tolist() == [0, 0]
        and curve.agreement.tolist() == [0.5, 1]
    )


@pytest.mark.parametrize("change", [str.upper, lambda name: name + " "])
def test_a_price_is_not_chosen_by_labels_that_no_model_knows(change):
    """Whoever is never right never flips: such labels would certify anything."""
    names, draw = np.array(["fig", "pear"]), np.random.default_rng(0)
    label, ids = draw.integers(0, 2, 500), np.arange(500)
    logits = draw.normal(size=(500, 2)) + 2 * np.eye(2)[label]
    old = Predictions(ids, [change(name) for name in names[label].tolist()], names[label])
    new = Predictions(ids, logits=logits, classes=names)
    with pytest.raises(
        ValueError, match=f"500 labels are no class .*{change('fig')!r} .like 'fig'"
    ):
        choose_price(old, new, None, 0.05)
    with pytest.raises(ValueError, match="labels are no class"):
        choose_dial(old, {"new": new.replace(label=old.label)}, None, 0.05)


@pytest.mark.parametrize(
    "label, old, logits, complaint",
    [
        ([0], [0], [[nan, 1.0]], r"not finite in rows \[0\]"),
        ([0], [0], [0.0, 1.0], "must be"),
        ([0, 1], [0], [[0.0, 1.0]], "must be"),
        ([], [], np.zeros((0, 2)), "at least 1"),
        ([0], [2], [[0.0, 1.0]], "columns 0 to 1"),
        (["a"], ["a"], [[0.0, 1.0]], "use price_curve for names"),
    ],
)
def test_bad_arrays_are_refused(label, old, logits, complaint):
    with pytest.raises(ValueError, match=complaint):
        PriceCurve.of(label, old, logits)


# --- what is fitted -------------------------------------------------------------------------------


def sampled(n, seed, power=1.0, names=False):
    """Predictions whose labels are drawn from their own probabilities, then made louder."""
    generator = np.random.default_rng(seed)
    logits = 2 * generator.normal(size=(n, 3))
    label = (softmax(logits).cumsum(axis=1) > generator.random((n, 1))).argmax(axis=1)
    return Predictions([f"s{i}" for i in range(n)], label, logits=power * logits)


@pytest.mark.parametrize("power", [0.5, 1, 4])
def test_calibration_finds_the_temperature_and_turns_no_answer(power):
    predictions = sampled(20_000, 1, power)
    fitted = calibrate(predictions)
    assert fitted.temperature == pytest.approx(power, rel=0.05)
    assert np.array_equal(fitted.apply(predictions).prediction, predictions.prediction)


def test_calibration_moves_the_price_and_not_the_curve():
    old, new = models()
    fitted = Calibration(2.5)
    for price in (0.2, 1, 9):
        assert np.array_equal(
            keep_old(old, new, price, fitted).prediction,
            keep_old(old, new, (1 + price) ** 2.5 - 1).prediction,
        )


def test_the_pool_finds_the_powers_of_two_models():
    generator = np.random.default_rng(0)
    first, second = generator.normal(size=(2, 30_000, 3))
    label = (
        softmax(0.7 * first + 1.6 * second).cumsum(axis=1) > generator.random((30_000, 1))
    ).argmax(axis=1)
    old, new = (
        Predictions([f"s{i}" for i in range(30_000)], label, logits=z) for z in (first, 4 * second)
    )
    fitted = pool(old, shuffled(new))
    assert fitted.old == pytest.approx(0.7, rel=0.05) and fitted.new == pytest.approx(0.4, rel=0.05)
    assert np.allclose(
        softmax(fitted.apply(old, new).logits),
        softmax(fitted.old * first + 4 * fitted.new * second),
    )


def test_the_fitted_pool_is_the_minimum():
    old, new = models(2000, seed=3)
    fitted = pool(old, new)

    def loss(a, b):
        q = softmax(Pool(a, b).apply(old, new).logits)
        return -np.log(q[np.arange(len(q)), new.label]).mean()

    best = loss(fitted.old, fitted.new)
    for a, b in ((0.01, 0), (-0.01, 0), (0, 0.01), (0, -0.01), (0.1, -0.1)):
        assert loss(fitted.old + a, fitted.new + b) > best
    assert best < min(loss(1, 0), loss(0, 1), loss(0, 1 / calibrate(new).temperature))


def test_limits_of_the_pool():
    old, new = models()
    assert np.array_equal(Pool(0.0, 1.0).apply(old, new).prediction, new.prediction)
    assert np.array_equal(Pool(1.0, 0.0).apply(old, new).prediction, old.prediction)
    assert pool(old, old.replace(logits=old.logits * 1.0)).old >= 0
    contrary = old.replace(logits=-old.logits, prediction=old.prediction)
    assert pool(contrary, new).old == 0  # never a negative power
    perfect = Predictions(new.id, new.label, logits=20.0 * np.eye(4)[new.label])
    assert np.isfinite([pool(perfect, perfect).old, pool(perfect, perfect).new]).all()


def test_fitting_on_a_labelled_part_by_id():
    old, new = models()
    part = new.id[40:200]
    labels = Predictions(part[::-1], new.label[40:200][::-1])
    bare_old, bare_new = old.replace(label=None), new.replace(label=None)
    for on in (labels, dict(zip(part.tolist(), new.label[40:200].tolist()))):
        assert calibrate(bare_new, on).temperature == pytest.approx(
            calibrate(new.select(part)).temperature
        )
        assert pool(bare_old, bare_new, on).old == pytest.approx(
            pool(old.select(part), new.select(part)).old, rel=1e-4
        )
    with pytest.raises(ValueError, match="ids missing.*nobody"):
        calibrate(new, {"nobody": 1})
    with pytest.raises(ValueError, match="label"):
        calibrate(bare_new)
    with pytest.raises(ValueError, match="1 labels.*'quince'"):
        calibrate(Predictions(["a"], ["quince"], logits=[[0.0, 1.0]], classes=["fig", "pear"]))


def test_a_pool_needs_the_old_model_to_know_all_classes():
    old = Predictions(["a"], ["fig"], logits=[[0.0, 1.0]], classes=["fig", "pear"])
    new = Predictions(["a"], ["fig"], logits=[[0.0, 1.0, 2.0]], classes=["fig", "pear", "plum"])
    with pytest.raises(ValueError, match="'plum'"):
        pool(old, new)
    with pytest.raises(ValueError, match="logits"):
        pool(Predictions(["a"], ["fig"], ["fig"]), new)


def test_what_is_fitted_is_saved_as_json(tmp_path):
    old, new = models()
    for fitted, kind in ((calibrate(new), Calibration), (pool(old, new), Pool)):
        path = fitted.save(tmp_path / "deep" / "fitted.json")
        assert kind.load(path) == fitted and len(fitted.fitted_on) == 300
        assert "e17" not in path.read_text()  # ids stand there as hashes
        with pytest.raises(ValueError, match="holds no"):
            ({Calibration, Pool} - {kind}).pop().load(path)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ValueError, match="broken.json"):
        Pool.load(tmp_path / "broken.json")
    (tmp_path / "poor.json").write_text('{"kind": "pool", "old": 1}')
    with pytest.raises(ValueError, match="calibration nor a pool"):
        Pool.load(tmp_path / "poor.json")


@pytest.mark.parametrize(
    "make, complaint",
    [
        (lambda: Calibration(0), "above 0"),
        (lambda: Calibration("1"), "above 0"),
        (lambda: Calibration(nan), "above 0"),
        (lambda: Pool(-1, 1), "at least 0"),
        (lambda: Pool(1, inf), "at least 0"),
    ],
)
def test_bad_fitted_numbers_are_refused(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()


# --- the certificate ------------------------------------------------------------------------------


def right_old(gains, extra=0):
    """Two classes; an old model that is always right, and a new one that flips with these log
    ratios (0: does not); `extra` are old errors mended.
    """
    gains = np.asarray(gains, dtype=np.float64)
    n = len(gains) + extra
    label = np.r_[np.zeros(len(gains), int), np.ones(extra, int)]
    logits = np.c_[np.zeros(n), np.r_[np.where(gains > 0, gains, -1.0), np.full(extra, 50.0)]]
    ids = [f"i{i}" for i in range(n)]
    return Predictions(ids, label, prediction=np.zeros(n, int)), Predictions(
        ids, label, logits=logits
    )


@pytest.mark.parametrize(
    "max_nfr, confidence",
    [(0.005, 0.95), (0.01, 0.95), (0.02, 0.9), (0.3, 0.5), (0.1, 0.99), (0.5, 0.3)],
)
def test_how_many_examples_are_needed(max_nfr, confidence):
    n = needed_examples(max_nfr, confidence)
    assert n == ceil(log(1 - confidence) / log(1 - max_nfr) - 1e-9)
    assert (1 - max_nfr) ** n <= (1 - confidence) * (1 + 1e-9) and (1 - max_nfr) ** (
        n - 1
    ) > 1 - confidence
    choose_price(*right_old(np.zeros(n)), None, max_nfr, confidence)
    if n == 1:
        return
    with pytest.raises(
        ValueError, match=f"{n - 1} calibration examples can never certify.*at least {n} are needed"
    ):
        choose_price(*right_old(np.zeros(n - 1)), None, max_nfr, confidence)


def test_a_hand_counted_choice():
    # 300 examples, 1 %: no flip is allowed, so the price is the largest critical price
    old, new = right_old(np.r_[np.log([3.0, 9.0, 5.0]), np.zeros(296)], extra=1)
    choice = choose_price(old, new, None, 0.01)
    assert (
        choice.price == pytest.approx(8)
        and choice.certificate.flips == 0
        and choice.certificate.n == 300
    )
    assert (
        choice.certificate.nfr_bound == pytest.approx(1 - 0.05 ** (1 / 300))
        and choice.certificate.nfr_bound <= 0.01
    )
    assert (
        choice.certificate.agreement == pytest.approx(299 / 300)
        and choice.certificate.accuracy == 1
    )
    # 473 examples: one is allowed
    assert binom.cdf(1, 473, 0.01) <= 0.05 < binom.cdf(1, 472, 0.01)
    old, new = right_old(np.r_[np.log([3.0, 9.0, 5.0]), np.zeros(469)], extra=1)
    choice = choose_price(old, new, None, 0.01)
    assert choice.price == pytest.approx(4) and choice.certificate.flips == 1
    assert keep_old(old, new, choice.price).prediction.sum() == 2


@pytest.mark.parametrize("seed", range(6))
def test_the_choice_is_that_of_a_walk_over_all_critical_prices(seed):
    old, new = models(
        500, seed=seed, dtype=np.float16 if seed % 2 else np.float64
    )  # halves have ties
    max_nfr = [0.01, 0.02, 0.05][seed % 3]
    walked = None
    for price in sorted({0.0, *critical_price(old, new).tolist()}, reverse=True):
        flips = FlipCounts.between(old, keep_old(old, new, price)).negative
        if binom.cdf(flips, 500, max_nfr) > 0.05:
            break
        walked = price, flips
    choice = choose_price(old, new, None, max_nfr)
    assert (
        choice.price == pytest.approx(walked[0], rel=1e-12)
        and choice.certificate.flips == walked[1]
    )


def test_nothing_to_hold_down_gives_price_0():
    old, new = models(400)
    assert choose_price(old, old, None, 0.01).price == 0
    never_right = old.replace(label=(old.prediction + 1) % 4, prediction=old.prediction)
    choice = choose_price(never_right, new.replace(label=never_right.label), None, 0.01)
    assert (
        choice.price == 0 and choice.certificate.flips == 0 and choice.certificate.accuracy_old == 0
    )
    better = old.replace(logits=30 * np.eye(4)[old.label])
    assert choose_price(old, better, None, 0.01).price == 0


def test_only_the_old_model_qualifies():
    old, new = right_old(np.full(400, 2.0))  # the new model flips everything
    choice = choose_price(old, new, None, 0.01)
    assert (
        choice.price is None
        and "keep the old answer" in choice.reason
        and "only the old model" in str(choice)
    )
    assert choice.certificate.agreement == 1
    certain = over_classes(
        Predictions(old.id, logits=np.zeros((400, 1)), classes=["pear"]), ["fig", "pear"]
    )
    named = Predictions(
        old.id, ["fig"] * 400, ["fig"] * 400
    )  # the posterior gives the old answer nothing
    assert choose_price(named, certain, None, 0.01).price is None


def test_labels_by_id_by_place_and_their_kind():
    old, new = models(names=True)
    bare = old.replace(label=None), shuffled(new.replace(label=None))
    expected = choose_price(old, new, None, 0.02)
    by_id = dict(zip(old.id.tolist(), old.label.tolist()))
    for label in (old.label, old.label.tolist(), by_id, Predictions(old.id[::-1], old.label[::-1])):
        assert choose_price(*bare, label, 0.02) == expected
    with pytest.raises(ValueError, match="3 labels.*300"):
        choose_price(*bare, [1, 2, 3], 0.02)
    with pytest.raises(ValueError, match="ids have no label"):
        choose_price(*bare, {"e1": "fig"}, 0.02)
    with pytest.raises(ValueError, match="write both as numbers or both as text|are numbers"):
        choose_price(
            Predictions(old.id, prediction=old.prediction), bare[1], np.zeros(300, int), 0.02
        )
    with pytest.raises(ValueError, match="label"):
        choose_price(old, new, np.roll(old.label, 1), 0.02)


@pytest.mark.parametrize(
    "name, value",
    [
        ("max_nfr", 0),
        ("max_nfr", 1),
        ("max_nfr", -0.1),
        ("max_nfr", nan),
        ("max_nfr", 5),
        ("max_nfr", "1%"),
        ("max_nfr", True),
        ("confidence", 0),
        ("confidence", 1),
        ("confidence", 95),
        ("min_accuracy", 0),
        ("min_accuracy", 1.2),
    ],
)
def test_numbers_outside_0_and_1_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} is .*between 0 and 1"):
        choose_price(*models(), None, **({"max_nfr": 0.02} | {name: value}))


def test_the_level_holds_where_the_rate_is_exactly_at_the_limit():
    # at price 1 the true rate is exactly the limit; to choose a smaller price is the error
    n, limit, repeats, generator = 300, 0.03, 400, np.random.default_rng(0)
    wrong = bound_wrong = 0
    for _ in range(repeats):
        flips = generator.random(n) < 3 * limit
        critical = generator.pareto(1.0, n)  # P(critical > price) = 1 / (1 + price)
        gains = np.where(flips, np.log1p(critical), 0.0)
        choice = choose_price(*right_old(gains, extra=1), None, limit)
        rate = 3 * limit / (1 + choice.price)
        wrong += rate > limit * (n + 1) / n  # one example was added that never flips
        bound_wrong += rate > choice.certificate.nfr_bound * (n + 1) / n
    assert wrong <= 0.05 * repeats + 3 * (0.05 * 0.95 * repeats) ** 0.5
    assert 0 < wrong and 0 < bound_wrong <= 0.05 * repeats + 3 * (0.05 * 0.95 * repeats) ** 0.5


def drawn(generator, groups, copies, gain=None):
    """An old model that is always right and a new one of normal gains, on `groups` examples that
    stand there `copies` times each, under ids of their own.
    """
    noise = generator.normal(size=groups)
    logits = np.repeat(np.c_[noise, noise + generator.normal(-1, 1, groups)], copies, axis=0)
    ids = [f"i{n}" for n in range(groups * copies)]
    label = np.zeros(len(ids), int)
    return Predictions(ids, label, label), Predictions(ids, label, logits=logits)


def test_the_level_holds_with_as_many_copies_as_are_taken_and_fails_with_more(monkeypatch):
    """Of 300 calibration examples 2 % may be copies; 60 that stand there five times are refused,
    and would have broken the certificate far too often.
    """

    def failures(make, repeats=300):
        prices = [choose_price(*make(), None, 0.05).price for _ in range(repeats)]
        rates = [0 if price is None else norm.sf(log(1 + price) + 1) for price in prices]
        return np.mean(np.array(rates) > 0.05)

    def few_copies():
        old, new = drawn(generator, 300, 1)
        logits = new.logits.copy()
        logits[294:] = logits[:6]
        return old, new.replace(logits=logits, prediction=None)

    generator = np.random.default_rng(0)
    assert failures(few_copies) < 0.06
    with pytest.raises(ValueError, match="240.*300.*'i0'"):
        choose_price(*drawn(generator, 60, 5), None, 0.05)
    monkeypatch.setattr(decisions, "_MOST_EQUAL", 1.0)
    assert failures(lambda: drawn(generator, 60, 5)) > 0.12


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_copies_are_found_in_any_order_beside_zeros_and_by_label(kind):
    generator = np.random.default_rng(1)
    old, new = drawn(generator, 150, 2)
    new = shuffled(new.replace(logits=new.logits.astype(kind)))
    with pytest.raises(ValueError, match="150.*300"):
        choose_price(old, new, None, 0.05)
    logits = new.logits.copy()
    logits[:, 0] = np.where(generator.random(300) < 0.5, 0.0, -0.0)
    logits[:, 1] = np.repeat(logits[:150, 1], 2)
    with pytest.raises(ValueError, match="calibration examples equal others"):
        choose_price(old, new.replace(logits=logits), None, 0.05)
    two_labels = old.replace(label=np.arange(300) % 2)
    new = drawn(np.random.default_rng(1), 150, 2)[1].replace(label=two_labels.label)
    assert choose_price(two_labels, new, None, 0.05).certificate.equal_rows == 0


def few_digits(new, written):
    """Logits of two classes in which different examples may well be equal."""
    margin = new.logits[:, 1] - new.logits[:, 0]
    share = np.round(1 / (1 + np.exp(margin)), 2)
    return {
        "votes": np.eye(2)[(margin > 0).astype(int)],
        "sure": 400 * np.eye(2)[(margin > 0).astype(int)] + 0.1234567,
        "two decimals": log_probability(np.c_[share, 1 - share].astype(np.float32)),
        "half": np.c_[margin, 0 * margin].astype(np.float16),
    }[written]


@pytest.mark.parametrize("written", ["votes", "sure", "two decimals", "half"])
def test_rows_that_may_be_equal_by_nature_are_not_refused(written):
    old, new = models(900, classes=2)
    new = new.replace(logits=few_digits(new, written))
    counted = choose_price(old, new, None, 0.1).certificate.equal_rows
    assert (counted > 18) == (written in ("two decimals", "half"))


def test_a_model_of_few_outputs_is_not_refused():
    generator = np.random.default_rng(3)
    old, new = drawn(generator, 300, 1)
    label, cells = generator.integers(0, 2, 300), generator.normal(size=(9, 2))
    old = old.replace(label=label)
    new = new.replace(label=label, logits=cells[np.arange(300) % 9], prediction=None)
    assert choose_price(old, new, None, 0.05).certificate.equal_rows == 0


def test_a_few_copies_are_counted_and_said():
    old, new = drawn(np.random.default_rng(2), 300, 1)
    logits = new.logits.copy()
    logits[295:] = logits[:5]
    choice = choose_price(old, new.replace(logits=logits), None, 0.05)
    assert choice.certificate.equal_rows == 5
    assert any("5 of 300 calibration examples" in warning for warning in choice.warnings)


@pytest.mark.parametrize(
    "name", ["weight", "sample_weight", "SampleWeight", "w", "weights.train", "freq"]
)
def test_a_column_called_like_a_weight_is_warned_about(name):
    old, new = drawn(np.random.default_rng(3), 300, 1)
    weights = np.linspace(0.5, 2, 300)
    with pytest.warns(UserWarning, match=f"'{name}' is called like a weight"):
        choose_price(old.replace(columns={name: weights}), new, None, 0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose_price(old.replace(columns={name: np.ones(300)}), new, None, 0.05)
        choose_price(old.replace(columns={"lightweightness": weights}), new, None, 0.05)


def test_the_share_of_errors_is_the_exact_one():
    from compatkit.decisions import allowed_flips, smallest_gain

    generator, n, limit, repeats = np.random.default_rng(1), 1000, 0.02, 10_000
    allowed = allowed_flips(n, limit, 0.05)
    assert binom.cdf(allowed, n, limit) <= 0.05 < binom.cdf(allowed + 1, n, limit)
    wrong = sum(
        0.06 * np.exp(-smallest_gain(generator.exponential(size=flips), allowed)) > limit
        for flips in generator.binomial(n, 0.06, repeats)
    )
    exact = binom.cdf(allowed, n, limit)
    assert abs(wrong / repeats - exact) < 4 * (exact / repeats) ** 0.5


@pytest.mark.parametrize(
    "n, limit, level",
    [
        (50, 0.1, 0.05),
        (1000, 0.02, 0.05),
        (100_000, 0.005, 0.025),
        (10, 0.5, 0.7),
        (300, 0.001, 0.05),
    ],
)
def test_allowed_flips_are_those_of_scipy(n, limit, level):
    from compatkit.decisions import allowed_flips

    expected = -1
    while expected + 1 <= n and binom.cdf(expected + 1, n, limit) <= level:
        expected += 1
    assert allowed_flips(n, limit, level) == expected


def test_the_rate_holds_in_every_slice():
    old, new = models(3000, seed=5)
    where = np.where(np.arange(3000) % 4 == 0, "rare", "common")
    choice = choose_price(old, new, None, 0.03, slices=where)
    assert set(choice.slices) == {"rare", "common"} and choice.price == max(
        one.price for one in choice.slices.values()
    )
    for name, one in choice.slices.items():
        mask = where == name
        assert one == choose_price(old.select(mask), new.select(mask), None, 0.03, 0.975).__class__(
            one.price, one.certificate
        )
        alone = choose_price(old.select(mask), new.select(mask), None, 0.03, 0.975)
        assert one.price == alone.price and one.certificate.nfr_bound == pytest.approx(
            alone.certificate.nfr_bound
        )
        assert (
            FlipCounts.between(
                old.select(mask), keep_old(old.select(mask), new.select(mask), choice.price)
            ).nfr
            <= 0.03
        )
    assert (
        choice.certificate.nfr_bound
        == max(one.certificate.nfr_bound for one in choice.slices.values())
        <= 0.03
    )
    assert choice.price >= choose_price(old, new, None, 0.03).price


def test_slices_by_column_and_bad_slices():
    old, new = models(2000, seed=5)
    where = np.where(np.arange(2000) % 2 == 0, "even", "odd")
    expected = choose_price(old, new, None, 0.03, slices=where)
    assert (
        choose_price(old.replace(columns={"kind": where}), shuffled(new), None, 0.03, slices="kind")
        == expected
    )
    assert (
        choose_price(old, shuffled(new.replace(columns={"kind": where})), None, 0.03, slices="kind")
        == expected
    )
    with pytest.raises(ValueError, match="'few'"):
        choose_price(old, new, None, 0.03, slices=np.where(np.arange(2000) < 50, "few", "many"))
    with pytest.raises(ValueError, match="one name each"):
        choose_price(old, new, None, 0.03, slices=where[:7])
    with pytest.raises(ValueError, match="needs `kind`"):
        choose_price(old, new, None, 0.03, slices="kind")
    with pytest.raises(ValueError, match="slices"):
        choose_price(old, new, None, 0.03, slices=[None, *where[1:]])


def test_a_claim_about_accuracy_as_well():
    old, new = models(3000, seed=6)
    plain = choose_price(old, new, None, 0.03, 0.975)
    accuracy = plain.certificate.accuracy
    both = choose_price(old, new, None, 0.03, min_accuracy=accuracy - 0.05)
    assert (
        both.price in PRICES
        and both.price >= plain.price > PRICES[np.flatnonzero(PRICES == both.price)[0] - 1]
    )
    certificate = both.certificate
    assert certificate.min_accuracy == accuracy - 0.05 and certificate.level == pytest.approx(0.025)
    assert binom.sf(round(certificate.accuracy * 3000) - 1, 3000, accuracy - 0.05) <= 0.025
    none = choose_price(old, new, None, 0.03, min_accuracy=0.999)
    assert none.price is None and "99.90%" in none.reason


def test_min_accuracy_stops_where_a_price_on_the_way_fails():
    old, new = models(3000, seed=6)
    new = new.replace(
        logits=new.logits + [0, 0, 0, 2.5]
    )  # at price 0 the new model is too fond of one class
    curve = price_curve(old, new)
    assert curve.accuracy[0] < curve.accuracy.max() - 0.03
    assert (
        choose_price(old, new, None, 0.03, min_accuracy=curve.accuracy.max() - 0.025).price is None
    )


def test_examples_that_were_fitted_or_trained_on_are_refused():
    old, new = models(600)
    fits, certifies = halves(old.id)
    fitted = pool(old.select(fits), new.select(fits))
    choose_price(old.select(certifies), new.select(certifies), None, 0.02, posterior=fitted)
    with pytest.raises(ValueError, match="300"):
        choose_price(old, new, None, 0.02, posterior=fitted)
    with pytest.raises(ValueError, match="600"):
        choose_price(old, new, None, 0.02, posterior=calibrate(new))
    for trained_on in (["x", "e7"], Predictions(["e7", "x"], [0, 1])):
        with pytest.raises(ValueError, match="'e7'"):
            choose_price(old, new, None, 0.02, trained_on=trained_on)


def test_halves_are_fixed_and_fair():
    ids = [f"example {i}" for i in range(1001)]
    fits, certifies = halves(ids)
    assert fits.sum() == 500 and certifies.sum() == 501 and not (fits & certifies).any()
    turned = halves(ids[::-1])[0][::-1]
    assert np.array_equal(fits, turned)


def test_a_choice_shows_itself_and_escapes_names():
    old, new = models(2000, seed=5)
    choice = choose_price(
        old, new, None, 0.03, slices=np.where(np.arange(2000) % 2 == 0, "<b>even</b>", "odd")
    )
    page = choice._repr_html_()
    assert "&lt;b&gt;even" in page and "<b>even" not in page and "exchangeable" in page
    assert json.loads(json.dumps(choice.to_dict()))["certificate"]["n"] == 2000
    assert "NFR at most 3.00% with 95% confidence" in str(choice) and isinstance(
        choice.certificate, Certificate
    )


# --- other dials ----------------------------------------------------------------------------------


def dial(old, counts, n):
    """dial value -> answers with so many negative flips."""
    return {
        k: Predictions(old.id, old.label, np.r_[np.ones(k, int), np.zeros(n - k, int)])
        for k in counts
    }


def test_a_walk_stops_at_the_first_failure_and_bonferroni_does_not():
    n = 600
    old = Predictions([f"i{i}" for i in range(n)], np.zeros(n, int), np.zeros(n, int))
    counts = [0, 1, 9, 2, 3]  # one is allowed at .05, none at .01
    assert binom.cdf(1, n, 0.01) <= 0.05 < binom.cdf(2, n, 0.01) and binom.cdf(
        0, n, 0.01
    ) <= 0.01 < binom.cdf(1, n, 0.01)
    walked = choose_dial(old, dial(old, counts, n), None, 0.01)
    assert (
        walked.value == 1
        and [one[0] for one in walked.tested] == [0, 1, 9]
        and walked.certificate.flips == 1
    )
    each = choose_dial(old, dial(old, counts, n), None, 0.01, monotone=False)
    assert (
        each.value == 0 and len(each.tested) == 5 and each.certificate.level == pytest.approx(0.01)
    )
    assert [one[3] for one in each.tested] == [True, False, False, False, False]
    none = choose_dial(old, dial(old, [5, 0], n), None, 0.01)
    assert none.value is None and none.certificate is None and "only the old model" in str(none)
    assert [one[2] for one in walked.tested] == pytest.approx(
        [binom.cdf(k, n, 0.01) for k in (0, 1, 9)]
    )


def test_a_dial_joins_by_id_and_takes_mixtures():
    old, new = models(1500, names=True)
    mixes = {weight: shuffled(mix(old, new, weight)) for weight in (0.0, 0.3, 0.6, 1.0)}
    choice = choose_dial(old, mixes, None, 0.03)
    expected = FlipCounts.between(old, mix(old, new, choice.value))
    assert (
        choice.certificate.flips == expected.negative
        and choice.certificate.accuracy == expected.accuracy_new
    )


def test_bad_dials_are_refused():
    old, new = models(200)
    with pytest.raises(ValueError, match="no values"):
        choose_dial(old, {}, None, 0.03)
    with pytest.raises(ValueError, match="299"):
        choose_dial(old, {1: new}, None, 0.01)
    with pytest.raises(ValueError, match=new.id[0]):
        choose_dial(old, {1: new.select(new.id[5:])}, None, 0.03)


def test_a_price_choice_may_hold_no_certificate():
    assert "only the old model" in PriceChoice(None, None, "no reason")._repr_html_()


def test_classes_called_by_numbers_are_certified_as_names_are(tmp_path):
    """In any order of the columns, and with old answers and labels from files without classes."""
    generator = np.random.default_rng(0)
    label, other = generator.integers(0, 3, (2, 400))
    old = np.where(generator.random(400) < 0.8, label, other)
    logits = generator.normal(size=(400, 3)) + 3 * np.eye(3)[label]
    ids, found = [f"x{n}" for n in range(400)], []
    for names in ("abc", "012", "123"):
        order = [2, 0, 1]
        rows = ["id," + ",".join(f"logit_{names[column]}" for column in order)]
        rows += [",".join(map(str, [one, *row])) for one, row in zip(ids, logits[:, order])]
        (tmp_path / "new.csv").write_text("\n".join(rows))
        given = [f"{one},{names[t]},{names[o]}" for one, t, o in zip(ids, label, old)]
        (tmp_path / "old.csv").write_text("\n".join(["id,label,prediction", *given]))
        sides = [Predictions.load(tmp_path / f"{side}.csv") for side in ("old", "new")]
        choice, kept = choose_price(*sides, None, 0.05), keep_old(*sides, 0.5).prediction.tolist()
        found.append((choice.price, choice.certificate, [names.index(str(one)) for one in kept]))
    assert found[0] == found[1] == found[2]
