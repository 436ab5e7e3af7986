"""Files of answers in every wrapping, and streams that can be read once."""

import bz2
import csv
import gzip
import json
import lzma
import os
import sys
import threading
from pathlib import Path

import pytest

from compatkit.support.table_files import _scratch, plain_file, unique_keys, without_formula

ROWS = [{"id": "a", "prediction": "x, y"}, {"id": "b", "prediction": "z"}]
CSV = b'id,prediction\na,"x, y"\nb,z\n'
LINES = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def rows_in(path):
    """The rows of a csv or jsonl."""
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return list(csv.DictReader(text.splitlines()))


def zstd(content):
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as packed:
        packed.write(content)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    "name, content",
    [
        ("t.csv.gz", gzip.compress(CSV)),
        ("t.csv.bz2", bz2.compress(CSV)),
        ("t.csv.xz", lzma.compress(CSV)),
        ("t.csv.zst", zstd(CSV)),
        ("t.jsonl.gz", gzip.compress(LINES)),
        ("t.tsv.gz", gzip.compress(b"id\tprediction\na\tx, y\nb\tz\n")),
        ("t.tsv", b"\xef\xbb\xbfid\tprediction\r\na\tx, y\r\nb\tz\r\n"),
        ("t.csv", CSV.replace(b"\n", b"\r")),
        ("t.json", b"\n" + json.dumps(ROWS).encode()),
        ("t.json", b'{"id": ["a", "b"], "prediction": ["x, y", "z"]}'),
        ("t.json", b'{"id": {"0": "a", "1": "b"}, "prediction": {"0": "x, y", "1": "z"}}'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_wrapping_holds_the_same_rows(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    plain = plain_file(path)
    assert rows_in(plain) == ROWS and path.read_bytes() == content
    assert plain.parent.name == tmp_path.name and plain.stem == "t"  # headings tell folders apart
    assert plain_file(path) == plain  # made once
    os.utime(path, ns=(1, 1))
    assert plain_file(path) != plain  # but not kept when the file becomes another


@pytest.mark.parametrize("way", ["..", "../..", "../" * 40, "../deep/..", "./.."])
@pytest.mark.parametrize(
    "name, content",
    [
        ("t.tsv", b"id\tprediction\na\tx, y\nb\tz\n"),
        ("t.json", json.dumps(ROWS).encode()),
        ("t.csv.gz", gzip.compress(CSV)),
        ("t.csv.bz2", bz2.compress(CSV)),
        ("t.csv.xz", lzma.compress(CSV)),
        ("t.csv", CSV.replace(b"\n", b"\r")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_path_that_goes_up_is_copied_into_the_scratch_folder(
    tmp_path, monkeypatch, way, name, content
):
    (tmp_path / "sub" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "sub" / "deep")
    folder = (tmp_path / "sub" / "deep" / way).resolve()
    if folder == folder.parent:  # the root of the disk: go down again from there
        way, folder = way + str(tmp_path).lstrip("/"), tmp_path
    (folder / name).write_bytes(content)
    scratch = Path(_scratch().name)
    plain = plain_file(f"{way}/{name}")
    assert rows_in(plain) == ROWS
    assert plain.resolve().is_relative_to(scratch.resolve()) and plain.parent.name == folder.name


@pytest.mark.parametrize(
    "name, content",
    [
        ("t.csv", CSV),
        ("t.jsonl", LINES),
        ("log.json", b'{"version": 2, "status": "success"}'),
        ("table.json", b'{"columns": ["a"], "data": [["b"]]}'),
        ("uneven.json", b'{"a": [1], "b": [1, 2]}'),
        ("broken.json", b'[{"id": 1'),
        ("numbers.json", b"[1, 2]"),
        ("notes.txt", b"x"),
    ],
)
def test_what_can_be_read_or_is_for_others_to_judge_stays(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    assert plain_file(path) == path
    assert plain_file(tmp_path) == tmp_path and plain_file(tmp_path / "no") == tmp_path / "no"


def test_a_pipe_is_read_once_and_its_content_says_what_it_is(tmp_path):
    for number, (name, content) in enumerate(
        [("answers.csv", CSV), ("a", CSV), ("a", LINES), ("a", json.dumps(ROWS).encode())]
        + [("a", gzip.compress(LINES)), ("a", b"id\tprediction\na\tx, y\nb\tz\n")]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        os.mkfifo(folder / name)
        writer = threading.Thread(target=(folder / name).write_bytes, args=(content,))
        writer.start()
        plain = plain_file(folder / name)
        writer.join()
        assert rows_in(plain) == ROWS and plain_file(folder / name) == plain
        assert plain.name.startswith(name)


def test_a_stream_without_content_says_so(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="standard input"):
        plain_file("/dev/null")
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ValueError, match="standard input: it is closed"):
        plain_file("-")


def test_broken_packing_and_repeated_keys_are_named(tmp_path):
    for name, content in {
        "cut.csv.gz": gzip.compress(CSV)[:-12],
        "no.csv.gz": CSV,
        "cut.csv.xz": lzma.compress(CSV)[:-12],
        "no.csv.zst": CSV,
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name} is no whole \.\w+ file"):
            plain_file(tmp_path / name)
    (tmp_path / "t.json").write_text('[{"id": 1, "prediction": "c", "prediction": "py"}]')
    with pytest.raises(ValueError, match="t.json.*'prediction'"):
        plain_file(tmp_path / "t.json")
    assert unique_keys([("a", 1), ("b", 1)]) == {"a": 1, "b": 1}


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r"])
def test_a_cell_that_begins_like_a_formula_gets_an_apostrophe(first):
    assert without_formula(f"{first}cmd") == f"'{first}cmd"
    assert without_formula(f"a{first}b") == f"a{first}b"


def test_a_number_stays_a_number():
    assert without_formula(-1.5) == -1.5


def test_a_name_that_is_no_utf8_is_refused_with_the_remedy(tmp_path):
    path = Path(os.fsdecode(bytes(tmp_path) + b"/n\xff.csv"))
    with pytest.raises(ValueError, match="rename the file"):
        plain_file(path)
