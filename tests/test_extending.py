"""One of each that CONTRIBUTING.md names, added in a few lines, found everywhere it must appear."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import layout
import numpy as np
import pytest
import torch

from compatkit import metrics
from compatkit.bcwi import interpolate
from compatkit.compare import compare
from compatkit.compare import readers as reading
from compatkit.compare.logs import Key, Log, Sample, Wanted
from compatkit.experiments.models import treatments
from compatkit.experiments.planning import catalogue
from compatkit.experiments.studies.distillation_studies import (
    TABLES,
    Definition,
    begin_distillation,
    planned,
)
from compatkit.experiments.studies.study import defaults_of
from compatkit.metrics import FlipCounts
from compatkit.predictions import Predictions
from compatkit.training import load_task
from compatkit.training import tasks as known_sets
from compatkit.training.loop import Treatment
from compatkit.weights import rules

ROOT = Path(__file__).resolve().parent.parent


def answers(seed, wrong):
    """Answers of which some are wrong."""
    label = np.arange(200) % 4
    generator = np.random.default_rng(seed)
    prediction = np.where(generator.random(200) < wrong, (label + 1) % 4, label)
    return Predictions([f"row {n}" for n in range(200)], label, prediction=prediction)


def test_a_measure_is_one_entry(monkeypatch, tmp_path):
    churn = metrics.Measure(
        "churn",
        "Changed in correctness",
        "Share of the examples that flip in either direction.",
        lambda counts: counts.negative + counts.positive,
        lambda counts: counts.n,
        brief=True,
    )
    monkeypatch.setitem(metrics.MEASURES, churn.key, churn)
    old, new = answers(0, 0.2), answers(1, 0.1)
    counts = FlipCounts.between(old, new)
    assert counts.churn == pytest.approx(counts.nfr + counts.pfr)
    low, high = counts.interval("churn")
    assert low < counts.churn < high
    report = compare(old, new)
    assert churn.name in counts._repr_html_()
    assert churn.name in report.to_markdown()
    assert "churn" in json.dumps(report.to_dict())
    report.save_html(tmp_path / "page.html")
    assert churn.name in (tmp_path / "page.html").read_text(encoding="utf-8")


class Gentle(Treatment):
    """A made-up treatment: cross-entropy, scaled."""

    def __init__(self, weight=1.0):
        self.weight = weight

    def loss(self, logits, label, old_logits=None):
        return self.weight * super().loss(logits, label)


def test_a_treatment_is_one_entry(monkeypatch):
    grid = treatments.over(weight=(0.5, 1.0))
    added = treatments.Method("gentle training", "", Gentle, grids={"mini": grid})
    monkeypatch.setitem(treatments.METHODS, added.name, added)
    assert treatments.method("gentle training") is added
    assert added.name in treatments.usable()  # it asks for nothing, so advice may name it
    assert [treatment.weight for treatment in added.grid("mini")] == [0.5, 1.0]
    assert treatments.setting_words(added.grid("mini")[0]) == "λ 0.5"
    with pytest.raises(ValueError, match="did you mean gentle training|'gentle training'"):
        treatments.method("gentle trainin")


def test_a_task_is_one_entry(monkeypatch, tmp_path):
    import pyarrow
    import pyarrow.parquet

    source = known_sets.Source("colours", "somebody/colours", "default", ("name",), "kind")
    monkeypatch.setitem(known_sets.TASKS, "colours", source)
    catalogue.known_tasks.cache_clear()
    (tmp_path / "colours").mkdir()
    for split, count in (("train", 60), ("validation", 20), ("test", 20)):
        kinds = [number % 2 for number in range(count)]
        names = [f"{split} {'warm' if kind else 'cold'} {n}" for n, kind in enumerate(kinds)]
        table = pyarrow.table({"name": names, "kind": kinds})
        pyarrow.parquet.write_table(table, tmp_path / "colours" / f"{split}.parquet")
    task = load_task("colours", tmp_path)
    assert (len(task.train), len(task.selection), len(task.test)) == (60, 20, 20)
    assert task.name == "colours" and task.text_fields == ("name",)
    assert "colours" in catalogue.known_tasks()
    (job,) = catalogue.jobs(["gated_fusion:1"], "mini", ["colours"])
    assert job.task == "colours"
    catalogue.known_tasks.cache_clear()


def holds(path, head):
    """Whether a file is of the made-up format: lines such as 'question=right'."""
    return path.suffix == ".marks"


def read(path, wanted=Wanted()):
    """The marks of such a file."""
    pairs = [line.split("=") for line in path.read_text().splitlines()]
    marks = {Key("marks", name): Sample(float(mark == "right")) for name, mark in pairs}
    return Log(path.name, marks)


def test_a_reader_is_one_entry(monkeypatch, tmp_path):
    reader = reading.Reader("marks", holds, read)
    monkeypatch.setattr(reading, "READERS", (reader, *reading.READERS))
    old, new = tmp_path / "old.marks", tmp_path / "new.marks"
    old.write_text("a=right\nb=right\nc=wrong\nd=wrong\n")
    new.write_text("d=right\nc=right\nb=right\na=wrong\n")
    assert reading.reader_of(old) is reader
    found = compare(old, new).to_dict()
    counts = found["counts"] if "counts" in found else found["overall"]["counts"]
    assert (counts["negative"], counts["positive"], counts["both_right"]) == (1, 2, 1)


def test_a_table_is_one_entry(monkeypatch):
    (known,) = catalogue.entries(["distillation:main"])
    entry = replace(known, table="hard", shows="how colours flip")
    monkeypatch.setattr(catalogue, "CATALOGUE", (*catalogue.CATALOGUE, entry))
    monkeypatch.setitem(TABLES, "hard", Definition(("FD-KL", "FD-LM"), larger=True))
    assert catalogue.entries([entry.name]) == [entry]
    (job,) = catalogue.jobs([entry.name], "smoke", ["pydoc"])
    assert job.entry == entry
    chosen = defaults_of("distillation") | job.parameters | {"seeds": 2}
    study = begin_distillation(SimpleNamespace(**chosen))
    kinds = {one.kind: one for one in planned(study)}
    assert (kinds["treated"].number, kinds["new"].number) == (4, 2)
    assert kinds["new"].recipe.layers > kinds["old"].recipe.layers


def nearer(old, new, alpha, importance, out):
    """A made-up rule: of both values the one that is nearer to zero."""
    out.copy_(torch.where(old.abs() < new.abs(), old, new))


def test_a_rule_of_interpolation_is_one_entry(monkeypatch):
    monkeypatch.setattr(rules, "RULES", dict(rules.RULES))
    rules.add_rule(rules.Rule("nearer", "the value nearer to zero", nearer))
    old, new = torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(2, 1, bias=False)
    old.weight.data, new.weight.data = torch.tensor([[1.0, -3.0]]), torch.tensor([[2.0, -1.0]])
    assert interpolate(old, new, 0.5, rule="nearer").weight.tolist() == [[1.0, -1.0]]
    with pytest.raises(ValueError, match="'nearer'"):
        rules.add_rule(rules.Rule("nearer", "again", nearer))
    with pytest.raises(ValueError, match="nearer"):  # offered among the valid ones
        interpolate(old, new, 0.5, rule="neares")


def test_a_notebook_needs_no_entry_anywhere(tmp_path):
    (tmp_path / "nbs" / "compare").mkdir(parents=True)
    (tmp_path / "compatkit" / "compare").mkdir(parents=True)
    (tmp_path / "compatkit" / "compare" / "__init__.py").write_text('"""Two versions."""\n')
    (tmp_path / "compatkit" / "compare" / "marks.py").write_text("# AUTOGENERATED! DO NOT EDIT!\n")
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": ["# marks\n", "> Lines of marks."]},
        {"cell_type": "code", "metadata": {}, "source": ["#| default_exp compare.marks"]},
    ]
    notebook = tmp_path / "nbs" / "compare" / "marks.ipynb"
    notebook.write_text(json.dumps({"cells": cells}))
    assert "[marks](nbs/compare/marks.ipynb)" in "\n".join(layout.map_lines(tmp_path))
    assert "| [marks](nbs/compare/marks.ipynb) | Lines of marks. |" in layout.notebook_lines(
        tmp_path
    )
    assert [one.name for one in layout.sections(tmp_path)["Compare"]] == ["compare/marks"]
    assert "<b>compare</b> marks</div>" in layout.drawing(tmp_path)
    assert layout.modules(tmp_path) and layout.light_modules(tmp_path) == ["compare/marks"]


def test_what_contributing_names_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for what in ("a measure", "a treatment", "a task", "a reader", "a table", "a rule of"):
        assert f"| {what}" in text
