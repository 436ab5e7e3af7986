"""What a user of own_case has: a tiny task, an old model's answers, a folder with a new one."""

import numpy as np
import pytest
import tiny

from compatkit.predictions import Predictions
from compatkit.training.models import small_classifier

SPLITS = ("train", "selection", "test")


def old_answers(task, splits=SPLITS, logits=True, **more):
    """Answers on a tiny task's splits, in another order than the task's."""
    ids = [one for split in splits for one in getattr(task, split)["id"]][::-1]
    width = len(task.classes)
    values = np.random.default_rng(0).normal(size=(len(ids), width))
    return (
        Predictions(ids, logits=values, classes=task.classes, **more)
        if logits
        else Predictions(ids, prediction=[task.classes[one] for one in values.argmax(1)])
    )


@pytest.fixture(scope="module")
def task():
    return tiny.task()


@pytest.fixture(scope="module")
def folder(task, tmp_path_factory):
    place = tmp_path_factory.mktemp("new")
    tokenizer = tiny.tokenizer()
    small_classifier(tokenizer, task.classes, 0, 1, 16, 24).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place
