"""Results of EvalPlus: programs by the tests of the benchmark and by further ones."""

import json

import pytest

from compatkit.compare.logs import Wanted
from compatkit.compare.pair import read_pair
from compatkit.metrics import FlipCounts


def results(path, programs, **other):
    """A file of one program for each problem, a pair (base, plus) of words each."""
    problems = {
        f"HumanEval/{number}": [
            {"task_id": f"HumanEval/{number}", "solution": "def f", "base_status": base}
            | {"plus_status": plus}
        ]
        for number, (base, plus) in enumerate(programs)
    }
    content = {"date": "2024-05-01 10:00", "hash": "x", "eval": problems} | other
    path.write_text(json.dumps(content))
    return path


BOTH, BASE, NONE = ("pass", "pass"), ("pass", "fail"), ("fail", "pass")


@pytest.mark.parametrize("metric, negative", [("", 2), ("plus", 2), ("base", 1)])
def test_a_program_passes_plus_if_it_passes_both(tmp_path, metric, negative):
    old = results(tmp_path / "old.json", [BOTH, BOTH, BOTH, NONE])
    new = results(tmp_path / "new.json", [BOTH, BASE, ("timeout", "timeout"), NONE])
    pair = read_pair(old, new, wanted=Wanted(metric=metric))
    counts = FlipCounts.of(pair.label, pair.old, pair.new)
    assert (counts.negative, counts.n) == (negative, 4)


def test_programs_of_one_problem_are_repeats(tmp_path):
    path = results(tmp_path / "old.json", [BOTH])
    content = json.loads(path.read_text())
    content["eval"]["HumanEval/0"] += content["eval"]["HumanEval/0"]
    path.write_text(json.dumps(content))
    (tmp_path / "new.json").write_text(path.read_text())
    assert read_pair(path, tmp_path / "new.json").repeats.repeats.tolist() == [2]


def test_the_lists_of_2023_and_runs_of_the_base_tests_alone(tmp_path):
    older = {"a": {"nfiles": 1, "base": [["success", []]], "plus": [["failed", []]]}}
    paths = [results(tmp_path / f"{name}.json", [], eval=older) for name in ("old", "new")]
    assert read_pair(*paths).answers == ("right", "wrong")
    paths = [results(tmp_path / f"{name}.json", [("pass", None)]) for name in ("old", "new")]
    pair = read_pair(*paths)
    assert (pair.old == pair.label).all()
    with pytest.raises(ValueError, match="'plus'"):
        read_pair(*paths, wanted=Wanted(metric="plus"))


@pytest.mark.parametrize("broken", [{"eval": []}, {"eval": {"a": [{"solution": ""}]}}])
def test_another_shape_is_refused_by_name(tmp_path, broken):
    path = results(tmp_path / "old.json", [BOTH])
    path.write_text(json.dumps({"note": "base_status", "base_status": 1} | broken))
    with pytest.raises(ValueError, match="old.json"):
        read_pair(path, results(tmp_path / "new.json", [BOTH]))
