"""Quotations: numbers and rows in sentences are those of the kept tables."""

import json

import pytest

from compatkit.experiments.judging.quotations import quotations, quoted_anew, write_quotations
from compatkit.experiments.reporting.result_tables import ResultTable, Row

ROWS = (
    Row("old model", seeds=3, accuracy=(0.75, 0.0), nfr=(0.0, 0.0)),
    Row("new model", seeds=3, accuracy=(0.8, 0.0), nfr=(0.0512, 0.0)),
    Row("FD-LM", "λ 0.1; none was on a par", seeds=3, accuracy=(0.79, 0.0), nfr=(0.04, 0.0)),
    Row("focal, the talk's", "λ 1", seeds=3, accuracy=(0.81, 0.0), nfr=(0.03, 0.0)),
)
TABLES = {"first": ResultTable("one", ROWS), "second": ResultTable("two", ROWS[:2])}
ASKED = """<!-- kept rows:
first as larger, CIFAR-10
second
| old model as old; new model as untreated; FD-LM; focal, the talk's as focal
-->
"""
MADE = """
| NFR (accuracy), % | old | untreated | FD-LM | focal |
| --- | --- | --- | --- | --- |
| larger, CIFAR-10 | (75.0) | 5.12 (80.0) | 4.00 (79.0) † | 3.00 (81.0) |
| second | (75.0) | 5.12 (80.0) | – | – |

† no setting was as accurate on selection as the method's rule asks.

"""


def test_quotations_are_written_from_the_tables_and_nothing_else_is(tmp_path):
    name = "a-b-mini-main"
    tables = {name: ResultTable("made-up", (Row("new", seeds=3, accuracy=(0.688, 0.01)),))}
    stale = f"ä <!-- kept: {name} | new | accuracy | .0 -->70<!-- end --> %\n"
    fresh, example = stale.replace(">70<", ">69<"), f"`{stale.strip()}`"
    cells = [
        {"cell_type": kind, "source": [text]}
        for kind, text in (("markdown", stale), ("markdown", example), ("code", f"# {stale}"))
    ]
    notebook, page = tmp_path / "some.ipynb", tmp_path / "README.md"
    notebook.write_text(json.dumps({"cells": cells}, indent=1, ensure_ascii=False) + "\n")
    page.write_text(stale + example)
    assert write_quotations(notebook, tables) and write_quotations(page, tables)
    written = [cell["source"] for cell in json.loads(notebook.read_text())["cells"]]
    assert written == [[fresh], [example], [f"# {stale}"]]
    assert page.read_text() == fresh + example
    before = notebook.stat().st_mtime_ns
    assert not write_quotations(notebook, tables) and not write_quotations(page, tables)
    assert notebook.stat().st_mtime_ns == before
    assert quoted_anew(stale, {}) == stale and quotations(stale, {})[0][2] == "nothing"


@pytest.mark.parametrize("before", ["", "old words\n", MADE.replace("5.12", "9.99")])
def test_rows_of_several_tables_become_one(before):
    text = f"Before.\n\n{ASKED}{before}<!-- end -->\nAfter, <!-- end --> as it was.\n"
    written = quoted_anew(text, TABLES)
    assert written == f"Before.\n\n{ASKED}{MADE}<!-- end -->\nAfter, <!-- end --> as it was.\n"
    assert quoted_anew(written, TABLES) == written
    ((what, shown, said),) = quotations(written, TABLES)
    assert shown == said and what.startswith("rows of first as larger")


def test_without_an_unqualified_row_there_is_no_dagger():
    asked = ASKED.replace("FD-LM; ", "")
    assert "†" not in quoted_anew(f"{asked}<!-- end -->\n", TABLES)


@pytest.mark.parametrize(
    "asked",
    [
        ASKED.replace("second", "lost"),  # a table that is not kept
        ASKED.replace("FD-LM", "FD-XX"),  # a row that no table has
        ASKED.replace("| old model as old; new model as untreated; ", "| ").replace(
            "first as", "x as"
        ),
    ],
)
def test_what_no_table_has_is_said_and_stays(asked):
    text = f"{asked}\nas it was\n\n<!-- end -->\n"
    assert quoted_anew(text, TABLES) == text
    assert [said for _, _, said in quotations(text, TABLES)] == ["nothing"]


def test_what_was_not_measured_is_a_dash():
    rows = (ROWS[1], Row("c = 0.1", seeds=5, accuracy=(None, None), nfr=(None, None)), Row("later"))
    tables = {"first": ResultTable("one", rows)}
    text = "<!-- kept rows:\nfirst\n| new model; c = 0.1; later\n-->\n<!-- end -->\n"
    assert "| first | 5.12 (80.0) | – | – |" in quoted_anew(text, tables)
    number = "<!-- kept: first | later | nfr | .1 -->7.0<!-- end -->"
    assert quotations(number, tables)[0][2] == "nothing"


def test_an_example_in_a_sentence_is_no_table():
    text = "Write `<!-- kept rows:` and what follows.\n<!-- end -->\n"
    assert quotations(text, TABLES) == [] and quoted_anew(text, TABLES) == text


def test_a_measure_without_a_column_is_the_mean_of_its_seeds():
    row = Row("new", seeds=2, by_seed=({"nfr_mc": 0.1}, {"nfr_mc": 0.2}))
    asked = "<!-- kept: t | new | {} | .1 -->0<!-- end -->"
    for what, shown in (("nfr_mc", "15.0"), ("no_such_measure", "0")):
        text = quoted_anew(asked.format(what), {"t": ResultTable("t", (row,))})
        assert text == asked.format(what).replace(">0<", f">{shown}<")
