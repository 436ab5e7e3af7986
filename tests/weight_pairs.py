"""What the tests of weights share: two models that differ everywhere, one with everything a
state can hold, adapters, answers.
"""

import copy

import numpy as np
import tiny
import torch
from torch import nn

from compatkit.predictions import Predictions


def pair(**options):
    """Two models that differ everywhere."""
    return tiny.model(1, **options).eval(), tiny.model(2, **options).train()


def batches(count=6):
    data = tiny.data(count)
    return [data.collate([data[row] for row in range(count)])]


def by_hand(old, new, alpha):
    return {
        name: alpha * value.double() + (1 - alpha) * tiny.weights(new)[name].double()
        for name, value in tiny.weights(old).items()
    }


class Net(nn.Module):
    """BatchNorm with a counter, a table of integers, a mask, tied weights, a buffer that is not
    saved.
    """

    def __init__(self, seed, table=(1, 2, 3)):
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.norm, self.head = (
            nn.Embedding(9, 4),
            nn.BatchNorm1d(4),
            nn.Linear(4, 9, bias=False),
        )
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.tensor(table))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("cache", torch.randn(2), persistent=False)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)
        self.norm.num_batches_tracked += seed
        self.first_line = nn.Parameter(
            torch.randn(3, 5).T.contiguous().T
        )  # not row by row in memory

    def forward(self, tokens):
        return self.head(self.norm(self.embed(tokens).mean(1)))


def adapted(seed, base=1, rank=2, alpha=3, name="default", **options):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    settings = {
        "task_type": "SEQ_CLS",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": ["query", "value"],
        "init_lora_weights": False,
    } | options
    return get_peft_model(
        tiny.model(base, dropout=0.0), LoraConfig(**settings), adapter_name=name
    ).eval()


def merged(model):
    return copy.deepcopy(model).merge_and_unload()


def answers(prediction, label=None):
    prediction = np.asarray(prediction)
    return Predictions(
        [str(n) for n in range(len(prediction))],
        np.zeros(len(prediction), int) if label is None else label,
        prediction,
    )
