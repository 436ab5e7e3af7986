"""What an old model said, told at the tokens of another tokenizer."""

from types import SimpleNamespace

import pytest
import tiny_llama
import torch

from compatkit.language.aligned_teachers import AlignedDistributions
from compatkit.language.models import encode_examples
from compatkit.language.teachers import keep_distributions


def test_a_units_likelihood_is_the_old_models_of_its_text(tmp_path):
    old_tokenizer, new_tokenizer = tiny_llama.pair_of_tokenizers()
    targets, rows, model, old_rows = tiny_llama.aligned(old_tokenizer, new_tokenizer, tmp_path)
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
    targets, _, _, old_rows = tiny_llama.aligned(*tiny_llama.pair_of_tokenizers(), tmp_path)
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
    old_tokenizer, new_tokenizer = tiny_llama.pair_of_tokenizers()
    targets, new_rows, model, old_rows = tiny_llama.aligned(old_tokenizer, new_tokenizer, tmp_path)
    with pytest.raises(ValueError, match="same examples"):
        AlignedDistributions(
            targets.kept, old_rows, new_rows, tiny_llama.TEXTS[:-1], old_tokenizer, new_tokenizer
        )
    with pytest.raises(ValueError, match="of its text"):
        AlignedDistributions(
            targets.kept, old_rows, new_rows, tiny_llama.TEXTS[::-1], old_tokenizer, new_tokenizer
        )
    answers = encode_examples(tiny_llama.QUESTIONS, old_tokenizer, learn="answer")
    part = keep_distributions(model, answers, tmp_path / "answers", k=4)
    with pytest.raises(ValueError, match="all tokens of the old rows"):
        AlignedDistributions(
            part, answers, new_rows, tiny_llama.TEXTS, old_tokenizer, new_tokenizer
        )
