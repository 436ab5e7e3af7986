"""Losses on another device than the data's home: what is left on the CPU fails, as on a GPU."""

from contextlib import nullcontext

import pytest
import torch
from elsewhere import Elsewhere, OtherDevice, moved

from compatkit.distillation import DynamicDistillation, FocalDistillation, NaiveReweighting
from compatkit.language.teachers import HiddenStates, learnt_positions, top_tokens
from compatkit.muscle import MASKS, compatibility_loss, compatibility_loss_from_hidden


def batch():
    """States and head of a student, logits of both teachers, labels with gaps."""
    generator = torch.Generator().manual_seed(0)
    states, head, new, old = (
        torch.randn(*shape, generator=generator)
        for shape in ((2, 6, 8), (30, 8), (2, 6, 30), (2, 6, 30))
    )
    labels = torch.randint(0, 30, (2, 6), generator=generator)
    labels[0, :3] = -100
    return states.requires_grad_(), head, new, old, labels


def test_a_tensor_that_was_left_at_home_fails_and_numbers_are_the_same():
    here = torch.arange(6.0).reshape(2, 3)
    with OtherDevice():
        there = moved(here)
        assert isinstance(there, Elsewhere) and there.device.type == "meta"
        assert torch.equal((there * 2 + torch.ones(2, 3, device=there.device)).inside, here * 2 + 1)
        assert torch.equal(there.to("cpu"), here)
        with pytest.raises(RuntimeError, match="1 of 2 tensors were left on the CPU"):
            there + here
        with pytest.raises(RuntimeError, match="left on the CPU"):
            there + torch.zeros(2, 3)


@pytest.mark.parametrize("teachers", ("logits", "kept"))
@pytest.mark.parametrize("mask", MASKS)
def test_muscles_loss(mask, teachers):
    states, head, new, old, labels = batch()
    positions, label = learnt_positions(labels)
    if teachers == "kept":
        new, old = (top_tokens(one.reshape(-1, 30)[positions], label, 5) for one in (new, old))
    student = HiddenStates(states, head)
    plain = compatibility_loss_from_hidden(student, new, old, labels, mask, cross_entropy=0.1)
    (slope,) = torch.autograd.grad(plain, states)
    with OtherDevice():
        away = moved(states)
        student = HiddenStates(away, moved(head))
        loss = compatibility_loss_from_hidden(
            student, moved(new), moved(old), moved(labels), mask, cross_entropy=0.1
        )
        (gradient,) = torch.autograd.grad(loss, away)
    assert torch.equal(loss.inside.detach(), plain.detach())
    assert torch.equal(gradient.inside, slope)


def test_a_teacher_that_was_left_at_home_fails():
    _, _, new, old, labels = batch()
    with OtherDevice(), pytest.raises(RuntimeError, match="left on the CPU"):
        compatibility_loss(moved(new), moved(new), old, moved(labels))


@pytest.mark.parametrize(
    "treatment",
    (NaiveReweighting(), FocalDistillation(), FocalDistillation("kl"), DynamicDistillation()),
    ids=("naive", "focal", "focal by kl", "dynamic"),
)
def test_losses_from_logits(treatment, monkeypatch):
    # torch has no autocast for the device that ours says it is
    monkeypatch.setattr(torch, "autocast", lambda *given, **options: nullcontext())
    generator = torch.Generator().manual_seed(1)
    logits, old = (torch.randn(8, 5, generator=generator) for _ in range(2))
    label = torch.randint(0, 5, (8,), generator=generator)
    plain = treatment.loss(logits, label, old)
    with OtherDevice():
        loss = treatment.loss(*moved((logits, label, old)))
        with pytest.raises(RuntimeError, match="left on the CPU"):
            treatment.loss(moved(logits), moved(label), old)
    assert torch.equal(loss.inside, plain)
