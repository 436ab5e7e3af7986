"""The module `tasks`: splits that share no context, the same in every copy of the data, and
bad data named.
"""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace

import make_hub_cache
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compatkit.language.tasks import (
    ARITHMETIC,
    LANGUAGE_TASKS,
    Question,
    cut_by_context,
    joined,
    load_questions,
    raw_text,
    without_overlap,
)

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SPLITS = {
    "piqa": ("train", "validation", "test"),
    "hellaswag": ("train", "validation", "test"),
    "gsm8k": ("train", "test"),
    "samsum": ("train", "validation", "test"),
}
SIZES = {"train": 60, "validation": 20, "test": 30}
SHARDS = {
    name: "{config}/{split}-00000-of-00001.parquet" for name in ("gsm8k", "hellaswag")
}  # the others lie where the hub converts to Parquet
ARITHMETIC_FINGERPRINT = "c74e29ed"


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Neither a person's own data nor the network."""
    monkeypatch.delenv("COMPATKIT_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def rows_of(name, split):
    """Made-up rows with the hub's columns; labels of PIQA's and HellaSwag's test are hidden, as
    there.
    """
    hidden = split == "test"
    make = {
        "piqa": lambda n: {
            "goal": f"goal {split} {n}",
            "sol1": f"do {n}",
            "sol2": f"leave {n}",
            "label": -1 if hidden else n % 2,
        },
        "hellaswag": lambda n: {
            "ind": 7 * n,
            "activity_label": "Roof",
            "ctx_a": "A man.",
            "ctx_b": f"he {split} {n} [step] climbs",
            "ctx": f"A man. he {split} {n} [step] climbs",
            "endings": [f"{word} {n}." for word in ("falls", "sings", "sleeps", "eats")],
            "label": "" if hidden else str(n % 4),
        },
        "gsm8k": lambda n: {
            "question": f"{split}: {n} and {n}?",
            "answer": f"<<{n}+{n}={2 * n}>> #### {2 * n}",
        },
        "samsum": lambda n: {
            "id": f"{999 - n}",
            "dialogue": f"Ann: hi {split} {n}\r\nBob: hello",
            "summary": f"They meet {n}.",
        },
    }[name]
    return [make(number) for number in range(SIZES[split])]


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def folder_of(place, name, **changed):
    """A local copy: one folder with <split>.parquet."""
    for split in SPLITS[name]:
        if changed.get(split, True) is not None:
            write(
                place / LANGUAGE_TASKS[name].folder / f"{split}.parquet",
                changed.get(split) or rows_of(name, split),
            )
    return place


def snapshot_of(home, name):
    """The same rows in the hub's cache layout, and a script that must not run."""
    source = LANGUAGE_TASKS[name]
    place = home / "hub" / f"datasets--{source.hub.replace('/', '--')}"
    branch = source.revision if source.revision.startswith("refs/") else "main"
    commit = COMMIT if branch != "main" else source.revision
    reference = place / "refs" / branch
    reference.parent.mkdir(parents=True)
    reference.write_text(commit)
    for split in SPLITS[name]:
        write(
            place
            / "snapshots"
            / commit
            / SHARDS.get(name, "{config}/{split}/0000.parquet").format(
                config=source.config, split=split
            ),
            rows_of(name, split),
        )
    (place / "snapshots" / commit / "script.py").write_text(
        "raise SystemExit('a script of the hub ran')"
    )


def in_another_process(code, *arguments, **variables):
    """What the code prints as JSON."""
    env = (
        {key: value for key, value in os.environ.items() if key != "COMPATKIT_DATA"}
        | {"HF_HUB_OFFLINE": "1"}
        | variables
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def contexts(split):
    return {one.prompt for one in split}


def disjoint(task):
    ids = [one.id for split in (task.train, task.selection, task.test) for one in split]
    parts = [contexts(split) for split in (task.train, task.selection, task.test)]
    return len(set(ids)) == len(ids) and sum(map(len, parts)) == len(set().union(*parts))


# --- questions ------------------------------------------------------------------------------------


def test_the_right_choice_is_the_answer():
    question = Question("a", "one and one are", choices=["three", "two"], label=1)
    assert (question.answer, question.choices, question.text) == (
        "two",
        ("three", "two"),
        "one and one are two",
    )
    assert joined("a", "b") == "a b"


@pytest.mark.parametrize(
    "fields, message",
    [
        (dict(choices=("two", ""), label=0), r"'q' has empty choices, at places \[1\]"),
        (dict(choices=("two", "\n"), label=0), "empty choices"),
        (dict(choices=("two",), label=0), "one choice only"),
        (dict(choices=("two", "three"), label=2), "label 2, and 2 choices: give 0 to 1"),
        (dict(choices=("two", "three"), label=-1), "label -1"),
        (dict(choices=("two", "three"), label="0"), "label '0'"),
        (dict(choices=("two", "three"), label=True), "label True"),
        (dict(choices=("two", "three")), "label None"),
        (dict(answer=" "), "'q' has an empty answer"),
        (dict(), "empty answer"),
    ],
)
def test_questions_that_cannot_be_asked_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        Question("q", "one and one are", **fields)


# --- cutting --------------------------------------------------------------------------------------


def test_no_context_lies_on_both_sides_of_a_cut_and_the_order_of_the_rows_does_not_matter():
    generator = random.Random(0)
    for trial in range(30):
        questions = [
            Question(f"{n}", f"context {generator.randrange(12)}", "yes")
            for n in range(generator.randrange(1, 40))
        ]
        share = generator.random()
        kept, held = cut_by_context(questions, share, f"salt {trial}")
        assert sorted(one.id for one in kept + held) == sorted(one.id for one in questions)
        assert not contexts(kept) & contexts(held)
        assert len(contexts(held)) == round(share * len(contexts(questions)))
        shuffled = generator.sample(questions, len(questions))
        assert {one.id for one in cut_by_context(shuffled, share, f"salt {trial}")[1]} == {
            one.id for one in held
        }
        assert [one.id for one in kept] == [one.id for one in questions if one in kept]


def test_cuts_of_all_and_of_nothing():
    questions = tuple(Question(f"{n}", f"{n}", "yes") for n in range(9))
    assert cut_by_context(questions, 0) == (questions, ()) and cut_by_context(questions, 1) == (
        (),
        questions,
    )
    assert cut_by_context((), 0.5) == ((), ())
    assert cut_by_context(questions, 0.5, "a")[1] != cut_by_context(questions, 0.5, "b")[1]
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="give a number from 0 to 1"):
            cut_by_context(questions, share)


def test_what_stands_in_test_is_left_out_of_the_others():
    a, b, c, d = (Question(name, name, "yes") for name in "abcd")
    again = Question("again", "a", "another answer")
    assert without_overlap((a, b, c, again), (b, c), (c, d)) == ((a, again), (b,), (c, d), 3)
    assert without_overlap((a, again), (), (a,)) == ((), (), (a,), 2)


# --- arithmetic -----------------------------------------------------------------------------------


def test_sums_are_right_distinct_and_fall_into_no_two_splits():
    task = load_questions("arithmetic")
    assert {split: len(getattr(task, split)) for split in ARITHMETIC} == ARITHMETIC
    assert disjoint(task) and task.chance == 0.25 and task.measures == ("choice", "number")
    for one in (*task.train[:500], *task.selection, *task.test):
        expression = one.prompt.removesuffix("=")
        assert set(expression) <= set("0123456789+- ") and eval(expression) == int(one.answer) >= 0
        assert len(set(one.choices)) == 4 and all(
            choice == str(int(choice)) for choice in one.choices
        )
        assert one.choices[one.label] == one.answer
    for one in task.test:
        below = int(one.group.removeprefix("below "))
        assert (
            max(
                int(number) for number in one.prompt.removesuffix(" =").replace("-", "+").split("+")
            )
            < below
        )
    assert {one.group for one in task.test} == {"below 20", "below 50", "below 100", "below 1000"}


def test_the_choices_do_not_give_the_answer_away():
    train = load_questions("arithmetic").train
    places = [sum(one.label == place for one in train) / len(train) for place in range(4)]
    assert all(abs(share - 0.25) < 0.015 for share in places)
    for rank in range(4):  # the answer by its size among the four
        share = sum(sorted(one.choices, key=int)[rank] == one.answer for one in train) / len(train)
        assert 0.22 < share < 0.28, rank


def test_the_generated_task_is_the_same_in_every_process():
    # runs and records hold this fingerprint: another one is another task
    code = (
        "import json; from compatkit.language.tasks import load_questions; "
        "print(json.dumps(load_questions('arithmetic').fingerprint))"
    )
    found = {in_another_process(code, PYTHONHASHSEED=seed) for seed in ("0", "1")}
    assert found == {load_questions("arithmetic").fingerprint} and found.pop().startswith(
        ARITHMETIC_FINGERPRINT
    )


# --- tasks from files -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, sizes",
    [
        ("piqa", (54, 6, 20)),
        ("hellaswag", (60, 10, 10)),
        ("gsm8k", (54, 6, 30)),
        ("samsum", (60, 20, 30)),
    ],
)
def test_every_task_loads_from_a_local_copy(name, sizes, tmp_path):
    task = load_questions(name, folder_of(tmp_path, name))
    assert (len(task.train), len(task.selection), len(task.test)) == sizes and disjoint(task)
    assert (task.name, task.title, task.source) == (name, name, "folder")
    assert "left out" not in task.rule


@pytest.mark.parametrize(
    "name, column",
    [(name, column) for name, source in LANGUAGE_TASKS.items() for column in source.columns],
)
@pytest.mark.parametrize("nothing", [None, " \r\n"])
def test_a_text_that_is_none_is_an_empty_one(tmp_path, name, column, nothing):
    """As the hub's copy of SAMSum holds one: a row without a context or a written answer is left
    out, one without a choice or a label is refused.
    """
    rows = rows_of(name, "train")
    rows[3] |= {column: [nothing] * 4 if column == "endings" else nothing}
    if column == "label":
        rows = [row | {"label": nothing if n == 3 else "1"} for n, row in enumerate(rows)]
    folder = folder_of(tmp_path, name, train=rows)
    if column in ("sol1", "sol2", "endings", "label"):
        with pytest.raises(ValueError, match="train-3"):
            load_questions(name, folder)
    else:
        task = load_questions(name, folder, as_in_paper=True)
        assert len(task.learnt) == len(rows) - 1
        assert f"train-{rows[3].get('id', 3)}" not in {one.id for one in task.learnt}


def test_the_oddities_of_the_hubs_rows(tmp_path, monkeypatch):
    make_hub_cache.main(tmp_path, (), ("questions",))
    place = "huggingface_hub._snapshot_download.constants.HF_HUB_CACHE"
    monkeypatch.setattr(place, str(tmp_path / "hub"))
    tasks = {name: load_questions(name, as_in_paper=True) for name in LANGUAGE_TASKS}
    assert {task.source for task in tasks.values()} == {"hub"}
    assert {name: len(task.learnt) for name, task in tasks.items()} == {
        "piqa": 96,
        "hellaswag": 96,
        "gsm8k": 96,
        "samsum": 94,  # of one the dialogue is None, another stands in test
    }
    assert all(disjoint(task) for task in tasks.values())


def test_rows_are_asked_as_the_harness_asks_them(tmp_path):
    first = {
        name: min(load_questions(name, folder_of(tmp_path, name)).test, key=lambda one: one.id)
        for name in SPLITS
    }
    assert first["piqa"].prompt == "Question: goal validation 0\nAnswer:" and first[
        "piqa"
    ].choices == ("do 0", "leave 0")
    number = int(first["hellaswag"].id.removeprefix("validation-"))
    assert first["hellaswag"].prompt == f"Roof: A man. He validation {number} climbs"
    assert first["hellaswag"].answer == first["hellaswag"].choices[number % 4]
    assert first["gsm8k"].text == "Question: test: 0 and 0?\nAnswer: <<0+0=0>> #### 0"
    assert (
        first["samsum"].text.startswith("Dialogue:\nAnn: hi test ")
        and "\r" not in first["samsum"].text
    )
    assert "\nBob: hello\nSummary: They meet" in first["samsum"].text


def test_the_hub_and_a_local_copy_give_the_same_task(tmp_path):
    code = """
import json, sys
from compatkit.language.tasks import LANGUAGE_TASKS, load_questions
tasks = [load_questions(name, sys.argv[1] if len(sys.argv) > 1 else None) for name in LANGUAGE_TASKS]
print(json.dumps([[task.source, task.fingerprint] for task in tasks]))
"""  # noqa: E501
    for name in SPLITS:
        snapshot_of(tmp_path / "home", name)
        folder_of(tmp_path / "copy", name)
    hub = in_another_process(code, HF_HOME=str(tmp_path / "home"))
    local = in_another_process(code, tmp_path / "copy", HF_HOME=str(tmp_path / "empty"))
    assert [source for source, _ in hub] == ["hub"] * 4 and [source for source, _ in local] == [
        "folder"
    ] * 4
    assert [one for _, one in hub] == [one for _, one in local]


def test_line_ends_and_the_order_of_rows_with_ids_make_no_other_task(tmp_path):
    plain = {
        split: [
            row | {"dialogue": row["dialogue"].replace("\r\n", "\n")}
            for row in rows_of("samsum", split)
        ][::-1]
        for split in SPLITS["samsum"]
    }
    one, other = (
        load_questions("samsum", folder_of(tmp_path / "a", "samsum")),
        load_questions("samsum", folder_of(tmp_path / "b", "samsum", **plain)),
    )
    assert one.fingerprint == other.fingerprint


def test_hellaswag_without_its_training_set_keeps_the_same_test_half(tmp_path):
    whole = load_questions("hellaswag", folder_of(tmp_path / "whole", "hellaswag"))
    part = load_questions("hellaswag", folder_of(tmp_path / "part", "hellaswag", train=None))
    assert part.test == whole.test and contexts(part.train) | contexts(part.selection) == contexts(
        whole.selection
    )
    assert (len(part.train), len(part.selection)) == (8, 2) and disjoint(part)
    assert part.title == "hellaswag (8 train)" and "the other half, four to one" in part.rule


def test_repeated_contexts_of_hellaswag_stay_together(tmp_path):
    rows = rows_of("hellaswag", "validation")
    doubled = [
        row | {"endings": [f"{ending} {copy}" for ending in row["endings"]]}
        for copy in range(2)
        for row in rows
    ]
    task = load_questions("hellaswag", folder_of(tmp_path, "hellaswag", validation=doubled))
    assert disjoint(task) and len(task.test) == 2 * len(contexts(task.test)) == 20


def test_test_dialogues_in_train_are_left_out_and_counted(tmp_path):
    train = rows_of("samsum", "train") + [
        row | {"id": f"again-{row['id']}"} for row in rows_of("samsum", "test")[:5]
    ]
    validation = rows_of("samsum", "validation") + [
        row | {"id": f"again-{row['id']}"} for row in rows_of("samsum", "test")[:2]
    ]
    task = load_questions(
        "samsum", folder_of(tmp_path, "samsum", train=train, validation=validation)
    )
    assert disjoint(task) and (len(task.train), len(task.selection), len(task.test)) == (60, 20, 30)
    assert "7 examples left out whose context stands in another split" in task.rule
    assert not set(raw_text(task)) & {one.text for one in task.test}


def test_rows_without_a_dialogue_or_a_summary_are_passed_over(tmp_path):
    train = rows_of("samsum", "train") + [
        {"id": "x", "dialogue": "", "summary": "?"},
        {"id": "y", "dialogue": "A: hi", "summary": ""},
    ]
    assert len(load_questions("samsum", folder_of(tmp_path, "samsum", train=train)).train) == 60


def test_the_folder_may_be_named_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPATKIT_DATA", str(folder_of(tmp_path / "a", "gsm8k")))
    assert load_questions("gsm8k").source == "folder"
    (tmp_path / "other sets").mkdir()
    assert load_questions("gsm8k", tmp_path / "other sets").source == "folder"
    with pytest.raises(FileNotFoundError, match="data_dir"):
        load_questions("gsm8k", tmp_path / "nothing here")


def test_data_that_are_not_there_are_said_to_be_missing_at_once(tmp_path):
    code = """
import json, sys, time
from compatkit.language.tasks import load_questions
import huggingface_hub
start, said = time.perf_counter(), ""
try:
    load_questions("piqa", sys.argv[1])
except FileNotFoundError as error:
    said = str(error)
print(json.dumps([said, time.perf_counter() - start]))
"""
    said, seconds = in_another_process(code, tmp_path, HF_HOME=str(tmp_path / "home"))
    assert (
        f"task 'piqa': no folder 'piqa' in ['{tmp_path}']" in said
        and "ybisk/piqa" in said
        and "hf download" in said
    )
    assert seconds < 10  # the library's own retries take longer


def test_bad_files_are_named(tmp_path):
    with pytest.raises(ValueError, match="'PIQA'.*arithmetic, piqa"):
        load_questions("PIQA")
    with pytest.raises(
        ValueError,
        match="train.parquet.*'answer'.*'question'",
    ):
        load_questions("gsm8k", folder_of(tmp_path / "a", "gsm8k", train=[{"question": "1?"}]))
    with pytest.raises(ValueError, match=r"repeated ids \['train-5'\]"):
        twice = [{"id": "5", "dialogue": f"A: {n}", "summary": "hm"} for n in range(2)]
        load_questions("samsum", folder_of(tmp_path / "b", "samsum", train=twice))
    with pytest.raises(FileNotFoundError, match="validation.parquet"):
        load_questions("piqa", folder_of(tmp_path / "c", "piqa", validation=None))
    with pytest.raises(ValueError, match="train and selection"):
        load_questions("piqa", folder_of(tmp_path / "d", "piqa", train=None))
    with pytest.raises(ValueError, match="'train-1'"):
        rows = rows_of("piqa", "train")
        rows[1]["sol2"] = " "
        load_questions("piqa", folder_of(tmp_path / "e", "piqa", train=rows))


# --- parts of a task ------------------------------------------------------------------------------


def test_a_limited_task_says_so_and_is_always_the_same_part():
    task = load_questions("arithmetic")
    small = task.limited(train=50, test=10)
    assert (len(small.train), len(small.selection), len(small.test)) == (50, 1000, 10)
    assert (
        small.title == "arithmetic (50 train, 10 test)"
        and "50 train, 10 test by hash of the id, seed 0" in small.rule
    )
    assert small.train == task.limited(train=50).train != task.limited(train=50, seed=1).train
    assert small.fingerprint != task.fingerprint and set(small.train) < set(task.train)
    assert (
        small.limited(train=20).title == "arithmetic (10 test, 20 train)"
        and small.limited(selection=5).title == "arithmetic (50 train, 10 test, 5 selection)"
    )
    assert task.limited() is task and task.limited(train=10**6) is task
    for wrong in (dict(train=0), dict(test=-3)):
        with pytest.raises(ValueError, match="ask for at least 1"):
            task.limited(**wrong)


def test_shots_are_training_examples_and_more_of_them_begin_with_fewer():
    task = load_questions("arithmetic").limited(train=50, test=5)
    before = {}
    for shots, seed in ((0, 0), (2, 0), (4, 0), (4, 1)):
        asked = task.with_shots(shots, seed)
        pairs = list(zip(asked.test, task.test))
        heads = {one.prompt.removesuffix(plain.prompt) for one, plain in pairs}
        assert len(heads) == 1, "the same for all questions"
        before[shots, seed] = heads.pop().split("\n\n")[:-1]
        assert [replace(one, prompt="") for one, _ in pairs] == [
            replace(plain, prompt="") for _, plain in pairs
        ]
        assert (asked.train, asked.selection) == (task.train, task.selection)
    assert [len(texts) for texts in before.values()] == [0, 2, 4, 4]
    assert before[4, 0][:2] == before[2, 0] and set(before[4, 0]) != set(before[4, 1])
    assert set(before[4, 1]) <= {one.text for one in task.train}
    for wrong in (-1, 51):
        with pytest.raises(ValueError, match=f"{wrong} shots .* has 50 training examples"):
            task.with_shots(wrong)


def test_the_text_for_pretraining_has_nothing_of_any_test_split(tmp_path):
    first = load_questions("samsum", folder_of(tmp_path / "a", "samsum"))
    crossing = [
        {"id": f"c{n}", "dialogue": row["dialogue"], "summary": "other words"}
        for n, row in enumerate(rows_of("samsum", "test"))
    ]
    others = {
        "test": rows_of("samsum", "validation")[:3],
        "validation": rows_of("samsum", "validation")[5:],
    }
    second = load_questions(
        "samsum",
        folder_of(
            tmp_path / "b", "samsum", train=crossing + rows_of("samsum", "train")[:5], **others
        ),
    )
    assert len(second.train) == 35
    assert (
        len(raw_text(second)) == 35 and len(raw_text(first, second)) == 60 + 5
    )  # the 30 stand in the other's test


def test_a_smaller_share_of_the_text_is_part_of_a_larger_one():
    task = load_questions("arithmetic").limited(train=400)
    shares = [set(raw_text(task, share=share)) for share in (0.1, 0.5, 1.0)]
    assert [len(one) for one in shares] == [40, 200, 400] and shares[0] < shares[1] < shares[2]
    for share in (0, -1, 1.5):
        with pytest.raises(ValueError, match="above 0 and up to 1"):
            raw_text(task, share=share)
    with pytest.raises(ValueError, match="give tasks"):
        raw_text()


def test_loading_the_generated_task_imports_no_torch():
    code = (
        "import json, sys; from compatkit.language.tasks import load_questions; "
        "load_questions('arithmetic'); print(json.dumps('torch' in sys.modules))"
    )
    assert in_another_process(code) is False


@pytest.mark.parametrize("name", ("piqa", "hellaswag", "gsm8k", "samsum"))
def test_the_papers_splits_are_four_fifths_one_fifth_and_all_that_it_reports_on(tmp_path, name):
    folder = folder_of(tmp_path, name)
    task, ours = load_questions(name, folder, as_in_paper=True), load_questions(name, folder)
    assert task.selection_chooses_epoch and not ours.selection_chooses_epoch
    assert {one.id.split("-")[0] for one in task.train + task.selection} == {"train"}
    assert abs(len(task.selection) - 0.2 * len(task.learnt)) <= 1
    assert {one.id for one in ours.test} <= {one.id for one in task.test}
    assert (len(task.test) > len(ours.test)) == (name == "hellaswag")
    assert task.learnt == (*task.train, *task.selection) and ours.learnt == ours.train
    assert task.rule.startswith("as in the paper") and task.fingerprint != ours.fingerprint
