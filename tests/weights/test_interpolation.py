"""Interpolation of models: its ends and its middle on every kind of model, importances, added
classes, what it refuses, other devices.
"""

import copy

import pytest
import tiny
import torch
from torch import nn
from weight_pairs import Net, batches, by_hand, pair

from compatkit.weights import rules
from compatkit.weights.fisher import fisher_diagonal
from compatkit.weights.interpolation import Line, interpolate


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


def test_models_that_compute_otherwise_with_the_same_tensors_are_refused():
    old, new = pair()
    old.config.num_attention_heads *= 2
    with pytest.raises(ValueError, match="differ in num_attention_heads"):
        interpolate(old, new, 0.5)


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
    old, new = pair()
    diagonal = fisher_diagonal(old, batches())
    whole, weighed = interpolate(old, new, 0.3), interpolate(old, new, 0.3, diagonal)
    monkeypatch.setattr(rules, "CHUNK", 10)
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
    with pytest.raises(ValueError, match="'classifier.bias'.*NaN.*new model"):
        interpolate(old, new, 0.5)


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
    with pytest.raises(ValueError, match="fisher_diagonal"):
        interpolate(old, new, 0.5, good | {"ghost": torch.ones(1)})
    with pytest.raises(ValueError, match="lack .*classifier.bias"):
        interpolate(
            old, new, 0.5, {name: one for name, one in good.items() if name != "classifier.bias"}
        )
    with pytest.raises(
        ValueError,
        match=r"'classifier.bias'.*\(2,\).*\(3,\)",
    ):
        interpolate(old, new, 0.5, good | {"classifier.bias": torch.ones(2)})
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="'classifier.bias'.*negative"):
            interpolate(old, new, 0.5, good | {"classifier.bias": torch.full((3,), wrong)})


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
        ValueError,
        match="'classifier.weight'.*old_classes",
    ):
        interpolate(wide, narrow, 0.5)


def test_other_class_orders_and_tokenizers_are_named():
    with pytest.raises(ValueError, match="'second'.*'third'"):
        interpolate(tiny.model(1), tiny.model(2, classes=("first", "third", "second")), 0.5)
    other = copy.deepcopy(tiny.tokenizer())
    other.add_tokens(["brandnew"])
    with pytest.raises(ValueError, match="1 entries.*'brandnew'"):
        interpolate(*pair(), 0.5, tokenizers=(tiny.tokenizer(), other))
    interpolate(*pair(), 0.5, tokenizers=(tiny.tokenizer(), copy.deepcopy(tiny.tokenizer())))


def test_integer_tensors_that_differ_are_named():
    with pytest.raises(ValueError, match="integer tensor 'table' differs"):
        interpolate(Net(1), Net(2, table=(1, 2, 4)), 0.5)
    other = Net(2)
    other.mask[1] = True
    with pytest.raises(ValueError, match="'mask'"):
        interpolate(Net(1), other, 0.5)
    other = Net(2)
    other.table = other.table.float()
    with pytest.raises(ValueError, match="'table'.*torch.int64.*torch.float32"):
        interpolate(Net(1), other, 0.5)


def test_ties_that_one_model_lacks():
    loose = Net(1)
    loose.head.weight = nn.Parameter(torch.randn(9, 4))
    with pytest.raises(ValueError, match="'embed.weight'.*'head.weight'"):
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
        with pytest.raises(ValueError, match="new model's 'weight'.*quantise"):
            interpolate(old, bad, 0.5)
        with pytest.raises(ValueError, match="old model's 'weight'"):
            interpolate(bad, new, 0.5)
    with pytest.raises(ValueError, match="meta device"):
        interpolate(old, nn.Linear(2, 2, device="meta"), 0.5)


def test_the_rule_is_an_argument():
    """A rule that is added is found by its name, in a model as in a single tensor."""
    old, new = pair()

    def nearer_zero(before, after, alpha, importance, out):
        torch.where(before.abs() < after.abs(), before, after, out=out)

    rules.add_rule(rules.Rule("nearer zero", "the smaller of the two", nearer_zero))
    try:
        mixed = interpolate(old, new, 0.5, rule="nearer zero")
    finally:
        rules.RULES.pop("nearer zero")
    for name, value in mixed.named_parameters():
        pair_of = [dict(model.named_parameters())[name] for model in (old, new)]
        expected = torch.where(pair_of[0].abs() < pair_of[1].abs(), *pair_of)
        assert torch.equal(value, expected), name
    assert tiny.same(interpolate(old, new, 0.3, rule="linear"), interpolate(old, new, 0.3))
    ones = {name: torch.ones_like(one) for name, one in old.named_parameters()}
    weighed = interpolate(old, new, 0.3, ones, "fisher")
    assert tiny.same(weighed, interpolate(old, new, 0.3, ones))
    with pytest.raises(ValueError, match="'spherical'"):
        interpolate(old, new, 0.3, rule="spherical")
    with pytest.raises(ValueError, match="'fisher'.*fisher_diagonal"):
        interpolate(old, new, 0.3, rule="fisher")


def test_a_working_model_is_written_where_it_lies():
    """Evaluation may move it: to another type here, to the meta device as a stand-in for a GPU."""
    old, new = pair()
    line = Line(old, new)
    line.model.double()
    moved = line.write(0.25)
    expected = by_hand(old, new, 0.25)
    weights = moved.state_dict()
    assert all(value.dtype == torch.float64 for value in weights.values())
    assert max(float((weights[name] - expected[name]).abs().max()) for name in weights) < 1e-15
    ones = {name: torch.ones_like(one) for name, one in old.named_parameters()}
    for importance in (None, ones):
        line = Line(old, new, importance)
        line.model.to("meta")
        for alpha in (0, 0.5, 1):
            assert all(one.is_meta for one in line.write(alpha).parameters())


def test_classes_that_transformers_makes_up_are_not_compared():
    """A single real name is enough to compare; LABEL_0 and LABEL_1 alone are not."""
    old, new = pair()
    old.config.id2label = {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}
    interpolate(old, new, 0.5)
    old.config.id2label = {0: "LABEL_0", 1: "second", 2: "third"}
    with pytest.raises(ValueError, match="'LABEL_0'.*'first'"):
        interpolate(old, new, 0.5)
    old.config.id2label = None
    interpolate(old, new, 0.5)
