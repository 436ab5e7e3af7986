"""Evaluation tables of MLflow: ids or digests, metrics or equality, and tables that are broken."""

import json
from pathlib import Path

import pytest

from compatkit.compare.logs import Key, Wanted
from compatkit.compare.mlflow_tables import holds, read

REAL = Path(__file__).parent / "tool_logs" / "mlflow.json"
COLUMNS = ["id", "inputs", "targets", "outputs", "toxicity/v1/score"]
DATA = [["a", "1+1?", "2", "2", 0.1], ["b", "1+2?", "3", "4", 0.2], ["c", "1+3?", "4", None, None]]


def written(path, columns=COLUMNS, data=DATA):
    path.write_text(json.dumps({"columns": columns, "data": data}))
    return path


def test_outputs_are_held_against_targets(tmp_path):
    path = written(tmp_path / "eval_results_table.json")
    assert holds(path, path.read_bytes()) and not holds(path, b'{"version": 2}')
    log = read(path)
    assert {key.id: sample.value for key, sample in log.samples.items()} == {
        "a": 1.0,
        "b": 0.0,
        "c": None,
    }
    assert log.samples[Key("table", "b")].fields == {"inputs": "1+2?"} and log.notes == ()


def test_metrics_are_scores(tmp_path):
    path = written(tmp_path / "t.json")
    values = [s.value for s in read(path, Wanted(metric="toxicity/v1/score")).samples.values()]
    assert values == [0.1, 0.2, None]
    with pytest.raises(ValueError, match="'equal', 'toxicity/v1/score'"):
        read(path, Wanted(metric="rouge"))


def test_rows_without_ids_are_joined_by_what_was_asked(tmp_path):
    rows = [row[1:] for row in DATA]
    log = read(written(tmp_path / "t.json", COLUMNS[1:], [*rows, rows[0]]))
    assert [key.repeat for key in log.samples] == [1, 1, 1, 2] and "no ids" in log.notes[0]


@pytest.mark.parametrize(
    ("columns", "data", "message"),
    [
        (COLUMNS, [], "at least one row"),
        (COLUMNS, [["a"]], "row 1 does not have the 5 cells"),
        (["x"], [[1]], "choose one metric"),
    ],
)
def test_bad_tables_are_named(tmp_path, columns, data, message):
    with pytest.raises(ValueError, match=f"^t.json: .*{message}"):
        read(written(tmp_path / "t.json", columns, data))


def test_what_the_tool_wrote():
    """The table of `mlflow.models.evaluate` in mlflow-skinny 3.17.2 (make_tool_logs.py)."""
    assert holds(REAL, REAL.read_bytes())
    assert [sample.value for sample in read(REAL).samples.values()] == [1.0, 0.0, None]
    scored = read(REAL, Wanted(metric="close/score"))
    assert [sample.value for sample in scored.samples.values()] == [1.0, 0.0, None]  # "" is none
