"""Test runs of DeepEval, as its own files and as dumped results write them."""

import json

import pytest

from compatkit.compare.deepeval import read
from compatkit.compare.logs import Wanted
from compatkit.compare.pair import read_pair
from compatkit.metrics import FlipCounts


def case(number, success, score=0.5, snake=False, **other):
    fields = {
        "name": f"test_case_{number}",
        "input": f"{number} + 1?",
        "actual_output": f"it is {number + success}",
        "expected_output": f"{number + 1}",
        "success": success,
        "metrics_data": [{"name": "Faithfulness", "threshold": 0.5, "score": score}],
    }
    words = {name: name.split("_") for name in fields}
    camel = {
        name: first + "".join(map(str.capitalize, rest)) for name, (first, *rest) in words.items()
    }
    return {name if snake else camel[name]: value for name, value in fields.items()} | other


def run(path, cases, snake=False):
    name = "test_results" if snake else "testCases"
    path.write_text(json.dumps({name: cases, "testPassed": 3, "confident_link": None}))
    return path


@pytest.mark.parametrize("snake", [False, True])
def test_success_of_the_test_cases(tmp_path, snake):
    old = run(tmp_path / "old.json", [case(n, n != 2, snake=snake) for n in range(4)], snake)
    new = run(tmp_path / "new.json", [case(n, n != 1, snake=snake) for n in (3, 2, 1, 0)], snake)
    pair = read_pair(old, new)
    counts = FlipCounts.of(pair.label, pair.old, pair.new)
    assert (counts.both_right, counts.negative, counts.positive) == (2, 1, 1)
    assert pair.shown([1])[0]["new_text"] == "it is 1"


def test_one_metric_and_its_errors(tmp_path):
    broken = [{"name": "Faithfulness", "score": None, "error": "timeout"}]
    path = run(tmp_path / "a.json", [case(0, True, 0.9), case(1, False, metricsData=broken)])
    first, second = read(path, Wanted(metric="Faithfulness")).samples.values()
    assert (first.value, second.value, second.trouble) == (0.9, None, "error")
    with pytest.raises(ValueError, match="no metric 'Bias'"):
        read(path, Wanted(metric="Bias"))


def test_scores_of_a_metric_by_a_threshold(tmp_path):
    paths = [
        run(tmp_path / f"{name}.json", [case(n, True, score) for n, score in enumerate(scores)])
        for name, scores in (("old", [0.9, 0.7, 0.2]), ("new", [0.9, 0.4, 0.3]))
    ]
    pair = read_pair(*paths, wanted=Wanted(metric="Faithfulness", pass_at=0.5))
    assert FlipCounts.of(pair.label, pair.old, pair.new).negative == 1


def test_cases_whose_names_repeat_are_joined_by_their_input(tmp_path):
    cases = [case(n, n > 0, name="test_it") for n in range(3)]
    old = run(tmp_path / "old.json", cases)
    new = run(tmp_path / "new.json", cases[::-1])
    pair = read_pair(old, new)
    assert (pair.old == pair.new).all() and pair.n == 3


def test_another_input_under_one_name_is_refused(tmp_path):
    old = run(tmp_path / "old.json", [case(0, True)])
    new = run(tmp_path / "new.json", [case(0, True, input="other")])
    with pytest.raises(ValueError, match="the question differs"):
        read_pair(old, new)


def test_a_run_without_cases_is_refused(tmp_path):
    for name in ("old", "new"):
        (tmp_path / f"{name}.json").write_text('{"testCases": [], "x": {"metricsData": []}}')
    with pytest.raises(ValueError, match="old.json"):
        read_pair(tmp_path / "old.json", tmp_path / "new.json")
