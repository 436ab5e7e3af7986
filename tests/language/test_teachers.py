"""Kept token distributions: what is kept, what it costs, whose it is, and what happens to
damaged and foreign folders.
"""

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_llama
import torch
from safetensors import safe_open

from compatkit.language import teachers as distributions
from compatkit.language.models import TokenRows, byte_pairs
from compatkit.language.teachers import (
    HiddenStates,
    KeptDistributions,
    bytes_of_distributions,
    check_plain_head,
    chunks,
    hidden_states,
    keep_distributions,
    learnt_counts,
    learnt_positions,
    model_fingerprint,
    tokenizer_fingerprint,
    top_tokens,
)


@pytest.fixture(scope="module")
def llama():
    return tiny_llama.llama()


def kept_directly(model, rows, positions, k):
    """Top tokens from the model's own logits."""
    batch = tiny_llama.batch_of(rows, positions)
    where, label = learnt_positions(batch["labels"])
    with torch.no_grad():
        logits = model(**tiny_llama.text_of(batch)).logits
    return top_tokens(logits.reshape(-1, logits.shape[-1])[where], label, k)


# --- what is kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", (0.5, 1.0, 2.0))
def test_top_and_rest_are_the_whole_distribution(temperature):
    torch.manual_seed(0)
    logits, label = 5 * torch.randn(20, 60), torch.randint(0, 60, (20,))
    top = top_tokens(logits, label, 7, temperature)
    p = torch.softmax(logits.double() / temperature, 1)
    torch.testing.assert_close(
        top.log_probability.double().exp(),
        p.sort(1, descending=True).values[:, :7],
        atol=1e-6,
        rtol=1e-5,
    )
    torch.testing.assert_close(
        top.log_rest.double().exp(),
        p.sort(1, descending=True).values[:, 7:].sum(1),
        atol=1e-6,
        rtol=1e-4,
    )
    torch.testing.assert_close(
        top.label_log_likelihood, torch.log_softmax(logits, 1)[torch.arange(20), label]
    )
    assert torch.equal(top.token[:, 0], logits.argmax(1))


def test_a_label_at_the_first_position_is_predicted_by_nobody():
    positions, label = learnt_positions(torch.tensor([[1, 2, -100], [3, -100, 4]]))
    assert positions.tolist() == [0, 4] and label.tolist() == [2, 4]


def test_masked_labels_are_named():
    with pytest.raises(ValueError, match="labels"):
        learnt_positions(torch.tensor([[5, -100, -100]]))
    with pytest.raises(ValueError, match="'b'"):
        learnt_counts(TokenRows(["a", "b"], [[1, 2], [3]], 0))


def test_chunks_cover_everything_once():
    for count, width in ((0, 10), (1, 10**9), (1000, 32_000), (131, 32_000)):
        found = [n for part in chunks(count, width) for n in range(count)[part]]
        assert found == list(range(count))


def test_hidden_states_make_the_models_logits(llama):
    batch = tiny_llama.batch_of(tiny_llama.counting(5))
    hidden = hidden_states(llama, batch)
    whole = llama(**tiny_llama.text_of(batch)).logits.reshape(-1, tiny_llama.VOCABULARY)
    torch.testing.assert_close(hidden.logits(torch.arange(len(whole))), whole)
    with_bias = HiddenStates(hidden.states, hidden.weight, torch.ones(tiny_llama.VOCABULARY))
    torch.testing.assert_close(with_bias.logits(torch.arange(len(whole))), whole + 1)


def test_a_model_that_changes_its_logits_after_the_head_is_refused():
    from transformers import Gemma2Config, Gemma2ForCausalLM

    sizes = dict(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
    )
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(
        Gemma2Config(vocab_size=30, final_logit_softcapping=0.5, initializer_range=0.5, **sizes)
    ).eval()
    with pytest.raises(ValueError, match="gemma2"):
        check_plain_head(model)
    check_plain_head(tiny_llama.llama())


# --- whose they are -------------------------------------------------------------------------------


def test_fingerprints_are_those_that_kept_distributions_name():
    weights = {"b": torch.arange(6.0).reshape(2, 3).T, "a": torch.tensor(1.5).bfloat16()}
    model = SimpleNamespace(state_dict=lambda: weights)
    assert model_fingerprint(model) == "879b643bbd9f287e"


def test_a_models_fingerprint_is_that_of_its_weights(llama):
    assert model_fingerprint(llama) == model_fingerprint(tiny_llama.llama())
    other = tiny_llama.llama()
    with torch.no_grad():
        other.lm_head.weight[0, 0] += 1e-6
    assert (
        model_fingerprint(other)
        != model_fingerprint(llama)
        != model_fingerprint(tiny_llama.llama().bfloat16())
    )


def test_a_tokenizers_fingerprint_forgets_truncation_only():
    first, second = byte_pairs(["a b c"] * 3, 262), byte_pairs(["a b c"] * 3, 262)
    before = tokenizer_fingerprint(first)
    first("a b", truncation=True, max_length=2, padding="max_length")
    assert tokenizer_fingerprint(first) == before == tokenizer_fingerprint(second)
    assert tokenizer_fingerprint(byte_pairs(["ab ab ab"] * 9, 262)) != before


# --- on disk --------------------------------------------------------------------------------------


def test_kept_is_what_the_model_said(llama, tmp_path):
    rows = tiny_llama.counting(23, learned_from=2)
    kept = keep_distributions(llama, rows, tmp_path, k=5, shard=7, batch_size=3)
    assert (
        len(kept) == 23
        and kept.tokens == sum(learnt_counts(rows))
        and len(list(tmp_path.glob("shard-*"))) == 4
    )
    for positions in ([0], [22, 0, 7, 6], range(23)):
        found, wanted = kept.of(positions), kept_directly(llama, rows, positions, 5)
        assert torch.equal(found.token, wanted.token)
        torch.testing.assert_close(
            found.log_probability, wanted.log_probability, atol=4e-3, rtol=1e-3
        )  # half precision
        torch.testing.assert_close(found.log_rest, wanted.log_rest, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            found.label_log_likelihood, wanted.label_log_likelihood, atol=1e-4, rtol=1e-4
        )


def test_no_such_example(llama, tmp_path):
    kept = keep_distributions(llama, tiny_llama.counting(3), tmp_path, k=2)
    for wrong in (3, -1):
        with pytest.raises(ValueError, match=f"no example {wrong}: there are 3"):
            kept.of([wrong])


def test_bytes_a_token(tmp_path):
    wide = tiny_llama.llama(vocabulary=65_536)
    rows = TokenRows(["a"], [np.random.default_rng(0).integers(0, 65_536, 60).tolist()], 0)
    kept = keep_distributions(wide, rows, tmp_path / "narrow")
    content = sum(path.stat().st_size for path in (tmp_path / "narrow").glob("shard-*"))
    assert kept.bytes_per_token == content / 59 and 264 <= kept.bytes_per_token < 400
    assert torch.equal(kept.of([0]).token, kept_directly(wide, rows, [0], 64).token)
    wider = tiny_llama.llama(vocabulary=65_600)
    high = keep_distributions(wider, rows, tmp_path / "wide", k=8)
    assert torch.equal(high.of([0]).token, kept_directly(wider, rows, [0], 8).token)
    for one, told in (
        (kept, bytes_of_distributions(65_536, 59)),
        (high, bytes_of_distributions(65_600, 59, k=8)),
    ):
        with safe_open(str(one.folder / "shard-00000.safetensors"), "numpy") as file:
            assert told == sum(file.get_tensor(name).nbytes for name in file.keys())


def test_what_is_finished_is_not_asked_again(llama, tmp_path, monkeypatch):
    rows = tiny_llama.counting(20)
    asked, ask = [], distributions._ask
    monkeypatch.setattr(
        distributions,
        "_ask",
        lambda model, rows, counts, part, *others: (
            asked.append(part),
            ask(model, rows, counts, part, *others),
        )[1],
    )
    first = keep_distributions(llama, rows, tmp_path, k=4, shard=5).of(range(20))
    assert len(asked) == 4
    again = keep_distributions(llama, rows, tmp_path, k=4, shard=5).of(range(20))
    assert len(asked) == 4 and all(torch.equal(one, two) for one, two in zip(first[:4], again[:4]))


class Killed(Exception):
    pass


def test_a_killed_writing_goes_on_where_it_stopped(llama, tmp_path, monkeypatch):
    rows, asked, ask = tiny_llama.counting(20), [], distributions._ask

    def dies(model, rows, counts, part, *others):
        asked.append(list(part))
        if len(asked) == 3:
            raise Killed
        return ask(model, rows, counts, part, *others)

    monkeypatch.setattr(distributions, "_ask", dies)
    with pytest.raises(Killed):
        keep_distributions(llama, rows, tmp_path, k=4, shard=5)
    with pytest.raises(ValueError, match="00002"):
        KeptDistributions(tmp_path)
    kept = keep_distributions(llama, rows, tmp_path, k=4, shard=5)
    assert [part[0] for part in asked] == [0, 5, 10, 10, 15]
    assert torch.equal(kept.of(range(20)).token, kept_directly(llama, rows, range(20), 4).token)


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-3])


def turn_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", (cut_off, turn_a_bit, os.remove))
def test_a_damaged_shard_is_made_again(llama, tmp_path, damage):
    rows = tiny_llama.counting(10)
    before = keep_distributions(llama, rows, tmp_path, k=4, shard=5).of(range(10))
    damage(tmp_path / "shard-00001.safetensors")
    if (
        damage is not turn_a_bit
    ):  # a bit that turned over is noticed by the hash only, which opening does not read
        with pytest.raises(ValueError, match="unfinished or damaged"):
            KeptDistributions(tmp_path)
    after = keep_distributions(llama, rows, tmp_path, k=4, shard=5).of(range(10))
    assert all(torch.equal(one, two) for one, two in zip(before[:4], after[:4]))


@pytest.mark.parametrize(
    "content", ("", "{", "[]", '{"format": 1}', '{"format": 0, "identity": {}, "shards": {}}')
)
def test_an_index_that_cannot_be_read_is_no_index(llama, tmp_path, content):
    rows = tiny_llama.counting(6)
    keep_distributions(llama, rows, tmp_path, k=4)
    (tmp_path / "index.json").write_text(content)
    with pytest.raises(FileNotFoundError, match="no readable index.json"):
        KeptDistributions(tmp_path)
    assert len(keep_distributions(llama, rows, tmp_path, k=4)) == 6


def test_another_owners_folder_is_refused_by_name(llama, tmp_path):
    rows, tokenizer = tiny_llama.counting(6), byte_pairs(["a b"] * 3, 262)
    keep_distributions(llama, rows, tmp_path, tokenizer, k=4)
    for model, data, words, k, named in (
        (tiny_llama.llama(1), rows, tokenizer, 4, "of another model;"),
        (llama, tiny_llama.counting(6, learned_from=1), tokenizer, 4, "of other data"),
        (llama, rows, byte_pairs(["ab ab"] * 9, 262), 4, "of another tokenizer;"),
        (llama, rows, tokenizer, 5, r"another k \(4, wanted 5\)"),
    ):
        with pytest.raises(ValueError, match=named):
            keep_distributions(model, data, tmp_path, words, k=k)
    with pytest.raises(ValueError, match="of another model"):
        KeptDistributions(tmp_path, {"model": "f" * 16})
    assert len(KeptDistributions(tmp_path, {"k": 4})) == 6


@pytest.mark.parametrize("wrong", ({"k": 0}, {"temperature": 0}, {"temperature": float("nan")}))
def test_settings_that_mean_nothing_are_refused(llama, tmp_path, wrong):
    with pytest.raises(ValueError, match="k .*temperature"):
        keep_distributions(llama, tiny_llama.counting(3), tmp_path, **wrong)


def test_no_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder .*nowhere"):
        KeptDistributions(tmp_path / "nowhere")


def test_nothing_is_pickled(llama, tmp_path):
    keep_distributions(llama, tiny_llama.counting(6), tmp_path, k=4)
    assert {path.suffix for path in tmp_path.iterdir() if not path.name.startswith(".")} == {
        ".safetensors",
        ".json",
    }
    assert json.loads((tmp_path / "index.json").read_text())["identity"]["k"] == 4
