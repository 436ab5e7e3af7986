"""MUSCLE's experiment without any model: tasks, runs and studies whose answers are given."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from compatkit.experiments.judging.kept_answers import KeptRun, Shelf, Truth
from compatkit.experiments.models.language_recipes import adapter_recipe
from compatkit.experiments.running.parameters import check_parameters
from compatkit.experiments.running.store import RECORDS, _schemas, _write_parquet
from compatkit.experiments.studies.language_study import (
    LanguageStudy,
    MeasuredRun,
    language_parameters,
)
from compatkit.experiments.studies.study import defaults_of
from compatkit.language.tasks import Generation, Question, Questions
from compatkit.predictions import Predictions


def asked(**changes):
    """Checked parameters."""
    return check_parameters(defaults_of("muscle") | changes, {}, language_parameters())


def stories(choices=2, measures=("choice",), name="piqa"):
    """A task of real data, without the data."""
    made = tuple(
        Question(f"q{n}", f"story {n}", choices=tuple("abcd"[:choices]), label=n % choices)
        for n in range(8)
    )
    return Questions(
        name, name, made[:4], made[4:6], made[6:], measures, Generation(), "cut", "made"
    )


def edit_records(folder, change):
    """A study's records as one text, a line a run, written again as `change` makes it."""
    from pyarrow import parquet

    file = folder / RECORDS
    lines = change("\n".join(parquet.read_table(file)["record"].to_pylist())).split("\n")
    rows = [{"run": "", "record": line} for line in lines if line]
    _write_parquet(rows, _schemas()[2], file)


class SavedRun:
    """A run whose predictions are given: seed → Predictions."""

    recalled = False

    def __init__(self, name, predictions):
        self.id, self.given = name, predictions

    def predictions(self, split):
        return self.given[split]


def study_of(task, scale="mini", by="choice", runs=None, **changes):
    """A study whose runs are given."""
    upgrades = {"a": ("version 1", "version 2")}
    if scale == "paper":
        upgrades = {"c": ("microsoft/phi-1", "microsoft/phi-1_5")}
    chosen = asked(task=task.name, scale=scale, **changes)
    return LanguageStudy(
        chosen,
        scale,
        "it was asked for",
        task,
        task,
        by,
        adapter_recipe(scale),
        upgrades,
        runs=runs or {},
    )


def scores(values, split="test"):
    ids = [f"q{n}" for n in range(len(values))]
    return Predictions(ids, score=values, text=[f"text {value}" for value in values])


def scored(name, test, selection=(0.5, 0.5)):
    task = stories(measures=("rouge1",), name="samsum")
    run = SavedRun(name, {"test-rouge1": scores(test), "selection-rouge1": scores(selection)})
    return MeasuredRun(run, "rouge1", task)


def chosen_answers(name, prediction, task, split="test"):
    ids = [one.id for one in getattr(task, split)]
    logits = np.eye(len(task.test[0].choices))[prediction]
    kept = Predictions(ids, [one.label for one in getattr(task, split)], logits=logits)
    return MeasuredRun(SavedRun(name, {f"{split}-choice": kept}), "choice", task)


def shelf_of_massive():
    """What is kept of the authors' MASSIVE, with made-up labels, since the data are not at hand:
    what the first old model answered.
    """
    shelf, name = (
        Shelf(Path(__file__).parents[1] / "results"),
        "bcwi-massive_adddata-mini-baselines",
    )
    run = KeptRun(shelf.runs[shelf.tables[name].rows[0].records[0]], None)
    said = {split: run.run.predictions(run.place(split)) for split in ("selection", "test")}
    labels = {split: dict(zip(one.id, one.prediction)) for split, one in said.items()}
    new = SimpleNamespace(classes=said["test"].classes)
    update = SimpleNamespace(new=new, old_classes=(), known=lambda split: list(labels[split]))
    shelf._truths["massive_adddata", "add_data", "mini", ""] = Truth(labels, update)
    return shelf, name
