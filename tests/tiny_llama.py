"""What the tests of adapters and of MUSCLE share: a Llama of one layer, rows of tokens with a
rule in them, and a recipe that trains in a blink.
"""

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from compatkit.language.adapters import AdapterRecipe
from compatkit.language.aligned_teachers import AlignedDistributions
from compatkit.language.models import TokenRows, byte_pairs, encode_examples
from compatkit.language.tasks import Question
from compatkit.language.teachers import keep_distributions

VOCABULARY = 40
RECIPE = AdapterRecipe(
    rank=4,
    alpha=8,
    learning_rate=1e-2,
    epochs=3,
    accumulation=1,
    batch_size=8,
    warmup_steps=0,
    precision="float32",
)


def llama(seed=0, vocabulary=VOCABULARY, layers=1, width=32):
    """A Llama of random weights."""
    torch.manual_seed(seed)
    sizes = dict(
        hidden_size=width,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=vocabulary, initializer_range=0.3, **sizes)
    ).eval()


def counting(count=40, seed=0, learned_from=None):
    """Rows of 4 to 8 tokens that count upwards, or downwards from an even number."""
    generator = np.random.default_rng(seed)
    starts, lengths = generator.integers(8, 30, count), generator.integers(4, 9, count)
    tokens = [
        (start + np.arange(length) * (1 if start % 2 else -1)).tolist()
        for start, length in zip(starts, lengths)
    ]
    return TokenRows(
        [f"{seed}-{n}" for n in range(count)],
        tokens,
        0,
        None if learned_from is None else [learned_from] * count,
    )


def batch_of(rows, positions=None):
    """A batch of some rows, by default all."""
    return rows.collate([rows[n] for n in (range(len(rows)) if positions is None else positions)])


def text_of(batch):
    """What a model takes of a batch."""
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


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
    model = llama(seed, len(old_tokenizer))
    kept = keep_distributions(model, old_rows, folder, old_tokenizer, k=k)
    return (
        AlignedDistributions(kept, old_rows, new_rows, TEXTS, old_tokenizer, new_tokenizer),
        new_rows,
        model,
        old_rows,
    )
