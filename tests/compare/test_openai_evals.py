"""Events of OpenAI evals: matches, metrics, errors."""

import json

import pytest

from compatkit.compare.logs import Wanted
from compatkit.compare.openai_evals import read
from compatkit.compare.pair import read_pair

SPEC = {"spec": {"completion_fns": ["gpt"], "eval_name": "sums.dev.v0", "run_id": "r"}}
END = {"final_report": {"accuracy": 0.5}}


def event(number, kind, **data):
    return {
        "run_id": "r",
        "event_id": 0,
        "sample_id": f"sums.dev.{number}",
        "type": kind,
        "data": data,
        "created_by": "",
    }


def written(path, *events, end=END):
    lines = [SPEC, *events, *([end] if end else [])]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def match(number, correct, **other):
    return event(number, "match", correct=correct, expected="2", sampled=other.get("said", "x"))


def test_matches_are_right_and_wrong_and_an_error_is_neither(tmp_path):
    sampled = event(1, "sampling", prompt="1 + 1?", sampled=["2"])
    log = read(
        written(tmp_path / "a.jsonl", sampled, match(1, True), match(2, False), event(3, "error"))
    )
    first, second, third = log.samples.values()
    assert (first.value, second.value, third.value) == (1, 0, None) and third.trouble == "error"
    assert second.target == "2" and second.answer == "x" and log.scorer == "correct"


def test_two_runs_are_joined_by_sample_in_any_order(tmp_path):
    old = written(tmp_path / "old.jsonl", match(1, True), match(2, True), match(3, False))
    new = written(tmp_path / "new.jsonl", match(3, True), match(2, False), match(1, True))
    pair = read_pair(old, new)
    assert (pair.old == pair.label).tolist() == [True, True, False]
    assert (pair.new == pair.label).tolist() == [True, False, True]


def test_a_sample_without_a_match_has_no_score(tmp_path):
    sampled = event(2, "sampling", prompt="?", sampled=["2"])
    log = read(written(tmp_path / "a.jsonl", match(1, True), sampled))
    assert [sample.trouble for sample in log.samples.values()] == ["", "no score"]


def test_metrics_judge_where_nothing_matches(tmp_path):
    graded = [event(n, "metrics", choice="A", score=0.5 * n, f1=0.1) for n in range(3)]
    path = written(tmp_path / "a.jsonl", *graded)
    with pytest.raises(ValueError, match="--metric"):
        read(path)
    values = [one.value for one in read(path, Wanted(metric="score")).samples.values()]
    assert values == [0, 0.5, 1]


def test_a_run_without_its_end_is_incomplete(tmp_path):
    old = written(tmp_path / "old.jsonl", match(1, True), end=None)
    new = written(tmp_path / "new.jsonl", match(1, True))
    with pytest.raises(ValueError, match="old.jsonl is incomplete"):
        read_pair(old, new)


def test_a_run_that_nothing_judged_is_refused(tmp_path):
    paths = [
        written(tmp_path / f"{name}.jsonl", event(1, "sampling", prompt="?", sampled=["2"]))
        for name in ("old", "new")
    ]
    with pytest.raises(ValueError, match="old.jsonl"):
        read_pair(*paths)
