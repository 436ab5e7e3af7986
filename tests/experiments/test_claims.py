"""Sentences and verdicts: the rule at its edges, and claims that name rows which exist."""

from math import nan
from pathlib import Path

import pytest

from compatkit.experiments.catalogue import CATALOGUE
from compatkit.experiments.claims import (
    CLAIMS,
    Claim,
    claims_html,
    claims_markdown,
    judge,
    judged,
    method_summaries,
    summaries_markdown,
)
from compatkit.experiments.result_tables import ResultTable, Row, keep_table, kept_tables

ROOT = Path(__file__).resolve().parents[2]
KEPT = kept_tables(ROOT / "results")


def table(*rows):
    return ResultTable("made-up", tuple(rows))


def row(name, nfr, spread=0.0, difference=(0.0, -0.01, 0.01), seeds=3):
    return Row(name, seeds=seeds, nfr=(nfr, spread), difference=difference)


NEW = Row("new model", seeds=3, nfr=(0.04, 0.003))
BELOW = Claim("p", "s", "bcwi", ("main",), ("it",), ("new model",))
HALF = Claim("p", "s", "bcwi", ("main",), ("it",), ("new model",), 0.5)
NOT_HALF = Claim("p", "s", "bcwi", ("main",), ("it",), ("new model",), 0.5, True)
NO_LOSS = Claim("p", "s", "bcwi", ("main",), ("it",))
LOWEST = Claim("p", "s", "bcwi", ("main",), ("it",), ("each other",))


@pytest.mark.parametrize(
    "claim, its, word",
    [
        (BELOW, row("it", 0.03, 0.004), "held"),
        (BELOW, row("it", 0.0351, 0.004), "within the spread"),
        (BELOW, row("it", 0.0449, 0.004), "within the spread"),
        (BELOW, row("it", 0.0451, 0.004), "not held"),
        (HALF, row("it", 0.015, 0.002), "held"),
        (HALF, row("it", 0.03, 0.004), "not held"),
        (NOT_HALF, row("it", 0.03, 0.004), "held"),
        (NOT_HALF, row("it", 0.01, 0.001), "not held"),
        (BELOW, row("it", 0.01, 0.001, (-0.02, -0.03, -0.01)), "held by paying"),
        (BELOW, row("it", 0.05, 0.001, (-0.02, -0.03, -0.01)), "not held"),
        (NO_LOSS, row("it", 0.01), "held"),
        (NO_LOSS, row("it", 0.01, 0, (-0.02, -0.03, -0.001)), "not held"),
        (NO_LOSS, row("it", 0.01, 0, (-0.02, -0.03, 0.0)), "held"),
    ],
)
def test_the_rule(claim, its, word):
    assert judge(claim, table(NEW, its)).word == word


def test_the_least_favourable_comparison_decides():
    others = row("second", 0.035, 0.001), row("third", 0.02, 0.001)
    assert judge(LOWEST, table(NEW, row("it", 0.01, 0.001), *others)).word == "held"
    found = judge(LOWEST, table(NEW, row("it", 0.03, 0.001), *others))
    assert found.word == "not held" and "third" in found.words
    both = Claim("p", "s", "bcwi", ("main",), ("it", "second"), ("new model",))
    assert judge(both, table(NEW, row("it", 0.01), row("second", 0.06))).word == "not held"


def test_controls_are_no_methods():
    assert (
        judge(LOWEST, table(NEW, row("it", 0.03, 0.001), row("constant gate", 0.01, 0.001))) is None
    )


@pytest.mark.parametrize("missing", [table(NEW), table(row("it", 0.01)), table(NEW, Row("it"))])
def test_rows_that_are_not_there_judge_nothing(missing):
    assert judge(BELOW, missing) is None


def test_a_table_of_models_at_chance_judges_nothing(tmp_path):
    unfit = ResultTable(
        "made-up", (NEW, recorded("compatibility adapter", 0.01)), unjudged="models at chance"
    )
    assert judge(BELOW, unfit)[1:] == ("not judged", "models at chance")
    keep_table(unfit, "muscle-piqa-mini-a-main", results=tmp_path)
    assert method_summaries(tmp_path) == []
    assert {one.word for _, evidence in judged(tmp_path) for one in evidence} == {"not judged"}
    assert "piqa (a): **not judged**, models at chance" in claims_markdown(tmp_path)


def test_one_seed_is_said():
    assert judge(BELOW, table(NEW, row("it", 0.03, nan, seeds=1))).words.endswith("(one seed)")


def test_claims_are_about_tables_of_the_list():
    listed = {
        (entry.notebook, table) for entry in CATALOGUE for table in (entry.table, *entry.also)
    } | {("gated_fusion", "main"), ("muscle", "main")}
    assert all((claim.notebook, table) in listed for claim in CLAIMS for table in claim.tables)
    assert len({(claim.paper, claim.sentence, claim.tables) for claim in CLAIMS}) == len(CLAIMS)


def test_each_claim_finds_its_rows_in_the_kept_tables():
    """A method that was renamed in a notebook would silently be *not run* here."""
    not_run = {claim.sentence for claim, evidence in judged(ROOT / "results") if not evidence}
    kept = {(name.split("-")[0], name.split("-")[-1]) for name in KEPT}
    for claim in CLAIMS:
        if any((claim.notebook, one) in kept for one in claim.tables):
            assert claim.sentence not in not_run, claim


def test_variants_judge_no_claim(tmp_path):
    for name in (
        "gated_fusion-pydoc-mini-a-main-out_of_fold",
        "gated_fusion-pydoc-mini-a-main-2_settings",
    ):
        keep_table(KEPT["gated_fusion-pydoc-mini-a-main"], name, results=tmp_path)
    assert not any(evidence for _, evidence in judged(tmp_path))


def test_two_tables_of_one_upgrade_are_told_apart(tmp_path):
    for name in ("muscle-x-mini-a-main", "muscle-x-mini-a-4", "muscle-x-mini-b-main"):
        keep(tmp_path, name, NEW, recorded("compatibility adapter", 0.01))
    text = claims_markdown(tmp_path)
    assert all(
        one in text
        for one in ("x (a), table main: **held**", "x (a), table 4: **held**", "x (b): **held**")
    )


def test_text_stays_text(tmp_path, monkeypatch):
    loud = Claim("<b>", "a | b <script>", "bcwi", ("main",), ("it",), ("new model",))
    monkeypatch.setattr("compatkit.experiments.claims.CLAIMS", (loud,))
    keep_table(table(NEW, row("it", 0.01)), "bcwi-x-mini-main", results=tmp_path)
    assert "<script>" not in claims_html(tmp_path)
    assert "**held**" in claims_markdown(tmp_path)


# which method when


def keep(folder, name, *rows):
    keep_table(table(*rows), name, results=folder)


def recorded(method, nfr, low=-0.01, high=0.01, record="r"):
    return Row(
        method,
        seeds=3,
        nfr=(nfr, 0.001),
        difference=((low + high) / 2, low, high),
        records=(record,),
    )


def test_summaries_are_medians_with_their_range(tmp_path):
    for number, nfr in enumerate((0.01, 0.02, 0.04)):
        keep(
            tmp_path,
            f"gated_fusion-task{number}-mini-a-1",
            NEW,
            recorded("gated fusion", nfr, -0.03 if number else -0.01, -0.01 if number else 0.01),
        )
    (found,) = method_summaries(tmp_path)
    assert (found.method, found.comparisons, found.pays) == ("gated fusion", 3, 2)
    assert found.nfr_ratio == pytest.approx((0.5, 0.25, 1.0)) and found.points == pytest.approx(
        (-2.0, -2.0, 0.0)
    )
    assert (
        "| gated fusion | 3 | 0.50 [0.25, 1.00] | -2.0 [-2.0, +0.0] | 2 of 3 |"
        in summaries_markdown(tmp_path)
    )


def test_the_longest_beginning_names_a_method_and_settings_in_names_are_none(tmp_path):
    keep(
        tmp_path,
        "gated_fusion-x-mini-a-4",
        NEW,
        recorded("gated fusion", 0.01),
        recorded("gated fusion, old dropped", 0.03),
    )
    keep(
        tmp_path,
        "bcwi-x-mini-main",
        NEW,
        recorded("BCWI", 0.01),
        recorded("BCWI α=0.4", 0.02),
        recorded("unheard of", 0.02),
    )
    assert {one.method for one in method_summaries(tmp_path)} == {
        "gated fusion",
        "gated fusion without the old model",
        "BCWI, α by the talk's rule",
    }


def test_a_row_that_stands_in_several_tables_counts_once(tmp_path):
    for name in ("gated_fusion-x-mini-a-1", "gated_fusion-x-mini-a-3", "decisions-x-mini-a-main"):
        keep(tmp_path, name, NEW, recorded("gated fusion", 0.01))
    keep(
        tmp_path,
        "gated_fusion-x-mini-a-main-out_of_fold",
        NEW,
        recorded("gated fusion", 0.03, record="other"),
    )
    assert [one.comparisons for one in method_summaries(tmp_path)] == [1]


def test_nothing_kept_nothing_said(tmp_path):
    assert method_summaries(tmp_path) == []
