"""Verdicts: the rule at its edges, and kept tables that have what each claim asks for."""

import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from compatkit.experiments.judging import claim_verdicts
from compatkit.experiments.judging.claim_verdicts import (
    EVIDENCE,
    Evidence,
    RowPair,
    claims_html,
    claims_markdown,
    claims_words,
    differences_of,
    digest_of,
    judge_claim,
    judged_claims,
    kept_evidence,
    pairs_of,
)
from compatkit.experiments.judging.claims import (
    ACCURACY,
    CLAIMS,
    CONTROL,
    COST,
    GAINS,
    LOSSES,
    MATCHED,
    NFR,
    NFR_AT_OWN,
    NFR_MC,
    PREFERRED,
    Claim,
    bears_on,
)
from compatkit.experiments.reporting.result_tables import (
    ResultTable,
    Row,
    keep_table,
    kept_tables,
)
from compatkit.support.paired import CrossedMean

ROOT = Path(__file__).resolve().parents[3]
KEPT = kept_tables(ROOT / "results")


def table(*rows, **more):
    return ResultTable("made-up", tuple(rows), **more)


def row(name, nfr=0.03, difference=(0.0, -0.01, 0.01), seeds=3):
    return Row(name, seeds=seeds, nfr=(nfr, 0.001), difference=difference)


NEW = Row("new model", seeds=3, nfr=(0.04, 0.003))
OLD = Row("old model", seeds=3)
PAYING = (-0.02, -0.03, -0.01)
BELOW = Claim("p", "s", ("bcwi:main",), ("it",), ("new model",))
HALF = replace(BELOW, factor=0.5)
NOT_HALF = replace(HALF, denied=True)
NO_LOSS = Claim("p", "s", ("bcwi:main",), ("it",))
LOWEST = Claim("p", "s", ("bcwi:main",), ("it",), ("each other",))
NO_LESS = replace(BELOW, quantity=ACCURACY, lossless=True)
RAISES = replace(BELOW, quantity=ACCURACY, higher=True)
CLEAR, WIDE, ABOVE = (-0.01, -0.015, -0.005), (-0.001, -0.004, 0.002), (0.01, 0.005, 0.015)


def interval(mean, low, high, seeds=3):
    """A mean whose arm is as long as the interval's shorter one."""
    error = min(mean - low, high - mean) / 1.96
    return CrossedMean(mean, 0.0, 0.0, error, seeds, 10**9)


def word(claim, difference, its=None, seeds=3):
    made = table(NEW, its or row("it"))
    differences = {pair: interval(*difference, seeds) for pair in pairs_of(claim, made)}
    return judge_claim(claim, made, differences).word


@pytest.mark.parametrize(
    "claim, difference, its, said",
    [
        (BELOW, CLEAR, None, "reproduced"),
        (BELOW, WIDE, None, "open"),
        (BELOW, ABOVE, None, "opposite"),
        (HALF, CLEAR, None, "reproduced"),
        (NOT_HALF, CLEAR, None, "opposite"),
        (NOT_HALF, ABOVE, None, "reproduced"),
        (NOT_HALF, WIDE, None, "open"),
        (BELOW, CLEAR, row("it", 0.01, PAYING), "fewer flips, less accurate"),
        (BELOW, ABOVE, row("it", 0.01, PAYING), "opposite"),
        (RAISES, ABOVE, None, "reproduced"),
        (RAISES, CLEAR, None, "opposite"),
        (RAISES, WIDE, None, "open"),
        (NO_LOSS, (0.0, -0.004, 0.004), None, "reproduced"),
        (NO_LOSS, (0.0, -0.006, 0.006), None, "open"),
        (NO_LOSS, (-0.01, -0.0199, -0.0001), None, "opposite"),
        (NO_LOSS, (-0.002, -0.0039, -0.0001), None, "opposite"),
        (NO_LESS, (0.001, -0.004, 0.006), None, "reproduced"),
        (NO_LESS, (-0.01, -0.015, -0.005), None, "opposite"),
        (BELOW, CLEAR, row("it", 0.01, (-0.01, -0.03, 0.01)), "fewer flips, less accurate"),
    ],
)
def test_the_rule(claim, difference, its, said):
    assert word(claim, difference, its) == said


def test_fewer_than_three_seeds_decide_nothing():
    assert word(BELOW, CLEAR, seeds=2) == word(NO_LOSS, PAYING, seeds=1) == "open"


def test_the_least_favourable_comparison_decides_and_is_told():
    made = table(NEW, row("it"), row("second"), row("third"))
    asked = pairs_of(LOWEST, made)
    assert [one.other for one in asked] == ["second", "third"]

    def said(*differences):
        found = judge_claim(LOWEST, made, dict(zip(asked, (interval(*d) for d in differences))))
        return found.word, found.words.split(" − ")[1].split()[0]

    nearer = (-0.006, -0.008, -0.004)
    assert said(CLEAR, nearer) == ("reproduced", "third") and said(nearer, CLEAR) == (
        "reproduced",
        "second",
    )
    assert said(WIDE, CLEAR) == ("open", "second")
    assert said(CLEAR, ABOVE) == ("opposite", "third")


def test_what_must_hold_everywhere_is_as_clear_as_its_least_clear_comparison():
    """The mean that lies nearest need not be the least certain one."""
    made = table(NEW, row("it"), row("near"), row("vague"))
    asked = pairs_of(LOWEST, made)
    near, vague = interval(-0.002, -0.0025, -0.0015), interval(-0.01, -0.0198, -0.0002)
    found = judge_claim(LOWEST, made, dict(zip(asked, (near, vague))))
    assert found.word == "reproduced" and "it − near" in found.words
    assert found.p == pytest.approx(vague.p()) and found.p > 100 * near.p()


def test_one_of_many_comparisons_refutes_only_at_a_stricter_level():
    made = table(NEW, *(row(name) for name in ("it", "a", "b", "c", "d")))
    asked = pairs_of(LOWEST, made)

    def said(barely):
        means = [interval(*CLEAR)] * 3 + [interval(0.01, 0.01 - barely, 0.01 + barely)]
        return judge_claim(LOWEST, made, dict(zip(asked, means)))

    assert said(0.009).word == "open" and "one of 4" in said(0.009).words
    assert said(0.005).word == "opposite"


def test_methods_of_which_no_setting_qualified_are_judged_by_nobody():
    unfit = replace(row("it"), qualified=False)
    found = judge_claim(BELOW, table(NEW, unfit), {})
    assert found.word == "not tested" and "it: no setting" in found.words
    rival = replace(row("rival"), qualified=False)
    assert pairs_of(LOWEST, table(NEW, row("it"), rival)) == []
    assert table(NEW, unfit, row("other", 0.035)).best() == "other"


def test_what_did_not_qualify_is_told_only_where_there_is_something_to_compare_it_with():
    made = table(NEW, replace(row("it"), qualified=False), Row("other"))
    assert judge_claim(replace(BELOW, than=("other",)), made, {}) is None
    assert judge_claim(BELOW, made, {}).word == "not tested"
    assert judge_claim(replace(BELOW, than=()), made, {}).word == "not tested"


def test_whole_curves_are_compared_where_no_setting_qualified():
    made = table(NEW, *(replace(row(one), qualified=False) for one in ("it", "other")))
    curves = replace(BELOW, than=("other",), quantity=MATCHED)
    (pair,) = pairs_of(curves, made)
    assert pair == RowPair(MATCHED, "it", "other")
    found = judge_claim(curves, made, {pair: CrossedMean(-0.01, 0.001, 0.001, 0.001, 3, 100)})
    assert found.word == "reproduced" and "NFR at equal accuracy, it − other -1.00" in found.words
    assert pairs_of(replace(curves, quantity=NFR), made) == []


def test_a_method_that_did_not_qualify_does_not_silence_the_others():
    made = table(NEW, row("it"), replace(row("pulled"), qualified=False))
    of_both = replace(BELOW, rows=("it", "pulled"))
    (pair,) = pairs_of(of_both, made)
    assert pair.method == "it"
    found = judge_claim(of_both, made, {pair: interval(*CLEAR)})
    assert found.word == "reproduced" and found.words.endswith(
        "; pulled: no setting is as accurate on selection as its rule asks"
    )


def test_an_exact_name_stands_before_names_that_begin_with_it():
    of_one = replace(BELOW, than=("single",))
    made = table(NEW, row("it"), row("single"), row("single, larger"))
    assert [one.other for one in pairs_of(of_one, made)] == ["single"]
    begins = table(NEW, row("it"), row("single 1"), row("single 2"))
    assert [one.other for one in pairs_of(of_one, begins)] == ["single 1", "single 2"]


def test_controls_and_methods_that_lose_accuracy_are_no_rivals():
    losing = row("loser", 0.01, (-0.02, -0.05, 0.01))
    made = table(NEW, row("it"), row("constant gate"), row("payer", 0.01, PAYING), losing)
    assert pairs_of(LOWEST, made) == [] and judge_claim(LOWEST, made, {}) is None


def test_a_method_that_pays_has_those_that_pay_as_rivals():
    made = table(NEW, row("it", 0.01, PAYING), row("payer", 0.01, PAYING), row("constant gate"))
    (pair,) = pairs_of(LOWEST, made)
    assert pair == RowPair(NFR, "it", "payer")


def test_a_mixture_is_a_rival_with_its_whole_curve_at_the_methods_own_accuracy():
    mixture = replace(row("old-new logits", 0.01, PAYING), qualified=False)
    made = table(NEW, row("it"), row("other"), mixture)
    other, beside = pairs_of(LOWEST, made)
    assert other == RowPair(NFR, "it", "other")
    assert beside == RowPair(NFR_AT_OWN, "it", "old-new logits")
    found = judge_claim(LOWEST, made, {other: interval(*CLEAR), beside: interval(*WIDE)})
    assert found.word == "open" and "it − old-new logits at its accuracy, -0.10" in found.words
    nowhere = judge_claim(LOWEST, made, {other: interval(*CLEAR), beside: None})
    assert nowhere.word == "reproduced" and nowhere.words.endswith("logits: nowhere as accurate")
    assert judge_claim(LOWEST, made, {other: interval(*CLEAR)}).word == "not tested"
    paying = table(NEW, row("it", 0.01, PAYING), mixture)
    lower = judge_claim(LOWEST, paying, {beside: interval(*CLEAR)})
    assert lower.word == "reproduced", "at equal accuracy nobody pays"


def test_without_loss_holds_for_nobody_where_selection_found_no_setting_of_one_of_them():
    made = table(NEW, row("it"), replace(row("pulled"), qualified=False))
    of_both = replace(NO_LOSS, rows=("it", "pulled"))
    (pair,) = pairs_of(of_both, made)
    found = judge_claim(of_both, made, {pair: interval(0.0, -0.004, 0.004)})
    assert found.word == "open" and "pulled: no setting" in found.words
    worse = judge_claim(of_both, made, {pair: interval(-0.01, -0.0199, -0.0001)})
    assert worse.word == "opposite"


def test_between_two_choices_no_inconsistency_flip_is_judged():
    flips = replace(BELOW, quantity=NFR_MC)
    two, more = (
        table(*(replace(one, by_seed=({"nfr": 0.03, "nfr_mc": mc},)) for one in (NEW, row("it"))))
        for mc in (0.03, 0.05)
    )
    assert pairs_of(flips, two) == [] and judge_claim(flips, two, {}) is None
    assert pairs_of(flips, more) == [RowPair(NFR_MC, "it", "new model")]


@pytest.mark.parametrize("missing", [table(NEW), table(row("it")), table(NEW, Row("it"))])
def test_rows_that_are_not_there_judge_nothing(missing):
    assert judge_claim(BELOW, missing, {}) is None


def test_a_row_at_the_papers_setting_is_not_the_one_that_a_search_chose():
    stated = table(NEW, row("FD-KL, the paper's setting"))
    assert judge_claim(replace(BELOW, rows=("FD-KL",)), stated, {}) is None
    assert judge_claim(replace(BELOW, rows=("FD-KL, the paper's setting",)), stated, {}) is not None


def test_the_setting_that_selection_prefers_is_claimed_and_none_where_none_qualified():
    preferred = replace(BELOW, rows=(PREFERRED,))
    settings = [row(f"c = {share}") for share in (0, 0.1, 0.3)]
    chosen = replace(settings[1], setting="mask wrong, c 0.1", preferred=True)
    (pair,) = pairs_of(preferred, table(NEW, settings[0], chosen, settings[2]))
    assert (pair.method, pair.other) == ("c = 0.1", "new model")
    lost = [replace(one, preferred=True, qualified=False) for one in settings]
    assert judge_claim(preferred, table(NEW, *lost), {}).word == "not tested"
    assert judge_claim(preferred, table(NEW, *settings), {}) is None


def test_without_its_differences_a_table_is_not_judged():
    found = judge_claim(BELOW, table(NEW, row("it")), {})
    assert found.word == "not tested" and "--evidence" in found.words


def kept(folder, *tables, difference=CLEAR, claims=(BELOW, NO_LOSS)):
    """Tables and their evidence in a folder of results."""
    found = {}
    for name, made in tables:
        keep_table(made, name, results=folder)
        made = kept_tables(folder)[name]
        asked = {pair for claim in claims for pair in pairs_of(claim, made)}
        lines = [[*pair, *interval(*difference)] for pair in sorted(asked)]
        found[name] = {"digest": digest_of(made), "differences": lines}
    (folder / EVIDENCE).write_text(json.dumps({"tables": found, "places": []}))


def test_a_table_that_changed_is_not_judged_by_old_differences(tmp_path):
    name, made = "bcwi-x-mini-main", table(NEW, row("it"))
    kept(tmp_path, (name, made))
    evidence = kept_evidence(tmp_path)
    assert set(differences_of(evidence, name, made)) == {
        RowPair(NFR, "it", "new model"),
        RowPair(ACCURACY, "it", ""),
    }
    for other in (row("it", 0.02), row("it", seeds=4), replace(row("it"), setting="other")):
        assert differences_of(evidence, name, table(NEW, other)) == {}
    assert kept_evidence(tmp_path / "nothing") == {"tables": {}, "places": []}


def test_of_several_tables_of_one_place_the_least_favourable_counts(tmp_path, monkeypatch):
    two = replace(BELOW, tables=("bcwi:main", "decisions:main"))
    monkeypatch.setattr("compatkit.experiments.judging.claim_verdicts.CLAIMS", (two,))
    names = ("bcwi-x-mini-main", "decisions-x-mini-main", "bcwi-y-mini-main")
    kept(tmp_path, *((name, table(NEW, row("it"))) for name in names))
    content = kept_evidence(tmp_path)
    content["tables"]["decisions-x-mini-main"]["differences"][0][4:] = interval(*ABOVE)
    (tmp_path / EVIDENCE).write_text(json.dumps(content))
    ((_, found),) = judged_claims(tmp_path)
    assert {(one.name, one.word) for one in found} == {
        ("decisions-x-mini-main", "opposite"),
        ("bcwi-y-mini-main", "reproduced"),
    }


def test_a_table_of_models_at_chance_judges_nothing(tmp_path):
    unfit = table(NEW, row("compatibility adapter"), unjudged="models at chance")
    keep_table(unfit, "muscle-piqa-mini-a-main", results=tmp_path)
    words = {one.word for _, evidence in judged_claims(tmp_path) for one in evidence}
    assert words == {"not tested"}
    assert "PIQA (a): **not tested**, models at chance" in claims_markdown(tmp_path)
    told = {claim.sentence for claim, evidence in judged_claims(tmp_path) if evidence}
    assert told and not any("ROUGE" in one or "gains" in one for one in told), "choices have none"


@pytest.mark.parametrize(
    "control, word, words",
    [
        (ABOVE, "reproduced", "compatibility adapter − new model"),
        (WIDE, "not tested", r"its control \(first claim\) is not shown to work"),
        (None, "not tested", r"its control \(table 6\) has not run"),
    ],
)
def test_an_adapter_is_judged_only_where_its_control_works(tmp_path, control, word, words):
    name, trial = "muscle-piqa-mini-a-main", "muscle-piqa-mini-a-6"
    lowers = next(one for one in CLAIMS if one.sentence.startswith("The compatibility adapter low"))
    masks = table(NEW, row("KL to o everywhere"))
    tables = [(name, table(NEW, row("compatibility adapter")))] + [(trial, masks)] * bool(control)
    kept(tmp_path, *tables, claims=(lowers, CONTROL))
    if control:
        content = kept_evidence(tmp_path)
        content["tables"][trial]["differences"][0][4:] = interval(*control)
        (tmp_path / EVIDENCE).write_text(json.dumps(content))
    ((_, (found,)),) = [one for one in judged_claims(tmp_path) if one[0] == lowers]
    assert found.word == word and re.search(words, found.words)


def test_each_claim_finds_its_rows_and_their_differences_in_the_kept_tables():
    """A method that was renamed in a notebook would silently be *not run* here."""
    for claim, evidence in judged_claims(ROOT / "results"):
        measured = claim.quantity not in (GAINS, LOSSES)  # no kept table has ROUGE
        if measured and any(bears_on(claim, name) for name in KEPT):
            assert evidence, claim
        missing = [one.words for one in evidence if one.word == "not tested"]
        reasons = (
            "at chance|no better than one|its control|so by what it is|no setting is|the margin of"
        )
        assert all(re.search(reasons, one) for one in missing), claim


def test_variants_judge_no_claim(tmp_path):
    for ending in ("out_of_fold", "2_settings"):
        name = f"gated_fusion-pydoc-mini-a-main-{ending}"
        keep_table(KEPT["gated_fusion-pydoc-mini-a-main"], name, results=tmp_path)
    assert not any(evidence for _, evidence in judged_claims(tmp_path))


def test_text_stays_text(tmp_path, monkeypatch):
    loud = replace(BELOW, paper="<b>", sentence="a | b <script>")
    monkeypatch.setattr("compatkit.experiments.judging.claim_verdicts.CLAIMS", (loud,))
    kept(tmp_path, ("bcwi-x-mini-main", table(NEW, row("it"))))
    assert "<script>" not in claims_html(tmp_path)
    assert "**reproduced**" in claims_markdown(tmp_path)


def test_a_claim_without_a_table_is_said_to_be_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr("compatkit.experiments.judging.claim_verdicts.CLAIMS", (BELOW,))
    assert "<i>not run</i>" in claims_html(tmp_path)
    assert "*not run*" in claims_markdown(tmp_path)


COSTS = [claim for claim in CLAIMS if claim.quantity == COST]


def table_of_costs(times, more=0, count=3):
    """A table of costs: the baselines as these times of a step and bytes say, BCWI as plain."""
    costs = tuple({"bytes": more, "time": one} for one in times[:count])
    names = ("EWC", "prior weight decay", "Mixout", "distillation")
    rows = [Row(name, "memory, time", count, by_seed=costs) for name in names]
    plain = ({"bytes": 0, "time": 1.0},) * count
    return ResultTable("costs", (*rows, Row("BCWI", "as plain", count, by_seed=plain)))


@pytest.mark.parametrize(
    "times, more, words",
    [
        ((1.3, 1.4, 1.35), 0, ["not tested", "reproduced"]),  # slower
        ((1.0, 0.9, 1.1), 2**24, ["not tested", "reproduced"]),  # of more memory
        ((1.0, 0.9, 1.1), 2**10, ["not tested", "open"]),
        ((0.8, 0.79, 0.81), 0, ["not tested", "opposite"]),
    ],
)
def test_a_cost_is_memory_or_time(times, more, words):
    shown = table_of_costs(times, more)
    assert [judge_claim(claim, shown, {}).word for claim in COSTS] == words
    assert [judge_claim(claim, table(NEW), {}) for claim in COSTS] == [None, None]


def test_few_measurements_decide_nothing():
    shown = table_of_costs((1.3, 1.4, 1.35), 0, 2)
    nothing = replace(shown, rows=tuple(replace(row, by_seed=()) for row in shown.rows))
    for claim, given in product(COSTS, (shown, nothing)):
        found = judge_claim(claim, given, {})
        assert found.word == "open" and all(f"{row}: " in found.words for row in claim.rows)


def test_what_is_written_and_not_measured_is_judged_by_nobody():
    adds_nothing, shown = COSTS[0], table_of_costs((1.3, 1.4, 1.35))
    assert "no measurement could have shown otherwise" in judge_claim(adds_nothing, shown, {}).words
    measured = ({"bytes": 2**24, "time": 1.0},) * 3
    rows = [replace(row, by_seed=measured) if row.method == "BCWI" else row for row in shown.rows]
    assert judge_claim(adds_nothing, replace(shown, rows=tuple(rows)), {}).word == "opposite"


def test_claims_and_trials_are_counted(monkeypatch):
    words = (["reproduced", "open"], ["open"], ["not tested", "open"], [])
    found = [(None, [Evidence("bcwi-x-mini-main", one, "") for one in each]) for each in words]
    monkeypatch.setattr(claim_verdicts, "judged_claims", lambda results: found)
    told = claims_words()
    assert told.startswith("Of 3 claims 1 are decided in at least one upgrade, and 2 in none, 1 of")
    assert "These 5 trials ended so: *reproduced* 1," in told and "*open* 3" in told


def test_what_is_not_clear_among_the_trials_of_a_paper_is_open(tmp_path, monkeypatch):
    """One of twenty that is just clear alone is what chance gives; twenty such are not."""
    tasks = [f"t{number}" for number in range(20)]
    claims = (replace(BELOW, tables=("bcwi:main",)),)
    monkeypatch.setattr(claim_verdicts, "CLAIMS", claims)
    barely = (-0.01, -0.0199, -0.0001)
    names = [f"bcwi-{task}-mini-main" for task in tasks]
    for others, said in ((WIDE, "open"), (barely, "reproduced")):
        kept(tmp_path, *((name, table(NEW, row("it"))) for name in names), difference=others)
        content = kept_evidence(tmp_path)
        for line in content["tables"][names[0]]["differences"]:
            line[4:] = interval(*barely)
        (tmp_path / EVIDENCE).write_text(json.dumps(content))
        ((_, found),) = judged_claims(tmp_path)
        (first,) = (one for one in found if one.name == names[0])
        assert first.word == said and ("among 20 trials" in first.words) == (said == "open")


def test_a_margin_above_the_rate_tests_nothing():
    within = replace(BELOW, lossless=True, within=0.005)
    made = table(replace(NEW, nfr=(0.002, 0.0)), row("it"))
    differences = {pair: interval(*CLEAR) for pair in pairs_of(within, made)}
    found = judge_claim(within, made, differences)
    assert found.word == "not tested" and "larger than" in found.words
    seen = judge_claim(within, table(NEW, row("it")), differences)
    assert seen.word != "not tested"
