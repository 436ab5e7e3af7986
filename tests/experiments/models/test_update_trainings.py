"""The three trainings of a data update: where each begins, what it is named by, what it keeps."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch

from compatkit.experiments.models.trainings import build, encoded, train_once
from compatkit.experiments.models.update_trainings import (
    DRAWS,
    fisher_batches,
    old_model,
    update_once,
    updated_model,
)
from compatkit.training.data_updates import more_classes, more_samples
from compatkit.training.loop import Treatment, predict


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


def test_a_run_without_weights_says_so(tmp_path):
    update = more_samples(tiny.task(), 0.5)
    old = train_once(update.old, tiny.RECIPE, 0, splits=("new_test",), home=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"keep_epochs=\(recipe.epochs,\)"):
        old_model(update, tiny.RECIPE, old)


def test_answers_alone_are_the_same_and_take_the_room_of_no_weights(tmp_path):
    update = more_samples(tiny.task(), 0.5)
    whole, lean = (
        update_once(update, tiny.RECIPE, 7, keep_weights=keep, home=tmp_path)
        for keep in (True, False)
    )
    assert [*whole.folder.glob("*.safetensors")] and not [*lean.folder.glob("*.safetensors")]
    assert np.array_equal(whole.predictions("new_test").logits, lean.predictions("new_test").logits)
    assert lean.configuration == whole.configuration | {"weights": "not kept"}
    assert "weights" not in whole.configuration, "runs that are there already are found as before"


def test_an_unknown_stage_is_refused():
    with pytest.raises(ValueError, match="'new'"):
        update_once(None, None, 0, stage="new")


def test_the_fishers_examples_are_the_first_or_one_of_each_class():
    """Sorted by class, the first rows hold one class; drawn by class, all."""
    task = tiny.task()
    rows = task.train.sort("label")
    update = more_samples(replace(task, train=rows), 0.5)
    update = replace(update, old=replace(update.old, train=rows))
    tokenizer = build(tiny.RECIPE, update.old, 0)[1]
    labels = {
        draw: torch.cat(
            [
                batch["labels"]
                for batch in fisher_batches(tiny.RECIPE, update, tokenizer, draw, 6, 4)
            ]
        )
        for draw in DRAWS
    }
    assert [len(each) for each in labels.values()] == [6, 6]
    assert len(set(labels["first"].tolist())) == 1 and set(labels["by_class"].tolist()) == {0, 1, 2}
    with pytest.raises(ValueError, match="'random'.*by_class"):
        fisher_batches(tiny.RECIPE, update, tokenizer, "random")
