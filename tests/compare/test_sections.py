"""One list of measures: what is added there stands in text, notebook, Markdown, JSON and on the
page.
"""

import json
import re
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
from made_pairs import pair_of, pair_with, random_pair

from compatkit import metrics
from compatkit.compare.report import compare
from compatkit.compare.sections import (
    Data,
    Section,
    all_sections,
    as_html,
    as_markdown,
    as_text,
    class_section,
    gate_section,
    in_html,
    in_markdown,
    in_words,
    percent,
    points,
    visible,
)
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


# --- hostile text in tables -----------------------------------------------------------------------

HOSTILE = [
    "</script><script>alert(1)</script>",
    "\x1b[2J\x1b[31mred",
    "a|b",
    "a\\|b",
    "line\nbreak\r\n",
    "\u2028\u2029",
    "`code` ``more``",
    "**bold** _it_ ~~x~~",
    "@someone #12 !3",
    "[x](http://y.z) www.example.com http://a.b",
    "<img src=x onerror=alert(1)>",
    "&lt; &amp;",
    "\u202egnp.exe",
    "\x00\x07\x9b1m",
    "\ud800",
    "# title",
    "- item",
    "| --- |",
    "",
    "   ",
    "{{ 7 * 7 }}",
    "'\"",
    "$x$",
    "<!--",
    "]]>",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_terminal_gets_printable_characters_only(text):
    shown = visible(text)
    assert all(c.isprintable() for c in shown)
    shown.encode("utf-8")


def test_visible_cuts_and_keeps_what_people_write():
    assert visible("x" * 61) == "x" * 59 + "…" and visible("x" * 60) == "x" * 60
    assert visible("naïve 東京 שלום नमस्ते 👩‍👩‍👧 می‌خواهم") == "naïve 東京 שלום नमस्ते 👩‍👩‍👧 می‌خواهم"
    assert visible(12.5) == "12.5" and visible(None) == "None"


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_holds_no_character_with_a_meaning(text):
    inside = re.fullmatch(r"<code>(.*)</code>", in_markdown(Data(text)))[1]
    assert not re.search(r"[^\w\s–&#;-]|_", re.sub(r"&#\d+;", "", inside)) and "\n" not in inside
    assert unescape(inside) == visible(text)  # what is read is what was there


def test_own_text_stays_as_it_is():
    assert in_markdown("**bold**") == "**bold**" and in_html("a < b") == "a &lt; b"


class Cells(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.texts = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag in ("td", "th"):
            self.texts.append("")

    def handle_data(self, data):
        if self.texts:
            self.texts[-1] += data


@pytest.mark.parametrize("text", HOSTILE)
def test_tables_keep_their_shape(text):
    section = Section("t", ("name", "n"), [(Data(text), "1"), (Data("plain"), "2")], note="n")
    lines = as_markdown(section).splitlines()
    assert len(lines) == 8 and all(line.count("|") == 3 for line in lines[2:6])
    assert len(as_text(section).splitlines()) == 5 and all(
        c.isprintable() for line in as_text(section).splitlines() for c in line
    )
    parser = Cells()
    parser.feed(as_html(section))
    assert set(parser.tags) == {"table", "caption", "b", "tr", "th", "td", "p"} and parser.texts[
        2
    ] == visible(text)


def test_columns_are_aligned():
    section = Section("t", ("a", "bb", "c"), [("1", "22", "x"), ("333", "4", "yy")], "lrl")
    assert as_text(section) == "t\na    bb  c\n1    22  x\n333   4  yy"
    assert as_markdown(section).splitlines()[3] == "| :-- | --: | :-- |"
    assert (
        re.findall("text-align:(left|right)'>[^<]", as_html(section))
        == ["left", "right", "left"] * 3
    )


def test_wide_and_combining_characters():
    lines = as_text(
        Section("t", ("k", "n"), [(Data("東京"), "1"), (Data("e\u0301e"), "2")])
    ).splitlines()
    assert lines[2:] == ["東京  1", "e\u0301e    2"]


@pytest.mark.parametrize("seed", range(20))
def test_random_text(seed):
    draw = np.random.default_rng(seed)
    text = "".join(map(chr, draw.integers(0, 0x2FFF, 40)))
    section = Section("t", ("name", "n"), [(Data(text), "1")])
    assert as_markdown(section).count("|") == 9 and len(as_text(section).split("\n")) == 3


@pytest.mark.parametrize(
    "share, words",
    [
        (0.0123, "1.23 %"),
        (0, "0.00 %"),
        (1, "100.00 %"),
        (-0.5, "-50.00 %"),
        (0.0005, "0.05 %"),
        (0.00012345, "0.012 %"),
        (1e-7, "0.000010 %"),
        (None, "undefined"),
    ],
)
def test_percent(share, words):
    assert percent(share) == words


def test_differences_and_p_values():
    assert (
        points(0.0123) == "+1.23 points"
        and points(-0.5) == "-50.00 points"
        and points(0) == "+0.00 points"
    )
    assert in_words(0.04999) == "= 0.05" and in_words(1.0) == "= 1" and in_words(0.0) == "< 1e-300"


def test_a_long_reason_goes_on_in_the_next_line():
    gate = {"status": "holds", "conditions": []}
    reason = "0.82 % (interval 0.17 to 2.36 %, 368 examples) cannot be held against the limit"
    gate["conditions"] = [
        {"status": "holds", "name": "max_nfr", "where": {}, "reason": reason},
    ]
    lines = as_text(gate_section(gate, 5), width=80).splitlines()
    assert len(lines) == 4 and all(len(line) <= 80 for line in lines)
    assert " ".join(line[lines[1].index("reason") :] for line in lines[2:]) == reason
    wide = as_text(gate_section(gate, 5), width=140).splitlines()
    assert len(wide) == 3 and wide[2].endswith(reason)
