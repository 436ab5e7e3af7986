"""MUSCLE's loss, in chunks, against the formula written token by token, and unit by unit where the
tokenizers differ.
"""

import math

import pytest
import tiny_llama
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from compatkit.language import chunked_loss
from compatkit.language.aligned_teachers import SpanTargets, in_other_words
from compatkit.language.chunked_loss import MASKS, compatibility_loss_from_hidden
from compatkit.language.teachers import (
    HiddenStates,
    hidden_states,
    keep_distributions,
    learnt_positions,
    top_tokens,
)

B, T, V, H = 3, 9, 23, 7


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

    monkeypatch.setattr(chunked_loss, "chunks", cut)


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
        compatibility_loss_from_hidden(leaf, new, old, labels, *settings),
        by_the_book(leaf, new, old, labels, *settings),
        [leaf],
    )
    same(
        compatibility_loss_from_hidden(logits, new, old, labels, *settings),
        wanted,
        [states, weight, bias],
    )
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
        float(compatibility_loss_from_hidden(logits, *pair, labels, mask))
        for pair in ((new, old), (old, old), (new, new))
    ]
    assert len({round(one, 4) for one in found}) == (2 if mask in ("none", "never") else 3)


def test_the_masks_differ():
    states, weight, bias, new, old, labels = made_up()
    logits = (states @ weight.T + bias).detach()
    assert (
        len(
            {
                round(float(compatibility_loss_from_hidden(logits, new, old, labels, mask)), 5)
                for mask in MASKS
            }
        )
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
    assert loss < compatibility_loss_from_hidden(logits, new, old, labels, cross_entropy=0.2), (
        "a lower bound"
    )


@pytest.mark.usefixtures("any_chunks")
def test_words_that_the_student_does_not_have_join_the_rest():
    states, weight, bias, new, old, labels = made_up()
    logits = states @ weight.T + bias
    vocabulary = torch.arange(V)
    vocabulary[1::3] = -1  # of another tokenizer: a third of its words are lost
    top = in_other_words(kept(old, labels, 6), vocabulary)
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
    found = compatibility_loss_from_hidden(logits, new, logits, labels, mask)
    assert torch.equal(found, compatibility_loss_from_hidden(logits, new, logits, labels, "never"))
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
    loss = compatibility_loss_from_hidden(
        states @ weight.T + bias, new, old, labels.clamp_max(V - 2)
    )
    assert torch.isfinite(loss) and all(
        torch.isfinite(one).all() for one in torch.autograd.grad(loss, [states, weight, bias])
    )


def test_equal_logits_count_the_first_as_the_answer():
    logits, labels = torch.zeros(1, 3, V), torch.tensor([[5, 0, 1]])
    new, old = torch.randn(1, 3, V), torch.randn(1, 3, V)
    wanted = (
        divergence(new[0, 0], logits[0, 0], 2.0) + divergence(old[0, 1], logits[0, 1], 2.0)
    ) / 2
    assert (
        abs(float(compatibility_loss_from_hidden(logits, new, old, labels)) - float(wanted)) < 1e-6
    )


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
            compatibility_loss_from_hidden(states @ weight.T + bias, *pair, labels)
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
    assert abs(float(compatibility_loss_from_hidden(logits, logits, logits, labels))) < 1e-6
    whole = torch.nn.functional.cross_entropy(
        logits[:, :-1].reshape(-1, V), labels[:, 1:].reshape(-1)
    )
    assert torch.allclose(
        compatibility_loss_from_hidden(logits, new, old, labels, cross_entropy=1.0), whole
    )
    cooled = [one / 1.7 for one in (logits, new, old)]
    assert torch.allclose(
        compatibility_loss_from_hidden(*cooled, labels, temperature=1.0),
        compatibility_loss_from_hidden(logits, new, old, labels, temperature=1.7),
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
    wanted = compatibility_loss_from_hidden(states @ weight.T, new, old, labels, "none")
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
            compatibility_loss_from_hidden(new, new, old, labels, **wrong)


def test_shapes_that_do_not_fit_are_named():
    states, weight, bias, new, old, labels = made_up()
    with pytest.raises(ValueError, match="masked"):
        compatibility_loss_from_hidden(new, new, old, torch.full_like(labels, -100))
    with pytest.raises(
        ValueError,
        match="22.*23",
    ):
        compatibility_loss_from_hidden(new, new, old[..., :-1], labels)
    with pytest.raises(ValueError, match="3.*8.*23"):
        compatibility_loss_from_hidden(new, new[:, 1:], old, labels)
    with pytest.raises(ValueError, match="9.*23"):
        compatibility_loss_from_hidden(new[0], new[0], old[0], labels[0])
    with pytest.raises(ValueError, match="17.*18"):
        short = kept(old, labels)
        short = type(short)(*(one[:-1] for one in short[:4]), 2.0)
        compatibility_loss_from_hidden(
            HiddenStates(states, weight), kept(new, labels), short, labels
        )
    with pytest.raises(ValueError, match="1.0.*2.0"):
        compatibility_loss_from_hidden(
            new, kept(new, labels, temperature=1.0), kept(old, labels), labels
        )
    for width in (20, 22):
        with pytest.raises(ValueError, match=f"name token 22; the student knows {width}"):
            teachers = kept(new, labels), kept(old, labels)
            compatibility_loss_from_hidden(new[..., :width], *teachers, labels)
    with pytest.raises(ValueError, match="4.0.*2.0"):
        warmer = kept(new, labels, temperature=4.0)
        compatibility_loss_from_hidden(new, warmer, kept(old, labels), labels)


# --- other tokenizers -----------------------------------------------------------------------------


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("learn", ("all", "answer"))
def test_with_equal_tokenizers_it_is_the_ordinary_loss(tmp_path, mask, learn):
    tokenizer = tiny_llama.pair_of_tokenizers()[1]
    targets, rows, _, _ = tiny_llama.aligned(tokenizer, tokenizer, tmp_path / "all", learn)
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
    old_tokenizer, new_tokenizer = tiny_llama.pair_of_tokenizers()
    targets, rows, _, _ = tiny_llama.aligned(old_tokenizer, new_tokenizer, tmp_path, learn, k=12)
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
    value, slope = chunked_loss._two_events(old.double().log(), student.double().log())
    for n, (q, p) in enumerate(zip(old.double().tolist(), student.double().tolist())):
        wanted = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
        assert float(value[n]) == pytest.approx(wanted, rel=1e-6)
        assert float(slope[n]) == pytest.approx((p - q) / (1 - p), rel=1e-6)
