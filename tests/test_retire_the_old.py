"""Retiring the old model: what students are told, the student's loss at its limits, heads that
come back as they were saved, caches that learn, churn's losses, and bad input by name.
"""

import numpy as np
import pytest
import tiny
import torch
from torch.nn import functional as F

from compatkit.decisions import keep_old, pool
from compatkit.distillation import FocalDistillation
from compatkit.ensembles import mix
from compatkit.gated_fusion import OldLogitsCache
from compatkit.predictions import Predictions
from compatkit.retire_the_old import (
    FEWEST_PAIRS,
    LESSONS,
    UNLABELLED,
    Anchor,
    LearnedCache,
    OldLogitsHead,
    OneModel,
    RobustnessCongruent,
    StudentOfTraffic,
    beside,
    embedded,
    fit_head,
    hardened,
    refuse_overlap,
    tilted,
    what_to_learn,
)
from compatkit.training.loop import fine_tune, outputs
from compatkit.training.tasks import example_key

IDS = [f"log-{row}" for row in range(60)]
CLASSES = ("apple", "pear", "plum", "fig")


def answers(seed, logits=True, ids=IDS, label=None):
    """Made-up answers over four classes."""
    values = np.random.default_rng(seed).normal(size=(len(ids), 4)) * 2
    if logits:
        return Predictions(ids, label, logits=values, classes=CLASSES)
    return Predictions(ids, label, prediction=[CLASSES[row] for row in values.argmax(1)])


def probability(predictions):
    return np.exp(predictions.logits)


# what a student is told
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("price", [0.0, 0.3, 1.0, 40.0])
@pytest.mark.parametrize("logits", [True, False])
def test_the_tilted_posterior_answers_as_the_rule(price, logits):
    old, new = answers(0, logits), answers(1)
    told = tilted(old, new, price)
    assert told.prediction.tolist() == keep_old(old, new, price).prediction.tolist()
    assert np.allclose(probability(told).sum(1), 1)


def test_the_odds_on_the_old_answer_rise_by_one_plus_the_price():
    old, new = answers(0), answers(1)
    column = old.logits.argmax(1)
    rows = np.arange(len(column))
    before, after = (probability(tilted(old, new, price)) for price in (0.0, 3.0))
    odds = [each[rows, column] / (1 - each[rows, column]) for each in (before, after)]
    assert np.allclose(odds[1], 4 * odds[0])


def test_a_pool_serves_as_posterior():
    label = np.random.default_rng(5).integers(4, size=len(IDS))
    old, new = (answers(seed, label=label) for seed in (0, 1))
    fitted = pool(old, new)
    told = tilted(old, new, 1.0, fitted)
    assert told.prediction.tolist() == keep_old(old, new, 1.0, fitted).prediction.tolist()


def test_examples_are_joined_by_id():
    old, new = answers(0), answers(1)
    turned = new.select(IDS[::-1])
    for lesson in LESSONS:
        first, second = (what_to_learn(old, each, lesson) for each in (new, turned))
        assert first.id.tolist() == second.id.tolist() == IDS
        assert np.allclose(first.logits, second.logits)


def test_each_lesson_is_what_it_says():
    old, new = answers(0), answers(1)
    told = {lesson: what_to_learn(old, new, lesson, weight=0.3) for lesson in LESSONS}
    assert np.allclose(told["mixture"].logits, mix(old, new, 0.3).logits)
    assert (told["old"].logits.argmax(1) == old.logits.argmax(1)).all()
    assert (told["self"].logits.argmax(1) == new.logits.argmax(1)).all()
    assert np.allclose(told["rule"].logits, tilted(old, new, 1.0).logits)


def test_hard_old_answers_work_in_every_lesson():
    old, new = answers(0, logits=False), answers(1)
    for lesson in LESSONS:
        told = what_to_learn(old, new, lesson)
        assert np.isfinite(told.logits).all() and np.allclose(probability(told).sum(1), 1)
    sure = hardened(old, CLASSES, 4)
    assert np.isclose(probability(sure).max(1), 1 - 1e-4).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lesson": "guess"}, "is not one of mixture, rule, old, self"),
        ({"price": -1.0}, "at least 0"),
        ({"price": float("inf")}, "learn the lesson 'old'"),
        ({"price": float("nan")}, "finite number"),
        ({"lesson": "mixture", "weight": 1.5}, "between 0 and 1"),
    ],
)
def test_bad_settings_are_named(change, words):
    with pytest.raises(ValueError, match=words):
        what_to_learn(answers(0), answers(1), **change)


def test_bad_examples_are_named():
    old, new = answers(0), answers(1)
    with pytest.raises(ValueError, match="empty"):
        what_to_learn(old.select([]), new.select([]))
    for lesson in ("rule", "mixture"):
        with pytest.raises(ValueError, match="different examples"):
            what_to_learn(old.select(IDS[:5]), new, lesson)
        other = Predictions(IDS, logits=old.logits, classes=("apple", "pear", "plum", "cherry"))
        with pytest.raises(ValueError, match="cherry"):
            what_to_learn(other, new, lesson)
    strange = Predictions(IDS, prediction=["cherry"] * len(IDS))
    with pytest.raises(ValueError, match="cherry"):
        what_to_learn(strange, new, "old")


def test_texts_that_judge_are_refused_whatever_their_case():
    judged = [("What time is it", ""), ("Stop", "now")]
    refuse_overlap([("play jazz", "")], judged)
    with pytest.raises(ValueError, match=r"1 of 2 texts .*'b'"):
        refuse_overlap([("play jazz", ""), ("stop", " NOW ")], judged, ["a", "b"])
    with pytest.raises(ValueError, match="empty"):
        refuse_overlap([], judged)


# the student
# --------------------------------------------------------------------------------------------------


def test_labelled_and_unlabelled_rows_count_as_they_should():
    torch.manual_seed(0)
    logits, told = torch.randn(6, 4), torch.randn(6, 4)
    label = torch.tensor([0, 1, UNLABELLED, 3, UNLABELLED, 2])
    labelled = label >= 0
    known = F.cross_entropy(logits[labelled], label[labelled], reduction="sum")
    p, t = logits.log_softmax(1), told.log_softmax(1)
    kl = (t.exp() * (t - p)).sum(1)[~labelled].sum()
    for weight in (0.0, 1.0, 2.5):
        found = StudentOfTraffic(weight).loss(logits, label, told)
        assert torch.isclose(found, (known + weight * kl) / 6)
    everywhere = torch.arange(6) % 4
    plain = F.cross_entropy(logits, everywhere)
    assert torch.isclose(StudentOfTraffic().loss(logits, everywhere, told), plain)
    nowhere = torch.full((6,), UNLABELLED)
    assert torch.isfinite(StudentOfTraffic().loss(logits, nowhere, told))


def test_what_a_labelled_row_is_told_is_not_read():
    torch.manual_seed(0)
    logits, told = torch.randn(4, 3), torch.randn(4, 3)
    label = torch.tensor([0, UNLABELLED, 2, UNLABELLED])
    other = torch.where((label >= 0)[:, None], -9 * told, told)
    treatment = StudentOfTraffic()
    assert treatment.loss(logits, label, told) == treatment.loss(logits, label, other)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), True])
def test_a_bad_weight_is_refused(weight):
    with pytest.raises(ValueError, match="weight is"):
        StudentOfTraffic(weight)


def test_what_is_told_must_have_the_classes_width():
    with pytest.raises(ValueError, match="expected"):
        StudentOfTraffic().loss(torch.zeros(2, 3), torch.tensor([0, UNLABELLED]), torch.zeros(2, 4))


@pytest.fixture(scope="module")
def rows():
    """Training rows of a tiny task, half of them without a label."""
    data = tiny.data(80)
    data.labels = [label if row % 2 else UNLABELLED for row, label in enumerate(data.labels)]
    return data


def student(rows, told, weight=1.0):
    """A model trained on the rows; what is told is by id."""
    given = Predictions(rows.ids, logits=told)
    model = fine_tune(tiny.model(3), rows, StudentOfTraffic(weight), 3, old=given, **tiny.FAST)
    return outputs(model.model, rows)["logits"]


def test_through_the_trainer_weight_0_does_not_read_what_is_told_and_weight_1_does(rows):
    told = np.random.default_rng(0).normal(size=(len(rows), 3)) * 3
    assert np.array_equal(student(rows, told, 0.0), student(rows, -told, 0.0))
    assert not np.array_equal(student(rows, told), student(rows, -told))
    with pytest.raises(ValueError, match="needs the old model's logits"):
        fine_tune(tiny.model(3), rows, StudentOfTraffic(), 3, **tiny.FAST)


def test_a_student_that_is_told_one_class_answers_it(rows):
    always = np.tile([0.0, 0.0, 8.0], (len(rows), 1))
    found = student(rows, always, 50.0).argmax(1)
    assert (found == 2).mean() > 0.9


# heads and caches
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pairs():
    """(embedding, new logits, old logits) of made-up models that a head can imitate."""
    torch.manual_seed(0)
    vectors, maps = torch.randn(900, 12), torch.randn(2, 12, 4)
    new = vectors @ maps[0]
    return vectors, new, vectors @ maps[1] + new / 2


@pytest.fixture(scope="module")
def fitted(pairs):
    return fit_head(*(part[:600] for part in pairs))


def agreement(found, old):
    return float((found.argmax(1) == old.argmax(1)).float().mean())


def test_a_head_learns_what_the_nearest_neighbour_does_not_know(pairs, fitted):
    vectors, new, old = (part[600:] for part in pairs)
    with torch.no_grad():
        by_head = agreement(fitted.head(vectors, new), old)
    nearest = torch.cdist(vectors, pairs[0][:600]).argmin(1)
    assert by_head > 0.85 > agreement(pairs[2][:600][nearest], old) + 0.1
    assert fitted.agreement > 0.8 and fitted.loss < 0.3


def test_hard_answers_train_a_head(pairs):
    vectors, new, old = pairs
    found = fit_head(vectors[:600], new[:600], old[:600].argmax(1), old_classes=4).head
    with torch.no_grad():
        assert agreement(found(vectors[600:], new[600:]), old[600:]) > 0.8


def test_the_same_seed_gives_the_same_head_and_leaves_the_generator_alone(pairs):
    few = [part[:100] for part in pairs]
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first = fit_head(*few, seed=1).head.state_dict()
    assert torch.equal(torch.rand(3), expected)
    second, other = (fit_head(*few, seed=seed).head.state_dict() for seed in (1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["linear.weight"], other["linear.weight"])


def test_a_head_may_know_other_classes_than_the_new_model(pairs):
    vectors, new, old = (part[:60] for part in pairs)
    found = fit_head(vectors, new, old[:, :3]).head
    assert found(vectors, new).shape == (60, 3)


def test_a_head_comes_back_as_it_was_saved(pairs, fitted, tmp_path):
    fitted.head.save_pretrained(tmp_path)
    again = OldLogitsHead.from_pretrained(tmp_path)
    assert not again.training
    assert torch.equal(again(pairs[0], pairs[1]), fitted.head(pairs[0], pairs[1]))
    with pytest.raises(FileNotFoundError, match="old_logits_head"):
        OldLogitsHead.from_pretrained(tmp_path / "elsewhere")


def test_a_foreign_file_is_no_head(tmp_path):
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(2)}, str(tmp_path / "old_logits_head.safetensors"))
    with pytest.raises(ValueError, match="another file"):
        OldLogitsHead.from_pretrained(tmp_path)


def test_pairs_that_do_not_fit_are_named(pairs, fitted):
    vectors, new, old = (part[:60] for part in pairs)
    with pytest.raises(ValueError, match=f"at least {FEWEST_PAIRS}"):
        fit_head(vectors[:5], new[:5], old[:5])
    with pytest.raises(ValueError, match="as many of each"):
        fit_head(vectors[:50], new, old)
    with pytest.raises(ValueError, match="not finite"):
        fit_head(vectors, new, old.where(old < old.max(), torch.nan))
    with pytest.raises(ValueError, match="not finite"):
        fit_head(vectors * torch.inf, new, old)
    with pytest.raises(ValueError, match="columns from 0 to 3"):
        fit_head(vectors, new, torch.full((60,), 7), old_classes=4)
    with pytest.raises(ValueError, match="do not fit this head"):
        fitted.head(vectors[:, :5], new)


def test_a_learned_cache_knows_what_it_saw_and_guesses_the_rest(pairs, tmp_path):
    vectors, new, old = pairs
    keys = [example_key(str(row)) for row in range(len(old))]
    cache = LearnedCache()
    cache.add(keys[:300], vectors[:300], old[:300], new[:300])
    cache.add(keys[300:600], vectors[300:600], old[300:600], new[300:600])
    nearest, _ = cache.lookup(keys, vectors)
    plain = OldLogitsCache()
    plain.add(keys[:600], vectors[:600], old[:600])
    assert torch.equal(nearest, plain.lookup(keys, vectors)[0])  # before it has learnt
    cache.learn()
    found, exact = cache.lookup(keys, vectors, new)
    assert exact.tolist() == [True] * 600 + [False] * 300
    assert torch.equal(found[:600], old[:600])
    assert agreement(found[600:], old[600:]) > agreement(nearest[600:], old[600:]) + 0.1
    cache.save_pretrained(tmp_path)
    again = LearnedCache.from_pretrained(tmp_path)
    assert torch.equal(again.lookup(keys, vectors, new)[0], found)
    again.forget_embeddings()
    again.save_pretrained(tmp_path)
    for light in (again, LearnedCache.from_pretrained(tmp_path)):
        assert torch.equal(light.lookup(keys, vectors, new)[0], found)
        with pytest.raises(ValueError, match="forgotten"):
            light.add(keys[600:], vectors[600:], old[600:], new[600:])


@pytest.mark.parametrize("name", ["new_logits_cache", "old_logits_head", "old_logits_cache"])
def test_what_a_learned_cache_reads_back_is_checked(pairs, tmp_path, name):
    vectors, new, old = (part[:60] for part in pairs)
    cache = LearnedCache()
    cache.add([example_key(str(row)) for row in range(60)], vectors, old, new)
    cache.learn()
    cache.save_pretrained(tmp_path)
    path = tmp_path / f"{name}.safetensors"
    whole = path.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    not_numbers = whole[:end] + b"\xff" * (len(whole) - end)
    for broken in (whole[:4], whole[:-4], whole.replace(b"F32", b"F16"), not_numbers):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=f"{name}.safetensors"):
            LearnedCache.from_pretrained(tmp_path)


def test_a_cache_says_what_it_lacks(pairs, tmp_path):
    vectors, new, old = (part[:60] for part in pairs)
    keys = [example_key(str(row)) for row in range(60)]
    cache = LearnedCache()
    with pytest.raises(ValueError, match="give new_logits"):
        cache.add(keys, vectors, old)
    with pytest.raises(ValueError, match="no kept embeddings"):
        cache.learn()
    with pytest.raises(ValueError, match="learn first"):
        cache.forget_embeddings()
    cache.add(keys, vectors, old, new)
    cache.learn()
    with pytest.raises(ValueError, match="give new_logits"):
        cache.lookup(keys, vectors)
    plain = OldLogitsCache()
    plain.add(keys, vectors, old)
    plain.save_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match="plain OldLogitsCache"):
        LearnedCache.from_pretrained(tmp_path)


def test_one_model_answers_as_the_rule_over_head_and_model(fitted):
    data, model = tiny.data(40), tiny.model(1)
    found = embedded(model, data)
    plain = outputs(model, data)["logits"]
    assert np.array_equal(found["logits"], plain) and found["embedding"].shape == (40, 32)
    truth = np.random.default_rng(0).normal(size=(40, 3))
    head = fit_head(found["embedding"], found["logits"], truth).head
    with torch.no_grad():
        guess = head(torch.tensor(found["embedding"]), torch.tensor(found["logits"])).numpy()
    old, new = (Predictions(data.ids, data.labels, logits=one) for one in (guess, plain))
    fitted_pool = pool(old, new)
    for price in (0.0, 1.0, 30.0):
        for posterior in (None, fitted_pool):
            both = outputs(OneModel(model, head, price, posterior), data, ("logits", "old_logits"))
            rule = keep_old(old, new, price, posterior).prediction
            assert (both["logits"].argmax(1) == rule).mean() > 0.97  # ties may round differently
            assert np.allclose(both["old_logits"], guess, atol=1e-4)


# churn's losses
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def batch():
    torch.manual_seed(3)
    return torch.randn(8, 4), torch.arange(8) % 4, torch.randn(8, 4) * 2, torch.randn(8, 4) * 2


def test_an_anchor_at_its_limits_and_by_hand(batch):
    z, y, old, _ = batch
    right = old.argmax(1) == y
    assert 0 < right.sum() < len(y)
    each = F.cross_entropy(z, y, reduction="none")
    assert torch.isclose(Anchor(0.0, 1.0).loss(z, y, old), each.mean())
    assert torch.isclose(Anchor(0.0, 0.0).loss(z, y, old), (each * right).mean())
    soft = -(old.softmax(1) * z.log_softmax(1)).sum(1)
    expected = torch.where(right, 0.3 * soft + 0.7 * each, 0.2 * each).mean()
    assert torch.isclose(Anchor(0.3, 0.2).loss(z, y, old), expected)


def test_rcat_pulls_towards_each_model_where_it_is_right(batch):
    z, y, old, new = batch
    both = torch.cat([old, new], 1)
    plain = F.cross_entropy(z, y)
    assert torch.isclose(RobustnessCongruent(0.0, 0.0).loss(z, y, both), plain)
    pull = [
        ((one.argmax(1) == y).float() * (z - one).square().mean(1) / 2).mean() for one in (old, new)
    ]
    found = RobustnessCongruent(alpha=0.4, beta=0.7).loss(z, y, both)
    assert torch.isclose(found, plain + 0.7 * pull[0] + 0.4 * pull[1])
    focal = FocalDistillation("logits", 0.0, 0.7, over_classes="mean").loss(z, y, old)
    assert torch.isclose(RobustnessCongruent(0.0, 0.7).loss(z, y, both), focal)
    with pytest.raises(ValueError, match="expected"):
        RobustnessCongruent().loss(z, y, old)


def test_both_models_logits_stand_side_by_side_by_id():
    old, new = answers(0), answers(1)
    joined = beside(old, new.select(IDS[::-1]))
    assert np.array_equal(joined.logits, np.concatenate([old.logits, new.logits], 1))
    with pytest.raises(ValueError, match="logits"):
        beside(answers(0, logits=False), new)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (Anchor, {"share": 1.2}),
        (Anchor, {"wrong": -1.0}),
        (RobustnessCongruent, {"alpha": float("nan")}),
        (RobustnessCongruent, {"beta": -0.1}),
    ],
)
def test_bad_strengths_are_named(kind, settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))} is"):
        kind(**settings)


@pytest.mark.parametrize("treatment", [StudentOfTraffic(), Anchor(), RobustnessCongruent()])
def test_losses_keep_double_precision_where_it_is_given(treatment):
    torch.manual_seed(0)
    logits, old = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 8, dtype=torch.float64)
    old = old if isinstance(treatment, RobustnessCongruent) else old[:, :4]
    label = torch.tensor([0, 1, 2, 3, 0, 1])
    double = treatment.loss(logits, label, old)
    single = treatment.loss(logits.float(), label, old.float())
    assert (double.dtype, single.dtype) == (torch.float64, torch.float32)
    assert double.item() == pytest.approx(single.item(), rel=1e-5)
    assert treatment.loss(logits.bfloat16(), label, old.bfloat16()).dtype == torch.float32
