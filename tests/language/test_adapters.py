"""Adapters: several on one base, on disk and back, tied to their base, trained, killed and gone
on with.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import tiny_llama
import torch
from peft import PeftModel
from tiny_llama import RECIPE
from transformers import TrainerCallback

from compatkit.language.adapters import (
    AdapterRecipe,
    Objective,
    RowsPart,
    add_adapter,
    base_fingerprint,
    copy_adapter,
    load_adapter,
    save_adapter,
    split_rows,
    switched_to,
    train_adapter,
)
from compatkit.language.teachers import model_fingerprint

ROWS = tiny_llama.counting(40)
BATCH = tiny_llama.text_of(tiny_llama.batch_of(ROWS, range(4)))
STEPS_ONLY = {"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}


def with_adapter(seed=0, recipe=RECIPE, stirred=False):
    """A Llama with an adapter; stirred: one that changes something."""
    model = add_adapter(tiny_llama.llama(seed), recipe, seed=seed)
    if stirred:
        torch.manual_seed(seed)
        with torch.no_grad():
            for name, value in model.named_parameters():
                if "lora_B" in name:
                    value.normal_(std=0.3)
    return model


def logits(model):
    with torch.no_grad():
        return model(**BATCH).logits


# --- several adapters, one base -------------------------------------------------------------------


def test_a_new_adapter_changes_no_answer_and_is_all_that_is_trained():
    model = with_adapter()
    assert torch.equal(logits(model), logits(tiny_llama.llama()))
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    assert trained and all(".task." in name for name in trained)
    layers = {name.split(".lora_")[0].rpartition(".")[2] for name in trained}
    assert layers == {
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    }, "all linear layers but the head"


def test_the_papers_recipe_is_the_default():
    recipe, lora = AdapterRecipe(), AdapterRecipe().lora()
    assert (lora.r, lora.lora_alpha, lora.lora_dropout) == (128, 256, 0.0)
    assert (
        recipe.learning_rate,
        recipe.epochs,
        recipe.accumulation,
        recipe.warmup_steps,
        recipe.weight_decay,
    ) == (1e-4, 10, 8, 500, 0)


def test_a_copy_answers_alike_and_lives_its_own_life():
    model = with_adapter(stirred=True)
    before = logits(model)
    copy_adapter(model, "task", "copy")
    assert model.active_adapter == "copy" and torch.equal(logits(model), before)
    assert all(".copy." in name for name, value in model.named_parameters() if value.requires_grad)
    with torch.no_grad():
        next(value for name, value in model.named_parameters() if "lora_B.copy" in name).add_(1)
    assert not torch.equal(logits(model), before)
    with switched_to(model, "task"):
        assert torch.equal(logits(model), before)


def test_the_base_is_held_once():
    model = with_adapter()
    single = sum(value.numel() for name, value in model.named_parameters() if "lora" not in name)
    copy_adapter(model, "task", "copy")
    assert (
        sum(value.numel() for name, value in model.named_parameters() if "lora" not in name)
        == single
        == tiny_llama.llama().num_parameters()
    )


def test_switching_puts_everything_back_also_after_an_error():
    model = with_adapter(stirred=True)
    copy_adapter(model, "task", "copy")
    model.train()
    state = {name: value.requires_grad for name, value in model.named_parameters()}
    with pytest.raises(RuntimeError, match="stop"):
        with switched_to(model, "task"):
            assert model.active_adapter == "task" and not model.training
            assert not any(value.requires_grad for value in model.parameters())
            raise RuntimeError("stop")
    assert model.active_adapter == "copy" and model.training
    assert state == {name: value.requires_grad for name, value in model.named_parameters()}


def test_switching_leaves_a_frozen_adapter_frozen():
    model = with_adapter(stirred=True)
    model.requires_grad_(False)
    with switched_to(model, "task"):
        pass
    assert not any(value.requires_grad for value in model.parameters())


def test_an_adapter_may_have_any_name():
    prints = set()
    for name in ("task", "model", "weight", "lora_A"):
        model = add_adapter(tiny_llama.llama(), RECIPE, name)
        copy_adapter(model, name, "default")
        assert base_fingerprint(model) == base_fingerprint(tiny_llama.llama())
        prints.add(model_fingerprint(model))
    assert len(prints) == 1


def test_a_name_that_is_taken_is_refused():
    model = with_adapter()
    for again in (lambda: add_adapter(model, RECIPE), lambda: copy_adapter(model, "task", "task")):
        with pytest.raises(ValueError, match="'task'"):
            again()


# --- on disk --------------------------------------------------------------------------------------


def test_saved_and_loaded_here_and_by_peft(tmp_path):
    model = with_adapter(stirred=True)
    save_adapter(model, "task", tmp_path)
    assert torch.equal(logits(load_adapter(tiny_llama.llama(), tmp_path)), logits(model))
    assert torch.equal(
        logits(PeftModel.from_pretrained(tiny_llama.llama(), str(tmp_path))), logits(model)
    )
    second = load_adapter(with_adapter(), tmp_path, "second")
    assert torch.equal(logits(second), logits(model)) and sorted(second.peft_config) == [
        "second",
        "task",
    ]


WITHOUT = """
import sys
sys.modules["compatkit"] = None
import numpy, torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
base, adapter, batch, answers = sys.argv[1:]
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).eval()
tokens = {name: torch.from_numpy(value) for name, value in numpy.load(batch).items()}
with torch.no_grad():
    numpy.save(answers, model(**tokens).logits.numpy())
assert not [name for name in sys.modules if name.startswith("compatkit.")]
"""


def test_it_loads_in_a_process_without_compatkit_and_answers_alike(tmp_path):
    model = with_adapter(stirred=True)
    copy_adapter(model, "task", "compatibility")
    with torch.no_grad():
        next(
            value for name, value in model.named_parameters() if "lora_B.compatibility" in name
        ).add_(0.1)
    save_adapter(model, "compatibility", tmp_path / "adapter")
    tiny_llama.llama().save_pretrained(tmp_path / "base")
    np.savez(tmp_path / "batch.npz", **{name: value.numpy() for name, value in BATCH.items()})
    places = [str(tmp_path / name) for name in ("base", "adapter", "batch.npz", "answers.npy")]
    subprocess.run(
        [sys.executable, "-c", WITHOUT, *places],
        check=True,
        cwd=tmp_path,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    np.testing.assert_array_equal(np.load(tmp_path / "answers.npy"), logits(model).numpy())


def test_an_adapter_of_another_base_is_refused(tmp_path):
    save_adapter(with_adapter(stirred=True), "task", tmp_path)
    for other in (tiny_llama.llama(1), tiny_llama.llama(layers=2), tiny_llama.llama(vocabulary=50)):
        with pytest.raises(ValueError, match="another base model"):
            load_adapter(other, tmp_path)
    load_adapter(tiny_llama.llama(1), tmp_path, any_base=True)
    (tmp_path / "base.json").unlink()  # as PEFT alone writes it: then only the shapes can tell
    with pytest.raises(ValueError, match="this base model"):
        load_adapter(tiny_llama.llama(width=48), tmp_path)
    load_adapter(tiny_llama.llama(1), tmp_path)


def test_a_damaged_or_missing_adapter_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no adapter in"):
        load_adapter(tiny_llama.llama(), tmp_path)
    save_adapter(with_adapter(), "task", tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="its file is damaged"):
        load_adapter(tiny_llama.llama(), tmp_path)


def test_the_bases_fingerprint_does_not_depend_on_adapters():
    bare = base_fingerprint(tiny_llama.llama())
    model = with_adapter(stirred=True)
    copy_adapter(model, "task", "copy")
    assert base_fingerprint(model) == bare != base_fingerprint(tiny_llama.llama(1))
    with switched_to(model, "task"):
        first = model_fingerprint(model)
    assert model_fingerprint(model) == first, "equal weights under another name"
    with torch.no_grad():
        next(value for name, value in model.named_parameters() if "lora_A.copy" in name).add_(1)
    assert model_fingerprint(model) != first


# --- training -------------------------------------------------------------------------------------


def test_the_split_is_fixed_and_without_overlap():
    train, validation = split_rows(ROWS)
    assert (len(train), len(validation)) == (32, 8) and sorted(
        train.ids + validation.ids
    ) == sorted(ROWS.ids)
    assert split_rows(ROWS)[0].fingerprint == train.fingerprint != validation.fingerprint
    assert all(
        train[n]["input_ids"] == ROWS.tokens[ROWS.ids.index(train.ids[n])] for n in range(32)
    )


def evaluations(trained):
    return [entry["eval_loss"] for entry in trained.history if "eval_loss" in entry]


def test_it_learns_and_only_the_adapter_moves():
    model = with_adapter()
    trained = train_adapter(model, *split_rows(ROWS), replace(RECIPE, epochs=6))
    assert evaluations(trained)[-1] < evaluations(trained)[0] < 5 and base_fingerprint(
        model
    ) == base_fingerprint(tiny_llama.llama())
    assert not model.training


class Wandering(Objective):
    """Cross-entropy whose evaluations are given: the second epoch looks best."""

    given = [3.0, 1.0, 2.0]

    def __init__(self):
        self.weights = []

    def loss(self, model, inputs):
        if model.training:
            return super().loss(model, inputs)
        self.weights.append(model_fingerprint(model))
        return torch.tensor(self.given[len(self.weights) - 1])


def test_the_best_epochs_adapter_is_the_result():
    model, objective = with_adapter(), Wandering()
    trained = train_adapter(
        model, *split_rows(ROWS), RECIPE, objective, per_device_eval_batch_size=8
    )
    assert (trained.best_epoch, trained.validation_loss) == (2.0, 1.0)
    assert len(set(objective.weights)) == 3 and model_fingerprint(model) == objective.weights[1]


def test_the_same_seed_gives_the_same_bits():
    first, second, other = with_adapter(), with_adapter(), with_adapter()
    for model, seed in ((first, 0), (second, 0), (other, 1)):
        train_adapter(model, *split_rows(ROWS), RECIPE, seed=seed)
    assert model_fingerprint(first) == model_fingerprint(second) != model_fingerprint(other)


class Killed(Exception):
    pass


class Kill(TrainerCallback):
    def __init__(self, epoch, while_saving=False):
        self.epoch, self.while_saving = epoch, while_saving

    def on_save(self, args, state, control, **others):
        if state.epoch >= self.epoch and not self.while_saving:
            raise Killed

    def on_evaluate(self, args, state, control, **others):
        if (
            state.epoch >= self.epoch and self.while_saving
        ):  # the next thing would be a checkpoint; leave one half-written
            from pathlib import Path

            half = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            half.mkdir()
            (half / "adapter_model.safetensors").write_bytes(b"half")
            raise Killed


@pytest.mark.parametrize("kill", ((1, False), (2, False), (1, True), (3, True)))
def test_a_killed_training_goes_on_and_ends_the_same(tmp_path, kill):
    whole, parts = with_adapter(), with_adapter()
    wanted = train_adapter(whole, *split_rows(ROWS), RECIPE)
    with pytest.raises(Killed):
        train_adapter(parts, *split_rows(ROWS), RECIPE, folder=tmp_path, callbacks=(Kill(*kill),))
    again = with_adapter()
    found = train_adapter(again, *split_rows(ROWS), RECIPE, folder=tmp_path)
    assert model_fingerprint(again) == model_fingerprint(whole) and evaluations(
        found
    ) == evaluations(wanted)
    finished = with_adapter()
    assert (
        train_adapter(finished, *split_rows(ROWS), RECIPE, folder=tmp_path).best_epoch
        == wanted.best_epoch
    )
    assert model_fingerprint(finished) == model_fingerprint(whole), "asked again, it is there"


def test_a_checkpoint_holds_the_adapter_and_not_the_base(tmp_path):
    model = with_adapter(stirred=True)
    copy_adapter(model, "task", "second")
    train_adapter(model, *split_rows(ROWS), RECIPE, folder=tmp_path)
    found = {path.name for path in tmp_path.glob("checkpoint-*/*")}
    assert {"adapter_model.safetensors", "adapter_config.json", "optimizer.pt"} <= found and not {
        "model.safetensors",
        "task",
        "second",
    } & found


def test_the_checkpoints_of_another_training_are_refused(tmp_path):
    train_adapter(with_adapter(), *split_rows(ROWS), RECIPE, folder=tmp_path)
    other = tiny_llama.counting(40, seed=1)
    for named, call in {
        "seed": lambda: train_adapter(
            with_adapter(), *split_rows(ROWS), RECIPE, seed=1, folder=tmp_path
        ),
        "recipe": lambda: train_adapter(
            with_adapter(), *split_rows(ROWS), replace(RECIPE, epochs=4), folder=tmp_path
        ),
        "base": lambda: train_adapter(with_adapter(1), *split_rows(ROWS), RECIPE, folder=tmp_path),
        "train, validation": lambda: train_adapter(
            with_adapter(), *split_rows(other), RECIPE, folder=tmp_path
        ),
    }.items():
        with pytest.raises(ValueError, match=rf"of another training \(.*{named}.* differ\)"):
            call()


def test_a_loss_that_is_no_number_stops_the_training():
    class Broken(Objective):
        def loss(self, model, inputs):
            return super().loss(model, inputs) * float("nan")

    with pytest.raises(FloatingPointError, match="loss is nan at step"):
        train_adapter(with_adapter(), *split_rows(ROWS), RECIPE, Broken())


def test_a_batch_of_masked_labels_is_named():
    from compatkit.language.models import TokenRows

    rows = TokenRows([str(n) for n in range(10)], [[1, 2, 3]] * 10, 0, [3] * 10)
    with pytest.raises(ValueError, match="labels"):
        train_adapter(with_adapter(), *split_rows(rows), RECIPE)


# --- larger models --------------------------------------------------------------------------------


def five_losses(recipe=RECIPE, **arguments):
    """The losses of the first five steps, without validation."""
    part = RowsPart(ROWS, range(40))
    told = STEPS_ONLY | {"logging_strategy": "steps", "logging_steps": 1}
    found = train_adapter(
        with_adapter(), part, part, replace(recipe, max_steps=5), **(told | arguments)
    ).history
    return np.array([entry["loss"] for entry in found if "loss" in entry])


@pytest.fixture(scope="module")
def plain_losses():
    losses = five_losses()
    assert (
        len(losses) == 5
        and np.abs(losses - five_losses(replace(RECIPE, learning_rate=1e-9))).max() > 0.05
    ), "the steps are felt"
    return losses


def test_gradient_checkpointing_changes_nothing(plain_losses):
    np.testing.assert_allclose(
        five_losses(replace(RECIPE, gradient_checkpointing=True)), plain_losses, atol=1e-4
    )


def test_half_precision_changes_little(plain_losses):
    losses = five_losses(replace(RECIPE, precision="bfloat16"))
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-2)
    assert not np.array_equal(losses, plain_losses)


def test_checkpointing_is_no_part_of_a_runs_identity():
    identity = RECIPE.identity()
    assert (
        replace(RECIPE, gradient_checkpointing=True).identity()
        == identity
        != replace(RECIPE, rank=5).identity()
    )
    assert json.loads(json.dumps(identity)) == identity
