"""Weight interpolation: its ends and its middle on every kind of model, what it refuses, the sweep in one model, the choice of α."""

import copy
import gc
import math
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from compatkit.bcwi import (
    ALPHAS, Choice, Curve, choose_alpha, curve_picture, interpolate, noninferior, old_model, reestimate_batchnorm, soup, start_from, sweep,
    target_interval, update_once, updated_model,
)  # fmt: skip
from compatkit.weights.fisher import fisher_diagonal
from compatkit.predictions import Predictions
from compatkit.training.loop import Treatment, encoded, predict, train_once
from compatkit.training.data_updates import more_classes, more_samples


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
    """BatchNorm with a counter, a table of integers, a mask, tied weights, a buffer that is not saved."""

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


# --- the ends, the middle, what the result is ---


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_every_floating_tensor_lies_on_the_line_and_the_inputs_stay(alpha):
    old, new = pair()
    kept = [tiny.weights(one) for one in (old, new)]
    mixed = interpolate(old, new, alpha)
    assert (
        tiny.distance(
            mixed, {name: value.float() for name, value in by_hand(old, new, alpha).items()}
        )
        < 1e-6
    )
    assert tiny.same(old, kept[0]) and tiny.same(new, kept[1])
    if alpha in (0, 1):
        assert tiny.same(mixed, (new, old)[int(alpha)])
    assert all(
        one.data_ptr() != other.data_ptr()
        for one, other in zip(mixed.state_dict().values(), new.state_dict().values())
    )


def test_modes_and_requires_grad_are_the_new_models():
    old, new = pair()
    new.bert.embeddings.eval()
    new.bert.pooler.dense.weight.requires_grad = False
    mixed = interpolate(old, new, 0.5)
    assert {name: one.training for name, one in mixed.named_modules()} == {
        name: one.training for name, one in new.named_modules()
    }
    assert {name: one.requires_grad for name, one in mixed.named_parameters()} == {
        name: one.requires_grad for name, one in new.named_parameters()
    }
    assert (
        type(mixed) is type(new)
        and mixed.config is not new.config
        and all(one.grad is None for one in mixed.parameters())
    )


def test_the_result_loads_in_plain_transformers_and_gives_the_same_logits(tmp_path):
    from transformers import AutoModelForSequenceClassification

    mixed = interpolate(*pair(), 0.3).eval()
    mixed.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(**batches()[0]).logits, mixed(**batches()[0]).logits)


def test_batch_norm_ties_counters_and_strange_memory():
    old, new = Net(1), Net(2)
    old.first_line.data = torch.randn(5, 3).T
    mixed = interpolate(old, new, 0.25)
    assert mixed.head.weight is mixed.embed.weight
    for name in (
        "embed.weight",
        "norm.running_mean",
        "norm.running_var",
        "norm.weight",
        "first_line",
    ):
        one, other, found = (model.state_dict()[name] for model in (old, new, mixed))
        assert torch.allclose(found, 0.25 * one + 0.75 * other, atol=1e-6), name
    assert mixed.norm.num_batches_tracked == new.norm.num_batches_tracked == 2
    assert torch.equal(mixed.cache, new.cache) and torch.equal(mixed.table, new.table)
    end = interpolate(old, new, 1)
    assert (
        torch.equal(end.norm.running_var, old.norm.running_var)
        and end.norm.num_batches_tracked == 2
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_interpolated_in_single(dtype):
    old, new = (one.to(dtype) for one in pair())
    mixed = interpolate(old, new, 0.3)
    for name, value in mixed.state_dict().items():
        if value.is_floating_point():
            assert value.dtype == dtype
            assert torch.equal(
                value,
                torch.lerp(new.state_dict()[name].float(), old.state_dict()[name].float(), 0.3).to(
                    dtype
                ),
            )
    assert tiny.same(interpolate(old, new, 1), old) and tiny.same(interpolate(old, new, 0), new)


def test_types_meet_in_the_new_ones():
    old, new = pair()
    mixed = interpolate(old.double(), new.bfloat16(), 0.5)
    assert mixed.classifier.weight.dtype == torch.bfloat16
    assert torch.allclose(
        mixed.classifier.weight.double(),
        by_hand(old, new, 0.5)["classifier.weight"],
        rtol=1e-2,
        atol=1e-3,
    )


def test_large_tensors_are_worked_on_in_pieces(monkeypatch):
    from compatkit import bcwi

    old, new = pair()
    diagonal = fisher_diagonal(old, batches())
    whole, weighed = interpolate(old, new, 0.3), interpolate(old, new, 0.3, diagonal)
    monkeypatch.setattr(bcwi, "CHUNK", 10)
    assert (
        tiny.distance(interpolate(old, new, 0.3), whole) < 1e-7
        and tiny.distance(interpolate(old, new, 0.3, diagonal), weighed) < 1e-6
    )


def test_not_a_number_in_one_model_does_not_reach_the_end_of_the_other():
    old, new = pair()
    with torch.no_grad():
        old.classifier.bias[0], new.classifier.bias[1] = float("inf"), float("nan")
    assert interpolate(old, new, 0).classifier.bias[0] == new.classifier.bias[0]
    assert interpolate(old, new, 1).classifier.bias[1] == old.classifier.bias[1]


# --- importances ---


def test_fisher_interpolation_by_the_formula():
    old, new = pair(dropout=0.0)
    diagonal = fisher_diagonal(old, batches())
    mixed = interpolate(old, new, 0.4, diagonal)
    for name, one in old.named_parameters():
        weight, other = diagonal[name], dict(new.named_parameters())[name]
        expected = (0.4 * weight * one + 0.6 * other) / (0.4 * weight + 0.6)
        assert torch.allclose(dict(mixed.named_parameters())[name], expected, atol=1e-5), name
    assert tiny.same(interpolate(old, new, 1, diagonal), old) and tiny.same(
        interpolate(old, new, 0, diagonal), new
    )


def test_equal_importances_give_plain_interpolation_and_zero_keeps_the_new_weight():
    old, new = pair()
    ones = {name: torch.ones_like(one) for name, one in old.named_parameters()}
    zeros = {name: torch.zeros_like(one) for name, one in old.named_parameters()}
    assert tiny.distance(interpolate(old, new, 0.3, ones), interpolate(old, new, 0.3)) < 1e-6
    assert tiny.same(interpolate(old, new, 0.3, zeros), new) and tiny.same(
        interpolate(old, new, 1, zeros), old
    )
    huge = {name: torch.full_like(one, 1e38) for name, one in old.named_parameters()}
    assert tiny.distance(interpolate(old, new, 0.999, huge), old) < 1e-6


def test_importances_do_not_move_buffers_and_reach_tied_weights():
    old, new = Net(1), Net(2)
    ones = {name: torch.full_like(one, 3.0) for name, one in old.named_parameters()}
    mixed = interpolate(old, new, 0.5, ones)
    assert torch.allclose(
        mixed.norm.running_mean, (old.norm.running_mean + new.norm.running_mean) / 2, atol=1e-6
    )
    assert torch.allclose(
        mixed.head.weight, 0.75 * old.head.weight + 0.25 * new.head.weight, atol=1e-6
    )


def test_importances_of_another_model_are_refused():
    old, new = pair()
    good = {name: torch.ones_like(one) for name, one in old.named_parameters()}
    with pytest.raises(ValueError, match="of another model: .*ghost.* fisher_diagonal"):
        interpolate(old, new, 0.5, good | {"ghost": torch.ones(1)})
    with pytest.raises(ValueError, match="lack .*classifier.bias"):
        interpolate(
            old, new, 0.5, {name: one for name, one in good.items() if name != "classifier.bias"}
        )
    with pytest.raises(
        ValueError,
        match=r"importance of 'classifier.bias' has the shape \(2,\), the parameter \(3,\)",
    ):
        interpolate(old, new, 0.5, good | {"classifier.bias": torch.ones(2)})
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="'classifier.bias' has negative or not finite"):
            interpolate(old, new, 0.5, good | {"classifier.bias": torch.full((3,), wrong)})


# --- new classes ---


def test_head_rows_of_new_classes_come_from_the_new_model():
    old, new = tiny.model(1, classes=("a", "c")), tiny.model(2, classes=("c", "b", "a"))
    for alpha in (0, 0.4, 1):
        mixed = interpolate(old, new, alpha, old_classes=(2, 0))
        for name in ("classifier.weight", "classifier.bias"):
            one, other, found = (model.state_dict()[name] for model in (old, new, mixed))
            assert torch.equal(found[1], other[1])
            assert torch.allclose(found[2], alpha * one[0] + (1 - alpha) * other[2], atol=1e-6)
            assert torch.allclose(found[0], alpha * one[1] + (1 - alpha) * other[0], atol=1e-6)
        assert torch.allclose(
            mixed.bert.pooler.dense.weight,
            torch.lerp(new.bert.pooler.dense.weight, old.bert.pooler.dense.weight, alpha),
            atol=1e-6,
        )
    ones = {name: torch.ones_like(one) for name, one in old.named_parameters()}
    assert (
        tiny.distance(
            interpolate(old, new, 0.4, ones, old_classes=(2, 0)),
            interpolate(old, new, 0.4, old_classes=(2, 0)),
        )
        < 1e-6
    )


def test_old_classes_that_do_not_fit_are_refused():
    old, new = tiny.model(1, classes=("a", "c")), tiny.model(2, classes=("c", "b", "a"))
    for wrong, match in (
        ((0, 2), "class 0 is 'a' and 'c'"),
        ((2,), "class 1 is 'c' and nothing"),
        ((2, 0, 1), "class 2"),
        ((2, 7), "class 1 is 'c'"),
    ):
        with pytest.raises(ValueError, match=match):
            interpolate(old, new, 0.5, old_classes=wrong)
    for model in (old, new):
        model.config.id2label = None
    for wrong, match in (
        ((2, 2), "must name different classes"),
        ((), "at least one"),
        ((2, 9), "does not explain"),
        ((2, 1, 0), "does not explain"),
    ):
        with pytest.raises(ValueError, match=match):
            interpolate(old, new, 0.5, old_classes=wrong)
    with pytest.raises(ValueError, match="no tensor of the old model has fewer rows"):
        interpolate(new, new, 0.5, old_classes=(0, 1, 2))


# --- what is refused ---


@pytest.mark.parametrize("alpha", [-0.01, 1.01, float("nan"), True, "0.5", None])
def test_alpha_outside_is_refused(alpha):
    with pytest.raises(ValueError, match="weight of the old model, from 0"):
        interpolate(*pair(), alpha)


def test_other_architectures_are_named():
    with pytest.raises(ValueError, match="layer.1.*only in the new"):
        interpolate(tiny.model(1), tiny.model(2, layers=2), 0.5)
    wide, narrow = (
        tiny.model(seed, classes=tuple(range(count))) for seed, count in ((1, 3), (2, 4))
    )
    wide.config.id2label = narrow.config.id2label = None
    with pytest.raises(
        ValueError, match=r"'classifier.weight' \(3, 32\) and \(4, 32\).*old_classes"
    ):
        interpolate(wide, narrow, 0.5)


def test_other_class_orders_and_tokenizers_are_named():
    with pytest.raises(ValueError, match="class 1 is 'second' and 'third'"):
        interpolate(tiny.model(1), tiny.model(2, classes=("first", "third", "second")), 0.5)
    other = copy.deepcopy(tiny.tokenizer())
    other.add_tokens(["brandnew"])
    with pytest.raises(ValueError, match=r"tokenizers differ in 1 entries, such as \['brandnew'\]"):
        interpolate(*pair(), 0.5, tokenizers=(tiny.tokenizer(), other))
    interpolate(*pair(), 0.5, tokenizers=(tiny.tokenizer(), copy.deepcopy(tiny.tokenizer())))


def test_integer_tensors_that_differ_are_named():
    with pytest.raises(ValueError, match="integer tensor 'table' differs"):
        interpolate(Net(1), Net(2, table=(1, 2, 4)), 0.5)
    other = Net(2)
    other.mask[1] = True
    with pytest.raises(ValueError, match="integer tensor 'mask' differs"):
        interpolate(Net(1), other, 0.5)
    other = Net(2)
    other.table = other.table.float()
    with pytest.raises(
        ValueError, match="'table' is torch.int64 in the old model and torch.float32"
    ):
        interpolate(Net(1), other, 0.5)


def test_ties_that_one_model_lacks():
    loose = Net(1)
    loose.head.weight = nn.Parameter(torch.randn(9, 4))
    with pytest.raises(
        ValueError, match="'embed.weight' and 'head.weight' are tied in the new model"
    ):
        interpolate(loose, Net(2), 0.5)
    mixed = interpolate(Net(2), loose, 0.5)
    assert mixed.head.weight is not mixed.embed.weight


def test_quantised_and_empty_models_are_refused():
    class Params4bit(nn.Parameter):
        """A stand-in for bitsandbytes' type."""

    old, new = nn.Linear(2, 2), nn.Linear(2, 2)
    coded = copy.deepcopy(new)
    coded.weight = nn.Parameter(torch.ones(2, 2, dtype=torch.int8), requires_grad=False)
    eight = copy.deepcopy(new)
    eight.weight = nn.Parameter(torch.ones(2, 2).to(torch.float8_e4m3fn), requires_grad=False)
    packed = copy.deepcopy(new)
    packed.weight = Params4bit(torch.ones(2, 2))
    for bad in (coded, eight, packed):
        with pytest.raises(
            ValueError, match="the new model's 'weight' is quantised.*quantise the result"
        ):
            interpolate(old, bad, 0.5)
        with pytest.raises(ValueError, match="the old model's 'weight' is quantised"):
            interpolate(bad, new, 0.5)
    with pytest.raises(ValueError, match="meta device"):
        interpolate(old, nn.Linear(2, 2, device="meta"), 0.5)


# --- adapters ---


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


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_rslora": True},
        {"target_modules": ["query", "word_embeddings"]},
        {"rank_pattern": {"value": 1}},
        {"bias": "lora_only"},
    ],
)
def test_merged_adapters_lie_on_the_line_and_load_with_plain_peft(tmp_path, options):
    from peft import PeftModel

    old, new = adapted(5, rank=2, **options), adapted(6, rank=4, alpha=7)
    if options:
        new = adapted(6, rank=4, alpha=7, **options)
    if options.get("bias"):
        for model in (old, new):
            torch.nn.init.normal_(
                model.get_submodule(
                    "base_model.model.bert.encoder.layer.0.attention.self.query.base_layer"
                ).bias
            )
    kept = [tiny.weights(one) for one in (old, new)]
    mixed = interpolate(old, new, 0.3)
    expected = by_hand(merged(old), merged(new), 0.3)
    assert (
        tiny.distance(merged(mixed), {name: value.float() for name, value in expected.items()})
        < 1e-5
    )
    assert tiny.same(old, kept[0]) and tiny.same(new, kept[1])
    assert (
        mixed.base_model.model.bert.encoder.layer[0]
        .attention.self.query.lora_A["default"]
        .out_features
        == 6
    )
    mixed.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(tiny.model(1, dropout=0.0), tmp_path).eval()
    with torch.no_grad():
        assert torch.allclose(again(**batches()[0]).logits, mixed(**batches()[0]).logits, atol=1e-5)


def test_the_ends_of_adapters_are_the_adapters():
    old, new = adapted(5, rank=2), adapted(6, rank=4).train()
    ends = interpolate(old, new, 1), interpolate(old, new, 0)
    assert (
        tiny.same(ends[0], old)
        and tiny.same(ends[1], new)
        and ends[0].training
        and ends[0] is not old
    )


def test_adapters_in_a_sweep_and_in_a_soup():
    old, new = adapted(5, name="before"), adapted(6)
    seen = []
    evaluate = lambda model: (seen.append(tiny.weights(merged(model))), answers(np.arange(4)))[1]
    sweep(old, new, evaluate, (0, 0.4, 1))
    for alpha, found in zip((0, 0.4, 1), seen):
        assert (
            tiny.distance(
                found,
                {
                    name: value.float()
                    for name, value in by_hand(merged(old), merged(new), alpha).items()
                },
            )
            < 1e-5
        )
    mean = merged(soup([adapted(5), adapted(6), adapted(7)]))
    plain = soup([merged(adapted(seed)) for seed in (5, 6, 7)])
    assert tiny.distance(mean, plain) < 1e-5


def test_adapters_that_do_not_go_together():
    with pytest.raises(ValueError, match="one of the two models is a PEFT adapter"):
        interpolate(tiny.model(1), adapted(5), 0.5)
    with pytest.raises(ValueError, match="different base models .*differs.: merge both"):
        interpolate(adapted(5), adapted(6, base=2), 0.5)
    with pytest.raises(ValueError, match="change different layers, such as"):
        interpolate(adapted(5), adapted(6, target_modules=["query", "key"]), 0.5)
    with pytest.raises(ValueError, match="more than two low-rank factors"):
        interpolate(adapted(5, use_dora=True), adapted(6, use_dora=True), 0.5)
    melted = adapted(6)
    melted.merge_adapter()
    with pytest.raises(ValueError, match="merged into .*unmerge it first"):
        interpolate(adapted(5), melted, 0.5)
    several = adapted(6)
    several.add_adapter("second", next(iter(several.peft_config.values())))
    with pytest.raises(ValueError, match="one LoRA adapter is needed"):
        interpolate(adapted(5), several, 0.5)


# --- soups and statistics ---


def test_soups():
    models = [tiny.model(seed) for seed in range(4)]
    mean = soup(models)
    expected = {
        name: sum(tiny.weights(one)[name] for one in models) / 4 for name in tiny.weights(mean)
    }
    assert tiny.distance(mean, expected) < 1e-6
    assert tiny.same(soup(models[:1]), models[0]) and tiny.same(soup([models[0]] * 5), models[0])
    with pytest.raises(ValueError, match="at least one model"):
        soup([])
    for place in (0, 1, 2):
        wrong = [tiny.model(seed, layers=2 if seed == place else 1) for seed in range(3)]
        with pytest.raises(ValueError, match="other tensors"):
            soup(wrong)
    halves = soup([Net(1).half(), Net(2).half(), Net(3).half()])
    assert (
        halves.embed.weight.dtype == torch.float16
        and halves.head.weight is halves.embed.weight
        and halves.norm.num_batches_tracked == 1
    )


def test_statistics_are_estimated_again():
    net = Net(3).train()
    net.embed.eval()
    weight, momentum = net.norm.weight.clone(), net.norm.momentum
    tokens = [torch.randint(0, 9, (16, 3)) for _ in range(3)]
    assert reestimate_batchnorm(net, tokens) is net
    means = torch.stack([net.embed(one).mean(1).mean(0) for one in tokens])
    assert torch.allclose(net.norm.running_mean, means.mean(0), atol=1e-6)
    assert (
        torch.equal(net.norm.weight, weight)
        and net.norm.momentum == momentum
        and net.training
        and not net.embed.training
    )
    kept = net.norm.running_mean.clone()
    with pytest.raises(ValueError, match="no batches"):
        reestimate_batchnorm(net, [])
    assert torch.equal(net.norm.running_mean, kept)
    with pytest.raises(ValueError, match="has no BatchNorm"):
        reestimate_batchnorm(nn.Linear(2, 2), tokens)


# --- the sweep ---


def answers(prediction, label=None):
    prediction = np.asarray(prediction)
    return Predictions(
        [str(n) for n in range(len(prediction))],
        np.zeros(len(prediction), int) if label is None else label,
        prediction,
    )


def test_a_sweep_writes_every_point_into_one_model():
    old, new = pair()
    seen, models = [], set()

    def evaluate(model):
        seen.append(tiny.weights(model))
        models.add(id(model))
        return answers([0, 1])

    for importance in (None, fisher_diagonal(old, batches())):
        seen.clear(), models.clear()
        curve = sweep(old, new, evaluate, importance=importance)
        assert len(models) == 1 and curve.alphas == ALPHAS and len(curve.answers) == 11
        for alpha, found in zip(curve.alphas, seen):
            assert tiny.same(found, interpolate(old, new, alpha, importance))


def test_a_sweep_allocates_no_weights_for_each_point():
    old, new = nn.Linear(1000, 1000), nn.Linear(1000, 1000)
    known = lambda: {
        one.data_ptr()
        for one in gc.get_objects()
        if type(one) in (torch.Tensor, nn.Parameter) and one.numel() >= 1_000_000
    }
    before, sets = known(), []

    def evaluate(model):
        sets.append(known() - before)
        return answers([0, 1])

    sweep(old, new, evaluate)
    assert len(sets[0]) == 1 and all(one == sets[0] for one in sets)


def test_a_curve_counts_accuracy_and_flips_by_hand():
    label = np.array([0, 1, 0, 1])
    points = iter([[0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]])
    curve = sweep(*pair(), lambda model: answers(next(points), label), (1, 0, 0.5))
    assert curve.alphas == (0, 0.5, 1) and curve.accuracy.tolist() == [0.5, 0.5, 0.75]
    assert curve.nfr.tolist() == [0.5, 0.25, 0.0] and [one.pfr for one in curve.counts] == [
        0.25,
        0.0,
        0.0,
    ]
    assert curve.at(0.5).prediction.tolist() == [0, 0, 0, 0] and "NFR" in curve._repr_html_()
    with pytest.raises(ValueError, match="alpha 0.7 was not evaluated"):
        curve.at(0.7)


def test_flips_are_counted_on_the_examples_of_old_answers():
    label = np.array([0, 1, 2])
    old = answers([0, 0], np.array([0, 1]))
    curve = sweep(*pair(), lambda model: answers([1, 1, 2], label), (0, 0.5), old_answers=old)
    assert curve.nfr.tolist() == [0.5, 0.5] and curve.accuracy.tolist() == [2 / 3, 2 / 3]


def test_sweeps_that_make_no_sense_are_refused():
    evaluate = lambda model: answers([0, 1])
    for alphas, match in (
        ((), "at least one"),
        ((0.5, 0.5), "different numbers"),
        ((0, 2), "from 0"),
        ((0, 0.5), "give old_answers"),
    ):
        with pytest.raises(ValueError, match=match):
            sweep(*pair(), evaluate, alphas)
    with pytest.raises(ValueError, match="evaluate must return Predictions, not float"):
        sweep(*pair(), lambda model: 0.5)


def test_a_working_model_that_was_moved_away_is_noticed():
    def evaluate(model):
        model.to("meta")
        return answers([0, 1])

    with pytest.raises(ValueError, match="working model was moved away from cpu"):
        sweep(*pair(), evaluate)


# --- the choice ---


def curve_of(accuracies, alphas=(0, 0.25, 0.5, 0.75, 1), count=1000):
    """A curve whose points are right on the first examples."""
    given = tuple(
        answers((np.arange(count) >= round(one * count)).astype(int)) for one in accuracies
    )
    return Curve(tuple(alphas), given, given[-1])


def test_over_seeds_the_largest_alpha_within_the_targets_interval():
    targets = [0.80, 0.82, 0.84]
    low, high = target_interval(targets)
    assert low == pytest.approx(0.82 - 4.302653 * 0.02 / math.sqrt(3)) and high == pytest.approx(
        0.82 + 0.82 - low
    )
    curves = [curve_of([0.83, 0.82, 0.80, 0.76, 0.9]), curve_of([0.83, 0.83, 0.76, 0.78, 0.9])]
    choice = choose_alpha(curves, targets)
    assert (
        choice == Choice(0.5, True, choice.words, (0.5, 0.75), low) and "0.5, 0.75" in choice.words
    )
    assert (
        choose_alpha(curves, [answers(np.r_[np.zeros(82), np.ones(18)])] * 2).alpha == 0.25
    )  # no spread: the mean itself


def test_alpha_one_is_never_chosen_and_none_says_so():
    choice = choose_alpha([curve_of([0.5, 0.5, 0.5, 0.5, 0.9])] * 2, [0.8, 0.8])
    assert (
        choice.alpha == 0
        and not choice.qualified
        and "no α below 1" in choice.words
        and all(map(math.isnan, choice.each))
    )
    assert choose_alpha([curve_of([0.9] * 5)] * 2, [0.1, 0.1]).alpha == 0.75


def test_for_one_pair_the_paired_test_decides():
    curve = curve_of([0.83, 0.83, 0.829, 0.80, 0.7])
    assert choose_alpha(curve, margin=0.01).alpha == 0.5 == curve.chosen.alpha
    assert choose_alpha(curve, margin=0.05).alpha == 0.75
    small = curve_of([0.83, 0.83, 0.82, 0.8, 0.7], count=100)
    choice = choose_alpha(
        small, margin=0.01
    )  # a hundred examples cannot show a margin of one point
    assert choice.alpha == 0 and not choice.qualified and "α = 0 is the new model" in choice.words


def test_the_paired_statistic_by_its_definition():
    generator = np.random.default_rng(0)
    for _ in range(200):
        count, margin = int(generator.integers(20, 2000)), float(generator.uniform(0.002, 0.2))
        better, worse = (int(one) for one in generator.integers(0, count // 4, 2))
        grid = np.linspace(margin, (1 + margin) / 2, 200_001)[1:-1]  # p21, with p12 = p21 − margin
        same = 1 - 2 * grid + margin
        score = (
            better * np.log(np.maximum(grid - margin, 1e-300))
            + worse * np.log(grid)
            + (count - better - worse) * np.log(same)
        )
        best = grid[score.argmax()] if better else None
        if best is not None:
            expected = (better - worse + count * margin) / math.sqrt(
                count * (2 * best - margin * (1 + margin))
            )
            assert noninferior(better, worse, count, margin) == pytest.approx(
                expected, rel=2e-2, abs=2e-2
            )
    assert noninferior(5, 5, 400, 0.02) > noninferior(5, 9, 400, 0.02)
    assert noninferior(0, 0, 100, 0.01) == pytest.approx(math.sqrt(100 * 0.01 / 0.99))


def test_choices_that_make_no_sense_are_refused():
    one, other = curve_of([0.8] * 5), curve_of([0.8] * 3, (0, 0.5, 1))
    with pytest.raises(ValueError, match="several curves need the target"):
        choose_alpha([one, one])
    with pytest.raises(ValueError, match="1 target model.s. have no interval"):
        choose_alpha([one], [0.8])
    with pytest.raises(ValueError, match="different alphas"):
        choose_alpha([one, other], [0.8, 0.8])
    for margin in (0, 1, -0.1):
        with pytest.raises(ValueError, match="margin is"):
            choose_alpha(one, margin=margin)
    with pytest.raises(ValueError, match="level is 1"):
        choose_alpha(one, level=1)
    with pytest.raises(ValueError, match="alpha 0.0 was not evaluated"):
        choose_alpha(Curve((0.5,), one.answers[:1], one.old))


def test_a_picture_can_be_drawn():
    figure = curve_picture(
        {"plain": [curve_of([0.8, 0.8, 0.7, 0.6, 0.5])] * 2, "other": [curve_of([0.7] * 5)]},
        (0.75, 0.85),
        "title",
    )
    assert len(figure.axes) == 2 and figure.axes[1].get_xlabel().startswith("α")
    assert curve_of([0.8] * 5).picture() is not None


# --- training from the old model ---


class Nothing(Treatment):
    """Plain training under another name."""


@pytest.mark.parametrize("classes", [False, True])
def test_an_updated_model_starts_from_the_old_ones_weights(tmp_path, classes):
    update = more_classes(tiny.task(), 0.67) if classes else more_samples(tiny.task(), 0.5)
    asked = ("new_train", "new_selection", "new_test")
    old = train_once(update.old, tiny.RECIPE, 0, splits=asked, keep_epochs=(2,), home=tmp_path)
    recipe = replace(tiny.RECIPE, epochs=1, learning_rate=1e-12, weight_decay=0.0)
    new = update_once(update, recipe, 1000, start=old, home=tmp_path)
    model, tokenizer, task = updated_model(update, recipe, new)
    before = old_model(update, tiny.RECIPE, old)
    shared = {
        name: value
        for name, value in tiny.weights(before).items()
        if not name.startswith("classifier")
    }
    assert all(
        (tiny.weights(model)[name] - value).abs().max() < 1e-6 for name, value in shared.items()
    )
    assert model.config.num_labels == 3 and list(task.new_test["label"]) == list(
        update.new.test["label"]
    )
    again = predict(model, encoded(recipe, task, tokenizer, "new_test"), classes=task.classes)
    assert np.array_equal(again.logits, new.predictions("new_test").logits)
    if not classes:  # it hardly moved, so it answers as the old one
        assert np.allclose(
            new.predictions("new_test").logits, old.predictions("new_test").logits, atol=1e-4
        )
    target = update_once(update, recipe, 1000, home=tmp_path)
    other, _, _ = updated_model(update, recipe, target)
    assert target.id != new.id and not tiny.same(other, model)
    assert update_once(update, recipe, 1000, start=old, home=tmp_path).id == new.id
    others = [
        update_once(update, recipe, 1000, home=tmp_path, **given).id
        for given in ({"start": old, "treatment": Nothing()}, {"old": old})
    ]
    assert len({new.id, target.id, *others}) == 4


def test_start_from_names_what_does_not_fit():
    with pytest.raises(ValueError, match="only in the new"):
        start_from(tiny.model(1, layers=2), tiny.model(2))
    grown, old = tiny.model(1, classes=("a", "b", "c", "d")), tiny.model(2)
    kept = grown.classifier.weight[1].clone()
    start_from(grown, old, (0, 2, 3))
    assert torch.equal(grown.classifier.weight[[0, 2, 3]], old.classifier.weight) and torch.equal(
        grown.classifier.weight[1], kept
    )


def test_a_run_without_weights_says_so(tmp_path):
    update = more_samples(tiny.task(), 0.5)
    old = train_once(update.old, tiny.RECIPE, 0, splits=("new_test",), home=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"keep_epochs=\(recipe.epochs,\)"):
        old_model(update, tiny.RECIPE, old)
