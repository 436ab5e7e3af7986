"""Where a team meets a comparison: comment, annotations, JUnit XML, baseline, a line in a test,
the action.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest
import yaml
from click.testing import CliRunner

from compatkit.cli import app
from compatkit.compare import compare, gate
from compatkit.compare.policy import Policy
from compatkit.compare.pull_requests import (
    ENDING,
    MOST_LINES,
    annotations,
    bless,
    check_blessed,
    comment,
    junit,
    write_summary,
)
from compatkit.compare.suites import compare_suites
from compatkit.predictions import Predictions
from compatkit.support.outputs import COMMENT_MARK

ROOT = Path(__file__).resolve().parent.parent.parent
HARM = "x\n::error::`|<img src=x> @team % \x00"


def answers(path, wrong, examples=400, said="no", **columns):
    frame = {
        "id": [f"e{n}" for n in range(examples)],
        "label": ["yes"] * examples,
        "prediction": [said] * wrong + ["yes"] * (examples - wrong),
    }
    pl.DataFrame(frame | columns).write_parquet(path)
    return path


@pytest.fixture
def pair(tmp_path):
    return answers(tmp_path / "old.parquet", 10), answers(tmp_path / "new.parquet", 50)


def test_a_gate_raises_with_the_report(pair):
    assert gate(pair[0], pair[0], {"max_nfr": "1%"}).status == "holds"
    with pytest.raises(AssertionError, match=r"does not pass \(failed\)[\s\S]*NFR"):
        gate(*pair, {"max_nfr": "1%"})
    with pytest.raises(AssertionError, match=r"\(worse\)"):
        gate(*pair)
    assert gate(pair[1], pair[0]).verdict != "worse"


def test_too_little_data_does_not_pass(tmp_path):
    few = answers(tmp_path / "few.parquet", 0, 20)
    with pytest.raises(AssertionError, match="too little data"):
        gate(few, few, {"max_nfr": "1%"})


def test_a_comment_is_short_and_holds_no_markup_of_the_data(tmp_path):
    group = {"group": [HARM if n < 60 else f"g{n % 5}" for n in range(400)]}
    old = answers(tmp_path / "old.parquet", 0, **group)
    new = answers(tmp_path / "new.parquet", 50, said=HARM, **group)
    found = compare(
        old,
        new,
        slices=["group"],
        policy={"max_nfr": "1%", "slice": [{"each": "group", "max_nfr": "1%"}]},
    )
    text = comment(found, "https://example.org/r.html")
    lines = text.splitlines()
    assert (
        len(lines) <= MOST_LINES and lines[-1] == "[The whole report](https://example.org/r.html)"
    )
    assert lines[0].startswith("### ") and "worse" in lines[0] and "NFR" in lines[2]
    assert "<img" not in text and "@team" not in text and "\n::error" not in text


def test_what_a_comment_leaves_out_is_counted(tmp_path):
    group = {"group": [f"g{n % 20}" for n in range(400)]}
    paths = [answers(tmp_path / f"{flips}.parquet", flips, **group) for flips in (0, 380)]
    found = compare(*paths, policy={"slice": [{"each": "group", "max_nfr": "1%"}]})
    text = comment(found)
    assert "\n12 more conditions are not shown.\n" in text and len(text.splitlines()) <= MOST_LINES


def test_annotations_cannot_be_ended_by_the_data(tmp_path):
    group = {"group": [HARM] * 400}
    old = answers(tmp_path / "old.parquet", 0, **group)
    new = answers(tmp_path / "new.parquet", 50, **group)
    found = compare(old, new, policy={"slice": [{"each": "group", "max_nfr": "1%"}]})
    lines = annotations(found)
    assert [line.split(" ")[0] for line in lines] == ["::error", "::notice"]
    assert all("\n" not in line and "\r" not in line for line in lines)


def test_without_a_gate_worse_is_an_error(pair):
    assert annotations(compare(*pair))[-1].startswith("::error ")
    assert annotations(compare(*reversed(pair)))[-1].startswith("::notice ")


def test_the_summary_is_appended(pair, tmp_path, monkeypatch):
    path = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    for _ in range(2):
        write_summary(compare(*pair))
    assert path.read_text().count("### ") == 2
    monkeypatch.delenv("GITHUB_STEP_SUMMARY")
    write_summary(compare(*pair))
    assert path.read_text().count("### ") == 2


def test_junit_says_what_failed_and_what_cannot_be_told(tmp_path, pair):
    root = ElementTree.fromstring(junit(compare(*pair, policy={"max_nfr": "1%"})).encode())
    assert (
        root.attrib["failures"] == "1" and "limit of 1.00 %" in root.find("testcase/failure").text
    )
    few = answers(tmp_path / "few.parquet", 0, 20)
    root = ElementTree.fromstring(junit(compare(few, few, policy={"max_nfr": "1%"})).encode())
    assert (root.attrib["errors"], root.attrib["failures"]) == ("1", "0")
    group = {"group": [HARM] * 400}
    old = answers(tmp_path / "o.parquet", 0, **group)
    found = compare(old, old, policy={"slice": [{"each": "group", "max_nfr": "5%"}]})
    ElementTree.fromstring(junit(found).encode())  # control characters of the data are no XML
    assert (
        ElementTree.fromstring(junit(compare(old, old)).encode())
        .find("testcase")
        .attrib["name"]
        .startswith("verdict")
    )


def test_a_baseline_is_kept_with_its_hash(pair, tmp_path):
    baseline = tmp_path / "kept" / "baseline.parquet"
    record = bless(pair[0], baseline)
    assert (
        baseline.read_bytes() == pair[0].read_bytes()
        and json.loads(record.read_text())["from"] == "old.parquet"
    )
    check_blessed(baseline)
    bless(pair[1], baseline)  # a baseline may be replaced by blessing another
    answers(baseline, 3)
    for call in (check_blessed, lambda path: gate(path, pair[0])):
        with pytest.raises(ValueError, match="changed since it was blessed"):
            call(baseline)
    baseline.with_name(baseline.name + ENDING).write_text("{}")
    with pytest.raises(ValueError, match="no record"):
        check_blessed(baseline)


def test_blessing_replaces_nothing_that_was_not_blessed(pair, tmp_path):
    with pytest.raises(ValueError, match="never blessed"):
        bless(*pair)
    bless(*pair, force=True)
    assert pair[1].read_bytes() == pair[0].read_bytes()
    with pytest.raises(ValueError, match="must end in .parquet"):
        bless(pair[0], tmp_path / "baseline.csv")
    with pytest.raises(ValueError, match="is no file"):
        bless(tmp_path, tmp_path / "baseline.parquet")


def test_the_command(pair, tmp_path):
    def run(*arguments):
        return CliRunner().invoke(app, [*map(str, arguments)])

    done = run(
        "compare",
        *pair,
        "--github",
        "--comment",
        tmp_path / "c.md",
        "--junit",
        tmp_path / "j.xml",
        "--max-nfr",
        "1%",
    )
    assert done.output.startswith("::error ") and (tmp_path / "c.md").read_text().startswith("### ")
    assert "failure" in (tmp_path / "j.xml").read_text()
    assert "baseline" in run("bless", pair[0], "--to", tmp_path / "b.parquet").output
    answers(tmp_path / "b.parquet", 3)
    assert "changed since" in str(run("compare", tmp_path / "b.parquet", pair[1]).exception)


# --- suites ---------------------------------------------------------------------------------------


@pytest.fixture
def suites(tmp_path):
    """Folders of 30 tasks; three of them fall, one of which is advisory."""
    sides = []
    for name, wrong in (("old", 4), ("new", 40)):
        sides.append(tmp_path / name)
        sides[-1].mkdir()
        for n in range(30):
            ids = {"id": [f"{HARM} {n}" for n in range(100)]}
            answers(sides[-1] / f"t{n:02}.parquet", wrong if n < 3 else 4, 100, HARM, **ids)
    return sides


ADVISORY = {"advisory": {"tasks": ["t00"]}}


def test_a_suite_in_a_pull_request(suites, tmp_path):
    found = compare_suites(*suites, ADVISORY)
    text = comment(found, "https://example.org/r")
    lines = text.splitlines()
    assert len(lines) <= MOST_LINES and lines[0] == "### failed"
    assert lines[-1] == "[The whole report](https://example.org/r)"
    assert "10 more tasks are not shown." in text and "no longer has right" in text
    assert "<img" not in text and "@team" not in text and "\n::error" not in text
    told = annotations(found)
    levels = [line.split(" ")[0] for line in told]
    assert levels == ["::warning", "::error", "::error", "::error"] and "advisory" in told[0]
    root = ElementTree.fromstring(junit(found).encode())
    assert (root.attrib["tests"], root.attrib["failures"]) == ("31", "3")
    holds = compare_suites(suites[0], suites[0])
    assert annotations(holds)[0].startswith("::notice ") and "### holds" in comment(holds)


def test_a_gate_takes_folders(suites):
    assert gate(suites[0], suites[0]).status == "holds"
    with pytest.raises(AssertionError, match=r"\(failed\)[\s\S]*required tasks do not hold"):
        gate(*suites, ADVISORY)
    with pytest.raises(AssertionError, match="too little data"):
        gate(suites[0], suites[0], {"max_nfr": "1%"})


def test_a_baseline_may_be_a_link(tmp_path):
    (tmp_path / "far").mkdir()
    baseline = tmp_path / "baseline.parquet"
    baseline.symlink_to(tmp_path / "far" / "kept.parquet")
    bless(answers(tmp_path / "new.parquet", 3), baseline)
    assert baseline.is_symlink() and (tmp_path / "far" / "kept.parquet").exists()
    check_blessed(baseline)


def test_a_blessed_task_that_changed_is_refused(suites):
    baseline = suites[0] / "t03.parquet"
    bless(baseline, baseline)
    assert gate(suites[0], suites[0]).status == "holds"
    answers(baseline, 3)
    with pytest.raises(ValueError, match="t03.parquet"):
        gate(*suites)
    done = CliRunner().invoke(app, ["compare", *map(str, suites)])
    assert "t03.parquet has changed since it was blessed" in str(done.exception)


def test_the_command_with_folders(suites, tmp_path):
    def run(*arguments):
        return CliRunner().invoke(app, ["compare", *map(str, suites), *map(str, arguments)])

    done = run("--github", "--comment", tmp_path / "c.md", "--junit", tmp_path / "j.xml")
    assert done.output.startswith("::error ") and done.exit_code == 1
    assert (tmp_path / "c.md").read_text().startswith("### failed")
    assert "<failure" in (tmp_path / "j.xml").read_text()
    assert run("--quiet").output == "failed\n"
    assert run("--max-nfr", "60%", "--quiet").output == "holds\n"
    assert "--slice is for two files" in str(run("--slice", "group").exception)


# --- the action -----------------------------------------------------------------------------------


def test_no_input_reaches_a_script_but_through_the_environment():
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    assert {"old", "new", "policy", "comment", "advisory"} <= set(action["inputs"])
    for step in action["runs"]["steps"]:
        assert "${{" not in step.get("run", "")


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({}, 1),
        ({"ADVISORY": "true"}, 0),
        ({"OPTIONS": "--tolerance=20%\n"}, 1),
        ({"OPTIONS": "--json\n"}, 1),
        ({"OLD": "nothing.csv"}, 2),
        ({"OLD": "nothing.csv", "ADVISORY": "true"}, 2),
    ],
)
def test_the_actions_script(pair, tmp_path, settings, status):
    command = tmp_path / "bin"
    command.mkdir()
    (command / "compatkit").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -c "from compatkit.cli import main; main()" "$@"\n'
    )
    (command / "compatkit").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{command}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "OLD": str(pair[0]),
        "NEW": str(pair[1]),
    }
    (tmp_path / "compatkit-comment.md").write_text("of an earlier step of the job")
    script = ["bash", str(ROOT / ".github" / "compare.sh")]
    done = subprocess.run(script, env=environment | settings, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert (tmp_path / "output").read_text() == f"status={2 if status == 2 else 1}\n"
    for name in ("comment.md", "junit.xml"):  # what an earlier step left is gone
        assert (tmp_path / f"compatkit-{name}").exists() == (status != 2)
    assert (tmp_path / "compatkit.html").exists() == (status != 2)


GH = """#!{python}
import json, os, sys
from pathlib import Path
folder = Path(os.environ["RUNNER_TEMP"])
if os.environ.get("READ_ONLY") and sys.argv[1:3] != ["pr", "view"]:
    sys.exit("HTTP 403: Resource not accessible by integration")
if sys.argv[1:3] == ["pr", "view"]:
    print((folder / "comments.json").read_text())
else:
    (folder / "calls.json").write_text(json.dumps(sys.argv[1:]))
"""
OWN = {
    "body": f"### worse\r\n{COMMENT_MARK}\r\nwhy",
    "viewerDidAuthor": True,
    "url": "https://g.h/o/r/pull/5#issuecomment-11",
}
OTHERS = [
    OWN | {"body": "coverage fell", "url": "https://g.h/o/r/pull/5#issuecomment-12"},
    OWN | {"viewerDidAuthor": False, "url": "https://g.h/o/r/pull/5#issuecomment-13"},
    OWN | {"body": f"> {COMMENT_MARK}\n\nwhy?", "url": "https://g.h/o/r/pull/5#issuecomment-14"},
]


def write_the_comment(folder, comments, **settings):
    """What gh is called with, and what the action's script prints."""
    (folder / "gh").write_text(GH.format(python=sys.executable))
    (folder / "gh").chmod(0o755)
    (folder / "comments.json").write_text(json.dumps({"comments": comments}))
    (folder / "compatkit-comment.md").write_text("### worse\n")
    environment = os.environ | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "RUNNER_TEMP": str(folder),
        "GITHUB_REPOSITORY": "o/r",
        "NUMBER": "5",
    }
    script = [sys.executable, str(ROOT / ".github" / "comment.py")]
    run = {"env": environment | settings, "capture_output": True, "text": True}
    done = subprocess.run(script, check=True, **run)
    calls = folder / "calls.json"
    return json.loads(calls.read_text()) if calls.exists() else None, done.stdout


def test_the_action_writes_over_its_own_comment_alone(tmp_path):
    call, _ = write_the_comment(tmp_path, [OWN, *OTHERS])
    assert call[:4] == ["api", "--method", "PATCH", "repos/o/r/issues/comments/11"]
    assert call[-1] == f"body=@{tmp_path}/compatkit-comment.md"


def test_beside_comments_of_others_the_action_writes_a_new_one(tmp_path):
    call, printed = write_the_comment(tmp_path, OTHERS)
    assert call[:3] == ["pr", "comment", "5"] and "--edit-last" not in call
    assert printed == ""


@pytest.mark.parametrize("comments", [[], [OWN]])
def test_a_token_that_may_only_read_is_a_warning(tmp_path, comments):
    call, printed = write_the_comment(tmp_path, comments, READ_ONLY="1")
    assert call is None
    assert printed.startswith("::warning ") and "Resource not accessible" in printed


def test_an_id_is_no_command_of_github(tmp_path):
    ids = [f"::error title={n}::##[error]" for n in range(400)]
    paths = [answers(tmp_path / f"{wrong}.parquet", wrong, id=ids) for wrong in (10, 50)]
    done = CliRunner().invoke(app, ["compare", "--github", *map(str, paths)])
    lines = done.output.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("::stop-commands::"))
    assert [line.split()[0] for line in lines[:start]] == ["::error"]  # the verdict's own
    assert not any("##[error]" in line for line in lines[:start])
    assert any(line.startswith("::error title=1") for line in lines[start:])
    token = lines[start].removeprefix("::stop-commands::")
    assert [n for n, line in enumerate(lines) if line == f"::{token}::"] == [len(lines) - 1]


def test_json_beside_annotations_is_json_and_no_command(pair, suites, tmp_path):
    ids = [f"##[error]{n}" for n in range(400)]
    old, new = (answers(tmp_path / f"j{wrong}.parquet", wrong, id=ids) for wrong in (10, 50))
    for files in ((old, new), suites):
        arguments = ["compare", *map(str, files), "--github", "--json"]
        done = CliRunner().invoke(app, arguments)
        assert "::error " not in done.stdout and "##[" not in done.stdout
        plain = CliRunner().invoke(app, [one for one in arguments if one != "--github"])
        assert json.loads(done.stdout) == json.loads(plain.stdout)
        lines = done.stderr.splitlines()
        assert lines[-1].startswith("::error ") and all(line.startswith("::") for line in lines)


def test_a_comment_leads_to_the_run_that_keeps_the_page(pair, tmp_path, monkeypatch):
    for name, value in (("SERVER_URL", "https://g.h"), ("REPOSITORY", "o/r"), ("RUN_ID", "7")):
        monkeypatch.setenv(f"GITHUB_{name}", value)
    told = tmp_path / "comment.md"
    arguments = ["compare", *map(str, pair), "--comment", str(told), "--quiet"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert told.read_text().endswith("[The whole report](https://g.h/o/r/actions/runs/7)\n")
    assert CliRunner().invoke(app, [*arguments, "--link", "https://x.y"]).exit_code == 0
    assert told.read_text().endswith("(https://x.y)\n")


@pytest.mark.parametrize("option", [["--github"], ["--comment", "c.md"], ["--junit", "j.xml"]])
def test_many_versions_have_no_place_in_a_pull_request(pair, tmp_path, monkeypatch, option):
    monkeypatch.chdir(tmp_path)
    third = answers(tmp_path / "third.parquet", 20)
    done = CliRunner().invoke(app, ["compare", *map(str, pair), str(third), *option])
    assert f"{option[0]} is for two versions, and there are 3" in str(done.exception)


def test_scores_fall_and_are_not_wrong(tmp_path):
    ids = [f"e{n}" for n in range(400)]
    sides = (Predictions(ids, score=[value] * 400) for value in (0.9, 0.8))
    said = comment(compare(*sides))
    assert "**400 scores fell**" in said and "| id | old_score | new_score |" in said
    assert "are wrong now" not in said


def test_answers_that_are_spelled_otherwise_are_no_green_report(tmp_path):
    old = answers(tmp_path / "old.parquet", 0)
    label = ["yes"] * 400
    frame = pl.DataFrame(
        {"id": [f"e{n}" for n in range(400)], "label": label, "prediction": "Yes "}
    )
    frame.write_parquet(tmp_path / "new.parquet")
    found = compare(old, tmp_path / "new.parquet", policy={"max_nfr_observed": "100%"})
    assert (found.verdict, found.status) == ("answers are spelled otherwise", "too little data")
    assert ElementTree.fromstring(junit(found)).attrib["errors"] == "1"
    assert annotations(found)[-1].startswith("::warning")


def test_a_policy_of_two_files_is_none_of_folders(suites, tmp_path):
    with pytest.raises(ValueError, match="tiers"):
        gate(*suites, Policy.of(max_nfr="50%"))
    with pytest.raises(FileNotFoundError, match="absent.toml"):
        gate(*suites, tmp_path / "absent.toml")
