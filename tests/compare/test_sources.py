"""Columns of files, one at a time."""

import csv
import gzip
import os
import random

import numpy as np
import polars as pl
import pytest

from compatkit.compare.sources import (
    has_column,
    numbered,
    predictions_source,
    read_source,
    read_table,
)
from compatkit.predictions import Predictions

ENDINGS = [".parquet", ".csv", ".jsonl"]


def saved(folder, ending, **columns):
    return Predictions(
        **{
            "id": ["b", "a", "c"],
            "label": ["x", "y", "x"],
            "prediction": ["x", "x", "y"],
            **columns,
        }
    ).save(folder / f"f{ending}")


@pytest.mark.parametrize("ending", ENDINGS)
def test_columns_rows_and_ids(tmp_path, ending):
    source = read_source(saved(tmp_path, ending, columns={"length": [3, 1, 2]}), {})
    assert list(source.schema) == ["id", "label", "prediction", "length"] and source.further == [
        "length"
    ]
    assert source.column("prediction").cast(pl.String).to_list() == ["x", "x", "y"]
    assert source.ids([2, 0, 2]) == ["c", "b", "c"]
    assert source.rows([1, 0], ["length", "id"]).cast(pl.String).rows() == [("1", "a"), ("3", "b")]
    assert source.rows([], ["id"]).rows() == []


@pytest.mark.parametrize("ending", ENDINGS)
def test_hashes_are_those_of_the_ids_whatever_the_file(tmp_path, ending):
    hashes = read_source(saved(tmp_path, ending), {}).hashes()
    expected = pl.Series(["b", "a", "c"]).hash(1).to_numpy()
    assert hashes.dtype == np.uint64 and np.array_equal(hashes, expected)
    assert not np.array_equal(read_source(saved(tmp_path, ending), {}).hashes(2), expected)
    numbers = predictions_source(Predictions([7, 8], prediction=[1, 1]), "numbers").hashes()
    assert np.array_equal(numbers, pl.Series(["7", "8"]).hash(1).to_numpy())


@pytest.mark.parametrize("ending", ENDINGS)
def test_names_are_mapped_and_a_taken_name_gives_way(tmp_path, ending):
    path = saved(tmp_path, ending, columns={"better": ["y", "y", "x"]})
    source = read_source(path, {"better": "prediction", "nowhere": "score"})
    assert (
        source.column("prediction").cast(pl.String).to_list() == ["y", "y", "x"]
        and "better" not in source.schema
    )
    assert has_column(path, "better") and not has_column(path, "nowhere")


def test_logits_are_read_only_where_there_is_no_prediction(tmp_path):
    pl.DataFrame({"id": ["a"], "prediction": ["x"], "logits": [[float("nan"), 1.0]]}).write_parquet(
        tmp_path / "both.parquet"
    )
    assert read_source(tmp_path / "both.parquet", {}).column("prediction").to_list() == ["x"]
    pl.DataFrame({"id": ["a"], "logits": [[float("nan"), 1.0]]}).write_parquet(
        tmp_path / "bare.parquet"
    )
    with pytest.raises(ValueError, match="bare.parquet.*'a'"):
        read_source(tmp_path / "bare.parquet", {})
    (tmp_path / "wide.csv").write_text("id,logit_no,logit_yes\na,1,2\nb,3,1\n")
    source = read_source(tmp_path / "wide.csv", {})
    assert (source.column("prediction").to_list(), source.classes, source.width) == (
        [1, 0],
        ("no", "yes"),
        2,
    )
    (tmp_path / "odd.jsonl").write_text('{"id": 1, "logits": [1, 2]}\n{"id": 2, "logits": [1]}\n')
    with pytest.raises(
        ValueError,
        match="odd.jsonl.*`logits`.*2 values",
    ):
        read_source(tmp_path / "odd.jsonl", {})


BAD = [
    ("a.csv", b"", "a.csv: the file is empty"),
    ("a.csv", b"\xef\xbb\xbf", "`id` is missing .found: nothing."),
    ("a.csv", b"Id,prediction\n1,1\n", "`id` is missing .found: Id, prediction; did you mean 'Id'"),
    ("a.csv", b"id;prediction\n1;1\n", "divided by ';', not by commas"),
    ("a.csv", b"id\tprediction\n1\t1\n", "divided by .*, not by commas"),
    ("a.csv", b"id,logit_x,logit_y\n", "a.csv: the file holds no examples"),
    ("a.csv", b"id,predicted\n1,1\n", "none of `prediction`.* did you mean 'predicted'"),
    ("a.csv", b"id,prediction,prediction\n1,1,1\n", "columns repeat: 'prediction'"),
    ("a.csv", b"id,text,prediction\n1,one, two,1\n2,x,1\n", "line 2 has 4 cells and the header 3"),
    ("a.csv", b'id,prediction\n"1,1\n2,1\n', "a.csv: "),
    ("a.csv", b'id,prediction\n1,""now\n2,y\n', "line 2: a quote stands inside a quoted cell"),
    ("a.csv", b'id,prediction\n1,""now""\n2,y\n', "line 2: a quote stands inside a quoted cell"),
    ("a.csv", 'id,prediction\n1,"a"é\n'.encode(), "line 2: a quote stands inside a quoted cell"),
    ("a.csv", gzip.compress(b"id,prediction\n1,1\n", mtime=0), "this is a gzip file"),
    ("a.csv", "id,prediction\n1,1\n".encode("utf-16"), "this text is UTF-16"),
    ("a.csv", "id,prediction\n1,gelöst\n".encode("latin-1"), "this text is not UTF-8 .Latin-1"),
    ("a.csv", "id,lösung,prediction\n1,1,1\n".encode("latin-1"), "this text is not UTF-8"),
    (
        "a.csv",
        b"id,prediction\n" + b"1,1\n" * 100_000 + "2,gelöst\n".encode("latin-1"),
        "this text is not UTF-8",
    ),
    ("a.csv", b"PAR1....", "this is not text"),
    ("a.csv", b"PK\x03\x04....", "this is a zip or Excel file"),
    ("a.jsonl", '{"id": 1, "prediction": "gelöst"}\n'.encode("latin-1"), "this text is not UTF-8"),
    ("a.jsonl", b'[{"id": 1}]', "no jsonl file"),
    (
        "a.jsonl",
        b'{"id": "q", "prediction": "x\\ud800"}',
        r"a.jsonl: the column 'prediction' holds half of a character .* for id 'q': write",
    ),
    ("a.jsonl", b'{"id": 1, "prediction": 1%s}' % (b"0" * 400), "a.jsonl: `prediction` holds 1000"),
    ("a.parquet", b"id,prediction\n", "not a parquet file"),
    ("a.parquet", b"PAR1" + bytes(100) + b"PAR1", "a.parquet: "),
    ("a.parquet", gzip.compress(b"PAR1", mtime=0), "this is a gzip file"),
    ("a.xlsx", b"PK", "must be parquet, csv, jsonl"),
]


@pytest.mark.parametrize("name, content, message", BAD)
def test_bad_files_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_source(tmp_path / name, {})


def test_a_damaged_parquet_is_named_when_its_column_is_read(tmp_path):
    path = tmp_path / "a.parquet"
    pl.DataFrame(
        {"id": [f"id-{n}" for n in range(1000)], "prediction": list(range(1000))}
    ).write_parquet(path)
    content = bytearray(path.read_bytes())
    content[40:400] = os.urandom(360)
    path.write_bytes(content)
    with pytest.raises(ValueError, match="a.parquet: "):
        read_source(path, {}).hashes()


def test_a_file_that_changes_is_refused(tmp_path):
    path = saved(tmp_path, ".parquet")
    source = read_source(path, {})
    saved(tmp_path, ".parquet", columns={"more": [1, 2, 3]})
    with pytest.raises(ValueError, match="f.parquet"):
        source.ids([0])


def test_names_with_signs_that_mean_something_elsewhere(tmp_path):
    folder = tmp_path / "a [1] task=x *"
    folder.mkdir()
    for ending in ENDINGS:
        assert read_source(saved(folder, ending), {}).ids([0]) == ["b"]
    pl.DataFrame({"id": ["a"], "prediction": [1], "^x$": [1]}).write_parquet(
        tmp_path / "odd.parquet"
    )
    assert read_source(tmp_path / "odd.parquet", {}).rows([0], ["id", "^x$"]).rows() == [("a", 1)]


@pytest.mark.parametrize("seed", range(12))
def test_csv_cells_are_what_was_written(tmp_path, seed):
    generator = random.Random(seed)
    letters = generator.choice(['ab,"\n', '"', "é猫\n", "a,", 'x"\n,'])
    rows = [
        [
            f"id{n}",
            "x",
            *(
                "".join(generator.choices(letters, k=generator.choice([0, 1, 5, 60])))
                for _ in range(2)
            ),
        ]
        for n in range(generator.choice([3, 40, 5000]))
    ]
    with open(tmp_path / "a.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(
            file,
            lineterminator=generator.choice(["\n", "\r\n"]),
            quoting=generator.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
        )
        writer.writerows([["id", "prediction", "text", "note"], *rows])
    source = read_source(tmp_path / "a.csv", {})
    assert source.rows(np.arange(len(rows)), ["id", "text", "note"]).rows() == [
        (row[0], row[2], row[3]) for row in rows
    ]


def test_empty_lines_of_a_csv_are_no_examples(tmp_path):
    (tmp_path / "a.csv").write_text("id,prediction,note\n1,x,a\n\n2,y,\n\n\n")
    source = read_source(tmp_path / "a.csv", {})
    assert (
        source.ids([0, 1]) == ["1", "2"]
        and len(source.hashes()) == len(source.column("prediction")) == 2
    )
    assert source.column("note").to_list() == ["a", ""]


def test_tables_without_ids_are_numbered(tmp_path):
    for name, content in (
        ("a.csv", "v1,v2\n1,0\n1,1\n"),
        ("a.jsonl", '{"v1": 1, "v2": 0}\n{"v1": 1, "v2": 1}\n'),
    ):
        (tmp_path / name).write_text(content)
        table = numbered(read_table(tmp_path / name, {}))
        assert table.ids([1, 0]) == ["2", "1"] and list(table.schema) == ["id", "v1", "v2"]
        assert np.array_equal(table.hashes(), pl.Series(["1", "2"]).hash(1).to_numpy())


def test_a_csv_that_polars_gives_up_is_read_by_python(tmp_path):
    """A quote in a cell without quotes, beside a quoted cell of two lines."""
    path = tmp_path / "a.csv"
    path.write_text('id,"the ""label""",prediction\na,x,5" pipe\n\nb,x,"two\nlines, ""quoted"""\n')
    source = read_source(path, {'the "label"': "label"})
    assert source.column("prediction").to_list() == ['5" pipe', 'two\nlines, "quoted"']
    assert source.column("label").to_list() == ["x", "x"]
    assert source.rows([1, 0], ["id"])["id"].to_list() == ["b", "a"]
