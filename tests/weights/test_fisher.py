"""The Fisher diagonal: equal to one backward pass for each example, on every kind of layer;
scaled; bad input named.
"""

import pytest
import tiny
import torch
from torch import nn

from compatkit.weights import fisher
from compatkit.weights.fisher import fisher_diagonal


def text_batches(sizes=(5, 3)):
    """Batches of sentences of different lengths."""
    data = tiny.data(sum(sizes))
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    return [
        data.collate([data[row] for row in range(start, start + size)])
        for start, size in zip(starts, sizes)
    ]


def assert_same_as_one_at_a_time(model, batches):
    fast, plain = fisher_diagonal(model, batches), fisher_diagonal(model, batches, batched=False)
    assert (
        fast.keys()
        == plain.keys()
        == {name for name, one in model.named_parameters() if one.requires_grad}
    )
    for name in plain:
        assert fast[name].dtype == torch.float32 and fast[name].shape == plain[name].shape
        assert torch.allclose(fast[name], plain[name], rtol=2e-3, atol=1e-4), name
    return fast


def mean_of(diagonal):
    return sum(float(one.sum()) for one in diagonal.values()) / sum(
        one.numel() for one in diagonal.values()
    )


@pytest.mark.parametrize("sizes", [(5, 3), (1,), (6, 1)])
def test_bert(sizes):
    assert mean_of(
        assert_same_as_one_at_a_time(tiny.model(layers=2), text_batches(sizes))
    ) == pytest.approx(1, abs=1e-5)


def test_batches_may_be_cut_anywhere():
    model, one, many = tiny.model(), text_batches((8,)), text_batches((3, 1, 4))
    first, second = fisher_diagonal(model, one), fisher_diagonal(model, many)
    assert all(torch.allclose(first[name], second[name], rtol=1e-3, atol=1e-4) for name in first)


def test_slices_of_a_batch_do_not_change_the_result(monkeypatch):
    model, batches = tiny.model(), text_batches((7,))
    whole = fisher_diagonal(model, batches)
    monkeypatch.setattr(fisher, "SLICE", 2100)
    sliced = fisher_diagonal(model, batches)
    assert all(torch.allclose(whole[name], sliced[name], rtol=1e-4, atol=1e-5) for name in whole)


class Residual(nn.Module):
    """A small ResNet: convolutions without bias, BatchNorm, ReLU in place, a grouped
    convolution.
    """

    def __init__(self, groups=1):
        super().__init__()
        self.first, self.norm = (
            nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(8),
        )
        self.second, self.relu = (
            nn.Conv2d(8, 8, 3, padding=1, dilation=1, groups=groups),
            nn.ReLU(inplace=True),
        )
        self.head = nn.Linear(8, 4)
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, images):
        hidden = self.relu(self.norm(self.first(images)))
        return self.head(self.relu(hidden + self.second(hidden)).mean((2, 3)))


@pytest.mark.parametrize("groups", [1, 2])
def test_resnet_with_batch_norm_and_relu_in_place(groups):
    torch.manual_seed(0)
    model = Residual(groups).train()
    statistics = model.norm.running_mean.clone()
    assert_same_as_one_at_a_time(model, [torch.randn(5, 3, 9, 9), torch.randn(2, 3, 9, 9)])
    assert model.training and torch.equal(model.norm.running_mean, statistics)


class Shared(nn.Module):
    """A layer used twice, a weight tied to the embedding, a parameter without a layer, and one
    that is never used.
    """

    def __init__(self):
        super().__init__()
        self.embed, self.twice, self.out = (
            nn.Embedding(20, 6, padding_idx=0),
            nn.Linear(6, 6),
            nn.Linear(6, 20, bias=False),
        )
        self.out.weight = self.embed.weight
        self.scale, self.idle = nn.Parameter(torch.randn(6)), nn.Linear(3, 3)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        return self.out(self.twice(torch.tanh(self.twice(hidden)) * self.scale).mean(1))


def test_shared_tied_bare_and_unused_parameters():
    torch.manual_seed(1)
    found = assert_same_as_one_at_a_time(
        Shared(), [torch.randint(0, 20, (6, 4)), torch.randint(0, 20, (3, 4))]
    )
    assert float(found["idle.weight"].sum()) == 0 and float(found["scale"].sum()) > 0


class Functional(nn.Module):
    """A layer's weight used once more behind the layer's back: no hook sees it."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(x)) @ self.layer.weight)


def test_rules_that_miss_a_use_are_noticed_on_the_first_batch():
    torch.manual_seed(2)
    assert_same_as_one_at_a_time(Functional(), [torch.randn(5, 4), torch.randn(3, 4)])


def test_half_precision_gives_float32():
    model = tiny.model(dropout=0.0).bfloat16()
    found = fisher_diagonal(model, text_batches())
    exact = fisher_diagonal(model.float(), text_batches())
    assert all(one.dtype == torch.float32 for one in found.values())
    error = sum(float((found[name] - exact[name]).abs().sum()) for name in exact) / sum(
        float(one.sum()) for one in exact.values()
    )
    assert error < 0.2


def test_adapters_of_peft():
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    model = get_peft_model(
        tiny.model(),
        LoraConfig(
            task_type="SEQ_CLS", r=2, target_modules=["query", "value"], init_lora_weights=False
        ),
    )
    found = assert_same_as_one_at_a_time(model, text_batches())
    assert any("lora_A" in name for name in found) and not any(
        "base_layer" in name for name in found
    )


def test_the_square_is_inside_the_sum():
    torch.manual_seed(4)
    line, given = nn.Linear(2, 2), torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    line.weight.data = torch.tensor([[0.0, 1.0], [0.0, -1.0]])
    line.bias.data.zero_()
    found = fisher_diagonal(
        line, [given]
    )  # the two examples' gradients cancel, their squares do not
    assert found["weight"][:, 0].min() > 0 and found["weight"][:, 1].max() == 0


def test_dropout_is_off_and_modes_come_back():
    model = tiny.model(dropout=0.5).train()
    model.bert.pooler.eval()
    first, second = fisher_diagonal(model, text_batches()), fisher_diagonal(model, text_batches())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert model.training and not model.bert.pooler.training and model.classifier.training


def test_labels_are_left_out():
    batches = text_batches()
    labelled = [
        batch | {"labels": torch.zeros(len(batch["input_ids"]), dtype=torch.long)}
        for batch in batches
    ]
    first, second = fisher_diagonal(tiny.model(), batches), fisher_diagonal(tiny.model(), labelled)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_bare_embedding_counts_repeated_tokens_once_per_example():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(5, 3)

        def forward(self, tokens):
            return self.embed(tokens).sum(1)

    torch.manual_seed(5)
    assert_same_as_one_at_a_time(Bag(), [torch.tensor([[1, 1, 2], [1, 3, 3]])])


def test_bad_input_is_named():
    model = tiny.model()
    with pytest.raises(ValueError, match="no batches"):
        fisher_diagonal(model, [])
    with pytest.raises(ValueError, match="a batch is a dictionary"):
        fisher_diagonal(model, [[1, 2]])
    with pytest.raises(ValueError, match="at least one example"):
        fisher_diagonal(nn.Linear(2, 2), [torch.zeros(0, 2)])
    with pytest.raises(ValueError, match=r"logits of shape \(N, C\).*\(2, 3, 2\)"):
        fisher_diagonal(nn.Linear(2, 2), [torch.zeros(2, 3, 2)])
    broken = nn.Linear(2, 2)
    broken.weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match="not finite for .*weight"):
        fisher_diagonal(broken, [torch.randn(3, 2)])
    flat = nn.Linear(2, 1)
    with pytest.raises(ValueError, match="all gradients are zero"):
        fisher_diagonal(flat, [torch.randn(3, 2)])
    for parameter in flat.parameters():
        parameter.requires_grad = False
    with pytest.raises(ValueError, match="nothing to weigh"):
        fisher_diagonal(flat, [torch.randn(3, 2)])
