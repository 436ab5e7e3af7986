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
    with pytest.raises(ValueError, match="v2 and v3"):
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


def test_each_update_has_its_reason_its_conditions_and_the_answers_that_changed():
    found = versions(slices=["kind"], policy={"max_nfr": "1%"})
    page = found.to_html()
    assert "built-in" not in page  # `update` is also a method of a dictionary
    for step in found.steps:
        name = f"{step.summary['old']} → {step.summary['new']}"
        assert f"<b><bdi>{name}</bdi></b>: {step.summary['overall']['counts']['negative']}" in page
        assert f'<th scope="row"><bdi>{name}</bdi></th><td><code>max_nfr</code>' in page
        most = max(step.summary["changes"], key=lambda change: change["n"])
        cells = "".join(f"<bdi>{most[key]}</bdi></td>" for key in ("label",))
        assert f'<bdi>{name}</bdi></th><td data-name="right">{cells}' in page
        where = f"{{&#34;update&#34;: &#34;{name}&#34;, &#34;quadrant&#34;: &#34;negative&#34;}}"
        assert f'data-where="{where}"' in page


def test_both_pages_are_of_one_frame():
    from importlib.resources import files

    for name in ("page.html", "page_versions.html"):
        text = (files("compatkit.compare") / name).read_text()
        assert '{% extends "page_base.html" %}' in text and "<!doctype" not in text


def test_the_matrix_has_the_confidence_that_was_asked_for():
    wide, narrow = (versions(confidence=level) for level in (0.99, 0.8))
    assert wide.steps[0].summary["overall"]["nfr"]["high"] == wide.nfr_interval()[0, 1, 1]
    assert wide.nfr_interval()[0, 1, 1] > narrow.nfr_interval()[0, 1, 1]
    assert "99 % interval" in wide.to_html()
