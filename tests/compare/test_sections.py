"""One list of measures: what is added there stands in text, notebook, Markdown, JSON and on the
page.
"""

import json

import numpy as np
from made_pairs import pair_of, pair_with, random_pair

from compatkit import metrics
from compatkit.compare.report import compare
from compatkit.compare.sections import all_sections, class_section, gate_section
from compatkit.metrics import MEASURES, FlipCounts, Measure


def test_adding_a_measure_is_one_entry(monkeypatch):
    added = Measure(
        "stubbornness",
        "Stubbornness",
        "Share of the old version's errors that are repeated word for word.",
        lambda counts: counts.both_wrong_same,
        lambda counts: counts.n - counts.right_old,
        of="old errors",
        brief=True,
    )
    monkeypatch.setitem(MEASURES, added.key, added)
    counts = FlipCounts(60, 4, 10, 20, 6)
    assert counts.stubbornness == 20 / 36
    assert counts.interval("stubbornness") == metrics.clopper_pearson(20, 36)
    assert "Stubbornness" in counts._repr_html_()
    found = compare(pair_with(60, 4, 10, 20, 6))
    for shown in (str(found), found.to_markdown(), found._repr_html_(), found.to_html()):
        assert "Stubbornness" in shown
    assert "36 old errors" in str(found) and "repeated word for word" in found.to_html()
    assert json.loads(found.to_json())["overall"]["stubbornness"]["n"] == 36


def test_classes_without_flips_are_left_out():
    label = np.array(["a"] * 50 + ["b"] * 50)
    new = label.copy()
    new[0] = "b"
    section = class_section(compare(pair_of(label, label, new)).summary["classes"], 10)
    assert [row[0] for row in section.rows] == ["a"] and "1 classes have no flip" in section.note


def test_the_gate_comes_first_and_failures_first_in_it():
    found = compare(random_pair(0), policy={"max_nfr": "1%", "min_accuracy_gain_observed": "-90%"})
    section = next(all_sections(found.summary))
    assert section.title == "Gate: failed" and [row[0] for row in section.rows] == [
        "failed",
        "holds",
    ]
    lines = str(found).splitlines()
    assert lines[1] == "Gate: failed (exit status 1)"
    assert gate_section(found.summary["gate"], 1).note == "1 more conditions are not shown."


def test_rare_measures_are_explained():
    text = " ".join(str(compare(random_pair(0))).split())
    assert (
        "Negative flip impact (NFI): Share of the new version's errors that are negative flips."
        in text
    )
