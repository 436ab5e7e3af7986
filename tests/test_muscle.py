"""MUSCLE's loss against the formula written token by token, kept teachers, other tokenizers, and
the training of the adapter.
"""

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import make_hub_cache
import numpy as np
import pytest
import tiny
import tiny_llama
import torch
from notebook_cells import refusals
from tiny_llama import RECIPE
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import TrainerCallback

from compatkit import muscle
from compatkit.language.adapters import (
    RowsPart,
    add_adapter,
    base_fingerprint,
    copy_adapter,
    save_adapter,
    split_rows,
    switched_to,
    train_adapter,
)
from compatkit.language.models import byte_pairs, encode_examples
from compatkit.language.tasks import Question
from compatkit.language.teachers import (
    HiddenStates,
    KeptDistributions,
    hidden_states,
    keep_distributions,
    learnt_positions,
    model_fingerprint,
    top_tokens,
)
from compatkit.muscle import (
    MASKS,
    AlignedDistributions,
    Compatibility,
    SpanTargets,
    compatibility_loss,
    compatibility_loss_from_hidden,
    train_compatibility_adapter,
)

B, T, V, H = 3, 9, 23, 7
ROOT = Path(__file__).resolve().parents[1]


def made_up(seed=8):
    """Student's states and head, both teachers' logits, labels with gaps; each model is right
    about a part of them.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return 1.5 * torch.randn(*shape, generator=generator)

    states, weight, bias, new, old = (
        draw(B, T, H),
        draw(V, H),
        draw(V),
        draw(B, T, V),
        draw(B, T, V),
    )
    labels, kind = (torch.randint(0, high, (B, T), generator=generator) for high in (V, 3))
    for number, logits in enumerate((states @ weight.T + bias, old)):
        labels[:, 1:] = torch.where(kind[:, 1:] == number, logits.argmax(-1)[:, :-1], labels[:, 1:])
    labels[0, :4] = -100
    labels[1, 5] = -100
    labels[2, 7:] = -100
    return *(one.requires_grad_() for one in (states, weight, bias)), new, old, labels


def divergence(teacher, student, temperature, k=None):
    """KL of one token; over the teacher's k most likely and the rest, if k is given."""
    q, p = (torch.softmax(one.double() / temperature, 0) for one in (teacher, student))
    if k is not None and k < V:
        top = q.argsort(descending=True)[:k]
        q, p = (torch.cat([one[top], 1 - one[top].sum()[None]]) for one in (q, p))
    return (q * (q / p).log()).sum()


def by_the_book(logits, new, old, labels, mask="wrong", temperature=2.0, cross_entropy=0.0, k=None):
    """The loss token by token, as NOTES has it."""
    total, ce, count = 0, 0, 0
    for b in range(labels.shape[0]):
        places = [t for t in range(labels.shape[1] - 1) if labels[b, t + 1] != -100]

        def likelihood(z, t):
            return torch.log_softmax(z[b, t].double(), 0)[labels[b, t + 1]].detach()

        sums = [sum(likelihood(z, t) for t in places) for z in (logits, old)]
        for t in places:
            y = labels[b, t + 1]
            to_old = {
                "wrong": logits[b, t].argmax() != y,
                "old_right": old[b, t].argmax() == y,
                "none": True,
                "never": False,
                "token_likelihood": likelihood(logits, t) < likelihood(old, t),
                "sequence_likelihood": sums[0] < sums[1],
            }[mask]
            total = total + divergence((old if to_old else new)[b, t], logits[b, t], temperature, k)
            ce = ce - torch.log_softmax(logits[b, t].double(), 0)[y]
            count += 1
    return ((1 - cross_entropy) * total + cross_entropy * ce) / count


def kept(logits, labels, k=V, temperature=2.0):
    positions, label = learnt_positions(labels)
    return top_tokens(logits.reshape(-1, V)[positions], label, k, temperature)


def same(one, two, wanted, tolerance=2e-5):
    """Two losses agree, and their gradients by `wanted`."""
    assert abs(float(one.detach()) - float(two.detach())) < tolerance
    for first, second in zip(
        torch.autograd.grad(one, wanted, retain_graph=True),
        torch.autograd.grad(two, wanted, retain_graph=True),
    ):
        torch.testing.assert_close(first.double(), second.double(), atol=tolerance, rtol=1e-3)


@pytest.fixture(params=(2**22, 50, 7))
def any_chunks(request, monkeypatch):
    """However the tokens are cut into chunks: all at once, two at a time, one at a time."""

    def cut(count, vocabulary, device=None):
        size = max(1, request.param // vocabulary)
        return (slice(start, min(start + size, count)) for start in range(0, count, size))

    monkeypatch.setattr(muscle, "chunks", cut)


# --- the loss -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("any_chunks")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("temperature", "share"), ((2.0, 0.0), (1.0, 0.3), (0.7, 1.0)))
def test_both_entries_are_the_formula(mask, temperature, share):
    states, weight, bias, new, old, labels = made_up()
    logits = states @ weight.T + bias
    wanted = by_the_book(logits, new, old, labels, mask, temperature, share)
    settings = mask, temperature, share
    leaf = logits.detach().requires_grad_()
    same(
        compatibility_loss(leaf, new, old, labels, *settings),
        by_the_book(leaf, new, old, labels, *settings),
        [leaf],
    )
    same(compatibility_loss(logits, new, old, labels, *settings), wanted, [states, weight, bias])
    student = HiddenStates(states, weight, bias)
    teachers = [kept(one, labels, V, temperature) for one in (new, old)]
    same(
        compatibility_loss_from_hidden(student, *teachers, labels, *settings),
        wanted,
        [states, weight, bias],
    )
    as_hidden = [HiddenStates(one, torch.eye(V)) for one in (new, old)]
    same(
        compatibility_loss_from_hidden(student, *as_hidden, labels, *settings),
        wanted,
        [states, weight, bias],
    )


@pytest.mark.parametrize("mask", MASKS)
def test_the_masks_align_some_tokens_to_each(mask):
    # or the test above would not tell the masks apart
    states, weight, bias, new, old, labels = made_up()
    logits = (states @ weight.T + bias).detach()
    found = [
        float(compatibility_loss(logits, *pair, labels, mask))
        for pair in ((new, old), (old, old), (new, new))
    ]
    assert len({round(one, 4) for one in found}) == (2 if mask in ("none", "never") else 3)


def test_the_masks_differ():
    states, weight, bias, new, old, labels = made_up()
    logits = (states @ weight.T + bias).detach()
    assert (
        len({round(float(compatibility_loss(logits, new, old, labels, mask)), 5) for mask in MASKS})
        == 6
    )


@pytest.mark.usefixtures("any_chunks")
@pytest.mark.parametrize("k", (1, 5, 12))
def test_with_fewer_words_kept_it_is_the_divergence_of_k_and_the_rest(k):
    states, weight, bias, new, old, labels = made_up()
    student = HiddenStates(states, weight, bias)
    loss = compatibility_loss_from_hidden(
        student, kept(new, labels, k), kept(old, labels, k), labels, cross_entropy=0.2
    )
    logits = states @ weight.T + bias
    same(
        loss, by_the_book(logits, new, old, labels, cross_entropy=0.2, k=k), [states, weight, bias]
    )
    assert loss < compatibility_loss(logits, new, old, labels, cross_entropy=0.2), "a lower bound"


@pytest.mark.usefixtures("any_chunks")
def test_words_that_the_student_does_not_have_join_the_rest():
    states, weight, bias, new, old, labels = made_up()
    logits = states @ weight.T + bias
    vocabulary = torch.arange(V)
    vocabulary[1::3] = -1  # of another tokenizer: a third of its words are lost
    top = muscle._in_other_words(kept(old, labels, 6), vocabulary)
    wanted, (positions, _) = 0, learnt_positions(labels)
    for row, place in enumerate(positions.tolist()):
        q, p = (torch.softmax(one.reshape(-1, V)[place].double() / 2, 0) for one in (old, logits))
        words = [word for word in q.argsort(descending=True)[:6].tolist() if word % 3 != 1]
        q, p = (torch.cat([one[words], 1 - one[words].sum()[None]]) for one in (q, p))
        wanted = wanted + (q * (q / p).log()).sum() / len(positions)
    loss = compatibility_loss_from_hidden(logits, kept(new, labels), top, labels, "none")
    same(loss, wanted, [states, weight, bias])


@pytest.mark.parametrize("mask", ["token_likelihood", "sequence_likelihood"])
def test_who_is_as_likely_as_the_old_model_stays_with_the_new_one(mask):
    states, weight, bias, new, _, labels = made_up()
    logits = (states @ weight.T + bias).detach()
    found = compatibility_loss(logits, new, logits, labels, mask)
    assert torch.equal(found, compatibility_loss(logits, new, logits, labels, "never"))
    assert found > 0.1


def test_a_certain_student_and_a_certain_teacher_give_numbers():
    labels = torch.tensor([[0, 1, 2]])
    sure = 80 * torch.nn.functional.one_hot(torch.tensor([[1, 2, 0]]), V).float()
    student = (
        80 * torch.nn.functional.one_hot(torch.tensor([[3, 4, 0]]), V).float()
    ).requires_grad_()
    for teachers in ((sure, sure), (kept(sure, labels, 2), kept(sure, labels, 2))):
        loss = compatibility_loss_from_hidden(student, *teachers, labels, cross_entropy=0.5)
        (slope,) = torch.autograd.grad(loss, student)
        assert torch.isfinite(loss) and torch.isfinite(slope).all() and loss > 1


def test_a_word_the_teacher_rules_out_is_no_trouble():
    states, weight, bias, new, old, labels = made_up()
    new, old = (one.masked_fill(torch.arange(V) == V - 1, -torch.inf) for one in (new, old))
    loss = compatibility_loss(states @ weight.T + bias, new, old, labels.clamp_max(V - 2))
    assert torch.isfinite(loss) and all(
        torch.isfinite(one).all() for one in torch.autograd.grad(loss, [states, weight, bias])
    )


def test_equal_logits_count_the_first_as_the_answer():
    logits, labels = torch.zeros(1, 3, V), torch.tensor([[5, 0, 1]])
    new, old = torch.randn(1, 3, V), torch.randn(1, 3, V)
    wanted = (
        divergence(new[0, 0], logits[0, 0], 2.0) + divergence(old[0, 1], logits[0, 1], 2.0)
    ) / 2
    assert abs(float(compatibility_loss(logits, new, old, labels)) - float(wanted)) < 1e-6


@pytest.mark.parametrize("side", ["new", "old"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("whole", [True, False])
def test_a_teacher_that_gives_no_number_is_refused(side, value, whole):
    states, weight, bias, new, old, labels = made_up()
    teachers = {"new": new, "old": old}
    teachers[side][:, :, 3] = value
    pair = list(teachers.values())
    with pytest.raises(ValueError, match="teacher"):
        if whole:
            compatibility_loss(states @ weight.T + bias, *pair, labels)
        else:
            compatibility_loss_from_hidden(
                HiddenStates(states, weight, bias), *(kept(one, labels, 5) for one in pair), labels
            )


@pytest.mark.parametrize("mask", ["old_right", "token_likelihood", "sequence_likelihood"])
@pytest.mark.parametrize("whole", [True, False])
def test_an_old_model_that_decides_and_gives_no_number_is_refused(mask, whole):
    states, weight, bias, new, old, labels = made_up()
    old[:, 4, 3] = float("nan")  # it would win no comparison, and every token were the new one's
    student = (states @ weight.T + bias).detach()
    for one in (old, kept(old, labels, 5)) if whole else (HiddenStates(old, torch.eye(V)),):
        with pytest.raises(ValueError, match="not finite"):
            compatibility_loss_from_hidden(student, new, one, labels, mask)


def test_a_batch_that_teaches_nothing_is_refused():
    states, weight, bias, new, old, labels = made_up()
    nothing = torch.full_like(labels, -100)
    pair = [top_tokens(one[:0, 0], labels[:0, 0], 5, 2.0) for one in (new, old)]
    for teachers in ((new, old), pair):
        with pytest.raises(ValueError, match="nothing to learn from"):
            compatibility_loss_from_hidden(states @ weight.T + bias, *teachers, nothing)


def test_limits():
    states, weight, bias, new, old, labels = made_up()
    logits = (states @ weight.T + bias).detach()
    assert abs(float(compatibility_loss(logits, logits, logits, labels))) < 1e-6
    whole = torch.nn.functional.cross_entropy(
        logits[:, :-1].reshape(-1, V), labels[:, 1:].reshape(-1)
    )
    assert torch.allclose(compatibility_loss(logits, new, old, labels, cross_entropy=1.0), whole)
    cooled = [one / 1.7 for one in (logits, new, old)]
    assert torch.allclose(
        compatibility_loss(*cooled, labels, temperature=1.0),
        compatibility_loss(logits, new, old, labels, temperature=1.7),
        atol=1e-6,
    )


def test_only_the_student_gets_a_gradient():
    states, weight, bias, new, old, labels = made_up()
    teachers = [one.requires_grad_() for one in (new, old)]
    compatibility_loss_from_hidden(
        HiddenStates(states, weight.detach(), None), *teachers, labels
    ).backward()
    assert (
        states.grad.abs().sum() > 0
        and weight.grad is None
        and all(one.grad is None for one in teachers)
    )


def test_a_scaled_loss_has_a_scaled_gradient_and_without_gradients_it_is_the_same_number():
    states, weight, bias, new, old, labels = made_up()
    loss = compatibility_loss_from_hidden(HiddenStates(states, weight, bias), new, old, labels)
    tripled = (
        compatibility_loss_from_hidden(HiddenStates(states, weight, bias), new, old, labels) * 3
    )
    for one, two in zip(
        torch.autograd.grad(loss, [states, weight]), torch.autograd.grad(tripled, [states, weight])
    ):
        torch.testing.assert_close(3 * one, two)
    with torch.no_grad():
        silent = compatibility_loss_from_hidden(
            HiddenStates(states, weight, bias), new, old, labels
        )
    assert not silent.requires_grad and torch.equal(silent, loss.detach())


def test_half_precision_comes_near_and_keeps_its_type():
    states, weight, bias, new, old, labels = made_up()
    wanted = compatibility_loss(states @ weight.T, new, old, labels, "none")
    low = [one.detach().bfloat16().requires_grad_() for one in (states, weight)]
    loss = compatibility_loss_from_hidden(
        HiddenStates(*low), new.bfloat16(), old.bfloat16(), labels, "none"
    )
    assert loss.dtype == torch.float32 and abs(float(loss) - float(wanted)) < 0.02 * float(wanted)
    assert [one.dtype for one in torch.autograd.grad(loss, low)] == [torch.bfloat16] * 2


class Largest(TorchDispatchMode):
    """The largest tensor that any operation makes."""

    size = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        made = function(*arguments, **(options or {}))
        for one in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(one, torch.Tensor):
                self.size = max(self.size, one.numel())
        return made


def test_no_tensor_of_tokens_times_vocabulary_is_made():
    tokens, words = 1024, 20_000
    states = torch.randn(2, tokens // 2, 8, requires_grad=True)
    weight, labels = torch.randn(words, 8), torch.randint(0, words, (2, tokens // 2))
    teachers = [
        top_tokens(torch.randn(tokens - 2, words), learnt_positions(labels)[1], 4) for _ in range(2)
    ]
    with Largest() as largest:
        compatibility_loss_from_hidden(
            HiddenStates(states, weight), *teachers, labels, cross_entropy=0.1
        ).backward()
    assert tokens * words / 8 < largest.size <= 2**22 < tokens * words / 4, "a chunk, and no more"


# --- what does not fit ----------------------------------------------------------------------------


def test_settings_that_mean_nothing_are_refused():
    states, weight, bias, new, old, labels = made_up()
    for wrong, named in (
        ({"mask": "right"}, "mask 'right' is not one of wrong, old_right"),
        ({"temperature": 0}, "temperature is 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"cross_entropy": -0.1}, "cross_entropy is -0.1"),
        ({"cross_entropy": float("nan")}, "cross_entropy is nan"),
        ({"cross_entropy": 1.1}, "cross_entropy is 1.1"),
    ):
        with pytest.raises(ValueError, match=named):
            compatibility_loss(new, new, old, labels, **wrong)
        with pytest.raises(ValueError, match=named):
            Compatibility(tiny_llama.llama(), **wrong)


def test_shapes_that_do_not_fit_are_named():
    states, weight, bias, new, old, labels = made_up()
    with pytest.raises(ValueError, match="all labels of the batch are masked"):
        compatibility_loss(new, new, old, torch.full_like(labels, -100))
    with pytest.raises(
        ValueError,
        match=r"the old model has 22 logits a token, the student 23.*align them by spans",
    ):
        compatibility_loss(new, new, old[..., :-1], labels)
    with pytest.raises(ValueError, match=r"the new model has the shape \(3, 8, 23\)"):
        compatibility_loss(new, new[:, 1:], old, labels)
    with pytest.raises(ValueError, match=r"the student has the shape \(9, 23\)"):
        compatibility_loss(new[0], new[0], old[0], labels[0])
    with pytest.raises(
        ValueError, match="are of 17 tokens, the labels ask for 18: they are of other data"
    ):
        short = kept(old, labels)
        short = type(short)(*(one[:-1] for one in short[:4]), 2.0)
        compatibility_loss_from_hidden(
            HiddenStates(states, weight), kept(new, labels), short, labels
        )
    with pytest.raises(ValueError, match="kept at temperature 1.0, not 2.0"):
        compatibility_loss_from_hidden(
            new, kept(new, labels, temperature=1.0), kept(old, labels), labels
        )
    for width in (20, 22):
        with pytest.raises(ValueError, match=f"name token 22; the student knows {width}"):
            teachers = kept(new, labels), kept(old, labels)
            compatibility_loss_from_hidden(new[..., :width], *teachers, labels)
    with pytest.raises(ValueError, match="kept at temperature 4.0, not 2.0"):
        warmer = kept(new, labels, temperature=4.0)
        compatibility_loss_from_hidden(new, warmer, kept(old, labels), labels)


# --- other tokenizers -----------------------------------------------------------------------------

TEXTS = [
    f"{first} and {second} are {what} naïve"
    for first in ("cats", "doghouses")
    for second in ("dogs", "catfish")
    for what in ("not", "hardly", "certainly")
]
QUESTIONS = [Question(str(n), *text.split(" ", 1)) for n, text in enumerate(TEXTS)]


def pair_of_tokenizers(old=275, new=310):
    return byte_pairs(TEXTS, old), byte_pairs(TEXTS, new)


def aligned(old_tokenizer, new_tokenizer, folder, learn="all", k=400, seed=0):
    """(targets, new rows, old model, old rows)"""
    old_rows = encode_examples(QUESTIONS, old_tokenizer)
    new_rows = encode_examples(QUESTIONS, new_tokenizer, learn=learn)
    model = tiny_llama.llama(seed, len(old_tokenizer))
    kept = keep_distributions(model, old_rows, folder, old_tokenizer, k=k)
    return (
        AlignedDistributions(kept, old_rows, new_rows, TEXTS, old_tokenizer, new_tokenizer),
        new_rows,
        model,
        old_rows,
    )


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("learn", ("all", "answer"))
def test_with_equal_tokenizers_it_is_the_ordinary_loss(tmp_path, mask, learn):
    tokenizer = pair_of_tokenizers()[1]
    targets, rows, _, _ = aligned(tokenizer, tokenizer, tmp_path / "all", learn)
    assert targets.coverage.one_to_one == 1
    model, student = tiny_llama.llama(0, len(tokenizer)), tiny_llama.llama(2, len(tokenizer))
    ordinary = keep_distributions(model, rows, tmp_path / "ordinary", k=400)
    picked = [4, 0, 9]
    batch = tiny_llama.batch_of(rows, picked)
    states = hidden_states(student, batch)
    leaf = states._replace(
        states=states.states.detach().requires_grad_(), weight=states.weight.detach()
    )
    new = kept_at(student, batch)
    one, two = (
        compatibility_loss_from_hidden(
            leaf, new, old.of(picked), batch["labels"], mask, cross_entropy=0.1
        )
        for old in (targets, ordinary)
    )
    same(one, two, [leaf.states], 1e-5)


def kept_at(model, batch, k=400):
    positions, label = learnt_positions(batch["labels"])
    with torch.no_grad():
        return top_tokens(hidden_states(model, batch).logits(positions), label, k)


def units_by_the_book(logits, new, targets: SpanTargets, labels, mask):
    """The loss over units, written down slowly."""
    positions, label = learnt_positions(labels)
    rows = logits.reshape(-1, logits.shape[-1])[positions].double()
    sequence, likelihood = (
        positions // labels.shape[1],
        torch.log_softmax(rows, 1)[torch.arange(len(label)), label],
    )
    total = 0

    def plain(teacher, n):
        return kl_of_top(teacher, n, rows[n])

    unit_of = targets.unit.tolist()
    lead = {
        n: sum(likelihood[i] for i in range(len(label)) if unit_of[i] == n).detach()
        - targets.log_likelihood[n]
        for n in range(len(targets.single))
    }
    home = {n: int(sequence[unit_of.index(n)]) for n in lead}
    for n in lead:
        tokens = [i for i in range(len(label)) if unit_of[i] == n]
        goes = {
            "wrong": any(int(rows[i].argmax()) != int(label[i]) for i in tokens),
            "old_right": bool(targets.right[n]),
            "none": True,
            "never": False,
            "token_likelihood": bool(lead[n] < 0),
            "sequence_likelihood": bool(sum(lead[m] for m in lead if home[m] == home[n]) < 0),
        }[mask]
        if not goes:
            total = total + sum(plain(new, i) for i in tokens)
        elif targets.single[n]:
            total = total + plain(targets.top, tokens[0])
        else:
            q, p = (
                targets.log_likelihood[n].double().exp(),
                sum(likelihood[i] for i in tokens).exp(),
            )
            total = total + q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log()
    return (total + sum(plain(new, i) for i in range(len(label)) if unit_of[i] < 0)) / len(label)


def kl_of_top(top, n, row):
    """KL over the known words and the rest."""
    known = top.log_probability[n] > -torch.inf
    q = top.log_probability[n][known].double().exp()
    p = torch.softmax(row / 2, 0)[top.token[n][known]]
    rest = 1 - q.sum()
    return (q * (q / p).log()).sum() + (rest * (rest / (1 - p.sum())).log() if rest > 1e-6 else 0)


@pytest.mark.usefixtures("any_chunks")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("learn", ("all", "answer"))
def test_with_two_tokenizers_it_is_the_formula_over_units(tmp_path, mask, learn):
    old_tokenizer, new_tokenizer = pair_of_tokenizers()
    targets, rows, _, _ = aligned(old_tokenizer, new_tokenizer, tmp_path, learn, k=12)
    student = tiny_llama.llama(2, len(new_tokenizer))
    picked = [4, 0, 9]
    batch, told = tiny_llama.batch_of(rows, picked), targets.of(picked)
    assert not told.single.all() and told.single.any() and (told.unit.max() == len(told.single) - 1)
    states = hidden_states(student, batch)
    leaf = states._replace(
        states=states.states.detach().requires_grad_(), weight=states.weight.detach()
    )
    new = kept_at(tiny_llama.llama(3, len(new_tokenizer)), batch, 12)
    loss = compatibility_loss_from_hidden(leaf, new, told, batch["labels"], mask)
    wanted = units_by_the_book(leaf.states @ leaf.weight.T, new, told, batch["labels"], mask)
    same(
        loss, wanted, [leaf.states], 2e-4
    )  # kept in half precision, which the slow one does not smooth


def test_this_text_or_another_by_hand():
    old, student = torch.tensor([0.3, 0.9999, 1e-9]), torch.tensor([0.99999, 0.4, 0.9])
    value, slope = muscle._two_events(old.double().log(), student.double().log())
    for n, (q, p) in enumerate(zip(old.double().tolist(), student.double().tolist())):
        wanted = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
        assert float(value[n]) == pytest.approx(wanted, rel=1e-6)
        assert float(slope[n]) == pytest.approx((p - q) / (1 - p), rel=1e-6)


def test_a_units_likelihood_is_the_old_models_of_its_text(tmp_path):
    old_tokenizer, new_tokenizer = pair_of_tokenizers()
    targets, rows, model, old_rows = aligned(old_tokenizer, new_tokenizer, tmp_path)
    for row in (0, 7):
        with torch.no_grad():
            logits = model(torch.tensor([old_rows.tokens[row]])).logits[0]
        label = torch.tensor(old_rows.tokens[row][1:])
        each = torch.log_softmax(logits[:-1], 1)[torch.arange(len(label)), label]
        told = targets.of([row])
        assert abs(float(told.log_likelihood.sum()) - float(each.sum())) < 1e-3, (
            "all units together are the text"
        )
        assert told.top.log_rest.exp().max() <= 1 + 1e-3
        mass = told.top.log_probability.exp().sum(1) + told.top.log_rest.exp()
        assert torch.allclose(mass, torch.ones_like(mass), atol=2e-3)


def test_a_unit_is_right_where_all_its_old_tokens_are(tmp_path):
    targets, _, _, old_rows = aligned(*pair_of_tokenizers(), tmp_path)
    label, top = torch.tensor(old_rows.tokens[0][1:]), targets.kept.of([0])
    spans = targets._matched(0)[2].tolist()
    assert any(end - start > 1 for start, end in spans)
    for wrong in range(len(label)):
        token = top.token.clone()
        token[:, 0] = label
        token[wrong, 0] = (label[wrong] + 1) % len(targets.vocabulary)
        told = top._replace(token=token)
        targets.kept = SimpleNamespace(of=lambda rows, told=told: told)
        right = targets._example(0).right.tolist()
        assert right == [not start <= wrong < end for start, end in spans]


def test_rows_that_do_not_belong_together_are_refused(tmp_path):
    old_tokenizer, new_tokenizer = pair_of_tokenizers()
    targets, new_rows, model, old_rows = aligned(old_tokenizer, new_tokenizer, tmp_path)
    with pytest.raises(ValueError, match="the same examples in the same order"):
        AlignedDistributions(
            targets.kept, old_rows, new_rows, TEXTS[:-1], old_tokenizer, new_tokenizer
        )
    with pytest.raises(ValueError, match="are not those of its text"):
        AlignedDistributions(
            targets.kept, old_rows, new_rows, TEXTS[::-1], old_tokenizer, new_tokenizer
        )
    answers = encode_examples(QUESTIONS, old_tokenizer, learn="answer")
    part = keep_distributions(model, answers, tmp_path / "answers", k=4)
    with pytest.raises(ValueError, match="kept over all tokens of the old rows"):
        AlignedDistributions(part, answers, new_rows, TEXTS, old_tokenizer, new_tokenizer)


# --- training -------------------------------------------------------------------------------------

ROWS = tiny_llama.counting(40)


@pytest.fixture(scope="module")
def teachers(tmp_path_factory):
    """(old model, maker of the new one with its task adapter trained, kept distributions of both
    over all words)
    """
    folder = tmp_path_factory.mktemp("teachers")
    old, new = (add_adapter(tiny_llama.llama(seed), RECIPE) for seed in (0, 1))
    for model in (old, new):
        train_adapter(model, *split_rows(ROWS), RECIPE)
    kept = {
        name: keep_distributions(model, ROWS, folder / name, k=40)
        for name, model in (("old", old), ("new", new))
    }
    state = {name: value.clone() for name, value in new.state_dict().items()}

    def fresh():
        model = add_adapter(tiny_llama.llama(1), RECIPE)
        model.load_state_dict(state)
        return model

    return old, fresh, kept


def trained(teachers, objective, **options):
    """The compatibility adapter's fingerprint and its training."""
    model = teachers[1]()
    found = train_compatibility_adapter(model, ROWS, RECIPE, objective, **options)
    return model, found


def losses(found):
    return np.array([entry["eval_loss"] for entry in found.history if "eval_loss" in entry])


def test_it_starts_from_the_task_adapter_and_leaves_the_teachers_alone(teachers):
    old, fresh, kept = teachers
    before = model_fingerprint(fresh()), model_fingerprint(old)
    model, found = trained(teachers, Compatibility(kept["old"], kept["new"]))
    assert model.active_adapter == "compatibility" and model_fingerprint(model) != before[0]
    with switched_to(model, "task"):
        assert model_fingerprint(model) == before[0]
    assert model_fingerprint(old) == before[1]
    assert found.validation_loss == losses(found).min()
    still, _ = trained(teachers, Compatibility(kept["old"], kept["new"]), learning_rate=1e-12)
    with switched_to(still, "task"):
        task = still(**tiny_llama.text_of(tiny_llama.batch_of(ROWS))).logits
    assert torch.allclose(
        still(**tiny_llama.text_of(tiny_llama.batch_of(ROWS))).logits, task, atol=1e-4
    )


def test_kept_and_asked_teachers_train_alike(teachers):
    old, _, kept = teachers
    _, by_kept = trained(teachers, Compatibility(kept["old"], kept["new"]))
    _, asked = trained(teachers, Compatibility(old))
    np.testing.assert_allclose(losses(by_kept), losses(asked), atol=2e-3)


def test_it_comes_nearer_to_the_old_model(teachers):
    old, fresh, kept = teachers
    text = tiny_llama.text_of(tiny_llama.batch_of(ROWS))
    model, _ = trained(teachers, Compatibility(kept["old"], kept["new"], mask="none"))
    with torch.no_grad():
        answers = {
            name: torch.log_softmax(one(**text).logits / 2, -1)
            for name, one in (("old", old), ("near", model), ("far", fresh()))
        }
    distance = {
        name: float(
            torch.nn.functional.kl_div(
                answers[name], answers["old"], log_target=True, reduction="sum"
            )
        )
        for name in ("near", "far")
    }
    assert distance["near"] < 0.8 * distance["far"]


def test_drawn_to_the_new_model_everywhere_it_stays_that(teachers):
    text = tiny_llama.text_of(tiny_llama.batch_of(ROWS))
    answers = []
    for mask in ("never", "none"):
        model, _ = trained(teachers, Compatibility(teachers[2]["old"], teachers[2]["new"], mask))
        with torch.no_grad():
            answers.append(model(**text).logits.log_softmax(-1))
    with torch.no_grad():
        plain = teachers[1]()(**text).logits.log_softmax(-1)
    stays, goes = ((one - plain).abs().mean() for one in answers)
    assert stays < 0.2 * goes, "Adam takes the rounding of kept distributions for a slope"


@pytest.mark.parametrize(
    "change",
    (
        {"mask": "none"},
        {"mask": "never"},
        {"mask": "old_right"},
        {"cross_entropy": 0.5},
        {"temperature": 1.0},
    ),
)
def test_every_setting_reaches_the_loss(teachers, change):
    old, _, kept = teachers
    _, usual = trained(teachers, Compatibility(old))
    _, other = trained(teachers, Compatibility(old, **change))
    assert np.abs(losses(usual) - losses(other)).max() > 1e-3


def test_the_old_models_answers_matter(teachers):
    old, _, kept = teachers

    class Shuffled(KeptDistributions):
        def of(self, rows):
            found = super().of(rows)
            return found._replace(token=found.token.flip(1))

    shuffled = Shuffled(kept["old"].folder)
    _, usual = trained(teachers, Compatibility(kept["old"], kept["new"]))
    _, other = trained(teachers, Compatibility(shuffled, kept["new"]))
    assert np.abs(losses(usual) - losses(other)).max() > 1e-2


def test_another_tokenizer_trains(tmp_path):
    old_tokenizer, new_tokenizer = pair_of_tokenizers()
    targets, rows, _, _ = aligned(old_tokenizer, new_tokenizer, tmp_path / "old", k=16)
    model = add_adapter(tiny_llama.llama(2, len(new_tokenizer)), RECIPE)
    train_adapter(model, *split_rows(rows), RECIPE)
    kept = keep_distributions(model, rows, tmp_path / "new", new_tokenizer, k=16)
    found = train_compatibility_adapter(model, rows, RECIPE, Compatibility(targets, kept))
    assert np.isfinite(losses(found)).all() and len(losses(found)) == 3


def test_teachers_that_do_not_fit_are_refused(teachers, tmp_path):
    old, fresh, kept = teachers
    model = fresh()
    other = tiny_llama.counting(40, seed=3)

    def refused(match, objective, rows=ROWS, model=model, **options):
        with pytest.raises(ValueError, match=match):
            train_compatibility_adapter(model, rows, RECIPE, objective, **options)

    refused(
        "the old base has 50 tokens and the new one 40: the vocabularies differ",
        Compatibility(tiny_llama.llama(vocabulary=50)),
    )
    refused(
        "the new teacher's kept distributions are of another model",
        Compatibility(kept["old"], kept["old"]),
    )
    refused(
        "the old teacher's kept distributions are of another data",
        Compatibility(kept["old"]),
        other,
    )
    refused(
        "the new teacher's kept distributions are of another data",
        Compatibility(kept["old"], kept["new"]),
        other,
    )
    refused("another temperature", Compatibility(kept["old"], kept["new"], temperature=1.0))
    refused(
        "no adapter 'task' to start from", Compatibility(kept["old"]), model=tiny_llama.llama(1)
    )
    refused(
        "no adapter 'taks' to be the new teacher; there are \\['task'\\]",
        Compatibility(kept["old"], "taks"),
    )
    words = keep_distributions(old, ROWS, tmp_path / "words", pair_of_tokenizers()[0], k=4)
    refused(
        "the old teacher's kept distributions are of another tokenizer",
        Compatibility(words, kept["new"]),
    )


def test_every_setting_is_in_the_configuration(teachers):
    kept = teachers[2]
    plain = Compatibility(kept["old"]).configuration()
    for name, value in {"mask": "none", "temperature": 1.5, "cross_entropy": 0.25}.items():
        changed = Compatibility(kept["old"], **{name: value}).configuration()
        assert changed == plain | {name: value} != plain
    assert Compatibility(kept["new"]).configuration()["old"] != plain["old"]


def test_an_old_model_that_is_asked_at_every_step_answers_without_dropout(teachers):
    old, fresh, _ = teachers
    old.train()
    Compatibility(old).loss(fresh(), tiny_llama.batch_of(ROWS, range(3)))
    assert not any(part.training for part in old.modules())


@pytest.mark.parametrize("side", ["old", "new"])
def test_a_head_that_does_more_than_multiply_is_refused(teachers, side):
    """Of the old base that is asked at every step, or of the new one that is trained."""
    _, fresh, kept = teachers
    model, old = fresh(), tiny_llama.llama(vocabulary=len(fresh().get_output_embeddings().weight))
    twice = {"old": old, "new": model}[side].get_output_embeddings()
    handle = twice.register_forward_hook(lambda module, given, made: 2 * made)
    objective = Compatibility(old if side == "old" else kept["old"])
    with pytest.raises(ValueError, match="not its hidden states times its head"):
        train_compatibility_adapter(model, ROWS, RECIPE, objective)
    handle.remove()


class Kill(TrainerCallback):
    """Ends a training at its first checkpoint."""

    def on_save(self, args, state, control, **others):
        raise KeyboardInterrupt


def test_a_killed_training_goes_on(teachers, tmp_path):
    _, _, kept = teachers
    whole, wanted = trained(teachers, Compatibility(kept["old"], kept["new"]))
    with pytest.raises(KeyboardInterrupt):
        trained(
            teachers, Compatibility(kept["old"], kept["new"]), folder=tmp_path, callbacks=(Kill(),)
        )
    again, found = trained(teachers, Compatibility(kept["old"], kept["new"]), folder=tmp_path)
    assert (
        model_fingerprint(again) == model_fingerprint(whole)
        and losses(found).tolist() == losses(wanted).tolist()
    )
    with pytest.raises(ValueError, match="of another training .objective differ"):
        trained(teachers, Compatibility(kept["old"], kept["new"], mask="none"), folder=tmp_path)


def five_losses(objective, model, recipe=RECIPE, **arguments):
    """The losses of the first five steps on rows of one length, without validation."""
    from compatkit.language.models import TokenRows

    rows = TokenRows(
        [str(n) for n in range(40)], [(np.arange(6) + n % 30).tolist() for n in range(40)], 0
    )
    if callable(objective):
        objective = objective(rows)
    told = {
        "eval_strategy": "no",
        "save_strategy": "no",
        "load_best_model_at_end": False,
        "logging_strategy": "steps",
        "logging_steps": 1,
    }
    part = RowsPart(rows, range(40))
    copy_adapter(model, "task", "compatibility")
    history = train_adapter(
        model, part, part, replace(recipe, max_steps=5), objective, **(told | arguments)
    ).history
    return np.array([entry["loss"] for entry in history if "loss" in entry])


@pytest.fixture(scope="module")
def plain_losses(teachers):
    found = five_losses(Compatibility(teachers[0]), teachers[1]())
    assert len(found) == 5
    assert (
        np.abs(
            found
            - five_losses(
                Compatibility(teachers[0]), teachers[1](), replace(RECIPE, learning_rate=1e-9)
            )
        ).max()
        > 0.01
    )
    return found


def test_gradient_checkpointing_changes_nothing(teachers, plain_losses):
    recipe = replace(RECIPE, gradient_checkpointing=True)
    np.testing.assert_allclose(
        five_losses(Compatibility(teachers[0]), teachers[1](), recipe), plain_losses, atol=1e-4
    )


def test_half_precision_changes_little(teachers, plain_losses):
    found = five_losses(
        Compatibility(teachers[0]), teachers[1](), replace(RECIPE, precision="bfloat16")
    )
    np.testing.assert_allclose(found, plain_losses, atol=1e-2 * plain_losses.max())
    assert not np.array_equal(found, plain_losses)


SHARES = {"per_device_train_batch_size": 4, "ddp_backend": "gloo", "use_cpu": True}


def train_share(rank, folder, states):
    """One of two processes that train together."""
    found = {}
    for name in ("asked", "kept"):
        old, new = (add_adapter(tiny_llama.llama(seed), RECIPE) for seed in (0, 1))
        for model, state in ((old, states["old"]), (new, states["new"])):
            model.load_state_dict(state)
        objective = (
            Compatibility(old)
            if name == "asked"
            else lambda rows: Compatibility(
                keep_distributions(old, rows, Path(folder) / "kept", k=40)
            )
        )
        losses = five_losses(objective, new, **SHARES)
        found[name] = {"losses": losses.tolist(), "adapter": model_fingerprint(new)}

    def train(model, **options):
        return train_compatibility_adapter(
            model, ROWS, RECIPE, Compatibility(old), **SHARES, **options
        )

    with pytest.raises(
        ValueError, match="2 processes train together .* give one folder that all of them see"
    ):
        train(new, name="second")
    best = train(new, folder=Path(folder) / "checkpoints", name="third")
    found["trained"] = {"losses": [best.validation_loss], "adapter": model_fingerprint(new)}
    (Path(folder) / f"found-{rank}.json").write_text(json.dumps(found))


def test_two_processes_give_what_one_gives_with_twice_the_batch(teachers, plain_losses, tmp_path):
    states = {"old": teachers[0].state_dict(), "new": teachers[1]().state_dict()}
    tiny.train_together(train_share, str(tmp_path), states)
    first, second = (json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in range(2))
    for name in ("asked", "kept"):
        np.testing.assert_allclose(
            first[name]["losses"], plain_losses, atol=1e-4 if name == "asked" else 2e-3
        )
    assert first == second, "both processes hold the same weights, the best epoch's too"


def train_sharded(rank, folder, states):
    """One of two processes that hold a half of the new model each."""
    tiny.shard_on_the_cpu()
    place, shared = (
        Path(folder),
        SHARES
        | {
            "fsdp": True,
            "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
        },
    )

    def loaded(seed, state):
        model = add_adapter(tiny_llama.llama(seed), RECIPE)
        model.load_state_dict(state)
        return model

    old, new = loaded(0, states["old"]), loaded(1, states["new"])
    found = {
        "base": base_fingerprint(new),
        "losses": five_losses(Compatibility(old), new, **shared).tolist(),
    }
    found["sharded"] = (
        all(isinstance(value, DTensor) for value in new.parameters())
        and base_fingerprint(new) == found["base"]
    )

    def ask(model, name, **options):
        return train_compatibility_adapter(
            model, ROWS, RECIPE, Compatibility(old), folder=place / name, **shared, **options
        )

    whole, killed, again = (loaded(1, states["new"]) for _ in range(3))
    found["best"] = ask(whole, "whole").best_epoch
    save_adapter(whole, "compatibility", place / "adapter")
    with pytest.raises(KeyboardInterrupt):
        ask(killed, "killed", callbacks=(Kill(),))
    ask(again, "killed")
    found |= {"whole": model_fingerprint(whole), "again": model_fingerprint(again)}
    (place / f"found-{rank}.json").write_text(json.dumps(found))


def test_a_model_sharded_over_two_processes(teachers, plain_losses, tmp_path):
    """The same losses as in one process, a killed training goes on, and the adapter that is
    saved is a whole one.
    """
    from peft import PeftModel

    states = {"old": teachers[0].state_dict(), "new": teachers[1]().state_dict()}
    tiny.train_together(train_sharded, str(tmp_path), states)
    first, second = (json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in range(2))
    assert first == second and first["sharded"] and first["whole"] == first["again"]
    assert first["base"] == base_fingerprint(teachers[1]())
    np.testing.assert_allclose(first["losses"], plain_losses, atol=1e-4)
    plain = PeftModel.from_pretrained(tiny_llama.llama(1), str(tmp_path / "adapter"))
    assert model_fingerprint(plain) == first["whole"] != model_fingerprint(teachers[1]())


# --- the notebook ---------------------------------------------------------------------------------


def test_wrong_parameters_are_all_named_with_the_valid_ones():
    wrong = {
        "task": "sst2",
        "table": 7,
        "mask": "right",
        "cross_entropy": 2,
        "maks": "wrong",
        "upgrade": "g",
        "alpha": "printed",
    }
    error, message = refusals("muscle", {"wrong": wrong})["wrong"]
    assert error == "ValueError"
    for part in (
        "task = 'sst2'",
        "'arithmetic', 'piqa', 'hellaswag', 'gsm8k', 'samsum'",
        "table = 7",
        "'figure5'",
        "mask = 'right'",
        "'token_likelihood'",
        "cross_entropy = 2: a number from 0 to 1",
        "unknown parameter 'maks'",
        "did you mean 'mask'",
        "upgrade = 'g'",
        "alpha = 'printed': valid are auto, twice the rank, as printed",
    ):
        assert part in message, part


# --- another tokenizer, from files of the hub to the table ----------------------------------------


def test_two_steps_from_llama_2_to_llama_3(tmp_path):
    """Upgrade e: both models read as the hub holds them, the old teacher aligned by spans."""
    bases = ["meta-llama/Llama-2-7b-hf", "meta-llama/Meta-Llama-3-8B"]
    make_hub_cache.main(tmp_path / "hub_home", bases, ("questions",))
    wiring = "task=piqa scale=paper upgrade=e table=3 seeds=1 max_steps=2".split()
    options = [part for one in wiring for part in ("-p", *one.split("="))]
    program = [sys.executable, "-m", "papermill", "--engine", "compatkit"]
    notebooks = [str(ROOT / "nbs" / "muscle.ipynb"), str(tmp_path / "out.ipynb")]
    clean = {
        key: one for key, one in os.environ.items() if key not in {"COMPATKIT_DATA", "IN_TEST"}
    }
    own = {"HF_HOME": str(tmp_path / "hub_home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    own["COMPATKIT_HOME"] = str(tmp_path / "runs")
    done = subprocess.run(
        [*program, *notebooks, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=clean | own,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    page = (tmp_path / "out.html").read_text("utf-8")
    assert all(name in page for name in bases) and "piqa, upgrade e, paper scale" in page
    assert re.search(r"aligned by spans, [\d,]+ spans over [\d,]+ tokens: [\d.]+% one to one", page)
    (record,) = (tmp_path / "runs").glob("compatibility_adapter-*/record.json")
    trained = json.loads(record.read_text())
    assert trained["configuration"]["setting"]["mask"] == "wrong"
    assert any(0 < entry.get("loss", 0) < math.inf for entry in trained["results"]["history"])
