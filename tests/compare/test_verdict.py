"""One word for an update, never a pass on too little data, and never silent about flips."""

import json

import numpy as np
import pytest
from made_pairs import pair_of, pair_with, random_pair, scored_pair
from scipy import stats

from compatkit.compare.estimates import (
    about,
    examples_for_equality,
    examples_for_gain,
    examples_for_rate,
    measures,
    overall,
    score_measures,
)
from compatkit.compare.pair import Pair
from compatkit.compare.policy import Policy, apply_policy
from compatkit.compare.report import compare
from compatkit.compare.verdict import (
    VERDICTS,
    Settings,
    margin_in_units,
    misspelled,
    normalized,
    summarize,
    verdict,
)
from compatkit.metrics import MEASURES, FlipCounts
from compatkit.predictions import Predictions
from compatkit.support.messages import normal_form

# --- the verdict ----------------------------------------------------------------------------------

TABLE = [  # both right, negative, positive, both wrong: the word
    ((850, 2, 60, 88), "better and compatible"),
    ((9000, 60, 400, 540), "better and compatible"),
    ((850, 20, 60, 70), "better but regresses"),
    (
        (90_000, 8000, 8050, 950),
        "regresses without measurable gain",
    ),  # as accurate, and eight points flip
    (
        (700, 45, 45, 210),
        "regresses without measurable gain",
    ),  # one point is not excluded, but 4.5 % flip
    ((10, 4, 20, 2), "better but regresses"),  # few examples, but certainly above 1 %
    ((850, 60, 20, 70), "worse"),
    ((4, 12, 0, 4), "worse"),
    ((8500, 70, 80, 1350), "no measurable difference"),
    ((8500, 95, 85, 1320), "too little data"),  # as accurate; .95 % may be beyond the tolerance
    ((99_000, 0, 0, 1000), "no measurable difference"),
    ((850, 14, 17, 119), "too little data"),
    ((15, 0, 0, 5), "too little data"),
    ((300, 0, 0, 60), "too little data"),
    ((0, 0, 20, 0), "too little data"),  # surely better, but 0 of 20 says nothing about 1 %
    ((200, 0, 25, 25), "too little data"),
    ((90_000, 980, 4000, 5020), "too little data"),  # .98 % with an interval around 1 %
    ((90_000, 1030, 4000, 4970), "too little data"),  # 1.03 % with an interval around 1 %
    ((90_000, 1100, 4000, 4900), "better but regresses"),
    ((50, 0, 5, 45), "too little data"),  # Tango's interval excludes 0, the exact test does not
]


@pytest.mark.parametrize("counts, word", TABLE)
def test_the_table_of_verdicts(counts, word):
    found = measures(FlipCounts(*counts, 0))
    assert verdict(found)[0] == word
    reason = verdict(found)[1]
    assert (
        f"{counts[1]:,} of {sum(counts):,}" in reason
        and "  " not in reason
        and reason.endswith(".")
    )


def test_every_word_is_in_the_table():
    assert {word for _, word in TABLE} == set(VERDICTS[:-1])


def test_tolerance_and_margin_move_the_verdict():
    found = measures(FlipCounts(850, 20, 60, 50, 20))
    assert verdict(found, tolerance=0.05)[0] == "better and compatible"
    assert (
        verdict(found, tolerance=0.031)[0] == "better and compatible"
        and verdict(found, tolerance=0.03)[0] == "too little data"
    )
    found = measures(FlipCounts(850, 30, 35, 85, 0))
    assert verdict(found, tolerance=0.06, margin=0.05)[0] == "no measurable difference"


@pytest.mark.parametrize(
    "n, negative, positive, margin, word",
    [
        (1_000_000, 4_200, 3_000, 0.01, "no measurable difference"),  # -.12 points for certain
        (1_000_000, 3_000, 4_200, 0.01, "no measurable difference"),
        (1_000_000, 4_200, 3_000, 0.001, "worse"),
        (1_000_000, 3_000, 4_200, 0.001, "better and compatible"),
        (1_000_000, 42_000, 40_000, 0.01, "regresses without measurable gain"),
        (10_000, 90, 20, 0.01, "too little data"),  # a loss, perhaps of less than a point
        (10_000, 40, 120, 0.01, "too little data"),  # a gain, likewise
        (1_000, 15, 0, 0.01, "worse"),
        (1_000, 15, 0, 0.02, "too little data"),
    ],
)
def test_a_change_below_the_margin_is_neither_better_nor_worse(n, negative, positive, margin, word):
    found = measures(FlipCounts(n - negative - positive, negative, positive, 0, 0))
    assert verdict(found, margin=margin)[0] == word


def test_a_mean_score_that_fell_by_less_than_the_margin_is_not_worse():
    draw = np.random.default_rng(0)
    old = draw.uniform(0.3, 0.7, 100_000)
    found = {"scores": score_measures(old, old - 0.001 + 0.01 * draw.uniform(-1, 1, 100_000))}
    assert found["scores"]["mean_difference"]["high"] < 0
    assert verdict(found)[0] == "no measurable difference"
    assert verdict(found, margin=0.0005)[0] == "worse"


@pytest.mark.parametrize(
    "negative, positive, side", [(90, 20, "a loss"), (20, 90, "a gain"), (50, 50, "Better, equal")]
)
def test_too_little_data_says_what_is_known_of_the_direction(negative, positive, side):
    counts = FlipCounts(10_000 - negative - positive, negative, positive, 0, 0)
    reason = verdict(measures(counts), margin=0.0071 if negative != positive else 0.001)[1]
    assert side in reason and "would show it" in reason


@pytest.mark.parametrize(
    "negative, positive, different",
    [(0.02, 0.05, 0.1), (0.05, 0.08, 0.1), (0, 0.05, 0), (0, 0, 0), (0.03, 0.03, 0)],
)
def test_twenty_examples_are_too_few(negative, positive, different):
    draw = np.random.default_rng(0)
    drawn = draw.multinomial(
        20, [0.8 - negative, negative, positive, 0.2 - positive - different, different], 300
    ).tolist()
    words = [verdict(measures(FlipCounts(*counts)))[0] for counts in set(map(tuple, drawn))]
    assert not {"better and compatible", "no measurable difference"} & set(words)
    few_flips = [
        verdict(measures(FlipCounts(*counts)))[0]
        for counts in set(map(tuple, drawn))
        if counts[1] < 2
    ]
    assert few_flips.count("too little data") >= 0.9 * len(few_flips)


def test_no_sample_that_is_too_small_for_the_tolerance_passes():
    for n in (1, 2, 5, 50, 200, 367):
        for positive in {0, 1, n // 2, n}:
            word = verdict(measures(FlipCounts(n - positive, 0, positive, 0, 0)))[0]
            assert word == "too little data"
    assert verdict(measures(FlipCounts(268, 0, 100, 0, 0)))[0] == "better and compatible"


def test_wrong_passes_are_rare():
    """At the two edges of the rule: no gain, and an NFR at the tolerance; 2.5 % each are
    allowed, plus three standard errors.
    """
    draw = np.random.default_rng(0)
    for negative, positive in ((0.006, 0.006), (0.01, 0.04)):
        drawn = draw.multinomial(4000, [negative, positive, 1 - negative - positive], 500).tolist()
        words, passes = {}, 0
        for b, c, rest in drawn:
            if (b, c) not in words:
                words[b, c] = verdict(measures(FlipCounts(rest, b, c, 0, 0)))[0]
            passes += words[b, c] == "better and compatible"
        assert passes <= 23


@pytest.mark.parametrize(
    "shift, spread, n, word",
    [
        (0.02, 0, 1000, "better and compatible"),
        (0.03, 0.1, 1000, "better but regresses"),
        (-0.03, 0.1, 1000, "worse"),
        (0, 0.1, 4000, "no measurable difference"),
        (0, 0.1, 100, "too little data"),
        (0.05, 0.1, 20, "too little data"),
        (0, 0, 5000, "no measurable difference"),
        (0, 0, 20, "too little data"),
    ],
)
def test_verdicts_of_scores(shift, spread, n, word):
    draw = np.random.default_rng(0)
    old = draw.uniform(0.3, 0.7, n)
    assert (
        verdict({"scores": score_measures(old, old + shift + spread * draw.uniform(-1, 1, n))})[0]
        == word
    )


def test_the_margin_of_scores_is_a_share_of_their_range():
    draw = np.random.default_rng(0)
    old = draw.uniform(0, 1, 3000)
    new = np.clip(old + draw.normal(0, 0.05, 3000), 0, 1)
    assert summarize(scored_pair(old, new))["verdict"]["word"] == "no measurable difference"
    assert (
        summarize(scored_pair(100 * old, 100 * new))["verdict"]["word"]
        == "no measurable difference"
    )


@pytest.mark.parametrize("lowest", [-0.5, 10.0])
def test_the_range_of_scores_is_from_the_lowest_to_the_highest(lowest):
    draw = np.random.default_rng(0)
    old = lowest + draw.uniform(0, 1, 4000)
    new = np.clip(old + draw.normal(0, 0.05, 4000), lowest, lowest + 1)
    words = [
        summarize(scored_pair(old, new), Settings(margin=margin))["verdict"]["word"]
        for margin in (0.001, 0.01)  # the gain's interval ends at 0.0021, and the range is 1
    ]
    assert words == ["too little data", "no measurable difference"]


@pytest.mark.parametrize(
    "low, high, unit",
    [
        *((0, 1, 1), (0, 0.5, 1), (0.5, 1, 1), (0.2, 0.3, 1), (0, 0, 1), (5, 5, 1)),
        *((0, 2, 2), (-0.5, 0.5, 1), (-1, 0, 1), (0.5, 4.5, 4), (40, 45, 5)),
    ],
)
def test_a_margin_of_scores_within_0_and_1_stays_as_it_is(low, high, unit):
    pair = scored_pair(np.array([low, high, low]), np.array([low, low, high]))
    assert margin_in_units(pair, 0.02) == pytest.approx(0.02 * unit)


def test_thirty_scores_must_differ_before_they_decide():
    def word(differing):
        old = np.zeros(1000)
        return verdict({"scores": score_measures(old, old + (np.arange(1000) < differing))})[0]

    assert (word(29), word(30)) == ("too little data", "better and compatible")


# --- what is advised ------------------------------------------------------------------------------


def test_from_thirty_examples_on_a_size_is_advised():
    advised = [verdict(measures(FlipCounts(n - 10, 1, 8, 1, 0)))[1] for n in (29, 30)]
    assert ["would show it" in reason for reason in advised] == [False, True]


def test_the_advised_size_for_flips_follows_from_what_decides():
    """The rate itself, or what lies beyond the old version's noise, whose spread its interval
    tells.
    """
    found = measures(FlipCounts(1850, 24, 60, 66, 0))
    word, reason = verdict(found)
    size = about(examples_for_rate(0.012, 0.01))
    assert word == "too little data" and f"If NFR is 1.20 %, {size} would show it" in reason
    noisy = {"value": 0.03, "low": 0.008, "high": 0.052, "n": 2000}
    found |= {"nfr_beyond_noise": noisy, "repeats": {"noise_floor_old": 0.02}}
    word, reason = verdict(found)
    size = about(examples_for_gain(0.02, 2000 * (0.022 / stats.norm.ppf(0.975)) ** 2))
    assert f"If NFR beyond noise is 3.00 %, {size} would show it" in reason
    for low, high, told in (
        (0.008, 0.052, "may be within or beyond the tolerance"),
        (0.02, 0.04, ", is more than the tolerance"),
        (0.0, 0.008, ", is within the tolerance"),
    ):
        found["nfr_beyond_noise"] = noisy | {"value": (low + high) / 2, "low": low, "high": high}
        assert told in verdict(found)[1]


def test_the_advised_size_for_scores_follows_from_their_spread():
    change = np.random.default_rng(0).normal(0.05, 1, 400)  # no measurable gain
    old = np.full(400, 3.0)  # where the scores lie does not matter
    word, reason = verdict({"scores": score_measures(old, old + change)})
    reach = stats.t.ppf(0.975, 399) / stats.norm.ppf(0.975)
    size = examples_for_gain(change.mean(), change.var(ddof=1) * reach**2)
    # that half of the scores fall decides nothing, so no number of them is asked for
    assert word == "too little data" and f"what it seems, {about(size)} would show it" in reason
    assert size > 400


# --- the whole ------------------------------------------------------------------------------------

ESTIMATE = {"value", "low", "high", "n"}


def plain(value):
    assert (
        isinstance(value, (dict, list, str, int, float, bool, type(None)))
        and type(value).__module__ == "builtins"
    ), value
    for part in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    ):
        plain(part)


def test_the_schema():
    found = summarize(random_pair(0), Settings(("intent",), policy=Policy.of(max_nfr="50%")))
    assert list(found) == [
        "old",
        "new",
        "examples",
        "confidence",
        "judged_by",
        "left_out",
        "notes",
        "verdict",
        "overall",
        "models",
        "changes",
        "classes",
        "slices",
        "tasks",
        "gate",
    ]
    assert set(found["overall"]) == {"counts", *MEASURES, "mcnemar"} and set(found["verdict"]) == {
        "word",
        "reason",
    }
    assert all(set(found["overall"][name]) == ESTIMATE for name in MEASURES) and set(
        found["overall"]["mcnemar"]
    ) == {"value", "n"}
    assert all(
        set(c) == {"n", "accuracy_old", "accuracy_new", "nfr", "pfr"}
        for c in found["classes"].values()
    )
    assert all(
        set(s) == {"where", "n", "share", "negative", "positive", "nfr", "p", "q", "significant"}
        for s in found["slices"]
    )
    assert set(found["gate"]) == {"status", "conditions"}
    assert all(
        set(c) == {"name", "where", "limit", "value", "bound", "status", "reason"}
        for c in found["gate"]["conditions"]
    )
    plain(found)
    json.dumps(found, allow_nan=False)


def test_without_examples_or_anything_to_judge_there_is_no_summary():
    answer = np.zeros(3, dtype=np.int32)
    with pytest.raises(ValueError, match="no examples"):
        summarize(Pair("old", "new", ("a",), answer[:0], answer[:0], answer[:0]))
    with pytest.raises(ValueError, match="neither labels nor scores"):
        summarize(Pair("old", "new", ("a",), answer - 1, answer, answer))


def test_when_a_score_counts_as_changed_is_a_note_of_scores_alone():
    pairs = scored_pair([0.1, 0.2, 0.3], [0.3, 0.2, 0.1]), random_pair(0)
    notes = [" ".join(summarize(pair)["notes"]) for pair in pairs]
    assert ["counts as fallen or risen" in note for note in notes] == [True, False]


def test_the_schema_of_scores():
    found = summarize(scored_pair([0.1, 0.2, 0.3], [0.3, 0.2, 0.1]))
    assert set(found["overall"]) == {"scores"} and found["classes"] == {} and found["gate"] is None
    assert found["overall"]["scores"]["gain"]["low"] is None  # nan
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    "counts", [(1, 0, 0, 0), (0, 0, 0, 1), (0, 1, 0, 0), (5, 0, 3, 0), (0, 0, 0, 7)]
)
def test_tiny_and_one_sided_samples_have_a_summary(counts):
    found = summarize(pair_with(*counts))
    assert found["verdict"]["word"] in (
        "too little data",
        "worse",
        "regresses without measurable gain",
    )
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("seed", range(5))
def test_another_order_gives_the_same_summary(seed):
    draw = np.random.default_rng(seed)
    n = 300
    label, length = draw.integers(0, 3, n), draw.integers(0, 100, n)
    sides = [
        Predictions(
            [f"e{i}" for i in range(n)],
            label,
            np.where(draw.random(n) < 0.8, label, draw.integers(0, 3, n)),
            score=draw.random(n),
            columns={"length": length} if first else None,
        )
        for first in (True, False)
    ]
    mixed = [side.select(side.id[draw.permutation(n)]) for side in sides]
    policy = Policy.of({"max_nfr": 0.5, "slice": [{"each": "length", "max_nfr": 0.5}]})
    settings = Settings(("length", "label"), policy=policy)
    assert summarize(Pair.of(*mixed), settings) == summarize(Pair.of(*sides), settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"tolerance": 0},
        {"tolerance": 1},
        {"margin": 0},
        {"margin": -0.1},
        {"tolerance": float("nan")},
    ],
)
def test_tolerance_and_margin_are_checked(settings):
    with pytest.raises(ValueError, match="must lie between 0 and 1"):
        summarize(random_pair(0), Settings(**settings))


@pytest.mark.parametrize("level, fits", [(0.49, 0), (0.5, 1), (0.95, 1), (0.999, 1), (0.9991, 0)])
def test_the_confidence_lies_between_a_half_and_999_of_a_thousand(level, fits):
    if fits:
        Settings(level=level).check()
    else:
        with pytest.raises(ValueError, match="50.*99.9 %"):
            Settings(level=level).check()


# --- several tasks --------------------------------------------------------------------------------


def harness():
    """A multiple-choice task by two metrics, a task of right and wrong with a score beside it,
    and a task of scores.
    """
    draw = np.random.default_rng(0)
    choice = [draw.integers(0, 4, 400).astype(np.int32) for _ in range(3)]
    norm = [side[draw.permutation(400)] for side in choice]
    match = [
        np.zeros(100, dtype=np.int32),
        *(draw.integers(0, 2, 100).astype(np.int32) for _ in range(2)),
    ]
    none = np.full(100, -1, dtype=np.int32)
    codes = [np.concatenate([a, b, c, none, none]) for a, b, c in zip(choice, norm, match)]
    scores = [
        np.concatenate([np.full(900, np.nan), *(draw.random((2, 100)) + [[0], [50]]).round(2)])
        for _ in range(2)
    ]
    tasks = np.array(
        ["p (acc)"] * 400
        + ["p (acc_norm)"] * 400
        + ["q (em)"] * 100
        + ["q (f1)"] * 100
        + ["s (bleu)"] * 100,
        dtype=object,
    )
    return Pair(
        "a",
        "b",
        ("0", "1", "2", "3"),
        *codes,
        *scores,
        columns={"odd": np.arange(1100) % 2},
        task=tasks,
    )


def test_tasks_have_their_own_measures_and_the_whole_counts_once():
    pair = harness()
    found = summarize(pair, Settings(("odd", "task")))
    assert (
        found["examples"] == 600
        and found["overall"]["nfr"]["n"] == 500
        and sum(found["overall"]["counts"].values()) == 500
    )
    assert (
        found["overall"]["scores"]["nfr"]["n"] == 200
        and sum(c["n"] for c in found["classes"].values()) == 500
    )
    assert list(found["tasks"]) == ["p (acc)", "p (acc_norm)", "q (em)", "q (f1)", "s (bleu)"]
    for name, one in found["tasks"].items():
        rows = pair.task == name
        if name[0] == "s" or "f1" in name:
            assert (
                set(one["overall"]) == {"scores"}
                and one["overall"]["scores"]["nfr"]["value"]
                == (pair.new_score[rows] < pair.old_score[rows]).mean()
            )
        else:
            assert (
                one["overall"]["nfr"]["value"]
                == FlipCounts.of(pair.label[rows], pair.old[rows], pair.new[rows]).nfr
            )
    assert {
        one["where"]["task"]: one["n"] for one in found["slices"] if set(one["where"]) == {"task"}
    } == {"p (acc)": 400, "q (em)": 100}
    assert any("several metrics" in note for note in found["notes"]) and any(
        "Scores of several tasks" in note for note in found["notes"]
    )


def test_rules_for_tasks_reach_every_metric():
    pair = harness()
    found = apply_policy(
        Policy.of(
            {
                "slice": [
                    {"where": {"task": "p (acc_norm)"}, "max_nfr": 1e-3},
                    {"each": "odd", "max_nfr": 1e-3},
                ]
            }
        ),
        pair,
        overall(pair),
    )
    assert [c["where"] for c in found["conditions"]] == [
        {"task": "p (acc_norm)"},
        {"odd": "0"},
        {"odd": "1"},
    ]
    rows = pair.task == "p (acc_norm)"
    assert (
        found["conditions"][0]["value"]
        == FlipCounts.of(pair.label[rows], pair.old[rows], pair.new[rows]).nfr
    )


# --- what must not be passed over -----------------------------------------------------------------


def test_flips_surely_beyond_the_tolerance_come_first():
    word, reason = verdict(measures(FlipCounts(90_000, 8000, 8050, 950, 0)))
    assert word == "regresses without measurable gain" and reason.startswith(
        "8,000 of 107,000 examples flip"
    )
    word, reason = verdict(measures(FlipCounts(850, 60, 20, 70, 0)))
    assert word == "worse" and reason.startswith("60 of 1,000 examples flip")


def test_more_than_the_tolerance_needs_the_interval():
    """7 of 368 are 1.9 %, but the interval begins at 0.8 %."""
    word, reason = verdict(measures(FlipCounts(300, 7, 40, 21, 0)))
    assert word == "too little data" and "may be within or beyond" in reason


@pytest.mark.parametrize("negative", range(0, 40, 3))
def test_gate_and_verdict_agree_at_one_limit(negative):
    found = summarize(
        pair_with(368 + 400 - negative, negative, 100), Settings(policy=Policy.of(max_nfr="1%"))
    )
    kept = {"holds": "within", "failed": "more than", "too little data": "within or beyond"}
    assert kept[found["gate"]["status"]] in found["verdict"]["reason"]


def test_the_confidence_is_that_of_every_interval():
    narrow, wide = (
        summarize(random_pair(0), Settings(("intent",), level=level)) for level in (0.8, 0.99)
    )
    for key in MEASURES:
        if narrow["overall"][key]["low"] is not None:
            assert wide["overall"][key]["low"] < narrow["overall"][key]["low"]
    assert wide["classes"]["1"]["nfr"]["high"] > narrow["classes"]["1"]["nfr"]["high"]
    assert wide["slices"][0]["nfr"]["high"] > narrow["slices"][0]["nfr"]["high"]
    assert "99 % interval" in wide["verdict"]["reason"]
    with pytest.raises(ValueError, match="confidence"):
        summarize(random_pair(0), Settings(level=0.3))


def test_no_verdict_where_the_spelling_decides():
    label = ["yes", "no"] * 200
    found = summarize(pair_of(label, label, [answer.upper() for answer in label]))
    assert found["verdict"]["word"] == "answers are spelled otherwise"
    assert (
        "'YES' for 'yes'" in found["verdict"]["reason"]
        and "--normalize" in found["verdict"]["reason"]
    )
    gated = summarize(
        pair_of(label, label, [answer.upper() for answer in label]),
        Settings(policy=Policy.of(max_nfr_observed="100%")),
    )
    assert gated["gate"]["status"] == "too little data"


# --- answers that are spelled otherwise -----------------------------------------------------------


@pytest.mark.parametrize(
    "one, other",
    [
        ("Yes", "yes"),
        (" yes ", "yes"),
        ("e\u0301", "é"),
        ("ﬁle", "file"),
        ("1.0", "1"),
        ("-3.00", "-3"),
        ("a  b", "a b"),
        ("STRASSE", "straße"),
        (1, "1"),
    ],
)
def test_forms_of_one_answer(one, other):
    assert normal_form(one) == normal_form(other)


@pytest.mark.parametrize(
    "one, other", [("1.5", "15"), ("a b", "ab"), ("10", "1.0"), ("v1.0", "v1")]
)
def test_answers_that_stay_apart(one, other):
    assert normal_form(one) != normal_form(other)


def test_a_normalized_pair_is_judged_by_meaning():
    pair = normalized(pair_of(["yes", "no", "yes"], ["YES", "no", "no"], [" yes", "No", "yes "]))
    assert (pair.label == pair.new).all() and (pair.label == pair.old).tolist() == [
        True,
        True,
        False,
    ]
    assert set(pair.answers) == {"yes", "no"} and "normal forms" in pair.notes[-1]


def test_what_is_said():
    label = ["yes", "no"] * 50
    told = misspelled(pair_of(label, label, [answer.title() for answer in label]))
    assert told.startswith("100 answers of new would be right") and "'Yes' for 'yes'" in told
    assert misspelled(pair_of(label, label, label)) == ""
    assert misspelled(scored_pair([0.1], [0.2])) == ""


def test_the_report_says_it_instead_of_a_verdict():
    label = ["yes", "no"] * 300
    ids = [str(number) for number in range(600)]
    old, new = (
        Predictions(ids, label, answers)
        for answers in (label, [answer.upper() for answer in label])
    )
    assert compare(old, new).verdict == "answers are spelled otherwise"
    assert compare(old, new, normalize=True).verdict == "no measurable difference"


def test_a_few_odd_spellings_are_a_note():
    label = ["yes", "no"] * 5000
    answers = ["Yes", *label[1:]]
    ids = [str(number) for number in range(10_000)]
    found = compare(Predictions(ids, label, label), Predictions(ids, label, answers))
    assert found.verdict == "no measurable difference"
    assert any("--normalize" in note for note in found.summary["notes"])


@pytest.mark.parametrize("value", [0.0, 1.0, 5.0, 999.0])
def test_scores_that_are_all_one_value_judge_nothing(value):
    same, other = (
        Predictions([f"e{n}" for n in range(400)], score=[one] * 400) for one in (value, value + 1)
    )
    with pytest.raises(ValueError, match=f"{value:g}"):
        compare(same, same)
    assert compare(same, other).verdict.startswith("better")  # not on both sides alike


def test_answers_of_which_none_is_right_on_either_side_judge_nothing():
    ids, label = [f"e{n}" for n in range(40)], ["no"] * 40
    wrong, other = (Predictions(ids, label, [one] * 40) for one in ("No", "yes"))
    with pytest.raises(ValueError, match="40 examples"):
        compare(wrong, other)
    # a suite of tests that all pass is judged
    right = Predictions(ids, label, label)
    assert compare(right, right).verdict == "too little data"
    few = Predictions(ids[:2], label[:2], ["x"] * 2)
    with pytest.raises(ValueError, match="2 examples"):
        compare(few, few)


def test_how_many_scores_show_equality_is_asked_of_the_normal_distribution():
    by_flips, by_scores = (
        examples_for_equality(0.0025, 0.01, of_flips=flips) for flips in (True, False)
    )
    reach = stats.norm.ppf(0.975) + stats.norm.ppf(0.9)
    assert by_scores == pytest.approx(0.0025 * (reach / 0.01) ** 2) and by_scores < by_flips
