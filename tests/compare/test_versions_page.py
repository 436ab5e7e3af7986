"""The page of many versions: what stands on it, and that nothing in the data can act."""

import numpy as np
import pytest

from compatkit.compare.report import compare_versions
from compatkit.predictions import Predictions

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m"


def versions(names=("a", "b", "c"), **settings):
    draw = np.random.default_rng(0)
    label, kind = draw.integers(0, 3, 600), draw.choice(["x", HOSTILE], 600)
    answers = [
        np.where(draw.random(600) < right, label, (label + 1) % 3) for right in (0.9, 0.8, 0.85)
    ]
    sides = [Predictions(range(600), label, answer, columns={"kind": kind}) for answer in answers]
    return compare_versions(sides, names=list(names), **settings)


def test_series_matrix_gate_and_flips_stand_on_the_page():
    found = versions(slices=["kind"], policy={"max_nfr": "1%"})
    page = found.to_html()
    for part in (
        "a → b",
        "b → c",
        "heat-9",
        "Gate:",
        "failed",
        "positive flip",
        "NFR of replacing",
    ):
        assert part in page
    assert (
        found.status == "failed"
        and page == versions(slices=["kind"], policy={"max_nfr": "1%"}).to_html()
    )


def test_nothing_in_the_data_can_act():
    page = versions((HOSTILE, "b", "c")).to_html()
    assert "<img" not in page and "\x1b" not in page and page.count("<script") == 2
    assert "default-src 'none'" in page and "http" not in page.split("</style>")[1].replace(
        "http-equiv", ""
    )


def test_the_flips_on_the_page_can_be_limited():
    rows, more = versions().flip_rows(most=10)
    whole, none = versions().flip_rows()
    assert len(rows) == 10 and len(whole) == 10 + more and none == 0
    assert {row["update"] for row in whole} == {"a → b", "b → c"}
    assert f"{more:,} more rows are not on this page" in versions().to_html(most=10)


def test_each_update_has_its_verdict_and_the_matrix_its_intervals():
    found = versions()
    low, high = found.nfr_interval()[0, 1]
    assert low < found.nfr[0, 1] < high
    assert [step.verdict for step in found.steps] == found.verdict.replace("a → b: ", "").replace(
        "b → c: ", ""
    ).split("; ")
    for step, (i, j) in zip(found.steps, ((0, 1), (1, 2))):
        assert step.summary["overall"]["nfr"]["value"] == pytest.approx(found.nfr[i, j])


def test_different_truths_are_refused_whoever_has_them():
    ids, label = list("abcd"), [0, 1, 0, 1]
    other = [1, 0, 1, 0]
    unlabelled = Predictions(ids, prediction=label)
    with pytest.raises(ValueError, match="labels differ between v2 and v3"):
        compare_versions(
            [unlabelled, Predictions(ids, label, label), Predictions(ids, other, other)],
            names=["v1", "v2", "v3"],
        )


def test_notes_are_not_dropped():
    ids = [str(number) for number in range(50)]
    sides = [Predictions(own, [0] * len(own), [0] * len(own)) for own in (ids, ids[:-3], ids[2:])]
    found = compare_versions(sides, names=["v1", "v2", "v3"], on_missing="drop")
    assert (
        "45 examples that all 3 versions have" in str(found) and "are left out" in found.to_html()
    )
