"""Files of answers become runs: joined by id or by the row of a public set, refused otherwise."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet
import pytest
import tiny
from own_files import SPLITS, old_answers, task  # noqa: F401 (fixtures)

from compatkit.experiments.models.given_answers import (
    answers_run,
    folder_of_answers,
    given_answers,
    in_the_tasks_classes,
    published_answers,
    read_answers,
)
from compatkit.predictions import Predictions


def test_answers_are_joined_by_id_with_the_tasks_labels(task):
    old = old_answers(task)
    given = given_answers(task, old)
    assert given.has_logits and not given.training
    for split in SPLITS:
        found = given.by_split[split]
        assert found.id.tolist() == task_ids(task, split) and found.label.tolist() == list(
            getattr(task, split)["label"]
        )
        assert np.array_equal(found.logits, old.select(found.id.tolist()).logits)


def task_ids(task, split):
    return [str(one) for one in getattr(task, split)["id"]]


def test_a_number_is_the_class_that_is_called_so():
    old = Predictions(["a", "b"], label=[1, 3], prediction=[1, 2])
    found = in_the_tasks_classes(old, ("1", "2", "3"))
    assert found.prediction.tolist() == [0, 1] and found.label.tolist() == [0, 2]
    places = in_the_tasks_classes(old, ("0", "1", "2", "3"))
    assert places.prediction.tolist() == [1, 2]
    with pytest.raises(ValueError, match="'3'"):
        in_the_tasks_classes(old.replace(prediction=[3, 3]), ("1", "2"))
    with pytest.raises(ValueError, match="missing"):
        in_the_tasks_classes(old.replace(prediction=[3, None]), ("1", "2", "3"))


def test_names_of_classes_are_enough(task):
    given = given_answers(task, old_answers(task, logits=False))
    by_number = given_answers(task, old_answers(task))
    assert not given.has_logits
    assert all(
        np.array_equal(given.by_split[split].prediction, by_number.by_split[split].prediction)
        for split in SPLITS
    )


def test_another_order_of_classes_is_put_right(task):
    old = old_answers(task)
    turned = Predictions(old.id, logits=old.logits[:, ::-1], classes=task.classes[::-1])
    first, second = (given_answers(task, one).by_split["test"] for one in (old, turned))
    assert np.array_equal(first.logits, second.logits) and np.array_equal(
        first.prediction, second.prediction
    )


def test_training_examples_may_be_missing_and_that_is_told(task):
    given = given_answers(task, old_answers(task, ("selection", "test")))
    assert (
        "train" not in given.by_split
        and given.training
        == f"{len(task.train)} of {len(task.train)} training examples have no answer"
    )


@pytest.mark.parametrize("lost", ["selection", "test"])
def test_missing_answers_are_named(task, lost):
    with pytest.raises(ValueError, match=f"{lost} examples have no answer, among them"):
        given_answers(task, old_answers(task, tuple(one for one in SPLITS if one != lost)))


def test_what_does_not_fit_is_named(task):
    old = old_answers(task)
    with pytest.raises(ValueError, match="columns without names"):
        given_answers(task, Predictions(old.id, logits=np.hstack([old.logits, old.logits])))
    with pytest.raises(ValueError, match="no classes"):
        given_answers(task, Predictions(old.id, prediction=["unheard"] * len(old)))
    with pytest.raises(ValueError, match="labels differ"):
        given_answers(task, old.replace(label=np.zeros(len(old), int)))


def test_given_answers_are_a_run_named_by_their_content(task, tmp_path):
    old = old_answers(task)
    first = answers_run(task, given_answers(task, old), tmp_path)
    assert answers_run(task, given_answers(task, old), tmp_path).id == first.id
    assert (
        answers_run(task, given_answers(task, old.replace(logits=old.logits + 1)), tmp_path).id
        != first.id
    )
    assert np.array_equal(
        first.predictions("test").logits, given_answers(task, old).by_split["test"].logits
    )


RAW = {"train": "train", "validation": "selection", "test": "test"}


def write_published(folder, task, name="resnet", raw=RAW, logits=True, shift=0):
    """Files as a public model's author writes them: numbers of rows, labels, and logits or not."""
    folder.mkdir(exist_ok=True)
    for split, part in raw.items():
        rows = getattr(task, part)
        values = np.random.default_rng(len(name)).normal(size=(len(rows), len(task.classes)))
        label = (np.asarray(rows["label"]) + shift) % len(task.classes)
        more = {"logits": list(values.astype("f2"))} if logits else {"prediction": values.argmax(1)}
        columns = {"row": [int(one.rsplit("-", 1)[1]) for one in rows["id"]], "label": label} | more
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{name}-{split}.parquet")


def test_public_answers_are_joined_by_the_raw_splits_rows(tmp_path):
    images = tiny.image_task()
    write_published(tmp_path / "zoo", images)
    write_published(tmp_path / "zoo", images, "resnet-larger", logits=False)
    runs = published_answers(images, tmp_path / "zoo", tmp_path / "runs")
    assert sorted(runs) == ["resnet", "resnet-larger"]
    assert runs["resnet-larger"].id != runs["resnet"].id
    for split in SPLITS:
        found = runs["resnet"].predictions(split)
        assert found.id.tolist() == list(getattr(images, split)["id"])
    assert runs["resnet"].predictions("test").logits is not None
    assert runs["resnet-larger"].predictions("test").logits is None


def test_models_are_compared_on_a_task_whose_raw_test_split_has_no_labels(tmp_path):
    images = tiny.image_task()
    on_test = images.test.map(lambda row: {"id": row["id"].replace("test", "public")})
    reported = replace(images, test=on_test)
    write_published(tmp_path / "zoo", reported, raw={"test": "test"})
    run = published_answers(reported, tmp_path / "zoo", tmp_path / "runs")["resnet"]
    assert run.predictions("test").id.tolist() == on_test["id"][:]
    assert "selection" not in run.results["accuracy"]
    with pytest.raises(ValueError, match="selection examples have no answer"):
        given_answers(reported, read_answers(tmp_path / "zoo" / "resnet", reported))


@pytest.mark.parametrize("compared", [False, True])
def test_half_of_selection_is_not_enough(task, compared):
    old = old_answers(task)
    half = old.select([one for one in old.id if one not in set(task.selection["id"][::2])])
    with pytest.raises(ValueError, match="selection examples have no answer"):
        given_answers(task, half, compared)


def test_answers_of_other_images_are_refused(tmp_path):
    images = tiny.image_task()
    write_published(tmp_path / "zoo", images, shift=1)
    with pytest.raises(ValueError, match="labels differ"):
        published_answers(images, tmp_path / "zoo", tmp_path / "runs")


def test_a_split_that_the_task_has_not_is_named(tmp_path):
    images = tiny.image_task()
    write_published(tmp_path / "zoo", images, raw={"test": "test", "extra": "train"})
    with pytest.raises(ValueError, match="no split 'extra'"):
        read_answers(tmp_path / "zoo" / "resnet", images)
    with pytest.raises(FileNotFoundError, match="no answers of other"):
        read_answers(tmp_path / "zoo" / "other", images)


def test_files_with_and_without_logits_are_not_one_model(tmp_path):
    images = tiny.image_task()
    write_published(tmp_path / "zoo", images, raw={"test": "test"})
    write_published(tmp_path / "zoo", images, raw={"train": "train"}, logits=False)
    with pytest.raises(ValueError, match="logits"):
        read_answers(tmp_path / "zoo" / "resnet", images)


def test_names_of_columns_stay_and_are_the_same_in_all_files(tmp_path, task):
    def write(split, classes):
        logits = np.eye(len(classes))[np.asarray(getattr(task, split)["label"])][:, ::-1]
        answers = Predictions(task_ids(task, split), logits=logits, classes=classes)
        answers.save(tmp_path / f"m-{split}.parquet")

    turned = task.classes[::-1]
    for split in SPLITS:
        write(split, turned)
    given = given_answers(task, read_answers(tmp_path / "m", task))
    assert all(given.by_split[split].correct.all() for split in SPLITS)
    write("test", task.classes)
    with pytest.raises(ValueError, match="m's files.*classes"):
        read_answers(tmp_path / "m", task)


def test_a_folder_is_found_by_its_name_beside_the_data(tmp_path, monkeypatch):
    monkeypatch.delenv("COMPATKIT_DATA", raising=False)
    write_published(tmp_path / "zoo", tiny.image_task())
    assert folder_of_answers("zoo", tmp_path) == tmp_path / "zoo"
    assert folder_of_answers(str(tmp_path / "zoo")) == tmp_path / "zoo"
    with pytest.raises(FileNotFoundError, match="elsewhere .*hold no answers"):
        folder_of_answers("elsewhere", tmp_path)
