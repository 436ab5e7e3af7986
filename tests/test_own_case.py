"""A user's files: joined by id, refused where they do not fit, and every treatment on them by one command."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
from notebook_cells import refusals

from compatkit.training.models import small_classifier
from compatkit.experiments.own_case import (
    Cost,
    answers_run,
    check_classes,
    given_answers,
    longest,
    model_run,
    recommend,
    value,
    value_error,
)
from compatkit.predictions import Predictions
from compatkit.experiments.result_tables import Row

ROOT = Path(__file__).resolve().parent.parent
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
        == f"{len(task.train)} of {len(task.train)} training examples have no old answer"
    )


@pytest.mark.parametrize("lost", ["selection", "test"])
def test_missing_answers_are_named(task, lost):
    with pytest.raises(ValueError, match=f"{lost} examples have no old answer, among them"):
        given_answers(task, old_answers(task, tuple(one for one in SPLITS if one != lost)))


def test_what_does_not_fit_is_named(task):
    old = old_answers(task)
    with pytest.raises(ValueError, match="columns without names"):
        given_answers(task, Predictions(old.id, logits=np.hstack([old.logits, old.logits])))
    with pytest.raises(ValueError, match="are no classes of the task"):
        given_answers(task, Predictions(old.id, prediction=["unheard"] * len(old)))
    with pytest.raises(ValueError, match="labels differ between the data and the old answers for"):
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


@pytest.fixture(scope="module")
def folder(task, tmp_path_factory):
    place = tmp_path_factory.mktemp("new")
    tokenizer = tiny.tokenizer()
    small_classifier(tokenizer, task.classes, 0, 1, 16, 24).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def renamed(folder, target, names):
    """A copy of a model's folder with other names of classes."""
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((target / "config.json").read_text())
    config["id2label"], config["label2id"] = (
        dict(enumerate(names)),
        {name: one for one, name in enumerate(names)},
    )
    (target / "config.json").write_text(json.dumps(config))
    return target


def test_the_order_of_a_models_classes_counts(task, folder, tmp_path):
    check_classes(folder, task.classes)
    check_classes(
        renamed(folder, tmp_path / "plain", [f"LABEL_{one}" for one in range(len(task.classes))]),
        task.classes,
    )
    with pytest.raises(ValueError, match="in another order"):
        check_classes(renamed(folder, tmp_path / "turned", task.classes[::-1]), task.classes)
    with pytest.raises(ValueError, match="is it a classifier of this task"):
        check_classes(renamed(folder, tmp_path / "other", ["x", *task.classes[1:]]), task.classes)


def test_the_models_answers_are_those_of_transformers(task, folder, tmp_path):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    run = model_run(task, folder, home=tmp_path)
    model, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    texts = [list(task.test[field]) for field in task.text_fields]
    with torch.no_grad():
        logits = model(
            **tokenizer(*texts, padding=True, truncation=True, max_length=24, return_tensors="pt")
        ).logits.numpy()
    assert np.allclose(run.predictions("test").logits, logits, atol=1e-5)
    assert run.results["bytes"] == 4 * model.num_parameters()


def test_the_length_is_the_models_own(folder, tmp_path):
    assert longest(folder) == 24 and longest(folder, 10) == 10
    with pytest.raises(ValueError, match="at most 24 tokens, not 128"):
        longest(folder, 128)
    with pytest.raises(FileNotFoundError, match="holds no config.json"):
        longest(tmp_path)


def row(name, accuracy, nfr, test=None, low=-0.01):
    accuracy_test, nfr_test = test or (accuracy, nfr)
    return Row(
        name,
        "",
        1,
        (accuracy_test, math.nan),
        (nfr_test, math.nan),
        difference=(0.0, low, max(low, -low)),
        selection={"accuracy": (accuracy, math.nan), "nfr": (nfr, math.nan)},
    )


OLD, NEW = row("old model", 0.80, 0.0), row("new model", 0.85, 0.05)
COSTS = {"new model": Cost(1), "a": Cost(1, "", 10.0), "b": Cost(2, "its logits")}


def test_the_recommendation_follows_its_rule():
    assert (
        recommend([OLD, NEW, row("a", 0.85, 0.03), row("b", 0.85, 0.01)], COSTS, 100_000).method
        == "b"
    )
    assert (
        recommend([OLD, NEW, row("a", 0.85, 0.03), row("b", 0.85, 0.029)], COSTS, 300).method
        == "new model"
    )  # nothing can be told apart
    assert (
        recommend([OLD, NEW, row("a", 0.85, 0.029), row("b", 0.85, 0.028)], COSTS, 5000).method
        == "a"
    )  # the cheaper of two equals
    assert (
        recommend([OLD, NEW, row("b", 0.80, 0.0)], COSTS, 5000).method == "new model"
    )  # a copy of the old model is not on a par
    assert (
        recommend(
            [OLD, NEW, row("a", 0.86, 0.03), row("b", 0.85, 0.01)], COSTS, 10**6, price=0.0
        ).method
        == "a"
    )
    assert (
        recommend(
            [OLD, NEW, row("a", 0.86, 0.03), row("b", 0.85, 0.01)], COSTS, 10**6, price=10.0
        ).method
        == "b"
    )


def test_the_old_model_is_no_answer_and_both_models_are_needed():
    with pytest.raises(ValueError, match="old model and the new model"):
        recommend([NEW], COSTS, 100)
    found = recommend([OLD, replace(NEW, accuracy=(0.79, math.nan))], COSTS, 100)
    assert (
        found.method == "new model"
        and "is the update worth anything?" in found.words
        and "No treatment was on a par" in found.words
    )


def test_a_choice_that_does_not_carry_over_is_told():
    assert (
        "it pays with accuracy"
        in recommend(
            [OLD, NEW, replace(row("b", 0.85, 0.0), difference=(-0.03, -0.04, -0.02))],
            COSTS,
            10_000,
        ).words
    )


def test_the_value_of_an_example():
    one = row("x", 0.9, 0.02)
    worth = np.repeat([1.0, -3.0, 0.0], [90, 2, 8])
    assert value(one, 3.0) == pytest.approx(worth.mean()) and value_error(
        one, 100, 3.0
    ) == pytest.approx(worth.std() / 10)


def papermill(tmp_path, *parameters):
    options = [part for name, given in parameters for part in ("-p", name, str(given))]
    command = [
        sys.executable,
        "-m",
        "papermill",
        str(ROOT / "nbs" / "own_case.ipynb"),
        str(tmp_path / "out.ipynb"),
        "--engine",
        "compatkit",
        "--no-progress-bar",
    ]
    return subprocess.run(
        [*command, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@pytest.fixture
def files(task, folder, tmp_path):
    """What a user has: a csv, a parquet file and a folder."""
    lines = ["id,text,label,split"]
    for split in SPLITS:
        rows = getattr(task, split)
        lines += [
            f'{one},"{words}",{task.classes[right]},{split}'
            for one, words, right in zip(rows["id"], rows[task.text_fields[0]], rows["label"])
        ]
    (tmp_path / "my.csv").write_text("\n".join(lines) + "\n")
    old_answers(task).save(tmp_path / "old.parquet")
    return [
        ("data_file", tmp_path / "my.csv"),
        ("old_predictions", tmp_path / "old.parquet"),
        ("new_model", folder),
        ("max_steps", 2),
    ]


def outputs_of(path):
    cells = json.loads(path.read_text())["cells"]
    return " ".join(
        "".join(part)
        for cell in cells
        for output in cell.get("outputs", [])
        for part in [
            output.get("text", ""),
            *(output.get("data", {}).get(kind, "") for kind in ("text/html", "text/plain")),
        ]
    )


def test_the_command_runs_everything_that_applies(files, folder, tmp_path):
    done = papermill(tmp_path, *files, ("old_model", folder))
    assert done.returncode == 0, done.stderr[-3000:]
    shown = outputs_of(tmp_path / "out.ipynb")
    for method in (
        "old-new probabilities",
        "old-new logits",
        "BCWI",
        "trained on",
        "dynamic distillation",
        "focal distillation",
        "gated fusion",
        "Recommended:",
    ):
        assert method in shown, method
    assert "decision rule does not apply" in shown  # so few examples certify nothing


def test_answers_without_logits_leave_what_needs_them_out(files, task, tmp_path):
    old_answers(task, logits=False).save(tmp_path / "names.csv")
    done = papermill(
        tmp_path,
        *(one for one in files if one[0] != "old_predictions"),
        ("old_predictions", tmp_path / "names.csv"),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    shown = outputs_of(tmp_path / "out.ipynb")
    assert (
        "old–new mixtures does not apply: the old answers have no logits" in shown
        and "distillation and gated fusion does not apply" in shown
    )


def test_bad_input_is_named(files):
    wrong = {
        "missing: new_model": {"new_model": ""}, "holds no config.json": {"new_model": "/nowhere"}, "there is no file": {"data_file": "/nowhere.csv"},
        "nowhere.parquet": {"old_predictions": "/nowhere.parquet"}, "at least 2": {"epochs": 1}, "lable": {"label": "lable"},
    }  # fmt: skip
    given = {
        words: {name: str(value) if isinstance(value, Path) else value for name, value in files}
        | change
        for words, change in wrong.items()
    }
    for words, (error, message) in refusals("own_case", given, {}).items():
        assert words in message, (words, error, message)
