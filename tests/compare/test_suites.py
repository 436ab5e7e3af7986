"""Folders of tasks: what belongs together, what is missing, tiers, families of tests, one
verdict.
"""

import gzip
import json
from itertools import product
from math import log
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from scipy.stats import binom, binomtest, chi2

from compatkit.cli import app
from compatkit.compare import compare
from compatkit.compare.repeats import Counts, RandomSigns
from compatkit.compare.suites import (
    Losses,
    are_suites,
    compare_suites,
    holm,
    is_suite,
    load_tiers,
    losses_of,
    p_by_task,
    p_worse,
    tasks_of,
    tier_for,
    tiers_of,
    union_test,
)
from compatkit.predictions import Predictions

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


def test_the_name_of_a_task_is_text_alone(tmp_path):
    name = "@team [x](y) \x1b[31m"
    sides = [folder(tmp_path / side, **{name: wrong}) for side, wrong in (("a", 4), ("b", 90))]
    suite = compare_suites(*sides)
    assert "required tasks do not hold" in suite.reason and name in suite.reason
    assert "\x1b" not in str(suite)
    assert not {"@", "\x1b"} & set(suite.to_markdown()) and "[x](" not in suite.to_markdown()


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
    assert suite.tasks["quiz"].reason.startswith("it lost 10.53 % of its old accuracy (interval 7.")
    assert suite.tasks["quiz"].reason.endswith(" %), the limit is 5.00 %")
    assert compare_suites(*suites, {"max_nfr": "20%"}).status == "holds"
    suite = compare_suites(*suites, {"max_nfr": "4%"})
    assert (
        suite.tasks["quiz"].status == "failed" and "limit of 4.00 %" in suite.tasks["quiz"].reason
    )


def test_a_relative_limit_is_judged_by_the_whole_interval(tmp_path):
    old, new = folder(tmp_path / "old", 40, sums=2), folder(tmp_path / "new", 40, sums=2)
    required = {"tasks": ["*"], "max_relative_loss": "5%"}
    assert compare_suites(old, new, {"required": required}).exit_status == 3
    required = {"tasks": ["*"], "max_relative_loss_observed": "5%"}
    assert compare_suites(old, new, {"required": required}).status == "holds"


def test_a_task_called_by_name_that_nobody_has_is_missing(suites):
    suite = compare_suites(*suites, {"required": {"tasks": ["sums", "nope", "x*"]}})
    assert suite.status == "failed"
    assert suite.reason.startswith("required tasks are in neither folder: 'nope'.")
    (suites[1] / "poems.csv").unlink()
    tiers = {"required": {"tasks": ["sums"]}, "advisory": {"tasks": ["*", "other"]}}
    reason = compare_suites(*suites, tiers).reason
    assert "Advisory tasks are missing in the new folder: 'poems'." in reason
    assert "Advisory tasks are in neither folder: 'other'." in reason


def test_a_folder_beside_what_is_none(suites, tmp_path):
    (tmp_path / "bare").mkdir()
    for other, told in (
        (suites[1] / "sums.csv", "is a folder of tasks and .*sums.csv is one file"),
        (tmp_path / "bare", "bare holds neither a file of answers nor a log"),
    ):
        for pair in ((suites[0], other), (other, suites[0])):
            with pytest.raises(ValueError, match=told):
                are_suites(pair)
    assert are_suites(suites) and not are_suites(suites[:1])


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
    with pytest.raises(ValueError, match="'sums'"):
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


# --- tests over several tasks ---------------------------------------------------------------------


def task(negative, positive, same=10):
    """A task with so many flips of each kind."""
    return Losses(np.repeat([1, -1, 0], [negative, positive, same]))


def test_a_task_is_judged_by_the_exact_test_of_mcnemar_with_one_side():
    for negative, positive in ((9, 3), (3, 9), (1, 0), (0, 4), (500, 431)):
        expected = binomtest(negative, negative + positive, alternative="greater").pvalue
        assert p_worse(task(negative, positive)) == pytest.approx(expected, rel=1e-9)
    assert p_worse(task(0, 0)) == 1


def test_the_three_tests_by_other_means():
    flips = [(12, 5), (7, 9), (30, 22), (1, 0)]
    found = union_test([task(*one) for one in flips] + [task(0, 0)])
    negative, positive = np.array(flips).T
    n = negative + positive
    assert found.pooled == pytest.approx(binom.sf(negative.sum() - 1, n.sum(), 0.5))
    p = [binom.sf(b - 1, m, 0.5) for b, m in zip(negative, n)]
    assert found.fisher == pytest.approx(chi2.sf(-2 * sum(map(log, p)), 2 * len(p)))
    draw = np.random.default_rng(0)  # as it is simulated
    z = (negative - positive) / np.sqrt(n)
    simulated = (2 * draw.binomial(n, 0.5, (200_000, len(n))) - n) / np.sqrt(n)
    share = (simulated.max(axis=1) >= z.max() - 1e-9).mean()
    assert found.largest_drop == pytest.approx(share, abs=0.005)
    assert found.union == 3 * min(found[:3])


def test_one_task_has_one_p_and_none_has_no_evidence():
    assert set(union_test([task(9, 3), task(0, 0)])) == {p_worse(task(9, 3))}
    assert set(union_test([])) == {1.0} == set(union_test([task(0, 0)]))


def test_repeats_weigh_what_they_are_of_an_answer():
    whole, unit = Counts(np.array([4, 2]), np.array([4, 0]), np.array([1, 2])).whole_gains()
    assert (whole.tolist(), unit) == ([-3, 4], 4)
    repeated, single = Losses(np.array([3, 3, -1]), 4), task(2, 0, 0)
    sums = [
        sum(sign * size for sign, size in zip(signs, (3, 3, 1, 4, 4)))
        for signs in product((1, -1), repeat=5)
    ]
    expected = np.mean(np.array(sums) >= 3 + 3 - 1 + 4 + 4)
    assert union_test([repeated, single]).pooled == pytest.approx(expected)


def test_scores_are_judged_but_not_pooled_with_answers():
    draw = np.random.default_rng(1)
    ids = [f"e{n}" for n in range(60)]
    old = draw.random(60)
    pair = compare(Predictions(ids, score=old), Predictions(ids, score=old - 0.1)).pair
    fallen = losses_of(pair)
    assert fallen.unit == 0 and p_worse(fallen) < 1e-9
    found = union_test([fallen, task(3, 3)])
    assert found.pooled == p_worse(task(3, 3)) and found.union < 1e-6
    assert union_test([fallen, fallen]).pooled == 1
    many = np.r_[np.full(40_000, 100), np.full(39_000, -100)]
    exact = RandomSigns.of(many // 100)
    assert p_worse(Losses(many, 0)) == pytest.approx(exact.at_least(exact.total), rel=0.02)


def test_false_alarms_of_the_family_and_wrong_names():
    """1,000 suites of four tasks; in the second half one of them is worse and must not make
    another one's name wrong.
    """
    draw, alarms, wrong, found = np.random.default_rng(2), 0, 0, 0
    for number in range(1_000):
        shares = [0.5] * 4 if number < 500 else [0.8, 0.5, 0.5, 0.5]
        tasks = [task((b := draw.binomial(n, q)), n - b) for n, q in zip((9, 20, 40, 60), shares)]
        together = union_test(tasks)
        names = p_by_task(tasks, together)
        assert all(p >= together.union for p in names)
        alarms += number < 500 and together.union <= 0.05
        wrong += min(names[1:]) <= 0.05
        found += number >= 500 and together.union <= 0.05
    assert alarms <= 0.05 * 500 and wrong <= 0.05 * 1_000 and found > 0


def test_a_loss_on_every_task_is_found_together_and_one_on_a_single_task_is_named():
    spread = [task(12, 5)] * 6
    assert union_test(spread).union < 0.001 and min(p_by_task(spread, union_test(spread))) > 0.05
    single = [task(25, 3), *[task(9, 9)] * 5]
    names = p_by_task(single, union_test(single))
    assert names[0] <= 0.05 < min(names[1:])


def test_holm_keeps_false_alarms_of_the_family_low():
    draw = np.random.default_rng(0)
    alarms = [min(holm(draw.random(20).tolist())) <= 0.05 for _ in range(2_000)]
    assert np.mean(alarms) < 0.065
    assert holm([0.01, 0.04, 0.03]) == [0.03, 0.06, 0.06]


def test_no_table_is_passed_over_for_its_kind_or_its_name(tmp_path):
    for side in ("old", "new"):
        folder(tmp_path / side, sums=10, results_x=10)
        table = pl.read_csv(tmp_path / side / "sums.csv")
        table.write_csv(tmp_path / side / "quiz.tsv", separator="\t")
        (tmp_path / side / "results_2026.json").write_text("{}")
    found = compare_suites(tmp_path / "old", tmp_path / "new")
    assert sorted(found.tasks) == ["quiz", "results_x", "sums"]


def test_packed_and_json_tables_are_tasks(suites):
    before, after = (tasks_of(folder) for folder in suites)
    for folder in suites:
        packed = gzip.compress((folder / "sums.csv").read_bytes())
        (folder / "sums.csv.gz").write_bytes(packed)
        rows = pl.read_csv(folder / "quiz.csv")
        (folder / "quiz.json").write_text(json.dumps(rows.to_dicts()))
        (folder / "sums.csv").unlink()
        (folder / "quiz.csv").unlink()
        (folder / "settings.json").write_text('{"limit": 400}')  # a tool's own, and no table
        (folder / "notes.txt.gz").write_bytes(gzip.compress(b"none"))
    assert tasks_of(suites[0]).keys() == before.keys() == after.keys()
    suite = compare_suites(*suites)
    assert suite.status == "failed" and suite.tasks["sums"].comparison.pair.old.shape == (400,)
    assert suite.reason.startswith("1 of 3 required tasks do not hold. quiz:")
    (suites[1] / "sums.csv.gz").write_bytes(packed[:40])
    with pytest.raises(ValueError, match="sums.csv"):
        compare_suites(*suites)


def test_a_task_that_lies_there_packed_and_plain_is_there_twice(suites):
    packed = gzip.compress((suites[0] / "sums.csv").read_bytes())
    (suites[0] / "sums.csv.gz").write_bytes(packed)
    with pytest.raises(ValueError, match="'sums'.*sums.csv"):
        tasks_of(suites[0])


def test_a_sure_loss_below_the_margin_fails_no_suite(tmp_path):
    sides = [
        folder(tmp_path / name, 50_000, a=wrong, b=wrong)
        for name, wrong in (("old", 100), ("new", 160))
    ]
    assert compare_suites(*sides).status == "holds"
    assert compare_suites(*sides, margin=0.001).status == "failed"


def test_a_task_that_is_too_hard_is_compared_and_nothing_but_such_is_refused(tmp_path):
    ids, label = [f"e{n}" for n in range(60)], [n % 2 for n in range(60)]
    wrong = [1 - one for one in label]
    for side in ("old", "new"):
        for suite, task, given in (
            ("both", "easy", label),
            ("both", "hard", wrong),
            ("one", "hard", wrong),
        ):
            folder = tmp_path / suite / side
            folder.mkdir(parents=True, exist_ok=True)
            Predictions(ids, label, given).save(folder / f"{task}.parquet")
    assert set(compare_suites(*(tmp_path / "both" / side for side in ("old", "new"))).tasks) == {
        "easy",
        "hard",
    }
    with pytest.raises(ValueError, match="1 tasks"):
        compare_suites(*(tmp_path / "one" / side for side in ("old", "new")))


@pytest.mark.parametrize("option", [("--on-changed", "compare"), ("--scorer", "x"), ("--limit", 5)])
def test_options_without_effect_on_tables_are_refused(tmp_path, option):
    for side in ("old", "new"):
        (tmp_path / side).mkdir()
        for task in "ab":
            (tmp_path / side / f"{task}.csv").write_text("id,label,prediction\n1,a,a\n2,a,b\n")
    files = [str(tmp_path / side) for side in ("old", "new")]
    extra = ["--json"] if "--limit" in option else []
    done = CliRunner().invoke(app, ["compare", *files, *map(str, option), *extra])
    assert done.exit_code == 1 and option[0] in str(done.exception)


def test_what_every_task_shares_is_said_once(tmp_path):
    for side, said in (("old", "aaab"), ("new", "aabb")):
        (tmp_path / side).mkdir()
        rows = "".join(f"{n},a,{one}\n" for n, one in enumerate(said))
        for task in "xy":
            (tmp_path / side / f"{task}.csv").write_text("task_id,gold,response\n" + rows)
    found = compare_suites(tmp_path / "old", tmp_path / "new")
    told = "Taken by their names: 'task_id' for `id`"
    assert str(found).count(told) == 1
    assert found.to_markdown().count("Taken by their names") == 1
    assert found.to_dict()["tasks"]["x"]["judged_by"] == "`response` against `gold`"
