"""Several answers to each example: the example is the unit, and noise is told from what an
update did.
"""

import numpy as np
import polars as pl
import pytest

from compatkit.compare import compare
from compatkit.compare.flips import flip_rows
from compatkit.compare.policy import held_against, keeps
from compatkit.compare.pull_requests import comment
from compatkit.compare.repeats import (
    Counts,
    flaky,
    measures,
    noise_floor,
    rate_interval,
    sign_flip_p,
    summary,
    t_interval,
    without_repeat,
)
from compatkit.compare.report import compare_versions
from compatkit.compare.verdict import verdict
from compatkit.metrics import FlipCounts, clopper_pearson


def counts(repeats, old, new):
    return Counts(np.full(len(old), repeats), np.array(old), np.array(new))


def table(path, right, ids=None, **columns):
    """A file of (E, r) booleans, right or not, with a column `repeat`."""
    examples, repeats = right.shape
    names = [f"e{n}" for n in range(examples)] if ids is None else ids
    frame = {
        "id": np.repeat(names, repeats),
        "repeat": np.tile(np.arange(repeats), examples),
        "label": ["yes"] * right.size,
        "prediction": np.where(right.ravel(), "yes", "no"),
    }
    pl.DataFrame(frame | columns).write_csv(path)
    return path


def test_thirty_of_two_hundred_that_fall_are_worse(tmp_path):
    old = np.ones((200, 4), dtype=bool)
    new = old.copy()
    new[:30, 1:] = False
    found = compare(table(tmp_path / "old.csv", old), table(tmp_path / "new.csv", new))
    assert found.verdict == "worse" and found.summary["examples"] == 200
    whole = found.summary["overall"]
    assert whole["nfr"]["value"] == pytest.approx(30 * 0.75 / 200)
    assert whole["accuracy_gain"]["value"] == pytest.approx(-0.1125)
    assert whole["repeats"]["broken"] == 30 and whole["repeats"]["flaky"] == 0


def test_identical_systems_raise_few_false_alarms():
    draw, alarms, trials = np.random.default_rng(20), 0, 1_000
    for _ in range(trials):
        chance = draw.beta(0.5, 0.5, 60)
        old, new = (draw.binomial(4, chance) for _ in range(2))
        found = measures(counts(4, old, new))
        gain = found["accuracy_gain"]
        outside = gain["high"] < 0 or gain["low"] > 0
        assert outside == (found["mcnemar"]["value"] <= 0.05)  # test and interval agree
        alarms += outside
    assert alarms <= 0.05 * trials


@pytest.mark.parametrize("examples, repeats, law", [(60, 4, 0.5), (300, 2, 2.0)])
def test_identical_systems_seldom_get_a_bad_word(examples, repeats, law):
    draw, told, limited, trials = np.random.default_rng(7), [], [], 300
    for _ in range(trials):
        chance = draw.beta(law, law, examples)
        found = counts(repeats, *(draw.binomial(repeats, chance) for _ in range(2)))
        whole = measures(found) | {"repeats": summary(found)}
        told.append(verdict(whole)[0])
        limited.append(keeps(held_against(whole), 0.01))
        assert whole["nfr"]["low"] > 0.01  # which alone would condemn every one of them
    bad = [word for word in told if "regresses" in word or word == "worse"]
    assert len(bad) <= 0.05 * trials and limited.count(False) <= 0.025 * trials


def test_what_lies_beyond_the_noise():
    found = measures(counts(4, [4, 2, 4, 0], [1, 2, 4, 4]))["nfr_beyond_noise"]
    assert found["value"] == pytest.approx((3 / 4 + (1 / 4 - 1 / 3)) / 4)
    sure = measures(counts(4, [4] * 200, [0] * 10 + [4] * 190))  # the old version is never in doubt
    assert sure["nfr_beyond_noise"]["value"] == sure["nfr"]["value"] == 0.05
    assert sure["nfr_beyond_noise"]["high"] >= sure["nfr"]["high"]
    assert "nfr_beyond_noise" not in measures(counts(1, [1, 0, 1], [1, 1, 0]))


def partly_repeated(folder, repeated, single, fallen, column="repeat"):
    """Paths of old and new: `fallen` of the single examples flip, the repeated ones never do."""
    rows = [(f"r{n}", 1 + k, True) for n in range(repeated) for k in range(2)]
    rows += [(f"s{n}", 1, n >= fallen) for n in range(single)]
    ids, repeats, right = zip(*rows)
    for name in ("old", "new"):
        answer = np.where(right, "yes", "no") if name == "new" else ["yes"] * len(rows)
        frame = {"id": ids, column: repeats, "label": ["yes"] * len(rows), "prediction": answer}
        pl.DataFrame(frame).write_csv(folder / f"{name}.csv")
    return folder / "old.csv", folder / "new.csv"


@pytest.mark.parametrize(
    "repeated, single, fallen",
    [(500, 500, 105), (1, 1_000, 40), (1_000, 1, 0), (700, 300, 100), (880, 120, 60), (1, 60, 10)],
)
def test_flips_of_single_answers_are_never_lost(tmp_path, repeated, single, fallen):
    paths = partly_repeated(tmp_path, repeated, single, fallen)
    found = compare(*paths, policy={"max_nfr": "1%"})
    judged = held_against(found.summary["overall"])
    assert judged["n"] == repeated + single
    assert judged["value"] == pytest.approx(fallen / (repeated + single))
    assert found.status == ("failed" if fallen else "holds")
    assert (found.verdict == "worse") == bool(fallen)


def test_nearly_all_repeated_are_corrected_and_the_others_count_in_full():
    nearly = Counts(np.array([4] * 19 + [1]), np.array([2] * 19 + [1]), np.array([2] * 19 + [0]))
    found = measures(nearly)
    assert found["nfr_beyond_noise"]["n"] == found["nfr"]["n"] == 20
    assert found["nfr_beyond_noise"]["value"] == pytest.approx((19 * (1 / 4 - 1 / 3) + 1) / 20)
    few = Counts(
        np.array([4] * 8 + [1] * 2), np.array([2] * 8 + [1] * 2), np.array([2] * 8 + [0] * 2)
    )
    assert "nfr_beyond_noise" not in measures(few)


def test_a_slice_of_single_answers_fails_by_itself(tmp_path):
    paths = partly_repeated(tmp_path, 1_900, 100, 30)
    for path in paths:
        frame = pl.read_csv(path)
        group = pl.when(pl.col("id").str.starts_with("s")).then(pl.lit("single"))
        frame.with_columns(group.otherwise(pl.lit("repeated")).alias("kind")).write_csv(path)
    found = compare(*paths, policy={"slice": [{"each": "kind", "max_nfr": "2%"}]})
    fate = {one["where"]["kind"]: one["status"] for one in found.summary["gate"]["conditions"]}
    assert fate == {"repeated": "holds", "single": "failed"}


def test_the_notes_say_whether_noise_was_taken_off(tmp_path):
    for repeated, words in ((20, "NFR itself is held"), (1_000, "NFR less that noise is held")):
        notes = " ".join(compare(*partly_repeated(tmp_path, repeated, 10, 2)).summary["notes"])
        assert words in notes


def test_spellings_are_mended_answer_by_answer(tmp_path):
    draw = np.random.default_rng(2)
    old, new = (draw.random((60, 3)) < 0.8 for _ in range(2))
    paths = table(tmp_path / "old.csv", old), table(tmp_path / "new.csv", new)
    loud = tmp_path / "loud.csv"
    loud.write_text(paths[1].read_text().replace(",yes\n", ",YES\n"))
    plain, mended = compare(*paths), compare(paths[0], loud, normalize=True)
    for name in ("nfr", "pfr", "accuracy_gain", "nfr_beyond_noise", "repeats"):
        assert mended.summary["overall"][name] == plain.summary["overall"][name]
    assert compare(paths[0], loud).verdict == "answers are spelled otherwise"


@pytest.mark.parametrize("numbers, told", [("seed{}", "seed0"), ("{}.5", "0.5")])
def test_repeats_without_a_number_are_refused(tmp_path, numbers, told):
    right = np.ones((5, 2), dtype=bool)
    repeat = [numbers.format(n) for n in range(2)] * 5
    paths = [table(tmp_path / f"{n}.csv", right, repeat=repeat) for n in "ab"]
    with pytest.raises(ValueError, match=rf"a.csv: `repeat` must number .* holds '{told}'"):
        compare(*paths)


def test_repeats_may_be_written_as_floats(tmp_path):
    right = np.ones((50, 2), dtype=bool)
    paths = [table(tmp_path / "a.csv", right)]
    paths.append(table(tmp_path / "b.csv", right, repeat=[0.0, 1.0] * 50))
    assert compare(*paths).summary["examples"] == 50


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl", "json"])
@pytest.mark.parametrize("answers", ["prediction", "logits"])
def test_every_kind_of_table_may_hold_repeats(tmp_path, ending, answers):
    right = np.ones((50, 2), dtype=bool)
    right[:10, 1] = False
    frame = pl.read_csv(table(tmp_path / "t.csv", right))
    if answers == "logits":
        good = (pl.col("prediction") == "yes").cast(pl.Float64)
        frame = frame.select(
            "id", "repeat", "label", (1 - good).alias("logit_no"), good.alias("logit_yes")
        )
    write = {"csv": "write_csv", "parquet": "write_parquet", "jsonl": "write_ndjson"}
    paths = [tmp_path / f"{name}.{ending}" for name in ("old", "new")]
    for path in paths:
        getattr(frame, write.get(ending, "write_json"))(path)
    whole = compare(*paths).summary["overall"]
    assert whole["repeats"]["flaky"] == 10 and whole["accuracy_old"]["value"] == 0.9


def test_a_pass_beyond_the_noise_is_seldom_wrong():
    draw, passed, trials = np.random.default_rng(3), 0, 400
    for _ in range(trials):  # 1.2 % break for good, among examples that are half in doubt
        old = draw.beta(0.7, 0.7, 3_000)
        old[:36] = 1.0
        new = np.r_[np.zeros(36), old[36:]]
        sides = (draw.binomial(3, chance) for chance in (old, new))
        passed += keeps(held_against(measures(counts(3, *sides))), 0.01) is True
    assert passed <= 0.025 * trials


def test_gate_verdict_and_page_speak_of_the_same_number(tmp_path):
    draw = np.random.default_rng(1)
    chance = np.r_[draw.uniform(0.2, 0.9, 2_000), np.ones(2_000)]
    sides = [draw.random((4_000, 4)) < chance[:, None] for _ in range(2)]
    group = np.repeat(["doubtful", "sure"], 8_000)
    paths = [table(tmp_path / f"{n}.csv", right, group=group) for n, right in enumerate(sides)]
    limits = {"max_nfr": "2%", "slice": [{"each": "group", "max_nfr": "4%"}]}
    found = compare(*paths, policy=limits)
    whole = found.summary["overall"]
    assert whole["nfr"]["low"] > 0.05 and whole["nfr_beyond_noise"]["high"] < 0.02
    assert found.status == "holds" and found.verdict == "no measurable difference"
    assert [one["where"].get("group", "") for one in found.summary["gate"]["conditions"]] == [
        "",
        "doubtful",
        "sure",
    ]
    assert all("beyond noise" in one["reason"] for one in found.summary["gate"]["conditions"])
    assert "second run of the old version" in found.reason
    for text in (str(found), found.to_markdown(), found.to_html()):
        assert "NFR beyond noise" in text
    observed = compare(*paths, policy={"max_nfr_observed": "2%"})
    assert observed.status == "failed"  # a statement about these very answers


def test_the_interval_holds_what_it_says():
    draw, held, trials = np.random.default_rng(4), 0, 1_000
    for _ in range(trials):
        chance = draw.beta(1, 1, 80)
        fallen = np.clip(chance - 0.2, 0, 1)
        old, new = draw.binomial(4, chance), draw.binomial(4, fallen)
        gain = measures(counts(4, old, new))["accuracy_gain"]
        held += (
            gain["low"]
            <= (np.clip(np.linspace(0, 1, 100_001) - 0.2, 0, 1).mean() - 0.5)
            <= gain["high"]
        )
    assert held >= 0.93 * trials


def test_one_repeat_gives_the_same_as_none_to_the_digit(tmp_path):
    draw = np.random.default_rng(0)
    plain, single = [], []
    for name in ("old", "new"):
        right = draw.random((300, 1)) < 0.8
        single.append(table(tmp_path / f"{name}.csv", right))
        frame = pl.read_csv(single[-1]).drop("repeat")
        (tmp_path / "plain").mkdir(exist_ok=True)
        frame.write_csv(tmp_path / "plain" / f"{name}.csv")
        plain.append(tmp_path / "plain" / f"{name}.csv")
    assert compare(*single).summary["overall"] == compare(*plain).summary["overall"]
    assert compare(*single).summary["verdict"] == compare(*plain).summary["verdict"]


def test_with_one_repeat_the_formulas_are_those_of_metrics():
    draw = np.random.default_rng(1)
    old, new = draw.integers(0, 2, (2, 200))
    found = measures(counts(1, old, new))
    plain = FlipCounts.of(np.ones(200, dtype=int), old, new)
    assert found["nfr"]["value"] == pytest.approx(plain.nfr)
    assert found["mcnemar"]["value"] == pytest.approx(plain.mcnemar(), rel=1e-9)
    assert (found["nfr"]["low"], found["nfr"]["high"]) == pytest.approx(
        clopper_pearson(plain.negative, 200, 0.95)
    )


def test_signs_by_counting_all_of_them():
    draw = np.random.default_rng(2)
    for _ in range(20):
        whole = draw.integers(-3, 4, 9)
        signs = 1 - 2 * ((np.arange(512)[:, None] >> np.arange(9)) & 1)
        sums = np.abs((signs * np.abs(whole)).sum(axis=1))
        assert sign_flip_p(whole / 3, 3) == pytest.approx((sums >= abs(whole.sum())).mean())


def test_very_many_differences_are_taken_as_normal():
    few = np.r_[np.ones(40_000), -np.ones(41_000)]
    many = np.r_[np.ones(4_000_000), -np.ones(4_006_000)]
    assert 0 < sign_flip_p(many) < 0.05 and 0 < sign_flip_p(few) < 0.001


def test_the_noise_floor_is_what_two_repeats_show():
    draw = np.random.default_rng(3)
    right = draw.random((400, 5)) < draw.random((400, 1))
    c = right.sum(axis=1)
    pairs = [(right[:, i] & ~right[:, j]).mean() for i in range(5) for j in range(5) if i != j]
    assert noise_floor(c, np.full(400, 5)) == pytest.approx(np.mean(pairs))
    assert np.isnan(noise_floor(c, np.ones(400, dtype=int)))


def test_what_is_flaky():
    found = flaky(counts(4, [4, 4, 4, 2, 0, 4], [4, 3, 1, 2, 1, 0]))
    assert found.tolist() == [False, True, False, True, True, False]


def test_limits_of_the_intervals():
    assert rate_interval(0.0, 50)[0] == 0 and rate_interval(1.0, 50)[1] == 1
    low, high, p = t_interval(np.zeros(400), 1.0)
    assert low < 0 < high < 0.01 and p == 1
    assert t_interval(np.array([0.5]), 1.0) == (-1.0, 1.0, 1.0)
    narrow, wide = (
        measures(counts(4, [4, 2, 3], [1, 2, 4]), level)["nfr"] for level in (0.5, 0.99)
    )
    assert wide["low"] < narrow["low"] and wide["high"] > narrow["high"]


def test_flips_are_shown_by_example_and_flaky_ones_apart(tmp_path):
    old, new = np.ones((100, 3), dtype=bool), np.ones((100, 3), dtype=bool)
    new[0], new[1, 1:], old[2, 0], new[2, :2] = False, False, False, False
    paths = table(tmp_path / "old.csv", old), table(tmp_path / "new.csv", new)
    found = compare(*paths, slices=["stability"])
    rows = {row["id"]: row for row in found.flips().to_dict("records")}
    assert rows["e0"]["right (new)"] == "0/3" and rows["e0"]["stability"] == "stable"
    assert rows["e1"]["right (new)"] == "1/3" and rows["e2"]["stability"] == "flaky"
    assert {one["where"]["stability"] for one in found.summary["slices"]} == {"stable", "flaky"}


def test_repeats_that_differ_are_refused(tmp_path):
    old, new = (np.ones((5, repeats), dtype=bool) for repeats in (2, 3))
    with pytest.raises(ValueError, match=r"different examples \(ids .*#2"):
        compare(table(tmp_path / "old.csv", old), table(tmp_path / "new.csv", new))


def test_ids_with_a_hash_stay_what_they_are(tmp_path):
    right = np.ones((3, 2), dtype=bool)
    wrong = ~right
    paths = [
        table(tmp_path / f"{name}.csv", side, ids=["a#b", "c", "d"])
        for name, side in (("old", right), ("new", wrong))
    ]
    assert sorted(compare(*paths).flips()["id"]) == ["a#b", "c", "d"]
    assert without_repeat("a#b") == "a#b" and without_repeat("a#b#12") == "a#b"


def test_page_text_and_comment_list_the_updates_flips_without_the_flaky_ones(tmp_path):
    old = np.ones((40, 4), dtype=bool)
    new = old.copy()
    new[0, 1:] = False  # 4/4 to 1/4: the update's
    old[1, 3], new[1, 1:] = False, False  # 3/4 to 1/4: such an example flips by itself
    paths = table(tmp_path / "old.csv", old), table(tmp_path / "new.csv", new)
    found = compare(*paths)
    assert sorted(found.flips()["id"]) == ["e0", "e1"]
    assert [row["id"] for row in flip_rows(found.pair, by_themselves=False)[0]] == ["e0"]
    page = found.to_html()
    assert ">e0<" in page and ">e1<" not in page
    for text in (str(found), comment(found)):
        assert "e0" in text and "e1" not in text and "without the flaky ones" in text


def test_notes_on_noise_name_their_update(tmp_path):
    draw = np.random.default_rng(6)
    paths = [table(tmp_path / f"{n}.csv", draw.random((40, 3)) < 0.7) for n in "abc"]
    notes = [note for note in compare_versions(paths).notes if "Noise floor" in note]
    assert [note.partition(":")[0] for note in notes] == ["a → b", "a → c"]
