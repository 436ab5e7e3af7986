"""Folders of tasks: what belongs together, what is missing, tiers, families of tests, one
verdict.
"""

import json
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

from compatkit.cli import app
from compatkit.compare.suites import (
    compare_suites,
    is_suite,
    load_tiers,
    tasks_of,
    tier_for,
    tiers_of,
)

LOGS = Path(__file__).parent / "inspect_logs"


def folder(path, examples=400, **wrong):
    """A suite with a table for each task, its first `wrong` answers wrong."""
    path.mkdir()
    for name, count in wrong.items():
        said = ["no"] * count + ["yes"] * (examples - count)
        frame = {"id": range(examples), "label": ["yes"] * examples, "prediction": said}
        pl.DataFrame(frame).write_csv(path / f"{name}.csv")
    return path


@pytest.fixture
def suites(tmp_path):
    old = folder(tmp_path / "old", sums=10, quiz=20, poems=5)
    return old, folder(tmp_path / "new", sums=11, quiz=60, poems=5)


def test_one_task_that_fell_fails_the_suite_and_stands_first(suites):
    suite = compare_suites(*suites)
    assert suite.status == "failed" and suite.exit_status == 1
    assert suite.reason.startswith("1 of 3 required tasks do not hold. quiz:")
    assert [one.status for one in suite.tasks.values()].count("holds") == 2
    assert str(suite).index("quiz") < str(suite).index("sums")
    assert suite.to_dict()["tasks"]["quiz"]["p_worse"] < 1e-6


def test_an_advisory_task_is_told_and_does_not_fail(suites):
    suite = compare_suites(*suites, {"advisory": {"tasks": ["qu*"]}})
    assert suite.status == "holds" and "Advisory tasks that do not hold: 'quiz'" in suite.reason


def test_a_missing_task_is_named(suites):
    (suites[1] / "poems.csv").unlink()
    reason = compare_suites(*suites).reason
    assert reason.startswith("required tasks are missing in the new folder: 'poems'. 1 of 2 requ")
    suite = compare_suites(suites[1], suites[0], {"advisory": {"tasks": ["quiz"]}})
    assert "Only the new folder has 'poems'" in suite.reason
    suite = compare_suites(*suites, {"advisory": {"tasks": ["quiz", "poems"]}})
    assert suite.status == "holds"


def test_limits_of_tiers(suites):
    policy = {"required": {"tasks": ["*"], "max_relative_loss": "5%"}}
    suite = compare_suites(*suites, policy)
    assert suite.tasks["quiz"].reason == "it lost 10.5% of its old accuracy, the limit is 5.0%"
    assert compare_suites(*suites, {"max_nfr": "20%"}).status == "holds"
    suite = compare_suites(*suites, {"max_nfr": "4%"})
    assert (
        suite.tasks["quiz"].status == "failed" and "limit of 4.00 %" in suite.tasks["quiz"].reason
    )


def test_too_little_data_is_no_pass(tmp_path):
    old, new = (folder(tmp_path / name, 20, sums=0) for name in ("old", "new"))
    suite = compare_suites(old, new, {"max_nfr": "1%"})
    assert suite.status == "too little data" and suite.exit_status == 3


def test_pooled_by_examples_and_by_task(tmp_path):
    old, new = folder(tmp_path / "old", 100, a=0), folder(tmp_path / "new", 100, a=10)
    for side, wrong in ((old, 0), (new, 0)):
        folder(side / "x", 300, b=wrong)
        (side / "x" / "b.csv").rename(side / "b.csv")
    found = compare_suites(old, new).together
    assert found["examples"]["nfr"]["value"] == pytest.approx(10 / 400)
    assert found["tasks"]["nfr"]["value"] == pytest.approx(0.05)
    assert (
        found["tasks"]["accuracy_gain"]["low"] < -0.05 < found["tasks"]["accuracy_gain"]["high"] < 0
    )


def test_a_loss_that_is_spread_fails_though_no_task_does(tmp_path):
    sides = [
        folder(tmp_path / name, **dict.fromkeys("abcde", wrong))
        for name, wrong in (("old", 10), ("new", 16))
    ]
    suite = compare_suites(*sides)
    assert suite.status == "failed" and "together became worse (union test" in suite.reason
    assert {one.status for one in suite.tasks.values()} == {"holds"}
    assert suite.to_dict()["no_task_worse"]["required"]["union"] < 1e-6
    assert "largest drop" in str(suite) and "largest drop" in suite.to_markdown()
    # where a limit is set, it decides; advisory tasks fail nothing and are a family of their own
    assert compare_suites(*sides, {"max_nfr": "10%"}).status == "holds"
    suite = compare_suites(*sides, {"advisory": {"tasks": ["[a-d]"]}})
    assert list(suite.evidence) == ["required", "advisory"] and suite.tasks["e"].status == "worse"
    assert compare_suites(*sides, {"advisory": {"tasks": ["*"]}}).status == "holds"
    suite = compare_suites(*sides, {"required": {"tasks": ["*"], "max_relative_loss": "5%"}})
    assert suite.status == "holds"


def test_what_a_suite_is(tmp_path, suites):
    assert is_suite(suites[0]) and not is_suite(suites[0] / "sums.csv")
    samples = tmp_path / "harness"
    samples.mkdir()
    (samples / "samples_sums_2026.jsonl").write_text("{}")
    assert not is_suite(samples)


def test_logs_are_matched_by_the_task_that_they_name(tmp_path):
    for side, name in (("old", "old"), ("new", "new")):
        (tmp_path / side).mkdir()
        (tmp_path / side / f"2026_{side}.eval").write_bytes((LOGS / f"{name}.eval").read_bytes())
    assert list(tasks_of(tmp_path / "old")) == ["sums"]
    assert list(compare_suites(tmp_path / "old", tmp_path / "new").tasks) == ["sums"]
    (tmp_path / "old" / "again.eval").write_bytes((LOGS / "old.eval").read_bytes())
    with pytest.raises(ValueError, match="holds the task 'sums' twice"):
        tasks_of(tmp_path / "old")


def test_tiers_are_read_and_refused(tmp_path):
    path = tmp_path / "suite.toml"
    path.write_text('[required]\ntasks = ["a"]\nmax_nfr = "1%"\n[advisory]\ntasks = ["*"]\n')
    tiers = load_tiers(path)
    assert tier_for("a", tiers).policy.rules and tier_for("b", tiers).name == "advisory"
    for text, message in (
        ('max_nrf = "1%"', "max_nfr"),
        ("[required]\ntasks = 3", "must be a list"),
        ('required = "a"', "must be a table"),
        ("[required", "suite.toml"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            load_tiers(path)
    assert tier_for("x", tiers_of({"advisory": {"tasks": ["x"]}})).name == "advisory"


def test_no_task_in_both(tmp_path):
    with pytest.raises(ValueError, match="share no task"):
        compare_suites(folder(tmp_path / "old", a=0), folder(tmp_path / "new", b=0))


def test_the_command(suites):
    done = CliRunner().invoke(app, ["compare", *map(str, suites), "--json"])
    assert done.exit_code == 0 or isinstance(done.exception, SystemExit)
    assert json.loads(done.output)["status"] == "failed"


def test_a_loss_that_may_be_chance_is_no_pass(tmp_path):
    old, new = folder(tmp_path / "old", 6, sums=0), folder(tmp_path / "new", 6, sums=3)
    suite = compare_suites(old, new)
    assert suite.status == "too little data" and suite.exit_status == 3
    assert "lost 50.00 % of their answers (union test p = 0.13)" in suite.reason
    assert compare_suites(old, old).status == "holds"
