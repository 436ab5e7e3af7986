"""Which answer became which, counted as a naive loop counts, and written so that no spreadsheet
runs it.
"""

import csv
import json
from collections import Counter

import numpy as np
import pytest
from made_pairs import pair_of, scored_pair

from compatkit.compare.flips import FLIP_KINDS, changes, flip_rows, write_rows


def some_pair(n=500):
    draw = np.random.default_rng(0)
    return pair_of(*np.array(list("abcd"))[draw.integers(0, 4, (3, n))])


def test_changes_are_those_of_a_naive_loop():
    pair = some_pair()
    names = [[pair.answers[code] for code in side] for side in (pair.label, pair.old, pair.new)]
    counted = Counter((y, o, n) for y, o, n in zip(*names) if o != n)
    found = {(one["label"], one["old"], one["new"]): one for one in changes(pair)}
    assert {triple: one["n"] for triple, one in found.items()} == counted
    for (label, old, new), one in found.items():
        kind = (
            "negative" if label == old else "positive" if label == new else "both wrong, different"
        )
        assert one["kind"] == kind
    listed = [(FLIP_KINDS.index(one["kind"]), -one["n"]) for one in changes(pair)]
    assert listed == sorted(listed) and sum(one["n"] for one in changes(pair)) == counted.total()
    assert len(changes(pair, most=3)) == 3


def test_scores_have_no_changes():
    assert changes(scored_pair([0.1], [0.2])) == []


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_every_flip_is_written(tmp_path, ending):
    rows, more = flip_rows(some_pair())
    path = tmp_path / f"flips{ending}"
    write_rows(rows, path)
    if ending == ".parquet":
        from pyarrow import parquet

        back = parquet.read_table(path).to_pylist()
    elif ending == ".jsonl":
        back = list(map(json.loads, path.read_text().splitlines()))
    else:
        back = list(csv.DictReader(path.open(newline="")))
    assert more == 0 and back == rows and list(back[0])[:2] == ["id", "quadrant"]


def test_a_spreadsheet_runs_nothing(tmp_path):
    rows = [
        {
            "id": "=cmd()",
            "quadrant": "negative",
            "label": "+1",
            "old": "-x",
            "new": "@a",
            "old_score": -0.5,
        }
    ]
    write_rows(rows, tmp_path / "flips.csv")
    (row,) = csv.DictReader((tmp_path / "flips.csv").open(newline=""))
    assert [row[name] for name in ("id", "label", "old", "new")] == ["'=cmd()", "'+1", "'-x", "'@a"]
    assert row["old_score"] == "-0.5"  # a number is no formula


def test_another_ending(tmp_path):
    with pytest.raises(ValueError, match=".csv, .jsonl, .parquet"):
        write_rows([], tmp_path / "flips.xlsx")


def test_no_flips_are_a_file_with_a_header(tmp_path):
    write_rows([], tmp_path / "flips.csv")
    assert (tmp_path / "flips.csv").read_text().strip() == "id,quadrant"
    assert flip_rows(pair_of(["a"], ["a"], ["a"])) == ([], 0)


def test_jsonl_has_no_infinity(tmp_path):
    write_rows([{"id": "a", "lat": float("inf"), "old_score": float("nan")}], tmp_path / "f.jsonl")
    (line,) = (tmp_path / "f.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail) == {
        "id": "a",
        "lat": None,
        "old_score": None,
    }
