"""lm-evaluation-harness asks the test questions of our own files; its answers are ours, by id."""

from dataclasses import replace

import make_hub_cache
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compatkit.language import harness
from compatkit.language.harness import (
    HARNESS_TASKS,
    _chosen,
    _with_our_files,
    harness_answers,
    harness_version,
    readable_by_harness,
)
from compatkit.language.models import answer, byte_pairs, small_language_model
from compatkit.language.tasks import LANGUAGE_TASKS, Question, language_task_files, load_questions


def goals(split, count):
    """Rows of PIQA."""
    return [
        {"goal": f"{split} goal {n}", "sol1": f"do {n}", "sol2": f"leave {n} be", "label": n % 2}
        for n in range(count)
    ]


@pytest.fixture
def piqa(tmp_path):
    """A folder with a made-up PIQA."""
    (tmp_path / "piqa").mkdir()
    for split, count in (("train", 40), ("validation", 8)):
        rows = pa.Table.from_pylist(goals(split, count))
        pq.write_table(rows, tmp_path / "piqa" / f"{split}.parquet")
    return tmp_path


def test_the_harness_answers_as_we_do(piqa):
    task = load_questions("piqa", piqa, as_in_paper=True)
    files, place = language_task_files("piqa", piqa)
    assert place == "folder" and sorted(files) == ["train", "validation"]
    tokenizer = byte_pairs([question.text for question in task.train], 300)
    model = small_language_model(tokenizer, 0, 1, 32, 128)
    asked, ours = (
        harness_answers(model, tokenizer, task, files, device="cpu"),
        answer(model, tokenizer, task, device="cpu"),
    )
    assert list(asked.id) == list(ours.id) and list(asked.label) == list(ours.label)
    np.testing.assert_allclose(asked.logits, ours.logits, atol=1e-3)


def hub_copy(folder, name):
    """A made-up copy of the hub's set, as a folder of files."""
    for split in ("train", "validation", "test"):
        if (name, split) != ("gsm8k", "validation"):
            rows = [make_hub_cache.question(name, split, number) for number in range(48)]
            (folder / name).mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows), folder / name / f"{split}.parquet")
    return folder


@pytest.mark.parametrize("name", HARNESS_TASKS)
def test_training_prompts_are_those_of_the_harness(tmp_path, name):
    from lm_eval.tasks import TaskManager

    task = load_questions(name, hub_copy(tmp_path, name), as_in_paper=True)
    path = _with_our_files(name, language_task_files(name, tmp_path)[0], 0, tmp_path)
    theirs = TaskManager(include_defaults=False).load([str(path)])["tasks"][name]
    tested = LANGUAGE_TASKS[name].tested
    rows = {"train": theirs.training_docs(), tested: getattr(theirs, f"{tested}_docs")()}
    assert len(task.learnt) == len(task.test) == 48
    for one in (*task.learnt, *task.test):
        split, number = one.id.split("-")
        row = rows[split][int(number)]
        assert one.prompt == theirs.doc_to_text(row)
        choices = theirs.doc_to_choice(row) if HARNESS_TASKS[name] == "choice" else []
        assert list(one.choices) == choices
        right = theirs.doc_to_target(row)
        assert one.answer == (choices[int(right)] if choices else right)


def test_the_harness_is_asked_the_questions_of_the_task_alone(piqa):
    whole, files = load_questions("piqa", piqa), language_task_files("piqa", piqa)[0]
    tokenizer = byte_pairs([question.text for question in whole.train], 300)
    model = small_language_model(tokenizer, 0, 1, 32, 512)
    part = whole.limited(test=3)
    part = replace(part, test=part.test[::-1])  # in whatever order
    samples = harness._ask(model, tokenizer, part, files, 4, 2, "cpu")
    asked = [f"validation-{sample['doc_id']}" for sample in samples]
    assert sorted(asked) == sorted(one.id for one in part.test)
    prompts = {f"validation-{sample['doc_id']}": sample["arguments"][0][0] for sample in samples}
    shots = {one.text for one in (*whole.train, *whole.selection)}
    for one, ours in zip(part.test, part.with_shots(2).test):
        for prompt in (prompts[one.id], ours.prompt):  # one form, whoever writes it
            *before, asked_last = prompt.split("\n\n")
            assert asked_last == one.prompt and len(set(before) & shots) == 2
    answers = harness_answers(model, tokenizer, part, files, shots=0, device="cpu")
    assert list(answers.id) == [one.id for one in part.test]
    ours = answer(model, tokenizer, whole, device="cpu").select(list(answers.id))
    np.testing.assert_allclose(answers.logits, ours.logits, atol=1e-3)


def test_what_it_does_not_have_is_refused(piqa, monkeypatch):
    sums = load_questions("arithmetic")
    with pytest.raises(ValueError, match="arithmetic"):
        harness_answers(None, None, sums, {})
    task = load_questions("piqa", piqa)
    monkeypatch.setattr(harness, "_ask", lambda *given: [])
    with pytest.raises(ValueError, match="'validation-0'"):
        harness_answers(None, None, task, {})
    monkeypatch.setattr(harness, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'compatkit\[lm\]'"):
        harness_version()


def test_another_right_answer_is_named():
    questions = [Question(f"validation-{n}", "p", choices=("a", "b"), label=0) for n in range(2)]
    samples = [
        {"target": target, "filtered_resps": [(-1.0, True), (-2.0, False)]} for target in (0, 1)
    ]
    with pytest.raises(ValueError, match="another right answer for validation-1"):
        _chosen(questions, samples)
    assert _chosen(questions, [samples[0]] * 2).logits.tolist() == [[-1.0, -2.0]] * 2


def test_shots_are_the_harness_s_own_unless_given(tmp_path):
    files = {"test": [tmp_path / "test.parquet"]}
    assert "num_fewshot" not in _with_our_files("gsm8k", files, None, tmp_path).read_text()
    assert '"num_fewshot": 3' in _with_our_files("gsm8k", files, 3, tmp_path).read_text()


def test_a_copy_of_hellaswag_needs_both_halves_of_the_context(tmp_path):
    for name, columns in (("part", ["ctx"]), ("whole", ["ctx", "ctx_a", "ctx_b"])):
        pq.write_table(pa.table(dict.fromkeys(columns, ["text"])), tmp_path / f"{name}.parquet")
    part, whole = ({"validation": [tmp_path / f"{name}.parquet"]} for name in ("part", "whole"))
    assert not readable_by_harness("hellaswag", part) and readable_by_harness("hellaswag", whole)
