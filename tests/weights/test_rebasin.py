"""Renumbered units: the same logits before anything else, matching that finds what was
scrambled, and what is refused.
"""

import copy
import itertools

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from compatkit.training.loop import fine_tune, predict
from compatkit.weights.rebasin import (
    Matching,
    _assign_heads,
    barrier,
    group_sizes,
    match,
    nearest_match,
    permute,
    random_permutation,
    symmetries,
)

ENCODER = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 36,
    "max_position_embeddings": 20,
    "num_labels": 4,
}
DEBERTA = {  # as deberta-v3-base has it
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 4,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
    "type_vocab_size": 0,
}
TOKENS = torch.randint(5, 40, (6, 9), generator=torch.Generator().manual_seed(0))
PICTURES = torch.randn(4, 2, 20, 20, generator=torch.Generator().manual_seed(0))


def encoder(kind, task="SequenceClassification", **options):
    import transformers

    names = {
        "bert": "Bert",
        "roberta": "Roberta",
        "electra": "Electra",
        "distilbert": "DistilBert",
        "camembert": "Camembert",
        "xlm-roberta": "XLMRoberta",
        "mpnet": "MPNet",
        "deberta-v2": "DebertaV2",
        "ernie": "Ernie",
        "data2vec-text": "Data2VecText",
    }
    config = getattr(transformers, f"{names[kind]}Config")(**(ENCODER | options))
    return getattr(transformers, f"{names[kind]}For{task}")(config)


def resnet(layer_type="basic", sizes=(8, 16), depths=(2, 1), stem=8, **options):
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(
        ResNetConfig(
            num_channels=2,
            embedding_size=stem,
            hidden_sizes=list(sizes),
            depths=list(depths),
            layer_type=layer_type,
            num_labels=4,
            **options,
        )
    )


MODELS = {
    "bert": lambda: encoder("bert"),
    "roberta": lambda: encoder("roberta", pad_token_id=1),
    "camembert": lambda: encoder("camembert"),
    "xlm-roberta": lambda: encoder("xlm-roberta"),
    "electra": lambda: encoder("electra", embedding_size=12),
    "electra of one width": lambda: encoder("electra", embedding_size=24),
    "distilbert": lambda: encoder("distilbert", hidden_dim=36),
    "mpnet": lambda: encoder("mpnet"),
    "deberta-v2": lambda: encoder("deberta-v2", **DEBERTA),
    "ernie": lambda: encoder("ernie"),
    "data2vec-text": lambda: encoder("data2vec-text"),
    "bert for tokens": lambda: encoder("bert", "TokenClassification"),
    "distilbert for tokens": lambda: encoder("distilbert", "TokenClassification", hidden_dim=36),
    "resnet": resnet,
    "resnet with bottlenecks": lambda: resnet("bottleneck", (16, 32), (1, 2)),
    "resnet with a wider stem": lambda: resnet(stem=4),
    "resnet of one width": lambda: resnet(sizes=(8, 8), depths=(1, 2)),
    "resnet that halves at once": lambda: resnet(downsample_in_first_stage=True),
}


def made(name, seed=0):
    """A model whose every number is random, so that nothing is the same wherever it stands."""
    torch.manual_seed(seed)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for one in [*model.parameters(), *model.buffers()]:
            if one.is_floating_point():
                one.copy_(
                    one.abs() + 0.5 + torch.rand_like(one)
                    if one.ndim == 1
                    else one + 0.1 * torch.randn_like(one)
                )
    return model


def logits(model):
    with torch.no_grad():
        return model(PICTURES if model.config.model_type == "resnet" else TOKENS).logits


def apart(first, second):
    return (
        sum(
            (one - two).double().square().sum().item()
            for one, two in zip(first.parameters(), second.parameters())
        )
        ** 0.5
    )


# --- renumbering changes nothing ------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_the_permuted_model_gives_the_same_logits(name):
    model = made(name)
    before = tiny.weights(model)
    twin = permute(model, random_permutation(model, seed=3))
    torch.testing.assert_close(logits(twin), logits(model), atol=1e-5, rtol=1e-5)
    assert logits(model).std() > 1e-3, "a model that says the same of everything would show nothing"
    assert apart(twin, model) > 1 and type(twin) is type(model) and tiny.same(model, before)


@pytest.mark.parametrize(
    "name", ["bert", "electra", "resnet", "resnet with bottlenecks", "distilbert"]
)
def test_each_group_alone_changes_weights_and_no_logit(name):
    model = made(name)
    whole = random_permutation(model, seed=5)
    pairs = [
        {group, group.replace("query_key", "value")}
        for group in whole
        if not group.endswith(".value")
    ]
    for pair in pairs:
        twin = permute(model, {group: whole[group] for group in pair})
        assert apart(twin, model) > 0.5
        torch.testing.assert_close(logits(twin), logits(model), atol=1e-5, rtol=1e-5)


def test_the_identity_and_nothing_are_copies():
    model = made("bert")
    for order in ({}, {"residual": torch.arange(24)}):
        twin = permute(model, order)
        assert tiny.same(twin, model) and twin is not model
        with torch.no_grad():
            twin.classifier.weight += 1
        assert not tiny.same(twin, model)


def test_there_and_back_again():
    model = made("bert")
    order = random_permutation(model, seed=1)
    back = {group: vector.argsort() for group, vector in order.items()}
    assert tiny.same(permute(permute(model, order), back), model)


def test_buffers_move_with_their_channels_and_counters_stay():
    model = made("resnet")
    order = random_permutation(model, seed=2)
    first, second = (tiny.weights(one) for one in (model, permute(model, order)))
    name = "resnet.embedder.embedder.normalization."
    assert torch.equal(second[name + "running_mean"], first[name + "running_mean"][order["stem"]])
    assert torch.equal(second[name + "running_var"], first[name + "running_var"][order["stem"]])
    assert first[name + "num_batches_tracked"] == second[name + "num_batches_tracked"]


def test_the_twin_is_an_ordinary_model(tmp_path):
    from transformers import AutoModelForSequenceClassification

    model = made("bert")
    permute(model, random_permutation(model)).save_pretrained(tmp_path)
    torch.testing.assert_close(
        logits(AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()),
        logits(model),
        atol=1e-5,
        rtol=1e-5,
    )


def test_half_precision_keeps_its_type():
    model = made("bert").to(torch.bfloat16)
    twin = permute(model, random_permutation(model))
    assert {value.dtype for value in twin.parameters()} == {torch.bfloat16}
    assert match(twin, model).distance_after == 0


# --- the groups -----------------------------------------------------------------------------------


def test_the_groups_of_an_encoder():
    assert group_sizes(made("bert")) == {
        "residual": 24,
        "layer.0.query_key": 24,
        "layer.0.value": 24,
        "layer.0.feed_forward": 36,
        "layer.1.query_key": 24,
        "layer.1.value": 24,
        "layer.1.feed_forward": 36,
        "pooled": 24,
    }
    assert {"embedding": 12, "residual": 24}.items() <= group_sizes(made("electra")).items()
    assert "embedding" not in group_sizes(made("electra of one width"))


def test_a_stage_without_a_shortcut_shares_the_numbering_before_it():
    assert list(group_sizes(made("resnet"))) == [
        "stem",
        "stage.0.block.0.0",
        "stage.0.block.1.0",
        "stage.1",
        "stage.1.block.0.0",
    ]
    assert "stage.0" in group_sizes(made("resnet with a wider stem"))
    bottleneck = symmetries(made("resnet with bottlenecks"))
    assert bottleneck["resnet.encoder.stages.0.layers.0.layer.1.convolution.weight"] == (
        "stage.0.block.0.1",
        "stage.0.block.0.0",
        None,
        None,
    )


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_has_its_axes(name):
    model = made(name)
    axes = symmetries(model)
    assert axes.keys() == model.state_dict().keys()
    sizes = group_sizes(model)
    for tensor, value in model.state_dict().items():
        assert len(axes[tensor]) == value.ndim
        assert all(
            group is None or sizes[group] == length
            for group, length in zip(axes[tensor], value.shape)
        )


# --- matching -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_matching_finds_what_was_scrambled(name):
    model = made(name)
    order = random_permutation(model, seed=7)
    found = match(permute(model, order), model)
    assert (
        isinstance(found, Matching)
        and found.distance_after == 0 < found.distance_before
        and tiny.same(found.model, model)
    )
    assert all(
        torch.equal(order[group][vector], torch.arange(len(vector)))
        for group, vector in found.permutation.items()
    )


@pytest.mark.parametrize("name", ["bert", "resnet with bottlenecks"])
def test_strangers_come_nearer_and_answer_as_before(name):
    target, reference = made(name, 1), made(name, 2)
    kept = tiny.weights(target), tiny.weights(reference)
    found = match(target, reference)
    torch.testing.assert_close(logits(found.model), logits(target), atol=1e-5, rtol=1e-5)
    assert found.distance_before == pytest.approx(apart(target, reference), rel=1e-5)
    assert found.distance_after == pytest.approx(apart(found.model, reference), rel=1e-5)
    assert found.distance_after < found.distance_before and 0.5 < found.moved <= 1
    assert tiny.same(target, kept[0]) and tiny.same(reference, kept[1]), (
        "both are left as they were"
    )
    again = match(found.model, reference)
    assert again.distance_after <= found.distance_after + 1e-9
    best_of_random = min(
        apart(permute(target, random_permutation(target, seed)), reference) for seed in range(20)
    )
    assert found.distance_after < best_of_random


def test_a_model_that_lies_where_it_should_stays():
    model = made("bert")
    near = copy.deepcopy(model)
    with torch.no_grad():
        for value in near.parameters():
            value += 1e-3 * torch.randn_like(value)
    for target in (model, near):
        found = match(target, model)
        assert (
            found.moved == 0
            and tiny.same(found.model, target)
            and found.distance_after == found.distance_before
        )


def test_the_seed_decides_the_order_and_the_same_seed_the_result():
    target, reference = made("bert", 1), made("bert", 2)
    first = match(target, reference, seed=0)
    assert tiny.same(match(target, reference, seed=0).model, first.model)
    assert any(
        not tiny.same(match(target, reference, seed=seed).model, first.model)
        for seed in range(1, 4)
    )


def test_of_several_orders_the_nearest_is_taken():
    target, reference = made("bert", 1), made("bert", 2)
    each = [match(target, reference, seed).distance_after for seed in range(4)]
    assert nearest_match(target, reference, orders=4).distance_after == min(each) < max(each)


def test_a_permuted_target_is_matched_as_well(seed=0):
    # the numbering that the target came with does not matter, up to the local optimum that is found
    target, reference = made("bert", 1), made("bert", 2)
    found = [
        match(permute(target, random_permutation(target, one)), reference).distance_after
        for one in range(3)
    ]
    assert max(found) < apart(target, reference) and np.std(found) < 0.05 * np.mean(found)


def heads_by_trying(query_key, value, heads):
    """The best sum over all orders of heads and of units within them."""
    width, best = len(query_key) // heads, -np.inf
    for order in itertools.permutations(range(heads)):
        total = 0
        for a, b in enumerate(order):
            for block in (query_key, value):
                part = block[a * width : (a + 1) * width, b * width : (b + 1) * width]
                total += max(
                    sum(part[i, j] for i, j in enumerate(one))
                    for one in itertools.permutations(range(width))
                )
        best = max(best, total)
    return best


def test_heads_are_assigned_as_well_as_any_order_can():
    generator = np.random.default_rng(0)
    for _ in range(10):
        query_key, value = generator.normal(size=(2, 9, 9))
        found = _assign_heads(query_key, value, 3)
        worth = sum(
            one[np.arange(9), vector].sum() for one, vector in zip((query_key, value), found)
        )
        assert worth == pytest.approx(heads_by_trying(query_key, value, 3))
        owners = [vector.reshape(3, 3) // 3 for vector in found]
        assert (
            all((owner == owner[:, :1]).all() for owner in owners)
            and (owners[0] == owners[1]).all()
        )


def test_random_permutations_move_whole_heads():
    model = made("bert")
    orders = [random_permutation(model, seed) for seed in range(6)]
    assert any(
        (order["layer.0.query_key"].reshape(3, 8) // 8)[:, 0].tolist() != [0, 1, 2]
        for order in orders
    )
    assert any(
        not torch.equal(order["layer.0.query_key"], order["layer.0.value"]) for order in orders
    )
    for order in orders:
        assert torch.equal(order["layer.0.query_key"] // 8, order["layer.0.value"] // 8)


def test_trained_models_are_matched_and_answer_as_before():
    options = {
        "num_train_epochs": 2,
        "learning_rate": 3e-3,
        "per_device_train_batch_size": 8,
        "precision": "float32",
        "progress": False,
    }
    old, target = (
        fine_tune(tiny.model(seed), tiny.data(), seed=seed, **options).model.cpu()
        for seed in (0, 1)
    )
    found = match(target, old)
    assert found.distance_after < found.distance_before
    np.testing.assert_allclose(
        predict(found.model, tiny.data()).logits, predict(target, tiny.data()).logits, atol=1e-5
    )
    same = fine_tune(tiny.model(0), tiny.data(), seed=3, **options).model.cpu()
    assert match(same, old).moved < 0.1, "from the same first weights units keep their numbers"


# --- the barrier ----------------------------------------------------------------------------------


def test_barriers_by_hand():
    assert barrier([0.0, 3.0, 2.0]) == 2 and barrier([2.0, 3.0, 0.0]) == 2
    assert barrier([1.0, 0.0, 1.0]) == 0 and barrier([1.0, 2.0, 3.0, 4.0]) == 0
    assert barrier([0.5, 0.9, 1.4, 0.5]) == pytest.approx(0.9)


@pytest.mark.parametrize("values", [[], [1.0, 2.0], [1.0, float("nan"), 1.0], [[1.0, 2.0, 3.0]]])
def test_what_is_no_line_has_no_barrier(values):
    with pytest.raises(ValueError, match="at least 3 finite values"):
        barrier(values)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "order, named",
    [
        ({"nonsense": [0]}, "no groups .'nonsense'.; it has residual"),
        ({"residual": [0] * 24}, "'residual' .* 0 … 23"),
        ({"residual": list(range(23))}, "'residual' is not a permutation"),
        ({"residual": list(range(1, 25))}, "'residual' is not a permutation"),
        ({"layer.1.query_key": [*range(8, 24), *range(8)]}, "'layer.1.query_key' and the value"),
        ({"layer.1.value": [*range(8, 24), *range(8)]}, "'layer.1.query_key' and the value"),
        (
            {"layer.1.query_key": [8, *range(1, 8), 0, *range(9, 24)]},
            "'layer.1.query_key'.*whole heads",
        ),
    ],
)
def test_orders_that_would_change_the_function_are_refused(order, named):
    with pytest.raises(ValueError, match=named):
        permute(made("bert"), order)


def test_units_inside_a_head_may_move_alone():
    model = made("bert")
    twin = permute(model, {"layer.1.query_key": [*reversed(range(8)), *range(8, 24)]})
    torch.testing.assert_close(logits(twin), logits(model), atol=1e-5, rtol=1e-5)


def test_heads_whose_bias_all_layers_share_stay():
    model, groups = made("mpnet"), ("layer.0.query_key", "layer.0.value")
    with pytest.raises(ValueError, match=f"{groups[0]!r} moves heads"):
        permute(model, dict.fromkeys(groups, torch.arange(24).roll(8)))
    scrambled = random_permutation(model, seed=1)
    assert match(permute(model, scrambled), model).distance_after < 1e-4
    assert any(not torch.equal(scrambled[group], torch.arange(24)) for group in groups)


def test_models_of_another_architecture_are_refused_by_tensor():
    with pytest.raises(
        ValueError,
        match="0.*36.*24",
    ):
        match(made("bert"), encoder("bert", intermediate_size=48))
    with pytest.raises(ValueError, match=r"bert.encoder.layer.1.\S+ .*only in the reference"):
        match(encoder("bert", num_hidden_layers=1), made("bert"))
    with pytest.raises(ValueError, match="2 .*heads.* 3"):
        match(encoder("bert", num_attention_heads=2), made("bert"))


def test_models_that_are_not_known_are_refused():
    from transformers import GPT2Config, GPT2ForSequenceClassification

    model = GPT2ForSequenceClassification(
        GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    )
    with pytest.raises(ValueError, match="'gpt2'.*known are bert"):
        symmetries(model)


def test_models_that_give_out_their_units_are_refused():
    from transformers import ResNetModel

    for model in (made("bert").bert, ResNetModel(made("resnet").config)):
        with pytest.raises(ValueError, match=f"{type(model).__name__} gives out its units"):
            permute(model, {})


def test_a_tensor_that_is_not_known_is_named():
    model = made("bert")
    model.bert.encoder.layer[0].adapter = nn.Linear(24, 24)
    with pytest.raises(ValueError, match="bert.encoder.layer.0.adapter.weight"):
        permute(model, {})
    other = made("resnet")
    other.extra = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="extra.weight"):
        match(other, other)


def test_weights_that_are_not_finite_are_named():
    target, reference = made("bert"), made("bert", 1)
    with torch.no_grad():
        target.classifier.bias[0] = torch.nan
    with pytest.raises(ValueError, match="'classifier.bias'"):
        match(target, reference)
