"""Reports of SWE-bench: instances by the list that they stand in."""

import json

import pytest

from compatkit.compare.pair import read_pair
from compatkit.compare.report import compare
from compatkit.metrics import FlipCounts


def report(path, **lists):
    """A report with these lists of numbers of instances."""
    named = {name: [f"django__django-{one}" for one in ids] for name, ids in lists.items()}
    submitted = sorted({one for ids in named.values() for one in ids})
    counts = {"total_instances": 500, "resolved_instances": len(named["resolved_ids"])}
    path.write_text(json.dumps(counts | {"submitted_ids": submitted} | named, indent=4))
    return path


def test_resolved_is_right_and_what_broke_off_is_said(tmp_path):
    old = report(tmp_path / "old.json", resolved_ids=[1, 2, 3], unresolved_ids=[4, 5])
    new = report(
        tmp_path / "new.json",
        resolved_ids=[1, 4],
        unresolved_ids=[2],
        error_ids=[3],
        empty_patch_ids=[5],
    )
    found = compare(old, new)
    pair = found.pair
    counts = FlipCounts.of(pair.label, pair.old, pair.new)
    assert (counts.both_right, counts.negative, counts.positive, counts.n) == (1, 2, 1, 5)
    assert any("(1 error, 1 no answer)" in note for note in pair.notes)
    dropped = compare(old, new, wanted={"errors": "drop"}).pair
    assert dropped.n == 3
    assert pair.columns["repository"].tolist() == ["django/django"] * 5


def test_what_was_never_submitted_is_no_part_of_the_run(tmp_path):
    old = report(tmp_path / "old.json", resolved_ids=[1], unresolved_ids=[2])
    content = json.loads(old.read_text())
    old.write_text(json.dumps(content | {"incomplete_ids": ["django__django-9"]}))
    new = report(tmp_path / "new.json", resolved_ids=[1, 2])
    assert read_pair(old, new).n == 2


def test_what_was_submitted_and_stands_in_no_list_broke_off(tmp_path):
    old = report(tmp_path / "old.json", resolved_ids=[1], completed_ids=[1, 2])
    new = report(tmp_path / "new.json", resolved_ids=[1, 2])
    assert any("1 error" in note for note in read_pair(old, new).notes)


def test_other_instances_are_refused(tmp_path):
    old = report(tmp_path / "old.json", resolved_ids=[1, 2])
    new = report(tmp_path / "new.json", resolved_ids=[1, 3])
    with pytest.raises(ValueError, match="django__django-2"):
        read_pair(old, new)


def test_a_report_without_lists_is_refused(tmp_path):
    for name in ("old", "new"):
        counts = '{"total_instances": 3, "resolved_instances": 1}'
        (tmp_path / f"{name}.json").write_text(counts)
    with pytest.raises(ValueError, match="old.json.*`resolved_ids`"):
        read_pair(tmp_path / "old.json", tmp_path / "new.json")
