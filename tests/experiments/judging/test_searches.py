"""Searches: what was tried is found, the rule chooses again, a wrong choice is caught."""

import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import made_studies
import numpy as np
import pytest

from compatkit.distillation import FocalDistillation
from compatkit.experiments.judging.kept_answers import Shelf, Truth
from compatkit.experiments.judging.searches import (
    Searched,
    Tried,
    choices_again,
    chosen_again,
    grid_of,
    preferred,
    rechosen,
    searched_fields,
    setting_of,
    setting_words_of,
    trained_settings,
    tried_like,
)
from compatkit.experiments.judging.verification import choices_verdict
from compatkit.experiments.reporting.result_tables import ResultTable, Row, Text
from compatkit.experiments.running.store import (
    RECORDS,
    _write_records,
    kept_places,
    prune_study,
    read_records,
)
from compatkit.predictions import Predictions

ROOT = Path(__file__).resolve().parents[3]
NAME = "gated_fusion-pydoc-mini-a-main"


def shelf_of(study, truth):
    """Its shelf, with the labels."""
    shelf = Shelf(study.parent)
    shelf._truths["pydoc", "", "mini", ""] = truth
    return shelf


def tampered(study, truth, change, name=NAME):
    """The verdict on the choices of a table that was changed."""
    path = study / "tables.json"
    tables = json.loads(path.read_text())
    change(tables[name], shelf_of(study, truth))
    path.write_text(json.dumps(tables))
    return choices_verdict(shelf_of(study, truth).table(name))


def row(table, method):
    """A kept table's row."""
    return next(one for one in table["rows"] if one["method"] == method)


def test_the_published_choices_are_those_of_the_rule(study, truth):
    found = choices_verdict(shelf_of(study, truth).table(NAME))
    assert (found.word, found.numbers) == ("same", 8) and found.name == f"{NAME}, choices"


def other_gate(table, shelf):
    """Another gate of the same search, with its own runs: everything fits but the choice."""
    gated, fields = row(table, "gated fusion"), searched_fields("gated fusion")
    others = [tried_like(shelf, run, fields) for run in gated["new"]]
    gated["new"] = [one[0.5, 1e-4, 1.4] for one in others]
    gated["setting"] = "D 50%, T 1.4, lr2 0.0001"


def hidden_loss(table, shelf):
    """No setting qualified, and the row does not say so any more."""
    distilled = row(table, "dynamic distillation")
    assert distilled.pop("qualified") is False


def invented_loss(table, shelf):
    """A qualified setting that says it was none."""
    row(table, "gated fusion")["qualified"] = False


@pytest.mark.parametrize("change", [other_gate, hidden_loss, invented_loss])
def test_a_wrong_choice_is_caught(study, truth, change):
    assert tampered(study, truth, change).word == "differs"


def test_the_runs_of_another_setting_are_replaced_by_those_that_the_rule_takes(study, truth):
    kept = shelf_of(study, truth).table(NAME)
    row, fields = kept.rows["gated fusion"], searched_fields("gated fusion")
    others = [tried_like(kept.shelf, run, fields)[0.5, 1e-4, 1.4] for run in row.new]
    wrong = replace(row, new=tuple(others), setting="D 50%, T 1.4, lr2 0.0001")
    assert chosen_again(kept, wrong) == row == chosen_again(kept, row)
    tried = trained_settings(kept, row)
    assert [one.seeds for one in tried] == [3] * 4
    assert {one.new for one in tried} >= {row.new, wrong.new}


def test_a_run_of_the_grid_that_was_taken_out_is_missed(study, truth):
    shelf = shelf_of(study, truth)
    gated = shelf.table(NAME).rows["gated fusion"]
    others = tried_like(shelf, gated.records[1], searched_fields("gated fusion"))
    read = kept_places(study)
    prune_study(study, [others[0.5, 1e-4, 1.4]], read)
    found = choices_verdict(shelf_of(study, truth).table(NAME))
    assert found.word == "differs" and "no kept runs on 3 seed(s)" in found.detail


@pytest.mark.parametrize("method", ["gated fusion", "old-new logits"])
def test_a_chosen_row_that_names_no_rule_is_refused(study, truth, method):
    found = tampered(study, truth, lambda table, shelf: row(table, method).pop("choice"))
    assert found.word == "differs" and method in found.detail


def test_tables_without_searches_have_no_verdict_on_choices(study, truth):
    table = shelf_of(study, truth).table(NAME)
    table.table = replace(table.table, rows=table.table.rows[:2])
    assert choices_again(table) == [] and choices_verdict(table) is None


GRID = [Tried(1, 0.81, 0.04), Tried(3, 0.80, 0.02), Tried(10, 0.78, 0.01)]


@pytest.mark.parametrize(
    "chosen, least, qualified, word",
    [
        (3, 0.80, True, "same"),
        (1, 0.80, True, "differs"),
        (10, 0.80, True, "differs"),
        (1, 0.90, False, "same"),
        (1, 0.90, True, "differs"),
        (3, 0.90, False, "differs"),
        (3, 0.80, False, "differs"),
        (7, 0.80, True, "differs"),
    ],
)
def test_the_rule_takes_the_fewest_flips_on_a_par(chosen, least, qualified, word):
    made = Row("it", seeds=3, qualified=qualified)
    assert rechosen(made, Searched(GRID, chosen, least)).word == word


def test_equal_settings_are_equally_right():
    twins = [*GRID, Tried(4, 0.80, 0.02)]
    assert preferred(Searched(twins, 3, 0.80))[0].setting == 4
    assert rechosen(Row("it", "", 3), Searched(twins, 3, 0.80)).word == "same"


def test_a_setting_is_that_of_the_treatment_inside():
    """A treatment that asks the old model about changed images holds the one that trains."""
    inner = FocalDistillation("logits", weight=0.3, over_classes="sum").configuration()
    held = {"kind": "fine_tune", "treatment": {"name": "WithOldModel", "treatment": inner}}
    assert setting_words_of([held]) == "α 1, β 5, λ 0.3, sum over classes"


def test_a_setting_is_told_from_the_recipe():
    nested = {"treatment": {"name": "WithOldModel", "treatment": {"weight": 2.0, "alpha": 1.0}}}
    rest, setting = setting_of(nested | {"recipe": {"weight": 9}}, ("weight",))
    assert setting == (2.0,) and "alpha" in rest and "9" in rest


SHOWN = [
    ("reranking-arithmetic-mini-main", 36),
    ("muscle-arithmetic-mini-c-dial", 6),
]


@pytest.mark.parametrize("name, settings", SHOWN)
def test_other_kinds_of_dials_are_chosen_again(name, settings):
    shelf = Shelf(ROOT / "results")
    found = choices_verdict(shelf.table(name))
    assert (found.word, found.numbers) == ("same", settings), found


def test_a_strength_that_the_rule_does_not_take_or_whose_runs_are_gone_is_named():
    shelf, name = made_studies.shelf_of_massive()
    kept = shelf.table(name)
    row, whole = kept.rows["EWC"], kept.table
    told = row.choice["strengths"]

    def found(row):
        kept.table = replace(whole, rows=(row,))
        (one,) = choices_again(kept)
        return one

    each = [
        found(replace(row, setting=replace(row.setting, values={"strength": one}), qualified=able))
        for one, able in product(told, (True, False))
    ]
    assert sorted(one.word for one in each) == ["differs"] * (2 * len(told) - 1) + ["same"]
    assert all(one.detail for one in each if one.word == "differs")
    lacking = found(replace(row, choice=row.choice | {"strengths": [*told, 7.0]}))
    assert lacking.word == "not checked" and "runs of strength 7 are not kept" in lacking.detail


def test_an_encoder_is_chosen_by_its_own_index_and_its_flips_in_the_old_one():
    """With made-up labels, since the data need a download: what the first old encoder found."""
    shelf, method = Shelf(ROOT / "results"), "backward-compatible training"
    kept = shelf.table("embeddings-massive-mini-main")
    runs = {
        tuple(run.configuration[part] for part in ("queries", "index")): run
        for run in shelf.runs.values()
        if run.configuration["kind"] == "search"
        and not (run.configuration["mapping"] or run.configuration["share"])
    }
    encoders = {
        row.method: [shelf.runs[one].configuration["queries"] for one in row.records]
        for row in kept.table.rows
    }
    olds, news = encoders["old model"], encoders["new model"]
    told = runs[olds[0], olds[0]].predictions("selection")
    labels = dict(zip(told.id, told.prediction))
    shelf._truths["massive", "", "mini", ""] = Truth({"selection": labels, "test": labels})

    def right(queries, index):
        found = runs[queries, index].predictions("selection").select(list(labels))
        return found.prediction == told.prediction

    recalls, flips = {}, {}
    for old, one in zip(olds, encoders[method]):
        for (weight, _), other in tried_like(shelf, one, ("weight", "synthesised")).items():
            lost = right(old, old) & ~right(other, old)
            recalls[weight] = [*recalls.get(weight, []), right(other, other).mean()]
            flips[weight] = [*flips.get(weight, []), lost.mean()]
    mean = {weight: np.mean(values) for weight, values in recalls.items()}
    least = np.mean([right(one, one).mean() for one in news])
    able = [weight for weight in mean if mean[weight] >= least - 1e-9]
    best = min(able, key=lambda one: np.mean(flips[one])) if able else max(mean, key=mean.get)
    row = next(one for one in kept.table.rows if one.method == method)
    as_kept = f"λ {best:g}" in row.words and row.qualified == bool(able)
    (found,) = (one for one in choices_again(kept) if one.method == method)
    assert (found.word, found.settings) == ("same" if as_kept else "differs", 5)


def test_a_mark_that_moved_is_caught_and_renewed(tmp_path):
    name = "muscle-arithmetic-mini-c-dial"
    folder = tmp_path / "muscle-arithmetic"
    shutil.copytree(ROOT / "results" / folder.name, folder)
    path = folder / "tables.json"
    tables = json.loads(path.read_text())
    before = list(Shelf(tmp_path).table(name).table.rows)
    moved = next(one for one in tables[name]["rows"] if "preferred" in one or "qualified" in one)
    moved.pop("preferred", None), moved.pop("qualified", None)
    path.write_text(json.dumps(tables))
    kept = Shelf(tmp_path).table(name)
    assert choices_verdict(kept).word == "differs"
    assert [chosen_again(kept, one) for one in kept.table.rows] == before


def test_a_dial_that_says_otherwise_is_caught(tmp_path):
    folder = tmp_path / "reranking-arithmetic"
    shutil.copytree(ROOT / "results" / folder.name, folder)
    records = read_records(folder)
    for one in (one for one in records.values() if one["configuration"]["kind"] == "dial"):
        one["results"]["selection"][2] = [0.99, 0.0]  # a weight that was passed over would be best
    _write_records(folder / RECORDS, records)
    found = choices_verdict(Shelf(tmp_path).table("reranking-arithmetic-mini-main"))
    assert found.word == "differs"


def test_a_part_of_a_grid_is_chosen_from():
    kept, fields = SimpleNamespace(scale="mini", task="fashion_mnist"), searched_fields("FD-LM")
    whole, part = (grid_of(kept, "FD-LM", fields, one) for one in ({}, {"settings": 2}))
    assert len(part) == 2 < len(whole) and set(part) < set(whole)


@pytest.mark.parametrize(
    "notebook, temperatures", [("gated_fusion", {1.0, 2.0}), ("distillation", {1.0})]
)
def test_a_grid_is_that_of_the_notebook_that_the_row_names(notebook, temperatures):
    kept, fields = SimpleNamespace(scale="mini", task="mrpc"), ("temperature", "weight")
    found = grid_of(kept, "dynamic distillation", fields, {"notebook": notebook})
    assert {temperature for temperature, _ in found} == temperatures and len(found) == 4


def of_written_texts(weight):
    """A table of re-ranked texts with scores alone, at two weights of the new model."""
    ids, chosen = ["a", "b"], (0.5 if weight == "0.5" else 0.4)
    old = Predictions(ids, score=[0.5, 0.5])
    made = {0.5: Predictions(ids, score=[0.9, 0.4]), 0.4: Predictions(ids, score=[0.6, 0.6])}
    configuration = {"kind": "reranked", "parents": ["p"], "number": 4, "measure": "rouge1"}
    points = [[0.65, 0.5], [0.6, 0.0]]
    dial = configuration | {"kind": "dial", "weights": [0.5, 0.4]}
    runs = {
        "r": SimpleNamespace(id="r", configuration=configuration),
        "d": SimpleNamespace(configuration=dial, results={"selection": points}),
    }
    setting = Text("weight of new {weight:g}", {"weight": float(weight)})
    row = Row("re-ranked", setting, 1, new=("r",), choice={"rule": "candidates"})
    return SimpleNamespace(
        name="it", known=None, table=ResultTable("it", (row,)),
        shelf=SimpleNamespace(runs=runs), olds=[old], news=[Predictions(ids, score=[0.6, 0.5])],
        of=lambda sides: lambda split: sides,
        runs=lambda names: [made[chosen] for _ in names],
    )  # fmt: skip


@pytest.mark.parametrize("weight, word", [("0.4", "same"), ("0.5", "differs")])
def test_weights_of_texts_with_scores_are_chosen_again(weight, word):
    """By mean score and by how often it falls: .5 has the higher mean and loses half."""
    assert choices_verdict(of_written_texts(weight)).word == word


def price(value):
    """A price as a setting has it."""
    return Text("price {price:g}", {"price": float(value)})


DECIDED = {"kind": "decided", "method": "rule with the head", "parents": ["p"], "value": 2.0}


def of_retirement(value=2.0, kept_values=True):
    """A table of retire_the_old, its one dial tried at two prices: two flips and one."""
    label = np.zeros(4, dtype=int)
    ids = list("abcd")
    answers = {"1": [0, 0, 1, 1], "2": [0, 0, 0, 1]}
    made = {f"selection-{name}": Predictions(ids, label, row) for name, row in answers.items()}
    right, wrong = Predictions(ids, label, label), Predictions(ids, label, [0, 0, 0, 1])
    dial = {"kind": "dial_values", "method": "rule with the head", "parents": ["p"]}
    runs = {
        "a": SimpleNamespace(configuration=DECIDED | {"value": value}),
        "b": SimpleNamespace(configuration={"kind": "student"}),
    }
    if kept_values:
        runs["d"] = SimpleNamespace(configuration=dial | {"values": [1.0, 2.0]})
    row = Row("rule with the head", price(2), 1, new=("a",), choice={"rule": "value"})
    control = Row("student", setting="price 1", seeds=1, new=("b",))
    return SimpleNamespace(
        name="it", known=None, table=SimpleNamespace(rows=(row, control)),
        shelf=SimpleNamespace(runs=runs), olds=[right], news=[wrong],
        of=lambda sides: lambda split: sides,
        runs=lambda names: [SimpleNamespace(predictions=made.__getitem__) for _ in names],
    )  # fmt: skip


def test_a_dial_of_retirement_is_chosen_again():
    assert choices_verdict(of_retirement()).word == "same"
    found = choices_verdict(of_retirement(value=1.0))
    assert found.word == "differs" and "the rule takes 2.0" in found.detail


def test_a_share_of_a_cache_answers_at_the_price_of_the_whole_one():
    kept = of_retirement()
    whole, control = kept.table.rows
    whole = replace(whole, method="cache of 100 %")
    as_whole = {"rule": "price of another row", "row": whole.method}
    for value, word in ((2, "same"), (1, "differs")):
        part = Row("cache of 25 %, head", price(value), 1, new=("a",), choice=as_whole)
        kept.table.rows, kept.rows = (whole, part, control), {whole.method: whole}
        assert choices_verdict(kept).word == word


def of_students(taken, prices=(1.0, 3.0), asked=True):
    """A table with a student at a price: one of two flips at price 1, none at 3."""
    label, ids, about = np.zeros(4, dtype=int), list("abcd"), {"kind": "student", "seed": 0}
    made = {1.0: [0, 0, 0, 1], 3.0: [0, 0, 0, 0]}
    runs = {f"s{one:g}": SimpleNamespace(configuration=about | {"price": one}) for one in prices}
    answers = {f"s{one:g}": Predictions(ids, label, made[one]) for one in prices}
    choice = {"rule": "settings", "prices": [1.0, 3.0]} if asked else {}
    row = Row("student of the rule", price(taken), 1, new=(f"s{taken:g}",), choice=choice)
    return SimpleNamespace(
        name="it", known=None, table=SimpleNamespace(rows=(row,)),
        shelf=SimpleNamespace(runs=runs),
        olds=[Predictions(ids, label, label)], news=[Predictions(ids, label, [0, 0, 1, 1])],
        of=lambda sides: lambda split: sides,
        runs=lambda names: [answers[name] for name in names],
    )  # fmt: skip


def test_a_students_price_is_chosen_again():
    found = choices_verdict(of_students(3.0))
    assert (found.word, found.numbers) == ("same", 2)
    found = choices_verdict(of_students(1.0))
    assert found.word == "differs" and "the rule takes (3.0,)" in found.detail
    assert choices_again(of_students(1.0, asked=False)) == []  # nobody chose
    found = choices_verdict(of_students(1.0, prices=(1.0,)))
    assert found.word == "differs" and "price 3.0 has no kept runs" in found.detail


def test_what_no_kept_answers_can_choose_again_is_listed():
    found = choices_verdict(of_retirement(kept_values=False))
    assert found.word == "not checked" and found.detail.startswith("rule with the head: ")
