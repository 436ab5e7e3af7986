"""Dynamic distillation: the formula by hand, which examples are pulled, and old models with fewer classes."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from compatkit.distillation import DynamicDistillation, old_label, shared_columns
from compatkit.training import Treatment

LOGITS = torch.tensor([[0.2, 1.0, -0.4], [1.5, -0.3, 0.1], [0.0, 0.3, 0.9], [-1.0, 0.4, 0.4]])
OLD = torch.tensor([[1.2, 0.1, -1.0], [0.3, 0.2, -2.0], [2.0, -1.0, 1.0], [0.5, -0.5, 3.0]])
LABEL = torch.tensor([0, 0, 2, 2])  # pulled: 0 and 3 (the old model gives the label more), not 1 and 2


def softmax(row, temperature=1.0):
    powers = [math.exp(float(value) / temperature) for value in row]
    return [power / sum(powers) for power in powers]


def by_hand(logits, label, old, weight=1.0, temperature=1.0):
    "Cross-entropy + λ·KL(p_o at T ‖ p_n at T) where p_o(y) > p_n(y) at T = 1, a mean over all examples."
    total = 0.0
    for z, y, z_old in zip(logits, label.tolist(), old):
        total -= math.log(softmax(z)[y])
        if softmax(z_old)[y] > softmax(z)[y]:
            target, cooled = softmax(z_old, temperature), softmax(z, temperature)
            total += weight * sum(p * math.log(p / q) for p, q in zip(target, cooled))
    return total / len(label)


@pytest.mark.parametrize("weight", [0.0, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_loss_is_the_formula(weight, temperature):
    loss = DynamicDistillation(weight, temperature).loss(LOGITS, LABEL, OLD)
    assert loss.shape == () and loss.item() == pytest.approx(by_hand(LOGITS, LABEL, OLD, weight, temperature), abs=1e-6)


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
    "The gradient that distillation adds to cross-entropy's."
    logits = logits.clone().requires_grad_()
    (whole,) = torch.autograd.grad(treatment.loss(logits, label, old), logits)
    (plain,) = torch.autograd.grad(F.cross_entropy(logits, label), logits)
    return whole - plain


def test_only_examples_where_the_old_model_was_better_are_pulled():
    added = extra_gradient(DynamicDistillation(), LOGITS, LABEL, OLD)
    assert (added.abs().amax(1) > 1e-3).tolist() == [True, False, False, True]
    torch.testing.assert_close(added[0], (LOGITS[0].softmax(0) - OLD[0].softmax(0)) / 4)  # towards the old answer, by 1 / N


def test_the_choice_is_made_at_temperature_1():
    # the first gives the label more at T = 1 and less at T = 4
    first, second, label = torch.tensor([[2.0, 1.9, -9.0]]), torch.tensor([[0.0, 0.0, -30.0]]), torch.tensor([0])
    ahead = lambda temperature: bool((first / temperature).softmax(1)[0, 0] > (second / temperature).softmax(1)[0, 0])
    assert ahead(1.0) and not ahead(4.0)
    treatment = DynamicDistillation(1.0, 4.0)
    assert (extra_gradient(treatment, second, label, first) != 0).any()
    assert (extra_gradient(treatment, first, label, second) == 0).all()


def test_temperature_decides_alone_how_it_is_pulled():
    new, old = torch.tensor([[3.0, 0.0, 0.0, 2.9]]), torch.tensor([[2.0, -5.0, 0.0, -5.0]])
    label = torch.tensor([0])
    at = lambda model, temperature: float((model / temperature).softmax(1)[0, 0])
    assert at(old, 1.0) > at(new, 1.0)
    for temperature in (0.5, 1.0, 2.0):
        added = extra_gradient(DynamicDistillation(1.0, temperature), new, label, old)
        expected = ((new / temperature).softmax(1) - (old / temperature).softmax(1)) / temperature  # no T² factor
        torch.testing.assert_close(added, expected, atol=1e-6, rtol=1e-4)


def test_the_weight_scales_what_is_added():
    added = [(DynamicDistillation(weight).loss(LOGITS, LABEL, OLD) - F.cross_entropy(LOGITS, LABEL)).item() for weight in (1.0, 2.0, 10.0)]
    assert added[0] > 0.05 and added[1] == pytest.approx(2 * added[0], rel=1e-5) and added[2] == pytest.approx(10 * added[0], rel=1e-5)
    zero = DynamicDistillation(0.0)
    assert torch.equal(zero.loss(LOGITS, LABEL, OLD), Treatment().loss(LOGITS, LABEL))


# --- fewer old classes -----------------------------------------------------------------------------------------------


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
    assert treatment.loss(LOGITS, LABEL, old).item() == pytest.approx(F.cross_entropy(LOGITS, LABEL).item() + pulled, abs=1e-5)
    added = extra_gradient(treatment, LOGITS, LABEL, old)
    assert (added[:, 1] == 0).all(), "a class that the old model does not know is left alone"


def test_an_example_of_a_new_class_is_not_pulled():
    treatment = DynamicDistillation(5.0, old_classes=(0, 1))
    label = torch.tensor([2, 0, 2, 1])
    old = torch.tensor([[9.0, 0.0], [9.0, 0.0], [0.0, 9.0], [0.0, 9.0]])
    added = extra_gradient(treatment, LOGITS, label, old)
    assert (added.abs().amax(1) > 1e-4).tolist() == [False, True, False, True]
    all_new = torch.tensor([2, 2, 2, 2])
    assert treatment.loss(LOGITS, all_new, old).item() == pytest.approx(F.cross_entropy(LOGITS, all_new).item(), abs=1e-6)


def test_labels_find_their_old_column():
    assert old_label(torch.tensor([0, 3, 1, 3, 4]), (3, 1), 2).tolist() == [-1, 0, 1, 0, -1]
    assert old_label(torch.tensor([2, 0]), None, 3).tolist() == [2, 0]
    assert old_label(torch.tensor([0, 1]), (5, 0), 2).tolist() == [1, -1]


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old_classes, named", [((0, 0), "2 different classes below 3"), ((0, 3), r"\(0, 3\)"), ((-1, 0), r"\(-1, 0\)")])
def test_classes_that_cannot_be_are_named(old_classes, named):
    with pytest.raises(ValueError, match=named):
        shared_columns(LOGITS, OLD[:, :2], old_classes)


@pytest.mark.parametrize("old_classes, width", [(None, 2), (None, 4), ((0, 1), 3), ((0, 1, 2), 2)])
def test_a_wrong_width_is_refused(old_classes, width):
    treatment = DynamicDistillation(old_classes=old_classes)
    with pytest.raises(ValueError, match=rf"\(4, {width}\), expected \(4, {len(old_classes or '123')}\).*old_classes"):
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


# --- numbers ---------------------------------------------------------------------------------------------------------


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
    assert found == {"name": "DynamicDistillation", "weight": 2.0, "temperature": 0.5, "old_classes": (1, 0)}
    assert DynamicDistillation.needs_old_logits and np.isscalar(found["weight"])
