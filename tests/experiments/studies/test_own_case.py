"""A user's files: joined by id, refused where they do not fit, weighed by what they cost."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from own_files import SPLITS, folder, old_answers, task  # noqa: F401 (fixtures)

from compatkit.decisions import keep_old, pool
from compatkit.experiments.models.given_answers import given_answers
from compatkit.experiments.models.recipes import Recipe
from compatkit.experiments.reporting.result_tables import Row
from compatkit.experiments.studies.own_case import (
    PRICE_GRID,
    Case,
    CaseTrainings,
    MethodCost,
    Retiring,
    check_labels,
    cost_html,
    longest,
    model_run,
    read_traffic,
    recommend,
    seen_before,
    try_interpolation,
    value,
    value_error,
)
from compatkit.metrics import FlipCounts
from compatkit.predictions import Predictions


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
    check_labels(folder, task.classes)
    check_labels(
        renamed(folder, tmp_path / "plain", [f"LABEL_{one}" for one in range(len(task.classes))]),
        task.classes,
    )
    with pytest.raises(ValueError, match="in another order"):
        check_labels(renamed(folder, tmp_path / "turned", task.classes[::-1]), task.classes)
    with pytest.raises(ValueError, match="is it a classifier of this task"):
        check_labels(renamed(folder, tmp_path / "other", ["x", *task.classes[1:]]), task.classes)


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
    with pytest.raises(ValueError, match="24.*128"):
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
        by_seed=({"n": 1000},),
        selection={"accuracy": (accuracy, math.nan), "nfr": (nfr, math.nan)},
    )


OLD, NEW = row("old model", 0.80, 0.0), row("new model", 0.85, 0.05)
COSTS = {"new model": MethodCost(1), "a": MethodCost(1, "", 10.0), "b": MethodCost(2, "its logits")}


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


def test_both_models_are_needed():
    with pytest.raises(ValueError, match="old model and the new model"):
        recommend([NEW], COSTS, 100)


def test_where_nothing_was_compared_nothing_is_recommended():
    found = recommend([OLD, NEW], COSTS, 100, not_tried={"a": "it needs b"})
    assert found.method == "" and found.outcomes == {"Not tried": ("a (it needs b)",)}
    assert str(found).startswith("No recommendation.")


def test_better_worse_and_no_clear_difference_are_told_apart():
    tried = [row("a", 0.85, 0.01), row("b", 0.80, 0.0), row("c", 0.85, 0.049)]
    costs = COSTS | {"c": MethodCost(1)}
    found = recommend([OLD, NEW, *tried], costs, 5000, not_tried={"d": "why"})
    of = {kind: [one.split()[0] for one in said] for kind, said in found.outcomes.items()}
    assert list(of.values()) == [["a"], ["c"], ["b"], ["d"]] and found.method == "a"
    found = recommend([OLD, NEW, *tried], costs, 5)
    assert found.method == "new model" and not found.outcomes["Better than the new model"]


@pytest.mark.parametrize(("nfr", "verdict"), [(0.0, "within"), (0.01, "too few"), (0.05, "more")])
def test_the_interval_is_held_against_the_rate_requested(nfr, verdict):
    found = str(recommend([OLD, row("new model", 0.85, nfr)], COSTS, 100, max_nfr=0.01))
    assert "95 % interval" in found and f": {verdict}" in " ".join(found.split())


def test_a_choice_that_does_not_carry_over_and_a_useless_update_are_said():
    lost = replace(row("b", 0.85, 0.0), difference=(-0.03, -0.04, -0.02))
    worse = replace(NEW, accuracy=(0.79, math.nan))
    found = " ".join(recommend([OLD, worse, lost], COSTS, 10_000).reasons)
    assert "pays with accuracy" in found and "is the update worth anything?" in found


def test_the_value_of_an_example():
    one = row("x", 0.9, 0.02)
    worth = np.repeat([1.0, -3.0, 0.0], [90, 2, 8])
    assert value(one, 3.0) == pytest.approx(worth.mean()) and value_error(
        one, 100, 3.0
    ) == pytest.approx(worth.std() / 10)


def test_the_rule_is_tried_with_answers_alone(task, folder, tmp_path):
    """Few examples certify no price, no old model allows no interpolation, names alone no
    mixture; the rule remains.
    """
    named = given_answers(task, old_answers(task, logits=False))
    case = Case(task, named, folder, home=tmp_path)
    case.mixtures(), case.rule(0.01), try_interpolation(case, "", 0.01)
    assert set(case.not_tried) == {"old–new mixtures", "decision rule, certified", "BCWI"}
    assert [row.method for row in case.rows] == ["old model", "new model", "decision rule"]
    assert case.costs["decision rule"].needs == "its answer"
    try_interpolation(case, "/nowhere", 0.01)
    assert "/nowhere" in case.not_tried["BCWI"]


def test_the_rules_price_is_the_one_with_the_fewest_flips_at_the_new_models_accuracy(
    task, folder, tmp_path
):
    case = Case(task, given_answers(task, old_answers(task)), folder, home=tmp_path)
    case.rule(0.01)
    old, new = case.both("selection")
    posterior = pool(old, new)
    tried = [FlipCounts.between(old, keep_old(old, new, one, posterior)) for one in PRICE_GRID]
    able = [one.nfr for one in tried if one.accuracy_new >= new.correct.mean()]
    assert case.rows[-1].selection["nfr"][0] == min(able)


@pytest.mark.parametrize("logits", [True, False])
def test_the_new_model_may_be_a_file_of_answers(task, tmp_path, logits):
    file = tmp_path / "new.parquet"
    old_answers(task, logits=logits).save(file)
    case = Case(task, given_answers(task, old_answers(task)), file, home=tmp_path)
    case.mixtures(), case.rule(0.01), try_interpolation(case, "", 0.01)
    tried = [row.method for row in case.rows if row.method not in ("old model", "new model")]
    assert bool(tried) == logits and "BCWI" in case.not_tried
    trainings = CaseTrainings(case, Recipe("encoder", "own", str(file), epochs=2), seeds=1)
    assert "new_model" in trainings.refused()
    found = recommend(case.rows, case.costs, len(task.selection), not_tried=case.not_tried)
    assert bool(found.method) == logits


def test_a_file_of_answers_that_does_not_fit_is_named(task, tmp_path):
    file = tmp_path / "new.parquet"
    old_answers(task, splits=SPLITS[:2]).save(file)
    with pytest.raises(ValueError, match="new_model .*new.parquet"):
        Case(task, given_answers(task, old_answers(task)), file, home=tmp_path)


def test_interpolation_with_itself_is_the_new_model(task, folder, tmp_path):
    case = Case(task, given_answers(task, old_answers(task)), folder, home=tmp_path)
    case.mixtures()
    try_interpolation(case, str(folder), 0.3)
    row = case.rows[-1]
    assert row.method == "BCWI" and row.accuracy[0] == case.rows[1].accuracy[0]
    assert set(case.costs) == {"new model", "old-new probabilities", "old-new logits", "BCWI"}
    assert cost_html(case.costs).count("<tr>") == 5


def test_settings_come_from_the_registry_and_are_counted(task, folder, tmp_path):
    case = Case(task, given_answers(task, old_answers(task)), folder, home=tmp_path)
    trainings = CaseTrainings(case, Recipe("encoder", "own", str(folder), epochs=2), seeds=3)
    weights = [setting.weight for setting in trainings.grid("focal distillation")]
    assert weights == [0.1, 0.3, 1.0, 3.0]
    dynamic = trainings.grid("dynamic distillation")
    assert [setting.weight for setting in dynamic] == [0.1, 0.3, 1.0, 10.0]
    assert trainings.total() == 3 + 4 * 3 + 4 * 3 + 2 * 3


# unlabelled traffic
# --------------------------------------------------------------------------------------------------


def log_file(place, task, count=40, words=None):
    """A csv of unlabelled inputs, and old answers that hold them too."""
    texts = words or [f"babi deda zzz {number}" for number in range(count)]
    ids = [f"00{number}" for number in range(len(texts))]
    field = task.text_fields[0]
    lines = [f"id,{field}", *(f"{one},{text}" for one, text in zip(ids, texts))]
    (place / "log.csv").write_text("\n".join(lines) + "\n")
    old = old_answers(task)
    values = np.random.default_rng(1).normal(size=(len(ids), len(task.classes)))
    both = np.concatenate([old.logits, values])
    return place / "log.csv", Predictions([*old.id, *ids], logits=both, classes=task.classes)


def test_traffic_is_read_with_its_old_answers(task, folder, tmp_path):
    path, old = log_file(tmp_path, task)
    case = Case(task, given_answers(task, old), folder, home=tmp_path)
    traffic, told = read_traffic(path, case, old)
    assert traffic.rows["id"][0] == "000" and told.id.tolist() == traffic.rows["id"][:]
    assert set(traffic.rows["label"]) == {-100}
    names = Predictions(old.id, prediction=[task.classes[one] for one in old.logits.argmax(1)])
    assert read_traffic(path, case, names)[1].logits is None


def test_traffic_that_does_not_fit_is_named(task, folder, tmp_path):
    path, old = log_file(tmp_path, task)
    case = Case(task, given_answers(task, old), folder, home=tmp_path)
    with pytest.raises(ValueError, match="'000'"):
        read_traffic(path, case, old_answers(task))
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_traffic(tmp_path / "nowhere.csv", case, old)
    judged = task.test[task.text_fields[0]][:2]
    path, old = log_file(tmp_path, task, words=["something else", judged[0].upper()])
    with pytest.raises(ValueError, match="2 texts.*'001'"):
        read_traffic(path, case, old)
    path.write_text("id,words\n1,two\n")
    with pytest.raises(ValueError, match="lacks the columns"):
        read_traffic(path, case, old)
    path.write_text(f"id,{task.text_fields[0]}\n")
    with pytest.raises(ValueError, match="empty"):
        read_traffic(path, case, old)


@pytest.mark.parametrize("logits", [True, False])
def test_traffic_adds_a_head_a_student_and_its_control(task, folder, tmp_path, logits, monkeypatch):
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path))
    path, old = log_file(tmp_path, task)
    if not logits:
        old = Predictions(old.id, prediction=[task.classes[one] for one in old.logits.argmax(1)])
    case = Case(task, given_answers(task, old), folder)
    recipe = Recipe("encoder", "new", str(folder), max_length=8, epochs=1, max_steps=2)
    retiring = Retiring(case, recipe, *read_traffic(path, case, old), 1)
    retiring.add_rows()
    names = ["rule with the head", "self-training", "student of the rule"]
    assert [row.method for row in case.rows][2:] == names
    assert all(case.costs[name].models == 1 and not case.costs[name].needs for name in names)


def test_a_new_model_as_good_on_selection_as_on_training_examples_is_asked_about():
    def answers(right, count):
        label = np.zeros(count, dtype=int)
        return Predictions(
            [str(row) for row in range(count)], label, (np.arange(count) >= right).astype(int)
        )

    assert seen_before(answers(990, 1000), answers(160, 200)) == ""
    warning = seen_before(answers(990, 1000), answers(197, 200))
    assert "98.5%" in warning and "99.0%" in warning and "may have seen selection" in warning
