"""What is there stays there until something whole takes its place."""

import os
import signal
import subprocess
import sys
import time

import pytest

from compatkit.support.outputs import COMMENT_MARK, MARK, Outputs, is_ours, whole_file


def test_files_appear_together_when_the_block_ends(tmp_path):
    with Outputs() as outputs:
        first, second = (outputs.add(tmp_path / name) for name in ("a.txt", "b.txt"))
        first.write_text("a")
        assert not (tmp_path / "a.txt").exists()
        second.write_text("b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path):
    (tmp_path / "a.html").write_text('<meta name="generator" content="compatkit"> old')
    with pytest.raises(OSError):
        with Outputs() as outputs:
            outputs.add(tmp_path / "a.html").write_text("half")
            outputs.add(tmp_path / "b.csv").write_text("whole")
            raise OSError("no space left on device")
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]
    assert (tmp_path / "a.html").read_text().endswith("old")


def test_an_output_is_no_input_by_any_name(tmp_path):
    (tmp_path / "in.csv").write_text("id")
    os.link(tmp_path / "in.csv", tmp_path / "hard.csv")
    (tmp_path / "soft.csv").symlink_to(tmp_path / "in.csv")
    for name in ("in.csv", "hard.csv", "soft.csv", "../" + tmp_path.name + "/in.csv"):
        with pytest.raises(ValueError, match="--html"):
            Outputs([tmp_path / "in.csv"], force=True).add(tmp_path / name, "--html")


def test_a_file_in_a_folder_that_is_read_is_an_input(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "samples.jsonl").write_text("{}")
    with pytest.raises(ValueError, match="which is read"):
        Outputs([tmp_path / "run"], force=True).add(tmp_path / "run" / "samples.jsonl")
    Outputs([tmp_path / "run"]).add(tmp_path / "run" / "report.html")


def test_two_outputs_have_two_names(tmp_path):
    with Outputs() as outputs:
        place = outputs.add(tmp_path / "a.html", "--html")
        assert outputs.add(tmp_path / "a.html", "--html") == place  # announced, then written
        with pytest.raises(ValueError, match="--flips"):
            outputs.add(tmp_path / "a.html", "--flips")


@pytest.mark.parametrize("name, ours", [
    ("a.html", b'<!doctype html><meta name="generator" content="compatkit">'),
    ("a.md", f"### old: worse\n{COMMENT_MARK}\n".encode()),
    ("a.xml", f"<?xml?>\n{COMMENT_MARK}\n<testsuite/>".encode()),
    ("a.json", b'{\n "kind": "rule",\n "price": 1.0}')])  # fmt: skip
def test_only_what_this_program_wrote_is_replaced(tmp_path, name, ours):
    path = tmp_path / name
    path.write_bytes(b"the only copy of somebody's work")
    with pytest.raises(ValueError, match="--force"):
        Outputs().add(path)
    path.write_bytes(ours)
    assert is_ours(path)
    with whole_file(path) as place:
        place.write_text("new")
    assert path.read_text() == "new"


@pytest.mark.parametrize("name, theirs", [
    ("a.md", "plan: old → new by May\n"),
    ("a.xml", '<testcase classname="compatkit"/>'),
    ("a.json", '{"kind": "rule", "allow": "port 22"}'),
    ("a.svg", "<svg><title>how compatkit works</title></svg>"),
    ("a.csv", "id,quadrant,owner\n"),
    ("a.jsonl", '{"id": "1", "quadrant": "c"}\n{"id": "2", "quadrant": "c", "owner": "me"}\n'),
])  # fmt: skip
def test_what_only_looks_like_ours_stays(tmp_path, name, theirs):
    (tmp_path / name).write_text(theirs)
    with pytest.raises(ValueError, match=name):
        Outputs().add(tmp_path / name, columns=("id", "quadrant", "label"))
    assert (tmp_path / name).read_text() == theirs


@pytest.mark.parametrize("name, row", [
    ("a.csv", "id,{},label\r\n"),
    ("a.jsonl", '{{"id": "1", "{}": "negative", "label": "y"}}\n')])  # fmt: skip
def test_flips_are_told_by_their_columns_as_soon_as_these_are_known(tmp_path, name, row):
    path = tmp_path / name
    path.write_text(row.format("quadrant"))
    assert is_ours(path, None) and is_ours(path, ("id", "quadrant", "label", "old"))
    assert not is_ours(path) and not is_ours(path, ("id", "quadrant"))
    path.write_text(row.format("region"))
    assert not is_ours(path, None)
    path.write_bytes(b"\xff")
    assert not is_ours(path, None)
    outputs = Outputs()
    with outputs:  # announced before the columns are known, and refused when they are
        path.write_text(row.format("quadrant"))
        outputs.add(path, "--flips", None)
        with pytest.raises(ValueError, match="--flips .* cannot tell"):
            outputs.add(path, "--flips", ("id", "quadrant"))


def test_parquet_tells_who_wrote_it(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table({"id": ["a"]})
    for metadata, ours in ((None, False), (MARK, True)):
        parquet.write_table(table.replace_schema_metadata(metadata), tmp_path / "a.parquet")
        assert is_ours(tmp_path / "a.parquet") == ours


def test_folders_and_missing_folders(tmp_path):
    with pytest.raises(ValueError, match="is a folder"):
        Outputs().add(tmp_path)
    with pytest.raises(ValueError, match="there is no folder"):
        Outputs().add(tmp_path / "no" / "a.html")


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path, there):
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "page.html", tmp_path / "page.html"
    link.symlink_to(target)
    if there:
        target.write_text("old")
    with Outputs(force=True) as outputs:
        outputs.add(link).write_text("new")
    assert link.is_symlink() and target.read_text() == "new" and outputs.written == [link]
    assert list((tmp_path / "far").iterdir()) == [target]


@pytest.mark.parametrize(
    "target, why", [("no/page.html", "a link to .*no/page.html"), ("page.html", "leads to itself")]
)
def test_a_link_that_leads_nowhere_is_refused(tmp_path, target, why):
    (tmp_path / "page.html").symlink_to(tmp_path / target)
    with pytest.raises(ValueError, match=f"page.html is .*{why}"):
        Outputs().add(tmp_path / "page.html")


def test_the_standard_output_can_be_an_output(tmp_path):
    code = (
        "from compatkit.support.outputs import Outputs\n"
        "with Outputs() as o: o.add('/dev/stdout').write_text('told')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "told", done.stderr


def test_a_signal_leaves_nothing(tmp_path):
    code = f"""
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
from compatkit.support.outputs import Outputs
with Outputs() as outputs:
    outputs.add({str(tmp_path / "a.html")!r}).write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout.readline() == "writing\n"
        run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=30) == 143
    time.sleep(0)
    assert list(tmp_path.iterdir()) == []
