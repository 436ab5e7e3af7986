"""Tables as they are written: what is looked at first, what is said of a broken file, the cells."""

import csv

import polars as pl
import pytest

from compatkit.predictions import Predictions
from compatkit.support import table_cells
from compatkit.support.table_cells import (
    column_names,
    csv_cells,
    csv_flaw,
    csv_names,
    json_objects,
    numbers_in_cells,
    polars_errors,
)


def test_an_error_of_the_disk_stays_one():
    told = "parquet: underlying IO error: No space left on device (os error 28)"
    with pytest.raises(OSError, match="No space left on device$") as found, polars_errors():
        raise pl.exceptions.ComputeError(told)
    assert found.value.errno == 28 and found.value.strerror == "No space left on device"


def test_a_quote_that_swallows_the_rest_of_the_file_is_refused(tmp_path):
    """Readers take the rest for the last cell of its row, and say nothing."""
    path = tmp_path / "answers.csv"
    path.write_text('id,prediction\na,x\nb,"y\nc,z\nd,z\n')
    with pytest.raises(ValueError, match="answers.csv"):
        Predictions.load(path)
    path.write_text('id,prediction\na,5" pipe\nb,"two\nlines, ""quoted"""\n')
    assert Predictions.load(path).prediction.tolist() == ['5" pipe', 'two\nlines, "quoted"']


def test_a_long_quoted_cell_is_no_quote_that_stays_open(tmp_path):
    path, limit = tmp_path / "answers.csv", csv.field_size_limit()
    cell = '{""a"":""' + "x" * 2**17 + '"",""b"":2}'
    for mark in ("", 'b,5" pipe,\n'):  # the second makes Python read the file
        path.write_text(f'id,prediction,text\na,x,"{cell}"\n{mark}')
        assert len(Predictions.load(path).text[0]) > 2**17
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("piece", range(18, 30))
def test_a_quoted_cell_that_goes_on_is_seen_across_the_border_of_two_pieces(
    tmp_path, monkeypatch, piece
):
    monkeypatch.setattr(table_cells, "_PIECE", piece)
    path = tmp_path / "answers.csv"
    path.write_text('id,prediction\na,x\nb,""now\nc,z""\n')
    with pytest.raises(ValueError, match="line 3: a quote"):
        Predictions.load(path)
    path.write_text('id,prediction\na,x\nb,""\nc,"z"\n')
    assert Predictions.load(path).prediction.tolist() == ["x", None, "z"]


def test_a_name_in_the_file_gives_way_to_one_that_was_given():
    assert column_names(["id", "y", "prediction"], {"y": "prediction"}) == [
        "id",
        "prediction",
        None,
    ]
    assert column_names(["id", "y"], {"no such column": "prediction"}) == ["id", "y"]
    with pytest.raises(ValueError, match="columns repeat: 'id'"):
        column_names(["x", "y"], {"x": "id", "y": "id"})


def test_cells_come_as_they_are_written(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('id,x,"say ""no"""\n1,007, 1.0\n2,NA,""\n')
    names = csv_names(path, {'say "no"': "y"})
    assert csv_cells(path, names).rows() == [("1", "007", " 1.0"), ("2", "NA", "")]
    assert csv_flaw(path) == ""


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["1", " -2 "], [1, -2]),
        (["1.5", "1e-05", "2"], [1.5, 1e-05, 2.0]),
        (["1", "01"], None),
        (["1", "1e3"], None),
        (["1", "x"], None),
        (["", ""], None),
        (["9" * 19, "1"], None),
    ],
)
def test_a_column_is_numbers_where_every_cell_is_written_as_one(cells, numbers):
    found = numbers_in_cells(pl.Series(cells))
    assert (None if found is None else found.tolist()) == numbers


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[1]", "line 2 is no JSON object"),
        ("{", "line 2 is no JSON"),
        ('{"a": 1, "a": 2}', "twice"),
    ],
)
def test_the_line_that_is_no_object_is_named(tmp_path, line, told):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": "a"}\n' + line + "\n")
    with pytest.raises(ValueError, match=told):
        json_objects(path)
