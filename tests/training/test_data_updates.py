"""Data updates: what is old is part of what is new, in proportion; NFR knows its examples; the
authors' split stays apart.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import tiny
from datasets import ClassLabel, Dataset, Features, Value

from compatkit.experiments.models.trainings import train_once
from compatkit.metrics import FlipCounts
from compatkit.predictions import Predictions
from compatkit.training import data_updates
from compatkit.training.data_updates import (
    SCENARIOS,
    DataUpdate,
    adddata_ids,
    data_update,
    massive_adddata,
    more_classes,
    more_samples,
    reduced,
    stratified_order,
)
from compatkit.training.tasks import Task, load_task


def task(train=120, classes=6):
    names = tuple(f"class {n}" for n in range(classes))

    def columns(prefix, labels):
        return {
            "id": [f"{prefix}-{n}" for n in range(len(labels))],
            "label": labels,
            "text": [f"{prefix} {n}" for n in range(len(labels))],
        }

    uneven = [min(n % classes, n % 5) for n in range(train)]
    labels = {
        "train": uneven,
        "validation": [n % classes for n in range(30)],
        "test": [n % classes for n in range(36)],
    }
    return Task(
        "made",
        "made",
        *(Dataset.from_dict(columns(*one)) for one in labels.items()),
        ("text",),
        names,
        "made up",
        "python",
    )


# --- more samples ---


@pytest.mark.parametrize("share", [0.1, 0.5, 0.77])
def test_every_class_keeps_its_proportion(share):
    update = more_samples(task(), share)
    before, after = Counter(update.old.train["label"]), Counter(update.new.train["label"])
    assert len(update.old.train) == round(share * 120)
    assert all(abs(before[label] - share * after[label]) <= 1 for label in after)


def test_every_beginning_of_the_order_is_stratified_and_smaller_sets_are_parts_of_larger_ones():
    generator = np.random.default_rng(0)
    labels = generator.choice(5, 200, p=[0.5, 0.3, 0.1, 0.07, 0.03]).tolist()
    order = stratified_order([str(n) for n in range(200)], labels, "salt")
    total = Counter(labels)
    assert sorted(order) == list(range(200))
    for size in range(201):
        part = Counter(labels[position] for position in order[:size])
        assert all(abs(part[label] - total[label] * size / 200) <= 1.5 for label in total)


def test_the_order_comes_from_the_ids_not_from_the_rows():
    ids, labels = [f"id {n}" for n in range(40)], [n % 4 for n in range(40)]
    first = [ids[position] for position in stratified_order(ids, labels, "s")]
    shuffled = list(np.random.default_rng(1).permutation(40))
    again = [
        ids[shuffled[position]]
        for position in stratified_order(
            [ids[n] for n in shuffled], [labels[n] for n in shuffled], "s"
        )
    ]
    assert set(first[:20]) == set(again[:20])
    assert first != [ids[position] for position in stratified_order(ids, labels, "other")]


def test_old_examples_are_new_ones_and_a_seed_changes_which():
    first, second = more_samples(task(), 0.5, seed=0), more_samples(task(), 0.5, seed=1)
    assert set(first.old.train["id"]) < set(first.new.train["id"])
    assert set(first.old.train["id"]) != set(second.old.train["id"])
    assert (
        first.old.fingerprint != second.old.fingerprint
        and first.new.fingerprint == second.new.fingerprint
    )
    assert set(more_samples(task(), 0.25).old.train["id"]) < set(first.old.train["id"])


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, True, float("nan")])
def test_a_share_outside_is_refused(share):
    for make in (more_samples, more_classes):
        with pytest.raises(ValueError, match="above 0 and below 1"):
            make(task(), share)


def test_a_share_that_leaves_nothing_is_refused():
    with pytest.raises(ValueError, match="nothing is old"):
        more_samples(task(), 0.001)


def test_titles_say_what_was_reduced():
    smaller = reduced(task(), 60)
    assert (
        smaller.title == "made (60 train)"
        and more_samples(smaller, 0.5).old.title == "made (30 of 60 train)"
    )
    assert reduced(task(), 500) is not None and reduced(task(), 120).title == "made"
    assert "3 of 6 classes" in more_classes(task()).old.title
    with pytest.raises(ValueError, match="at least 1"):
        reduced(task(), 0)


# --- more classes ---


def test_old_tasks_hold_only_old_classes_with_labels_renumbered():
    update = more_classes(task(), 0.5, seed=3)
    assert len(update.old_classes) == 3 and list(update.old_classes) == sorted(update.old_classes)
    for split in ("train", "selection", "test"):
        truth = dict(zip(getattr(update.new, split)["id"], getattr(update.new, split)["label"]))
        old = getattr(update.old, split)
        assert set(old["label"]) <= {0, 1, 2}
        assert all(
            update.old_classes[label] == truth[one] for one, label in zip(old["id"], old["label"])
        )
        assert set(old["id"]) == set(update.known(split))
        asked = getattr(update.old, f"new_{split}")
        assert list(asked["id"]) == list(getattr(update.new, split)["id"])
        assert all(
            (label == -1) == (one not in set(old["id"]))
            for one, label in zip(asked["id"], asked["label"])
        )
    assert update.old.classes == tuple(update.new.classes[one] for one in update.old_classes)


def test_the_half_is_fixed_and_a_seed_changes_it():
    assert more_classes(task()).old_classes == more_classes(task()).old_classes
    assert len({more_classes(task(), seed=seed).old_classes for seed in range(8)}) > 1


def test_too_few_classes_are_refused():
    with pytest.raises(ValueError, match="at least two"):
        more_classes(task(classes=6), 0.2)
    with pytest.raises(ValueError, match="at least two"):
        more_classes(task(classes=3), 0.9)


def test_a_split_without_old_classes_is_refused():
    made = task()
    update = more_classes(made)
    other = [row for row, label in enumerate(made.test["label"]) if label not in update.old_classes]
    bare = Task(
        "made",
        "made",
        made.train,
        made.selection,
        made.test.select(other),
        ("text",),
        made.classes,
        "made up",
        "python",
    )
    with pytest.raises(ValueError, match="'test'"):
        more_classes(bare)


def test_widened_answers_join_the_new_ones_and_flips_fall_on_known_examples_only():
    update = more_classes(task(), 0.5)
    generator = np.random.default_rng(2)
    old = Predictions(
        update.old.new_test["id"],
        update.old.new_test["label"],
        logits=generator.normal(size=(36, 3)),
        classes=update.old.classes,
    )
    new = Predictions(
        update.new.test["id"],
        update.new.test["label"],
        logits=generator.normal(size=(36, 6)),
        classes=update.new.classes,
    )
    wide = update.widened(old)
    assert [update.new.classes.index(update.old.classes[one]) for one in old.prediction] == list(
        wide.prediction
    )
    everything = FlipCounts.between(wide, new)
    known = FlipCounts.between(wide.select(update.known()), new.select(update.known()))
    assert known.negative == everything.negative and known.n == 18
    by_hand = sum(
        update.old_classes[o] == label != n
        for o, n, label in zip(old.prediction, new.prediction, new.label)
    )
    assert everything.negative == by_hand > 0


def test_widened_refuses_examples_of_another_task():
    update = more_classes(task())
    strange = Predictions(["nobody"], logits=np.zeros((1, 3)), classes=update.old.classes)
    with pytest.raises(ValueError, match="nobody"):
        update.widened(strange)


def test_with_the_same_classes_nothing_is_widened():
    update = more_samples(task())
    answers = Predictions(
        update.new.test["id"],
        update.new.test["label"],
        logits=np.zeros((36, 6)),
        classes=update.new.classes,
    )
    assert update.widened(answers) is answers and update.known() == list(update.new.test["id"])


# --- the old model answers the new task's examples ---


def test_the_old_rule_holds_the_new_data():
    first, second = more_samples(task(), 60 / 120), more_samples(task(train=119), 60 / 119)
    assert first.new.fingerprint[:16] in first.old.rule
    assert first.old.fingerprint != second.old.fingerprint


def test_an_old_run_is_asked_about_the_new_splits(tmp_path):
    update = more_classes(tiny.task(), 0.67)
    run = train_once(
        update.old, tiny.RECIPE, 0, splits=("test", "new_train", "new_test"), home=tmp_path
    )
    train, test = (update.widened(run.predictions(split)) for split in ("new_train", "new_test"))
    assert list(train.id) == list(update.new.train["id"]) and list(test.label) == list(
        update.new.test["label"]
    )
    own = run.predictions("test")
    assert np.array_equal(
        own.logits.argmax(1), run.predictions("new_test").select(list(own.id)).logits.argmax(1)
    )
    assert test.correct.sum() == own.correct.sum()


# --- the authors' split ---


def write_adddata(folder, **changes):
    """Files of the authors' layout in small."""
    features = Features(
        {
            "id": Value("string"),
            "partition": Value("string"),
            "label": ClassLabel(names=["a", "b"]),
            "text": Value("string"),
        }
    )
    ids = {
        "train_old": range(4),
        "train_updated": range(6),
        "validation_old": range(2),
        "validation_updated": range(3),
        "test": range(5),
    } | changes
    place = folder / "massive_en_adddata"
    place.mkdir(parents=True)
    for name, numbers in ids.items():
        if numbers is not None:
            rows = {
                "id": [str(n) for n in numbers],
                "partition": ["train"] * len(numbers),
                "label": [n % 2 for n in numbers],
                "text": [f"t {n}" for n in numbers],
            }
            Dataset.from_dict(rows, features=features).to_parquet(str(place / f"{name}.parquet"))
    return folder


def test_the_authors_split_is_read_from_a_folder_or_the_environment(tmp_path, monkeypatch):
    update = massive_adddata(write_adddata(tmp_path))
    assert isinstance(update, DataUpdate) and update.old_classes is None
    assert [
        len(one)
        for one in (
            update.old.train,
            update.new.train,
            update.old.selection,
            update.new.selection,
            update.new.test,
        )
    ] == [4, 6, 2, 3, 5]
    assert update.new.classes == update.old.classes == ("a", "b") and set(
        update.old.train["id"]
    ) < set(update.new.train["id"])
    monkeypatch.setenv("COMPATKIT_DATA", str(tmp_path))
    assert (
        massive_adddata().new.fingerprint
        == update.new.fingerprint
        == data_update("massive").new.fingerprint
    )
    smaller = data_update("massive_adddata", train=5)
    assert (
        len(smaller.new.train) == 5 and len(smaller.old.train) == 3 and len(smaller.new.test) == 5
    )


def test_the_authors_split_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.delenv("COMPATKIT_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="data_dir.*COMPATKIT_DATA"):
        massive_adddata()
    with pytest.raises(FileNotFoundError, match="no folder 'massive_en_adddata'"):
        massive_adddata(tmp_path)
    with pytest.raises(FileNotFoundError, match="data_dir"):
        massive_adddata(tmp_path / "mistyped")
    with pytest.raises(FileNotFoundError, match=r"lacks \['validation_old.parquet'\]"):
        massive_adddata(write_adddata(tmp_path / "a", validation_old=None))
    with pytest.raises(ValueError, match="1 examples.*train_old.*train_updated"):
        massive_adddata(write_adddata(tmp_path / "b", train_old=[0, 9]))


# --- scenarios ---


def test_scenarios_by_name(tmp_path):
    with pytest.raises(ValueError, match=f"not one of {', '.join(SCENARIOS)}"):
        data_update("pydoc", "add_noise")
    with pytest.raises(ValueError, match="unknown task"):
        data_update("mrcp")
    update = data_update("pydoc")
    assert (
        update.old_classes is None
        and abs(len(update.old.train) / len(update.new.train) - 2 / 3) < 0.01
    )


def test_a_real_set_is_reduced_to_the_talks_sizes(tmp_path):
    folder = tmp_path / "banking77"
    folder.mkdir()
    for name, count in (("train", 2000), ("test", 40)):
        Dataset.from_dict(
            {"text": [f"{name} {n}" for n in range(count)], "label": [n % 4 for n in range(count)]}
        ).to_parquet(str(folder / f"{name}.parquet"))
    samples, classes = (
        data_update("banking77", data_dir=tmp_path),
        data_update("banking77", "add_classes", tmp_path),
    )
    assert len(samples.old.train) == 1000 and samples.new.title == "banking77 (1,500 train)"
    assert (
        len(classes.old_classes) == 2
        and abs(len(classes.old.train) - 750) <= 20
        and len(classes.known()) == 20
    )
    assert len(data_update("banking77", data_dir=tmp_path, train=900).new.train) == 900


def test_the_authors_ids_are_numbers_and_their_old_parts_lie_in_the_new_ones():
    parts = adddata_ids()
    assert {part: len(numbers) for part, numbers in parts.items()} == {
        "train_old": 1000,
        "train_updated": 1500,
        "validation_old": 333,
        "validation_updated": 500,
        "test": 4000,
    }
    assert all(number.isdigit() for numbers in parts.values() for number in numbers)
    assert set(parts["train_old"]) < set(parts["train_updated"])
    assert not set(parts["test"]) & set(parts["train_updated"] + parts["validation_updated"])


def test_the_authors_split_is_put_together_from_massive_by_its_ids(monkeypatch):
    numbers = [number for part in adddata_ids().values() for number in part]
    every = list(dict.fromkeys(numbers))
    rows = Dataset.from_dict(
        {
            "id": [f"train-{number}" for number in every],
            "label": [int(number) % 3 for number in every],
            "utt": [f"text {number}" for number in every],
        }
    )
    parts = (
        rows.select(range(4000)),
        rows.select(range(4000, 5000)),
        rows.select(range(5000, len(rows))),
    )
    massive = replace(
        load_task("pydoc"),
        name="massive",
        train=parts[0],
        selection=parts[1],
        test=parts[2],
        classes=("a", "b", "c"),
    )
    monkeypatch.setattr(data_updates, "load_task", lambda name, data_dir=None: massive)
    monkeypatch.setattr(data_updates, "_adddata_folder", lambda data_dir: None)
    update = massive_adddata()
    assert (len(update.old.train), len(update.new.train), len(update.new.test)) == (
        1000,
        1500,
        4000,
    )
    assert all(
        text == f"text {one.split('-')[1]}"
        for one, text in zip(update.new.test["id"], update.new.test["text"])
    )
    lacking = replace(massive, train=massive.train.select(range(10)))
    monkeypatch.setattr(data_updates, "load_task", lambda name, data_dir=None: lacking)
    with pytest.raises(ValueError, match="MASSIVE"):
        massive_adddata()
