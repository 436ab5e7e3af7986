"""Results of NeMo Evaluator: problems, repeats, rewards."""

import json
from pathlib import Path

import pytest

from compatkit.compare import compare
from compatkit.compare.logs import Key, Wanted
from compatkit.compare.nemo import holds, read
from compatkit.compare.suites import compare_suites, is_suite, tasks_of

REAL = Path(__file__).parent / "tool_logs" / "nemo" / "sums"


def written(path, rewards, repeats=2, **other):
    lines = [
        {"problem_idx": n, "repeat": repeat, "reward": reward, "extracted_answer": "3"}
        | {"expected_answer": "4", "metadata": {"category": "sums"}}
        | other
        for n, reward in enumerate(rewards)
        for repeat in range(repeats)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_repeats_count_from_one_and_categories_are_columns(tmp_path):
    path = written(tmp_path / "results.jsonl", [1.0, 0.0])
    assert holds(path, path.read_bytes()) and not holds(path, b'{"id": 1}')
    samples = read(path).samples
    assert [key.repeat for key in samples] == [1, 2, 1, 2]
    sample = samples[Key("results", "1", 2)]
    assert (sample.value, sample.answer, sample.target) == (0.0, "3", "4")
    assert sample.fields == {"category": "sums"}


def test_no_answer_and_errors_are_told_apart(tmp_path):
    samples = read(written(tmp_path / "a.jsonl", [0.0], 1, extracted_answer="")).samples
    assert [sample.trouble for sample in samples.values()] == ["no answer"]
    samples = read(written(tmp_path / "a.jsonl", [0.0], 1, error="timeout")).samples
    assert [sample.trouble for sample in samples.values()] == ["error"]


def test_other_expected_answers_are_refused(tmp_path):
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    with pytest.raises(ValueError, match="right answer differs"):
        compare(written(old, [1.0], 1), written(new, [1.0], 1, expected_answer="5"))


def test_a_line_that_is_none_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"problem_idx": 1, "repeat": "x", "reward": 1}')
    with pytest.raises(ValueError, match="a.jsonl: line 1"):
        read(path)
    path.write_text('{"problem_idx": 1, "reward": 1}\n{"problem_idx": 2, "rew')
    with pytest.raises(ValueError, match="a.jsonl: line 2"):
        read(path)


def test_what_the_tool_wrote():
    """The folder of a benchmark as nemo-evaluator 0.3.0 writes it (make_tool_logs.py): 3 has no
    number in its answer, 4 a wrong one, and 2 broke off, which has the reward 0 as well.
    """
    assert holds(REAL, b"") and holds(REAL / "results.jsonl", (REAL / "results.jsonl").read_bytes())
    log = read(REAL)
    troubles = {key.id: (s.value, s.trouble) for key, s in log.samples.items()}
    assert troubles["2"] == (None, "error") and troubles["3"] == (None, "no answer")
    assert troubles["4"] == (0.0, "") and troubles["5"] == (1.0, "")
    assert {(key.task, key.repeat) for key in log.samples} == {("sums", 1), ("sums", 2)}
    assert log.samples == read(REAL / "results.jsonl").samples


def test_a_folder_of_benchmarks_is_a_suite():
    assert is_suite(REAL.parent) and not is_suite(REAL)
    assert tasks_of(REAL.parent) == {"sums": REAL}
    assert list(compare_suites(REAL.parent, REAL.parent).tasks) == ["sums"]


def test_one_of_several_scorers(tmp_path):
    path = written(tmp_path / "a.jsonl", [1.0], 1, scorer_rewards={"scorer:strict": 0.0})
    assert [s.value for s in read(path, Wanted(scorer="scorer:strict")).samples.values()] == [0.0]
    with pytest.raises(ValueError, match="'f1'.*'scorer:strict'"):
        read(path, Wanted(scorer="f1"))
