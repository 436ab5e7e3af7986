"""The module `page`: what stands on the page, that nothing in the data can act, and the page
itself in a browser.
"""

import json
import re
import subprocess
import sys
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.resources import files
from math import inf, nan
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from browser import READABLE, complaints, contrast, luminance, requests, screen, script

from compatkit.compare import compare
from compatkit.compare.page import (
    QUADRANTS,
    SHOWN_AT_MOST,
    Measured,
    Scale,
    Table,
    _percent,
    render,
)
from compatkit.metrics import MEASURES, SCORE_MEASURES

ROOT = Path(__file__).resolve().parents[2]
THIN = "\u202f"


def measured(value, reach=0.02, n=200):
    return {"value": value, "low": value - reach, "high": value + reach, "n": n}


# 200 examples: 130 both right, 10 negative, 30 positive, 18 the same error, 12 different errors
COUNTS = {
    "both_right": 130,
    "negative": 10,
    "positive": 30,
    "both_wrong_same": 18,
    "both_wrong_different": 12,
}
OVERALL = {
    "counts": COUNTS,
    "accuracy_old": measured(0.7),
    "accuracy_new": measured(0.8),
    "nfr": measured(0.05),
    "pfr": measured(0.15),
    "relative_nfr": measured(0.36),
    "nfi": measured(0.25),
    "btc": measured(0.93),
    "bec": measured(0.75),
    "nfr_mc": measured(0.11),
    "accuracy_gain": measured(0.1),
    "mcnemar": {"value": 0.0022, "n": 40},
}
SCORED = {
    "pfr": measured(0.4),
    "nfr": measured(0.3),
    "gain": measured(0.2),
    "regression": measured(0.1),
    "mean_difference": measured(0.05),
    "mean_old": measured(0.5),
    "mean_new": measured(0.55),
}


def summary_of(**parts):
    """A whole summary after the contract; parts replace its parts."""
    classes = {
        name: {
            "n": 50,
            "accuracy_old": measured(0.7, n=50),
            "accuracy_new": measured(0.8, n=50),
            "nfr": measured(share, n=50),
            "pfr": measured(0.1, n=50),
        }
        for name, share in (("play", 0.02), ("alarm", 0.12), ("mail", 0.06))
    }
    slices = [
        {
            "where": {"label": "alarm"},
            "n": 50,
            "share": 0.25,
            "negative": 6,
            "positive": 5,
            "nfr": measured(0.12, n=50),
            "p": 0.001,
            "q": 0.004,
            "significant": True,
        },
        {
            "where": {"words": "3 – 7", "label": "mail"},
            "n": 20,
            "share": 0.1,
            "negative": 0,
            "positive": 2,
            "nfr": measured(0, 0, 20),
            "p": 1.0,
            "q": 1.0,
            "significant": False,
        },
    ]
    condition = {
        "name": "max_nfr",
        "where": {},
        "limit": 0.04,
        "value": 0.05,
        "bound": 0.07,
        "status": "failed",
        "reason": "5 % breaks the limit 4 %",
    }
    return {
        "old": "first.csv",
        "new": "second.csv",
        "examples": 200,
        "left_out": {"old only": 2, "new only": 0},
        "notes": ["A note."],
        "verdict": {"word": "better but regresses", "reason": "Because of the numbers."},
        "overall": OVERALL,
        "classes": classes,
        "slices": slices,
        "tasks": {"piqa (acc)": {"overall": OVERALL}, "samsum": {"overall": {"scores": SCORED}}},
        "gate": {"status": "failed", "conditions": [condition]},
    } | parts


def rows_of(n, start=0):
    """Rows of three quadrants with numbers, repeated answers and a value that is sometimes
    missing.
    """
    quadrants, answers = (
        ("negative", "positive", "both wrong, different"),
        ("alarm", "mail", "play"),
    )
    return [
        {
            "id": f"example {number}",
            "quadrant": quadrants[number % 3],
            "label": answers[number % 2],
            "old": answers[number % 3],
            "new": answers[(number + 1) % 3],
            "length": None if number % 10 == 9 else (number * 37) % 101 / 4,
            "request": f"Wake {'ME' if number % 4 else 'us'} up at {number}",
        }
        for number in range(start, start + n)
    ]


class Reader(HTMLParser):
    """Tags with their attributes, and the text outside style and script; complains about tags
    that are closed in the wrong order.
    """

    VOID = {"meta", "input", "br", "col", "link", "img"}

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.words = [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, text):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(text)

    @property
    def text(self):
        return re.sub("[ \n]+", " ", "".join(self.words))

    def parts(self):
        """The identities of the sections."""
        return [found["id"] for tag, found in self.tags if tag == "section"]


def island(page):
    return json.loads(
        re.search(r'<script type="application/json" id="rows">(.*?)</script>', page, re.S)[1]
    )


# --- what stands on the page ----------------------------------------------------------------------


def test_a_whole_summary_fills_every_section():
    page = Reader(render(summary_of(overall=OVERALL | {"scores": SCORED}), rows_of(40)))
    assert page.parts() == [
        "gate",
        "verdict",
        "quadrants",
        "measures",
        "scores",
        "classes",
        "slices",
        "tasks",
        "notes",
        "flips",
    ]
    for words in (
        "better but regresses",
        "Because of the numbers.",
        "A note.",
        "first.csv → second.csv",
        "2 examples of the old version",
        "max_nfr",
        "Of 140 answers that were right, 10 are now wrong; of 60 that were wrong, 30 are now "
        "right.",
    ):
        assert words in page.text
    for known in [*MEASURES.values(), *SCORE_MEASURES.values()]:
        assert f"{known.name}{known.explanation}" in page.text


def test_the_page_says_its_language_and_fits_a_phone():
    tags = Reader(render(summary_of(), rows_of(3))).tags
    assert ("html", {"lang": "en"}) in tags
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in tags
    labelled = {found["for"] for tag, found in tags if tag == "label" and "for" in found}
    assert {
        found["id"]
        for tag, found in tags
        if tag in ("input", "select") and found.get("type") != "radio"
    } == labelled
    assert all(found.get("type") == "button" for tag, found in tags if tag == "button")
    assert ("p", {"role": "status", "id": "hits"}) in tags  # the number of hits is read out


@pytest.mark.parametrize(
    "missing",
    [
        "old",
        "new",
        "examples",
        "left_out",
        "notes",
        "verdict",
        "overall",
        "classes",
        "slices",
        "tasks",
        "gate",
    ],
)
def test_any_part_may_be_missing_or_null(missing):
    whole = summary_of()
    without, null = (
        {key: part for key, part in whole.items() if key != missing},
        whole | {missing: None},
    )
    for summary in (without, null):
        page = Reader(render(summary, rows_of(3)))
        assert missing not in page.parts() and "None" not in page.text and "nan" not in page.text


def test_nothing_at_all_is_still_a_page():
    page = Reader(render({}, []))
    assert page.parts() == ["flips"] and "There is no flip to show." in page.text


def test_scores_alone_have_no_quadrants():
    page = Reader(
        render(summary_of(overall={"scores": SCORED}, classes={}, tasks={}, gate=None), [])
    )
    assert page.parts() == ["verdict", "scores", "slices", "notes", "flips"]
    assert f"30.0{THIN}%" in page.text and "+0.050" in page.text


@pytest.mark.parametrize(
    "unknown", [None, nan, inf, "much", {"value": None, "low": None, "high": None, "n": 0}]
)
def test_what_is_unknown_is_a_dash(unknown):
    page = render(
        {
            "examples": unknown if not isinstance(unknown, dict) else None,
            "overall": {"nfr": unknown, "counts": {"negative": None}},
        },
        [{"id": unknown}],
    )
    row = re.search(r"Negative flip rate.*?</tr>", page, re.S)[0]
    assert (
        '<td class="number value">–</td><td class="number range"></td>' in row
        and "<circle" not in row
    )
    assert "nan" not in Reader(page).text


def test_a_single_example_is_not_plural():
    text = Reader(
        render(
            {"examples": 1, "overall": {"counts": dict.fromkeys(QUADRANTS, 0) | {"negative": 1}}},
            rows_of(1),
            rows_left_out=1,
        )
    ).text
    assert "1 example answered" in text
    assert (
        "Of 1 answer that was right, 1 is now wrong; of 0 that were wrong, 0 are now right." in text
    )
    assert "1 example, old and new answer side by side. 1 more row is not on this page." in text


def test_rows_that_are_left_out_are_counted_and_named():
    page = render({}, rows_of(2), rows_left_out=12345, csv_name="all flips.csv")
    assert (
        "12,345 more rows are in all flips.csv beside this page." in Reader(page).text
        and 'href="./all%20flips.csv"' in page
    )
    assert (
        "12,345 more rows are not on this page."
        in Reader(render({}, rows_of(2), rows_left_out=12345)).text
    )
    assert 'href="./javascript%3Aalert%281%29"' in render(
        {}, rows_of(2), rows_left_out=1, csv_name="javascript:alert(1)"
    )


def test_areas_of_the_quadrants_are_their_shares():
    generator = np.random.default_rng(0)
    for counts in generator.integers(0, 1000, (50, 5)).tolist():
        page = render({"overall": {"counts": dict(zip(QUADRANTS, counts))}}, [])
        negative, positive, different, same, right = counts
        square = (
            r'<rect class="(?:right|negative|positive|both_wrong_different)" x="[\d.]+" '
            r'y="[\d.]+" width="([\d.]+)"'
        )
        squares = [float(side) for side in re.findall(square, page)]
        shares = np.array([right, negative, positive, different + same]) / sum(counts)
        assert squares == pytest.approx(
            np.maximum(100 * shares**0.5, np.where(shares > 0, 1.5, 0)).tolist(), abs=0.01
        )
        part = float(
            re.search(
                r'<rect class="both_wrong_same" x="[\d.]+" y="[\d.]+" width="([\d.]+)"', page
            )[1]
        )
        assert part == pytest.approx(squares[3] * same / max(1, same + different), abs=0.02)


def test_dots_and_whiskers_stand_where_the_numbers_say():
    page = render({"overall": {"nfi": measured(0.25, 0.05), "bec": measured(0.5, 0.1)}}, [])
    drawn = re.findall(
        r'x1="([\d.]+)%" x2="([\d.]+)%" y1="1.3em" y2="1.3em"/><circle class="point" '
        r'cx="([\d.]+)%"',
        page,
    )
    assert [[float(place) for place in places] for places in drawn] == [[20, 30, 25], [40, 60, 50]]


def test_scales_hold_what_is_drawn_and_mark_round_values():
    generator = np.random.default_rng(1)
    for low, width in zip(generator.normal(size=100), 10 ** generator.uniform(-6, 6, 100)):
        ticks = Scale(low, low + width).ticks
        assert 2 <= len(ticks) <= 8
        places = [float(tick["at"].rstrip("%")) for tick in ticks]
        assert places == sorted(places) and 0 <= places[0] and places[-1] <= 100
        assert np.ptp(np.diff(places)) < 0.02 or len(places) < 3


def test_equal_scores_have_a_page(tmp_path):
    both = [tmp_path / name for name in ("old.csv", "new.csv")]
    for path in both:
        path.write_text("id,score\na,1\nb,2\n")
    page = compare(*both).to_html()
    assert "<svg" in page and "nan%" not in page


def test_every_placeholder_of_the_page_is_filled():
    page = render(summary_of(overall=OVERALL | {"scores": SCORED}), rows_of(40))
    assert re.search(r"each line its 95\s*% interval", page)
    assert "{{" not in page and "{%" not in page


def test_classes_come_by_negative_flips_counted_from_their_rates():
    page = render(summary_of(), [])
    section = page[page.index('id="classes"') : page.index('id="slices"')]
    assert re.findall(r'<th scope="row"><bdi>(\w+)</bdi>', section) == ["alarm", "mail", "play"]
    assert re.findall(r'data-name="negative">(\d+)<', section) == ["6", "3", "1"]


def test_rates_of_random_counts_give_the_counts_back():
    generator = np.random.default_rng(2)
    sizes = generator.integers(1, 10**6, 200)
    flips = (sizes * generator.random(200)).astype(int)
    classes = {
        f"class {number}": {
            "n": int(n),
            "nfr": {"value": k / n, "n": int(n)},
            "pfr": {"value": 0.0, "n": int(n)},
        }
        for number, (n, k) in enumerate(zip(sizes, flips))
    }
    page = render({"classes": classes}, [])
    assert [
        int(found.replace(",", "")) for found in re.findall(r'data-name="negative">([\d,]+)<', page)
    ] == sorted(flips.tolist(), reverse=True)


def test_tables_are_bounded_and_say_so():
    classes = {
        f"class {number}": {"n": 1, "nfr": 0, "pfr": 0} for number in range(SHOWN_AT_MOST + 7)
    }
    page = Reader(render({"classes": classes}, []))
    assert f"Show all {SHOWN_AT_MOST}" in page.text and "7 more are not on this page" in page.text
    assert (
        sum("more" in found.get("class", "") for tag, found in page.tags if tag == "tr")
        == SHOWN_AT_MOST - 20
    )


def test_units_of_the_gate_are_those_of_its_measures():
    conditions = [
        {"name": name, "limit": 0.5, "value": 0.25, "bound": None, "status": "holds"}
        for name in ("max_nfr", "min_accuracy_gain", "min_mean_difference", "novel")
    ]
    text = Reader(render({"gate": {"status": "holds", "conditions": conditions}}, [])).text
    for words in (
        f"50.0{THIN}%25.0{THIN}%–",
        f"+50.0{THIN}points+25.0{THIN}points–",
        "min_mean_differenceall examples0.5000.250–",
        "novelall examples0.5000.250–",
    ):
        assert words in text


def test_numbers_are_rounded_but_never_to_a_wrong_zero():
    assert [_percent(share, 1) for share in (0, 0.0004, 0.0006, 0.99951, 1, -0.001, 2**-30)] == [
        f"0.0{THIN}%",
        f"<{THIN}0.1{THIN}%",
        f"0.1{THIN}%",
        f"100.0{THIN}%",
        f"100.0{THIN}%",
        f"−0.1{THIN}%",
        f"<{THIN}0.1{THIN}%",
    ]


def test_measured_takes_numbers_of_any_kind():
    assert Measured.of({"value": np.float32(0.5), "n": np.int64(3)})[::3] == (0.5, 3)
    assert str(Measured.of({"value": "x"})) == str(Measured())


# --- the rows -------------------------------------------------------------------------------------


def test_the_island_gives_every_value_back():
    generator = np.random.default_rng(3)
    rows = [
        {
            "id": int(generator.integers(10)),
            "text": "".join(map(chr, generator.integers(0x20, 0x2FFF, 8))),
            "score": float(generator.normal()),
            "flag": bool(generator.integers(2)),
            "none": None,
        }
        for _ in range(300)
    ]
    columns = {column["key"]: column for column in island(render({}, rows))["columns"]}
    assert list(columns) == ["id", "text", "score", "flag"]
    for key, back in (
        ("id", lambda row: row["id"]),
        ("score", lambda row: pytest.approx(row["score"], abs=1e-4)),
        ("flag", lambda row: str(row["flag"])),
    ):
        column = columns[key]
        values = (
            [column["names"][code] for code in column["codes"]]
            if "names" in column
            else column["values"]
        )
        assert values == [back(row) for row in rows]
    kept = [row["text"] for row in rows if row["text"].isprintable()]
    assert len(kept) > 100 and set(kept) <= set(columns["text"]["values"])


def test_values_of_other_kinds_become_text_or_numbers():
    row = {
        "id": np.str_("a"),
        "when": np.datetime64("2024-02-03"),
        "many": [1, "<b>"],
        "large": 2**70,
        "far": inf,
        "raw": b"\xff",
        3: np.float32(0.5),
        "not": np.bool_(True),
    }
    columns = {
        column["key"]: (column.get("values") or column["names"])[0]
        for column in island(render({}, [row, {"id": "b"}, {"id": "c"}]))["columns"]
    }
    assert columns == {
        "id": "a",
        "when": "2024-02-03",
        "many": '[1, "<b>"]',
        "large": str(2**70),
        "far": "inf",
        "raw": "b'\\xff'",
        "3": 0.5,
        "not": "True",
    }


def test_known_columns_come_first_whatever_the_order():
    row = {"extra": 1, "new": "b", "old": "a", "quadrant": "negative", "id": "x", "label": "a"}
    names = [column["name"] for column in island(render({}, [row]))["columns"]]
    assert names == ["id", "flip", "right answer", "old answer", "new answer", "extra"]


def test_numbers_lead_only_to_rows_that_are_there():
    table = Table(rows_of(6))
    assert json.loads(table.link({"quadrant": "negative", "label": "alarm"})) == {
        "quadrant": "negative",
        "label": "alarm",
    }
    assert json.loads(table.link({"quadrant": "both_wrong_different"})) == {
        "quadrant": "both wrong, different"
    }
    for nowhere in ({"quadrant": "both_right"}, {"label": "nowhere"}, {"no column": "x"}, {}):
        assert table.link(nowhere) is None


@pytest.mark.parametrize("rows", [[("a", "b")], [{"id": "x"}, "y"]])
def test_rows_that_are_no_dictionaries_are_named(rows):
    with pytest.raises(ValueError, match=r"row [01] is a (tuple|str).*dictionar"):
        render({}, rows)


# --- nothing in the data can act ------------------------------------------------------------------

HOSTILE = [
    "</script><script>window.harmed = 1</script>",
    '<img src=x onerror="window.harmed = 1">',
    "<!-- <script>",
    "</bdi></td></table><h1>gone</h1>",
    "{{ 7 * 7 }}{% raw %}",
    "\u2028window.harmed = 1//\u2029",
    "\u202ereversed\u2066",
    "null \x00 bell \x07 escape \x1b[31m delete \x7f",
    "half \ud800 pair \udfff",
    '" onclick="window.harmed = 1',
    "' x='",
    "&lt;b&gt; &amp; &#x41;",
    "javascript:window.harmed = 1",
    "__proto__",
    "constructor",
    "]]>",
    "x" * 3000,
    "\u0627\u0644\u0639 123 abc",
    "\ufdd0\ufffe",
    " \t\r\n ",
]


def hostile_page(text):
    """The same text in every place that data can reach."""
    value = {"n": 50, "nfr": measured(0.1, n=50), "pfr": measured(0.1, n=50)}
    summary = {
        "old": text,
        "new": text,
        "examples": 9,
        "notes": [text],
        "verdict": {"word": text, "reason": text},
        "overall": OVERALL | {text: measured(0.1)},
        "classes": {text: value},
        "slices": [{"where": {text: text}, "n": 5, "nfr": measured(0.1)}],
        "tasks": {text: {"overall": OVERALL}},
        "gate": {
            "status": text,
            "conditions": [
                {"name": text, "where": {text: text}, "status": text, "reason": text, "limit": text}
            ],
        },
    }
    rows = [
        {
            "id": text,
            "quadrant": text,
            "label": text,
            "old": text,
            "new": text,
            "old_text": text,
            "new_text": text + " more",
            text: text,
        },
        {"id": "calm", "quadrant": "negative"},
    ]
    return render(summary, rows, title=text, rows_left_out=3, csv_name=text)


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:24])
def test_text_from_data_adds_no_markup(text):
    page, calm = hostile_page(text), hostile_page("calm words")
    page.encode("utf-8")  # a lone surrogate would not be written
    assert not set(
        re.findall(
            "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", island_text(page)
        )
    )

    def kinds(tags):
        return {
            (tag, *sorted(found)) for tag, found in tags if not {"data-where", "value"} & set(found)
        }

    assert kinds(Reader(page).tags) <= kinds(Reader(calm).tags) | {("h2",), ("a", "href")}
    assert not [
        found
        for _, found in Reader(page).tags
        for name in found
        if name.startswith("on") or name == "style"
    ]
    assert [
        found for tag, found in Reader(page).tags if tag in ("img", "link", "iframe", "object")
    ] == []


def island_text(page):
    return page[page.index('id="rows"') : page.index("</script>", page.index('id="rows"'))]


def test_only_the_pages_own_style_and_script_are_allowed():
    page = render(summary_of(), rows_of(3))
    policy = next(
        found["content"]
        for tag, found in Reader(page).tags
        if found.get("http-equiv") == "Content-Security-Policy"
    )
    hashes = {
        tag: "'sha256-"
        + b64encode(
            sha256(re.search(f"<{tag}>(.*?)</{tag}>", page, re.S)[1].encode()).digest()
        ).decode()
        + "'"
        for tag in ("style", "script")
    }
    own = f"style-src {hashes['style']}; script-src {hashes['script']}"
    assert policy == f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"
    assert page.index("Content-Security-Policy") < page.index("<title>") < page.index("<style>")


def test_the_page_names_nothing_outside_itself():
    page = render(summary_of(), rows_of(3))
    assert not re.search(r"https?://|@import|url\((?!#)", page)
    assert all(found["href"].startswith("#") for tag, found in Reader(page).tags if "href" in found)
    assert (
        "innerHTML" not in page
        and "insertAdjacentHTML" not in page
        and "document.write" not in page
        and "eval(" not in page
    )


def test_the_same_input_gives_the_same_page():
    code = (
        "import sys; sys.path.insert(0, '..'); from test_page import *; "
        "sys.stdout.write(render(summary_of(), rows_of(50)))"
    )

    def run(seed):
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT / "tests" / "compare",
            capture_output=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"},
        )

    assert len({run(seed).stdout for seed in "12"}) == 1


# --- colours --------------------------------------------------------------------------------------


def palettes():
    style = (files("compatkit.compare") / "page.css").read_text(encoding="utf-8")
    found = [
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
        for block in re.findall(r":root \{(.*?)\}", style, re.S)
    ]
    colours = [
        {key: tuple(bytes.fromhex(colour[1:])) for key, colour in palette.items()}
        for palette in found
    ]
    return dict(zip(("light", "dark"), colours))


def test_contrast_is_computed_as_wcag_says():
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_palette_is_readable(theme):
    palette = palettes()[theme]
    assert palettes()["light"].keys() == palettes()["dark"].keys()
    grounds = ["paper", "surface", *(name for name in palette if name.endswith("-tint"))]
    read = {"text": grounds, "muted": grounds, "link": ["paper", "surface"], "paper": ["text"]}
    read |= {
        name: ["paper", "surface", f"{name}-tint"]
        for name in ("negative", "positive", "wrong", "good", "warn", "bad", "calm")
    }
    for colour, ground in ((colour, ground) for colour in read for ground in read[colour]):
        assert contrast(palette[colour], palette[ground]) >= 4.5, f"{colour} on {ground}"
    for drawn in ("steady", "control"):
        assert (
            contrast(palette[drawn], palette["paper"]) >= 3
            and contrast(palette[drawn], palette["surface"]) >= 3
        ), drawn


# --- in a browser ---------------------------------------------------------------------------------


@pytest.fixture
def show(browser, tmp_path):
    """Opens a page from disk; afterwards the browser must have asked for nothing else and
    complained about nothing.
    """
    opened = []

    def open_page(page, **how):
        path = tmp_path / f"page {len(opened)}.html"
        path.write_text(page, encoding="utf-8")
        opened.append(path.as_uri())
        screen(browser, **how)
        requests(browser), complaints(browser)
        browser.get(opened[-1])
        return browser

    yield open_page
    assert {one.partition("#")[0] for one in requests(browser)} <= set(opened)
    assert complaints(browser) == []


def ask(browser, question):
    """The value of an expression in the page, in which `one` and `all` find elements."""
    finders = (
        "const one = s => document.querySelector(s), all = s => [...document.querySelectorAll(s)];"
    )
    return browser.execute_script(f"{finders} return {question}")


def texts(browser, selector):
    return ask(browser, f"all({json.dumps(selector)}).map(e => e.textContent)")


def column(browser, name):
    """What the visible rows say in one column."""
    return texts(browser, f'.flips td[data-name="{name}"] bdi')


def hits(browser):
    return texts(browser, "#hits")[0]


def search(browser, words):
    """Types into the search field and waits until the table has answered."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    field = browser.find_element(By.ID, "search")
    browser.execute_script("arguments[0].select()", field)
    field.send_keys(words or Keys.DELETE)
    settle(browser)


def settle(browser):
    """Waits longer than the search does before it starts."""
    browser.execute_async_script("setTimeout(arguments[0], 60)")


def press(browser, *keys):
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


def press_back(browser):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    ActionChains(browser).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()


def click(browser, selector, place=0):
    browser.execute_script(
        "document.querySelectorAll(arguments[0])[arguments[1]].click()", selector, place
    )


def test_the_search_narrows_in_all_columns(show):
    browser = show(render(summary_of(), rows_of(60)))
    assert hits(browser) == "60 rows" and len(column(browser, "id")) == 25
    for words, expected in [
        ("wake US", [n for n in range(60) if n % 4 == 0]),
        ("EXAMPLE 7", [7]),
        ("different answers", list(range(2, 60, 3))),
        ("9.25", [1, 13]),
        ("at 5", [5, *range(50, 60)]),
    ]:
        search(browser, words)
        assert column(browser, "id") == [f"example {number}" for number in expected][:25], words
        assert hits(browser) == f"{len(expected)} of 60 rows"
    search(browser, "nowhere")
    assert (
        hits(browser) == "none of 60 rows"
        and column(browser, "id") == []
        and texts(browser, "#place") == ["no rows"]
    )
    search(browser, "")
    assert hits(browser) == "60 rows"


def test_quadrants_filter_alone_and_with_the_search(show):
    browser = show(render(summary_of(), rows_of(60)))
    choices = [" ".join(text.split()) for text in texts(browser, ".choice label")]
    assert choices == [
        "all 60",
        "▼negative flip 20",
        "▲positive flip 20",
        "≠both wrong, different answers 20",
    ]
    click(browser, ".choice input", 1)
    assert set(column(browser, "flip")) == {"▼ negative flip"} and hits(browser) == "20 of 60 rows"
    search(browser, "wake us")
    assert column(browser, "id") == [f"example {number}" for number in range(0, 60, 12)]
    click(browser, ".choice input", 0)
    assert hits(browser) == "15 of 60 rows"


def test_columns_sort_both_ways_numbers_as_numbers_and_missing_ones_last(show):
    rows = rows_of(60)
    browser = show(render(summary_of(), rows))
    names = texts(browser, ".flips thead th")
    assert names == ["id", "flip", "right answer", "old answer", "new answer", "length", "request"]
    lengths = sorted(row["length"] for row in rows if row["length"] is not None)
    head = ".flips thead button"
    click(browser, "#size", 0)
    browser.execute_script(
        "const s = document.querySelector('#size'); s.value = '100'; s.dispatchEvent(new "
        "Event('change'))"
    )
    for direction, expected in (("ascending", lengths), ("descending", lengths[::-1])):
        click(browser, head, 5)
        shown = column(browser, "length")
        assert [float(text) for text in shown[:54]] == expected and shown[54:] == ["–"] * 6
        states = ask(browser, "all('.flips thead th').map(e => e.getAttribute('aria-sort'))")
        assert states == [None] * 5 + [direction, None]
    click(browser, head, 0)
    assert column(browser, "id") == [f"example {number}" for number in range(60)]  # 2 before 10
    click(browser, head, 1)
    click(browser, head, 1)
    assert (
        column(browser, "flip")
        == ["▲ positive flip"] * 20
        + ["▼ negative flip"] * 20
        + ["≠ both wrong, different answers"] * 20
    )
    assert column(browser, "id")[:2] == ["example 1", "example 4"]  # equal ones keep their order


def test_pages_turn_and_stop_at_the_ends(show):
    browser = show(render(summary_of(), rows_of(60)))
    seen = [texts(browser, "#place")[0]]
    for button in ("next", "next", "next", "first", "previous", "last", "previous"):
        click(browser, f'[data-page="{button}"]')
        seen.append(texts(browser, "#place")[0])
    places = ("1 – 25", "26 – 50", "51 – 60", "51 – 60", "1 – 25", "1 – 25", "51 – 60", "26 – 50")
    assert seen == [f"{place} of 60" for place in places]
    browser.execute_script(
        "const s = document.querySelector('#size'); s.value = '10'; s.dispatchEvent(new "
        "Event('change'))"
    )
    assert (
        texts(browser, "#place") == ["21 – 30 of 60"] and column(browser, "id")[0] == "example 20"
    )
    search(browser, "example 5")
    assert texts(browser, "#place") == ["1 – 10 of 11"]


def test_everything_can_be_reached_and_worked_with_the_keyboard_alone(show):
    from selenium.webdriver.common.keys import Keys

    browser = show(render(summary_of(), rows_of(60)))
    named = (
        "(e => e.id || e.dataset.page || e.name || (e.closest('th') ? 'head ' : '') + "
        "e.textContent)(document.activeElement)"
    )
    outline = (
        "(e => getComputedStyle(e.type === 'radio' ? e.nextElementSibling : "
        "e))(document.activeElement).outline"
    )

    def focused():
        return ask(browser, named)

    def outlined():
        return "solid 3px" in ask(browser, outline)

    press(browser, Keys.TAB)
    assert focused() == "Skip to the flips" and outlined()
    press(browser, Keys.ENTER)
    assert focused() == "flips"
    order = []
    for _ in range(14):
        press(browser, Keys.TAB)
        order.append(focused())
        assert outlined(), order[-1]
    assert order == [
        "search",
        "quadrant",
        *(
            f"head {name}"
            for name in (
                "id",
                "flip",
                "right answer",
                "old answer",
                "new answer",
                "length",
                "request",
            )
        ),
        "first",
        "previous",
        "next",
        "last",
        "size",
    ]

    def back_to(name):
        return next(name for _ in range(20) if press_back(browser) is None and focused() == name)

    back_to("next")
    press(browser, Keys.ENTER)
    assert texts(browser, "#place") == ["26 – 50 of 60"] and focused() == "next"
    back_to("head length")
    press(browser, Keys.ENTER, Keys.SPACE)
    assert column(browser, "length")[0] == "25" and focused() == "head length"  # twice: descending
    back_to("quadrant")
    press(browser, Keys.ARROW_RIGHT)
    assert hits(browser) == "20 of 60 rows"
    back_to("search")
    press(browser, "example 1")
    settle(browser)
    assert hits(browser) == "3 of 60 rows"  # 12, 15, 18


def test_numbers_lead_to_their_examples(show):
    browser = show(render(summary_of(), rows_of(60)))
    click(browser, "#quadrants td.positive a")
    assert hits(browser) == "20 of 60 rows"
    assert ask(browser, "one('input[name=quadrant]:checked').parentElement.textContent").startswith(
        "▲positive flip"
    )
    search(browser, "wake us")
    click(browser, "#classes tbody a")  # alarm, negative
    assert hits(browser) == "10 of 60 rows"
    assert set(column(browser, "right answer")) == {"alarm"} and set(column(browser, "flip")) == {
        "▼ negative flip"
    }
    assert (
        texts(browser, "#only") == ["only right answer alarm ✕"]
        and ask(browser, "one('#search').value") == ""
    )
    click(browser, "#only")
    assert (
        hits(browser) == "20 of 60 rows"
        and browser.execute_script("return document.activeElement.id") == "search"
    )


def test_long_lists_of_classes_open_on_demand(show):
    classes = {
        f"class {number}": {"n": 5, "nfr": measured(0.2, n=5), "pfr": measured(0, n=5)}
        for number in range(30)
    }
    browser = show(render({"classes": classes}, []))

    def visible():
        return ask(browser, "all('#classes tbody tr').filter(e => e.offsetHeight).length")

    def button():
        return ask(
            browser, "(e => [e.textContent, e.getAttribute('aria-expanded')])(one('.show-all'))"
        )

    assert visible() == 20 and button() == ["Show all 30", "false"]
    click(browser, ".show-all")
    assert visible() == 30 and button() == ["Show the first 20 only", "true"]
    click(browser, ".show-all")
    assert visible() == 20 and button() == ["Show all 30", "false"]


def test_differing_words_are_marked_and_no_word_is_lost(show):
    generator = np.random.default_rng(4)
    words = (
        "the ferry leaves at noon, from pier nine; 3.14 don’t 東京は晴れです  two\nlines ".split(
            " "
        )
    )
    pairs = [
        ("the cat sat on the mat", "the dog sat on a mat"),
        ("same", "same"),
        ("", "new"),
        ("a b", ""),
    ]
    pairs += [
        tuple(" ".join(generator.choice(words, size)) for size in generator.integers(1, 15, 2))
        for _ in range(15)
    ]
    rows = [
        {"id": str(number), "old_text": before, "new_text": after}
        for number, (before, after) in enumerate(pairs)
    ]
    browser = show(render({}, rows))
    rows = ask(
        browser,
        """all('.flips tbody tr').map(row => ['old text', 'new text'].map(name => {
        const cell = row.querySelector(`td[data-name="${name}"]`);
        return [cell.textContent, [...cell.querySelectorAll('ins, del')].map(e => [e.localName, e.textContent])] }))""",  # noqa: E501
    )
    assert [(before, after) for (before, _), (after, _) in rows] == pairs
    assert rows[0] == [
        [pairs[0][0], [["del", "cat"], ["del", "the"]]],
        [pairs[0][1], [["ins", "dog"], ["ins", "a"]]],
    ]
    assert rows[1][0][1] == rows[1][1][1] == []
    for (_, removed), (_, added) in rows:
        assert {kind for kind, _ in removed} <= {"del"} and {kind for kind, _ in added} <= {"ins"}


def test_what_is_not_marked_is_common_to_both(show):
    generator = np.random.default_rng(5)
    pairs = [
        tuple(
            " ".join(generator.choice(list("abcde"), size)) for size in generator.integers(1, 30, 2)
        )
        for _ in range(25)
    ]
    rows = [
        {"id": str(number), "old_text": before, "new_text": after}
        for number, (before, after) in enumerate(pairs)
    ]
    browser = show(render({}, rows))
    rows = ask(
        browser,
        """all('.flips tbody tr').map(row => ['old text', 'new text'].map(name => {
        const cell = row.querySelector(`td[data-name="${name}"]`).cloneNode(true);
        for (const e of cell.querySelectorAll('ins, del')) e.remove();
        return cell.textContent.split(/\\s+/).join('') }))""",
    )
    for (kept_before, kept_after), (before, after) in zip(rows, pairs):
        longest = np.zeros((len(before.split()) + 1, len(after.split()) + 1), int)
        for i, first in enumerate(before.split()):
            for j, second in enumerate(after.split()):
                longest[i + 1, j + 1] = (
                    longest[i, j] + 1
                    if first == second
                    else max(longest[i, j + 1], longest[i + 1, j])
                )
        assert kept_before == kept_after and len(kept_before) == longest[-1, -1]


def test_long_texts_are_shortened_around_what_differs(show):
    before = " ".join(f"word{number}" for number in range(400))
    after = before.replace("word200", "changed")
    browser = show(
        render({}, [{"id": "a", "old_text": before, "new_text": after, "question": "q" * 5000}])
    )
    shown = column(browser, "new text")[0]
    assert len(shown) < 400 and "changed" in shown and shown.startswith("…") and shown.endswith("…")
    assert len(column(browser, "question")[0]) < 800
    click(browser, ".flips td button")
    assert column(browser, "new text") == [after] and column(browser, "question") == ["q" * 5000]
    focused = ask(
        browser, "(e => [e.textContent, e.getAttribute('aria-expanded')])(document.activeElement)"
    )
    assert focused == ["show less", "true"]
    click(browser, ".flips td button")
    assert column(browser, "new text") == [shown]


def test_hostile_text_appears_and_does_nothing(show):
    pictures = str.maketrans(
        {
            **{code: chr(0x2400 + code) for code in range(32) if code not in (9, 10, 13)},
            127: "␡",
            **dict.fromkeys([*range(0xD800, 0xE000), 0xFDD0, 0xFFFE], "\ufffd"),
        }
    )
    texts_shown = [text for text in HOSTILE if len(text) < 700]
    rows = [
        {
            "id": str(number),
            "quadrant": text,
            "label": text,
            "old": text,
            "new": text,
            "old_text": text,
            "new_text": text,
        }
        for number, text in enumerate(texts_shown)
    ]
    summary = {
        "classes": {text: {"n": 3, "nfr": measured(0.1, n=3)} for text in HOSTILE},
        "notes": HOSTILE,
        "verdict": {"word": HOSTILE[0], "reason": HOSTILE[1]},
    }
    browser = show(render(summary, rows, title=HOSTILE[0]))
    for name in ("right answer", "old answer", "new text", "flip"):
        assert [text.strip() for text in column(browser, name)] == [
            text.translate(pictures).strip() for text in texts_shown
        ]
    assert ask(browser, "one('h1').textContent") == HOSTILE[0] == browser.title
    for number in range(7):
        click(browser, ".flips thead button", number)
    for number in range(1, 4):
        click(browser, ".choice input", number)
        assert hits(browser).startswith("1 of ")
    click(browser, ".choice input", 0)
    search(browser, "<script>window.harmed")
    assert hits(browser) == f"1 of {len(texts_shown)} rows"
    assert ask(
        browser, "[typeof window.harmed, all('img, h1').length, document.scripts.length]"
    ) == ["undefined", 1, 2]
    assert ask(browser, "all('.flips td').every(e => e.firstElementChild.localName === 'bdi')")


@pytest.fixture
def listener():
    """A server on this machine and the list of what it was asked for."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", asked
        server.shutdown()


@pytest.mark.parametrize("guarded", [True, False])
def test_even_markup_that_slipped_through_would_stay_dead(browser, tmp_path, listener, guarded):
    # without the policy the same markup acts: the test would notice a policy that does nothing
    address, asked = listener
    slipped = (
        f'<img src="{address}x.png" onerror="window.harmed = 1"><style>body {{ color: #ff0000 '
        "!important }</style>"
    )
    slipped += "<script>window.harmed = 1</script>"
    page = render({}, []).replace("<main>", f"<main>{slipped}")
    path = tmp_path / "page.html"
    path.write_text(
        page if guarded else re.sub('<meta http-equiv="Content-Security-Policy".*?>', "", page),
        encoding="utf-8",
    )
    screen(browser)
    complaints(browser)
    browser.get(path.as_uri())
    found = browser.execute_script(
        "return [typeof window.harmed, getComputedStyle(document.body).color]"
    )
    assert found == (["undefined", "rgb(28, 30, 33)"] if guarded else ["number", "rgb(255, 0, 0)"])
    assert asked == ([] if guarded else ["/x.png"])
    assert sum("Content Security Policy" in words for words in complaints(browser)) == (
        4 if guarded else 0
    )
    requests(browser)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_word_on_the_page_is_readable(show, theme):
    verdicts = ["better and compatible", "no measurable difference", "worse"]
    rows = [row | {"old_text": "a b", "new_text": "a c"} for row in rows_of(30)]
    for number, word in enumerate(
        verdicts if theme == "light" else ["better but regresses", "worse"]
    ):
        gate = {
            "status": ["holds", "too little data", "failed"][number],
            "conditions": summary_of()["gate"]["conditions"],
        }
        browser = show(
            render(
                summary_of(
                    verdict={"word": word, "reason": "r"},
                    gate=gate,
                    overall=OVERALL | {"scores": SCORED},
                ),
                rows,
            ),
            theme=theme,
        )
        colours = browser.execute_script(READABLE)
        assert len(colours) > 8
        for colour, ground, where in colours:
            assert contrast(colour, ground) >= 4.5, where
    dark = (
        luminance(
            ask(
                browser,
                "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)",
            )
        )
        < 0.1
    )
    assert dark == (theme == "dark")


def test_paper_is_always_light(show):
    browser = show(render(summary_of(), rows_of(30)), theme="dark", medium="print")
    assert (
        browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    assert ask(browser, "all('.tools, .pages, nav').every(e => !e.getClientRects().length)")


@pytest.mark.parametrize("width", [360, 800, 1280])
def test_no_page_is_wider_than_its_screen(show, width):
    rows = [
        row
        | {
            "old_text": "word " * 60,
            "new_text": "wordwordword" * 40,
            "another column with a long name": "x" * 300,
        }
        for row in rows_of(30)
    ]
    summary = summary_of(
        old="o" * 200,
        new="n/" * 100,
        overall=OVERALL | {"scores": SCORED},
        notes=["w" * 500],
        classes={"c" * 200: {"n": 10**9, "nfr": measured(0.1, n=10**9)}},
    )
    browser = show(render(summary, rows), width=width, height=800)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert (
        browser.execute_script("return document.querySelector('.flips tbody').offsetHeight") > 500
    )
    beyond = (
        "e => !e.closest('.scroll, .skip, .unseen') && e.getBoundingClientRect().right > "
        "innerWidth + 1"
    )
    assert ask(browser, f"all('body *').filter({beyond}).map(e => e.outerHTML.slice(0, 80))") == []
    if width == 360:  # there tables become cards, so that nothing has to be pushed sideways
        assert ask(browser, "all('.scroll').every(e => e.scrollWidth <= e.clientWidth)")


def test_what_scrolls_sideways_can_be_reached(show):
    rows = [row | {f"column {number}": "some words" for number in range(20)} for row in rows_of(3)]
    browser = show(render({}, rows))
    reach = ask(
        browser,
        "(e => [e.scrollWidth > e.clientWidth, e.tabIndex, "
        "e.getAttribute('aria-label')])(one('#flips .scroll'))",
    )
    assert reach == [True, 0, "The flips"]


def test_without_javascript_the_first_rows_stand_there(show, browser):
    page = render(summary_of(), rows_of(60))
    with_script = show(page).execute_script(
        "return document.querySelector('.flips tbody').innerText"
    )
    script(browser, allowed=False)
    try:
        show(page)
        script(browser)  # to be able to ask; the page's own script did not run
        assert (
            browser.execute_script("return document.querySelector('.flips tbody').innerText")
            == with_script
        )
        assert ask(
            browser, "all('.tools, .pages, .show-all').every(e => !e.getClientRects().length)"
        )
        assert len(column(browser, "id")) == 25
    finally:
        script(browser)


def test_a_hundred_thousand_rows_can_be_used(show):
    rows = [
        {
            "id": f"r{number}",
            "quadrant": ("negative", "positive")[number % 2],
            "label": f"intent {number % 150}",
            "old": f"intent {number % 7}",
            "new": f"intent {number % 11}",
        }
        for number in range(100_000)
    ]
    page = render({"examples": 100_000}, rows)
    assert len(page) < 4e6
    browser = show(page)
    assert hits(browser) == "100,000 rows" and len(column(browser, "id")) == 25
    click(browser, ".choice input", 1)
    assert hits(browser) == "50,000 of 100,000 rows"
    click(browser, ".flips thead button", 0)
    click(browser, ".flips thead button", 0)
    assert column(browser, "id")[0] == "r99998"
    browser.execute_async_script(
        """const [words, done] = arguments, field = document.querySelector('#search');
        new MutationObserver(() => done()).observe(document.querySelector('#hits'), { childList: true });
        field.value = words; field.dispatchEvent(new Event('input'))""",  # noqa: E501
        "R1234",
    )
    assert hits(browser) == "6 of 100,000 rows"
    assert column(browser, "id") == ["r12348", "r12346", "r12344", "r12342", "r12340", "r1234"]
