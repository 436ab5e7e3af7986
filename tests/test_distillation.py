"""The treatments that distil: their formulas by hand, which examples are pulled and how hard,
old models with fewer classes, the wiring.
"""

import math

import numpy as np
import pytest
import tiny
import torch
from torch.nn import functional as F

from compatkit.distillation import (
    DynamicDistillation,
    FocalDistillation,
    LogitDifferenceInhibition,
    NaiveReweighting,
    divergence,
    logit_distance,
    old_label,
    old_right,
    shared_columns,
)
from compatkit.experiments.models.recipes import architectures
from compatkit.experiments.models.trainings import train_once
from compatkit.training.loop import Treatment, fine_tune, predict
from compatkit.training.tasks import load_task

LOGITS = torch.tensor([[0.2, 1.0, -0.4], [1.5, -0.3, 0.1], [0.0, 0.3, 0.9], [-1.0, 0.4, 0.4]])
OLD = torch.tensor([[1.2, 0.1, -1.0], [0.3, 0.2, -2.0], [2.0, -1.0, 1.0], [0.5, -0.5, 3.0]])
LABEL = torch.tensor(
    [0, 0, 2, 2]
)  # pulled: 0 and 3 (the old model gives the label more), not 1 and 2


def softmax(row, temperature=1.0):
    powers = [math.exp(float(value) / temperature) for value in row]
    return [power / sum(powers) for power in powers]


def by_hand(logits, label, old, weight=1.0, temperature=1.0):
    """Cross-entropy + λ·KL(p_o at T ‖ p_n at T) where p_o(y) > p_n(y) at T = 1, a mean over all
    examples.
    """
    total = 0.0
    for z, y, z_old in zip(logits, label.tolist(), old):
        total -= math.log(softmax(z)[y])
        if softmax(z_old)[y] > softmax(z)[y]:
            target, cooled = softmax(z_old, temperature), softmax(z, temperature)
            total += weight * sum(p * math.log(p / q) for p, q in zip(target, cooled))
    return total / len(label)


@pytest.mark.parametrize(
    "plain, told",
    [
        (NaiveReweighting(), NaiveReweighting(1.0)),
        (FocalDistillation(), FocalDistillation("logits", 1.0, 5.0, 100.0, 1.0, "mean")),
        (DynamicDistillation(), DynamicDistillation(1.0, 1.0)),
        (LogitDifferenceInhibition(), LogitDifferenceInhibition(1.0)),
    ],
    ids=lambda treatment: type(treatment).__name__,
)
def test_the_defaults_are_the_papers(plain, told):
    assert plain.configuration() == told.configuration()


@pytest.mark.parametrize("weight", [0.0, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_loss_is_the_formula(weight, temperature):
    loss = DynamicDistillation(weight, temperature).loss(LOGITS, LABEL, OLD)
    assert loss.shape == () and loss.item() == pytest.approx(
        by_hand(LOGITS, LABEL, OLD, weight, temperature), abs=1e-6
    )


@pytest.mark.parametrize(
    "treatment",
    [
        DynamicDistillation(),
        NaiveReweighting(),
        FocalDistillation(),
        FocalDistillation("kl"),
        LogitDifferenceInhibition(top=1),
        DynamicDistillation(old_classes=(0, 2)),
    ],
)
def test_an_empty_batch_is_refused(treatment):
    width = len(treatment.old_classes or LOGITS[0])
    with pytest.raises(ValueError, match="the batch is empty"):
        treatment.loss(LOGITS[:0], LABEL[:0], OLD[:0, :width])


def test_random_batches_too():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        logits, old = (3 * torch.randn(16, 5, generator=generator) for _ in range(2))
        label = torch.randint(5, (16,), generator=generator)
        loss = DynamicDistillation(0.7, 1.3).loss(logits, label, old)
        assert loss.item() == pytest.approx(by_hand(logits, label, old, 0.7, 1.3), rel=1e-4)
        assert loss >= F.cross_entropy(logits, label) - 1e-6, "a divergence is never negative"


def test_an_old_model_that_agrees_adds_nothing():
    for shift in (0.0, 4.0):  # logits that differ by a constant are the same answer
        loss = DynamicDistillation(10.0, 2.0).loss(LOGITS, LABEL, LOGITS + shift)
        assert loss.item() == pytest.approx(F.cross_entropy(LOGITS, LABEL).item(), abs=1e-5)


def extra_gradient(treatment, logits, label, old):
    """The gradient that distillation adds to cross-entropy's."""
    logits = logits.clone().requires_grad_()
    (whole,) = torch.autograd.grad(treatment.loss(logits, label, old), logits)
    (plain,) = torch.autograd.grad(F.cross_entropy(logits, label), logits)
    return whole - plain


def test_only_examples_where_the_old_model_was_better_are_pulled():
    added = extra_gradient(DynamicDistillation(), LOGITS, LABEL, OLD)
    assert (added.abs().amax(1) > 1e-3).tolist() == [True, False, False, True]
    torch.testing.assert_close(
        added[0], (LOGITS[0].softmax(0) - OLD[0].softmax(0)) / 4
    )  # towards the old answer, by 1 / N


def test_the_choice_is_made_at_temperature_1():
    # the first gives the label more at T = 1 and less at T = 4
    first, second, label = (
        torch.tensor([[2.0, 1.9, -9.0]]),
        torch.tensor([[0.0, 0.0, -30.0]]),
        torch.tensor([0]),
    )

    def ahead(temperature):
        return bool(
            (first / temperature).softmax(1)[0, 0] > (second / temperature).softmax(1)[0, 0]
        )

    assert ahead(1.0) and not ahead(4.0)
    treatment = DynamicDistillation(1.0, 4.0)
    assert (extra_gradient(treatment, second, label, first) != 0).any()
    assert (extra_gradient(treatment, first, label, second) == 0).all()


def test_temperature_decides_alone_how_it_is_pulled():
    new, old = torch.tensor([[3.0, 0.0, 0.0, 2.9]]), torch.tensor([[2.0, -5.0, 0.0, -5.0]])
    label = torch.tensor([0])

    def at(model, temperature):
        return float((model / temperature).softmax(1)[0, 0])

    assert at(old, 1.0) > at(new, 1.0)
    for temperature in (0.5, 1.0, 2.0):
        added = extra_gradient(DynamicDistillation(1.0, temperature), new, label, old)
        expected = (
            (new / temperature).softmax(1) - (old / temperature).softmax(1)
        ) / temperature  # no T² factor
        torch.testing.assert_close(added, expected, atol=1e-6, rtol=1e-4)


def test_the_weight_scales_what_is_added():
    added = [
        (
            DynamicDistillation(weight).loss(LOGITS, LABEL, OLD) - F.cross_entropy(LOGITS, LABEL)
        ).item()
        for weight in (1.0, 2.0, 10.0)
    ]
    assert (
        added[0] > 0.05
        and added[1] == pytest.approx(2 * added[0], rel=1e-5)
        and added[2] == pytest.approx(10 * added[0], rel=1e-5)
    )
    zero = DynamicDistillation(0.0)
    assert torch.equal(zero.loss(LOGITS, LABEL, OLD), Treatment().loss(LOGITS, LABEL))


# --- fewer old classes ----------------------------------------------------------------------------


def test_permuted_columns_are_the_same_model():
    treatment = DynamicDistillation(1.0, 2.0, old_classes=[2, 0, 1])
    assert treatment.old_classes == (2, 0, 1)
    expected = DynamicDistillation(1.0, 2.0).loss(LOGITS, LABEL, OLD)
    torch.testing.assert_close(treatment.loss(LOGITS, LABEL, OLD[:, [2, 0, 1]]), expected)
    assert not torch.isclose(treatment.loss(LOGITS, LABEL, OLD), expected)


def test_fewer_old_classes_are_compared_among_themselves():
    treatment = DynamicDistillation(1.0, 1.5, old_classes=(2, 0))
    old = OLD[:, :2]  # its first column is class 2, its second class 0
    reordered = LOGITS[:, [2, 0]]
    column = torch.tensor([1, 1, 0, 0])
    pulled = by_hand(reordered, column, old, 1.0, 1.5) - F.cross_entropy(reordered, column).item()
    assert treatment.loss(LOGITS, LABEL, old).item() == pytest.approx(
        F.cross_entropy(LOGITS, LABEL).item() + pulled, abs=1e-5
    )
    added = extra_gradient(treatment, LOGITS, LABEL, old)
    assert (added[:, 1] == 0).all(), "a class that the old model does not know is left alone"


def test_an_example_of_a_new_class_is_not_pulled():
    treatment = DynamicDistillation(5.0, old_classes=(0, 1))
    label = torch.tensor([2, 0, 2, 1])
    old = torch.tensor([[9.0, 0.0], [9.0, 0.0], [0.0, 9.0], [0.0, 9.0]])
    added = extra_gradient(treatment, LOGITS, label, old)
    assert (added.abs().amax(1) > 1e-4).tolist() == [False, True, False, True]
    all_new = torch.tensor([2, 2, 2, 2])
    assert treatment.loss(LOGITS, all_new, old).item() == pytest.approx(
        F.cross_entropy(LOGITS, all_new).item(), abs=1e-6
    )


def test_labels_find_their_old_column():
    assert old_label(torch.tensor([0, 3, 1, 3, 4]), (3, 1), 2).tolist() == [-1, 0, 1, 0, -1]
    assert old_label(torch.tensor([2, 0]), None, 3).tolist() == [2, 0]
    assert old_label(torch.tensor([0, 1]), (5, 0), 2).tolist() == [1, -1]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "old_classes, named",
    [((0, 0), "2 different classes below 3"), ((0, 3), r"\(0, 3\)"), ((-1, 0), r"\(-1, 0\)")],
)
def test_classes_that_cannot_be_are_named(old_classes, named):
    with pytest.raises(ValueError, match=named):
        shared_columns(LOGITS, OLD[:, :2], old_classes)


@pytest.mark.parametrize("old_classes, width", [(None, 2), (None, 4), ((0, 1), 3), ((0, 1, 2), 2)])
def test_a_wrong_width_is_refused(old_classes, width):
    treatment = DynamicDistillation(old_classes=old_classes)
    with pytest.raises(
        ValueError,
        match=rf"\(4, {width}\), expected \(4, {len(old_classes or '123')}\).*old_classes",
    ):
        treatment.loss(LOGITS, LABEL, torch.zeros(4, width))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_old_logits_that_are_not_finite_are_refused(value):
    old = OLD.clone()
    old[2, 1] = value
    with pytest.raises(ValueError, match=r"not finite in rows \[2\]"):
        DynamicDistillation().loss(LOGITS, LABEL, old)


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"weight": -0.1}, "weight is -0.1"),
        ({"temperature": 0}, "temperature is 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, named):
    with pytest.raises(ValueError, match=named):
        DynamicDistillation(**settings)


# --- numbers --------------------------------------------------------------------------------------


def test_large_logits_do_not_overflow():
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]]).requires_grad_()
    old = torch.tensor([[-1e4, 1e4, 0.0], [-1e4, 1e4, 0.0]])
    loss = DynamicDistillation(1.0, 0.5).loss(logits, torch.tensor([1, 1]), old)
    loss.backward()
    assert torch.isfinite(loss) and loss > 1e4 and torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(kind):
    loss = DynamicDistillation().loss(LOGITS.to(kind), LABEL, OLD)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(by_hand(LOGITS.to(kind).float(), LABEL, OLD), abs=1e-5)


def test_the_record_says_what_was_chosen():
    found = DynamicDistillation(2.0, 0.5, old_classes=[1, 0]).configuration()
    assert found == {
        "name": "DynamicDistillation",
        "weight": 2.0,
        "temperature": 0.5,
        "old_classes": (1, 0),
    }
    assert DynamicDistillation.needs_old_logits and np.isscalar(found["weight"])


# --- Positive-Congruent Training ------------------------------------------------------------------

FILTERED = [
    NaiveReweighting(0.7),
    FocalDistillation("logits", 0.5, 3.0, weight=0.7),
    FocalDistillation("logits", 0.5, 3.0, weight=0.7, over_classes="sum"),
    FocalDistillation("kl", 0.5, 3.0, 1.7, weight=0.7),
    LogitDifferenceInhibition(0.7),
    LogitDifferenceInhibition(0.7, top=2),
]


def named_by_settings(one):
    return "-".join(str(value) for value in one.configuration().values())


named = pytest.mark.parametrize("treatment", FILTERED, ids=named_by_settings)


def one_by_one(treatment, logits, label, old):
    """Equation 5 in plain Python, example by example, then a mean."""
    total = 0.0
    for z, y, z_old in zip(logits.tolist(), label.tolist(), old.tolist()):
        cross_entropy, classes = -math.log(softmax(z)[y]), range(len(z))
        right = max(classes, key=z_old.__getitem__) == y
        if isinstance(treatment, NaiveReweighting):
            pull = right * cross_entropy
        elif isinstance(treatment, LogitDifferenceInhibition):
            kept = sorted(classes, key=lambda one: -z_old[one])[: treatment.top or len(z)]
            pull = sum((z[one] - z_old[one]) ** 2 for one in kept) / 2
        elif treatment.distance == "logits":
            pull = (
                (treatment.alpha + treatment.beta * right)
                * sum((a - b) ** 2 for a, b in zip(z, z_old))
                / 2
            )
            pull /= len(z) if treatment.over_classes == "mean" else 1
        else:
            target, cooled = (
                softmax(z_old, treatment.temperature),
                softmax(z, treatment.temperature),
            )
            divergence = sum(p * math.log(p / q) for p, q in zip(target, cooled))
            pull = (
                (treatment.alpha + treatment.beta * right) * treatment.temperature**2 * divergence
            )
        total += cross_entropy + treatment.weight * pull
    return total / len(label)


@named
def test_the_loss_is_equation_5(treatment):
    generator = torch.Generator().manual_seed(1)
    for count in (1, 4, 16):  # were the filter (N, 1), a batch of one would not show it
        logits, old = (2 * torch.randn(count, 5, generator=generator) for _ in range(2))
        label = torch.where(
            torch.rand(count, generator=generator) < 0.5,
            old.argmax(1),
            torch.randint(5, (count,), generator=generator),
        )
        loss = treatment.loss(logits, label, old)
        assert loss.shape == () and loss.item() == pytest.approx(
            one_by_one(treatment, logits, label, old), rel=1e-4
        )


def test_a_filter_multiplies_its_own_example():
    # two examples: the old model has the first right, and only the second is far away; a filter of
    # shape (N, 1) would give each the mean
    old, logits = torch.tensor([[5.0, 0.0], [5.0, 0.0]]), torch.tensor([[5.0, 0.0], [0.0, 5.0]])
    label = torch.tensor([0, 1])
    assert old_right(old, label).tolist() == [True, False]
    plain = F.cross_entropy(logits, label)
    for distance in ("logits", "kl"):
        assert FocalDistillation(distance, 0.0, 5.0, 1.0).loss(
            logits, label, old
        ).item() == pytest.approx(plain.item(), abs=1e-6)
    for over_classes, wide in (("sum", 1), ("mean", 2)):
        focal = FocalDistillation("logits", 1.0, 5.0, over_classes=over_classes)
        found = focal.loss(logits, label, old).item()
        assert found == pytest.approx(plain.item() + 25 / 2 / wide, rel=1e-5)


@pytest.mark.parametrize("distance", ["logits", "kl"])
def test_beta_moves_only_what_the_old_model_has_right(distance):
    added = extra_gradient(FocalDistillation(distance, 0.0, 5.0, 2.0), LOGITS, LABEL, OLD)
    assert ((added.abs().amax(1) > 1e-4) == old_right(OLD, LABEL)).all() and 0 < old_right(
        OLD, LABEL
    ).sum() < 4
    both = extra_gradient(FocalDistillation(distance, 1.0, 5.0, 2.0), LOGITS, LABEL, OLD)
    ordinary = extra_gradient(FocalDistillation(distance, 1.0, 0.0, 2.0), LOGITS, LABEL, OLD)
    torch.testing.assert_close(both, added + ordinary, atol=1e-5, rtol=1e-4)
    assert (ordinary.abs().amax(1) > 1e-4).all()


def test_alpha_1_beta_0_is_ordinary_distillation():
    # Hinton et al. 2015: T² · KL of softened probabilities; its gradient for large T is that of
    # matching logits, over C
    hinton = F.cross_entropy(LOGITS, LABEL) + 9 * F.kl_div(
        (LOGITS / 3).log_softmax(1), (OLD / 3).softmax(1), reduction="batchmean"
    )
    torch.testing.assert_close(
        FocalDistillation("kl", 1.0, 0.0, 3.0).loss(LOGITS, LABEL, OLD), hinton
    )
    mean = F.cross_entropy(LOGITS, LABEL) + F.mse_loss(LOGITS, OLD) / 2
    torch.testing.assert_close(FocalDistillation("logits", 1.0, 0.0).loss(LOGITS, LABEL, OLD), mean)
    matching = F.cross_entropy(LOGITS, LABEL) + F.mse_loss(LOGITS, OLD) * 3 / 2
    torch.testing.assert_close(LogitDifferenceInhibition().loss(LOGITS, LABEL, OLD), matching)
    assert torch.equal(
        FocalDistillation(alpha=0, beta=0).loss(LOGITS, LABEL, OLD), F.cross_entropy(LOGITS, LABEL)
    )


def test_the_divergence_points_from_the_old_model():
    first, second = torch.tensor([[4.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    p, q = softmax([4.0, 0.0]), (0.5, 0.5)
    assert divergence(second, first, 1.0).item() == pytest.approx(
        sum(a * math.log(a / b) for a, b in zip(p, q)), rel=1e-5
    )
    assert divergence(first, second, 1.0).item() == pytest.approx(
        sum(b * math.log(b / a) for a, b in zip(p, q)), rel=1e-5
    )
    assert divergence(first, second, 1.0) > 1.2 * divergence(second, first, 1.0)


def test_at_the_papers_temperature_the_divergence_is_a_distance_of_centred_logits():
    generator = torch.Generator().manual_seed(2)
    logits, old = (3 * torch.randn(50, 8, generator=generator) for _ in range(2))
    difference = logits - old
    centred = logit_distance(difference - difference.mean(1, keepdim=True), torch.zeros(50, 8)) / 8
    torch.testing.assert_close(divergence(logits, old, 100.0), centred, rtol=0.06, atol=0)
    torch.testing.assert_close(
        divergence(logits, old, 100.0), divergence(old, logits, 100.0), rtol=0.1, atol=0
    )
    shifted = divergence(logits + 7, old, 100.0)  # a shift of all logits is no other answer
    torch.testing.assert_close(shifted, divergence(logits, old, 100.0), rtol=1e-3, atol=1e-4)


def test_only_the_top_classes_of_the_reference_are_matched():
    added = extra_gradient(LogitDifferenceInhibition(top=1), LOGITS, LABEL, OLD)
    highest = F.one_hot(OLD.argmax(1), 3).bool()
    torch.testing.assert_close(added[highest], (LOGITS - OLD)[highest] / 4)
    assert (added[~highest].abs() < 1e-7).all()
    whole = LogitDifferenceInhibition().loss(LOGITS, LABEL, OLD)
    torch.testing.assert_close(LogitDifferenceInhibition(top=3).loss(LOGITS, LABEL, OLD), whole)
    with pytest.raises(ValueError, match="4.*3 classes"):
        LogitDifferenceInhibition(top=4).loss(LOGITS, LABEL, OLD)


@named
def test_an_agreeing_old_model_leaves_cross_entropy(treatment):
    loss, plain = (
        treatment.loss(LOGITS, LABEL, LOGITS),
        F.cross_entropy(LOGITS, LABEL, reduction="none"),
    )
    weights = (
        1 + treatment.weight * (LOGITS.argmax(1) == LABEL)
        if isinstance(treatment, NaiveReweighting)
        else torch.ones(4)
    )
    assert loss.item() == pytest.approx((weights * plain).mean().item(), abs=1e-6)


@named
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_the_pull_is_computed_in_float32_under_autocast(treatment, kind):
    with torch.autocast("cpu", torch.bfloat16):
        loss = treatment.loss(LOGITS.to(kind), LABEL, OLD)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(
        one_by_one(treatment, LOGITS.to(kind).float(), LABEL, OLD), rel=1e-4
    )


@named
def test_large_logits_stay_finite(treatment):
    logits, old = (
        1e4 * torch.tensor([[1.0, -1.0, 0.0], sign])
        for sign in ([-1.0, 1.0, 0.0], [1.0, -1.0, 0.0])
    )
    logits.requires_grad_()
    loss = treatment.loss(logits, torch.tensor([1, 1]), old)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(logits.grad).all()


# fewer old classes

with_classes = pytest.mark.parametrize(
    "make",
    [
        lambda **known: NaiveReweighting(2.0, **known),
        lambda **known: FocalDistillation("logits", 1.0, 4.0, **known),
        lambda **known: FocalDistillation("kl", 1.0, 4.0, 2.0, **known),
        lambda **known: LogitDifferenceInhibition(2.0, **known),
        lambda **known: LogitDifferenceInhibition(2.0, 1, **known),
    ],
)


@with_classes
def test_columns_are_matched_by_class_and_not_by_position(make):
    expected = make().loss(LOGITS, LABEL, OLD)
    permuted = make(old_classes=[2, 0, 1])
    torch.testing.assert_close(permuted.loss(LOGITS, LABEL, OLD[:, [2, 0, 1]]), expected)
    assert not torch.isclose(permuted.loss(LOGITS, LABEL, OLD), expected)


@with_classes
def test_a_class_that_the_old_model_does_not_know_is_left_alone(make):
    treatment = make(old_classes=(2, 0))
    added = extra_gradient(treatment, LOGITS, LABEL, OLD[:, :2])
    if not isinstance(treatment, NaiveReweighting):  # which moves all logits, as cross-entropy does
        assert (added[:, 1].abs() < 1e-6).all()
    assert added.abs().sum() > 0.1


def test_an_example_of_a_new_class_counts_as_old_wrong():
    label, old = (
        torch.tensor([1, 1, 0, 2]),
        torch.tensor([[9.0, 0.0], [0.0, 9.0], [9.0, 0.0], [0.0, 9.0]]),
    )
    assert old_right(old, label, (0, 2)).tolist() == [False, False, True, True]
    added = extra_gradient(FocalDistillation(alpha=0.0, old_classes=(0, 2)), LOGITS, label, old)
    assert (added.abs().amax(1) > 1e-4).tolist() == [False, False, True, True]
    naive = extra_gradient(NaiveReweighting(old_classes=(0, 2)), LOGITS, label, old)
    assert (naive.abs().amax(1) > 1e-4).tolist() == [False, False, True, True]
    pulled = extra_gradient(
        FocalDistillation(alpha=1.0, beta=0.0, old_classes=(0, 2)), LOGITS, label, old
    )
    assert (pulled.abs().amax(1) > 1e-4).all(), (
        "α pulls every example, on the classes that both know"
    )


# what is refused


@pytest.mark.parametrize(
    "make, named",
    [
        (lambda: NaiveReweighting(-0.5), "weight is -0.5"),
        (lambda: NaiveReweighting(math.nan), "weight is nan"),
        (lambda: FocalDistillation(weight=math.inf), "weight is inf"),
        (lambda: FocalDistillation(weight="1"), "weight is '1'"),
        (lambda: FocalDistillation(alpha=-1), "alpha is -1"),
        (lambda: FocalDistillation(beta=-0.1), "beta is -0.1"),
        (lambda: FocalDistillation(beta=math.nan), "beta is nan"),
        (lambda: FocalDistillation("kl", temperature=0), "temperature is 0; .* above 0"),
        (lambda: FocalDistillation("kl", temperature=math.nan), "temperature is nan"),
        (lambda: FocalDistillation("kl", temperature=-3), "temperature is -3"),
        (lambda: FocalDistillation("cosine"), "'cosine'; .*'logits' and 'kl'"),
        (lambda: FocalDistillation(over_classes="max"), "'max'; .*'sum' and 'mean'"),
        (lambda: LogitDifferenceInhibition(-1.0), "weight is -1.0"),
        (lambda: LogitDifferenceInhibition(top=0), "top is 0"),
        (lambda: LogitDifferenceInhibition(top=1.5), "top is 1.5"),
        (lambda: LogitDifferenceInhibition(top=True), "top is True"),
    ],
)
def test_settings_without_sense_are_refused(make, named):
    with pytest.raises(ValueError, match=named):
        make()


@named
def test_old_logits_that_do_not_fit_are_refused(treatment):
    with pytest.raises(ValueError, match="old_classes"):
        treatment.loss(LOGITS, LABEL, OLD[:, :2])
    with pytest.raises(ValueError, match=r"\(3, 3\), expected \(4, 3\)"):
        treatment.loss(LOGITS, LABEL, OLD[:3])
    with pytest.raises(ValueError, match=r"not finite in rows \[1\]"):
        treatment.loss(LOGITS, LABEL, OLD.index_fill(0, torch.tensor([1]), math.nan))


# --- the wiring, through the Trainer --------------------------------------------------------------


def after_training(treatment, old=None, seed=0):
    """All weights after a short epoch."""
    options = {
        "num_train_epochs": 1,
        "per_device_train_batch_size": 8,
        "learning_rate": 3e-3,
        "progress": False,
        "precision": "float32",
    }
    return tiny.weights(
        fine_tune(tiny.model(), tiny.data(), treatment, seed, old=old, **options).model
    )


@pytest.fixture(scope="module")
def plain():
    return after_training(None)


def answers_of_old(right):
    """An old model that is right on the given rows and wrong on the others."""
    rows = tiny.data()
    label = np.asarray(rows.labels)
    shown = np.where(right, label, (label + 1) % 3)
    return tiny.old_answers(rows).replace(logits=(4 * np.eye(3)[shown]).astype(np.float32))


EVERY, NONE = np.ones(32, bool), np.zeros(32, bool)


@pytest.mark.parametrize(
    "treatment",
    [
        NaiveReweighting(0.0),
        FocalDistillation(weight=0.0),
        FocalDistillation("kl", weight=0.0),
        LogitDifferenceInhibition(0.0),
        LogitDifferenceInhibition(0.0, 2),
    ],
    ids=named_by_settings,
)
def test_weight_0_is_plain_training_bit_for_bit(plain, treatment):
    assert tiny.same(after_training(treatment, tiny.old_answers(tiny.data())), plain)


@pytest.mark.parametrize(
    "treatment",
    [NaiveReweighting(), FocalDistillation(alpha=0.0), FocalDistillation("kl", alpha=0.0)],
    ids=named_by_settings,
)
def test_a_filter_on_right_answers_is_idle_where_the_old_model_has_none(plain, treatment):
    assert tiny.same(after_training(treatment, answers_of_old(NONE)), plain)
    assert tiny.distance(after_training(treatment, answers_of_old(EVERY)), plain) > 1e-4


def test_focal_beta_moves_only_examples_that_the_old_model_has_right():
    half = np.arange(32) % 2 == 0
    treatment, old = FocalDistillation(alpha=0.0), answers_of_old(half)
    other = old.logits.copy()
    other[~half] = (
        np.roll(other[~half], 1, axis=1) * 1.5
    )  # still wrong there? only where it is, nothing may change
    still_wrong = other.argmax(1) != np.asarray(tiny.data().labels)
    other = np.where((~half & still_wrong)[:, None], other, old.logits)
    assert (other != old.logits).any() and tiny.same(
        after_training(treatment, old.replace(logits=other)), after_training(treatment, old)
    )
    moved = np.where(half[:, None], 2 * old.logits, old.logits)
    assert (
        tiny.distance(
            after_training(treatment, old.replace(logits=moved)), after_training(treatment, old)
        )
        > 1e-4
    )


@pytest.mark.parametrize(
    "treatment",
    [
        FocalDistillation(),
        FocalDistillation("kl"),
        LogitDifferenceInhibition(top=2),
        NaiveReweighting(),
    ],
    ids=named_by_settings,
)
def test_shuffled_old_logits_change_the_result(treatment):
    old = tiny.old_answers(tiny.data())
    shuffled = old.replace(logits=old.logits[np.random.default_rng(0).permutation(len(old))])
    assert tiny.distance(after_training(treatment, shuffled), after_training(treatment, old)) > 1e-4
    reordered = old.select(
        list(reversed(old.id))
    )  # the same logits in another order of rows: joined by id
    assert tiny.same(after_training(treatment, reordered), after_training(treatment, old))


def test_old_logits_that_are_missing_are_named():
    old = tiny.old_answers(tiny.data())
    with pytest.raises(ValueError, match="FocalDistillation"):
        after_training(FocalDistillation())
    with pytest.raises(ValueError, match="train-31"):
        after_training(LogitDifferenceInhibition(), old.select(old.id[:31]))
    with pytest.raises(ValueError, match=r"expected \(8, 3\)"):
        after_training(FocalDistillation(), old.replace(logits=old.logits[:, :2], prediction=None))


def test_a_strong_pull_brings_the_new_logits_to_the_old_ones():
    old, rows = tiny.old_answers(tiny.data()), tiny.data()
    options = {
        "num_train_epochs": 15,
        "per_device_train_batch_size": 8,
        "learning_rate": 3e-3,
        "progress": False,
        "precision": "float32",
    }
    apart = {}
    for name, treatment in {"plain": None, "pulled": LogitDifferenceInhibition(10.0)}.items():
        answers = predict(
            fine_tune(tiny.model(dropout=0.0), rows, treatment, old=old, **options).model, rows
        )
        apart[name] = np.square(answers.logits - old.logits).mean()
    assert apart["pulled"] < 0.85 * apart["plain"]


def test_a_students_reference_is_the_mean_of_its_ensemble():
    task, recipe = tiny.task(), tiny.RECIPE
    members = [
        train_once(task, recipe, seed, splits=("train", "selection", "test")) for seed in (0, 1)
    ]
    student = train_once(task, recipe, 500, LogitDifferenceInhibition(), members)
    single = train_once(task, recipe, 500, LogitDifferenceInhibition(), members[:1])
    assert (
        student.configuration["parents"] == [run.id for run in members] and student.id != single.id
    )
    assert not np.array_equal(student.predictions("test").logits, single.predictions("test").logits)


# --- the record and the recipes -------------------------------------------------------------------


def test_records_say_what_was_chosen():
    found = FocalDistillation("kl", 1.0, 2.0, 50.0, 0.5, old_classes=[1, 0]).configuration()
    assert found == {
        "name": "FocalDistillation",
        "weight": 0.5,
        "old_classes": (1, 0),
        "distance": "kl",
        "over_classes": "sum",
        "alpha": 1.0,
        "beta": 2.0,
        "temperature": 50.0,
    }
    assert LogitDifferenceInhibition(top=3).configuration() == {
        "name": "LogitDifferenceInhibition",
        "weight": 1.0,
        "old_classes": None,
        "top": 3,
    }
    assert all(one.needs_old_logits for one in FILTERED)


@pytest.mark.parametrize("name", ["pydoc", "digits"])
@pytest.mark.parametrize("scale", ["smoke", "mini"])
def test_two_architectures_for_each_kind(name, scale):
    smaller, larger = architectures(load_task(name), scale, max_steps=2)
    assert (
        smaller.of_images == larger.of_images == (name == "digits")
        and smaller.max_steps == larger.max_steps == 2
    )
    assert smaller.identity() != larger.identity() and smaller.learning_rate == larger.learning_rate


def test_image_recipes_differ_in_width_and_in_precision_by_scale():
    """Small nets grow by width alone; mini's pictures have their own larger net and may train in
    bfloat16.
    """
    small, large = architectures(load_task("digits"), "mini")
    assert large.widths == tuple(2 * one for one in small.widths) and large.depths == small.depths
    assert small.precision == large.precision == "float32"
    small, large = architectures(tiny.image_task(), "mini")
    assert large.widths == (32, 64, 128) and large.depths == (1, 1, 1)
    assert small.precision == large.precision == "auto"


def test_the_papers_recipe_is_that_of_section_5_1(monkeypatch):
    digits = load_task("digits")
    for recipe in architectures(digits, "paper"):
        assert (
            recipe.batch_size,
            recipe.epochs,
            recipe.learning_rate,
            recipe.schedule,
            recipe.step_epochs,
        ) == (2048, 90, 0.1, "step", 30)
    assert [recipe.depths for recipe in architectures(digits, "paper")] == [
        (2, 2, 2, 2),
        (3, 4, 6, 3),
    ]
    both = architectures(digits, "paper", pretrained=("a/small", "a/large"))
    assert [recipe.folder for recipe in both] == ["a/small", "a/large"]


@pytest.mark.parametrize(
    "treatment",
    [DynamicDistillation(), NaiveReweighting(), FocalDistillation(), FocalDistillation("kl")]
    + [LogitDifferenceInhibition(), LogitDifferenceInhibition(top=2), FocalDistillation(alpha=0.1)],
    ids=lambda one: type(one).__name__,
)
def test_double_precision_is_kept_where_it_is_given(treatment):
    logits = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    label, old = torch.tensor([0, 1, 2, 0]), 0.9 * logits.flip(1)
    exact = treatment.loss(logits, label, old)
    assert exact.dtype == torch.float64
    assert treatment.loss(logits, label, old.float()).dtype == torch.float64
    single = treatment.loss(logits.float(), label, old.float())
    assert single.dtype == torch.float32 and single.item() == pytest.approx(exact.item(), rel=1e-3)
    scaled = treatment.loss(logits * (1 + 1e-11), label, old)
    assert 0 < abs(scaled.item() - exact.item()) < 1e-9  # it is not single in disguise


def test_in_double_precision_the_loss_is_its_formula_to_the_last_digits():
    logits = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    label, old = torch.tensor([0, 1, 2, 0]), logits.flip(1)
    z, q = logits.numpy(), old.numpy()
    entropy = np.log(np.exp(z).sum(1)) - z[np.arange(4), label]
    weight = 0.1 + 0.7 * (q.argmax(1) == label.numpy())
    expected = (entropy + 0.3 * weight * ((z - q) ** 2).mean(1) / 2).mean()
    found = FocalDistillation(alpha=0.1, beta=0.7, weight=0.3).loss(logits, label, old).item()
    assert found == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, True, "1"])
@pytest.mark.parametrize(
    "method", [DynamicDistillation, NaiveReweighting, FocalDistillation, LogitDifferenceInhibition]
)
def test_weights_that_are_no_finite_number_are_refused_by_all_alike(method, bad):
    with pytest.raises(ValueError, match="weight is .*at least 0"):
        method(weight=bad)
