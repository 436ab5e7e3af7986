"""Trainings: a recipe says all that decides a model, a run is trained once, and images are seen
as their recipe says.
"""

import hashlib
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from tiny import Anchor, Endless, train
from torch.nn import functional as F

from compatkit.distillation import DynamicDistillation
from compatkit.experiments.models.recipes import Recipe
from compatkit.experiments.models.trainings import (
    build,
    encoded,
    fine_tune_recipe,
    identity,
    out_of_fold,
    stepped_rate,
    train_once,
    training_rows,
)
from compatkit.experiments.running.runs import failed_runs, find, run_id
from compatkit.gated_fusion import LearnGate
from compatkit.training.loop import (
    Treatment,
    WithOldModel,
    encode,
    fine_tune,
    load_weights,
    predict,
    save_weights,
)
from compatkit.training.tasks import image_files, load_task


@pytest.fixture(scope="module")
def plain():
    """The weights of plain training with seed 0."""
    return tiny.weights(train())


# --- runs -----------------------------------------------------------------------------------------


class Counted(Treatment):
    """Plain training that leaves a line for every training begun, and can wait in the middle of
    one.
    """

    def __init__(self, file="", wait=0.0, at_step=3):
        self._file, self._wait, self._step, self.marker = str(file), wait, at_step, "counted"

    def prepare(self, model):
        with open(self._file, "a") as file:
            file.write(f"{os.getpid()}\n")
        return model

    def forward(self, model, inputs, old_logits, step):
        if self._wait and step == self._step:
            Path(self._file).with_suffix(".waiting").write_text("now")
            time.sleep(self._wait)
        return super().forward(model, inputs, old_logits, step)


def counted_run(home, file, seed=0, wait=0.0):
    return train_once(tiny.task(), tiny.RECIPE, seed, Counted(file, wait), home=home)


def times(file):
    return len(Path(file).read_text().splitlines()) if Path(file).exists() else 0


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.02)


def content_of(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def test_a_run_is_trained_once_and_says_what_it_was(tmp_path):
    file = tmp_path / "count"
    run = counted_run(tmp_path / "runs", file)
    before = content_of(run.folder)
    again = counted_run(tmp_path / "runs", file)
    assert times(file) == 1 and again.id == run.id and content_of(run.folder) == before
    assert (
        run.configuration["treatment"] == {"name": "Counted", "marker": "counted"}
        and run.configuration["seed"] == 0
    )
    for split in ("selection", "test"):
        predictions = run.predictions(split)
        assert (
            list(predictions.id) == getattr(tiny.task(), split)["id"]
            and predictions.classes == tiny.CLASSES
        )
        assert run.results["accuracy"][split] == predictions.correct.mean()
    other = counted_run(tmp_path / "runs", file, seed=1)
    assert times(file) == 2 and other.id != run.id
    assert not np.array_equal(other.predictions("test").logits, run.predictions("test").logits)


def test_what_decides_a_run_is_in_its_name(tmp_path):
    def name(task=tiny.task(), recipe=tiny.RECIPE, seed=0, treatment=None, **more):
        return run_id(identity("fine_tune", task, recipe, seed, treatment, **more))

    different = [
        name(),
        name(seed=1),
        name(task=tiny.task(seed=1)),
        name(task=tiny.task().limited(20)),
        name(recipe=replace(tiny.RECIPE, learning_rate=1e-3)),
        name(recipe=replace(tiny.RECIPE, layers=2)),
        name(recipe=replace(tiny.RECIPE, max_steps=2)),
        name(recipe=replace(tiny.RECIPE, precision="bfloat16")),
        name(recipe=replace(tiny.RECIPE, device="cuda")),
        name(treatment=DynamicDistillation(1.0)),
        name(treatment=DynamicDistillation(2.0)),
        name(treatment=LearnGate(0.5)),
        name(more=1),
        name(recipe=Recipe("linear")),
    ]
    assert len(set(different)) == len(different)
    assert name(recipe=Recipe("linear"), seed=0) == name(recipe=Recipe("linear"), seed=1)
    assert str(Path.home()) not in json.dumps(
        identity("fine_tune", tiny.task(), replace(tiny.RECIPE, folder=str(tmp_path)), 0)
    )


def test_a_model_of_a_gpu_is_not_trained_on_a_processor(tmp_path, monkeypatch):
    recipe = replace(tiny.RECIPE, device="cuda")
    assert "device" not in tiny.RECIPE.identity() and recipe.identity()["device"] == "cuda"
    assert Recipe.recalled(recipe.identity()).device == "cuda" and "on a GPU" in recipe.words()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="from_results"):
        train_once(tiny.task(), recipe, 0, home=tmp_path)
    assert not find(tmp_path)
    with pytest.raises(ValueError, match="'gpu'"):
        replace(tiny.RECIPE, device="gpu")


def test_a_failed_training_leaves_no_run_but_its_record(tmp_path):
    with pytest.raises(FloatingPointError):
        train_once(tiny.task(), tiny.RECIPE, 0, Endless(), home=tmp_path)
    assert find(tmp_path) == [] and "lower the learning rate" in failed_runs(tmp_path)[0]["error"]
    assert list((tmp_path / "unfinished").iterdir()) == []


def test_a_killed_training_loses_itself_and_no_other(tmp_path):
    home, file = tmp_path / "runs", tmp_path / "count"
    finished = counted_run(home, file, seed=0)
    before = content_of(finished.folder)
    process = tiny.processes().Process(target=counted_run, args=(str(home), str(file), 1, 600.0))
    process.start()
    wait_for(file.with_suffix(".waiting").exists)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL and times(file) == 2
    assert [run.id for run in find(home)] == [finished.id]
    run = counted_run(home, file, seed=1)
    assert times(file) == 3 and run.predictions("test").logits.shape == (24, 3)
    assert (
        counted_run(home, file, seed=0).id == finished.id
        and content_of(finished.folder) == before
        and times(file) == 3
    )
    assert list((home / "unfinished").iterdir()) == [], (
        "what the killed process left is cleared away"
    )


@pytest.mark.parametrize("kind", ("texts", "images in steps"))
def test_a_killed_run_goes_on_from_its_last_epoch(tmp_path, monkeypatch, kind):
    from compatkit.training import loop

    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    given = (tiny.task(), replace(tiny.RECIPE, epochs=4))
    if kind != "texts":
        steps = {"optimizer": "sgd", "schedule": "step", "step_epochs": 2, "mirrored": True}
        given = (tiny.image_task(), replace(tiny.IMAGE_RECIPE, epochs=4, padding=1, **steps))
    options = {"splits": ("selection",), "keep_epochs": (1, 4)}
    whole = train_once(*given, 0, Counted(tmp_path / "one"), home=tmp_path / "whole", **options)

    def begin(at_step):
        """A training that stops at a step, counted from 0; -1: never."""

        class Stops(Counted):
            def configuration(self):
                return {"name": "Counted", "marker": "counted"}

            def forward(self, model, inputs, old_logits, step):
                if step == at_step:
                    raise KeyboardInterrupt
                return super().forward(model, inputs, old_logits, step)

        return train_once(*given, 0, Stops(tmp_path / "two"), home=tmp_path / "parts", **options)

    for stop in (6, 14):  # in the second epoch, then in the last one
        with pytest.raises(KeyboardInterrupt):
            begin(stop)
        assert len(list((tmp_path / "parts" / "checkpoints").iterdir())) == 1
    run = begin(-1)
    assert run.results["went_on_at_step"] == 12 and "went_on_at_step" not in whole.results
    files = [path.name for path in whole.folder.glob("*") if path.name != "record.json"]
    assert {"epoch-1.safetensors", "epoch-4.safetensors"} < set(files)
    for name in files:
        assert (run.folder / name).read_bytes() == (whole.folder / name).read_bytes(), name
    assert not list((tmp_path / "parts" / "checkpoints").iterdir())


def ask_for_a_run(home, file, ready, answers):
    ready.wait()
    run = counted_run(home, file, seed=2, wait=0.5)
    answers.put((run.id, run.predictions("test").logits.tolist()))


def test_two_processes_that_ask_for_one_run_train_it_once(tmp_path):
    context = tiny.processes()
    ready, answers = context.Barrier(2), context.Queue()
    both = [
        context.Process(
            target=ask_for_a_run,
            args=(str(tmp_path / "runs"), str(tmp_path / "count"), ready, answers),
        )
        for _ in range(2)
    ]
    for process in both:
        process.start()
    first, second = answers.get(timeout=120), answers.get(timeout=120)
    for process in both:
        process.join()
    assert first == second and times(tmp_path / "count") == 1


def run_of_pieces(home):
    """The vocabulary has no room for whole words, so the order in which their pieces were learnt
    matters.
    """
    return train_once(tiny.task(), replace(tiny.RECIPE, vocabulary=40), 0, home=home)


def test_another_process_gets_the_same_bits(tmp_path):
    process = tiny.processes().Process(target=run_of_pieces, args=(str(tmp_path / "there"),))
    process.start()
    here = run_of_pieces(tmp_path / "here")
    process.join()
    (there,) = find(tmp_path / "there")
    assert there.id == here.id
    for split in ("selection", "test"):
        np.testing.assert_array_equal(
            there.predictions(split).logits, here.predictions(split).logits
        )


def test_kept_weights_are_those_of_the_epoch(tmp_path):
    run = train_once(
        tiny.task(), tiny.RECIPE, 0, keep_epochs=(1, 2), splits=("train", "test"), home=tmp_path
    )
    assert sorted(path.name for path in run.folder.glob("*.safetensors")) == [
        "epoch-1.safetensors",
        "epoch-2.safetensors",
    ]
    model, tokenizer = build(tiny.RECIPE, tiny.task(), 3)
    load_weights(model, run.folder / "epoch-2.safetensors")
    rows = encode(tiny.task().test, tokenizer, ("text",), 16)
    np.testing.assert_allclose(
        predict(model, rows).logits, run.predictions("test").logits, atol=1e-6
    )
    assert list(run.predictions("train").id) == tiny.task().train["id"]
    load_weights(model, run.folder / "epoch-1.safetensors")
    assert np.abs(predict(model, rows).logits - run.predictions("test").logits).max() > 1e-3


# --- out of fold ----------------------------------------------------------------------------------


def noise_task():
    """Two words an example that no other example has, and labels by lot: they can be learnt by
    heart and not understood.
    """
    generator = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))

    def word():
        return "".join(generator.choice(letters, 6))

    count = 40
    train = tiny.rows(count, 0, "train").remove_columns(["text", "label"])
    train = train.add_column("text", [f"{word()} {word()}" for _ in range(count)])
    train = train.add_column("label", generator.permutation(np.arange(count) % 2).tolist())
    return replace(tiny.task(), name="noise", title="noise", train=train, classes=("zero", "one"))


def test_out_of_fold_answers_come_from_models_that_had_not_seen_the_example(tmp_path):
    task = noise_task()
    recipe = replace(tiny.RECIPE, epochs=40, vocabulary=400, learning_rate=3e-3)
    seen = train_once(task, recipe, 0, splits=("train",), home=tmp_path).predictions("train")
    unseen = out_of_fold(task, recipe, 0, folds=2, home=tmp_path).predictions("train")
    assert list(unseen.id) == task.train["id"] and list(unseen.label) == task.train["label"]
    assert seen.correct.mean() > 0.95 and unseen.correct.mean() < 0.75


def test_no_example_sees_its_own_label(tmp_path):
    task, recipe = tiny.task(train=60), Recipe("linear")
    before = out_of_fold(task, recipe, 0, home=tmp_path)
    assert out_of_fold(task, recipe, 0, home=tmp_path).id == before.id
    labels = list(task.train["label"])
    labels[7] = (labels[7] + 1) % 3
    other = replace(task, train=task.train.remove_columns("label").add_column("label", labels))
    after = out_of_fold(other, recipe, 0, home=tmp_path)
    moved = (before.predictions("train").logits != after.predictions("train").logits).any(1)
    assert not moved[7] and moved.sum() > 30 and after.id != before.id
    assert len(set(before.predictions("train").id)) == 60


def test_one_name_is_one_content_for_a_deterministic_model(tmp_path):
    task = tiny.task(train=60)
    first, second = (
        out_of_fold(task, Recipe("linear"), seed, home=tmp_path / str(seed)) for seed in (0, 1)
    )
    assert first.id == second.id
    np.testing.assert_array_equal(
        first.predictions("train").logits, second.predictions("train").logits
    )


def test_a_treatment_of_a_model_that_takes_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="linear.*Counted|Counted.*linear"):
        train_once(tiny.task(), Recipe("linear"), 0, Counted(tmp_path / "count"), home=tmp_path)


# --- two processes, one training ------------------------------------------------------------------


class Still(LearnGate):
    """LearnGate without any dropout, so that batches of another size draw nothing else."""

    def prepare(self, model):
        model = super().prepare(model)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        return model


class Attends(Treatment):
    """Notes which examples come in which step, and draws as much as it likes."""

    def __init__(self, rows):
        self._rows, self._of = (
            [],
            {tuple(tokens): row for row, tokens in enumerate(rows.tokens["input_ids"])},
        )
        self._pad = rows.pad_token_id

    def forward(self, model, inputs, old_logits, step):
        self._rows += [
            self._of[tuple(tokens[tokens != self._pad].tolist())] for tokens in inputs["input_ids"]
        ]
        return super().forward(model, inputs, old_logits, step)


SHARED = {
    "distillation": lambda: DynamicDistillation(1.0, 2.0),
    "gate": lambda: Still(0.5, 1.5, seed=4),
    "plain": lambda: None,
}
SHIFTED = replace(tiny.IMAGE_RECIPE, padding=2, mirrored=True, batch_size=4)
SHARED_OPTIONS = {"dropout": 0.0, "optim": "sgd", "learning_rate": 0.2, "num_train_epochs": 3}


def train_share(rank, folder):
    """One of two processes that train together."""
    rows = tiny.data()
    for name, treatment in SHARED.items():
        made = treatment()
        both = {"ddp_find_unused_parameters": True} if name == "gate" else {}
        model = train(
            made,
            rows=rows,
            old=tiny.old_answers(rows),
            per_device_train_batch_size=4,
            ddp_backend="gloo",
            use_cpu=True,
            **SHARED_OPTIONS,
            **both,
        )
        save_weights(model, Path(folder) / f"{name}-{rank}.safetensors")
    listener = Attends(rows)
    train(
        listener,
        rows=rows,
        per_device_train_batch_size=4,
        ddp_backend="gloo",
        use_cpu=True,
        num_train_epochs=3,
    )
    (Path(folder) / f"seen-{rank}.json").write_text(json.dumps(listener._rows))
    watcher = Listens()
    fine_tune_recipe(
        SHIFTED, *image_rows(recipe=SHIFTED)[::2], watcher, 0, ddp_backend="gloo", use_cpu=True
    )
    (Path(folder) / f"pixels-{rank}.json").write_text(
        json.dumps([[hash_of(one) for one in batch] for batch in watcher._seen])
    )


@pytest.fixture(scope="module")
def trained_by_two(tmp_path_factory):
    """What two processes left that trained together: (name of a treatment in SHARED, rank) →
    weights; ('seen', rank) → rows.
    """
    from safetensors.torch import load_file

    folder = tmp_path_factory.mktemp("two")
    tiny.train_together(train_share, str(folder))
    seen = {
        (what, rank): json.loads((folder / f"{what}-{rank}.json").read_text())
        for what in ("seen", "pixels")
        for rank in range(2)
    }
    return seen | {
        (name, rank): load_file(folder / f"{name}-{rank}.safetensors")
        for name in SHARED
        for rank in range(2)
    }


@pytest.mark.parametrize("name", SHARED)
def test_two_processes_give_what_one_gives_with_twice_the_batch(trained_by_two, name):
    rows = tiny.data()
    alone = tiny.weights(
        train(SHARED[name](), rows=rows, old=tiny.old_answers(rows), use_cpu=True, **SHARED_OPTIONS)
    )
    first, second = trained_by_two[name, 0], trained_by_two[name, 1]
    assert tiny.same(first, second), "both processes hold the same weights"
    assert tiny.distance(first, {key: alone[key] for key in first}) < 1e-4
    start = tiny.weights(tiny.model(dropout=0.0))
    moved = {
        key.removeprefix("new."): value
        for key, value in first.items()
        if not key.startswith("gate.")
    }
    assert tiny.distance(moved, start) > 1e-2


def test_two_processes_see_every_example_once_an_epoch(trained_by_two):
    # with dropout each process draws its own numbers, and the order of the examples must not hang
    # on them
    first, second = (np.reshape(trained_by_two["seen", rank], (3, -1)) for rank in range(2))
    for epoch in range(3):
        assert sorted([*first[epoch], *second[epoch]]) == list(range(32))
    assert not np.array_equal(first[0], first[1]), "another order in each epoch"


def test_two_processes_see_the_images_of_each_epoch(trained_by_two):
    """Shifted and mirrored as in that epoch of a training alone, whichever process an image
    falls to.
    """
    *_, rows = image_rows(recipe=SHIFTED)
    for epoch in range(2):
        rows.set_epoch(epoch)
        alone = [hash_of(one) for one in rows.collate([rows[n] for n in range(32)])["pixel_values"]]
        both = [
            one
            for rank in range(2)
            for batch in np.array_split(trained_by_two["pixels", rank], 2)[epoch]
            for one in batch
        ]
        assert sorted(both) == sorted(alone)


# --- the names of earlier runs --------------------------------------------------------------------


def test_recipes_of_texts_are_known_by_what_they_always_were(tmp_path):
    """A field that came later must not give another name to a run that is on somebody's disk."""
    trained = {
        "model",
        "layers",
        "max_length",
        "epochs",
        "learning_rate",
        "batch_size",
        "weight_decay",
        "warmup",
        "precision",
        "max_steps",
    }
    assert set(Recipe().identity()) == trained | {"width", "vocabulary"}
    assert Recipe("linear").identity() == {"model": "linear"}
    tiny.model().save_pretrained(tmp_path)
    assert set(Recipe("encoder", folder=str(tmp_path)).identity()) == trained | {"name", "weights"}
    for other in (
        {"stem": 2},
        {"widths": (2,)},
        {"side": 9},
        {"padding": 2},
        {"mirrored": True},
        {"momentum": 0.1},
        {"step_epochs": 2},
    ):
        assert replace(tiny.RECIPE, **other).identity() == tiny.RECIPE.identity(), other
    arguments = {
        "num_train_epochs",
        "learning_rate",
        "weight_decay",
        "per_device_train_batch_size",
        "warmup_steps",
        "max_steps",
    }
    assert set(Recipe().arguments()) == arguments
    assert set(identity("fine_tune", tiny.task(), tiny.RECIPE, 0)) == {
        "kind",
        "task",
        "data",
        "recipe",
        "seed",
        "treatment",
        "parents",
    }


def test_what_a_recipe_of_images_says_is_in_its_name():
    def name(**more):
        return run_id(
            identity("fine_tune", tiny.image_task(), replace(tiny.IMAGE_RECIPE, **more), 0)
        )

    different = [
        {},
        {"stem": 8},
        {"widths": (4, 4)},
        {"depths": (1, 2)},
        {"block": "bottleneck"},
        {"side": 8},
        {"crop": 6},
        {"enlarge": 4},
        {"padding": 1},
        {"mirrored": True},
        {"optimizer": "sgd"},
        {"optimizer": "sgd", "momentum": 0.5},
        {"schedule": "cosine"},
        {"schedule": "step"},
        {"schedule": "step", "step_epochs": 1},
        {"clip": 0.0},
        {"epochs": 3},
    ]
    assert len({name(**one) for one in different}) == len(different)
    assert name(name="my ResNet") == name(vocabulary=9) == name(layers=3) == name()


@pytest.mark.parametrize(
    "wrong", [{"model": "resnet18"}, {"optimizer": "adam"}, {"schedule": "steps"}]
)
def test_words_that_a_recipe_does_not_know_are_named(wrong):
    with pytest.raises(
        ValueError, match=f"{next(iter(wrong))} '{next(iter(wrong.values()))}' is not one of"
    ):
        Recipe(**wrong)


# --- images ---------------------------------------------------------------------------------------


def hash_of(image):
    return hashlib.sha256(image.numpy().tobytes()).hexdigest()


class Listens(Treatment):
    """Notes the pixels of every batch, and draws random numbers of its own."""

    def __init__(self, draws=0):
        self.draws, self._seen = draws, []

    def forward(self, model, inputs, old_logits, step):
        torch.rand(self.draws)
        self._seen.append(inputs["pixel_values"].clone())
        return super().forward(model, inputs, old_logits, step)


def image_rows(task=None, recipe=tiny.IMAGE_RECIPE, seed=0):
    """(model, plain training rows, rows with the recipe's changes)."""
    task = task or tiny.image_task()
    model, preparation = build(recipe, task, seed)
    return (
        model,
        encoded(recipe, task, preparation, "train"),
        training_rows(recipe, task, preparation, seed),
    )


def test_a_run_on_images_is_trained_once_and_learns(tmp_path):
    recipe = replace(tiny.IMAGE_RECIPE, epochs=8, padding=1)
    run = train_once(
        tiny.image_task(96),
        recipe,
        0,
        splits=("train", "selection", "test"),
        keep_epochs=(8,),
        home=tmp_path,
    )
    before = content_of(run.folder)
    assert (
        train_once(
            tiny.image_task(96),
            recipe,
            0,
            splits=("train", "selection", "test"),
            keep_epochs=(8,),
            home=tmp_path,
        ).id
        == run.id
    )
    assert content_of(run.folder) == before
    answers = run.predictions("test")
    assert list(answers.id) == tiny.image_task(96).test["id"][:] and answers.classes == tiny.CLASSES
    assert answers.correct.mean() > 0.6, "a third by chance"
    model, preparation = build(recipe, tiny.image_task(96), 5)
    load_weights(model, run.folder / "epoch-8.safetensors")
    again = predict(model, encoded(recipe, tiny.image_task(96), preparation, "test"))
    assert np.allclose(again.logits, answers.logits, atol=1e-5)


def test_a_seed_decides_every_bit_of_a_training_on_images():
    recipe = replace(tiny.IMAGE_RECIPE, padding=1, mirrored=True)
    trained = []
    for seed in (0, 0, 1):
        model, _, rows = image_rows(recipe=recipe)
        trained.append(
            tiny.weights(
                fine_tune(
                    model,
                    rows,
                    None,
                    seed,
                    precision="float32",
                    progress=False,
                    **recipe.arguments(),
                ).model
            )
        )
    assert tiny.same(trained[0], trained[1]) and not tiny.same(trained[0], trained[2])


def test_treatments_see_the_same_pixels_whatever_they_draw():
    recipe = replace(tiny.IMAGE_RECIPE, padding=2, mirrored=True)
    seen = []
    for draws in (0, 7):
        model, _, rows = image_rows(recipe=recipe)
        listener = Listens(draws)
        fine_tune(
            model, rows, listener, 3, precision="float32", progress=False, **recipe.arguments()
        )
        seen.append(torch.cat(listener._seen))
    assert torch.equal(*seen) and len(seen[0]) == 2 * 32


def test_every_epoch_has_windows_of_its_own():
    recipe = replace(tiny.IMAGE_RECIPE, padding=2)
    model, plain, rows = image_rows(recipe=recipe)
    listener = Listens()
    fine_tune(model, rows, listener, 0, precision="float32", progress=False, **recipe.arguments())

    def prints(values):
        return {one.numpy().tobytes() for one in values}

    epochs = [prints(torch.cat(listener._seen[:4])), prints(torch.cat(listener._seen[4:]))]
    for epoch, found in enumerate(epochs):
        rows.set_epoch(epoch)
        assert found == prints(rows.collate([rows[n] for n in range(32)])["pixel_values"]), (
            "those of its number"
        )
    assert len(epochs[0] & epochs[1]) < 10, "another window in the next epoch"


def test_predictions_of_the_training_split_are_those_of_plain_images(tmp_path):
    recipe = replace(tiny.IMAGE_RECIPE, padding=3)
    run = train_once(
        tiny.image_task(), recipe, 0, splits=("train",), keep_epochs=(2,), home=tmp_path
    )
    model, plain, rows = image_rows(recipe=recipe)
    load_weights(model, run.folder / "epoch-2.safetensors")
    assert np.allclose(run.predictions("train").logits, predict(model, plain).logits, atol=1e-5)
    assert not np.allclose(run.predictions("train").logits, predict(model, rows).logits, atol=1e-2)


@pytest.mark.parametrize("count, steps", [(32, 8), (33, 8), (34, 10)])
def test_a_single_image_is_left_out_of_the_last_batch(count, steps):
    """With maps of one pixel, batch normalisation of one image would stop the training."""
    recipe = replace(
        tiny.IMAGE_RECIPE,
        widths=(4, 8, 8),
        depths=(1, 1, 1),
        schedule="step",
        step_epochs=1,
        warmup=0.0,
    )
    listener = Rates()
    fine_tune_recipe(recipe, *image_rows(tiny.image_task(count), recipe)[::2], listener, 0)
    assert len(listener._rates) == steps and np.allclose(
        listener._rates, [1e-2] * (steps // 2) + [1e-3] * (steps // 2)
    )


def test_a_trial_of_two_steps_keeps_its_weights(tmp_path):
    recipe = replace(
        tiny.IMAGE_RECIPE,
        stem=64,
        widths=(64, 128, 256, 512),
        depths=(2, 2, 2, 2),
        side=24,
        crop=16,
        max_steps=2,
        epochs=90,
        schedule="step",
    )
    run = train_once(tiny.image_task(), recipe, 0, keep_epochs=(90,), home=tmp_path)
    assert (run.folder / "epoch-90.safetensors").is_file() and np.isfinite(
        run.predictions("test").logits
    ).all()


def test_out_of_fold_answers_on_images(tmp_path):
    from compatkit.experiments.models.trainings import _ENCODED

    before = set(_ENCODED)
    run = out_of_fold(tiny.image_task(), tiny.IMAGE_RECIPE, 0, folds=2, home=tmp_path)
    assert (
        list(run.predictions("train").id) == tiny.image_task().train["id"][:]
        and set(_ENCODED) == before
    ), "folds are not kept in memory"


def test_texts_and_images_are_not_mixed_up(tmp_path):
    for task, recipe, fitting in (
        (tiny.image_task(), tiny.RECIPE, "resnet or image"),
        (tiny.image_task(), Recipe("linear"), "resnet or image"),
        (tiny.task(), tiny.IMAGE_RECIPE, "small, encoder or linear"),
    ):
        for attempt in (
            lambda: train_once(task, recipe, 0, home=tmp_path),
            lambda: out_of_fold(task, recipe, 0, home=tmp_path),
        ):
            with pytest.raises(ValueError, match=f"the task 'tiny.*models for .*: {fitting}"):
                attempt()


def test_a_broken_image_stops_a_training_by_its_name(tmp_path):
    broken = [
        {"bytes": file if number != 5 else file[:20], "path": None}
        for number, file in enumerate(image_files(tiny.image_task().train, "image"))
    ]
    train_split = tiny.image_task().train.remove_columns("image").add_column("image", broken)
    task = replace(tiny.image_task(), train=train_split.cast_column("image", tiny.Image()))
    with pytest.raises(ValueError, match="image train-5 cannot be read"):
        train_once(task, tiny.IMAGE_RECIPE, 0, home=tmp_path)


def test_large_folders_are_stored_once_and_train_the_same(tmp_path, monkeypatch):
    """Read from a store by workers or held in memory: the same bits."""
    for split, part in (("train", tiny.image_task().train), ("val", tiny.image_task().test)):
        for number, (file, label) in enumerate(zip(image_files(part, "image"), part["label"])):
            place = tmp_path / "mine" / split / tiny.CLASSES[label]
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{number}.pgm").write_bytes(file)
    from compatkit.experiments.models import trainings

    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path / "home"))
    recipe, logits = replace(tiny.IMAGE_RECIPE, side=8, crop=6, mirrored=True), []
    read = trainings.read_images
    for memory in (1 << 30, 0):
        monkeypatch.setattr(
            trainings,
            "read_images",
            lambda *given, memory=memory, **more: read(*given, memory=memory, **more),
        )
        monkeypatch.setattr(trainings, "_ENCODED", {})
        run = train_once(load_task(tmp_path / "mine"), recipe, 0, home=tmp_path / str(memory))
        logits.append(run.predictions("test").logits)
    assert np.array_equal(*logits)
    stores = [path for path in (tmp_path / "home" / "images").iterdir() if path.is_dir()]
    assert len(stores) == 3, "one for training, one for selection, one for test"


def test_random_parts_of_whole_pictures_are_trained_on(tmp_path, monkeypatch):
    from compatkit.experiments.models import trainings

    monkeypatch.setattr(trainings, "_ENCODED", {})
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path))
    recipe = replace(tiny.IMAGE_RECIPE, side=10, crop=8, smallest_part=0.5, epochs=1)
    assert recipe.identity()["smallest_part"] == 0.5
    assert "smallest_part" not in tiny.IMAGE_RECIPE.identity()
    run = train_once(tiny.image_task(), recipe, 0, home=tmp_path)
    assert len(run.predictions("test")) == 24 and list((tmp_path / "images").glob("*-whole"))


def test_a_pretrained_model_of_images_is_prepared_as_it_was(tmp_path):
    folder = tmp_path / "pretrained"
    made, _ = build(
        replace(tiny.IMAGE_RECIPE, block="bottleneck", widths=(8, 16)), tiny.image_task(), 0
    )
    made.config.num_channels = 3
    type(made)(made.config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.5, 0.4, 0.3], "image_std": [0.25, 0.2, 0.2]})
    )
    recipe = Recipe(
        model="image", folder=str(folder), enlarge=4, epochs=1, batch_size=8, precision="float32"
    )
    model, preparation = build(recipe, tiny.image_task(), 0)
    assert (preparation.channels, preparation.mean, preparation.std) == (
        3,
        (0.5, 0.4, 0.3),
        (0.25, 0.2, 0.2),
    )
    assert model.config.preparation["mean"] == (0.5, 0.4, 0.3), (
        "written into the model's configuration"
    )
    run = train_once(tiny.image_task(), recipe, 0, home=tmp_path / "runs")
    assert (
        len(run.predictions("test")) == 24
        and "weights" in run.configuration["recipe"]
        and str(tmp_path) not in json.dumps(run.configuration["recipe"])
    )


# --- the old model sees what the new one sees -----------------------------------------------------


def test_without_changes_recomputed_logits_are_the_cached_ones():
    old, plain, _ = image_rows(seed=9)
    old.eval()
    answers = predict(old, plain)
    options = tiny.IMAGE_RECIPE.arguments() | {"precision": "float32", "progress": False}
    cached = fine_tune(image_rows()[0], plain, DynamicDistillation(5.0), 0, old=answers, **options)
    asked = fine_tune(
        image_rows()[0], plain, WithOldModel(DynamicDistillation(5.0), old), 0, **options
    )
    untreated = fine_tune(image_rows()[0], plain, None, 0, **options)
    assert (
        tiny.distance(cached.model, asked.model)
        < 1e-3
        < tiny.distance(cached.model, untreated.model)
    )


def test_of_a_changed_image_recomputed_logits_are_others():
    recipe = replace(tiny.IMAGE_RECIPE, padding=3)
    old, plain, rows = image_rows(recipe=recipe, seed=9)
    batch = rows.collate([rows[n] for n in range(8)])
    asked = WithOldModel(DynamicDistillation(), old)
    asked.forward(image_rows()[0], batch, None, 0)
    with torch.no_grad():
        assert torch.allclose(asked._logits, old.eval()(**batch).logits, atol=1e-5)
    assert not np.allclose(asked._logits, predict(old, plain).logits[:8], atol=1e-2)
    assert not old.training and all(one.grad is None for one in old.parameters())


def test_of_several_old_models_the_mean_is_taken():
    (one, plain, _), (other, *_) = image_rows(seed=1), image_rows(seed=2)
    batch = plain.collate([plain[n] for n in range(4)])
    both = WithOldModel(DynamicDistillation(), [one, other])
    both.forward(image_rows()[0], batch, None, 0)
    with torch.no_grad():
        assert torch.allclose(
            both._logits, (one.eval()(**batch).logits + other.eval()(**batch).logits) / 2, atol=1e-6
        )
    with pytest.raises(ValueError, match="no old model"):
        WithOldModel(DynamicDistillation(), [])


def test_the_old_model_gets_pixels_on_its_own_scale():
    old, plain, _ = image_rows(seed=1)
    new = image_rows()[0]
    other = dict(old.config.preparation) | {"mean": (0.1,), "std": (0.7,)}
    shifted = plain.collate([plain[n] for n in range(4)])["pixel_values"]
    asked = WithOldModel(DynamicDistillation(), old)
    new.config.preparation = other
    given = (
        shifted * old.config.preparation["std"][0] + old.config.preparation["mean"][0] - 0.1
    ) / 0.7  # the new model's scale
    asked.forward(new, {"pixel_values": given}, None, 0)
    with torch.no_grad():
        assert torch.allclose(asked._logits, old.eval()(pixel_values=shifted).logits, atol=1e-4)
    new.config.preparation = other | {"enlarge": 4}
    with pytest.raises(ValueError, match="different pixels .enlarge"):
        asked.forward(new, {"pixel_values": given}, None, 0)


def test_a_wrapped_treatment_is_the_one_inside(tmp_path):
    """Its hooks are called, its code and settings and the old weights are in the run's name."""
    (one, plain, _), (other, *_) = image_rows(seed=1), image_rows(seed=2)
    assert (
        WithOldModel(DynamicDistillation(2.0), one).configuration()["treatment"]
        == DynamicDistillation(2.0).configuration()
    )

    def name(treatment):
        return run_id(identity("fine_tune", tiny.image_task(), tiny.IMAGE_RECIPE, 0, treatment))

    assert name(WithOldModel(DynamicDistillation(), one)) == name(
        WithOldModel(DynamicDistillation(), image_rows(seed=1)[0])
    )
    given = [
        DynamicDistillation(),
        WithOldModel(DynamicDistillation(), one),
        WithOldModel(DynamicDistillation(), other),
        WithOldModel(DynamicDistillation(2.0), one),
    ]
    assert len({name(treatment) for treatment in given}) == 4
    model = image_rows()[0]
    options = tiny.IMAGE_RECIPE.arguments() | {"precision": "float32", "progress": False}
    alone = fine_tune(image_rows()[0], plain, Anchor(0.1), 0, **options).model
    assert tiny.same(
        alone, fine_tune(model, plain, WithOldModel(Anchor(0.1), one), 0, **options).model
    )


def test_the_mean_of_several_old_runs_is_what_a_treatment_gets(tmp_path):
    olds = [
        train_once(tiny.image_task(), tiny.IMAGE_RECIPE, seed, splits=("train",), home=tmp_path)
        for seed in (0, 1)
    ]
    run = train_once(
        tiny.image_task(), tiny.IMAGE_RECIPE, 2, DynamicDistillation(5.0), olds, home=tmp_path
    )
    assert run.configuration["parents"] == [one.id for one in olds]
    middle = olds[0].predictions("train")
    middle = middle.replace(logits=(middle.logits + olds[1].predictions("train").logits) / 2)
    model, plain, _ = image_rows(seed=2)
    options = tiny.IMAGE_RECIPE.arguments() | {"precision": "float32", "progress": False}
    trained = fine_tune(model, plain, DynamicDistillation(5.0), 2, old=middle, **options)
    _, preparation = build(tiny.IMAGE_RECIPE, tiny.image_task(), 0)
    test = encoded(tiny.IMAGE_RECIPE, tiny.image_task(), preparation, "test")
    assert np.allclose(
        predict(trained.model, test).logits, run.predictions("test").logits, atol=1e-3
    )


# --- the paper's optimizer and schedule -----------------------------------------------------------


class Rates(Treatment):
    """Notes the learning rate of every step."""

    def __init__(self):
        self._rates = []

    def after_step(self, model, learning_rate):
        self._rates.append(learning_rate)


@pytest.mark.parametrize(
    "schedule, rates",
    [
        ("step", [0.1] * 8 + [0.01] * 8 + [0.001] * 4),
        ("constant", [0.1] * 20),
        ("linear", [0.1 * (20 - step) / 20 for step in range(20)]),
        ("cosine", [0.05 * (1 + np.cos(np.pi * step / 20)) for step in range(20)]),
    ],
)
def test_every_schedule_sets_the_rate_of_every_step(schedule, rates):
    recipe = replace(
        tiny.IMAGE_RECIPE,
        optimizer="sgd",
        schedule=schedule,
        step_epochs=2,
        epochs=5,
        learning_rate=0.1,
        warmup=0.0,
        clip=0.0,
    )
    model, rows, _ = image_rows()
    listener = Rates()
    with stepped_rate(recipe, len(rows)):
        fine_tune(
            model, rows, listener, 0, precision="float32", progress=False, **recipe.arguments()
        )
    assert np.allclose(listener._rates, rates)
    listener._rates.clear()
    fine_tune(
        model,
        rows,
        listener,
        0,
        precision="float32",
        progress=False,
        **(recipe.arguments() | {"max_steps": 12}),
    )
    assert schedule != "step" or np.allclose(listener._rates, 0.1), (
        "outside of the block nothing is lowered"
    )


def test_sgd_of_a_recipe_is_torchs_own():
    recipe = replace(
        tiny.IMAGE_RECIPE,
        optimizer="sgd",
        momentum=0.7,
        schedule="step",
        step_epochs=1,
        epochs=2,
        warmup=0.0,
        weight_decay=0.0,
        clip=0.0,
    )
    recipe = replace(
        recipe, batch_size=32, learning_rate=0.1
    )  # one batch an epoch: no order to agree on
    model, rows, _ = image_rows()
    own = image_rows()[0].train()
    with stepped_rate(recipe, len(rows)):
        fine_tune(model, rows, None, 0, precision="float32", progress=False, **recipe.arguments())
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.7)
    batch = rows.collate([rows[n] for n in range(32)])
    for rate in (0.1, 0.01):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        F.cross_entropy(own(**batch).logits, torch.tensor(rows.labels)).backward()
        optimizer.step()
    assert tiny.distance(own, model) < 1e-4 < tiny.distance(own, image_rows()[0])


# --- nothing foreign is run -----------------------------------------------------------------------


def test_code_beside_a_models_weights_is_never_run(tmp_path):
    folder, mark = tmp_path / "encoder", tmp_path / "was run"
    tiny.model().save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {
        name: "foreign.Foreign"
        for name in ("AutoConfig", "AutoModel", "AutoModelForSequenceClassification")
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "foreign.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Foreign: pass\n")
    model, _ = build(
        replace(tiny.RECIPE, model="encoder", folder=str(folder), name="foreign"), tiny.task(), 0
    )
    assert type(model).__name__ == "BertForSequenceClassification" and not mark.exists()
