"""A Hugging Face cache without a network: tiny random weights under the paper's real ids, and made-up GLUE tables.

`python tests/make_hub_cache.py FOLDER`, then HF_HOME=FOLDER HF_HUB_OFFLINE=1. The layout, the file names, the columns, the hidden
test labels of SST-2 and QNLI, BERT's old names of its normalizations (gamma, beta) and tokenizer files without a class are the hub's.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Features, Value
from safetensors.torch import save_file
from transformers import BertConfig, BertForPreTraining, ElectraConfig, ElectraForPreTraining

from compatkit.models import train_tokenizer

WORDS = "good bad film plot actor voice ending song dull bright slow quick long short warm cold story scene moral joke".split()
MODELS = {  # id → (configuration, model, layers)
    "google-bert/bert-base-uncased": (BertConfig, BertForPreTraining, 1),
    "google-bert/bert-large-uncased": (BertConfig, BertForPreTraining, 2),
    "google/electra-base-discriminator": (ElectraConfig, ElectraForPreTraining, 1),
}
GLUE = {  # configuration → (text columns, class names, whether the test labels are hidden)
    "mrpc": (("sentence1", "sentence2"), ("not_equivalent", "equivalent"), False),
    "sst2": (("sentence",), ("negative", "positive"), True),
    "qnli": (("question", "sentence"), ("entailment", "not_entailment"), True),
}
SIZES = {"train": 96, "validation": 48, "test": 48}


def snapshot(folder: Path, kind: str, name: str) -> Path:
    "The empty folder of a repository's only revision, with the reference that points to it."
    sha = "0123456789abcdef0123456789abcdef01234567"
    repository = folder / "hub" / f"{kind}s--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(sha)
    (repository / "snapshots" / sha).mkdir(parents=True)
    return repository / "snapshots" / sha


def sentences(count: int, seed: int) -> list:
    "Sentences of three to nine words."
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, generator.integers(3, 10))) for _ in range(count)]


def make_model(target: Path, name: str) -> None:
    "A pretrained model's files, as the hub has them."
    config_class, model_class, layers = MODELS[name]
    tokenizer = train_tokenizer(sentences(200, 0), 200)
    tokenizer.save_pretrained(target)
    (target / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "model_max_length": 512}))
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    (target / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in vocabulary))
    config = config_class(
        vocab_size=len(tokenizer), hidden_size=32, embedding_size=32, num_hidden_layers=layers, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=128, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    model = model_class(config)
    config.architectures = [model_class.__name__]
    config.to_json_file(target / "config.json")
    weights = {key: value.clone().contiguous() for key, value in model.state_dict().items() if "predictions.decoder" not in key}
    if model_class is BertForPreTraining:
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        weights = {next((key.replace(*pair) for pair in old.items() if key.endswith(pair[0])), key): value for key, value in weights.items()}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})


def make_data(target: Path) -> None:
    "nyu-mll/glue with tables of random words, where the first word decides the class."
    for name, (columns, classes, hidden) in GLUE.items():
        (target / name).mkdir()
        features = Features({column: Value("string") for column in columns} | {"label": ClassLabel(names=classes), "idx": Value("int32")})
        for seed, (split, size) in enumerate(SIZES.items()):
            texts = {column: sentences(size, 10 * seed + place) for place, column in enumerate(columns)}
            label = [WORDS.index(text.split()[0]) % 2 for text in texts[columns[0]]]
            label = [-1] * size if hidden and split == "test" else label
            table = Dataset.from_dict(texts | {"label": label, "idx": list(range(size))}, features=features)
            table.to_parquet(target / name / f"{split}-00000-of-00001.parquet")


def main(folder, models=tuple(MODELS)) -> None:
    "Fill a folder that is to be HF_HOME; without a model whose id is left out."
    from datasets import disable_progress_bars

    disable_progress_bars()
    for name in models:
        make_model(snapshot(Path(folder), "model", name), name)
    make_data(snapshot(Path(folder), "dataset", "nyu-mll/glue"))


if __name__ == "__main__":
    main(*sys.argv[1:])
