"""What the columns of people's own files are taken for, and when nobody guesses."""

import json

import polars as pl
import pytest

from compatkit.support.column_roles import candidates, guessed, guessed_for_comparison, names_in

COMMAND = "compatkit compare old.csv new.csv"


def roles(*files, truth=None):
    return guessed_for_comparison([list(file) for file in files], truth, COMMAND)


@pytest.mark.parametrize("id", ["task_id", "question_id", "example_id", "ID", "Unnamed: 0", ""])
@pytest.mark.parametrize("label", ["y_true", "target", "gold", "answer", "reference", "Label"])
@pytest.mark.parametrize("prediction", ["y_pred", "output", "response", "Prediction"])
def test_a_column_that_can_only_be_one_thing_is_taken_for_it(id, label, prediction):
    names = [prediction, "length", id, label]
    expected = {id: "id", label: "label", prediction: "prediction"}
    assert roles(names, names)[:2] == [expected, expected]


def test_an_answer_is_the_models_beside_a_right_one():
    assert guessed(["id", "answer", "gold"], ["label", "prediction"]).rename == {
        "gold": "label",
        "answer": "prediction",
    }


def test_an_index_is_an_id_only_where_nothing_better_is():
    assert candidates(["", "index", "task_id"], "id") == ["task_id"]
    assert candidates(["intent"], "id") == []


def test_what_is_there_under_its_own_name_is_never_replaced():
    assert roles(["id", "task_id", "label", "target", "prediction", "output"])[0] == {}
    assert roles(["id", "score", "target", "output"])[0] == {}
    assert roles(["id", "correct", "target", "output"])[0] == {}
    assert roles(["id", "prob_a", "prob_b", "gold", "output"])[0] == {"gold": "label"}


def test_labels_of_one_file_or_of_a_third_are_enough():
    assert roles(["id", "label", "output"], ["id", "output", "target"])[1] == {
        "output": "prediction"
    }
    assert roles(["id", "output", "target"], ["id", "output"], truth=["task_id", "gold"]) == [
        {"output": "prediction"},
        {"output": "prediction"},
        {"task_id": "id"},
    ]


def test_judgements_are_looked_for_where_nothing_else_is():
    assert roles(["task_id", "passed"])[0] == {"task_id": "id", "passed": "correct"}
    assert roles(["id", "label", "output", "passed"])[0] == {"output": "prediction"}


@pytest.mark.parametrize("names", [["task_id", "gold", "pred", "output"], ["gold", "pred", "out"]])
def test_where_it_is_unclear_the_whole_command_is_printed_once(names):
    with pytest.raises(ValueError, match="columns: " + ", ".join(names)) as caught:
        roles(names, names)
    told = str(caught.value)
    options = ["id=task_id" if "task_id" in names else "id=COLUMN", "label=gold", "prediction=pred"]
    assert told.count(COMMAND) == 1
    assert all(told.count(f"--rename {one}") == 1 for one in options)


def test_nothing_is_said_where_nothing_was_found():
    assert roles(["a", "b"], ["a", "c"])[:2] == [{}, {}]  # whoever reads them says what is missing


def test_names_of_every_kind_of_file(tmp_path):
    pl.DataFrame({"a": [1], "b": [2]}).write_parquet(tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_text(",b\n1,2\n")
    rows = [{"id": 1, "gold": {"answer": "x", "by": {"whom": "y"}}}, {"id": 2, "late": 3}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = [names_in(tmp_path / f"x.{kind}") for kind in ("parquet", "csv", "jsonl")]
    assert found == [["a", "b"], ["", "b"], ["id", "gold.answer", "gold.by.whom", "late"]]
    (tmp_path / "x.parquet").write_text("broken")
    assert names_in(tmp_path / "x.parquet") == names_in(tmp_path / "none.csv") == []
