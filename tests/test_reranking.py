"""Re-ranking: the formula by hand, files, bad input by name, two models asked, and mixtures."""

import math

import numpy as np
import pytest
import torch

from compatkit.language.models import byte_pairs, generate, small_language_model
from compatkit.language.tasks import Generation, Question, load_questions
from compatkit.reranking import (
    KINDS,
    Candidates,
    Proposal,
    Reranker,
    dropped,
    oracle,
    propose,
    rerank,
    write_together,
)

TEXTS = {"a": ["7", "8", "9"], "b": ["11", "12"]}
NEW = {"a": [-0.3, -1.6, -3.0], "b": [-2.5, -0.1]}
OLD = {"a": [-2.0, -0.4, -1.9], "b": [-0.6, -0.9]}
SHORT = Generation(("\n",), 4)


@pytest.mark.parametrize(
    ("weight", "wanted"), [(0, ["8", "11"]), (0.3, ["8", "12"]), (1, ["7", "12"])]
)
def test_the_mixed_likelihood_chooses(weight, wanted):
    found = rerank(TEXTS, NEW, OLD, weight)
    assert list(found.text) == wanted and found.id == ("a", "b")
    for one, place in zip("ab", found.place):
        mixed = [(1 - weight) * old + weight * new for old, new in zip(OLD[one], NEW[one])]
        assert place == mixed.index(max(mixed)) and found.by_id[one] == TEXTS[one][place]


def test_either_side_is_enough_at_its_end_and_ties_go_to_the_first():
    assert rerank(TEXTS, None, OLD).text == ("8", "11")
    assert rerank(TEXTS, NEW, None, 1).text == ("7", "12")
    assert rerank({"a": ["x", "y"]}, None, {"a": [0.0, 0.0]}).text == ("x",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((TEXTS, NEW, {"a": OLD["a"]}), "no old log-likelihoods for 'b'"),
        ((TEXTS | {"b": []}, NEW, OLD), "no candidates for 'b'"),
        (({}, {}, {}), "no candidates"),
        ((TEXTS, NEW, OLD | {"c": [1.0]}), "old log-likelihoods of other ids, 'c'"),
        ((TEXTS, NEW, OLD | {"b": [1.0]}), "'b' has 2 candidates and 1 old"),
        ((TEXTS, NEW | {"b": [math.nan, 0.0]}, OLD), "new .*'b' are not finite"),
        ((TEXTS, NEW, OLD | {"b": [None, 0.0]}), "not finite"),
        ((TEXTS, NEW, OLD, 1.5), "weight 1.5"),
        ((TEXTS, None, OLD, 0.5), "needs .* of the new model"),
        ((TEXTS, NEW, None, 0.5), "needs .* of the old model"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        rerank(*arguments)


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_candidates_come_from_files(tmp_path, ending):
    texts = {"1": ["007", "=a", "", "two\nlines, one comma"], "02": ["1.0"]}
    given = Candidates(texts, None, {"1": [-1.0, -2.5, 0.0, -3.0], "02": [-0.5]})
    given.save(tmp_path / f"c.{ending}")
    again = Candidates.load(tmp_path / f"c.{ending}")
    assert again.text == texts and again.old == given.old and again.new is None
    assert again.first(2).text == {"1": ["007", "=a"], "02": ["1.0"]}
    with pytest.raises(ValueError, match="number 0"):
        given.first(0)


def test_wrong_files_are_named(tmp_path):
    (tmp_path / "c.csv").write_text("id,answer\n1,2\n")
    with pytest.raises(ValueError, match="c.csv.*'text'"):
        Candidates.load(tmp_path / "c.csv")
    (tmp_path / "bad.jsonl").write_text('{"id": "1", "text": "2", "new": null, "old": 1}\n')
    assert Candidates.load(tmp_path / "bad.jsonl").new is None
    with pytest.raises(ValueError, match="c.xlsx"):
        Candidates(TEXTS, NEW, OLD).save(tmp_path / "c.xlsx")


def test_the_oracle_takes_the_best_and_asks_the_old_model_between_equals():
    made = Candidates(TEXTS, NEW, OLD)
    assert oracle(made, lambda one, text: float(text == "9")).text == ("9", "11")
    with pytest.raises(ValueError, match="old model's log-likelihoods"):
        oracle(Candidates(TEXTS, NEW, None), lambda one, text: 0.0)


# --- two models -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sides():
    """(new, old, questions): two random models of one tokenizer."""
    task = load_questions("arithmetic").limited(train=100, selection=5, test=6)
    tokenizer = byte_pairs([one.text for one in task.train], 270)
    new, old = (small_language_model(tokenizer, seed, 1, 32, 64).eval() for seed in (1, 2))
    for model in (new, old):  # sharper, so that drawing and dropping make a difference
        for name, weight in model.named_parameters():
            weight.data *= 20 if "proj" in name else 4 if "embed" in name else 1
    return (new, tokenizer), (old, tokenizer), task.test


def likelihood(side, question, text):
    """log p(text and its end | question), token by token."""
    model, tokenizer = side
    context = tokenizer(question.prompt)["input_ids"]
    whole = tokenizer(f"{question.prompt} {text}")["input_ids"] + [tokenizer.eos_token_id]
    with torch.no_grad():
        log_p = model(torch.tensor([whole])).logits[0].log_softmax(-1)
    return sum(float(log_p[at - 1, whole[at]]) for at in range(len(context), len(whole)))


@pytest.mark.parametrize("by", ["sum", "length"])
def test_scores_are_the_models_own(sides, by):
    new, old, questions = sides
    texts = {one.id: ["12", "4", "7777"][: 1 + place % 3] for place, one in enumerate(questions)}
    made = Reranker(new, old, by).scored(questions, texts, batch_size=4)
    for one in questions:
        for place, text in enumerate(texts[one.id]):
            for side, scores in ((new, made.new), (old, made.old)):
                count = len(side[1](f" {text}", add_special_tokens=False)["input_ids"]) + 1
                wanted = likelihood(side, one, text) / (count if by == "length" else 1)
                assert scores[one.id][place] == pytest.approx(wanted, rel=1e-3)


def test_a_silent_candidate_is_the_end_alone(sides):
    new, old, questions = sides
    made = Reranker(new, old).scored(questions[:1], {questions[0].id: [""]})
    model, tokenizer = old
    tokens = torch.tensor([tokenizer(questions[0].prompt)["input_ids"]])
    with torch.no_grad():
        log_p = model(tokens).logits[0, -1].log_softmax(-1)[tokenizer.eos_token_id]
    assert made.old[questions[0].id][0] == pytest.approx(float(log_p), rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_candidates_are_different_and_the_greedy_one_is_first(sides, kind):
    new, old, questions = sides
    proposal = Proposal(kind, 6, rate=0.5)
    made = Reranker(new, old).propose(questions, SHORT, proposal)
    again = Reranker(new, old).propose(questions, SHORT, proposal)
    best = [text.strip() for text in generate(*new, questions, SHORT)]
    assert made.text == again.text and [texts[0] for texts in made.text.values()] == best
    for texts in made.text.values():
        assert 1 <= len(texts) <= 6 and len(set(texts)) == len(texts)
        assert all(text == text.strip() for text in texts)
    assert any(len(texts) > 1 for texts in made.text.values())
    if kind != "beams":
        other = propose(*new, questions, SHORT, proposal._replace(seed=5))
        assert other != propose(*new, questions, SHORT, proposal)


def test_beams_at_weight_1_are_at_least_as_likely_as_the_greedy_answer(sides):
    new, old, questions = sides
    made = Reranker(new, old).propose(questions, SHORT, Proposal("beams", 6))
    found = rerank(made, weight=1.0)
    assert all(made.new[one][at] >= made.new[one][0] for one, at in zip(found.id, found.place))


def test_dropout_leaves_nothing_behind(sides):
    model, tokenizer = sides[0]
    tokens = torch.tensor([tokenizer("1 + 1 =")["input_ids"]])
    with torch.no_grad():
        before = model(tokens).logits
        with dropped(model, 0.5):
            assert not torch.equal(model(tokens).logits, before) and not model.training
        assert torch.equal(model(tokens).logits, before)
    with pytest.raises(ValueError, match="rate 1.0"), dropped(model, 1.0):
        pass
    with (
        pytest.raises(ValueError, match="dropout has no place"),
        dropped(torch.nn.Linear(2, 2), 0.1),
    ):
        pass


def test_the_class_answers_as_its_parts(sides):
    new, old, questions = sides
    reranker, proposal = Reranker(new, old), Proposal("beams", 4)
    made = reranker.propose(questions, SHORT, proposal)
    wanted = rerank(made, weight=0.3).by_id
    assert reranker.answer(questions, 0.3, SHORT, proposal) == [wanted[one.id] for one in questions]
    with pytest.raises(ValueError, match="by 'mean'"):
        Reranker(new, old, "mean")
    with pytest.raises(ValueError, match="no candidates for"):
        reranker.scored(questions, {})
    with pytest.raises(ValueError, match="kind 'best'"):
        reranker.propose(questions, SHORT, Proposal("best"))


@pytest.mark.parametrize("size", [2, 32])
def test_both_models_write_together_and_alone_at_the_ends(sides, size):
    new, old, questions = sides
    both = {
        weight: write_together(new, old, questions, weight, SHORT, batch_size=size)
        for weight in (0.0, 0.5, 1.0)
    }
    assert both[1.0] == generate(*new, questions, SHORT)
    assert both[0.0] == generate(*old, questions, SHORT)
    model, tokenizer = new
    first = Question("one", questions[0].prompt, "1")
    tokens = torch.tensor([tokenizer(first.prompt)["input_ids"]])
    with torch.no_grad():
        mixed = sum(side[0](tokens).logits[0, -1].softmax(-1) for side in (new, old))
    once = write_together(new, old, [first], 0.5, Generation((), 1))[0]
    assert once == tokenizer.decode([int(mixed.argmax())], skip_special_tokens=True)


def test_mixtures_need_one_vocabulary(sides):
    new, old, questions = sides
    other = byte_pairs(["other words altogether"], 275)
    with pytest.raises(ValueError, match="other vocabularies"):
        write_together(new, (old[0], other), questions, 0.5, SHORT)
    with pytest.raises(ValueError, match="weight 2"):
        write_together(new, old, questions, 2, SHORT)
    assert np.isfinite(
        Reranker(new, old).scored(questions[:1], {questions[0].id: ["1"]}).old[questions[0].id]
    ).all()
