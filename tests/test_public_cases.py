"""What people's own files have shown: each case as the command that was typed, and what is right.

The inputs are made here, with the counts of the cases.
"""

import csv
import json
import zipfile

import pytest
from click.testing import CliRunner

from compatkit.cli import app

FLIPS = ("both_right", "negative", "positive")


def typed(*words):
    """The exit status, and what was printed or the error's text."""
    done = CliRunner().invoke(app, ["compare", *map(str, words)])
    failed = done.exception is not None and not isinstance(done.exception, SystemExit)
    return (2, str(done.exception)) if failed else (done.exit_code, done.output)


def found(*words):
    """What --json says."""
    status, text = typed(*words, "--json")
    assert status in (0, 1), text
    return json.loads(text)


def counts(summary):
    return tuple(summary["overall"]["counts"][name] for name in FLIPS)


def table(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def two(folder, old, new):
    return table(folder / "old.csv", old), table(folder / "new.csv", new)


def moved(right, negative, positive, wrong):
    """Right or wrong of both versions, with so many examples of each kind."""
    kinds = [(1, 1)] * right + [(1, 0)] * negative + [(0, 1)] * positive + [(0, 0)] * wrong
    return [list(side) for side in zip(*kinds)]


# --- a gate passes what it must stop --------------------------------------------------------------


def test_01_half_of_the_examples_were_answered_twice(tmp_path):
    def rows(fallen):
        answers = [(n, repeat) for n in range(1000) for repeat in range(1, 2 + (n < 500))]
        return [
            {
                "id": n,
                "label": "y",
                "repeat": repeat,
                "prediction": "n" if n >= 1000 - fallen else "y",
            }
            for n, repeat in answers
        ]

    files = two(tmp_path, rows(0), rows(105))
    assert typed(*files, "--max-nfr", "1%")[0] == 1
    assert found(*files)["overall"]["nfr"]["value"] == pytest.approx(0.105)


def inspect_log(path, samples, **run):
    """A log of Inspect as JSON; samples are (scores, input)."""
    content = {
        "version": 2,
        "status": "success",
        "eval": {"task": "t", "config": {}, "scorers": [{"name": "match"}]} | run,
        "samples": [
            {"id": n, "epoch": 1, "input": asked, "target": "Yes", "scores": scores}
            for n, (scores, asked) in enumerate(samples)
        ],
    }
    path.write_text(json.dumps(content))
    return path


def test_03_logs_that_were_never_scored(tmp_path):
    files = [
        inspect_log(tmp_path / name, [({}, f"Q{n}") for n in range(50)])
        for name in ("old.json", "new.json")
    ]
    status, told = typed(*files, "--max-nfr", "1%")
    assert status == 2 and "inspect score" in told and "50 no score" in told


def harness(folder, rows):
    """A run of the lm-evaluation-harness."""
    folder.mkdir()
    common = {"filter": "none", "resps": [["1"]], "filtered_resps": ["1"], "metrics": ["acc"]}
    lines = [json.dumps({"doc_id": n} | common | row) + "\n" for n, row in enumerate(rows)]
    (folder / "samples_gsm8k_2026-01-31T10-11-12.345678.jsonl").write_text("".join(lines))
    return folder


def asked(n, prompt="", target="1", question="", hashes=True, acc=1.0):
    """A document with what was asked."""
    row = {"doc": {"question": question or f"Q{n}"}, "target": target, "acc": acc}
    row |= {"arguments": {"gen_args_0": {"arg_0": f"{prompt}{question or n}", "arg_1": {}}}}
    if not hashes:
        return row
    return row | {"doc_hash": f"d{n}", "target_hash": f"t{n}", "prompt_hash": f"{prompt}{n}"}


def test_04_a_run_that_only_predicted(tmp_path):
    rows = [asked(n) | {"metrics": ["bypass"], "bypass": 999} for n in range(20)]
    files = [harness(tmp_path / name, rows) for name in ("old", "new")]
    status, told = typed(*files, "--max-nfr", "1%")
    assert status == 2 and "--predict_only" in told


# --- the same questions are refused, or other questions compared ----------------------------------


def test_06_an_archive_that_cuts_long_inputs_beside_json_that_does_not(tmp_path):
    whole = "x" * 20_003
    cut = whole[:5120] + "...(content truncated)"  # as the summaries of an archive hold it
    new = inspect_log(tmp_path / "new.json", [({"match": {"value": "I"}}, whole)] * 5)
    log = json.loads(new.read_text())
    with zipfile.ZipFile(tmp_path / "old.eval", "w") as archive:
        archive.writestr("header.json", json.dumps({"status": "success", "eval": log["eval"]}))
        samples = [
            one | {"input": cut, "scores": {"match": {"value": "C"}}} for one in log["samples"]
        ]
        archive.writestr("summaries.json", json.dumps(samples))
    assert counts(found(tmp_path / "old.eval", new)) == (0, 5, 0)


def test_08_other_documents_under_one_number_without_hashes(tmp_path):
    old = [asked(n, hashes=False) for n in range(3)]
    new = [asked(n, hashes=False, question="other" * (n > 0), target="12"[n > 0]) for n in range(3)]
    status, told = typed(harness(tmp_path / "old", old), harness(tmp_path / "new", new))
    assert status == 2 and "differs for 2 of 3" in told


def test_09_models_with_other_chat_templates(tmp_path):
    files = [
        harness(
            tmp_path / name, [asked(n, prompt=f"<{name}>", acc=float(n > 9)) for n in range(100)]
        )
        for name in ("old", "new")
    ]
    status, told = typed(*files)
    assert status == 2 and "--on-changed compare" in told
    summary = found(*files, "--on-changed", "compare")
    assert summary["examples"] == 100 and any("prompt" in note for note in summary["notes"])


def test_10_a_changed_prompt_of_promptfoo(tmp_path):
    files = []
    for name, passed in zip(("old.json", "new.json"), moved(29, 13, 12, 6)):
        rows = [
            {
                "vars": {"n": n},
                "prompt": {"raw": f"{name}: {n}?", "label": name},
                "provider": {"id": "gpt"},
                "success": bool(one),
                "score": one,
                "failureReason": 1 - one,
                "response": {"output": "2"},
            }
            for n, one in enumerate(passed)
        ]
        (tmp_path / name).write_text(json.dumps({"evalId": "e", "results": {"results": rows}}))
        files.append(tmp_path / name)
    summary = found(*files, "--on-missing", "drop")
    assert counts(summary) == (29, 13, 12) and summary["examples"] == 60


# --- the plainest files ---------------------------------------------------------------------------


def test_13_a_column_of_true_and_false(tmp_path):
    sides = moved(123, 16, 7, 54)
    files = two(
        tmp_path,
        *([{"id": f"q{n}", "correct": one == 1} for n, one in enumerate(s)] for s in sides),
    )
    for options in ((), ("--rename", "score=correct")):
        summary = found(*files, *options)
        assert counts(summary) == (123, 16, 7)
        assert summary["overall"]["accuracy_old"]["value"] == 139 / 200
        assert summary["overall"]["mcnemar"]["n"] == 23


def test_14_scores_of_which_some_are_nan(tmp_path):
    def rows(shift):
        scores = ["nan" if n < 7 else round((n * 0.37 + shift) % 1, 3) for n in range(60)]
        return [{"user_input": f"question {n}", "faithfulness": s} for n, s in enumerate(scores)]

    files = two(tmp_path, rows(0), rows(0.2))
    named = ("--rename", "id=user_input", "--rename", "score=faithfulness")
    status, told = typed(*files, *named)
    assert status == 2 and "--errors drop or wrong" in told
    summary = found(*files, *named, "--errors", "drop")
    assert summary["examples"] == 53
    assert any("7 examples are left out on both sides" in note for note in summary["notes"])


def test_15_several_answers_to_one_task(tmp_path):
    rows = [{"task_id": f"HumanEval/{n}", "passed": k < 2} for n in range(20) for k in range(3)]
    status, told = typed(*two(tmp_path, rows, rows), "--rename", "id=task_id")
    assert status == 2 and "`repeat`" in told and "up to 3" in told


def test_16_documents_that_moved_as_a_whole(tmp_path):
    kinds = [(1, 0)] * 70 + [(0, 1)] * 40 + [(1, 1)] * 618 + [(0, 0)] * 258  # whole documents first
    kinds += [(1, 0)] * 5 + [(0, 1)] * 9
    for place in range(14):  # and single questions of the last ones
        kinds[-1 - place], kinds[-15 - 10 * place] = kinds[-15 - 10 * place], kinds[-1 - place]
    sides = zip(*kinds)
    rows = (
        [
            {"id": n, "doc": f"d{n // 10}", "label": "y", "prediction": "ny"[one]}
            for n, one in enumerate(side)
        ]
        for side in sides
    )
    files = two(tmp_path, *rows)
    summary = found(*files, "--slice", "doc")
    assert counts(summary)[1:] == (75, 49)
    assert summary["overall"]["mcnemar"]["value"] == pytest.approx(0.0244, abs=5e-5)
    assert any("--cluster doc" in note for note in summary["notes"])
    clustered = found(*files, "--cluster", "doc")
    assert clustered["overall"]["mcnemar"]["value"] > 0.2
    assert clustered["verdict"]["word"] not in ("better and compatible", "worse")


def test_17_a_fall_of_a_score_that_is_too_small_to_matter(tmp_path):
    kinds = [(1.9, 1.1)] * 24 + [(1.1, 1.9)] * 84 + [(1.2, 1.19995)] * 171 + [(1.2, 1.2)] * 526
    files = two(
        tmp_path,
        *([{"id": n, "score": one} for n, one in enumerate(side)] for side in zip(*kinds)),
    )
    at_threshold = found(*files, "--pass-at", "1.5")
    assert counts(at_threshold)[1:] == (24, 84)
    assert at_threshold["overall"]["nfr"]["value"] == pytest.approx(0.0298, abs=5e-5)
    scores = found(*files)["overall"]["scores"]
    assert scores["nfr"]["value"] == pytest.approx(24 / 805)
    assert scores["mean_difference"]["differing"] == 279


@pytest.mark.parametrize("tool", ["evalplus", "swe-bench"])
def test_18_results_of_other_tools(tmp_path, tool):
    sides = moved(16, 34, 30, 84) if tool == "evalplus" else moved(8, 12, 18, 19)
    files = []
    for name, side in zip(("old.json", "new.json"), sides):
        names = [
            f"HumanEval/{n}" if tool == "evalplus" else f"django__django-{n}"
            for n in range(len(side))
        ]
        if tool == "evalplus":
            status = {0: ("pass", "fail"), 1: ("pass", "pass")}
            problems = {
                one: [dict(zip(("base_status", "plus_status"), status[right]))]
                for one, right in zip(names, side)
            }
            content = {"date": "2024-05-01", "hash": "x", "eval": problems}
        else:
            by_right = {
                key: [one for one, right in zip(names, side) if right == wanted]
                for key, wanted in (("resolved_ids", 1), ("unresolved_ids", 0))
            }
            errors = [f"sympy__sympy-{n}" for n in range(3)]
            content = {"total_instances": 60, "resolved_instances": sum(side)} | by_right
            content |= {"error_ids": errors, "submitted_ids": [*names, *errors]}
        (tmp_path / name).write_text(json.dumps(content))
        files.append(tmp_path / name)
    summary = found(*files)
    expected = ((16, 34, 30), 164) if tool == "evalplus" else ((8, 12, 18), 60)
    assert (counts(summary), summary["examples"]) == expected


def test_19_versions_in_the_rows_of_one_table(tmp_path):
    rows = [
        {"id": n, "label": "y", "prediction": "yn"[model == "new" and n < 2], "model": model}
        for model in ("old", "new")
        for n in range(20)
    ]
    path = table(tmp_path / "runs.csv", rows)
    status, told = typed(path, "--old", "old", "--new", "new")
    assert status == 2 and f"compatkit compare {path} --by model --old old --new new" in told
    assert counts(found(path, "--by", "model", "--old", "old", "--new", "new")) == (18, 2, 0)


def test_21_a_log_that_is_scored_in_part(tmp_path):
    def log(name, right):
        values = [
            {"match": {"value": "C" if n < right else "I", "answer": "Yes"}} for n in range(30)
        ]
        unscored = [{"match": {"value": None, "answer": "Yes"}}] * 10
        return inspect_log(
            tmp_path / name, [(scores, f"Q{n}") for n, scores in enumerate([*values, *unscored])]
        )

    files = log("old.json", 20), log("new.json", 15)
    assert any("10 no score" in note for note in found(*files)["notes"])
    overall = found(*files, "--errors", "drop")["overall"]
    accuracies = [overall[f"accuracy_{side}"]["value"] for side in ("old", "new")]
    assert accuracies == [20 / 30, 15 / 30]  # as Inspect itself says
