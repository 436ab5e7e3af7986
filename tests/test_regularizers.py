"""Weight-space treatments: the formulas by hand, through the Trainer at both ends of the dial,
new classes, DDP, and what is refused.
"""

import json
from pathlib import Path

import pytest
import tiny
import torch
from torch import nn

from compatkit.experiments.models.trainings import identity, train_once
from compatkit.experiments.running.runs import run_id
from compatkit.regularizers import (
    ElasticWeightConsolidation,
    Mixout,
    PriorWeightDecay,
    WeightTreatment,
    copied_weights,
    head_names,
    mixout_mask,
    refuse_sharded,
    shown,
)
from compatkit.support.hashing import weights_hash
from compatkit.training.loop import Treatment, fine_tune, predict, save_weights

FAST = {
    "num_train_epochs": 2,
    "learning_rate": 3e-3,
    "per_device_train_batch_size": 8,
    "precision": "float32",
    "progress": False,
    "weight_decay": 0.0,
}


def ones(model):
    """A Fisher that finds every weight as important."""
    return {name: torch.ones_like(value) for name, value in model.named_parameters()}


def train(treatment=None, seed=0, model=None, rows=None, **options):
    """A tiny model, trained, on the CPU again."""
    return fine_tune(
        model or tiny.model(), rows or tiny.data(), treatment, seed, **(FAST | options)
    ).model.cpu()


def every(old, strength):
    """Each treatment at a strength between 0 (nothing) and 1 (nothing moves)."""
    return [
        ElasticWeightConsolidation(old, ones(old), 1e6 * strength),
        PriorWeightDecay(old, 1e9 * strength),
        Mixout(old, min(strength, 1 - 1e-12), over="all"),
    ]


NAMES = ("ewc", "prior", "mixout")


# --- the formulas ---------------------------------------------------------------------------------


def test_the_penalty_of_elastic_weight_consolidation_is_the_formula():
    old, new, generator = tiny.model(0), tiny.model(1), torch.Generator().manual_seed(0)
    fisher = {
        name: torch.rand(value.shape, generator=generator) for name, value in old.named_parameters()
    }
    treatment = ElasticWeightConsolidation(old, fisher, weight=0.7)
    penalty = treatment.penalty(treatment.prepare(new))
    before, after = (dict(one.named_parameters()) for one in (old, new))
    expected = 0.35 * sum(
        (fisher[name].double() * (after[name] - before[name]).double().square()).sum()
        for name in fisher
    )
    assert penalty.item() == pytest.approx(expected.item(), rel=1e-5)
    (2 * penalty).backward()
    for name, value in new.named_parameters():
        torch.testing.assert_close(
            value.grad, (1.4 * fisher[name] * (value - before[name])).detach()
        )


def test_the_fisher_of_the_old_model_is_taken_as_it_comes():
    from compatkit.weights.fisher import fisher_diagonal

    rows, old = tiny.data(8), tiny.model(0).eval()
    fisher = fisher_diagonal(
        old, [rows.collate([rows[one] for one in range(start, start + 4)]) for start in (0, 4)]
    )
    treatment, new = ElasticWeightConsolidation(old, fisher, 2.0), tiny.model(1)
    penalty = treatment.penalty(treatment.prepare(new))
    expected = sum(
        (fisher[name] * (value - old.state_dict()[name]) ** 2).sum()
        for name, value in new.named_parameters()
    )
    assert penalty.item() == pytest.approx(expected.item(), rel=1e-4) and penalty > 0


def test_a_long_penalty_is_summed_exactly():
    # a sum of millions of small numbers in single precision loses digits unless it is made in
    # pieces
    old, new = nn.Linear(3000, 1000), nn.Linear(3000, 1000)
    treatment = ElasticWeightConsolidation(old, ones(old), 1.0)
    penalty = treatment.penalty(treatment.prepare(new)).item()
    pairs = zip(new.parameters(), old.parameters())
    expected = 0.5 * sum((one.double() - two.double()).square().sum().item() for one, two in pairs)
    assert penalty == pytest.approx(expected, rel=1e-5)


def test_a_transposed_parameter_and_one_of_another_type():
    old, new = nn.Linear(4, 6), nn.Linear(4, 6)
    new.weight = nn.Parameter(torch.randn(4, 6).T)
    treatment = ElasticWeightConsolidation(old, ones(old), 2.0)
    penalty = treatment.penalty(treatment.prepare(new))
    (3 * penalty).backward()
    torch.testing.assert_close(new.weight.grad, 6 * (new.weight - old.weight).detach())
    half = nn.Linear(4, 6).to(torch.bfloat16)
    assert treatment.penalty(treatment.prepare(half)).dtype == torch.float32


@pytest.mark.parametrize("over", ["all", "matrices"])
def test_prior_weight_decay_is_the_formula(over):
    old, new = tiny.model(0), tiny.model(1)
    with torch.no_grad():
        for value in new.parameters():
            value += 0.1  # biases and norms are the same in fresh models
    before = tiny.weights(new)
    treatment = PriorWeightDecay(old, 5.0, over)
    treatment.after_step(treatment.prepare(new), 0.02)
    for name, value in new.named_parameters():
        pulled = over == "all" or value.ndim > 1
        expected = (
            before[name] - 0.02 * 5 * (before[name] - old.state_dict()[name])
            if pulled
            else before[name]
        )
        torch.testing.assert_close(value.detach(), expected, atol=1e-6, rtol=1e-5)
        assert pulled != torch.equal(value, before[name])


@pytest.mark.parametrize("probability", [0.0, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_masks_have_the_probability_and_the_mean(probability, kind):
    torch.manual_seed(0)
    mask = mixout_mask(torch.empty(501, 401, dtype=kind), probability)
    assert mask.dtype == kind and mask.shape == (501, 401)
    values = mask.unique().tolist()
    assert len(values) <= 2 and values[-1] == pytest.approx(
        1 / (1 - probability), rel=1e-2 if mask.element_size() == 2 else 1e-6
    )
    spread = (probability * (1 - probability) / mask.numel()) ** 0.5
    assert abs((mask == 0).double().mean().item() - probability) <= 4 * spread
    other = mixout_mask(torch.empty(501, 401, dtype=kind), probability)
    assert torch.equal(mask, other) == (probability == 0)
    torch.manual_seed(0)
    assert torch.equal(mixout_mask(torch.empty(501, 401, dtype=kind), probability), mask)


def test_neighbours_in_a_mask_know_nothing_of_each_other():
    torch.manual_seed(1)
    flat = (mixout_mask(torch.empty(400_000), 0.5) == 0).double() - 0.5
    for apart in (1, 2, 3, 4, 8):  # two numbers come from one draw
        assert abs((flat[apart:] * flat[:-apart]).mean().item() * 4) < 4 / 400_000**0.5


def test_a_probability_next_to_1_leaves_nothing():
    assert (
        not mixout_mask(torch.empty(9), 1 - 1e-12).any()
        and (mixout_mask(torch.empty(9), 1e-12) == 1).all()
    )


def seen_weights(treatment, model, times, module):
    """What a layer saw as its weight in forward passes of the treatment."""
    seen, rows = [], tiny.data(2)
    batch = rows.collate([rows[0], rows[1]])
    handle = module.register_forward_hook(
        lambda layer, given, result: seen.append(layer.weight.detach().clone())
    )
    for _ in range(times):
        treatment.forward(model, batch, None, 0)
    handle.remove()
    return seen


def test_mixout_shows_the_formula_and_its_mean_is_the_model():
    old, new = tiny.model(0), tiny.model(1).train()
    treatment = Mixout(old, 0.8)
    treatment.prepare(new)
    module, anchor = new.bert.pooler.dense, old.bert.pooler.dense.weight.detach()
    own = module.weight.detach().clone()
    seen = seen_weights(treatment, new, 300, module)
    for one in seen[:3]:
        is_old, enlarged = (
            torch.isclose(one, anchor),
            torch.isclose(one, anchor + 5 * (own - anchor), atol=1e-6),
        )
        assert (is_old | enlarged).all() and 0.74 < is_old.float().mean() < 0.86
    assert not torch.equal(seen[0], seen[1])
    error = torch.stack(seen).mean(0) - own
    assert (
        error.abs().max() < 5 * 2 * (own - anchor).abs().max() / 300**0.5
    )  # a standard deviation is 2 |θ − θ_o|
    assert torch.equal(module.weight, own) and isinstance(module.weight, nn.Parameter)


def test_mixout_takes_linear_matrices_or_all():
    old, new = tiny.model(0), tiny.model(1).train()
    with torch.no_grad():
        for value in new.parameters():
            value += 0.1
    for over in ("linear", "all"):
        treatment = Mixout(old, 0.5, over)
        treatment.prepare(new)
        places = {(id(module), name) for module, name, _ in treatment._mixed(new, new)}
        expected = {
            (id(module), name)
            for module in new.modules()
            for name in module._parameters
            if over == "all" or (name == "weight" and isinstance(module, nn.Linear))
        }
        assert places == expected and len(places) > 5


def test_mixout_multiplies_the_gradient_by_its_mask():
    torch.manual_seed(0)
    layer = nn.Linear(6, 4)
    treatment, new = (
        Mixout({"weight": torch.zeros(4, 6), "bias": torch.zeros(4)}, 0.5),
        nn.Linear(6, 4).train(),
    )
    treatment.prepare(new)
    with shown(treatment._mixed(new, new), []):
        shows = new.weight
        given = torch.randn(3, 6)
        (new(given) * layer(given)).sum().backward()
    mask = (shows.detach() != 0).float() * 2
    torch.testing.assert_close(shows.detach(), mask * new.weight.detach())
    torch.testing.assert_close(new.weight.grad, mask * (layer(given).T @ given).detach())
    assert new.bias.grad is not None


def test_a_shared_matrix_is_mixed_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
            self.second.weight = self.first.weight

    new = Tied().train()
    treatment = Mixout(Tied(), 0.5)
    treatment.prepare(new)
    places = treatment._mixed(new, new)
    assert len(places) == 2 and places[0][2] is places[1][2]


# --- through the Trainer --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain():
    """The weights of plain training with seed 0."""
    return tiny.weights(train())


@pytest.mark.parametrize("which", range(3), ids=NAMES)
def test_no_strength_is_plain_training_bit_for_bit(plain, which):
    old = tiny.model(3)
    treatment = every(old, 0)[which]
    assert tiny.same(train(treatment), plain)
    assert tiny.same(old, tiny.model(3)), "the old model is left as it was"


@pytest.mark.parametrize("which", range(3), ids=NAMES)
def test_a_huge_strength_gives_the_old_weights(plain, which):
    # under a huge penalty Adam trembles around the old weights by about its rate, so it needs time
    # until that has fallen
    start, longer = tiny.model(), {"num_train_epochs": 20} if which == 0 else {}
    held = tiny.distance(train(every(tiny.model(), 1)[which], learning_rate=1e-3, **longer), start)
    assert held < 1e-4 and 100 * held < tiny.distance(plain, start)


def test_prior_weight_decay_brings_other_weights_to_the_old_ones():
    old = tiny.model(seed=4)
    found = train(PriorWeightDecay(old, 1e9), warmup_steps=0)
    assert tiny.distance(found, old) < 1e-6 < tiny.distance(tiny.model(), old)


@pytest.mark.parametrize("which", range(3), ids=NAMES)
def test_more_strength_stays_nearer(plain, which):
    start = tiny.model()

    def squares(found):
        return sum(
            ((value - start.state_dict()[name]) ** 2).sum().item() for name, value in found.items()
        )

    def length(model):
        return squares(tiny.weights(model)) ** 0.5

    strengths = ((1e-2, 1.0), (30.0, 300.0), (0.5, 0.95))[which]
    makers = (
        lambda one: ElasticWeightConsolidation(start, ones(start), one),
        lambda one: PriorWeightDecay(start, one),
        lambda one: Mixout(start, one, "all"),
    )
    near, far = (length(train(makers[which](one))) for one in reversed(strengths))
    free = squares(plain) ** 0.5
    assert 0 < near < 0.8 * far and far < 0.99 * free


def test_the_old_model_may_be_the_one_that_is_trained(plain):
    # the weights are copied when the treatment is made: an anchor that moves along would hold
    # nothing
    model = tiny.model()
    assert tiny.distance(train(PriorWeightDecay(model, 1e9), model=model), tiny.model()) < 1e-6


@pytest.mark.parametrize("which", range(3), ids=NAMES)
def test_the_same_seed_gives_the_same_bits(which):
    def make():
        return every(tiny.model(2), (1e-6, 1e-8, 0.5)[which])[which]

    first = tiny.weights(train(make()))
    assert tiny.same(train(make()), first) and not tiny.same(train(make(), seed=1), first)


@pytest.mark.parametrize("which", range(3), ids=NAMES)
def test_the_trained_model_is_an_ordinary_one(tmp_path, which):
    from transformers import AutoModelForSequenceClassification

    model = train(every(tiny.model(2), 0.1)[which])
    assert (
        type(model) is type(tiny.model())
        and model.state_dict().keys() == tiny.model().state_dict().keys()
    )
    assert all(
        "weight" not in vars(module) and "bias" not in vars(module) for module in model.modules()
    )
    assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {0.1}
    model.save_pretrained(tmp_path)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert (predict(again, tiny.data()).logits == predict(model, tiny.data()).logits).all()


def test_a_treatment_may_train_one_model_after_another():
    treatment = Mixout(tiny.model(2), 0.5)
    first = tiny.weights(train(treatment))
    assert tiny.same(train(treatment), first)


def test_the_penalty_counts_once_however_the_batch_is_cut():
    old = tiny.model(2, dropout=0.0)
    options = {"optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.0}

    def treatment():
        return ElasticWeightConsolidation(old, ones(old), 0.5)

    halves = train(
        treatment(),
        model=tiny.model(dropout=0.0),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        **options,
    )
    whole = train(treatment(), model=tiny.model(dropout=0.0), **options)
    assert (
        tiny.distance(halves, whole)
        < 1e-5
        < tiny.distance(whole, train(model=tiny.model(dropout=0.0), **options))
    )


def test_frozen_tensors_are_left_alone():
    old, model = tiny.model(2), tiny.model()
    model.bert.embeddings.requires_grad_(False)
    before = tiny.weights(model.bert.embeddings)
    for treatment in every(old, 0.5):
        train(treatment, model=model)
    assert tiny.same(model.bert.embeddings, before)


def test_mixed_precision():
    old = tiny.model()
    for treatment in every(old, 1):
        assert tiny.distance(train(treatment, precision="bfloat16", learning_rate=1e-4), old) < 1e-3


# --- dropout and evaluation -----------------------------------------------------------------------


def test_mixout_takes_the_place_of_dropout_and_is_off_in_evaluation():
    new = tiny.model(1, dropout=0.5).train()
    treatment = Mixout(
        new,
        0.9,
        # the old weights are the model's own: the mixture changes nothing, so that only dropout
        # could
    )
    treatment.prepare(new)
    rows = tiny.data(2)
    batch = rows.collate([rows[0], rows[1]])
    calm = new.eval()(**batch).logits
    torch.testing.assert_close(treatment.forward(new.train(), batch, None, 0), calm)
    other = Mixout(tiny.model(2), 0.9)
    other.prepare(new)
    assert not torch.allclose(other.forward(new.train(), batch, None, 0), calm)
    assert torch.equal(other.forward(new.eval(), batch, None, 0), calm)
    assert {module.p for module in new.modules() if isinstance(module, nn.Dropout)} == {0.5}


def test_whatever_fails_inside_the_model_is_left_as_it_was():
    new = tiny.model(1).train()
    treatment = Mixout(tiny.model(2), 0.5, "all")
    treatment.prepare(new)
    with pytest.raises(Exception):
        treatment.forward(new, {"input_ids": torch.tensor([[10**6]])}, None, 0)
    assert all("weight" not in vars(module) for module in new.modules())
    assert {module.p for module in new.modules() if isinstance(module, nn.Dropout)} == {0.1}


def test_gradient_checkpointing_is_refused():
    new = tiny.model(1).train()
    new.bert.encoder.layer[0].gradient_checkpointing = True
    treatment = Mixout(tiny.model(2), 0.5)
    treatment.prepare(new)
    with pytest.raises(ValueError, match="without gradient_checkpointing"):
        treatment.forward(new, {"input_ids": torch.tensor([[5, 6]])}, None, 0)


def test_a_compiled_model_is_refused():
    new = tiny.model(1).train()
    treatment = Mixout(tiny.model(2), 0.5)
    treatment.prepare(new)
    with pytest.raises(ValueError, match="without torch_compile"):
        treatment.forward(torch.compile(new), {"input_ids": torch.tensor([[5, 6]])}, None, 0)


# --- new classes ----------------------------------------------------------------------------------

MORE = (*tiny.CLASSES, "fourth", "fifth")
PLACES = (3, 0, 4)  # where the old classes are among the new ones


@pytest.mark.parametrize("which", range(3), ids=NAMES)
def test_rows_of_new_classes_are_free(which):
    old, new = tiny.model(0), tiny.model(0, classes=MORE)
    with torch.no_grad():
        for name in ("weight", "bias"):
            getattr(new.classifier, name)[list(PLACES)] = getattr(old.classifier, name)
            getattr(new.classifier, name)[[1, 2]] = 0.5
    start = tiny.weights(new)
    treatment = (
        ElasticWeightConsolidation(old, ones(old), 1e6, old_classes=PLACES),
        PriorWeightDecay(old, 1e9, old_classes=PLACES),
        Mixout(old, 1 - 1e-12, "all", old_classes=PLACES),
    )[which]
    found = tiny.weights(
        train(treatment, model=new, learning_rate=1e-3, num_train_epochs=20 if which == 0 else 2)
    )
    small = 1e-4 if which == 0 else 1e-6
    for name, value in found.items():
        moved = (value - start[name]).abs()
        if name.startswith("classifier."):
            assert moved[list(PLACES)].max() < small and moved[[1, 2]].mean() > 1e-4, name
        else:
            assert moved.max() < small, name


def test_free_rows_are_mixed_with_nothing():
    old, new = tiny.model(0), tiny.model(1, classes=MORE).train()
    treatment = Mixout(old, 0.9, old_classes=PLACES)
    treatment.prepare(new)
    mixed = {id(module): tensor for module, _, tensor in treatment._mixed(new, new)}[
        id(new.classifier)
    ]
    assert torch.equal(mixed[[1, 2]], new.classifier.weight[[1, 2]]) and not torch.equal(
        mixed, new.classifier.weight
    )


@pytest.mark.parametrize("places", [None, (0, 1), (0, 1, 1), (0, 1, 5), (-1, 0, 1)])
def test_heads_that_do_not_fit_are_named(places):
    with pytest.raises(
        ValueError,
        match=r"classifier\.weight.*old_classes"
        if places is None
        else r"old_classes.*classifier\.weight",
    ):
        PriorWeightDecay(tiny.model(0), old_classes=places).prepare(tiny.model(0, classes=MORE))


def test_the_head_is_found():
    assert head_names(tiny.model()) == {"classifier.weight", "classifier.bias"}


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [lambda old, one: ElasticWeightConsolidation(old, ones(old), one), PriorWeightDecay]
)
@pytest.mark.parametrize("weight", [-1e-9, float("nan"), float("inf")])
def test_a_weight_below_0_or_without_end_is_refused(make, weight):
    with pytest.raises(ValueError, match=f"weight is {weight}"):
        make(tiny.model(), weight)


@pytest.mark.parametrize("probability", [-0.1, 1, 1.5, float("nan")])
def test_a_probability_outside_is_refused(probability):
    with pytest.raises(ValueError, match=f"probability is {probability}"):
        Mixout(tiny.model(), probability)


def test_words_that_are_not_known_are_refused():
    with pytest.raises(ValueError, match="'linear' and 'all'"):
        Mixout(tiny.model(), 0.5, over="matrices")
    with pytest.raises(ValueError, match="'all' and 'matrices'"):
        PriorWeightDecay(tiny.model(), 1.0, over="linear")


def without(weights, *names):
    return {name: value for name, value in weights.items() if name not in names}


def test_old_weights_that_do_not_fit_are_named():
    old, new = tiny.weights(tiny.model()), tiny.model()
    with pytest.raises(ValueError, match="no tensor 'bert.pooler.dense.bias'"):
        PriorWeightDecay(without(old, "bert.pooler.dense.bias")).prepare(new)
    with pytest.raises(ValueError, match="new model lacks.*'extra'"):
        PriorWeightDecay(old | {"extra": torch.zeros(2)}).prepare(new)
    with pytest.raises(
        ValueError,
        match=r"'bert.pooler.dense.weight'.*\(32, 31\).*\(32, 32\)",
    ):
        Mixout(old | {"bert.pooler.dense.weight": torch.zeros(32, 31)}).prepare(new)
    with pytest.raises(ValueError, match="'classifier.bias'"):
        WeightTreatment(old | {"classifier.bias": torch.tensor([0.0, torch.nan, 1.0])})
    with pytest.raises(ValueError, match="name → tensor.*'a'"):
        WeightTreatment({"a": 1.0})
    with pytest.raises(ValueError, match="name → tensor.*'str'"):
        WeightTreatment("old/model.safetensors")
    with pytest.raises(ValueError, match="empty"):
        WeightTreatment({})
    with pytest.raises(ValueError, match="bert.encoder.layer.1"):
        PriorWeightDecay(tiny.model(layers=2)).prepare(new)
    with pytest.raises(ValueError, match="bert.encoder.layer.1"):
        train(Mixout(old), model=tiny.model(layers=2))


def test_a_fisher_of_another_model_is_named():
    old, fisher, name = tiny.model(), ones(tiny.model()), "bert.pooler.dense.weight"
    with pytest.raises(ValueError, match="'extra'"):
        ElasticWeightConsolidation(old, fisher | {"extra": torch.ones(2)})
    with pytest.raises(
        ValueError,
        match=r"'bert.pooler.dense.weight'.*Fisher.*\(32, 31\).*\(32, 32\)",
    ):
        ElasticWeightConsolidation(old, fisher | {name: torch.ones(32, 31)})
    for value in (-1.0, torch.nan, torch.inf):
        with pytest.raises(ValueError, match="negative.*'bert.pooler.dense.weight'"):
            ElasticWeightConsolidation(old, fisher | {name: torch.full((32, 32), value)})
    with pytest.raises(ValueError, match="no tensor 'bert.pooler.dense.weight'"):
        ElasticWeightConsolidation(old, without(fisher, name)).prepare(tiny.model())


def test_another_model_than_the_prepared_one_is_refused():
    treatment = PriorWeightDecay(tiny.model(), 1.0)
    with pytest.raises(ValueError, match="not prepared by PriorWeightDecay"):
        treatment.after_step(tiny.model(), 0.1)
    treatment.prepare(tiny.model())
    with pytest.raises(ValueError, match="layer.1"):
        treatment.after_step(tiny.model(layers=2), 0.1)


@pytest.mark.parametrize("mark", ["ds_id", "placements", "_is_flat_param"])
def test_tensors_that_are_cut_over_machines_are_refused_by_name(mark):
    model = tiny.model()
    treatments = every(tiny.model(), 0.5)
    for treatment in treatments:
        treatment.prepare(model)
    setattr(model.bert.pooler.dense.weight, mark, 1)
    for treatment, hook in zip(
        treatments,
        (
            lambda one: one.penalty(model),
            lambda one: one.after_step(model, 0.1),
            lambda one: one.forward(model.train(), {}, None, 0),
        ),
    ):
        with pytest.raises(
            ValueError,
            match=f"{type(treatment).__name__} reads and writes whole tensors, but "
            "'bert.pooler.dense.weight'",
        ):
            hook(treatment)
        with pytest.raises(ValueError, match="'bert.pooler.dense.weight' is cut"):
            treatment.prepare(model)


def test_a_piece_of_a_tensor_is_refused_by_name():
    model, treatment = tiny.model(), PriorWeightDecay(tiny.model(), 1.0)
    treatment.prepare(model)
    model.bert.pooler.dense.weight.data = torch.zeros(512)  # as FSDP leaves it
    with pytest.raises(ValueError, match="'bert.pooler.dense.weight' is cut"):
        treatment.after_step(model, 0.1)


def test_copies_on_several_devices_are_refused():
    with pytest.raises(ValueError, match="DataParallel.*torchrun"):
        refuse_sharded(nn.DataParallel(nn.Linear(2, 2)), "Mixout")
    refuse_sharded(nn.Linear(2, 2), "Mixout")


# --- what a record says ---------------------------------------------------------------------------


def hash_of(weights):
    return weights_hash(sorted(weights.items()), "{name} {dtype} {shape}\n")


def test_the_record_names_the_weights_without_holding_them():
    old = tiny.model()
    for treatment in (*every(old, 0.5), PriorWeightDecay(old, old_classes=[2, 0, 1])):
        content = treatment.configuration()
        assert (
            json.loads(json.dumps(content))
            and content["old_weights"] == hash_of(tiny.weights(old))
            and len(content["old_weights"]) == 16
        )
    assert Mixout(old, 0.5).configuration() == {
        "name": "Mixout",
        "probability": 0.5,
        "over": "linear",
        "old_classes": None,
        "old_weights": hash_of(tiny.weights(old)),
    }
    treatment = Mixout(old, 0.5)
    content = treatment.configuration()
    treatment.prepare(tiny.model(1))
    assert treatment.configuration() == content, "a run has one name before and after"


def test_what_decides_a_run_is_in_its_name():
    old, other = tiny.model(0), tiny.model(1)

    def name(treatment):
        return run_id(identity("fine_tune", tiny.task(), tiny.RECIPE, 0, treatment))

    half = {key: value / 2 for key, value in ones(old).items()}
    different = [
        name(None),
        name(Treatment()),
        *(name(one) for one in every(old, 0.5)),
        *(name(one) for one in every(old, 0.25)),
        *(name(one) for one in every(other, 0.5)),
        name(Mixout(old, 0.5)),
        name(ElasticWeightConsolidation(old, half, 5e3)),
        name(PriorWeightDecay(old, 1.0, "matrices")),
        name(PriorWeightDecay(old, 1.0, "matrices", (0, 1, 2))),
    ]
    assert len(set(different)) == len(different)
    assert name(Mixout(old, 0.5)) == name(Mixout(tiny.weights(old), 0.5))


def test_the_record_names_old_weights_as_published_runs_do():
    weights = {"b": torch.arange(6.0).reshape(2, 3).T, "a": torch.tensor(1.5).bfloat16()}
    treatment = ElasticWeightConsolidation(weights, {"b": torch.ones(3, 2)})
    assert treatment.configuration()["old_weights"] == "d49f6eb4752c7853"
    assert treatment.configuration()["fisher"] == "1b2cb84cebdf441f"


def test_copies_hold_floating_point_only():
    found = copied_weights({"a": torch.zeros(2), "counter": torch.tensor(3)})
    assert list(found) == ["a"]


def test_a_run_refuses_old_weights_of_another_vocabulary(tmp_path):
    treatment = PriorWeightDecay(tiny.model(5), 10.0)
    with pytest.raises(ValueError, match="word_embeddings"):  # the recipe's own is another
        train_once(tiny.task(), tiny.RECIPE, 0, treatment, home=tmp_path)


# --- two processes --------------------------------------------------------------------------------

SHARED = {"sgd": {"optim": "sgd", "learning_rate": 0.2, "num_train_epochs": 3}}


def shared(which):
    old = tiny.model(2, dropout=0.0)
    return (
        ElasticWeightConsolidation(old, ones(old), 0.3),
        PriorWeightDecay(old, 1.0),
        Mixout(old, 0.5),
    )[which]


def train_share(rank, folder):
    """One of two processes that train together."""
    for which in range(3):
        options = SHARED["sgd"] | {
            "per_device_train_batch_size": 4,
            "ddp_backend": "gloo",
            "use_cpu": True,
        }
        save_weights(
            train(shared(which), model=tiny.model(dropout=0.0), **options),
            Path(folder) / f"{which}-{rank}.safetensors",
        )


@pytest.fixture(scope="module")
def trained_by_two(tmp_path_factory):
    """(treatment, rank) → weights that two processes left."""
    from safetensors.torch import load_file

    folder = tmp_path_factory.mktemp("two")
    tiny.train_together(train_share, str(folder))
    return {
        (which, rank): load_file(folder / f"{which}-{rank}.safetensors")
        for which in range(3)
        for rank in range(2)
    }


@pytest.mark.parametrize("which", range(3), ids=NAMES)
def test_two_processes_hold_the_same_weights(trained_by_two, which):
    first, second = trained_by_two[which, 0], trained_by_two[which, 1]
    assert tiny.same(first, second)
    alone = tiny.weights(
        train(shared(which), model=tiny.model(dropout=0.0), use_cpu=True, **SHARED["sgd"])
    )
    if which < 2:  # without chance, two processes give what one gives with twice the batch
        assert tiny.distance(alone, first) < 1e-5
    assert (
        tiny.distance(first, train(model=tiny.model(dropout=0.0), use_cpu=True, **SHARED["sgd"]))
        > 1e-3
    )
