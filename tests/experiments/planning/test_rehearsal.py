"""The rehearsal of a step: memory and FLOPs that can be counted by hand, the straight line over
layers, and what makes a step fit.
"""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tiny import task as text_task

from compatkit.experiments.planning import rehearsal
from compatkit.experiments.planning.rehearsal import (
    DEVICES,
    KERNEL_SECONDS,
    Recipe,
    Shape,
    Step,
    Trainings,
    largest_batch,
    perform,
    plan_line,
    refuse_what_cannot_run,
    rehearse,
    remedy,
    shape_of,
    trainings_of,
)
from compatkit.experiments.planning.shapes import hub_shape

SMALL = dict(hidden_size=32, intermediate_size=64, num_attention_heads=2, vocab_size=100)
BERT = Shape.of("text", "bert", num_hidden_layers=2, num_labels=2, **SMALL)
RESNET = Shape.of(
    "image",
    "resnet",
    num_labels=10,
    embedding_size=8,
    hidden_sizes=[8, 16],
    depths=[1, 1],
    layer_type="basic",
)
LLAMA = Shape.of("language", "llama", num_hidden_layers=2, num_key_value_heads=2, **SMALL)
STEP = Step(BERT, 4, 16)


def test_the_number_of_parameters_is_that_of_the_real_model():
    real = BERT.build()
    cost = rehearse(STEP)
    assert cost.parameters == cost.trained == sum(one.numel() for one in real.parameters())


def test_nothing_is_allocated_for_a_model_of_many_gigabytes():
    huge = Shape.of(
        "language",
        "llama",
        num_hidden_layers=1,
        hidden_size=16_384,
        intermediate_size=65_536,
        num_attention_heads=128,
        num_key_value_heads=128,
        vocab_size=1000,
    )
    cost = rehearse(Step(huge, 1, 8, weights="bfloat16", rank=8))
    assert cost.parameters > 4e9 and cost.step_bytes > 8e9


def test_the_straight_line_over_layers_is_the_whole_model():
    deep = replace(STEP, shape=BERT.with_layers(6))
    assert rehearse(deep) == rehearsal._measured(deep)


def test_the_flops_of_a_linear_layer_are_twice_its_products():
    head = 2 * 4 * 32 * 2  # of the classifier: batch × width × classes, each a product and a sum
    wider = replace(
        STEP, shape=Shape.of("text", "bert", num_hidden_layers=2, num_labels=4, **SMALL)
    )
    assert rehearse(wider).forward_flops - rehearse(STEP).forward_flops == head


def test_a_step_needs_weights_gradients_and_the_optimizers_state():
    cost = rehearse(STEP)
    assert cost.step_bytes > 16 * cost.parameters  # weights, gradient and AdamW's two averages
    sgd = rehearse(replace(STEP, optimizer="sgd"))
    assert cost.step_bytes - 5 * cost.parameters < sgd.step_bytes < cost.step_bytes
    assert cost.evaluation_bytes < cost.step_bytes * 16


def test_bfloat16_and_checkpointing_save_memory_and_checkpointing_costs_flops():
    language = Step(LLAMA, 8, 64, weights="bfloat16", rank=4)
    cost = rehearse(language)
    assert cost.trained < cost.parameters
    again = rehearse(replace(language, checkpointing=True))
    assert again.step_bytes < cost.step_bytes and again.step_flops > cost.step_flops
    single = rehearse(replace(language, weights="float32"))
    assert single.step_bytes > cost.step_bytes
    assert rehearse(replace(STEP, precision="float32")).step_bytes > rehearse(STEP).step_bytes


def test_copies_and_an_old_model_are_added():
    plain, parameters = rehearse(STEP), rehearse(STEP).parameters
    assert rehearse(replace(STEP, copies=2)).step_bytes == plain.step_bytes + 8 * parameters
    asked = rehearse(replace(STEP, old=BERT))
    assert asked.step_flops == plain.step_flops + plain.forward_flops
    assert asked.step_bytes == plain.step_bytes + 4 * parameters


def test_images_are_rehearsed_at_their_own_size():
    small, large = (rehearse(Step(RESNET, 8, side, "sgd")) for side in (32, 64))
    assert small.parameters == large.parameters and large.forward_flops > 3 * small.forward_flops


@pytest.mark.parametrize("step", [STEP, Step(RESNET, 32, 32, "sgd")])
def test_what_fits_has_no_remedy_and_what_does_not_has_one_that_works(step):
    needed = rehearse(step).step_bytes
    assert remedy(step, needed) == "" and largest_batch(step, needed) == step.batch
    few = largest_batch(step, 0.9 * needed)
    assert few < step.batch
    if few:
        assert rehearse(replace(step, batch=few)).step_bytes <= 0.91 * needed
        parts = -(-step.batch // few)
        # a recipe may accumulate already, as ResNet's does
        words = f"accumulated (an `accumulation` {parts} times as large in its recipe"
        assert words in remedy(step, 0.9 * needed)
    assert "GiB" in remedy(step, 10) and "FSDP" in remedy(step, 10)


def test_a_language_model_that_does_not_fit_computes_its_activations_again():
    language = Step(LLAMA, 1, 64, weights="bfloat16", rank=4)
    told = remedy(language, 0.2 * rehearse(language).step_bytes)
    assert "gradient checkpointing (`-p gradient_checkpointing True`)" in told
    four = replace(language, batch=4)
    halved = rehearse(replace(language, batch=2)).step_bytes
    told = remedy(four, 1.01 * halved)
    assert "`-p batch_size 2`, and an `-p accumulation` 2 times as large" in told


def test_answers_alone_cost_no_step():
    cost, trained = rehearse(STEP, trained=False), rehearse(STEP)
    assert cost.step_bytes == cost.step_flops == 0 and cost.parameters == trained.parameters
    assert cost.evaluation_bytes == trained.evaluation_bytes
    assert 0.8 < cost.forward_flops / trained.forward_flops <= 1  # fused attention is not counted


def test_a_language_model_is_asked_for_as_many_rows_as_it_is_really_asked_for():
    one, four = (rehearse(Step(LLAMA, batch, 64, weights="bfloat16")) for batch in (1, 4))
    assert one.evaluation_bytes == four.evaluation_bytes and one.step_bytes < four.step_bytes
    assert four.forward_flops == pytest.approx(4 * one.forward_flops)


def test_a_step_takes_the_longer_of_computing_and_starting():
    device = DEVICES["h100"]
    assert device.seconds(0, 1000) == 1000 * KERNEL_SECONDS
    assert device.seconds(989e12, 1, "image") == pytest.approx(1 / 0.05)
    assert DEVICES["a100"].seconds(1e15, 1) > device.seconds(1e15, 1)


def test_a_plan_adds_its_trainings_and_names_what_does_not_fit():
    trained = Trainings("new", 3, STEP, 100, 2, answered=40, kept=2)
    line = plan_line("job", [trained, Trainings("linear", 1, None, 100, 1)])
    content = line.to_dict()
    assert content["trainings"] == 4 and content["kinds"] == {"new": 3, "linear": 1}
    assert content["flops"] == pytest.approx(
        3 * (50 * trained.cost.step_flops + 10 * trained.cost.forward_flops)
    )
    assert content["disk_bytes"] == 3 * (2 * 4 * trained.cost.parameters + 40 * (2 * 4 + 48))
    assert replace(trained, further=7).disk == trained.disk + 3 * 7
    assert content["fits"] and content["hours"] > 0 and "3 new" in str(line)
    assert "download" not in str(line), "what is not known is not said to be nothing"
    fetched = plan_line("job", [trained], downloads=[("a model", 3_000_000)])
    assert "3.0 MB to download" in str(fetched)
    assert content["utilisation"] == {"text": 0.35, "image": 0.05, "language": 0.25}
    tight = plan_line("job", [trained], memory=0.9 * trained.cost.step_bytes / 2**30)
    assert not tight.to_dict()["fits"] and "does not fit: new" in str(tight)
    with pytest.raises(ValueError, match="'tpu' is not one of h100, a100"):
        plan_line("job", [trained], "tpu")


def test_shorter_texts_cost_fewer_flops_and_no_less_memory():
    whole = Trainings("new", 1, STEP, 100, 1)
    short = replace(whole, tokens=8)
    assert short.flops == pytest.approx(whole.flops / 2)
    assert plan_line("", [short]).peak == plan_line("", [whole]).peak


def test_an_evaluation_alone_has_no_step_to_fit():
    asked = Trainings("zoo", 1, STEP, 0, 0, answered=64)
    assert plan_line("", [asked]).peak == asked.cost.evaluation_bytes
    assert plan_line("", [asked], memory=1e-9).remedies == [] and not math.isnan(
        asked.hours(DEVICES["h100"])
    )


def test_a_recipe_and_a_task_give_their_own_line():
    task, recipe = text_task(40), Recipe(width=32, layers=2, max_length=16, batch_size=8, epochs=2)
    trained = trainings_of("new", 2, recipe, task, kept=1)
    assert (trained.step.batch, trained.step.length, trained.examples, trained.epochs) == (
        8,
        16,
        len(task.train),
        2,
    )
    assert trained.step.shape == shape_of(recipe, len(task.classes))
    assert trained.answered == len(task.selection) + len(task.test)
    assert trainings_of("new", 2, recipe, task, answered=3).answered == 3
    few = trainings_of("new", 2, replace(recipe, max_steps=2), task)
    assert few.epochs * len(task.train) == 16
    linear = trainings_of("old", 1, Recipe("linear"), task)
    assert linear.step is None and linear.flops == 0 and linear.disk == 0


def test_an_unknown_head_is_named():
    with pytest.raises(ValueError, match="head 'sound' is not one of text, image, language"):
        Shape.of("sound", "bert")
    assert torch.get_default_dtype() == torch.float32


def test_a_small_gpu_and_a_full_disk_are_named_before_anything_is_trained(tmp_path, monkeypatch):
    plan = plan_line("the table", [Trainings("new", 3, STEP, 100, 2, answered=40, kept=2)])
    refuse_what_cannot_run(plan, tmp_path / "runs" / "not there yet", gpu_bytes=2**40)
    with pytest.raises(
        MemoryError, match="the table does not fit into this GPU's.*new: .*accumulated"
    ):
        refuse_what_cannot_run(plan, tmp_path, gpu_bytes=0.9 * plan.trainings[0].cost.step_bytes)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refuse_what_cannot_run(plan, tmp_path)  # this machine's memory is enough
    monkeypatch.setattr(rehearsal.os, "sysconf", lambda name: 100)  # pages, and bytes of a page
    with pytest.raises(MemoryError, match="this machine's, which shows no GPU, 0.0 GiB: new: "):
        refuse_what_cannot_run(plan, tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=10))
    with pytest.raises(
        OSError, match="the table leaves .* and the disk has .* free.*COMPATKIT_HOME"
    ):
        refuse_what_cannot_run(plan, tmp_path, gpu_bytes=2**40)
    stays = plan.to_dict()["disk_bytes"]
    refuse_what_cannot_run(plan, tmp_path, gpu_bytes=2**40, there=stays - 10)


def test_attention_keeps_no_weights_with_dropout_either():
    """As a GPU's fused kernel; a CPU's keeps them where there is dropout."""
    long = replace(STEP, length=64)
    settings = BERT.settings | {"attention_probs_dropout_prob": 0.0}
    without = replace(long, shape=Shape.of("text", settings.pop("model_type"), **settings))
    assert rehearse(long).step_bytes == rehearse(without).step_bytes


def test_checkpointing_lets_activations_go():
    """Per layer only its input stays: (4, 256, 32) numbers and the layer's own weights."""
    sizes = SMALL | {"num_key_value_heads": 2}
    one, three = (Shape.of("language", "llama", num_hidden_layers=n, **sizes) for n in (1, 3))
    step = Step(one, 4, 256, weights="bfloat16", rank=4)

    def of_a_layer(**changes):
        costs = [rehearse(replace(step, shape=shape, **changes)) for shape in (one, three)]
        return (costs[1].step_bytes - costs[0].step_bytes) / 2

    assert of_a_layer(checkpointing=True) < 0.3 * of_a_layer()


def test_questions_about_tensors_are_no_kernels():
    cost = rehearse(STEP)
    assert 100 < cost.operations < 400, "a layer of BERT starts some fifty, and the optimizer one"


def test_a_step_is_taken_only_where_there_is_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="no GPU"):
        perform(STEP)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match="copies 1"):
        perform(replace(STEP, copies=1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_holds_what_was_foretold():
    step = Step(hub_shape("google-bert/bert-base-uncased", 2), 16, 128)
    took, foretold = perform(step), rehearse(step)
    assert took.step_bytes == pytest.approx(foretold.step_bytes, rel=0.15) and took.seconds > 0
