"""Files of Every Eval Ever: what counts, which model, and lines that are none."""

import json
from pathlib import Path

import pytest

from compatkit.compare import compare
from compatkit.compare.every_eval import holds, read
from compatkit.compare.logs import Key, Wanted, digest

REAL = Path(__file__).parent / "tool_logs"


def line(n, score, model="a/b", answer="1", **other):
    return {
        "schema_version": "instance_level_eval_0.3.0",
        "evaluation_name": "sums",
        "model_id": model,
        "sample_id": f"q{n}",
        "sample_hash": f"hash {n}",
        "input": {"raw": "?", "reference": ["1"]},
        "answer_attribution": [
            {"extracted_value": "first", "is_terminal": False},
            {"extracted_value": answer, "is_terminal": True},
        ],
        "evaluation": {"score": score, "is_correct": score == 1},
        "metadata": {"level": "easy"},
    } | other


def written(path, lines):
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_lines_become_samples(tmp_path):
    lines = [line(0, 1.0), line(1, 0.5), line(2, 0.0, answer=""), line(3, 1.0, error="timeout")]
    path = written(tmp_path / "a.jsonl", lines)
    assert holds(path, path.read_bytes())
    samples = read(path).samples.values()
    assert [sample.value for sample in samples] == [1.0, 0.0, None, None]
    assert [sample.trouble for sample in samples] == ["", "", "no answer", "error"]
    sample = read(path, Wanted(metric="score")).samples[Key("sums", "q1")]
    assert (sample.value, sample.answer, sample.target) == (0.5, "1", "1")
    assert sample.asked["sample hash"] == digest("hash 1") and sample.fields == {"level": "easy"}


def test_two_models_of_one_file_are_two_sides(tmp_path):
    lines = [line(n, 1.0, model) for model in ("old", "new") for n in range(3)]
    path = written(tmp_path / "a.jsonl", lines)
    with pytest.raises(ValueError, match="--old.*--new"):
        read(path)
    assert len(read(path, Wanted(side="new")).samples) == 3


def test_other_hashes_are_refused(tmp_path):
    old = written(tmp_path / "old.jsonl", [line(0, 1.0)])
    new = written(tmp_path / "new.jsonl", [line(0, 1.0, sample_hash="other")])
    with pytest.raises(ValueError, match="sample hash differs"):
        compare(old, new)


@pytest.mark.parametrize("lacking", ["evaluation_name", "evaluation"])
def test_a_line_that_is_none_is_named(tmp_path, lacking):
    broken = {name: value for name, value in line(1, 1.0).items() if name != lacking}
    path = written(tmp_path / "a.jsonl", [line(0, 1.0), broken])
    with pytest.raises(ValueError, match="a.jsonl"):
        read(path)


def test_without_an_id_the_hash_is_taken_and_said(tmp_path):
    path = written(tmp_path / "a.jsonl", [line(0, 1.0, sample_id=None)])
    log = read(path)
    assert [key.id for key in log.samples] == ["hash 0"] and "joined by their hash" in log.notes[0]


def test_what_the_converter_wrote_for_two_scorers():
    """Logs of inspect-ai 0.3.285 as every-eval-ever 0.3.0 converts them (make_tool_logs.py): a
    line for each result, and none of them named where the sample broke off.
    """
    path = REAL / "every_eval-two-scorers.jsonl"
    assert holds(path, path.read_bytes())
    with pytest.raises(ValueError, match="--scorer"):
        read(path)
    log = read(path, Wanted(scorer="includes:accuracy"))
    assert len(log.samples) == 6 and log.scorer == "includes:accuracy (is_correct)"
    troubles = [s.trouble for s in read(REAL / "every_eval-new.jsonl").samples.values()]
    assert troubles.count("error") == 1
    assert {s.answer for s in log.samples.values()} == set("123456")


def test_what_the_converter_wrote_for_epochs():
    """The same: an epoch is one more line for the same sample."""
    log = read(REAL / "every_eval-two-epochs.jsonl")
    assert {key.repeat for key in log.samples} == {1, 2} and len(log.samples) == 12


def test_a_repeat_that_broke_off_is_a_repeat(tmp_path):
    lines = [line(0, 1.0, evaluation_result_id=f"{name}:acc") for name in ("match", "f1")]
    lines.append(line(0, 0.0, evaluation_result_id=None, error="timeout"))
    log = read(written(tmp_path / "a.jsonl", lines), Wanted(scorer="match:acc"))
    assert [(key.repeat, s.trouble) for key, s in log.samples.items()] == [(1, ""), (2, "error")]
