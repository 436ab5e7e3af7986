"""What several test files share: tasks of made-up sentences and pictures, models that train in a
blink, and processes that start fast.
"""

import multiprocessing
import os
import socket
from functools import lru_cache

import numpy as np
import torch
from datasets import Dataset, Image

from compatkit.experiments.models.recipes import Recipe
from compatkit.predictions import Predictions
from compatkit.training.loop import Treatment, encode, fine_tune
from compatkit.training.models import small_classifier
from compatkit.training.tasks import Task

WORDS = tuple(
    f"{start}{end}"
    for start in ("ba", "de", "ki", "lo", "mu", "ra", "ti", "zo")
    for end in ("bi", "da", "ko", "ne", "su")
)
CLASSES = ("first", "second", "third")
RECIPE = Recipe(
    layers=1,
    width=32,
    vocabulary=150,
    max_length=16,
    epochs=2,
    learning_rate=3e-3,
    batch_size=8,
    precision="float32",
)
IMAGE_RECIPE = Recipe(
    model="resnet",
    stem=4,
    widths=(4, 8),
    depths=(1, 1),
    enlarge=2,
    epochs=2,
    learning_rate=1e-2,
    batch_size=8,
    precision="float32",
)

FAST = {
    "num_train_epochs": 2,
    "learning_rate": 3e-3,
    "per_device_train_batch_size": 8,
    "precision": "float32",
    "progress": False,
}


def rows(count, seed, prefix, classes=3):
    """Sentences of two to eight words; the first word decides the class, most of the time."""
    generator = np.random.default_rng(seed)
    texts = list(
        dict.fromkeys(
            " ".join(generator.choice(WORDS, generator.integers(2, 9))) for _ in range(2 * count)
        )
    )[:count]
    label = [
        WORDS.index(text.split()[0]) % classes
        if generator.random() < 0.85
        else int(generator.integers(classes))
        for text in texts
    ]
    return Dataset.from_dict(
        {"id": [f"{prefix}-{n}" for n in range(count)], "label": label, "text": texts}
    )


@lru_cache(maxsize=8)
def task(train=32, seed=0, test=24):
    """A task of its own name, so that nothing is mistaken for a real one."""
    parts = (
        rows(train, seed, "train"),
        rows(test, seed + 1, "validation"),
        rows(test, seed + 2, "test"),
    )
    return Task("tiny", "tiny", *parts, ("text",), CLASSES, "made up", "python")


def pgm(pixels):
    """Grey values as an image file: a line of header and the bytes."""
    height, width = pixels.shape
    return f"P5\n{width} {height}\n255\n".encode() + pixels.astype(np.uint8).tobytes()


def pictures(count, seed, prefix, classes=3):
    """Grey noise of 8 × 8 pixels with a bright bar, whose row says the class."""
    generator = np.random.default_rng(seed)
    label = generator.integers(0, classes, count)
    pixels = generator.integers(0, 120, (count, 8, 8))
    pixels[np.arange(count), 2 * label + 1] += 100
    images = [{"bytes": pgm(one), "path": None} for one in pixels]
    return Dataset.from_dict(
        {"id": [f"{prefix}-{n}" for n in range(count)], "label": label.tolist(), "image": images}
    ).cast_column("image", Image())


@lru_cache(maxsize=8)
def image_task(train=32, seed=0, test=24):
    """A task of pictures, of its own name."""
    parts = (
        pictures(train, seed, "train"),
        pictures(test, seed + 1, "validation"),
        pictures(test, seed + 2, "test"),
    )
    return Task("tiny images", "tiny images", *parts, (), CLASSES, "made up", "python", "image")


def mobile_net():
    """A narrow MobileNetV2 for colour pictures, with random weights and a head of ten classes."""
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    narrow = {"depth_multiplier": 0.1, "min_depth": 4, "num_labels": 10}
    return MobileNetV2ForImageClassification(MobileNetV2Config(**narrow))


@lru_cache(maxsize=1)
def tokenizer():
    """One token a word: the same numbers in every process."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
    }
    core = Tokenizer(
        models.WordLevel(
            {word: n for n, word in enumerate((*special.values(), *WORDS))}, unk_token="[UNK]"
        )
    )
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, model_input_names=["input_ids", "attention_mask"], **special
    )


def data(count=32, seed=0):
    """Encoded training rows."""
    return encode(rows(count, seed, "train"), tokenizer(), ("text",), 16)


def model(seed=0, dropout=0.1, layers=1, classes=CLASSES):
    """A BERT of one layer, 32 wide."""
    return small_classifier(tokenizer(), classes, seed, layers, 32, 32, dropout)


small = model  # for `train`, whose parameter has the same name


def train(treatment=None, seed=0, rows=None, dropout=0.1, model=None, **options):
    """A tiny model, trained."""
    model = model or small(dropout=dropout)
    return fine_tune(model, rows or data(), treatment, seed, **(FAST | options)).model


class Anchor(Treatment):
    """A made-up penalty: the squared distance to the first weights."""

    def __init__(self, strength):
        self.strength = strength

    def prepare(self, model):
        self._start = {name: value.detach().clone() for name, value in model.named_parameters()}
        return model

    def penalty(self, model):
        return self.strength * sum(
            (value - self._start[name]).square().sum() for name, value in model.named_parameters()
        )


class Endless(Treatment):
    def loss(self, logits, label, old_logits=None):
        return super().loss(logits, label) * torch.inf


def old_answers(rows, seed=7, classes=3, spread=3.0):
    """Random logits of an old model for encoded rows."""
    logits = (
        np.random.default_rng(seed).normal(size=(len(rows), classes)).astype(np.float32) * spread
    )
    return Predictions(np.asarray(rows.ids), np.asarray(rows.labels), logits=logits)


def weights(model):
    """A copy of all weights by name."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(first, second):
    """Whether two models (or their weights) are the same, bit for bit."""
    first, second = (
        weights(one) if isinstance(one, torch.nn.Module) else one for one in (first, second)
    )
    return first.keys() == second.keys() and all(
        torch.equal(value, second[name]) for name, value in first.items()
    )


def distance(first, second):
    """The largest difference between two models' weights."""
    first, second = (
        weights(one) if isinstance(one, torch.nn.Module) else one for one in (first, second)
    )
    assert first.keys() == second.keys()
    return max(float((value - second[name]).abs().max()) for name, value in first.items())


def processes():
    """A place to start processes in: torch is imported once, then each process is a fork of that
    one.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["compatkit.gated_fusion", "compatkit.distillation"])
    return context


def _one_of_two(rank, port, share, arguments):
    place = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": 2,
        "LOCAL_WORLD_SIZE": 2,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in place.items()})
    share(rank, *arguments)
    torch.distributed.destroy_process_group()


def train_together(share, *arguments):
    """Call share(rank, *arguments) in two processes that train together, as torchrun starts
    them.
    """
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    both = [
        processes().Process(target=_one_of_two, args=(rank, port, share, arguments))
        for rank in range(2)
    ]
    for process in both:
        process.start()
    for process in both:
        process.join(timeout=240)
        if process.is_alive():
            process.kill()
    assert [process.exitcode for process in both] == [0, 0]


def shard_on_the_cpu():
    """Accelerate shards a model (FSDP) over accelerators only.

    Told that the two processes are such, it shards over them.
    """
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    begin = PartialState.__init__

    def pretend(self, *arguments, **options):
        begin(self, *arguments, **options)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = pretend
