"""A Hugging Face cache without a network: tiny random weights under the papers' real ids, and
made-up data sets with the oddities of the real ones.

`python tests/make_hub_cache.py FOLDER`, then HF_HOME=FOLDER HF_HUB_OFFLINE=1 (and
COMPATKIT_DATA=FOLDER/folders for the image sets that are
folders of class folders). The layout, the file names, the branches, the columns, the hidden test
labels, BERT's old names of its
normalizations (gamma, beta) and tokenizer files without a class are the hub's.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Features, Value
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForPreTraining,
    ElectraConfig,
    ElectraForPreTraining,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
    RobertaConfig,
    RobertaForMaskedLM,
)

from compatkit.language.tasks import LANGUAGE_TASKS
from compatkit.training.models import REVISIONS, train_tokenizer
from compatkit.training.tasks import TASKS

WORDS = (
    "good bad film plot actor voice ending song dull bright slow quick long short warm cold "
    "story scene moral joke".split()
)
ENCODERS = {  # id → (configuration, model, layers)
    "google-bert/bert-base-uncased": (BertConfig, BertForPreTraining, 1),
    "google-bert/bert-large-uncased": (BertConfig, BertForPreTraining, 2),
    "google/electra-base-discriminator": (ElectraConfig, ElectraForPreTraining, 1),
    "FacebookAI/roberta-base": (RobertaConfig, RobertaForMaskedLM, 1),
}
LANGUAGE_MODELS = {  # id → (configuration, model, width, files of weights, their kind)
    "huggyllama/llama-7b": (LlamaConfig, LlamaForCausalLM, 32, 2, "safetensors"),
    "meta-llama/Llama-2-7b-hf": (LlamaConfig, LlamaForCausalLM, 48, 2, "safetensors"),
    "microsoft/phi-1": (PhiConfig, PhiForCausalLM, 32, 1, "safetensors"),
    "microsoft/phi-1_5": (PhiConfig, PhiForCausalLM, 32, 1, "safetensors"),
    "microsoft/phi-2": (PhiConfig, PhiForCausalLM, 48, 2, "safetensors"),
    # no safetensors, and a tokenizer that only sentencepiece reads
    "lmsys/vicuna-7b-v1.3": (LlamaConfig, LlamaForCausalLM, 32, 2, "bin"),
    "lmsys/vicuna-7b-v1.5": (LlamaConfig, LlamaForCausalLM, 48, 2, "bin"),
    "meta-llama/Meta-Llama-3-8B": (LlamaConfig, LlamaForCausalLM, 32, 4, "safetensors"),
}
RESNETS = {
    f"microsoft/resnet-{depth}": "bottleneck" if depth >= 50 or depth == 26 else "basic"
    for depth in (18, 26, 34, 50, 101, 152)
}
ANY_COMMIT = "0123456789abcdef0123456789abcdef01234567"
# id → (reference of a request to its owners, commit): safetensors stand there, and a .bin alone on
# main
PROPOSED = {
    "google/electra-base-discriminator": ("refs/pr/4", "622038d" + "0" * 33),
}
GLUE = {  # configuration → (text columns, class names, whether the test labels are hidden)
    "mrpc": (("sentence1", "sentence2"), ("not_equivalent", "equivalent"), False),
    "sst2": (("sentence",), ("negative", "positive"), True),
    "qnli": (("question", "sentence"), ("entailment", "not_entailment"), True),
}
INTENTS = tuple(f"intent_{number}" for number in range(6))
# a quarter of the test split must be enough to train a head on (gated fusion, table 5), and the
# training split for a map from 64 dimensions (embeddings)
SIZES = {"train": 96, "validation": 32, "test": 96}
COMMITS = {  # of the data sets that are read at one
    source.hub: source.revision
    for source in (*TASKS.values(), *LANGUAGE_TASKS.values())
    if source.hub and len(source.revision) == 40
}


def snapshot(folder: Path, kind: str, name: str, branch: str = "main", commit: str = "") -> Path:
    """The empty folder of one revision of a repository, with the reference that points to it."""
    pinned = REVISIONS.get(name, ("",))[0] if kind == "model" else COMMITS.get(name, "")
    commit = commit or (pinned if len(pinned) == 40 else ANY_COMMIT)
    repository = folder / "hub" / f"{kind}s--{name.replace('/', '--')}"
    (repository / "refs" / branch).parent.mkdir(parents=True, exist_ok=True)
    (repository / "refs" / branch).write_text(commit)
    (repository / "snapshots" / commit).mkdir(parents=True)
    return repository / "snapshots" / commit


def sentences(count: int, seed: int) -> list:
    """Sentences of three to nine words."""
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, generator.integers(3, 10))) for _ in range(count)]


# --- models ---------------------------------------------------------------------------------------


def word_pieces(target: Path) -> tuple:
    """BERT's tokenizer files: (entries, the padding's number)."""
    tokenizer = train_tokenizer(sentences(200, 0), 200)
    tokenizer.save_pretrained(target)
    (target / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": True, "model_max_length": 512})
    )
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    (target / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in vocabulary))
    return len(tokenizer), tokenizer.pad_token_id


def byte_pairs(target: Path, special: list) -> tuple:
    """The tokenizer files of RoBERTa, and of language models: (entries, the padding's number)."""
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        sentences(200, 0), vocab_size=320, special_tokens=special, show_progress=False
    )
    tokenizer.save_model(str(target))
    tokenizer.save(str(target / "tokenizer.json"))
    named = (
        {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
        if "<mask>" not in special
        else {}
    )
    (target / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 512} | named))
    return tokenizer.get_vocab_size(), tokenizer.token_to_id("<pad>")


def write_model(target: Path, model, shards: int = 1, kind: str = "safetensors") -> None:
    """config.json and the weights; without the heads that the hub's files share with the
    embeddings, and under the names that BERT's have there. Several shards have an index.
    """
    model.config.architectures = [type(model).__name__]
    model.config.to_json_file(target / "config.json")
    weights = {
        key: value.clone().contiguous()
        for key, value in model.state_dict().items()
        if "decoder" not in key
    }
    if isinstance(model, BertForPreTraining):
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        weights = {
            next((key.replace(*pair) for pair in old.items() if key.endswith(pair[0])), key): value
            for key, value in weights.items()
        }
    stem, names = {"safetensors": "model", "bin": "pytorch_model"}[kind], sorted(weights)
    parts = [names[number::shards] for number in range(shards)]
    index = {}
    for number, part in enumerate(parts, 1):
        file = f"{stem}-{number:05d}-of-{shards:05d}.{kind}" if shards > 1 else f"{stem}.{kind}"
        content = {name: weights[name] for name in part}
        if kind == "bin":
            torch.save(content, target / file)
        else:
            save_file(content, target / file, metadata={"format": "pt"})
        index |= dict.fromkeys(part, file)
    if shards > 1:
        about = {"metadata": {"total_size": 0}, "weight_map": index}
        (target / f"{stem}.{kind}.index.json").write_text(json.dumps(about))


def make_encoder(target: Path, name: str) -> None:
    """A pretrained encoder's files."""
    config_class, model_class, layers = ENCODERS[name]
    roberta = config_class is RobertaConfig
    size, pad = (
        byte_pairs(target, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
        if roberta
        else word_pieces(target)
    )
    config = config_class(
        vocab_size=size,
        hidden_size=32,
        embedding_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=64,
        # RoBERTa counts positions from the padding's number on
        max_position_embeddings=128 + (pad + 1) * roberta,
        pad_token_id=pad,
    )
    torch.manual_seed(0)
    write_model(target, model_class(config))


def sentence_pieces(target: Path) -> tuple:
    """Vicuna's tokenizer files, tokenizer.model without tokenizer.json: (entries, its first and
    last token's numbers).
    """
    from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

    with open(target / "tokenizer.model", "wb") as file:
        SentencePieceTrainer.train(
            sentence_iterator=iter(sentences(200, 0)),
            model_writer=file,
            model_type="bpe",
            vocab_size=320,
            byte_fallback=True,
            hard_vocab_limit=False,
            minloglevel=2,
        )
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    own = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False}
    (target / "special_tokens_map.json").write_text(json.dumps(special))
    (target / "tokenizer_config.json").write_text(
        json.dumps(special | own | {"model_max_length": 2048})
    )
    pieces = SentencePieceProcessor(model_file=str(target / "tokenizer.model"))
    return len(pieces), pieces.bos_id(), pieces.eos_id()


def make_language_model(target: Path, name: str) -> None:
    """A language model's files.

    Llama 3 has another tokenizer than its forerunners, and none of them has a padding token.
    """
    config_class, model_class, width, shards, kind = LANGUAGE_MODELS[name]
    if kind == "bin":
        size, first, last = sentence_pieces(target)
    else:
        more = ["good", "bad"] if "Llama-3" in name else []
        size, _ = byte_pairs(target, ["<s>", "</s>", "<unk>", *more])
        first, last = 0, 1
        if config_class is LlamaConfig:  # Llamas have tokenizer.json alone
            for file in ("vocab.json", "merges.txt"):
                (target / file).unlink()
    (target / "generation_config.json").write_text(
        json.dumps({"bos_token_id": first, "eos_token_id": last})
    )
    config = config_class(
        vocab_size=size,
        hidden_size=width,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=2048,
        bos_token_id=first,
        eos_token_id=last,
    )
    torch.manual_seed(0)
    write_model(target, model_class(config), shards, kind)


def make_resnet(target: Path, name: str) -> None:
    """A ResNet's files, trained for four classes."""
    sizes = [16, 16, 32, 32] if RESNETS[name] == "bottleneck" else [8, 8, 16, 16]
    torch.manual_seed(0)
    config = ResNetConfig(
        embedding_size=8,
        hidden_sizes=sizes,
        depths=[1, 1, 1, 1],
        layer_type=RESNETS[name],
        num_labels=4,
    )
    write_model(target, ResNetForImageClassification(config))
    (target / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]})
    )


# --- data -----------------------------------------------------------------------------------------


def oddly(text: str, number: int, *marks: str) -> str | None:
    """The text as every eighth row of the hub's sets may hold it, with one of the marks: "{} " for
    a trailing blank, "" for a text that is None.
    """
    return marks[number // 8 % len(marks)].format(text) or None if number % 8 == 7 else text


def write_table(path: Path, columns: dict, features: dict) -> None:
    """One Parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_dict(columns, features=Features(features)).to_parquet(path)


def make_glue(target: Path) -> None:
    """nyu-mll/glue with tables of random words, where the first word decides the class."""
    for name, (columns, classes, hidden) in GLUE.items():
        features = {column: Value("string") for column in columns} | {
            "label": ClassLabel(names=classes),
            "idx": Value("int32"),
        }
        for seed, (split, size) in enumerate(SIZES.items()):
            texts = {
                column: sentences(size, 10 * seed + place) for place, column in enumerate(columns)
            }
            label = [WORDS.index(text.split()[0]) % 2 for text in texts[columns[0]]]
            label = [-1] * size if hidden and split == "test" else label
            if name == "sst2":  # a blank ends every sentence that has a public label
                texts["sentence"] = [
                    f"{one} " if split != "test" else one for one in texts["sentence"]
                ]
            else:
                texts[columns[1]] = [
                    oddly(one, row, " {}", "{} caf\u00e9", "")
                    for row, one in enumerate(texts[columns[1]])
                ]
            # MRPC's own numbers leave some out
            numbers = [row + row // 3 * (name == "mrpc") for row in range(size)]
            write_table(
                target / name / f"{split}-00000-of-00001.parquet",
                texts | {"label": label, "idx": numbers},
                features,
            )


def make_intents(folder: Path) -> None:
    """MASSIVE, Banking77 and AG News: the first word decides among six intents, four for news.

    Some texts begin or end in a blank or a line end, or hold a backslash; MASSIVE has more columns
    than are read, the intent before the text, and rows that are not in the order of their ids.
    """
    for repository, config, text, label, converted in (
        ("AmazonScience/massive", "en-US", "utt", "intent", True),
        ("PolyAI/banking77", "default", "text", "label", True),
        ("fancyzhx/ag_news", "data", "text", "label", False),
    ):
        target, classes = (
            snapshot(folder, "dataset", repository),
            INTENTS[: 4 if "news" in repository else 6],
        )
        for seed, split in enumerate(SIZES if "massive" in repository else ("train", "test")):
            texts = sentences(SIZES[split], 50 + seed)
            answers = [WORDS.index(one.split()[0]) % len(classes) for one in texts]
            marks = ("\n{}", "{} ", "{} caf\u00e9", " {}\\\\n", "")
            given = {text: [oddly(one, n, *marks) for n, one in enumerate(texts)], label: answers}
            if "massive" in repository:
                given = {
                    "id": [str(7 * n + seed) for n in range(len(texts))][::-1],
                    "locale": ["en-US"] * len(texts),
                    "partition": [split.replace("validation", "dev")] * len(texts),
                    label: answers,
                    text: texts,
                    "annot_utt": [f"[place : {one}]" for one in texts],
                }
            features = {
                name: ClassLabel(names=classes) if name == label else Value("string")
                for name in given
            }
            place = (
                f"{config}/{split}/0000.parquet"
                if converted
                else f"{config}/{split}-00000-of-00001.parquet"
            )
            write_table(target / place, given, features)


def make_added_data(folder: Path) -> None:
    """The authors' data update of MASSIVE, which is on no hub: every old example is among the
    updated ones.
    """
    texts = sentences(192, 60)
    labels = [WORDS.index(one.split()[0]) % len(INTENTS) for one in texts]
    features = {"id": Value("string"), "text": Value("string"), "label": ClassLabel(names=INTENTS)}
    parts = {
        "train_old": (0, 64),
        "train_updated": (0, 96),
        "validation_old": (96, 128),
        "validation_updated": (96, 144),
        "test": (144, 192),
    }
    for name, (start, end) in parts.items():
        rows = {
            "id": [str(number) for number in range(start, end)],
            "text": texts[start:end],
            "label": labels[start:end],
        }
        write_table(folder / "massive_en_adddata" / f"{name}.parquet", rows, features)


def question(name: str, split: str, number: int) -> dict:
    """A row of a language task, its columns in the hub's order; the labels of PIQA's and
    HellaSwag's test are hidden.
    """
    first, *others = sentences(5, seed_of(name, split, number))
    hidden = split == "test"
    odd = oddly(first, number, "{} ", "{} caf\u00e9", "{}  film")
    return {
        "piqa": {
            "goal": odd,
            "sol1": oddly(others[0], number + 1, "{} ", " {}", "don\u2019t {}"),
            "sol2": others[1],
            "label": -1 if hidden else number % 2,
        },
        "hellaswag": _hellaswag(number, odd, others) | {"label": "" if hidden else str(number % 4)},
        "gsm8k": {
            "question": oddly(f"{split}: {number} and {number}?", number, "{}  ", "\u20ac{}"),
            "answer": f"It is\n<<{number}+{number}={2 * number}>> so\n#### {2 * number}",
        },
        "samsum": {
            "id": f"1{seed_of(name, split, number)}" + "-1" * (number % 2),
            "dialogue": _dialogue(split, number),
            "summary": oddly(others[1], number + 1, "{} ", " {}"),
        },
    }[name]


def _dialogue(split: str, number: int) -> str | None:
    """One that is no text, one that stands in train and test."""
    if (split, number) == ("train", 5):
        return None
    if (split, number) == ("train", 9):
        return _dialogue("test", 0)
    first, second, *_ = sentences(5, seed_of("samsum", split, number))
    text = f"Ann: {first}\r\nBob: {second}"
    return oddly(text, number, "{} ", "\r\n{}", "{} :\\")


def _hellaswag(number: int, first: str, endings: list) -> dict:
    """A row without its label: a caption of a film, or an article with WikiHow's marks, which has
    no second half.
    """
    film = number % 2
    start = f"{first}." if film else f"[header] How to {first} [title] {first}. [step]"
    then = "then the Man from Rome" if film else "" if number % 4 else "In Winter [substeps] Go"
    return {
        "ind": 3 * number,
        "activity_label": "Film" if film else "Home and Garden",
        "ctx_a": start,
        "ctx_b": then,
        "ctx": f"{start} {then}".strip(),
        "endings": [oddly(one, number, "{} ", "{} [step] Go on.", "[title] {}") for one in endings],
        "source_id": f"activitynet~v_{number}" if film else f"wikihow~{number}",
        "split": "train",
        "split_type": "indomain",
    }


def seed_of(name: str, split: str, number: int) -> int:
    """A seed that is the same in every process."""
    return sum(map(ord, name + split)) * 1000 + number


def make_questions(folder: Path) -> None:
    """PIQA, HellaSwag, GSM8K and SAMSum."""
    for name, source in LANGUAGE_TASKS.items():
        converted = name in ("piqa", "samsum")  # a script or another format stands on main
        branch = source.revision if source.revision.startswith("refs/") else "main"
        target = snapshot(folder, "dataset", source.hub, branch)
        for split, size in SIZES.items():
            if name == "gsm8k" and split == "validation":
                continue
            rows = [question(name, split, number) for number in range(size)]
            place = (
                f"{source.config}/{split}/0000.parquet"
                if converted
                else f"{source.config}/{split}-00000-of-00001.parquet"
            )
            (target / place).parent.mkdir(parents=True, exist_ok=True)
            Dataset.from_list(rows).to_parquet(target / place)


def make_images(folder: Path) -> None:
    """ImageNet and iNaturalist as folders of class folders; the class decides the brightness.

    A few are grey, four colours of a printer, or a PNG under another name, as ImageNet holds them.
    """
    generator = np.random.default_rng(0)
    for name in ("imagenet", "inaturalist"):
        for split, count in {"train": 10, "val": 2}.items():
            for number in range(4):
                place = folder / name / split / f"n0{number}"
                place.mkdir(parents=True)
                for image in range(count):
                    pixels = generator.integers(0, 120, (40, 48, 3)) + 30 * number
                    kind = ("RGB", "L", "CMYK")[image % 3 if image > 6 else 0]
                    form = "PNG" if (image, number) == (6, 0) else "JPEG"
                    made = Image.fromarray(pixels.astype(np.uint8)).convert(kind)
                    made.save(place / f"{image}.JPEG", form)


def make_public_answers(folder: Path) -> None:
    """The logits of two models of the digits, as somebody may publish them."""
    from compatkit.predictions import Predictions
    from compatkit.training.tasks import load_task

    digits, generator = load_task("digits"), np.random.default_rng(0)
    folder.mkdir(parents=True)
    for name, noise in {"smaller": 0.5, "larger": 0.3}.items():
        for split in ("train", "selection", "test"):
            rows = getattr(digits, split)
            label = np.asarray(rows["label"][:])
            logits = np.eye(10)[label] + generator.normal(0, noise, (len(label), 10))
            answers = Predictions(rows["id"][:], label=label, logits=logits.astype(np.float16))
            answers.save(folder / f"{name}-{split}.parquet")


MAKE = {
    **dict.fromkeys(ENCODERS, make_encoder),
    **dict.fromkeys(LANGUAGE_MODELS, make_language_model),
    **dict.fromkeys(RESNETS, make_resnet),
}


def main(folder, models=tuple(ENCODERS), data=("glue",)) -> None:
    """Fill a folder that is to be HF_HOME with some of the models (ids), and of the data: glue,
    intents, questions, images.
    """
    from datasets import disable_progress_bars

    disable_progress_bars()
    folder = Path(folder)
    for name in models:
        MAKE[name](main_branch := snapshot(folder, "model", name), name)
        if name in PROPOSED:
            shutil.copytree(
                main_branch, snapshot(folder, "model", name, *PROPOSED[name]), dirs_exist_ok=True
            )
            weights = main_branch / "model.safetensors"
            torch.save(load_file(weights), main_branch / "pytorch_model.bin")
            weights.unlink()
    if "glue" in data:
        make_glue(snapshot(folder, "dataset", "nyu-mll/glue"))
    if "intents" in data:
        make_intents(folder)
        make_added_data(folder / "folders")
    if "questions" in data:
        make_questions(folder)
    if "images" in data:
        make_images(folder / "folders")
        make_public_answers(folder / "folders" / "digits_models")


if __name__ == "__main__":
    main(sys.argv[1], tuple(MAKE), ("glue", "intents", "questions", "images"))
