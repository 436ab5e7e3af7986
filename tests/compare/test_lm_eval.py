"""Files that lm-eval wrote, and files with one thing wrong each."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from make_lm_eval_samples import make_all

from compatkit.compare.lm_eval import holds_samples, join_samples, read_samples
from compatkit.compare.logs import Key, Wanted
from compatkit.compare.pair import read_pair
from compatkit.compare.report import compare


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return make_all(tmp_path_factory.mktemp("harness"))


def lines(folder, task):
    file = next(Path(folder).rglob(f"samples_{task}_*.jsonl"))
    return [json.loads(line) for line in file.read_text().splitlines()]


def sample(number, **more):
    return {
        "doc_id": number,
        "filter": "none",
        "target": "4",
        "metrics": ["exact_match"],
        "exact_match": 1.0,
        "filtered_resps": ["4"],
        "resps": [["4"]],
        "arguments": {"gen_args_0": {"arg_0": "2 + 2", "arg_1": {"until": []}}},
        "doc": {"question": "2 + 2"},
        "doc_hash": "d",
        "prompt_hash": "p",
        "target_hash": "t",
        **more,
    }


def written(folder, samples, task="sums", date="2026-01-31T10-11-12.345678", results=None):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"samples_{task}_{date}.jsonl").write_text(
        "".join(json.dumps(one) + "\n" for one in samples)
    )
    if results is not None:
        (folder / f"results_{date}.json").write_text(results)
    return folder


# -- what lm-eval wrote ---------------------------------------------------------------------------


def test_every_task_metric_and_filter_of_a_real_run_is_there(runs):
    pair = read_pair(runs / "old", runs / "new")
    assert list(dict.fromkeys(pair.task)) == [
        "pick_a_word (acc)",
        "pick_a_word (acc_norm)",
        "say_a_word (exact_match, strict)",
        "say_a_word (exact_match, loose)",
        "say_some_words (overlap)",
        "say_some_words (missed)",
    ]
    assert pair.n == 6 * 24 and pair.left_out == {"old only": 0, "new only": 0}


@pytest.mark.parametrize(
    "task, metric, filtered",
    [
        ("pick_a_word", "acc", None),
        ("pick_a_word", "acc_norm", None),
        ("say_a_word", "exact_match", "strict"),
        ("say_a_word", "exact_match", "loose"),
    ],
)
def test_right_and_wrong_are_those_of_the_harness(runs, task, metric, filtered):
    pair = read_pair(runs / "old", runs / "new")
    rows = pair.task == (f"{task} ({metric}, {filtered})" if filtered else f"{task} ({metric})")
    for side, codes in (("old", pair.old), ("new", pair.new)):
        judged = [
            one[metric] for one in lines(runs / side, task) if filtered in (None, one["filter"])
        ]
        assert (codes[rows] == pair.label[rows]).tolist() == [value == 1 for value in judged]
        assert 0 <= sum(judged) < len(judged)
    assert np.isnan(pair.old_score[rows]).all()


def test_real_choices_are_compared(runs):
    pair = read_pair(runs / "old", runs / "new")
    for metric in ("acc", "acc_norm"):
        rows = pair.task == f"pick_a_word ({metric})"
        assert {pair.answers[code] for code in pair.label[rows]} == {
            "choice 0",
            "choice 1",
            "choice 2",
        }
        documents = [one["doc"] for one in lines(runs / "old", "pick_a_word")]
        for shown, document in zip(pair.shown(np.flatnonzero(rows)), documents):
            assert (
                shown["label"] == f"choice {document['gold']}"
                and shown["shape"] == document["shape"]
            )
            assert (
                shown["old_text"] == document["choices"][int(shown["old"].removeprefix("choice "))]
            )


def test_a_metric_of_fractions_is_a_score_and_less_may_be_better(runs):
    pair = read_pair(runs / "old", runs / "new")
    for metric, sign in (("overlap", 1), ("missed", -1)):
        rows = pair.task == f"say_some_words ({metric})"
        assert pair.new_score[rows].tolist() == [
            sign * one[metric] for one in lines(runs / "new", "say_some_words")
        ]
        assert (pair.label[rows] == -1).all() and (pair.old[rows] == -1).all()
    assert "say_some_words (missed): less is better, so the sign is turned." in pair.notes
    shown = pair.shown(np.flatnonzero(rows)[:1])[0]
    assert (
        "label" not in shown
        and shown["new_text"] == lines(runs / "new", "say_some_words")[0]["filtered_resps"][0]
    )


def test_one_file_and_one_folder_are_read_alike(runs):
    file = next((runs / "new").rglob("samples_pick_a_word_*.jsonl"))
    assert (
        holds_samples(file)
        and holds_samples(runs)
        and not holds_samples(runs / "tasks" / "docs.jsonl")
    )
    pair = read_pair(file, runs / "again", on_missing="drop")
    assert pair.n == 2 * 24 and pair.left_out == {"old only": 0, "new only": 48}
    assert (pair.old == pair.new).all()


def test_other_tasks_prompts_and_versions_are_refused(runs):
    with pytest.raises(ValueError, match="'say_some_words'.*on_missing"):
        read_pair(runs / "new", runs / "again")
    with pytest.raises(ValueError, match="'say_some_words'"):
        read_pair(runs / "again", runs / "new")
    with pytest.raises(
        ValueError,
        match="prompt.*24 of",
    ):
        read_pair(runs / "new", runs / "shots", on_missing="drop")
    with pytest.raises(
        ValueError,
        match="right answer.*24 of 24",
    ):
        read_pair(runs / "new", runs / "version", on_missing="drop")


def test_several_runs_in_one_folder(runs, tmp_path):
    both = tmp_path / "both"
    shutil.copytree(runs / "old", both / "a")
    shutil.copytree(runs / "new", both / "b")
    with pytest.raises(ValueError, match="several folders"):
        read_pair(both, runs / "new")
    for file in (both / "b").rglob("*.json*"):  # the newer run beside the older one
        shutil.copy(file, next((both / "a").rglob("samples_*")).parent)
    pair = read_pair(both / "a", runs / "new")
    assert (
        pair.old == pair.new
    ).all() and "a holds 2 runs of pick_a_word: the newest" in pair.notes[0]


# -- one thing wrong, or odd, in each -------------------------------------------------------------


@pytest.mark.parametrize(
    "other, message",
    [
        ([sample(0)], "'1/none' only in the old run"),
        ([sample(7)], "no sample is in both logs .'sums/0/none'"),
        ([sample(0), sample(0)], "repeated ids 'sums/0/none'"),
        ([sample(0, target_hash="x"), sample(1)], "right answer .*'0/none'"),
        ([{"question": "2 + 2"}], "this file holds no samples|line 1 is no sample"),
        ([sample(0, exact_match=None), sample(1)], "nothing to compare: sums .exact_match"),
        ([sample(0, exact_match=float("nan")), sample(1)], "nothing to compare"),
        ([sample(0, exact_match=[1, 0]), sample(1)], "nothing to compare"),
        ([sample(0), sample(1, arguments=[5])], "samples_sums.*: line 2"),
    ],
)
def test_bad_samples_are_refused(tmp_path, other, message):
    old, new = written(tmp_path / "old", [sample(0), sample(1)]), written(tmp_path / "new", other)
    with pytest.raises(ValueError, match=message):
        read_pair(old, new)


def test_broken_files_are_named(tmp_path):
    old = written(tmp_path / "old", [sample(0)])
    for name, content, message in (
        ("samples_sums_2026-01-31T10-11-12.3.jsonl", "{", "line 1 is no JSON"),
        ("samples_sums_2026-01-31T10-11-12.3.jsonl", "", "the file is empty"),
        ("samples_.jsonl", json.dumps(sample(0)), "the name must be samples_<task>_<date>.jsonl"),
    ):
        new = tmp_path / "new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        (new / name).write_text(content)
        with pytest.raises(
            ValueError, match=f"{name}: .*{message}" if name != "samples_.jsonl" else message
        ):
            read_pair(old, new)
    for results, message in (('{"higher', "is no whole JSON"), ("[]", "is not as its tool")):
        written(tmp_path / "torn", [sample(0)], results=results)
        with pytest.raises(ValueError, match=f"results_2026-01-31T10-11-12.345678.json {message}"):
            read_pair(old, tmp_path / "torn")


def test_samples_are_not_compared_with_a_table(tmp_path):
    old = written(tmp_path / "old", [sample(0)])
    (tmp_path / "new.csv").write_text("id,label,prediction\na,1,1\n")
    for pair in ((old, tmp_path / "new.csv"), (tmp_path / "new.csv", old)):
        with pytest.raises(ValueError, match="both must be of one"):
            read_pair(*pair)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(
        ValueError,
        match="^nothing",
    ):
        read_pair(old, tmp_path / "nothing")


def test_old_versions_without_hashes_and_metrics_are_read_with_a_note(tmp_path):
    plain = {"doc_id": 0, "filtered_resps": ["4"], "exact_match": 1, "target": "4"}
    pair = read_pair(
        written(tmp_path / "old", [plain]), written(tmp_path / "new", [plain | {"exact_match": 0}])
    )
    assert (pair.old == pair.label).tolist() == [True] and (pair.new == pair.label).tolist() == [
        False
    ]
    assert pair.notes == (
        "Whether both were asked the same cannot be checked everywhere: `target_hash`, "
        "`doc_hash`, `prompt_hash` missing.",
    )


@pytest.mark.parametrize(
    "field, value, part",
    [("doc", {"question": "3 + 3"}, "document"), ("target", "6", "right answer")],
)
def test_other_documents_without_hashes_are_told_by_what_stands_there(tmp_path, field, value, part):
    gone = {"doc_hash": None, "prompt_hash": None, "target_hash": None}
    old = written(tmp_path / "old", [sample(0, **gone), sample(1, **gone)])
    new = written(tmp_path / "new", [sample(0, **gone), sample(1, **gone, **{field: value})])
    with pytest.raises(ValueError, match=f"{part} differs for 1 of 2 .*'1/none'"):
        read_pair(old, new)


def test_chat_templates_are_compared_where_that_is_asked_for(tmp_path):
    old = written(tmp_path / "old", [sample(n) for n in range(4)])
    new = [sample(n, prompt_hash="chat", exact_match=float(n > 0)) for n in range(4)]
    new = written(tmp_path / "new", new)
    with pytest.raises(ValueError, match="--on-changed compare"):
        read_pair(old, new)
    changed = Wanted(on_changed="compare")
    pair = read_pair(old, new, wanted=changed)
    assert pair.n == 4 and (pair.new != pair.label).sum() == 1
    assert any("differs for 4 of 4 samples" in note for note in pair.notes)
    other = written(tmp_path / "other", [sample(n, target_hash="x") for n in range(4)])
    with pytest.raises(ValueError, match="right answer"):
        read_pair(old, other, wanted=changed)


def test_filters_without_names_are_numbered(tmp_path):
    def side(name, strict, flexible):
        lines = [sample(n, exact_match=value) for n, value in enumerate([*strict, *flexible])]
        lines = [line | {"doc_id": n % 2} for n, line in enumerate(lines)]
        return written(
            tmp_path / name, [{k: line[k] for k in line if k != "filter"} for line in lines]
        )

    pair = read_pair(side("old", [1.0, 0.0], [1.0, 1.0]), side("new", [1.0, 0.0], [0.0, 1.0]))
    assert (
        pair.task.tolist()
        == ["sums (exact_match, none)"] * 2 + ["sums (exact_match, filter 2)"] * 2
    )
    assert (pair.new != pair.label).tolist() == [False, True, True, False]


@pytest.mark.parametrize("nameless", ["old", "new"])
def test_filters_without_names_are_taken_in_the_order_of_the_other_run(tmp_path, nameless):
    right = {
        "old": {"strict": [1, 1], "flexible": [1, 0]},
        "new": {"strict": [0, 1], "flexible": [1, 1]},
    }
    sides = []
    for side, filters in right.items():
        made = [
            sample(n, filter=name, exact_match=float(value))
            for name, values in filters.items()
            for n, value in enumerate(values)
        ]
        if side == nameless:
            made = [{key: one[key] for key in one if key != "filter"} for one in made]
        sides.append(written(tmp_path / side, made))
    with pytest.raises(ValueError, match="strict, flexible.*--on-changed compare"):
        read_pair(*sides)
    pair = read_pair(*sides, wanted=Wanted(on_changed="compare"))
    named = [f"sums (exact_match, {one})" for one in ("strict", "flexible")]
    assert pair.task.tolist() == [named[0]] * 2 + [named[1]] * 2
    assert (pair.old == pair.label).tolist() == [True, True, True, False]
    assert (pair.new == pair.label).tolist() == [False, True, True, True]
    assert any("taken in this order" in note for note in pair.notes)


def test_a_run_that_only_predicted_is_refused(tmp_path):
    made = [sample(n, metrics=["bypass"], bypass=999) for n in range(3)]
    with pytest.raises(ValueError, match="--predict_only"):
        read_pair(*(written(tmp_path / side, made) for side in ("old", "new")))
    # beside a metric that judges it is left out
    both = [sample(n, metrics=["bypass", "exact_match"], bypass=999) for n in range(3)]
    pair = read_pair(*(written(tmp_path / f"{side} judged", both) for side in ("old", "new")))
    assert pair.n == 3 and any("bypass" in note for note in pair.notes)


def test_zero_is_right_where_less_is_better(tmp_path):
    toxic = [
        [sample(n, metrics=["toxic"], toxic=value) for n, value in enumerate(values)]
        for values in ((0, 1), (1, 1))
    ]
    results = json.dumps({"higher_is_better": {"sums": {"toxic": False, "perplexity": False}}})
    pair = read_pair(
        *(written(tmp_path / name, one, results=results) for name, one in zip("ab", toxic))
    )
    assert (pair.old == pair.label).tolist() == [True, False] and (
        pair.new == pair.label
    ).tolist() == [False, False]
    likely = [sample(0, metrics=["perplexity"], perplexity=-3.5)]
    pair = read_pair(*(written(tmp_path / name, likely, results=results) for name in "cd"))
    assert pair.old_score.tolist() == [
        -3.5
    ]  # the harness logs a log-likelihood, the larger the better


def choices(number, target, likelihoods, texts=(" yes indeed", " no"), **judged):
    return sample(
        number,
        target=target,
        metrics=list(judged),
        filtered_resps=[[str(value), "False"] for value in likelihoods],
        arguments={f"gen_args_{i}": {"arg_0": "q", "arg_1": text} for i, text in enumerate(texts)},
        **judged,
    )


@pytest.mark.parametrize(
    "one, two, answers",
    [
        (
            choices(0, "1", (-5, -3), acc=1.0),
            choices(0, "1", (-2, -3), acc=0.0),
            ("choice 1", "choice 1", "choice 0"),
        ),
        (
            choices(0, "no", (-5, -3), acc=1.0),
            choices(0, "no", (-2, -3), acc=0.0),
            ("choice 1", "choice 1", "choice 0"),
        ),
        (
            choices(0, "1", (-5, -3), acc_norm=0.0),
            choices(0, "1", (-9, -1), acc_norm=1.0),
            ("choice 1", "choice 0", "choice 1"),
        ),
        (
            choices(0, "1", (-5, -3), acc=0.0),
            choices(0, "1", (-2, -3), acc=0.0),
            ("right", "wrong", "wrong otherwise"),
        ),  # judged otherwise
        (
            choices(0, "[0, 1]", (-5, -3), acc=1.0),
            choices(0, "[0, 1]", (-2, -3), acc=1.0),
            ("right", "right", "right"),
        ),  # two right answers
        (
            choices(0, "1", (-5, -3), exact_match=0),
            choices(0, "1", (-4, -3), exact_match=0),
            ("right", "wrong", "wrong"),
        ),  # another metric
    ],
)
def test_choices_where_they_can_be_told(tmp_path, one, two, answers):
    pair = read_pair(written(tmp_path / "old", [one]), written(tmp_path / "new", [two]))
    assert tuple(pair.answers[codes[0]] for codes in (pair.label, pair.old, pair.new)) == answers


def test_an_empty_choice_and_bytes_are_no_obstacle(tmp_path):
    texts = (" ", " ä")  # lengths 0 and 1 in characters, 0 and 2 in bytes
    one = choices(0, "1", (-5, -3), texts, acc_bytes=1.0, acc_norm=1.0)
    pair = read_pair(*(written(tmp_path / name, [one]) for name in ("old", "new")))
    assert pair.answers == ("choice 1",) and pair.n == 2


def test_order_of_lines_does_not_matter(tmp_path, runs):
    turned = tmp_path / "turned"
    shutil.copytree(runs / "new", turned)
    for file in turned.rglob("samples_*.jsonl"):
        file.write_text("\n".join(reversed(file.read_text().splitlines())) + "\n")
    straight, other = read_pair(runs / "old", runs / "new"), read_pair(runs / "old", turned)
    assert np.array_equal(straight.new, other.new) and np.array_equal(
        straight.new_score, other.new_score, equal_nan=True
    )
    assert straight.shown(range(straight.n)) == other.shown(range(straight.n))


def test_columns_are_fields_of_the_documents(tmp_path):
    docs = [
        sample(
            n,
            doc={"question": f"question {n}", "subject": "ab"[n % 2], "year": n, "options": ["x"]},
        )
        for n in range(60)
    ]
    folders = [written(tmp_path / name, docs) for name in ("old", "new")]
    assert list(read_pair(*folders).columns) == ["subject", "year"]  # the question is free text
    assert list(read_pair(*folders, columns=["question"]).columns) == ["question"]
    assert read_pair(*folders, columns=[]).columns == {}
    assert read_pair(*folders).shown([3])[0]["question"] == "question 3"
    with pytest.raises(ValueError, match="'subjekt'.*'subject'"):
        read_pair(*folders, columns=["subjekt"])


def test_prompts_are_not_kept(tmp_path):
    read = read_samples(written(tmp_path / "run", [choices(0, "1", (-5, -3), acc=1.0)]))
    assert "resps" not in read.samples[Key("sums", "0/none")]
    assert read.samples[Key("sums", "0/none")]["arguments"] == [
        [None, " yes indeed"],
        [None, " no"],
    ]
    assert set(join_samples(read, read)) >= {"label", "old", "new", "task", "details"}


@pytest.mark.parametrize("less, right", [(False, "wrong"), (True, "right")])
def test_scores_are_right_from_a_number_on_or_up_to_it(tmp_path, less, right):
    told = json.dumps({"higher_is_better": {"sums": {"wer": not less}}})
    runs = [
        written(
            tmp_path / name,
            [sample(n, metrics=["wer"], wer=wer) for n, wer in enumerate([0.3, worst, 0.1])],
            results=told,
        )
        for name, worst in (("old", 0.2), ("new", 0.9))
    ]
    pair = read_pair(*runs, wanted=Wanted(pass_at=0.3 if not less else 0.2))
    first, second, third = (pair.answers[code] for code in pair.old)
    assert (second, third) == (right, right) and first != right
    assert any("A score of" in note for note in pair.notes)


def test_a_threshold_for_right_and_wrong_answers_is_refused(tmp_path):
    runs = [written(tmp_path / name, [sample(n) for n in range(3)]) for name in ("old", "new")]
    with pytest.raises(ValueError, match="--pass-at 0.5"):
        read_pair(*runs, wanted=Wanted(pass_at=0.5))


def test_the_metric_that_counts_is_named(runs):
    both = {"metrics": ["exact_match", "f1"]}
    found = compare(
        *(
            written(runs / "named" / name, [sample(n, f1=n / 5, **both) for n in range(3)])
            for name in ("old", "new")
        )
    )
    assert found.summary["judged_by"] == "`exact_match`, `f1`"
    assert "Judged by `exact_match`, `f1`." in found.summary["notes"]
