"""Archives that may be broken or made to do harm: read by name, up to a limit, and nothing is
written.
"""

import os
import struct
import zipfile

import pytest

from compatkit.compare.archives import entries, read_entry

CONTENT = b'{"a": 1}' * 100


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("header.json", CONTENT)
        file.writestr("../../outside.json", b"{}")
        file.writestr("/etc/outside.json", b"{}")
        file.writestr("bomb.json", bytes(50_000_000))
    return path


def test_an_entry_is_read_and_nothing_is_written(archive):
    before = {path: path.stat().st_mtime_ns for path in archive.parent.parent.rglob("*")}
    assert read_entry(archive, "header.json") == CONTENT
    assert read_entry(archive, "../../outside.json") == b"{}"  # in memory: a name, not a place
    assert len(entries(archive)) == 4
    assert before == {path: path.stat().st_mtime_ns for path in archive.parent.parent.rglob("*")}


def test_a_bomb_is_given_up_at_the_limit(archive):
    with pytest.raises(ValueError, match="unpacks to more than 1,000,000 bytes"):
        read_entry(archive, "bomb.json", most=1_000_000)


def test_an_entry_larger_than_its_directory_says_is_refused(tmp_path):
    path = tmp_path / "lies.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        file.writestr("header.json", CONTENT)
    data = bytearray(path.read_bytes())
    place = data.find(b"PK\x01\x02") + 24
    data[place : place + 4] = struct.pack("<L", 10)
    path.write_bytes(data)
    with pytest.raises(ValueError, match="header.json"):
        read_entry(path, "header.json")


def test_a_half_written_archive_is_named(archive):
    os.truncate(archive, archive.stat().st_size // 2)
    with pytest.raises(ValueError, match="log.eval: the archive is broken or was not written"):
        entries(archive)


def test_a_damaged_entry_is_named(archive):
    data = bytearray(archive.read_bytes())
    place = data.find(b"header.json") + len("header.json") + 4
    data[place] ^= 0xFF
    archive.write_bytes(data)
    with pytest.raises(ValueError, match="header.json"):
        read_entry(archive, "header.json")


def test_an_entry_that_is_not_there_is_named(archive):
    with pytest.raises(ValueError, match="no summaries.json"):
        read_entry(archive, "summaries.json")
