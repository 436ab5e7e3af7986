"""Traffic that is in no other part, and runs about it that are made once."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from retiring import models, world  # noqa: F401 (fixtures)

from compatkit.experiments.models.traffic_trainings import (
    Lesson,
    asked_once,
    head_once,
    traffic_embeddings,
    traffic_of,
)
from compatkit.predictions import Predictions
from compatkit.retire_the_old import UNLABELLED


def test_traffic_is_what_is_left_without_labels(world):  # noqa: F811
    task, update, traffic = world
    parts = (update.new.train, update.new.selection, update.new.test)
    used = {text for part in parts for text in part["text"]}
    assert not used & set(traffic.rows["text"]) and set(traffic.rows["label"]) == {UNLABELLED}
    left = {text for text in task.train["text"] if text not in used}
    assert set(traffic.rows["text"]) == left and len(set(traffic.rows["id"])) == len(left)
    few = traffic_of(update, task, most=10)
    assert len(few.rows) == 10 and set(few.rows["id"]) < set(traffic.rows["id"])
    assert few.fingerprint != traffic.fingerprint
    with pytest.raises(ValueError, match="the pool is empty"):
        traffic_of(update, update.new)


def test_texts_that_differ_in_case_alone_are_left_out(world):  # noqa: F811
    task, update, _ = world
    from datasets import Dataset

    loud = [text.upper() + " " for text in update.new.test["text"]]
    columns = {"id": [f"x{row}" for row in range(len(loud))], "text": loud}
    source = SimpleNamespace(title="loud", text_fields=("text",), train=Dataset.from_dict(columns))
    with pytest.raises(ValueError, match="the pool is empty"):
        traffic_of(update, source)


def test_hard_answers_train_a_head_too(models, tmp_path):  # noqa: F811
    told = models.old_asked(0).predictions("traffic")
    hard = Predictions(told.id, prediction=told.logits.argmax(1))
    run = SimpleNamespace(id="hard", predictions=lambda split: hard)
    found = head_once(models.new_asked(0), run, 0, home=tmp_path)
    assert found.predictions("new_test").logits.shape[1] == 3


def test_embeddings_are_not_in_results(models, tmp_path):  # noqa: F811
    asked = models.new_asked(0)
    kept = replace(asked, folder=tmp_path / "recalled" / asked.id)
    with pytest.raises(ValueError, match="neither weights nor"):
        traffic_embeddings(replace(kept, again=None), "traffic")
    again = traffic_embeddings(replace(kept, again=lambda: asked), "traffic")
    assert np.array_equal(again, traffic_embeddings(asked, "traffic"))


def test_a_lesson_says_what_decides_it(models):  # noqa: F811
    old, new = models.old_asked(0), models.new_asked(0)
    told = [
        Lesson("self", new).identity(),
        Lesson("mixture", new, old, weight=0.3).identity(),
        Lesson("rule", new, old, 2.0).identity(),
    ]
    assert told[0] == {"lesson": "self"} and told[1]["weight"] == 0.3
    assert told[2] == {"lesson": "rule", "price": 2.0, "pool": None}
    assert asked_once(models.update, models.old_recipe, models.olds[0], models.traffic, True) == old
